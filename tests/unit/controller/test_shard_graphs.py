"""Graphs of shards: each segment in one, what cannot be divided in shard 0 (design/0048, sections 3 and 4)."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.connectors.reading.parts import divisible
from holdfast.controller.layouts.graph import PARTS, ShardGraphs, dealt
from holdfast.errors import InvalidPipeline
from holdfast.graph.hooks import NONE
from holdfast.positions import SegmentSet
from holdfast.quarantine.mask import LETTERS
from holdfast.shards.assignment import Assignment, assign, keep
from holdfast.shards.layout import ShardLayout
from holdfast.shards.moves import Stand, note_beginnings
from tests.spark.running import arrive


def rates(**more: Any) -> Any:
    return hf.read.rate(rows_per_second=10, name="ticks", **more)


def listed(name: str = "listed") -> Any:
    return hf.read.rows([[{"value": 1, "timestamp": "2026-01-01T00:00:00Z"}]],
                        schema="value BIGINT NOT NULL, timestamp TIMESTAMP NOT NULL", name=name)  # fmt: skip


def graphs(*sinks: Any, at: Path = Path("checkpoint")) -> ShardGraphs:
    return ShardGraphs(hf.Pipeline("trips", *sinks), at)


def out(name: str = "out") -> Any:
    return hf.write.memory(name=name)


def segments_of(found: ShardGraphs, shards: int, source: str) -> list[set[str]]:
    layout = found.first(shards, "")
    parts = [divisible(node.source_spec) for k in range(shards) for node in found.of(layout, k).sources
             if node.name == source]  # fmt: skip
    return [set(part.segments(source, "nowhere")) for part in parts if part is not None]


def test_each_segment_is_read_by_one_shard() -> None:
    parts = segments_of(graphs(rates() | out()), 4, "ticks")
    assert [len(part) for part in parts] == [PARTS // 4] * 4
    assert set.union(*parts) == {f"{at}/{PARTS}" for at in range(PARTS)}


def test_a_shard_has_the_graph_of_the_pipeline_under_a_name_of_its_own() -> None:
    found = graphs(rates() | hf.filter("value > 1", name="some") | out())
    whole, layout = found.pipeline, found.first(3, "")
    graph = found.of(layout, 2)
    assert graph.name == "trips-2"
    assert found.of(layout, 0).name == "trips"
    assert [node.name for node in graph.nodes] == [node.name for node in whole.nodes]
    assert graph.hooks is NONE
    described = [found.of(layout, shard).spec()["nodes"] for shard in range(3)]
    assert described[0] == described[1] == described[2], "another assignment would be another graph"


def test_segments_that_come_later_are_read_by_one_shard(tmp_path: Path) -> None:
    store = hf.read.files(str(tmp_path / "in"), schema="id INT", name="rides")
    found = graphs(store | out())
    layout = found.first(3, "")
    sets = [found.segments_of(layout, shard, "rides") for shard in range(3)]
    assert sum("a segment of tomorrow" in each for each in sets) == 1


def test_segments_of_one_group_are_in_one_shard_also_one_that_comes_later(tmp_path: Path) -> None:
    """Design/0048, section 4: with a shard key units are groups, of however many sources; so is the rest."""
    orders, payments = (
        hf.read.kafka("nowhere:9", pattern=f"{name}.*", schema="device STRING", name=name)
        for name in ("orders", "payments")
    )
    found = ShardGraphs(hf.Pipeline("trips", hf.union(orders, payments) | out(), shard_by="device"), tmp_path)
    layout = ShardLayout(assign(Assignment(3), ["0", "1", "2", "3"]), by="device")
    for shard in range(3):
        specs = [divisible(node.source_spec) for node in found.of(layout, shard).sources]
        for number in range(9):
            rest = layout.assignment.rest
            is_own = shard == (layout.assignment.shards[f"{number}"] if number < 4 else rest)
            for spec in specs:
                assert spec is not None
                reads = pickle.loads(pickle.dumps(spec)).reads
                assert (f"new-topic@{number}abc/{number}" in reads) is is_own, (shard, number)


def test_a_first_layout_is_the_same_from_the_same_segments() -> None:
    first, again = graphs(rates() | out()), graphs(rates() | out())
    assert first.first(5, "") == again.first(5, "")


def test_what_has_a_shard_keeps_it_when_segments_are_dealt_again() -> None:
    found = graphs(rates() | out())
    layout = found.first(2, "")
    assert dealt(layout, found.all_units(layout)) == layout
    assert keep(layout.assignment, ["ticks:0/60"], 1).shards == layout.assignment.shards


def test_letters_of_two_shards_are_no_segment_that_both_have_read() -> None:
    found = graphs(rates() | out())
    layout = found.first(2, "")
    unit_of = found.unit_of(layout)
    first, second = (next(iter(part)) for part in segments_of(found, 2, "ticks"))
    assert (unit_of("ticks", LETTERS), unit_of("ticks", first)) == (None, f"ticks:{first}")
    stands = {shard: Stand(3, {"ticks": {name: 5, LETTERS: 1}}) for shard, name in enumerate((first, second))}
    assert note_beginnings(layout.assignment, stands, unit_of) == layout.assignment


def test_more_shards_than_parts_have_more_parts() -> None:
    found = graphs(rates() | out())
    assert found.first(61, "").parts == {"ticks": 2 * PARTS}


def test_what_cannot_be_divided_is_read_by_shard_0() -> None:
    both = hf.union(rates(), listed(), name="both")
    found = graphs(both | out())
    layout = found.first(2, "")
    sources = [{node.name: node.source_spec for node in found.of(layout, k).sources} for k in range(2)]
    assert sources[0]["listed"].kind == sources[1]["listed"].kind == "rows"
    whole, empty = (each["listed"].open("listed", "nowhere") for each in sources)
    assert whole.newest() == {"rows": 1}
    start = empty.initial()
    assert empty.latest(start, bounded=False) == start == {}
    assert sources[1]["listed"].arguments() == sources[0]["listed"].arguments()


def test_without_a_source_that_divides_there_are_no_shards() -> None:
    with pytest.raises(InvalidPipeline, match="no source that can be read in shards"):
        graphs(listed() | out())


def test_rows_of_shard_0_alone_do_not_meet_those_of_all() -> None:
    rows: list[Any] = [[]]
    other = hf.read.rows(rows, schema="value BIGINT, timestamp TIMESTAMP", timestamp="timestamp", name="other")
    joined = hf.join(rates(), other, on="value", within="1 min", name="pairs")
    with pytest.raises(InvalidPipeline, match="shard 0 reads alone"):
        graphs(joined | out())


def test_an_operator_over_rows_of_shard_0_alone_is_in_shard_0() -> None:
    counted = listed() | hf.accumulate(by="value", n=hf.count(), name="counted")
    found = graphs(rates() | out(), counted | out("counts"))
    assert found.first(2, "independent").shard_count == 2


def customers(tmp_path: Path) -> Any:
    return hf.read.files(str(tmp_path / "c"), schema="value BIGINT, city STRING, timestamp TIMESTAMP",
                         timestamp="timestamp", name="customers")  # fmt: skip


def test_a_table_that_changes_is_read_by_every_shard(tmp_path: Path) -> None:
    table = hf.table(customers(tmp_path), key="value")
    known = hf.lookup(rates(), table, on="value", name="known")
    found = graphs(known | out())
    layout = found.first(2, "independent")
    assert found.tables == {"customers"}
    for shard in range(2):
        node = next(each for each in found.of(layout, shard).sources if each.name == "customers")
        assert node.spec == next(each for each in found.pipeline.sources if each.name == "customers").spec


def test_the_rows_of_a_table_go_nowhere_else(tmp_path: Path) -> None:
    changes = customers(tmp_path)
    known = hf.lookup(rates(), hf.table(changes, key="value"), on="value", name="known")
    with pytest.raises(InvalidPipeline, match="go elsewhere"):
        graphs(known | out(), changes | out("copies"))


def test_a_table_of_a_source_that_one_run_reads_is_refused() -> None:
    feed = hf.read.rows([], schema="value BIGINT, timestamp TIMESTAMP", timestamp="timestamp", name="feed")
    known = hf.lookup(rates(), hf.table(feed, key="value"), on="value", name="known")
    with pytest.raises(InvalidPipeline, match="only one run can read it"):
        graphs(known | out())


def test_a_source_that_spark_reads_is_refused() -> None:
    spark = hf.read.spark("socket", schema="value BIGINT NOT NULL, timestamp TIMESTAMP NOT NULL", name="spark")
    found = graphs(hf.union(rates(), spark, name="both") | out())
    with pytest.raises(InvalidPipeline, match="Spark reads"):
        found.of(found.first(2, ""), 1)


def test_files_are_divided_by_their_names(tmp_path: Path) -> None:
    for name in "abcdefgh":
        arrive(tmp_path / "in", f"{name}.json", [{"id": 1}])
    found = graphs(hf.read.files(str(tmp_path / "in"), schema="id INT", name="rides") | out(), at=tmp_path / "ckpt")
    layout = found.first(2, "")
    assert layout.parts == {"rides": PARTS}
    assert layout.assignment.counts() == [PARTS // 2] * 2
    named = found.segments_of(layout, 1, "rides")
    assert isinstance(named, SegmentSet)
    assert named.is_rest is not found.segments_of(layout, 0, "rides").is_rest
