"""The store: what is written is read again, by the next process, whatever becomes of this one."""

import logging
import sqlite3
import threading

import pytest

from flashevolve_plugins import UsageError
from flashevolve_plugins._store import FILE, SCHEMA, Store, filesystem


@pytest.fixture
def opened(tmp_path):
    stores = []

    def open_it():
        stores.append(Store(tmp_path))
        return stores[-1]

    yield open_it
    for store in stores:
        store.close()


def test_what_was_written_is_read_by_the_next_one(opened):
    store = opened()
    row = store.put_item(b"recipe")
    store.change_item(row, b"longer recipe")
    store.tell_item(row, {"i": 3})
    store.put_result(row, b"key", b"value", 2)
    store.put_run("fingerprint", {"a": "b"})
    store.flush()  # the first one is not closed: its process may have been killed
    again = opened()
    assert [(each.number, each.recipe, each.told) for each in again.items] == [(row, b"longer recipe", {"i": 3})]
    assert [(each.item, each.key, each.value, each.spent) for each in again.results] == [(row, b"key", b"value", 2)]
    assert again.run == {"fingerprint": {"a": "b"}}
    assert again.put_item(b"another") > row


def test_what_was_written_is_on_the_disk_after_a_while_though_nothing_more_comes(opened, monkeypatch):
    monkeypatch.setattr("flashevolve_plugins._store.SYNC_EVERY", 0.01)
    synced = threading.Event()
    monkeypatch.setattr(Store, "_sync", lambda *_: synced.set())
    opened().put_item(b"recipe")
    assert synced.wait(60)


def test_what_is_forgotten_is_gone_and_nothing_else(opened):
    store = opened()
    first, second, third = (store.put_item(b"recipe") for _ in range(3))
    for item in (first, second, third, None):
        store.put_result(item, b"key", b"value", 1)
    store.forget([first])
    store.forget_item(second)
    store.flush()
    again = opened()
    assert [each.number for each in again.items] == [third]
    assert [each.item for each in again.results] == [second, third, None]
    again.move_result(again.results[0].number, third)
    again.forget_results([again.results[2].number])
    again.flush()
    assert [each.item for each in opened().results] == [third, third]
    again.forget_loose()
    again.forget([third])
    again.flush()
    assert opened().results == []


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: path.write_bytes(b"no database, but long enough to be taken for one" * 40), "cannot be used"),
        (lambda path: path.mkdir(), "cannot be used"),
        (lambda path: _another(path, "CREATE TABLE other (a)"), "not a file of this package"),
        (lambda path: _ours(path, f"PRAGMA user_version={SCHEMA + 1}"), f"schema {SCHEMA + 1}"),
        (lambda path: _ours(path, "DROP TABLE results"), "cannot be used"),
    ],
    ids=["no database", "a directory", "another one's", "newer", "damaged"],
)
def test_a_file_that_is_not_ours_is_told_in_one_sentence_and_left_as_it_is(tmp_path, spoil, said):
    spoil(tmp_path / FILE)
    path = tmp_path / FILE
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(UsageError, match=said) as told:
        Store(tmp_path)
    assert "\n" not in str(told.value)
    assert str(path) in str(told.value)
    assert before is None or path.read_bytes() == before


def _another(path, statement):
    with sqlite3.connect(path) as connection:
        connection.execute(statement)
    connection.close()


def _ours(path, statement):
    Store(path.parent).close()
    _another(path, statement)


def test_a_full_disk_is_told_once_and_what_was_there_stays(opened, caplog, monkeypatch):
    connect = sqlite3.connect

    def on_a_small_disk(*arguments, **options):
        connection = connect(*arguments, **options)
        connection.execute("PRAGMA max_page_count=12")
        return connection

    monkeypatch.setattr(sqlite3, "connect", on_a_small_disk)
    store = opened()
    store.put_result(None, b"key", b"small", 1)
    store.flush()
    with caplog.at_level(logging.WARNING, "flashevolve_plugins"):
        for _ in range(3):
            store.put_result(None, b"key", b"large" * 20_000, 1)
            store.flush()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "full" in caplog.text
    assert [each.value for each in opened().results] == [b"small"]


def test_what_the_host_has_is_forgotten_though_the_file_could_not_be_written_then(opened, tmp_path, monkeypatch):
    monkeypatch.setattr("flashevolve_plugins._store.BUSY", 0.05)
    store = opened()
    item = store.put_item(b"recipe")
    store.put_result(item, b"key", b"value", 1)
    store.flush()
    other = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    store.forget([item])
    store.flush()
    other.close()
    store.put_item(b"next")
    store.close()
    again = opened()
    assert ([each.recipe for each in again.items], again.results) == ([b"next"], [])


def test_a_value_that_cannot_be_written_takes_no_other_with_it(opened):
    store = opened()
    written = threading.Event()
    store._writes.put(written.wait)  # then all of the following are written at once
    store.put_item(b"recipe")
    store.put_result(1, b"key", b"value", 2**70)
    store.put_result(1, b"key", b"value", 2)
    written.set()
    store.close()
    again = opened()
    assert ([each.recipe for each in again.items], [each.spent for each in again.results]) == ([b"recipe"], [2])


@pytest.mark.parametrize(("kind", "mode"), [("ext4", "wal"), ("nfs4", "delete"), ("fuse.sshfs", "delete")])
def test_a_network_file_system_gets_no_wal(tmp_path, monkeypatch, kind, mode):
    monkeypatch.setattr("flashevolve_plugins._store.filesystem", lambda _: kind)
    Store(tmp_path).close()
    with sqlite3.connect(tmp_path / FILE) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == (mode,)
    connection.close()


def test_the_file_system_is_that_of_the_longest_mount_point(tmp_path):
    mounts = tmp_path / "mounts"
    lines = [
        "/dev/a / ext4 rw 0 0",
        f"server:/x {tmp_path}/far nfs4 rw 0 0",
        f"b {tmp_path}/a\\040b tmpfs rw 0 0",
        "odd",
    ]
    mounts.write_text("\n".join(lines))
    assert filesystem(tmp_path / "far" / "away", mounts) == "nfs4"
    assert filesystem(tmp_path / "farther", mounts) == "ext4"
    assert filesystem(tmp_path / "a b" / "c", mounts) == "tmpfs"
    assert filesystem(tmp_path, tmp_path / "none") == ""
