#!/usr/bin/env bash
# Usage: run_eval.sh IMPORT_PATH TASK_SET TRIALS CONCURRENT [harbor's own options]
set -eu
agent=$1 trials=$3 concurrent=$4
shift 4
exec uv run harbor run --agent-import-path "$agent" -m "$HARBOR_MODEL" -n "$concurrent" --n-attempts "$trials" "$@"
