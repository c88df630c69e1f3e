"""Bounds that files and streams give by themselves (design/0007, section 2; design/0004): what is there holds them."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import holdfast as hf
from holdfast.connectors.byte_stream.messages import MessageColumns
from holdfast.connectors.byte_stream.sink_spec import ByteStreamSinkSpec
from holdfast.connectors.reading.bounds import OWN
from holdfast.connectors.reading.from_time import from_time
from holdfast.connectors.reading.partitioned import BOUND, of_partitions
from holdfast.connectors.reading.until import up_to
from holdfast.errors import InvalidPipeline
from holdfast.ports import Carried, EpochRecord, Held, Publication, RunIdentity
from holdfast.testing import bound, close, drive

SCHEMA = "host STRING, at BIGINT"
Row = dict[str, Any]


def write(directory: Path, name: str, format: str, times: list[int]) -> None:
    """Write the log of a host: a file that arrives as a whole."""
    directory.mkdir(exist_ok=True)
    rows = [{"host": name, "at": at} for at in times]
    aside = directory / f"_{name}"
    if format == "parquet":
        schema = pa.schema([("host", pa.string()), ("at", pa.int64())])
        pq.write_table(pa.Table.from_pylist(rows, schema), aside, row_group_size=3)
    else:
        aside.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.rename(aside, directory / f"{name}.{format}")


def logs(directory: Path, format: str, **arguments: Any) -> hf.Stream:
    given = {"schema": SCHEMA, "timestamp": "at", "format": format, "disorder": 5, "name": "logs"}
    return hf.read.files(os.fspath(directory), **{**given, **arguments})


def opened(stream: hf.Stream, workspace: Path) -> Any:
    return stream.node.spec.open("logs", os.fspath(workspace))


def epochs_of(source: Any, start: Mapping[str, int | str]) -> list[dict[str, int]]:
    """Return the positions of one epoch after the other, ``start`` first."""
    positions: list[Any] = [start]
    while (end := source.latest(positions[-1], bounded=False)) != positions[-1]:
        positions.append(end)
    return positions


def marked(source: Any, start: Mapping[str, int | str], end: dict[str, int]) -> list[Row]:
    """Return rows and bound rows of an epoch as other processes read them."""
    spans = pickle.loads(pickle.dumps(source.spans(start, end, parallelism=2)))
    reader = pickle.loads(pickle.dumps(source))
    return [row for span in spans for batch in reader.read_marked(span) for row in batch.to_pylist()]


def items(rows: list[Row]) -> list[Any]:
    return [bound(row["at"]) if row[OWN] else {"host": row["host"], "at": row["at"]} for row in rows]


FORMATS = pytest.mark.parametrize("format", ["json", "parquet"])


@FORMATS
@pytest.mark.slow
def test_a_file_that_is_there_and_not_read_yet_holds_the_bound_back(format: str, tmp_path: Path) -> None:
    for name, times in {"a": [10, 20, 31, 28], "b": [12, 25, 33], "c": [40, 38]}.items():
        write(tmp_path / "in", name, format, times)
    stream = logs(tmp_path / "in", format, max_files_per_epoch=1)
    source = opened(stream, tmp_path / "w")
    positions = epochs_of(source, source.initial())
    assert [at.get(BOUND) for at in positions] == [None, 12, 28, 35]  # b; then a and b less disorder; then c, too
    rows = [marked(source, *pair) for pair in pairwise(positions)]
    assert [[row["at"] for row in of if row[OWN]] for of in rows] == [[12], [28], [35]]
    assert [marked(opened(stream, tmp_path / "w"), *pair) for pair in pairwise(positions)] == rows
    counts = stream | hf.aggregate(by="host", window=hf.tumbling(10), disorder=0, n=hf.count(), name="counts")
    everyone = (
        stream
        | hf.select("at", "'all' AS host")
        | hf.aggregate(by="host", window=hf.tumbling(10), n=hf.count(), name="counts")
    )
    given = {"logs": [*map(items, rows), [close()]]}
    for counted in (counts, everyone):
        assert not any(drive(counted.late, given))
    assert [(row["window_start"], row["n"]) for epoch in drive(everyone, given) for row in epoch] == [
        (10, 2),
        (20, 3),
        (30, 3),
        (40, 1),
    ]


@FORMATS
@pytest.mark.slow
def test_a_file_that_arrives_later_is_held_to_the_disorder(format: str, tmp_path: Path) -> None:
    write(tmp_path / "in", "a", format, [10, 20])
    source = opened(logs(tmp_path / "in", format), tmp_path / "w")
    first = epochs_of(source, source.initial())[-1]
    assert first[BOUND] == 15
    write(tmp_path / "in", "b", format, [15, 16])
    second = epochs_of(source, first)[-1]
    assert second[BOUND] == 15, "a bound never falls"
    write(tmp_path / "in", "c", format, [50])
    assert epochs_of(opened(logs(tmp_path / "in", format), tmp_path / "w"), second)[-1][BOUND] == 45


@FORMATS
@pytest.mark.slow
def test_nothing_follows_the_files_of_a_source_that_ends(format: str, tmp_path: Path) -> None:
    for name, times in {"a": [10, 20], "b": [14, 25], "c": [30]}.items():
        write(tmp_path / "in", name, format, times)
    source = opened(logs(tmp_path / "in", format, max_files_per_epoch=1, bounded=True), tmp_path / "w")
    positions = epochs_of(source, source.initial())
    assert [at.get(BOUND) for at in positions] == [None, 14, 30, 30]
    assert source.has_ended(positions[-1])


@pytest.mark.slow
def test_rows_that_a_run_up_to_a_time_has_left_hold_the_bound_back(tmp_path: Path) -> None:
    write(tmp_path / "in", "a", "json", [10, 20, 60])
    write(tmp_path / "in", "b", "json", [12, 70])
    spec: Any = logs(tmp_path / "in", "json").node.spec
    limited: Any = up_to(spec, 50)
    source = limited.open("logs", os.fspath(tmp_path / "w"))
    first = epochs_of(source, source.initial())[-1]
    assert first[BOUND] == 7, "of what was read of a file in part only the lowest time is known"
    assert sorted(row["at"] for row in marked(source, source.initial(), first) if not row[OWN]) == [10, 12, 20]
    later = spec.open("logs", os.fspath(tmp_path / "w"))
    last = epochs_of(later, first)[-1]
    assert sorted(row["at"] for row in marked(later, first, last) if not row[OWN]) == [60, 70]
    assert last[BOUND] == 65


@pytest.mark.slow
def test_it_begins_at_a_time_and_gives_ids_as_without_bounds(tmp_path: Path) -> None:
    write(tmp_path / "in", "a", "parquet", [10, 20, 30, 40])
    spec: Any = logs(tmp_path / "in", "parquet").node.spec
    source = from_time(spec, 25).open("logs", os.fspath(tmp_path / "w"))
    end = epochs_of(source, source.initial())[-1]
    assert [row["at"] for row in marked(source, source.initial(), end)] == [30, 40, 35]
    found = {}
    for name, more in (("with", {}), ("without", {"disorder": None})):
        stream = logs(tmp_path / "in", "parquet", **more) | hf.row_id()
        source = opened(stream, tmp_path / name)
        end = epochs_of(source, source.initial())[-1]
        spans = source.spans(source.initial(), end, parallelism=1)
        found[name] = [row for span in spans for batch in source.read(span) for row in batch.to_pylist()]
    assert found["with"] == found["without"]


@pytest.mark.slow
def test_positions_of_partitions_are_what_they_are_without_bounds(tmp_path: Path) -> None:
    write(tmp_path / "in", "a", "json", [10, 20])
    spec: Any = logs(tmp_path / "in", "json").node.spec
    source = spec.open("logs", os.fspath(tmp_path / "w"))
    start = source.initial()
    end = epochs_of(source, start)[-1]
    assert of_partitions(end) == {"log": 1}
    assert spec.obstacle("logs", os.fspath(tmp_path / "w"), end, end) == ""
    assert source.size_between(start, end) > 0
    source.committed(end)


class Cameras:
    """A store to which each call adds an epoch."""

    def __init__(self, path: Path) -> None:
        schema = pa.schema([("camera", pa.string()), ("timestamp", pa.int64()), ("data", pa.binary())])
        columns = MessageColumns("timestamp", "data", "camera")
        self._sink = ByteStreamSinkSpec(os.fspath(path), columns, index_every=1).connect("out", "p", schema)
        self._sink.open(RunIdentity("p", 1))
        self._epoch = 0

    def put(self, **times: list[int]) -> None:
        self._epoch += 1
        rows = [{"camera": of, "timestamp": at, "data": b"x"} for of, each in times.items() for at in each]
        schema = pa.schema([("camera", pa.string()), ("timestamp", pa.int64()), ("data", pa.binary())])
        record = EpochRecord("p", self._epoch, 1, {"given": {"log": self._epoch}})
        self._sink.publish([Publication(record, (Carried(pa.Table.from_pylist(rows, schema)),))], Held())


@pytest.mark.slow
def test_the_slowest_stream_holds_the_bound_of_a_byte_stream_back(tmp_path: Path) -> None:
    cameras = Cameras(tmp_path / "store")
    cameras.put(front=[10, 20, 30, 40], back=[5, 7])
    given: dict[str, Any] = {"timestamps": "bigint", "max_rows_per_epoch": 3, "disorder": 2, "name": "logs"}
    source = opened(hf.read.byte_stream(tmp_path / "store", **given), tmp_path / "w")
    positions = epochs_of(source, source.initial())
    assert [at.get(BOUND) for at in positions[:2]] == [None, 3]
    assert positions[-1][BOUND] == 5
    cameras.put(back=[50], side=[9])
    assert epochs_of(source, positions[-1])[-1][BOUND] == 7
    again = opened(hf.read.byte_stream(tmp_path / "store", **given), tmp_path / "w")
    for pair in pairwise(positions):
        assert marked(again, *pair) == marked(source, *pair)


@pytest.mark.slow
def test_a_silent_stream_that_holds_all_others_back_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0]
    clock = SimpleNamespace(monotonic_ns=lambda: now_s[0] * 10**9)
    monkeypatch.setattr("holdfast.connectors.byte_stream.reader.time", clock)
    cameras = Cameras(tmp_path / "store")
    stream = hf.read.byte_stream(tmp_path / "store", timestamps="bigint", disorder=2, name="logs")
    source = opened(stream, tmp_path / "w")
    at, named = source.initial(), []
    puts = [(0, {"front": [10], "back": [5]}), (59, {"front": [20]}), (60, {"front": [30]}), (90, {"front": [40]})]
    for now_s[0], times in [*puts, (91, {"back": [35]}), (152, {"front": [50]})]:
        cameras.put(**times)
        at = epochs_of(source, at)[-1]
        named.append([record.getMessage() for record in caplog.records])
        caplog.clear()
    assert [len(of) for of in named] == [0, 0, 1, 0, 0, 1], named
    assert "source 'logs': stream p/out/back has been silent for a minute" in named[2][0]
    assert "idle_after=" in named[2][0]


@pytest.mark.slow
def test_a_stream_that_is_read_to_its_end_holds_no_bound_back(tmp_path: Path) -> None:
    Cameras(tmp_path / "store").put(front=[10, 20, 30, 40], side=[1])
    given: dict[str, Any] = {
        "timestamps": "bigint",
        "max_rows_per_epoch": 2,
        "end": "latest",
        "disorder": 2,
        "name": "logs",
    }
    source = opened(hf.read.byte_stream(tmp_path / "store", **given), tmp_path / "w")
    positions = epochs_of(source, source.initial())
    assert [at.get(BOUND) for at in positions] == [None, 8, 28, 28]
    assert source.has_ended(positions[-1])


def test_a_stream_without_an_order_cannot_be_idle() -> None:
    with pytest.raises(InvalidPipeline, match="idle_after= without disorder="):
        hf.read.byte_stream("store", idle_after="1 s")


def test_what_the_stream_has_is_not_changed_by_bounds() -> None:
    stream = logs(Path("in"), "json")
    assert stream.columns == ("host", "at")
    shown = stream.node.source_spec.arguments()
    assert (shown["disorder"], shown["bounds"]) == (5, "its own")
    assert OWN not in str(shown)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"timestamp": None}, "disorder= without timestamp="),
        ({"bounds": "host"}, "disorder= with bounds='host'"),
        ({"timestamp": "when"}, "'when' is not a column"),
        ({"disorder": "5 s"}, "does not fit the timestamp column 'at'"),
    ],
)
def test_what_cannot_give_bounds_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidPipeline) as caught:
        logs(Path("in"), "json", **arguments)
    assert words in caught.value.what
