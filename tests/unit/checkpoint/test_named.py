"""Named checkpoints: what pruning leaves, and what travels between checkpoints (design/0012)."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint import named, portable
from holdfast.checkpoint.manifest import encode
from holdfast.checkpoint.replay_floor import KEY, NAMED_KEY, lower_floor, read_floor, read_named_floor, write_floor
from holdfast.checkpoint.snapshot import FILES, prune, snapshot_keys, verify
from holdfast.errors import Corrupt, InvalidPipeline
from holdfast.store.local import LocalStore
from holdfast.testing.simulation.process import CrashAt, Process, SimulatedCrash
from holdfast.testing.store import FaultyStore, SimulatedStore
from tests.unit.checkpoint.snapshots import ended, snapshot


def test_pruning_keeps_what_a_name_needs_until_the_name_is_deleted() -> None:
    store = SimulatedStore()
    first = snapshot(store, 1)
    named.put_named(store, "start", first)
    for epoch in (2, 3, 4):
        snapshot(store, epoch)
        prune(store, keep=1)
    assert [key.epoch for key in snapshot_keys(store)] == [4]
    assert named.names(store) == ["start"]
    verify(store, named.read_named(store, "start"))
    named.delete_named(store, "start")
    prune(store, keep=1)
    assert not {file.key for file in first.files} & set(store.keys(FILES))


def test_nothing_is_removed_while_a_name_cannot_be_read() -> None:
    store = SimulatedStore()
    named.put_named(store, "start", snapshot(store, 1))
    store.put(named.key_of("start"), b"holdfast")
    before = store.keys(FILES)
    snapshot(store, 2)
    prune(store, keep=1)
    assert set(before) <= set(store.keys(FILES))


def test_the_floor_stays_at_the_oldest_name_of_the_pipeline() -> None:
    store = SimulatedStore()
    named.put_named(store, "start", snapshot(store, 3))
    newest = snapshot(store, 7)
    assert named.earliest(store, "counts", newest) == {"given": {"log": 3}}
    assert named.earliest(store, "another", newest) == {"given": {"log": 7}}


def test_what_names_need_of_a_feed_is_noted_before_they_count_and_until_they_are_gone(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    file = tmp_path / NAMED_KEY

    def needed(pipeline: str = "counts", source: str = "given") -> object:
        return read_named_floor(file, pipeline, source)

    assert needed() == {}
    named.hold(store, "counts", ended(2))
    assert needed() == {"log": 2}, "held for the name that is to come"
    for name, epoch in (("later", 5), ("early", 3), ("last", 7)):
        named.put_named(store, name, snapshot(store, epoch))
    assert (needed(), needed("another")) == ({"log": 3}, {})
    assert needed(source="new") is None, "of one that came later everything"
    with pytest.raises(InvalidPipeline, match="already"):
        named.put_claimed(store, "later", snapshot(store, 1))
    assert needed() == {"log": 3}
    named.delete_named(store, "early")
    assert needed() == {"log": 5}

    later = store.get(named.key_of("later")) or b""
    store.put(named.key_of("later"), b"holdfast")
    named.delete_named(store, "last")
    assert (needed(), needed("another")) == (None, None), "nobody knows what the damaged one needs"
    store.put(named.key_of("later"), later)
    named.settle_floor(store)
    assert needed() == {"log": 5}
    file.write_bytes(file.read_bytes()[:-3])
    assert needed() is None
    named.delete_named(store, "later")
    assert needed() == {}
    assert not file.exists()


def test_names_of_before_and_after_a_rewind_hold_the_least_that_one_of_them_needs() -> None:
    """Behind a rewind epochs have higher numbers, and lower positions."""
    store = SimulatedStore()
    named.put_named(store, "withdrawn", snapshot(store, 10))
    after = replace(snapshot(store, 12), ended=replace(ended(12), positions=ended(4).positions))
    named.put_named(store, "after", after)
    assert named.earliest(store, "counts", snapshot(store, 14)) == ended(4).positions
    new = {**ended(3).positions, "new": {"log": 2}}
    named.put_named(store, "more", replace(snapshot(store, 15), ended=replace(ended(15), positions=new)))
    assert named.earliest(store, "counts", snapshot(store, 16)) == ended(3).positions, "of the new one everything"


def test_a_directory_that_begins_anew_brings_the_floor_down(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    lower_floor(store, ended(1).positions)
    assert read_floor(tmp_path / KEY) == {}
    write_floor(store, {"given": {"log": 6}, "fed": {"entry": 6}})
    lower_floor(store, {"given": {"log": 8}, "fed": {"entry": 2}})
    assert read_floor(tmp_path / KEY) == {"given": {"log": 6}, "fed": {"entry": 2}}
    lower_floor(store, {"given": {"log": 8}})
    assert read_floor(tmp_path / KEY) == {"given": {"log": 6}}, "the other one holds everything"


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "ä", "a b", "-x", "x" * 61, "a.manifest"])
def test_a_name_that_is_no_file_name_everywhere_is_refused(name: str) -> None:
    with pytest.raises(InvalidPipeline, match="is not a name of a checkpoint"):
        named.put_named(SimulatedStore(), name, snapshot(SimulatedStore(), 1))


@pytest.mark.parametrize(
    ("name", "taken_for"),
    [("41", "the number of an epoch"), ("20260101", "the number of an epoch"), ("2026-01-01", "a time")],
)
def test_a_name_that_a_rewind_would_take_for_something_else_is_not_given_and_can_still_be_read(
    name: str, taken_for: str
):
    store = SimulatedStore()
    with pytest.raises(InvalidPipeline, match="cannot be the name of a checkpoint") as refused:
        named.put_named(store, name, snapshot(store, 1))
    assert taken_for in refused.value.why
    assert f"before-{name}" in refused.value.do
    assert named.names(store) == []
    store.put(named.key_of(name), encode(snapshot(store, 1)))  # as an older version gave it
    assert named.read_named(store, name).ended.epoch == 1
    named.delete_named(store, name)
    assert named.names(store) == []


def test_a_name_is_given_once_and_one_that_is_not_there_says_which_are() -> None:
    store = SimulatedStore()
    made = snapshot(store, 1)
    named.put_named(store, "start", made)
    with pytest.raises(InvalidPipeline, match="named 'start' already"):
        named.put_named(store, "start", made)
    with pytest.raises(InvalidPipeline) as refused:
        named.read_named(store, "begin")
    assert "named are: start" in refused.value.why


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """Return a checkpoint with a name, and a source that remembers what it has read."""
    store = LocalStore(str(tmp_path / "checkpoint"))
    named.put_named(store, "start", snapshot(store, 1))
    store.put("sources/given/log/1", b"one")
    store.put("sources/given/aside/x", b"half")
    return store


def test_what_is_exported_and_imported_is_the_same_checkpoint(store: LocalStore, tmp_path: Path) -> None:
    portable.export(store, "start", tmp_path / "out")
    assert portable.find(store, str(tmp_path / "out")).manifest == named.read_named(store, "start")
    other = LocalStore(str(tmp_path / "other"))
    assert portable.import_from(other, tmp_path / "out", None) == "start"
    assert portable.import_from(other, tmp_path / "out", "again") == "again"
    assert not other.keys(FILES), "imported files are not where they would be pruned"
    found = portable.find(other, "again")
    assert encode(found.plain) == encode(named.read_named(store, "start"))
    assert dict(found.files()) == dict(portable.kept(store, "start").files())
    assert dict(found.workspaces()) == {"sources/given/log/1": b"one"}
    portable.export(other, "again", tmp_path / "second")
    first, second = (LocalStore(str(tmp_path / name)) for name in ("out", "second"))
    assert {key: first.get(key) for key in first.keys("") if key != portable.LIST} == {
        key: second.get(key) for key in second.keys("") if key != portable.LIST
    }
    named.delete_named(other, "again")
    assert [key for key in other.keys("") if "again" in key] == []


@pytest.mark.parametrize("how", ["cut", "flipped", "emptied", "removed"])
def test_damage_to_any_object_of_an_export_is_noticed_and_named(store: LocalStore, tmp_path: Path, how: str) -> None:
    portable.export(store, "start", tmp_path / "out")
    for path in [path for path in sorted((tmp_path / "out").rglob("*")) if path.is_file()]:
        data = path.read_bytes()
        changed = bytearray(data)
        changed[len(data) // 2] ^= 1
        path.unlink() if how == "removed" else path.write_bytes(
            {"cut": data[: len(data) // 2], "flipped": bytes(changed), "emptied": b""}[how]
        )
        other = LocalStore(str(tmp_path / "other"))
        with pytest.raises((Corrupt, InvalidPipeline)) as refused:
            portable.import_from(other, tmp_path / "out", None)
        assert path.name in refused.value.message
        assert other.keys("") == [], "nothing is left of an import that failed"
        path.write_bytes(data)
    assert portable.import_from(LocalStore(str(tmp_path / "other")), tmp_path / "out", None) == "start"


def test_what_an_import_that_failed_has_left_is_part_of_no_later_checkpoint_of_that_name(
    store: LocalStore, tmp_path: Path
) -> None:
    store.put("sources/given/log/2", b"two")
    portable.export(store, "start", tmp_path / "damaged")
    (tmp_path / "damaged" / "sources" / "given" / "log" / "2").unlink()
    store.delete("sources/given/log/1")
    portable.export(store, "start", tmp_path / "whole")
    other = LocalStore(str(tmp_path / "other"))
    with pytest.raises(Corrupt):
        portable.import_from(other, tmp_path / "damaged", "x")
    assert portable.import_from(other, tmp_path / "whole", "x") == "x"
    assert dict(portable.kept(other, "x").workspaces()) == {"sources/given/log/2": b"two"}


def test_an_import_that_fails_leaves_the_checkpoint_that_another_has_made_meanwhile(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    portable.export(store, "start", tmp_path / "out")
    put = named.put_claimed

    def overtaken(*arguments: Any) -> None:
        put(*arguments)
        put(*arguments)

    monkeypatch.setattr(named, "put_claimed", overtaken)
    other = LocalStore(str(tmp_path / "other"))
    with pytest.raises(InvalidPipeline, match="named 'x' already"):
        portable.import_from(other, tmp_path / "out", "x")
    assert dict(portable.kept(other, "x").files()) == dict(portable.kept(store, "start").files())


@pytest.mark.parametrize("what", ["import", "deletion"])
def test_what_a_killed_import_or_deletion_leaves_is_found_and_removed(
    store: LocalStore, tmp_path: Path, what: str
) -> None:
    """Killed before write 1, 2, ... until it survives."""
    portable.export(store, "start", tmp_path / "out")
    found: list[list[str]] = []
    for write in count(1):
        kept = SimulatedStore()
        dying = FaultyStore(kept, Process(CrashAt(write)))
        try:
            if what == "import":
                portable.import_from(dying, tmp_path / "out", "x")
            else:
                portable.import_from(kept, tmp_path / "out", "x")
                named.delete_named(dying, "x")
            break
        except SimulatedCrash:
            found.append(named.names(kept) + named.remains(kept))
            named.delete_named(kept, "x")
            assert kept.objects == {}
    assert len(found) > 3
    assert found.pop(0) == ([] if what == "import" else ["x"])
    if what == "deletion":
        assert found.pop() == [], "all but what sources keep for it"
    assert all(names == ["x"] for names in found)


def test_a_name_of_which_a_deletion_has_left_files_is_given_anew_without_them(
    store: LocalStore, tmp_path: Path
) -> None:
    portable.export(store, "start", tmp_path / "out")
    portable.import_from(store, tmp_path / "out", "x")
    store.delete(named.key_of("x"))  # and here the process dies
    named.put_named(store, "x", snapshot(store, 2))
    store.put("sources/given/log/2", b"two")
    assert dict(portable.kept(store, "x").workspaces()) == {
        "sources/given/log/1": b"one",
        "sources/given/log/2": b"two",
    }


def test_who_looks_for_a_checkpoint_changes_nothing_where_it_looks(store: LocalStore, tmp_path: Path) -> None:
    """Neither in the original of a fork nor in an export, nor in a directory that somebody named by mistake."""
    portable.export(store, "start", tmp_path / "out")
    (tmp_path / "out" / ".writing").rmdir()
    (tmp_path / "checkpoint" / ".writing").rmdir()
    before = sorted(tmp_path.rglob("*"))
    own = LocalStore(str(tmp_path / "own"))
    for where in ("out", "checkpoint/start"):
        found = portable.find(own, str(tmp_path / where))
        assert dict(found.workspaces()) == {"sources/given/log/1": b"one"}
        assert list(found.files())
    with pytest.raises(InvalidPipeline, match="no checkpoint named 'strat'"):
        portable.find(own, str(tmp_path / "strat"))
    assert sorted(tmp_path.rglob("*")) == before


def test_which_segment_has_which_key_goes_along(store: LocalStore, tmp_path: Path) -> None:
    """Design/0048, section 7: whoever goes on from it has the same verdicts; a layout is the pipeline's own."""
    store.put("shards/keys/000000000001.json", b"keys")
    store.put("shards/keys/aside/x", b"half")
    store.put("shards/layout/00000001.json", b"layout")
    portable.export(store, "start", tmp_path / "out")
    other = LocalStore(str(tmp_path / "other"))
    portable.import_from(other, tmp_path / "out", None)
    for found in (portable.kept(store, "start"), portable.find(other, "start")):
        assert dict(found.workspaces()) == {"sources/given/log/1": b"one", "shards/keys/000000000001.json": b"keys"}


def test_an_export_wants_a_directory_of_its_own(store: LocalStore, tmp_path: Path) -> None:
    with pytest.raises(InvalidPipeline, match="is not empty"):
        portable.export(store, "start", tmp_path)
    with pytest.raises(InvalidPipeline, match="holds no exported checkpoint"):
        portable.import_from(store, tmp_path, "x")


def test_records_that_a_source_merges_meanwhile_are_copied_all_the_same(store: LocalStore) -> None:
    found = portable.kept(store, "start")
    copied: dict[str, bytes] = {}
    for key, data in found.workspaces():
        copied[key] = data
        if key.endswith("/1"):
            store.put("sources/given/log/1-2", b"both")
            store.delete("sources/given/log/1")
    assert copied["sources/given/log/1-2"] == b"both"
