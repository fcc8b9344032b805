"""What became of each proposal is in ``log_dir``."""

from item_records import Records

from flashevolve_plugins import Flash
from flashevolve_plugins._audit import read_items


def test_every_item_of_a_run_is_recorded_once_in_log_dir(task, tmp_path):
    records = Records()
    task.compile(Flash(progress=False, staleness="full", plugins=[records]), log_dir=str(tmp_path))
    ((run,), unread) = read_items(str(tmp_path))
    assert (run.header["host"], unread) == ("gepa, DspyAdapter", 0)
    numbers = [record.number for record in records.all]
    assert [item["item"] for item in run.items] == numbers
    assert len(set(numbers)) == len(numbers) > 3
