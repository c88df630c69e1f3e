"""The segments sink: what seals and why, what is left when something fails, and a manifest that stays short."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as dataset
import pyarrow.parquet as pq
import pytest

from holdfast import faults, segments
from holdfast.connectors.kit.files.own_files import SmallNeighbours
from holdfast.connectors.segments import growth, manifest, sealing
from holdfast.connectors.segments.entries import SealedSegment, SegmentsEntry
from holdfast.connectors.segments.journal import PiecesReader
from holdfast.connectors.segments.places import write_file
from holdfast.connectors.segments.policies import Segment, chosen, named, reason_of
from holdfast.connectors.segments.sink import SegmentsSink
from holdfast.connectors.segments.spec import SegmentsSinkSpec
from holdfast.errors import Corrupt, Diverged, Fenced, InDoubt, InvalidPipeline, Unavailable
from holdfast.ports import Carried, EpochRecord, Explanation, Held, Publication, RunIdentity
from holdfast.shards.naming import shard_name
from holdfast.store import durable

pytestmark = pytest.mark.slow

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])
PIPELINE = "words"
Row = tuple[int, str | None]

WORDS = ["LHR/JFK", "größe", None, "", "a b", "%41", "日本", "x=y", "."]


def opened(path: Path, generation: int = 1, *, schema: pa.Schema = SCHEMA, **arguments: object) -> SegmentsSink:
    values = {"partition_by": ("word",), "seal": (), **arguments}
    sink = SegmentsSinkSpec(os.fspath(path), **values).connected("out", PIPELINE, schema, is_tended=False)  # type: ignore[arg-type]
    sink.open(RunIdentity(PIPELINE, generation))
    return sink


def publish(sink: SegmentsSink, epoch: int, rows: Sequence[Row], *, generation: int = 1) -> None:
    table = pa.table({"id": [row[0] for row in rows], "word": [row[1] for row in rows]}, schema=SCHEMA)
    sink.publish([publication(epoch, table, generation)], Held())


def publication(epoch: int, table: pa.Table, generation: int = 1) -> Publication:
    return Publication(EpochRecord(PIPELINE, epoch, generation, {"log": {"log": epoch}}), (Carried(table),))


def sealed(sink: SegmentsSink) -> list[SealedSegment]:
    return list(sink.manifest.sealed(sink.holdings))


def visible(path: Path) -> list[int]:
    found = dataset.dataset(path, format="parquet", partitioning="hive", schema=SCHEMA).to_table(columns=["id"])
    return sorted(found["id"].to_pylist())


def whatever(segment: Segment) -> str:
    return "whatever"


# --- sealing ------------------------------------------------------------------------------------------------------


def test_a_segment_that_reached_its_size_becomes_one_file_and_the_others_grow_on(tmp_path: Path) -> None:
    sink = opened(tmp_path, target_size="20 kB", compression=None)
    for epoch in range(1, 6):
        publish(sink, epoch, [(number, "large") for number in range(epoch * 1000, epoch * 1000 + 1000)])
        sink.sealing.tend()
    publish(sink, 6, [(6, "small")])
    sink.sealing.tend()
    (segment,) = sealed(sink)
    assert segment.reason == "size"
    assert os.path.getsize(tmp_path / segment.path) == segment.size_bytes > 0.75 * 20_000
    assert "word=small" in sink.holdings.growing
    assert pq.read_metadata(tmp_path / segment.path).row_group(0).column(0).statistics.has_min_max
    sink.close()


def test_a_file_that_comes_out_too_small_is_not_kept_and_the_segment_grows_on(tmp_path: Path) -> None:
    """All rows are equal: Parquet makes much less of them than was guessed."""
    sink = opened(tmp_path, target_size="20 kB")
    publish(sink, 1, [(7, "same")] * 10_000)
    assert sink.sealing.tend() == 0
    assert sealed(sink) == []
    assert os.listdir(sink.places.sealing) == []
    publish(sink, 2, [(7, "same")] * 10_000)
    assert sink.sealing.tend() == 0
    assert visible(tmp_path) == []
    sink.close()


def test_a_growing_segment_goes_on_in_the_next_run_and_knows_where_it_began(tmp_path: Path) -> None:
    first = opened(tmp_path)
    publish(first, 1, [(1, "a")])
    publish(first, 2, [(2, "b")])
    publish(first, 3, [(3, "a"), (4, "b")])
    assert first.holdings.holding(is_journal_lost=True).segments == {"word=a": {}, "word=b": {"log": {"log": 1}}}
    first.close()
    second = opened(tmp_path, 2, seal=(segments.rows(2), whatever))
    assert second.sealing.tend() == 2
    assert [(each.reason, each.first_epoch, each.last_epoch, each.row_count) for each in sealed(second)] == [
        ("rows", 1, 3, 2),
        ("rows", 2, 3, 2),
    ]
    assert visible(tmp_path) == [1, 2, 3, 4]
    assert second.holdings.growing == {}
    assert os.listdir(second.places.journal) == []
    second.close()


def test_what_comes_while_a_segment_is_sealed_begins_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = opened(tmp_path, seal=(whatever,))
    publish(sink, 1, [(1, "a"), (2, "b")])
    written = write_file

    def meanwhile(*arguments: object, **options: object) -> int:
        monkeypatch.setattr(sealing, "write_file", written)
        publish(sink, 2, [(3, "a")])
        publish(sink, 3, [(4, "a"), (5, "c")])
        return written(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(sealing, "write_file", meanwhile)
    assert sink.sealing.tend() == 2
    assert visible(tmp_path) == [1, 2]
    assert {name: began.epoch for name, began in sink.holdings.growing.items()} == {"word=a": 2, "word=c": 3}
    assert sink.holdings.start_of("word=a") == {"log": {"log": 1}}
    assert sink.sealing.tend() == 2
    assert visible(tmp_path) == [1, 2, 3, 4, 5]
    sink.close()


def test_values_of_all_kinds_name_directories_that_readers_read_back(tmp_path: Path) -> None:
    sink = opened(tmp_path, seal=(segments.shutdown(),))
    publish(sink, 1, list(enumerate(WORDS)))
    sink.close()
    found = dataset.dataset(
        tmp_path, partitioning=dataset.partitioning(pa.schema([("word", pa.string())]), flavor="hive")
    )
    rows = sorted((row["id"], row["word"]) for row in found.to_table().to_pylist())
    assert rows == [(number, word or None) for number, word in enumerate(WORDS)]


def test_rows_of_a_file_are_sorted_and_equal_ones_keep_their_order(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("word", pa.string())])
    sink = opened(tmp_path, schema=schema, partition_by=(), sort_by=("word",), seal=(whatever,))
    publish(sink, 1, [(1, "b"), (2, "a")])
    publish(sink, 2, [(3, "a"), (4, "b")])
    sink.sealing.tend()
    (segment,) = sealed(sink)
    assert pq.read_table(tmp_path / segment.path)["id"].to_pylist() == [2, 3, 1, 4]
    sink.close()


def test_a_column_that_is_added_and_a_type_that_is_widened_while_a_segment_grows(tmp_path: Path) -> None:
    narrow = pa.schema([("id", pa.int32()), ("word", pa.string())])
    first = opened(tmp_path, schema=narrow)
    first.publish([publication(1, pa.table({"id": [1], "word": ["a"]}, schema=narrow))], Held())
    first.close()
    wide = pa.schema([("id", pa.int64()), ("note", pa.string()), ("word", pa.string())])
    second = opened(tmp_path, 2, schema=wide, seal=(whatever,))
    rows = pa.table({"id": [2**40], "note": ["n"], "word": ["a"]}, schema=wide)
    second.publish([publication(2, rows, 2)], Held())
    second.sealing.tend()
    (segment,) = sealed(second)
    table = pq.read_table(tmp_path / segment.path, partitioning=None)
    assert table.to_pylist() == [{"id": 1, "note": None}, {"id": 2**40, "note": "n"}]
    second.close()


def test_a_column_that_is_left_out_keeps_the_values_of_earlier_rows(tmp_path: Path) -> None:
    wide = pa.schema([("id", pa.int64()), pa.field("note", pa.string(), nullable=False), ("word", pa.string())])
    first = opened(tmp_path, schema=wide)
    rows = pa.table({"id": [1], "note": ["n"], "word": ["a"]}, schema=wide)
    first.publish([publication(1, rows)], Held())
    first.close()
    second = opened(tmp_path, 2, seal=(whatever,))
    publish(second, 2, [(2, "a")], generation=2)
    second.sealing.tend()
    (segment,) = sealed(second)
    table = pq.read_table(tmp_path / segment.path, partitioning=None)
    assert table.to_pylist() == [{"id": 1, "note": "n"}, {"id": 2, "note": None}]
    second.close()


@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_change_that_fits_no_file_or_no_layout_is_refused_before_anything_is_written(
    tmp_path: Path, is_sealed: bool
) -> None:
    first = opened(tmp_path, seal=(whatever,))
    publish(first, 1, [(1, "a")])
    if is_sealed:
        first.sealing.tend()
    first.close()
    with pytest.raises(InvalidPipeline, match="'id'"):
        opened(tmp_path, 2, schema=pa.schema([("id", pa.list_(pa.string())), ("word", pa.string())]))
    with pytest.raises(InvalidPipeline, match="partitioned by nothing"):
        opened(tmp_path, 2, partition_by=())
    opened(tmp_path, 2).close()


@pytest.mark.parametrize("partition_by", [("word",), ()])
def test_a_shard_without_rows_may_have_a_column_that_files_of_others_lack(
    tmp_path: Path, partition_by: tuple[str, ...]
) -> None:
    first = opened(tmp_path, seal=(whatever,), partition_by=partition_by)
    publish(first, 1, [(1, "a")])
    first.sealing.tend()
    first.close()
    wide = pa.schema([*SCHEMA, ("note", pa.string())])

    def opened_as(pipeline: str, schema: pa.Schema = wide, **values: object) -> None:
        spec = SegmentsSinkSpec(os.fspath(tmp_path), seal=(), **{"partition_by": partition_by, **values})  # type: ignore[arg-type]
        spec.connected("out", pipeline, schema, is_tended=False).close()

    opened_as(shard_name(PIPELINE, 2))
    with pytest.raises(InvalidPipeline, match="'note'"):
        opened_as("others")
    with pytest.raises(InvalidPipeline, match="'id'"):
        opened_as(shard_name(PIPELINE, 2), pa.schema([("id", pa.list_(pa.string())), ("word", pa.string())]))
    with pytest.raises(InvalidPipeline, match="partitioned by"):
        opened_as(shard_name(PIPELINE, 2), partition_by=("id",))


def test_a_directory_with_files_of_others_must_fit(tmp_path: Path) -> None:
    (tmp_path / "word=a").mkdir()
    pq.write_table(pa.table({"id": ["text"]}), tmp_path / "word=a" / "theirs.parquet")
    with pytest.raises(InvalidPipeline, match="'id'"):
        opened(tmp_path)


def test_a_journal_that_does_not_answer_in_the_first_round_is_counted_in_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = opened(tmp_path)
    publish(first, 1, [(1, "a"), (2, "b")])
    publish(first, 2, [(3, "a")])
    first.close()
    second = opened(tmp_path, 2, seal=(whatever,))
    reader = PiecesReader
    calls: list[str] = []

    def failing(path: str) -> PiecesReader:
        calls.append(path)
        if len(calls) == 2:
            raise OSError(5, "no answer", path)
        return reader(path)

    monkeypatch.setattr(sealing, "PiecesReader", failing)
    with pytest.raises(OSError, match="no answer"):
        second.sealing.tend()
    assert second.sealing.tend() == 2
    assert visible(tmp_path) == [1, 2, 3]
    assert os.listdir(second.places.journal) == []
    second.close()


# --- policies -----------------------------------------------------------------------------------------------------


def a_segment(**values: object) -> Segment:
    given = {"partition": "day=mo", "rows": 10, "bytes": 100, "row_bytes": 200, "first_epoch": 1, "last_epoch": 3}
    given |= {"start": {}, "end": {}, "began_us": 0, "now_us": 0, "target_bytes": 1000, **values}
    return Segment(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("policy", "grows", "is_sealed", "reason"),
    [
        (segments.size(), {"bytes": 999}, {"bytes": 1000}, "size"),
        (segments.size("2 kB"), {"bytes": 1999}, {"bytes": 2000}, "size"),
        (segments.rows(10), {"rows": 9}, {"rows": 10}, "rows"),
        (segments.age("10 s", jitter=0), {"now_us": 9_999_999}, {"now_us": 10_000_000}, "age"),
        (segments.pressure("1 kB"), {"journal_bytes": 2000, "older_bytes": 1000}, {"journal_bytes": 1001}, "pressure"),
        (segments.shutdown(), {}, {"is_closing": True}, "shutdown"),
        (chosen(None, ())[1], {}, {"is_flushed": True}, "manual"),
    ],
)
def test_a_policy_seals_from_its_limit_on(
    policy: object, grows: dict[str, object], is_sealed: dict[str, object], reason: str
) -> None:
    assert policy(a_segment(**grows)) is None
    assert policy(a_segment(**is_sealed)) == reason


def test_ages_differ_by_a_tenth_and_are_the_same_when_asked_again() -> None:
    policy = segments.age("100 s")
    due = [
        next(s for s in range(200) if policy(a_segment(partition=f"day={day}", now_us=s * 1_000_000)))
        for day in range(300)
    ]
    assert 90 <= min(due) < 94
    assert 106 < max(due) <= 111
    assert policy == segments.age("100 s")


def test_a_policy_that_fails_or_answers_something_else_stops_the_run(tmp_path: Path) -> None:
    def broken(segment: Segment) -> str:
        raise KeyError(segment.partition)

    def yes(segment: Segment) -> Any:
        return True

    with pytest.raises(InvalidPipeline, match=r"test_segments\.test_a_policy_that_fails"):
        reason_of([broken], a_segment())
    with pytest.raises(InvalidPipeline, match="returned True"):
        reason_of([yes], a_segment())
    sink = opened(tmp_path, seal=(broken,))
    publish(sink, 1, [(1, "a")])
    with pytest.raises(InvalidPipeline):
        sink.sealing.tend()
    with pytest.raises(InvalidPipeline, match="failed"):
        publish(sink, 2, [(2, "a")])


def test_policies_are_shown_by_their_names() -> None:
    assert [named(each) for each in chosen("1 h", (segments.rows(5), whatever))] == [
        "size()",
        "age(3600000000, 0.1)",
        "flushed()",
        "rows(5)",
        f"{__name__}.whatever",
    ]


# --- failures -----------------------------------------------------------------------------------------------------


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let entries of seals fail as long as the list has something in it."""
    failing: list[str] = []
    append = manifest.SegmentsManifest.append

    def failing_append(self: manifest.SegmentsManifest, entry: object) -> bool:
        if failing and entry.seals:  # type: ignore[attr-defined]
            raise Unavailable("the disk is full", do="free space")
        return append(self, entry)  # type: ignore[arg-type]

    monkeypatch.setattr(manifest.SegmentsManifest, "append", failing_append)
    return failing


def test_a_seal_that_fails_changes_nothing_and_is_tried_again_by_who_publishes(
    tmp_path: Path, full_disk: list[str]
) -> None:
    sink = opened(tmp_path, seal=(whatever,))
    publish(sink, 1, [(1, "a")])
    full_disk.append("full")
    with pytest.raises(Unavailable):
        sink.sealing.tend()
    assert os.listdir(sink.places.sealing) == []
    with pytest.raises(Unavailable):  # the coordinator counts to ten, then the run stops
        publish(sink, 2, [(2, "a")])
    assert sink.holdings.last.epoch == 1
    full_disk.clear()
    publish(sink, 2, [(2, "a")])
    assert visible(tmp_path) == [1]
    sink.sealing.tend()
    assert visible(tmp_path) == [1, 2]
    sink.close()


def test_a_run_that_was_taken_over_seals_nothing(tmp_path: Path) -> None:
    stale = opened(tmp_path, seal=(whatever,))
    publish(stale, 1, [(1, "a")])
    owner = opened(tmp_path, 2)
    with pytest.raises(Fenced):
        stale.sealing.tend()
    assert visible(tmp_path) == []
    publish(owner, 2, [(2, "a")], generation=2)
    stale.close()
    assert os.listdir(owner.places.sealing) == []
    owner.close()


def test_an_entry_whose_directory_could_not_be_synced_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.errors import InDoubt

    sink = opened(tmp_path, seal=(whatever,))
    publish(sink, 1, [(1, "a")])
    create = durable.create

    def lost(path: str, data: bytes, *, aside: str) -> bool:
        create(path, data, aside=aside)
        raise InDoubt("written", do="look")

    monkeypatch.setattr(durable, "create", lost)
    with pytest.raises(InDoubt):
        publish(sink, 2, [(2, "a")])
    monkeypatch.setattr(durable, "create", create)
    assert sink.outcome(2).value == "published"
    publish(sink, 2, [(2, "a")])
    publish(sink, 3, [(3, "b")])
    sink.sealing.tend()
    assert visible(tmp_path) == [1, 2, 3]
    sink.close()


def test_a_manifest_that_went_back_under_a_run_is_noticed(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    publish(sink, 1, [(1, "a")])
    publish(sink, 2, [(2, "a")])
    os.unlink(os.path.join(sink.places.manifest, f"{sink.holdings.last.number:012}.json"))
    with pytest.raises(Diverged):
        publish(sink, 3, [(3, "a")])


def lose_journal(path: Path, names: int = 1) -> None:
    journal = path / "_holdfast" / PIPELINE / "out" / "journal"
    for name in sorted(os.listdir(journal))[:names]:
        os.unlink(journal / name)


def test_a_lost_journal_takes_the_sink_back_to_where_the_first_segment_began(tmp_path: Path) -> None:
    def only_a(segment: Segment) -> str | None:
        return "a" if segment.partition == "word=a" else None

    sink = opened(tmp_path, seal=(only_a,))
    publish(sink, 1, [(1, "a")])
    publish(sink, 2, [(2, "a"), (3, "b")])
    publish(sink, 3, [(4, "a"), (5, "c")])
    sink.sealing.tend()
    publish(sink, 4, [(6, "a"), (7, "b")])
    sink.close()
    lose_journal(tmp_path)
    again = SegmentsSinkSpec(os.fspath(tmp_path), partition_by=("word",), seal=()).connected(
        "out", PIPELINE, SCHEMA, is_tended=False
    )
    held = again.open(RunIdentity(PIPELINE, 2))
    ends = [{"log": {"log": epoch}} for epoch in range(1, 6)]
    assert (held.epoch, held.positions, list(held.stops)) == (1, ends[0], [ends[3], ends[1]])
    assert again.outcome(2).value == "absent"
    with pytest.raises(Diverged, match="does not end where"):  # an epoch that has all of it at once
        again.publish([beyond(5, ends[3], [(2, "a"), (3, "b"), (4, "a"), (5, "c"), (6, "a"), (7, "b")])], held)
    again.publish([beyond(5, ends[1], [(2, "a"), (3, "b")])], held)
    again.publish([beyond(6, ends[3], [(4, "a"), (5, "c"), (6, "a"), (7, "b")])], Held())
    assert again.holdings.refill is None
    again.publish([beyond(8, ends[4], [(8, "a")])], Held())
    rows = segments.open(tmp_path).to_arrow()["id"].to_pylist()
    assert sorted(rows) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert visible(tmp_path) == [1, 2, 4, 6]
    again.close()


def test_what_positions_mean_stays_where_a_lost_journal_takes_the_sink_back_to_its_beginning(tmp_path: Path) -> None:
    """It holds no epoch as a whole then, and a part of some in sealed files."""
    end = {"log": {"log": 1}}
    sink = opened(tmp_path, seal=(lambda segment: "a" if segment.partition == "word=a" else None,))
    told = (Explanation("log", 1, '{"of": "this log"}'),)
    rows = pa.table({"id": [1, 2], "word": ["a", "b"]}, schema=SCHEMA)
    sink.publish([Publication(EpochRecord(PIPELINE, 1, 1, end, explanations=told), (Carried(rows),))], Held())
    sink.sealing.tend()
    sink.close()
    lose_journal(tmp_path)
    for generation in (2, 3):
        again = SegmentsSinkSpec(os.fspath(tmp_path), partition_by=("word",), seal=()).connected(
            "out", PIPELINE, SCHEMA, is_tended=False
        )
        held = again.open(RunIdentity(PIPELINE, generation))
        assert (held.epoch, list(held.stops), held.explained) == (0, [end], {"log": 1})
        assert again.explanations() == list(told)
        again.close()


def beyond(epoch: int, end: dict[str, dict[str, int]], rows: Sequence[Row]) -> Publication:
    table = pa.table({"id": [row[0] for row in rows], "word": [row[1] for row in rows]}, schema=SCHEMA)
    return Publication(EpochRecord(PIPELINE, epoch, 2, end), (Carried(table),))


@pytest.mark.parametrize("seeds", [range(25), pytest.param(range(25, 1500), marks=pytest.mark.nightly)])
def test_after_any_losses_of_the_journal_every_row_is_there_once(
    tmp_path: Path, seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fold and the plan: epochs that end where the sink says are published from where it says, again and again."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(manifest, "ENTRIES_MAX", 7)
    for seed in seeds:
        check_history(tmp_path / str(seed), random.Random(seed))


def check_history(path: Path, chance: random.Random) -> None:
    def at_random(segment: Segment) -> str | None:
        return "chance" if chance.random() < 0.3 else None

    spec = SegmentsSinkSpec(os.fspath(path), partition_by=("word",), seal=(at_random,))
    end = epoch = 0
    for generation in range(1, 5):
        sink = spec.connected("out", PIPELINE, SCHEMA, is_tended=False)
        held = sink.open(RunIdentity(PIPELINE, generation))
        at = int(held.positions["log"]["log"]) if held.positions else 0
        stops = sorted({int(positions["log"]["log"]) for positions in (*held.stops, {"log": {"log": end}})})
        for stop in [*(stop for stop in stops if stop > at), *([0] * chance.randrange(6))]:
            epoch += 1
            until = stop or end + chance.randrange(5)
            rows = pa.table({"id": range(at, until), "word": [f"w{n * 7 % 3}" for n in range(at, until)]}, SCHEMA)
            record = EpochRecord(PIPELINE, epoch, generation, {"log": {"log": until}})
            sink.publish([Publication(record, (Carried(rows),))], Held())
            at, end = until, max(end, until)
            if chance.random() < 0.5:
                sink.sealing.tend()
            if chance.random() < 0.2:
                break
        sink.close()
        rows = segments.open(path).to_arrow()["id"].to_pylist()
        assert len(rows) == len(set(rows))
        if at == end:
            assert sorted(rows) == list(range(end))
        if chance.random() < 0.6:
            lose_journal(path, chance.randrange(1, 4))


@pytest.mark.parametrize("at", [0, 40, -3, -40])
def test_a_journal_file_that_was_changed_is_noticed_where_its_index_or_end_is(tmp_path: Path, at: int) -> None:
    sink = opened(tmp_path)
    publish(sink, 1, [(1, "a"), (2, "b")])
    (name,) = os.listdir(sink.places.journal)
    path = os.path.join(sink.places.journal, name)
    data = bytearray(Path(path).read_bytes())
    if at < 0:
        data[at] ^= 1
        Path(path).write_bytes(data)
    else:
        Path(path).write_bytes(data[:at])
    with pytest.raises(Corrupt):
        PiecesReader(path).partitions()


# --- the manifest -------------------------------------------------------------------------------------------------


def test_the_manifest_is_compacted_and_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "ENTRIES_MIN", 5)
    monkeypatch.setattr(manifest, "CHUNK_SEGMENTS", 4)
    sink = opened(tmp_path, seal=(segments.rows(2),), compact=False)
    names = [f"w{number}" for number in range(3)]
    for epoch in range(1, 121):
        publish(sink, epoch, [(epoch, names[epoch % 3])])
        sink.sealing.tend()
    expected = sealed(sink)
    assert len(expected) == 60
    assert [each.last_epoch for each in expected] == sorted(each.last_epoch for each in expected)
    read = manifest.SegmentsManifest(sink.places.manifest)
    found = read.holdings()
    assert list(read.sealed(found)) == expected
    assert found.growing == sink.holdings.growing
    assert set(os.listdir(sink.places.journal)) == set(found.files)
    objects = os.listdir(sink.places.manifest)
    assert len([name for name in objects if name[0].isdigit()]) < 60
    assert len([name for name in objects if name.startswith("base-")]) <= 2
    sink.close()


def test_an_epoch_writes_as_many_bytes_however_many_segments_grow_or_were_sealed(tmp_path: Path) -> None:
    sink = opened(tmp_path, seal=(whatever,))
    sizes = []
    for epoch in range(1, 31):
        publish(sink, epoch, [(epoch, f"w{number}") for number in range(50)])
        last = os.path.join(sink.places.manifest, f"{sink.holdings.last.number:012}.json")
        sizes.append(os.path.getsize(last))
        if epoch % 10 == 0:
            sink.sealing.tend()
    assert max(sizes[2:10]) < min(sizes[0], sizes[1] * 2)
    assert abs(sizes[5] - sizes[25]) < 10
    sink.close()


def test_an_entry_that_is_missing_is_noticed(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    for epoch in range(1, 5):
        publish(sink, epoch, [(epoch, "a")])
    os.unlink(os.path.join(sink.places.manifest, f"{3:012}.json"))
    with pytest.raises(Corrupt, match="missing"):
        manifest.SegmentsManifest(sink.places.manifest).holdings()


# --- retention and requests ---------------------------------------------------------------------------------------


def test_old_segments_are_dropped_but_not_those_since_something_that_grows_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "ENTRIES_MAX", 4)
    monkeypatch.setattr(manifest, "CHUNK_SEGMENTS", 3)

    def not_b(segment: Segment) -> str | None:
        return None if segment.partition == "word=b" else "each"

    sink = opened(tmp_path, retain="1 B", seal=(not_b,))
    for epoch in range(1, 11):
        publish(sink, epoch, [(epoch, "a"), *([(100, "b")] if epoch == 10 else [])])
        sink.sealing.tend()
    sink.sealing.tend()
    publish(sink, 11, [(11, "a")])
    for _ in range(5):
        sink.sealing.tend()
    assert visible(tmp_path) == [10, 11]
    assert [segment.last_epoch for segment in sealed(sink)] == [10, 11]
    assert sink.holdings.sealed_bytes == sum(segment.size_bytes for segment in sealed(sink))
    assert list(manifest.SegmentsManifest(sink.places.manifest).sealed(sink.holdings)) == sealed(sink)
    sink.close()
    again = opened(tmp_path, 2)
    assert [segment.last_epoch for segment in sealed(again)] == [10, 11]
    assert len(again.holdings.chunks) <= 1
    again.close()


def test_small_neighbours_are_joined_and_positions_and_rows_are_kept(tmp_path: Path) -> None:
    sink = opened(tmp_path, seal=(whatever,), sort_by=("id",))
    for epoch in range(1, 21):
        publish(sink, epoch, [(100 - epoch, "a"), *([(epoch + 200, "b")] if epoch % 2 else [])])
        sink.sealing.tend()
    expected = sorted([100 - epoch for epoch in range(1, 21)] + [epoch + 200 for epoch in range(1, 21, 2)])
    assert visible(tmp_path) == expected
    found = {each.partition: [] for each in sealed(sink)}
    for each in sorted(sealed(sink), key=lambda each: each.first_epoch):
        found[each.partition].append((each.first_epoch, each.last_epoch, each.reason))
    assert found["word=b"][0] == (1, 15, "compaction")
    assert len(found["word=a"]) <= 8
    assert [first for first, _, _ in found["word=a"][1:]] == [last + 1 for _, last, _ in found["word=a"][:-1]]
    joined = next(each for each in sealed(sink) if each.partition == "word=b" and each.reason == "compaction")
    assert (joined.start, joined.end, joined.row_count) == ({}, {"log": {"log": 15}}, 8)
    joined = next(each for each in sealed(sink) if each.partition == "word=a" and each.reason == "compaction")
    ids = pq.read_table(tmp_path / joined.path, partitioning=None)["id"].to_pylist()
    assert ids == sorted(ids)
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.glob("word=*/*")} == {e.path for e in sealed(sink)}
    sink.close()
    again = opened(tmp_path, 2, seal=(whatever,), sort_by=("id",))
    for epoch in range(21, 25):
        publish(again, epoch, [(epoch + 300, "a")], generation=2)
        again.sealing.tend()
    assert len(sealed(again)) <= 10
    assert visible(tmp_path) == sorted([*expected, *range(321, 325)])
    again.close()


def test_what_was_sealed_or_joined_and_not_finished_is_not_once_more(tmp_path: Path) -> None:
    """The entry is durable, and then a disk fails, or a rename: a round that is tried again counts it."""
    reached: list[str] = []

    def fail(point: str, epoch: int) -> None:
        reached.append(point)
        if len(reached) % 3 == 0:
            raise RuntimeError(f"{point}:{epoch}")

    def even(segment: Segment) -> str:
        return "even" if segment.partition == "word=a" or segment.last_epoch % 4 == 0 else ""

    sink = opened(tmp_path, seal=(even,), sort_by=("id",))
    failures = 0
    for epoch in range(1, 25):
        publish(sink, epoch, [(epoch, "a"), (epoch + 100, "b")])
        faults.install(fail)
        try:
            for _ in range(4):
                try:
                    sink.sealing.tend()
                except RuntimeError:
                    failures += 1
        finally:
            faults.install(None)
    sink.sealing.tend()
    assert failures > 5
    assert any(each.reason == "compaction" for each in sealed(sink))
    rows = [number for each in sealed(sink) for number in pq.read_table(tmp_path / each.path)["id"].to_pylist()]
    assert sorted(rows) == [*range(1, 25), *range(101, 125)]
    sink.close()


def test_small_files_are_left_alone_where_they_are_to_be(tmp_path: Path) -> None:
    sink = opened(tmp_path, seal=(whatever,), compact=False)
    for epoch in range(1, 13):
        publish(sink, epoch, [(epoch, "a")])
        sink.sealing.tend()
    assert len(sealed(sink)) == 12
    sink.close()


def test_a_row_is_written_again_as_often_as_the_logarithm_says() -> None:
    small = SmallNeighbours(10_000)
    written: dict[int, int] = {}
    for epoch in range(1, 1000):
        segment = a_sealed(epoch, epoch, 10)
        small.add([segment])
        while run := small.due():
            assert [each.first_epoch for each in run] == sorted(each.first_epoch for each in run)
            for each in run:
                for row in range(each.first_epoch, each.last_epoch + 1):
                    written[row] = written.get(row, 0) + 1
            joined = a_sealed(run[0].first_epoch, run[-1].last_epoch, sum(each.size_bytes for each in run))
            small.joined(run, joined)
    assert max(written.values()) <= 4


def a_sealed(first: int, last: int, size_bytes: int) -> SealedSegment:
    return SealedSegment("p", f"p/{first}-{last}", "s", 1, 1, size_bytes, first, last, {}, {}, 0, 0, "age")


def test_what_is_asked_for_is_sealed_and_the_request_is_gone(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    publish(sink, 1, [(1, "a"), (2, "b"), (3, "c")])
    segments.flush(tmp_path, ["word=b"], pipeline=PIPELINE, sink="out")
    assert sink.sealing.tend() == 1
    assert [(each.partition, each.reason) for each in sealed(sink)] == [("word=b", "manual")]
    assert sink.sealing.tend() == 0
    segments.flush(tmp_path, pipeline=PIPELINE, sink="out")
    assert sink.sealing.tend() == 2
    assert visible(tmp_path) == [1, 2, 3]
    sink.close()
    with pytest.raises(InvalidPipeline, match="no segments"):
        segments.flush(tmp_path, pipeline=PIPELINE, sink="another")


# --- the thread ---------------------------------------------------------------------------------------------------


def test_a_thread_seals_what_is_due_and_the_end_of_the_run_the_rest(tmp_path: Path) -> None:
    import time

    spec = SegmentsSinkSpec(os.fspath(tmp_path), seal=(segments.rows(3), segments.shutdown()))
    sink = spec.connect("out", PIPELINE, SCHEMA)
    sink.open(RunIdentity(PIPELINE, 1))
    publish(sink, 1, [(1, "a"), (2, "b"), (3, "c")])
    deadline = time.monotonic() + 30
    while not visible(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert visible(tmp_path) == [1, 2, 3]
    publish(sink, 2, [(4, "d")])
    sink.close()
    assert visible(tmp_path) == [1, 2, 3, 4]
    assert [each.reason for each in sealed(sink)] == ["rows", "shutdown"]


def test_a_thousand_segments_are_sealed_in_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(sealing, "GROUP_SEGMENTS", 100)
    sink = opened(tmp_path, seal=(whatever,))
    publish(sink, 1, [(number, f"w{number % 1000}") for number in range(3000)])
    entries = sink.holdings.last.number
    assert sink.sealing.tend() == 1000
    assert sink.holdings.last.number == entries + 10
    assert visible(tmp_path) == list(range(3000))
    assert growth.RATIO < 1
    sink.close()


def test_null_and_the_empty_text_are_one_segment_and_their_journal_is_removed_when_it_is_sealed(tmp_path: Path) -> None:
    sink = opened(tmp_path, seal=(whatever,))
    publish(sink, 1, [(1, None), (2, ""), (3, "a"), (4, None)])
    assert sink.sealing.tend() == 2
    assert visible(tmp_path) == [1, 2, 3, 4]
    assert {each.row_count for each in sealed(sink)} == {1, 3}
    assert os.listdir(sink.places.journal) == []
    sink.close()


@pytest.mark.nightly
def test_ten_thousand_partition_values_are_sealed_null_slashes_and_unicode_among_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    sink = opened(tmp_path, seal=(whatever,))
    words = [*WORDS, *(f"w{number}" for number in range(10_000 - len(WORDS)))]
    for epoch in (1, 2):
        publish(sink, epoch, [(epoch * 10_000 + number, word) for number, word in enumerate(words)])
    assert sink.sealing.tend() == 9_999  # null and the empty text share a directory
    assert visible(tmp_path) == list(range(10_000, 30_000))
    assert sink.holdings.growing == {}
    assert os.listdir(sink.places.journal) == []
    sink.close()


def test_a_sink_that_is_opened_again_after_another_one_has_sealed_loses_no_journal(tmp_path: Path) -> None:
    """What it knew of is gone, because it is sealed: the journal is not lost."""
    first = opened(tmp_path)
    publish(first, 1, [(1, "a")])
    second = opened(tmp_path, 2, seal=(segments.shutdown(),))
    publish(second, 2, [(2, "a")], generation=2)
    second.sealing.tend(is_closing=True)
    publish(second, 3, [(3, "a")], generation=2)
    assert first.open(RunIdentity(PIPELINE, 3)).epoch == 3
    assert opened(tmp_path, 4).holdings.last.epoch == 3


def test_a_sink_whose_opening_is_in_doubt_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = opened(tmp_path)
    append = sink._try

    def doubtful(entry: SegmentsEntry) -> bool:
        append(entry)
        raise InDoubt("It is written.", why="nobody said whether it lasts.", do="ask again.")

    monkeypatch.setattr(sink, "_try", doubtful)
    with pytest.raises(InDoubt):
        sink.open(RunIdentity(PIPELINE, 2))
    monkeypatch.undo()
    assert sink.open(RunIdentity(PIPELINE, 3)).generation == 2
