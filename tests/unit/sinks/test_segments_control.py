"""Control rows in segments: files of one version of the columns, and partitions that are dropped while others seal."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.dataset as dataset
import pyarrow.parquet as pq
import pytest

import holdfast as hf
from holdfast import segments
from holdfast.connectors.control.columns import ControlColumns
from holdfast.connectors.kit.files import own_files
from holdfast.connectors.segments import manifest, sealing
from holdfast.connectors.segments.entries import SealedSegment
from holdfast.connectors.segments.places import write_file
from holdfast.connectors.segments.policies import Policy
from holdfast.connectors.segments.sink import SegmentsSink
from holdfast.connectors.segments.spec import SegmentsSinkSpec
from holdfast.errors import BadRow, InvalidPipeline, Unavailable
from holdfast.ports import Carried, Held, RunIdentity
from tests.controlled import (
    GUST,
    PIPELINE,
    SCHEMA,
    WIDE_GUST,
    WIDE_ID,
    Item,
    NaiveTable,
    carried,
    epochs,
    publication,
    stream,
    table,
)

CONTROL = ControlColumns("control", "extra")
DROP_MO = hf.control.drop_partition(day="mo")


def each(segment: segments.Segment) -> str:
    return "each"


def opened(path: Path, generation: int = 1, **arguments: Any) -> SegmentsSink:
    values: dict[str, Any] = {"partition_by": ("day",), "seal": (), "control": CONTROL, **arguments}
    sink = SegmentsSinkSpec(os.fspath(path), **values).connected("out", PIPELINE, SCHEMA, is_tended=False)
    sink.open(RunIdentity(PIPELINE, generation))
    return sink


def publish(sink: SegmentsSink, epoch: int, items: Sequence[Item], generation: int = 1) -> None:
    sink.publish([publication(epoch, carried(items), generation=generation)], Held())


def sealed(sink: SegmentsSink) -> list[SealedSegment]:
    return list(sink.manifest.sealed(sink.holdings))


def ids(path: Path) -> list[int]:
    return sorted(segments.open(path).to_arrow()["id"].to_pylist())


# --- schema changes -----------------------------------------------------------------------------------------------


def test_what_grows_when_the_columns_change_seals_into_a_file_of_the_old_ones(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    assert sink.staging == "Arrow files (control rows have an order, so the driver writes)"
    publish(sink, 1, [(1, "mo"), (2, "tu")])
    sink.sealing.tend()
    assert sealed(sink) == []
    publish(sink, 2, [(3, "mo"), GUST, (4, "mo", {"gust": "1.5"}), (5, "we")])
    sink.sealing.tend()
    found = sealed(sink)
    assert {(segment.partition, segment.version, segment.reason) for segment in found} == {
        ("day=mo", 0, "schema change"),
        ("day=mo", 1, "schema change"),
        ("day=tu", 0, "schema change"),
    }
    columns = {(segment.partition, segment.version): pq.read_schema(tmp_path / segment.path).names for segment in found}
    assert columns == {("day=mo", 0): ["id"], ("day=mo", 1): ["id", "gust"], ("day=tu", 0): ["id"]}
    assert list(sink.holdings.growing) == ["day=we"], "of the new columns alone"
    assert sum(segment.row_count for segment in found) == 4
    sink.close()


def test_readers_see_null_where_an_old_file_lacks_a_column_and_the_wider_type(tmp_path: Path) -> None:
    """Also those that know nothing of the manifest: pyarrow, DuckDB, Polars."""
    sink = opened(tmp_path, seal=(each,))
    publish(sink, 1, [(1, "mo"), GUST, (2, "mo", {"gust": "1.5"}), WIDE_GUST, WIDE_ID, (3, "tu", {"id": "5000000000"})])
    sink.sealing.tend()
    sink.close()
    expected = [(1, "mo", None), (2, "mo", 1.5), (5_000_000_000, "tu", None)]
    ours = segments.open(tmp_path)
    assert [tuple(row.values()) for row in ours.to_arrow().sort_by("id").to_pylist()] == expected
    assert ours.schema.field("gust").type == pa.float64()
    source: Any = hf.read.segments(tmp_path).node.spec
    assert source.schema == ours.schema
    arrow = dataset.dataset(tmp_path, format="parquet", schema=ours.schema, partitioning="hive").to_table()
    assert [(row["id"], row["day"], row["gust"]) for row in arrow.sort_by("id").to_pylist()] == expected
    files = f"{tmp_path}/*/*.parquet"
    query = f"SELECT id, day, gust FROM read_parquet('{files}', hive_partitioning=true, union_by_name=true) ORDER BY id"
    assert duckdb.sql(query).fetchall() == expected
    options = polars.ScanCastOptions(integer_cast="upcast", float_cast="upcast")
    frame = polars.scan_parquet(
        files, hive_partitioning=True, missing_columns="insert", cast_options=options,
        schema={"id": polars.Int64, "gust": polars.Float64}, hive_schema={"day": polars.String},
    )  # fmt: skip
    assert frame.select("id", "day", "gust").sort("id").collect().rows() == expected


def test_small_files_are_joined_within_a_version_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_files, "RUN", 2)
    sink = opened(tmp_path, seal=(each,))
    for epoch, items in enumerate([[(1, "mo")], [(2, "mo")], [GUST, (3, "mo")], [(4, "mo")]], start=1):
        publish(sink, epoch, items)  # type: ignore[arg-type]
        sink.sealing.tend()
    assert [(segment.version, segment.row_count, segment.reason) for segment in sealed(sink)] == [
        (0, 2, "compaction"), (1, 2, "compaction"),
    ]  # fmt: skip
    assert ids(tmp_path) == [1, 2, 3, 4]
    sink.close()


# --- dropped partitions -------------------------------------------------------------------------------------------


def test_a_dropped_partition_is_gone_in_files_and_in_the_journal_and_what_follows_stays(tmp_path: Path) -> None:
    sink = opened(tmp_path, seal=(each,))
    publish(sink, 1, [(1, "mo"), (2, "tu")])
    sink.sealing.tend()
    publish(sink, 2, [(3, "mo"), (4, "tu")])
    publish(sink, 3, [(5, "mo"), DROP_MO, (6, "mo"), (7, "tu")])
    assert ids(tmp_path) == [2, 4, 6, 7]
    assert not list((tmp_path / "day=mo").iterdir())
    sink.sealing.tend()
    assert ids(tmp_path) == sorted(dataset.dataset(tmp_path, format="parquet").to_table()["id"].to_pylist())
    publish(sink, 4, [DROP_MO, hf.control.drop_partition(day="tu")])
    assert ids(tmp_path) == []
    sink.sealing.tend()
    publish(sink, 5, [(8, "we")])
    sink.sealing.tend()
    assert os.listdir(sink.places.journal) == [], "files with dropped rows are freed with the next seal"
    assert sink.holdings.sealed_bytes == sum(segment.size_bytes for segment in sealed(sink))
    sink.close()


@pytest.mark.slow
def test_what_is_sealed_or_joined_while_its_partition_is_dropped_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_files, "RUN", 2)
    during: list[int] = []

    def slow(path: str, *arguments: Any, **options: Any) -> int:
        size = write_file(path, *arguments, **options)
        while during:
            publish(sink, during.pop(), [DROP_MO])
        return size

    monkeypatch.setattr(sealing, "write_file", slow)
    sink = opened(tmp_path, seal=(each,))
    publish(sink, 1, [(1, "mo"), (2, "tu")])
    during.append(2)
    with pytest.raises(Unavailable, match="opened anew"):
        sink.sealing.tend()
    assert os.listdir(sink.places.sealing) == []
    publish(sink, 3, [(3, "mo")])
    sink.sealing.tend()
    assert ids(tmp_path) == [2, 3]
    publish(sink, 4, [(4, "mo")])
    during.append(5)
    with pytest.raises(Unavailable, match="opened anew"):
        sink.sealing.tend()
    publish(sink, 6, [(5, "mo")])
    sink.sealing.tend()
    publish(sink, 7, [(6, "mo")])

    def join_slowly(path: str, *arguments: Any, **options: Any) -> int:
        size = write_file(path, *arguments, **options)
        if len(joined) == 1:
            publish(sink, 8, [DROP_MO, (7, "mo")])
        joined.append(path)
        return size

    joined: list[str] = []
    monkeypatch.setattr(sealing, "write_file", join_slowly)
    sink.sealing.tend()
    assert len(joined) == 2
    assert ids(tmp_path) == [2, 7]
    sink.sealing.tend()
    assert ids(tmp_path) == [2, 7]
    assert os.listdir(sink.places.sealing) == []
    sink.close()


def test_values_name_some_of_several_partition_columns_and_null_is_the_directory_of_null(tmp_path: Path) -> None:
    schema = SCHEMA.append(pa.field("n", pa.int64()))
    spec = SegmentsSinkSpec(os.fspath(tmp_path), partition_by=("day", "id"), seal=(), control=CONTROL)
    sink = spec.connected("out", PIPELINE, schema, is_tended=False)
    sink.open(RunIdentity(PIPELINE, 1))

    def rows(*items: Item) -> Carried:
        return Carried(table(items).append_column("n", pa.array(range(len(items)), pa.int64())))

    given = rows((1, "mo"), (2, "mo"), (1, "a/b"), (3, None), (4, ""))
    drops = rows(hf.control.drop_partition(id=1), hf.control.drop_partition(day=None))
    sink.publish([publication(1, given), publication(2, drops)], Held())
    assert ids(tmp_path) == [2]
    for wrong in (hf.control.drop_partition(n=1), hf.control.widen("id", "bigint")):
        with pytest.raises(BadRow, match="cannot be carried out"):
            sink.admit(publication(3, rows(wrong)))
    sink.close()


def test_a_sink_without_partitions_drops_none(tmp_path: Path) -> None:
    sink = opened(tmp_path, partition_by=())
    with pytest.raises(BadRow, match="not partitioned"):
        sink.admit(publication(1, carried([DROP_MO])))
    sink.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_after_a_loss_of_the_journal_the_same_rows_come_again_and_commands_are_not_carried_out_twice(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "ENTRIES_MAX", 4)
    chance = random.Random(seed)
    cut = [[*first, *second] for first, second in epochs(seed, stream(seed, 100))]
    sink, generation, lost, done = opened(tmp_path, seal=(at_random(chance),)), 1, 0, 0
    while done < len(cut):
        done += 1
        sink.admit(publication(done, carried(cut[done - 1])))
        publish(sink, done, cut[done - 1], generation)
        sink.sealing.tend()
        if chance.random() < 0.3 and lost < 4:
            sink._is_at_work = False
            sink.close()
            shutil.rmtree(tmp_path / "_holdfast" / PIPELINE / "out" / "journal")
            lost, generation = lost + 1, generation + 1
            sink = opened(tmp_path, generation, seal=(at_random(chance),))
            done = sink.holdings.last.epoch
    model = NaiveTable()
    for items in cut:
        model.take(items)
    assert lost
    assert segments.open(tmp_path).to_arrow().sort_by("id").to_pylist() == model.sorted()
    sink.close()


def at_random(chance: random.Random) -> Policy:
    def policy(segment: segments.Segment) -> str | None:
        return "at random" if chance.random() < 0.4 else None

    return policy


# --- the graph ----------------------------------------------------------------------------------------------------


@pytest.fixture
def rows() -> hf.Stream:
    return hf.read.rows(
        [], schema="id INT, day STRING, time TIMESTAMP, control STRING, extra MAP<STRING, STRING>", timestamp="time"
    )


@pytest.mark.slow
def test_a_sink_whose_rows_lose_their_order_takes_no_commands(tmp_path: Path, rows: hf.Stream) -> None:
    sink = hf.write.segments(tmp_path, partition_by=["day"], control="control", extra="extra", name="out")
    counted = rows | hf.distinct(by="id", horizon="1 h", name="distinct")
    with pytest.raises(InvalidPipeline, match="behind distinct 'distinct'"):
        counted | sink
    with pytest.raises(InvalidPipeline, match="commits at pts"):
        hf.Pipeline("p", rows | sink, commit_at="pts")
    with pytest.raises(InvalidPipeline, match="another role"):
        rows | hf.write.segments(tmp_path, partition_by=["day"], control="day", name="out")
    pipeline = hf.Pipeline("p", rows | hf.filter("control is not null or id > 1") | sink)
    assert "control" in pipeline.explain()
