"""The files sink joins small files: which, when, what a rewind finds, what readers see, and who may do it."""

from __future__ import annotations

import errno
import logging
import os
import random
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as dataset
import pyarrow.parquet as pq
import pytest

import holdfast as hf
from holdfast.connectors.files.sink import log
from holdfast.connectors.files.sink.compaction import Compaction
from holdfast.connectors.files.sink.sink import FilesSink
from holdfast.connectors.files.sink.spec import FilesSinkSpec
from holdfast.connectors.kit.files import own_files
from holdfast.errors import Fenced, HoldfastError, InDoubt, InvalidPipeline, Unavailable
from holdfast.ports import Carried, EpochRecord, Held, Outcome, Publication, RunIdentity, Task
from holdfast.store import durable, entry_log

pytestmark = pytest.mark.slow

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])
PIPELINE = "words"
KEPT = 3


@pytest.fixture(autouse=True)
def short_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rewind reaches three entries back, and not a hundred."""
    monkeypatch.setattr(entry_log, "KEPT", KEPT)


def opened(path: Path, generation: int = 1, **arguments: object) -> FilesSink:
    spec = FilesSinkSpec(os.fspath(path), **{"compact": True, **arguments})  # type: ignore[arg-type]
    sink = spec.connected("out", PIPELINE, SCHEMA, is_tended=False)
    sink.open(RunIdentity(PIPELINE, generation))
    return sink


def publish(sink: FilesSink, *epochs: int, words: tuple[str, ...] = ("w",)) -> None:
    """Two rows of each word in each epoch, of two tasks: ``10 * epoch`` and one more."""
    for epoch in epochs:
        parts = tuple(
            Carried(pa.table({"id": [10 * epoch + n] * len(words), "word": list(words)}, schema=SCHEMA)) for n in (0, 1)
        )
        sink.publish([Publication(EpochRecord(PIPELINE, epoch, 1, {"lines": {"log": epoch}}), parts)], Held())


def tend(sink: FilesSink) -> int:
    assert sink.compaction is not None
    return sink.compaction.tend()


def expected(*epochs: int, of: int = 1) -> list[int]:
    return sorted([10 * epoch + n for epoch in epochs for n in (0, 1)] * of)


def visible(path: Path) -> list[str]:
    found = (each.relative_to(path) for each in path.rglob("*") if each.is_file())
    return sorted(os.fspath(each) for each in found if each.parts[0] != "_holdfast")


def joined(path: Path) -> list[str]:
    return [name for name in visible(path) if len(os.path.basename(name).split("-")[2]) == 12]


def rows(path: Path) -> list[int]:
    """As a reader that lists the directory."""
    found = dataset.dataset(path, format="parquet", partitioning="hive", schema=SCHEMA).to_table()
    return sorted(found["id"].to_pylist())


def test_small_files_of_whole_epochs_become_one_and_the_last_ones_stay(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    publish(sink, *range(1, 12))
    assert tend(sink) == 1
    (name,) = joined(tmp_path)
    assert name.startswith(f"part-{1:012}-{9:012}-")
    assert pq.read_table(tmp_path / name)["id"].to_pylist() == expected(*range(1, 10))
    assert len(visible(tmp_path)) == 1 + 2 * 2
    assert rows(tmp_path) == expected(*range(1, 12))
    assert tend(sink) == 0
    assert os.listdir(tmp_path / "_holdfast" / PIPELINE / "out" / "joining") == []


def test_rows_keep_the_order_that_the_names_gave_them(tmp_path: Path) -> None:
    sink = opened(tmp_path, partition_by=("word",))
    for epoch in range(1, 14):
        publish(sink, epoch, words=("a", "b"))
        tend(sink)
    for word in ("a", "b"):
        names = sorted((tmp_path / f"word={word}").iterdir())
        found = [each for name in names for each in pq.ParquetFile(name).read()["id"].to_pylist()]
        assert found == expected(*range(1, 14))
    assert len(joined(tmp_path)) == 2


def test_lines_are_joined_as_they_are(tmp_path: Path) -> None:
    sink = opened(tmp_path, format="json")
    publish(sink, *range(1, 13))
    before = b"".join((tmp_path / name).read_bytes() for name in visible(tmp_path))
    assert tend(sink) == 1
    assert b"".join((tmp_path / name).read_bytes() for name in visible(tmp_path)) == before
    assert hf.files.open(tmp_path).to_arrow()["id"].to_pylist() == expected(*range(1, 13))


def test_what_is_written_again_is_bounded_by_the_logarithm_of_the_size(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    for epoch in range(1, 120):
        publish(sink, epoch)
        tend(sink)
    assert rows(tmp_path) == expected(*range(1, 120))
    assert len(visible(tmp_path)) < 30
    entries = (tmp_path / "_holdfast" / PIPELINE / "out" / "log").iterdir()
    assert sum(1 for _ in entries) <= KEPT + 3


def test_a_file_that_has_its_size_is_left_alone(tmp_path: Path) -> None:
    sink = opened(tmp_path, compact="1 kB")
    publish(sink, *range(1, 13))
    assert tend(sink) == 0
    assert joined(tmp_path) == []


def test_by_default_nothing_is_joined(tmp_path: Path) -> None:
    sink = opened(tmp_path, compact=False)
    publish(sink, *range(1, 13))
    assert sink.compaction is None
    assert len(visible(tmp_path)) == 24


def test_files_of_earlier_runs_are_found_by_the_next_and_those_of_others_stay(tmp_path: Path) -> None:
    first = opened(tmp_path, compact=False)
    publish(first, *range(1, 13))
    other = FilesSinkSpec(os.fspath(tmp_path)).connect("other", PIPELINE, SCHEMA)
    other.open(RunIdentity(PIPELINE, 1))
    publish(other, *range(1, 13))
    pq.write_table(pa.table({"id": [7], "word": ["theirs"]}, schema=SCHEMA), tmp_path / "theirs.parquet")
    second = opened(tmp_path, 2)
    assert tend(second) == 1
    assert rows(tmp_path) == sorted([7, *expected(*range(1, 13), of=2)])
    assert len(visible(tmp_path)) == 1 + 24 + 1 + 2 * (KEPT - 1)


def test_a_file_that_was_removed_does_not_come_back(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    publish(sink, *range(1, 13))
    os.unlink(tmp_path / visible(tmp_path)[0])
    assert tend(sink) == 1
    assert rows(tmp_path) == expected(*range(1, 13))[1:]


def test_a_file_that_is_removed_while_it_waits_for_neighbours_is_left_out(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    publish(sink, *range(1, 8))
    assert tend(sink) == 0
    os.unlink(tmp_path / visible(tmp_path)[2])
    publish(sink, *range(8, 13))
    assert tend(sink) == 0  # it is noticed
    assert tend(sink) == 1
    assert rows(tmp_path) == [each for each in expected(*range(1, 13)) if each != 20]


def test_what_a_round_writes_is_joined_again_in_a_later_one_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are small for what they were made of: Parquet has a large footer."""
    monkeypatch.setattr(own_files, "RUN", 2)
    sink = opened(tmp_path, compact="20 kB")
    publish(sink, *range(1, 41))
    rounds = [tend(sink) for _ in range(8)]
    assert rounds[:3] == [1, 1, 1]
    assert rounds[-1] == 0
    assert rows(tmp_path) == expected(*range(1, 41))
    assert len(visible(tmp_path)) < 8
    assert sorted(joined(tmp_path)) == joined(tmp_path)


def test_a_file_that_is_removed_while_it_is_joined_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = opened(tmp_path)
    publish(sink, *range(1, 13))
    write = Compaction._write

    def removing(self: Compaction, run: object) -> object:
        found = write(self, run)  # type: ignore[arg-type]
        os.unlink(tmp_path / visible(tmp_path)[0])
        monkeypatch.setattr(Compaction, "_write", write)
        return found

    monkeypatch.setattr(Compaction, "_write", removing)
    with pytest.raises(Unavailable, match="was removed"):
        tend(sink)
    assert joined(tmp_path) == []
    assert tend(sink) == 1
    assert rows(tmp_path) == expected(*range(1, 13))[1:]


def test_files_that_somebody_put_back_are_not_joined_with_the_one_that_replaced_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = opened(tmp_path)
    publish(sink, *range(1, 13))
    old = {name: (tmp_path / name).read_bytes() for name in visible(tmp_path)[:4]}
    assert tend(sink) == 1
    publish(sink, 13)
    for name, data in old.items():
        (tmp_path / name).write_bytes(data)
    before = visible(tmp_path)
    again = opened(tmp_path, 2)
    with caplog.at_level(logging.WARNING):
        publish(again, *range(14, 40))
        assert tend(again) == 0
    assert set(before) <= set(visible(tmp_path))
    assert "same epochs" in caplog.text


def test_an_epoch_that_is_published_again_behind_a_round_is_joined_as_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its renames failed, the round that came between has done them, and its entry is the last one."""
    sink = opened(tmp_path)
    publish(sink, *range(1, 13))

    def failing(self: log.Renames, staged: str, final: str) -> None:
        raise OSError(errno.EIO, "Input/output error", final)

    with monkeypatch.context() as broken:
        broken.setattr(log.Renames, "_rename", failing)
        with pytest.raises(InDoubt):
            publish(sink, 13)
    assert tend(sink) == 1
    publish(sink, 13)
    with caplog.at_level(logging.WARNING):
        publish(sink, *range(14, 40))
        while tend(sink):
            pass
    assert caplog.text == ""
    assert rows(tmp_path) == expected(*range(1, 40))
    assert len(visible(tmp_path)) < 30


def test_files_with_other_columns_are_not_joined(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sink = opened(tmp_path)
    publish(sink, *range(1, 13))
    name = tmp_path / visible(tmp_path)[5]
    pq.write_table(pq.read_table(name).append_column("more", pa.array([1])), name)
    with caplog.at_level(logging.WARNING):
        assert tend(sink) == 0
    assert "their columns differ" in caplog.text
    assert len(visible(tmp_path)) == 24
    assert os.listdir(tmp_path / "_holdfast" / PIPELINE / "out" / "joining") == []


@pytest.mark.parametrize("compact", ["0 B", "-1 MB", "much", 7])
def test_what_is_no_size_is_refused(compact: object) -> None:
    with pytest.raises(InvalidPipeline, match="compact="):
        hf.write.files("out", compact=compact)  # type: ignore[arg-type]


def test_compact_is_shown_where_it_is_asked_for() -> None:
    assert hf.write.files("out", compact="64 MB").spec.arguments()["compact"] == "64 MB"
    assert "compact" not in hf.write.files("out").spec.arguments()


# --- what the log says --------------------------------------------------------------------------------------------


def test_what_the_sink_holds_is_the_same_before_and_after(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    publish(sink, *range(1, 13))
    before = sink.inspect()
    assert tend(sink) == 1
    assert sink.inspect() == before
    assert {sink.outcome(epoch) for epoch in range(1, 13)} == {Outcome.PUBLISHED}
    assert sink.outcome(13) is Outcome.ABSENT
    held = opened(tmp_path, 2).inspect()[0]
    assert (held.epoch, held.positions) == (12, {"lines": {"log": 12}})


@pytest.mark.parametrize("compact", [True, False])
def test_a_rewind_finds_every_epoch_that_it_could_go_back_to_without_compaction(tmp_path: Path, compact: bool) -> None:
    """design/0005, "Compaction": only epochs that no rewind can withdraw."""
    reached = []
    for target in range(1, 16):
        path = tmp_path / f"{target}"
        sink = opened(path, compact=compact)
        for epoch in range(1, 16):
            publish(sink, epoch)
            if compact:
                tend(sink)
        assert bool(joined(path)) == compact
        to = {"lines": {"log": target}}
        withdrawal = sink.withdrawal(to)
        if withdrawal.obstacle:
            assert "none of its log entries ended there" in withdrawal.obstacle
            continue
        reached.append(target)
        assert (withdrawal.epoch, withdrawal.epoch_count, withdrawal.row_count) == (
            target,
            15 - target,
            2 * (15 - target),
        )
        if compact:
            tend(sink)
        sink.publish([Publication(EpochRecord(PIPELINE, 16, 1, to, rewound_to=target), ())], Held())
        publish(sink, 17)
        if compact:
            tend(sink)
        assert rows(path) == expected(*range(1, target + 1), 17)
    assert reached == [13, 14, 15]


def test_a_rewind_that_is_decided_finds_its_entry_whatever_was_joined_meanwhile(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    publish(sink, *range(1, 41))
    to = {"lines": {"log": 38}}
    assert not sink.withdrawal(to).obstacle
    while tend(sink):
        pass
    again = opened(tmp_path, 2)
    again.publish([Publication(EpochRecord(PIPELINE, 41, 2, to, rewound_to=38), ())], Held())
    assert rows(tmp_path) == expected(*range(1, 39))


# --- who may ------------------------------------------------------------------------------------------------------


def test_a_run_that_was_taken_over_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stale = opened(tmp_path)
    publish(stale, *range(1, 13))
    before = visible(tmp_path)
    write = Compaction._write

    def slow(self: Compaction, run: object) -> object:
        found = write(self, run)  # type: ignore[arg-type]
        opened(tmp_path, 2, compact=False)
        return found

    monkeypatch.setattr(Compaction, "_write", slow)
    with pytest.raises(Fenced):
        tend(stale)
    assert visible(tmp_path) == before
    assert os.listdir(tmp_path / "_holdfast" / PIPELINE / "out" / "joining") == []


def test_a_stale_run_that_wakes_behind_its_entry_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its entry was carried out by the next run, which has joined the joined file again."""
    stale = opened(tmp_path)
    publish(stale, *range(1, 13))
    finish = log.Renames.finish

    def late(self: log.Renames, entry: object, *, is_synced: bool = False) -> None:
        if getattr(entry, "is_compaction", False):
            monkeypatch.setattr(log.Renames, "finish", finish)
            owner = opened(tmp_path, 2)
            publish(owner, *range(13, 90))
            while tend(owner):
                pass
        finish(self, entry, is_synced=is_synced)  # type: ignore[arg-type]

    monkeypatch.setattr(log.Renames, "finish", late)
    assert tend(stale) == 1
    assert rows(tmp_path) == expected(*range(1, 90))
    with pytest.raises(Fenced):
        publish(stale, 13)


@pytest.mark.parametrize("failing", ["rename", "unlink"])
def test_renames_and_removals_that_failed_are_done_by_the_next_epoch(
    tmp_path: Path, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = opened(tmp_path)
    publish(sink, *range(1, 13))
    original = getattr(os, failing)

    def broken(path: str, *others: str) -> None:
        if "part-" in os.fspath(path):
            raise OSError(5, "no answer", path)
        original(path, *others)

    monkeypatch.setattr(os, failing, broken)
    with pytest.raises(InDoubt):
        tend(sink)
    assert hf.files.open(tmp_path).to_arrow()["id"].to_pylist() == expected(*range(1, 13))
    with pytest.raises(HoldfastError):
        tend(sink)
    monkeypatch.setattr(os, failing, original)
    publish(sink, *range(13, 30))
    assert rows(tmp_path) == expected(*range(1, 30))
    assert tend(sink) == 1
    assert rows(tmp_path) == expected(*range(1, 30))


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = opened(tmp_path)
    publish(sink, *range(1, 13))
    before = visible(tmp_path)
    create = durable.create

    def full(path: str, *others: object, **named: object) -> bool:
        if os.fspath(path).endswith(".json"):
            raise Unavailable("the disk is full", do="free space")
        return create(path, *others, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(durable, "create", full)
    with pytest.raises(Unavailable):
        tend(sink)
    assert visible(tmp_path) == before
    assert os.listdir(tmp_path / "_holdfast" / PIPELINE / "out" / "joining") == []
    monkeypatch.setattr(durable, "create", create)
    assert tend(sink) == 1


# --- readers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition_by", [(), ("word",)])
def test_a_reader_that_asks_the_log_sees_each_row_once_at_every_moment(
    tmp_path: Path, partition_by: tuple[str, ...]
) -> None:
    """Whole epochs, too: an epoch of several files is never half there."""
    sink = opened(tmp_path, partition_by=partition_by)
    words = ("a", "b", "c")
    publish(sink, 1, words=words)
    wrong: list[object] = []
    seen = 0
    done = threading.Event()

    def read() -> None:
        nonlocal seen
        while not done.is_set():
            found = sorted(hf.files.open(tmp_path).to_arrow()["id"].to_pylist())
            seen += 1
            if found != expected(*range(1, len(found) // 6 + 1), of=3):
                wrong.append(found)

    thread = threading.Thread(target=read)
    thread.start()
    for epoch in range(2, 60):
        publish(sink, epoch, words=words)
        tend(sink)
    done.set()
    thread.join()
    assert wrong == []
    assert seen > 3
    assert joined(tmp_path)


@pytest.mark.parametrize("seed", range(4))
def test_between_any_two_file_operations_a_reader_of_the_log_is_right_and_one_of_the_directory_misses_nothing(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    sink = opened(tmp_path, partition_by=("word",) if seed % 2 else ())
    publish(sink, *range(1, 13), words=("a", "b"))
    every = expected(*range(1, 13), of=2)
    looked = []

    def looking(original: object) -> object:
        def operate(path: str, *others: object, **named: object) -> object:
            if chance.random() < 0.5:
                looked.append(os.fspath(path))
                assert sorted(hf.files.open(tmp_path).to_arrow()["id"].to_pylist()) == every
                found = rows(tmp_path)
                assert set(found) == set(every)
                assert len(found) >= len(every)
            return original(path, *others, **named)

        return operate

    with monkeypatch.context() as patched:
        for name in ("rename", "unlink", "link"):
            patched.setattr(os, name, looking(getattr(os, name)))
        assert tend(sink) == (2 if seed % 2 else 1)
    assert len(looked) > 5


def test_an_epoch_of_which_a_dead_run_renamed_a_part_is_whole_for_who_asks_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = opened(tmp_path, partition_by=("word",))
    publish(sink, 1, words=("a", "b"))
    original = os.rename
    count = 0

    def broken(source: str, target: str) -> None:
        nonlocal count
        count += "part-" in source
        if count > 2:
            raise OSError(5, "no answer", source)
        original(source, target)

    monkeypatch.setattr(os, "rename", broken)
    with pytest.raises(InDoubt):
        publish(sink, 2, words=("a", "b"))
    assert len(rows(tmp_path)) == 4 + 2
    found = hf.files.open(tmp_path).to_arrow()
    assert sorted(found["id"].to_pylist()) == expected(1, 2, of=2)
    assert sorted(set(found["word"].to_pylist())) == ["a", "b"]
    assert all(os.path.exists(path) for path in hf.files.open(tmp_path).paths())


def test_a_directory_without_files_is_refused_by_the_reader(tmp_path: Path) -> None:
    with pytest.raises(InvalidPipeline, match="No files sink"):
        hf.files.open(tmp_path).to_arrow()
    opened(tmp_path)
    assert hf.files.open(tmp_path).paths() == []


# --- the thread ---------------------------------------------------------------------------------------------------


def test_a_thread_joins_what_is_due_beside_the_epochs(tmp_path: Path) -> None:
    sink = FilesSinkSpec(os.fspath(tmp_path), compact=True).connect("out", PIPELINE, SCHEMA)
    sink.open(RunIdentity(PIPELINE, 1))
    publish(sink, *range(1, 13))
    deadline = time.monotonic() + 30
    while not joined(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.01)
    publish(sink, *range(13, 16))
    sink.close()
    assert joined(tmp_path)
    assert rows(tmp_path) == expected(*range(1, 16))


def test_what_a_dead_run_was_joining_is_removed_by_the_next(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    assert sink.writer_factory()(Task(PIPELINE, 1, 1, 0, 0)) is not None
    left = tmp_path / "_holdfast" / PIPELINE / "out" / "joining" / "1-abcdef"
    left.mkdir(parents=True)
    (left / "part.parquet.staged").write_bytes(b"half")
    opened(tmp_path, 2)
    assert not left.exists()
