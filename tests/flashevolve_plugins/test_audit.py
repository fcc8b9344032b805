"""The records of items on disk: what a line keeps, what a crash or a full disk does, and what the command prints."""

import json
import subprocess
import sys

import pytest

from flashevolve_plugins._audit import FILE, SCHEMA, ItemFile, read_items
from flashevolve_plugins._cli import main
from flashevolve_plugins._model import Evidence, ItemRecord, PoolEntry, Terminal
from flashevolve_plugins._redact import HIDDEN, redact

HEADER = {"schema": SCHEMA, "started": "2025-01-01T00:00:00+00:00", "host": "host", "policy": "full"}
PARENT = {"a": "old", "b": "kept"}
COMMAND = "import sys; from flashevolve_plugins._cli import main; sys.exit(main())"


def rejected(number, text="new", **more):
    evidence = Evidence({**PARENT, "a": text}, 1, (0.5, 1.0), (0.5, 0.7), **more)
    story = ("offered@1", "gate", "rejected")
    return ItemRecord(number, Terminal.REJECTED, "1.2 is not better than 1.5", 1, 0, 6, story, evidence=evidence)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def record(folder):
    """Record items as one run."""

    def write(*records):
        file = ItemFile(str(folder), HEADER)
        file.flashevolve_pool_updated(PoolEntry(1, PARENT, 0.5))
        for each in records:
            file.flashevolve_item_ended(each)

    return write


def items_of(folder):
    return [item for run in read_items(str(folder))[0] for item in run.items]


def test_a_line_keeps_what_changed_and_the_beginning_of_the_feedback(record, folder):
    record(rejected(2, feedback="f" * 5_000, examples=(7, ("x", 1))))
    (item,) = items_of(folder)
    assert item["changed"] == {"a": "new"}
    assert item["feedback"] == "f" * 4_000 + "[cut]"
    assert (item["before"], item["after"], item["examples"]) == ([0.5, 1.0], [0.5, 0.7], [7, "('x', 1)"])


def test_a_long_word_is_looked_through_for_secrets_once_and_not_from_each_of_its_characters():
    word = "f" * 200_000  # hours, else
    assert redact(f"{word} {word}-token=abcd1234") == f"{word} {word}-token={HIDDEN}"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("两行\n\u2028\x85 \"'\\", "两行\n\u2028\x85 \"'\\"),
        ("half \ud83d", "half \ud83d"),
        (None, "None"),
        ({1: b"x"}, "{1: b'x'}"),
    ],
)
def test_any_text_is_kept_and_one_that_is_none_as_python_writes_it(text, kept, record, folder):
    record(rejected(2, text), rejected(3))
    assert [item["changed"]["a"] for item in items_of(folder)] == [kept, "new"]


def test_records_are_on_the_disk_itself_within_two_snapshots(folder, monkeypatch):
    synced, file = [], ItemFile(str(folder), HEADER)
    monkeypatch.setattr("os.fsync", lambda _: synced.append((folder / FILE).read_bytes().count(b"\n")))
    for snapshots in (2, 0):
        file.flashevolve_item_ended(rejected(1))
        for _ in range(snapshots):
            file.flashevolve_snapshot()
    file.flashevolve_run_finished()
    assert synced == [2, 3]  # with the header; nothing new is not synced again


def test_a_record_that_cannot_be_written_is_told_once_and_later_ones_are_written(folder, caplog):
    file = ItemFile(str(folder), HEADER)
    folder.write_text("in the way")
    for number in (1, 2):
        file.flashevolve_item_ended(rejected(number))
    (told,) = caplog.messages
    assert told.startswith(f"Item 1 cannot be recorded in {folder / FILE} (FileExistsError: ")
    folder.unlink()
    file.flashevolve_item_ended(rejected(3))
    assert [item["item"] for item in items_of(folder)] == [3]


def test_a_line_that_a_crash_cut_off_is_left_out_and_the_next_run_is_read(record, folder, capsys):
    record(rejected(1), rejected(2))
    path = folder / FILE
    path.write_bytes(path.read_bytes()[:-9])
    record(rejected(1), rejected(2))
    assert main(["items", str(folder), "--json"]) == 0
    said = capsys.readouterr()
    found = [json.loads(line) for line in said.out.splitlines()]
    assert [(item["run"], item["item"]) for item in found] == [(1, 1), (2, 1), (2, 2)]
    assert said.err == f"flashevolve: 1 line of {FILE} cannot be read, as after a crash, and left out.\n"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--terminal", "rejected,lost"], "Unknown terminal 'lost': known are 'cancelled', 'committed', "),
        (["--item", "3"], "There is no item 3: "),
        (["--run", "2"], "There is no run 2 in "),
    ],
)
def test_an_option_that_finds_nothing_is_one_sentence(options, sentence, record, folder, capsys):
    record(rejected(1))
    assert_told([str(folder), *options], sentence, capsys)


def test_a_directory_without_records_is_one_sentence(tmp_path, folder, capsys):
    assert_told([str(folder)], f"There is no directory '{folder}': ", capsys)
    assert_told([str(tmp_path)], f"There is no {FILE} in '{tmp_path}': a run under flash with this run_dir ", capsys)


def test_a_file_of_a_newer_version_is_one_sentence(record, folder, capsys):
    record(rejected(1))
    with (folder / FILE).open("a") as file:
        file.write(json.dumps({**HEADER, "schema": SCHEMA + 1}) + "\n")
    assert_told([str(folder)], f"'{folder / FILE}' has schema {SCHEMA + 1}, and this version reads {SCHEMA}: ", capsys)


def assert_told(arguments, sentence, capsys):
    assert main(["items", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"flashevolve: {sentence}")
    assert said.err.count("\n") == 1


def test_the_table_is_cut_to_the_terminal_and_whole_without_one(record, folder, capsys, monkeypatch):
    record(rejected(1))
    row = "   1  rejected      0      6  1.5 -> 1.2        1.2 is not better than 1.5"
    monkeypatch.setattr(sys, "__stdout__", None)  # no terminal
    for columns, expected in (("50", f"{row[:49]}…"), ("", row)):
        monkeypatch.setenv("COLUMNS", columns)
        assert main(["items", str(folder)]) == 0
        assert capsys.readouterr().out.splitlines()[2] == expected


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        (["--text", "ANSWER in  one word"], [1]),
        (["--text", "word"], [1, 2]),
        (["--text", "kept"], []),
        (["--terminal", "committed, rejected"], [1, 2]),
        (["--terminal", "failed"], []),
        (["--text", "word", "--item", "2"], [2]),
    ],
)
def test_items_are_found_by_the_words_of_their_text_and_by_their_end(options, numbers, record, folder, capsys):
    record(rejected(1, "Answer\nin one word."), rejected(2, "Any word."))
    assert main(["items", str(folder), "--json", *options]) == 0
    assert [json.loads(line)["item"] for line in capsys.readouterr().out.splitlines()] == numbers


def test_a_text_cannot_command_the_terminal(record, folder, capsys):
    record(rejected(1, "\x1b]0;title\x07 and\ttabs\nand lines"))
    assert main(["items", str(folder), "--item", "1"]) == 0
    assert "    \\x1b]0;title\\x07 and\ttabs\n    and lines\n" in capsys.readouterr().out


def test_a_reader_that_has_seen_enough_ends_it_quietly(record, folder):
    record(*(rejected(number, "word " * 100) for number in range(1, 400)))
    arguments = [sys.executable, "-c", COMMAND, "items", str(folder), "--json"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0
