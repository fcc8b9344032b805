"""What W&B and MLflow really kept of a run, read back from their own files."""

import json
import struct
from pathlib import Path

BLOCK = 32768  # bytes; a W&B file is a LevelDB log
HEADER = 7  # bytes, of the file and of every piece
LAST_PIECES = (1, 4)
CLOCKS = {"_timestamp", "_runtime", "_wandb"}


class Kept:
    """One run as its tracker kept it, comparable between runs.

    Args:
        config: what was set once.
        history: step to (name to value).
        summary: what is shown of the whole run.
        tables: name to rows, each a list.
        pages: name to HTML.
        ended: how the run ended, in the tracker's words.
    """

    def __init__(self, config, history, summary, tables, pages, ended):
        self.config, self.history, self.summary = config, history, summary
        self.tables, self.pages, self.ended = tables, pages, ended

    def __eq__(self, other):
        return vars(self) == vars(other)

    __hash__ = None

    @property
    def names(self):
        return {name for row in self.history.values() for name in row}


def wandb_run(folder):
    """The one offline run in a folder."""
    (path,) = Path(folder).glob("wandb/offline-run-*/*.wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    files = path.parent / "files"
    config, history, summary, ended = {}, {}, {}, None
    for piece in _pieces(path.read_bytes()):
        record = Record()
        record.ParseFromString(piece)
        if record.HasField("config"):
            config.update(_values(record.config.update))
        elif record.HasField("history"):
            step = record.history.step.num
            assert step not in history, f"step {step} is repeated"
            assert not history or step > max(history), f"step {step} comes late"
            history[step] = _values(record.history.item)
        elif record.HasField("summary"):
            summary.update(_values(record.summary.update))
        elif record.HasField("exit"):
            ended = record.exit.exit_code
    tables, pages = {}, {}
    for row in history.values():
        for name in [name for name, value in row.items() if isinstance(value, dict)]:
            file = row.pop(name)
            text = (files / file["path"]).read_text("utf-8")
            if file["_type"] == "table-file":
                tables[name] = json.loads(text)["data"]
            else:
                pages[name] = text
        row.pop("_step")
    summary = {name: value for name, value in summary.items() if not isinstance(value, dict) and name != "_step"}
    return Kept(config, history, summary, tables, pages, ended)


def _pieces(data):
    """The records of a LevelDB log."""
    at, record = HEADER, b""
    while at < len(data):
        left = BLOCK - at % BLOCK
        if left < HEADER:
            at += left
            continue
        size, kind = struct.unpack("<HB", data[at + 4 : at + HEADER])
        record += data[at + HEADER : at + HEADER + size]
        at += HEADER + size
        if kind in LAST_PIECES:
            yield record
            record = b""


def _values(items):
    """Names to values; what is nested, one level deep, as a dict."""
    found = {}
    for item in items:
        name, *inner = item.nested_key or [item.key]
        value = json.loads(item.value_json)
        if inner:
            found.setdefault(name, {})[".".join(inner)] = value
        else:
            found[name] = value
    return {name: value for name, value in found.items() if name not in CLOCKS}


def mlflow_runs(experiment):
    """The runs of an experiment, oldest first."""
    import mlflow

    client = mlflow.MlflowClient()
    found = client.get_experiment_by_name(experiment)
    if found is None:
        return []
    runs = client.search_runs([found.experiment_id], order_by=["attributes.start_time ASC"])
    return [_mlflow_run(client, run) for run in runs]


def _mlflow_run(client, run):
    history, tables, pages = {}, {}, {}
    for name in run.data.metrics:
        for metric in client.get_metric_history(run.info.run_id, name):
            row = history.setdefault(metric.step, {})
            row.setdefault(name, []).append(metric.value)
    folder = Path(client.download_artifacts(run.info.run_id, ""))
    for path in sorted(folder.rglob("*.json")):
        table = json.loads(path.read_text("utf-8"))
        tables[path.relative_to(folder).with_suffix("").as_posix()] = table["data"]
    for path in sorted(folder.rglob("*.html")):
        pages.setdefault(path.parent.relative_to(folder).as_posix(), []).append(path.read_text("utf-8"))
    pages = {name: sorted(each) for name, each in pages.items()}  # their files are named by chance
    config = {name: value for name, value in run.data.params.items() if not name.startswith("summary/")}
    summary = {name: value for name, value in run.data.params.items() if name.startswith("summary/")}
    return Kept(config, history, summary, tables, pages, run.info.status)
