"""What is written down of calls and bullets."""

import json
import os
from datetime import datetime, timezone
from pathlib import Path


def log_llm_call(log_dir, call_info):
    moment = datetime.now(timezone.utc).strftime("%Y%m%d_%H%M%S_%f")
    name = f"{call_info['role']}_{call_info['call_id']}_{moment}.json"
    Path(log_dir, name).write_text(json.dumps({**call_info, "timestamp": moment}), encoding="utf-8")


def log_bullet_usage(
    usage_log_path,
    epoch,
    step,
    sample_data,
    bullet_ids_used,
    playbook=None,
    reflection_content=None,
    is_correct=None,
):
    contents = {}
    for line in reversed(playbook.split("\n") if playbook else []):
        if "::" in line and line.startswith("["):
            contents[line[1:].split("]", 1)[0]] = line.split("::", 1)[1].strip()
    entry = {
        "timestamp": datetime.now(timezone.utc).isoformat(),
        "epoch": epoch,
        "step": step,
        "sample_id": f"epoch_{epoch}_step_{step}",
        "bullet_ids_used": bullet_ids_used,
        "bullets_with_content": [
            {"bullet_id": name, "content": contents.get(name, "Content not found")} for name in bullet_ids_used
        ],
        "is_correct": is_correct,
        "sample_context": sample_data.get("context", "")[:500],
        "sample_question": sample_data.get("question", "")[:200],
        "reflection_summary": reflection_content[:300] if reflection_content else None,
        "bullet_count": len(bullet_ids_used),
    }
    with Path(usage_log_path).open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry, ensure_ascii=False) + "\n")


def log_curator_failure(save_path, step, failure_type, curator_response, epoch, error_details=None):
    with Path(save_path, "curator_failures.txt").open("a", encoding="utf-8") as file:
        file.write(f"step {step}: {failure_type}: {error_details}{os.linesep}{curator_response}{os.linesep}")
