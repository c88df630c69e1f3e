"""Readers of segments: one version, whole epochs, whatever is sealed meanwhile."""

from __future__ import annotations

import datetime
import os
import threading
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast import segments
from holdfast.connectors.reading.bounds import OWN
from holdfast.connectors.reading.from_time import from_time
from holdfast.connectors.reading.partitioned import BOUND
from holdfast.connectors.segments.dataset import place_of
from holdfast.connectors.segments.sink import SegmentsSink
from holdfast.connectors.segments.source import SegmentsSource
from holdfast.connectors.segments.spec import SegmentsSinkSpec
from holdfast.errors import InvalidPipeline
from holdfast.limits import ReadLimit
from holdfast.ports import Carried, EpochRecord, Held, Publication, RunIdentity
from holdfast.testing import bound, close, drive
from tests.contract.source_contract import drain, rows_between
from tests.unit.sinks.test_segments import SCHEMA, WORDS, opened, publish, sealed, whatever


def held(path: Path, **arguments: Any) -> list[tuple[int, str | None]]:
    rows = segments.open(path).to_arrow(**arguments).to_pylist()
    return sorted((row["id"], row["word"]) for row in rows)


def test_what_is_sealed_and_what_grows_are_one_content(tmp_path: Path) -> None:
    sink = opened(tmp_path, seal=(segments.rows(2),))
    publish(sink, 1, [(1, "a"), (2, "b"), (3, "a")])
    sink.sealing.tend()
    publish(sink, 2, [(4, "a"), (5, None)])
    assert held(tmp_path, growing=False) == [(1, "a"), (3, "a")]
    assert held(tmp_path) == [(1, "a"), (2, "b"), (3, "a"), (4, "a"), (5, None)]
    assert segments.open(tmp_path).schema == SCHEMA
    assert segments.open(tmp_path).to_pandas(columns=["id"])["id"].sum() == 15
    (version,) = segments.open(tmp_path).content().held.values()
    assert (version.epoch, version.positions) == (2, {"log": {"log": 2}})
    sink.close()


def test_values_of_all_kinds_come_back_from_the_names_of_directories(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    publish(sink, 1, list(enumerate(WORDS)))
    expected = [(number, word or None) for number, word in enumerate(WORDS)]
    assert held(tmp_path) == expected
    sink.close()
    again = opened(tmp_path, 2, seal=(whatever,))
    again.sealing.tend()
    assert held(tmp_path, growing=False) == expected
    again.close()


def test_partition_columns_of_every_type_come_back(tmp_path: Path) -> None:
    row = {
        "id": 1,
        "n": -5,
        "is": True,
        "day": datetime.date(2026, 1, 2),
        "at": datetime.datetime(2026, 1, 2, 3, 4, 5, 120_000, tzinfo=datetime.UTC),
        "local": datetime.datetime(2026, 1, 2, 3, 4, 5),
        "price": Decimal("1.50"),
    }
    kinds = [pa.int64(), pa.int16(), pa.bool_(), pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us")]
    schema = pa.schema(list(zip(row, [*kinds, pa.decimal128(9, 2)], strict=True)))
    spec = SegmentsSinkSpec(os.fspath(tmp_path), partition_by=tuple(row)[1:], seal=(segments.shutdown(),))
    sink = spec.connected("out", "p", schema, is_tended=False)
    sink.open(RunIdentity("p", 1))
    table = pa.Table.from_pylist([row], schema)
    sink.publish([Publication(EpochRecord("p", 1, 1, {}), (Carried(table),))], Held())
    assert segments.open(tmp_path).to_arrow().to_pylist() == [row]
    sink.close()
    assert segments.open(tmp_path).to_arrow(growing=False).to_pylist() == [row]


def test_a_file_whose_rename_a_crash_prevented_is_read_where_it_is(tmp_path: Path) -> None:
    sink = opened(tmp_path, seal=(whatever,))
    publish(sink, 1, [(1, "a")])
    sink.sealing.tend()
    (segment,) = sealed(sink)
    os.rename(tmp_path / segment.path, tmp_path / segment.staged)
    assert place_of(os.fspath(tmp_path), segment) == os.fspath(tmp_path / segment.staged)
    assert held(tmp_path) == [(1, "a")]
    sink.close()


@pytest.mark.slow
def test_a_reader_beside_a_sink_sees_whole_epochs_each_row_once(tmp_path: Path) -> None:
    """Three rows an epoch, in three partitions that seal at different moments."""
    sink = opened(tmp_path, seal=(segments.rows(3),))
    publish(sink, 1, [(1, "a"), (1, "b"), (1, "c")])
    done = threading.Event()
    seen: list[str] = []

    def read() -> None:
        while not done.is_set():
            counts = Counter(number for number, _ in held(tmp_path))
            wrong = {number: count for number, count in counts.items() if count != 3}
            if wrong or sorted(counts) != list(range(1, len(counts) + 1)):
                seen.append(f"{wrong} of {len(counts)}")

    thread = threading.Thread(target=read)
    thread.start()
    for epoch in range(2, 60):
        publish(sink, epoch, [(epoch, "a"), (epoch, "b"), (epoch, "c")])
        if epoch % 2:
            sink.sealing.tend()
    done.set()
    thread.join()
    assert seen == []
    sink.close()


@pytest.mark.slow
def test_ten_thousand_partitions_grow_in_one_file_an_epoch(tmp_path: Path) -> None:
    sink = opened(tmp_path, seal=(segments.size("1 B"),))
    publish(sink, 1, [(number, f"w{number}") for number in range(10_000)])
    publish(sink, 2, [(10_000 + number, f"w{number}") for number in range(10_000)])
    assert len(os.listdir(sink.places.journal)) == 2
    assert len(sink.holdings.growing) == 10_000
    found = segments.open(tmp_path).to_arrow()
    assert sorted(found["id"].to_pylist()) == list(range(20_000))
    sink.close()


def test_a_directory_that_no_segments_sink_has_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidPipeline, match="No segments sink"):
        segments.open(tmp_path).to_arrow()
    with pytest.raises(InvalidPipeline, match="No segments sink"):
        hf.read.segments(tmp_path)


# --- the source ---------------------------------------------------------------------------------------------------


def source_of(tmp_path: Path, sink_directory: Path, **arguments: Any) -> SegmentsSource:
    stream = hf.read.segments(sink_directory, name="words", **arguments)
    found = stream.node.source_spec.open("words", os.fspath(tmp_path / "workspace"))
    assert isinstance(found, SegmentsSource)
    return found


def ids(rows: Sequence[Any]) -> list[int]:
    return sorted(row["id"] for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [None, 1, 2])
def test_a_source_reads_one_version_again_and_again(tmp_path: Path, limit: int | None) -> None:
    directory = tmp_path / "out"
    sink = opened(directory, seal=(segments.rows(2), segments.shutdown()))
    publish(sink, 1, [(1, "a"), (2, "b"), (3, "a")])
    sink.sealing.tend()
    publish(sink, 2, [(4, "a"), (5, "c")])
    first = source_of(tmp_path, directory, max_files_per_epoch=limit)
    positions = drain(first, first.initial())
    assert len(positions) == (2 if limit is None else 4 - limit + 1)
    assert len(drain(first, first.initial(), limit=ReadLimit(1, 1))) == 4, "a run may want less (design/0014)"
    publish(sink, 3, [(6, "a")])
    sink.close()  # everything is sealed, and the journal is empty
    assert os.listdir(sink.places.journal) == []
    for parallelism in (1, 2, 7):
        again = source_of(tmp_path, directory, max_files_per_epoch=limit)
        assert ids(rows_between(again, positions[0], positions[-1], parallelism)) == [1, 2, 3, 4, 5]
        assert again.has_ended(positions[-1])
    assert first.spec.obstacle("words", first.workspace, positions[-1]) == ""
    assert first.spec.obstacle("words", first.workspace, {"files": 9})
    first.committed(positions[-1])
    assert not os.path.exists(tmp_path / "workspace" / "files")


def test_a_source_without_what_grows(tmp_path: Path) -> None:
    directory = tmp_path / "out"
    sink = opened(directory, seal=(segments.rows(2),))
    publish(sink, 1, [(1, "a"), (2, "b"), (3, "a")])
    sink.sealing.tend()
    source = source_of(tmp_path, directory, growing=False)
    assert ids(rows_between(source, source.initial(), source.latest(source.initial(), bounded=True))) == [1, 3]
    sink.close()


@pytest.mark.slow
def test_what_the_sink_drops_or_joins_is_read_all_the_same(tmp_path: Path) -> None:
    directory = tmp_path / "out"
    sink = opened(directory, seal=(whatever,))
    for epoch in range(1, 8):
        publish(sink, epoch, [(epoch, "a")])
        sink.sealing.tend()
    source = source_of(tmp_path, directory)
    end = source.latest(source.initial(), bounded=True)
    publish(sink, 8, [(8, "a")])
    sink.sealing.tend()
    assert len(sealed(sink)) == 1
    assert ids(rows_between(source, source.initial(), end)) == list(range(1, 8))
    sink.close()


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    directory = tmp_path / "out"
    sink = opened(directory, seal=(whatever,))
    publish(sink, 1, [(1, "a")])
    sink.sealing.tend()
    source = source_of(tmp_path, directory)
    end = source.latest(source.initial(), bounded=True)
    (link,) = (tmp_path / "workspace" / "files").iterdir()
    link.unlink()
    with pytest.raises(InvalidPipeline, match="gone"):
        rows_between(source, source.initial(), end)
    sink.close()


def test_a_pipeline_can_stand_behind_it(tmp_path: Path) -> None:
    sink: SegmentsSink = opened(tmp_path)
    publish(sink, 1, [(1, "a"), (2, "b"), (3, "a")])
    words = hf.read.segments(tmp_path, name="words")
    counted = words | hf.filter("id > 1") | hf.select("word", "id")
    given = [[{"id": 2, "word": "b"}]]
    assert drive(counted, {"words": given}) == [[{"word": "b", "id": 2}]]
    sink.close()


def test_reading_begins_at_a_time_and_passes_sealed_files_over_that_lie_before_it(tmp_path: Path) -> None:
    sink = opened(tmp_path / "out", seal=(whatever,))
    for epoch, ids in enumerate(([1, 2], [3, 9], [20]), start=1):
        publish(sink, epoch, [(number, "a") for number in ids])
        sink.sealing.tend()
    publish(sink, 4, [(4, "b"), (30, "b")])
    sink.close()
    stream = hf.read.segments(tmp_path / "out", timestamp="id", name="in")
    source = from_time(stream.node.source_spec, 5).open("in", str(tmp_path / "work"))
    end = drain(source, source.initial())[-1]
    assert sorted(row["id"] for row in rows_between(source, source.initial(), end)) == [9, 20, 30]
    assert end == {"files": 3}, "one of three sealed files is not read, and the journal is"


@pytest.mark.slow
def test_files_that_are_left_hold_the_bound_back_by_their_lowest_times(tmp_path: Path) -> None:
    """Whatever order files were sealed in, and rows stand in them (design/0007, section 2)."""
    sink = opened(tmp_path / "out", seal=(whatever,))
    for epoch, ids in enumerate(([30, 21, 39], [10, 25], [8, 19, 12]), start=1):
        publish(sink, epoch, [(number, "a") for number in ids])
        sink.sealing.tend()
    publish(sink, 4, [(50, "a"), (17, "a")])
    sink.close()
    stream = hf.read.segments(tmp_path / "out", timestamp="id", max_files_per_epoch=1, name="in")
    source: Any = stream.node.source_spec.open("in", str(tmp_path / "work"))
    positions = drain(source, source.initial())
    assert [at.get(BOUND) for at in positions] == [None, 10, 17, 21, 21]
    epochs = []
    for start, end in pairwise(positions):
        batches = [batch for span in source.spans(start, end, parallelism=1) for batch in source.read_marked(span)]
        rows = [row for batch in batches for row in batch.to_pylist()]
        epochs.append([bound(row["id"]) if row.pop(OWN) else row for row in rows])
    counts = stream | hf.aggregate(by="word", window=hf.tumbling(10), n=hf.count(), name="counts")
    given = {"in": [*epochs, [close()]]}
    assert not any(drive(counts.late, given))
    found = [[(row["window_start"], row["n"]) for row in epoch] for epoch in drive(counts, given)]
    assert found == [[(0, 1)], [], [(10, 4)], [], [(20, 2), (30, 2), (50, 1)]]
