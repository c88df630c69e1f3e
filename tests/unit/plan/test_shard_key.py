"""A graph whose result would depend on the number of shards is refused when it is built (design/0048, section 7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.flow import Graph, node
from holdfast.graph.nodes import SinkNode, Stream
from holdfast.operators.lowering import LOWERINGS
from holdfast.plan.shard_key import check_declared, columns_of_state, keys_of, read_in_parts
from holdfast.types.schema import to_arrow
from tests.calculators import Odd
from tests.graphs import source as paper_source

COLUMNS = "device STRING, site STRING, t BIGINT, v BIGINT"

WIDE = to_arrow(COLUMNS + ", w BIGINT")


def read(name: str = "rows", columns: str = COLUMNS) -> Stream:
    return hf.read.files("data", schema=columns, timestamp="t", name=name)


def out(stream: Stream, name: str = "out") -> SinkNode:
    return stream | hf.write.memory(name)


def built(*sinks: SinkNode, shard_by: str = "device") -> hf.Pipeline:
    return hf.Pipeline("p", *sinks, shard_by=shard_by)


def refused(build: Callable[[], Any], *texts: str) -> None:
    with pytest.raises(hf.InvalidPipeline) as caught:
        build()
    for text in texts:
        assert text in str(caught.value), caught.value
    assert caught.value.do


def two(key: str) -> Callable[[], Stream]:
    return lambda: hf.join(
        read("a"), read("b") | hf.select("device", "site", "t", "v as w"), on=key, within=5, name="j"
    )


def flow(by: str) -> Stream:
    graph = Graph("line")
    graph.output("out", graph.input("rows") | node(Odd))
    streams, outputs = {"rows": read()}, {"out": "out BIGINT"}
    return hf.flow(streams, graph, by=by, outputs=outputs, inputs={"rows": "v"}, name="flow")


def function(key: Any, rows: Any, state: Any) -> Any:
    return rows, state


def step(tables: Any, rows: Any, at: Any) -> Any:
    return rows, tables


STATEFUL: dict[str, Callable[[str], Stream]] = {
    "accumulate": lambda by: read() | hf.accumulate(by=by, total=hf.sum("v")),
    "aggregate": lambda by: read() | hf.aggregate(by=by, window=hf.tumbling(10), total=hf.sum("v")),
    "apply": lambda by: read() | hf.apply(function, by=by, schema=f"{by} STRING"),
    "distinct": lambda by: read() | hf.distinct(by=by, horizon=10),
    "flow": flow,
    "join": lambda by: two(by)(),
    "join_changes": lambda by: hf.join(
        read("a"), read("b") | hf.select("device", "site", "t", "v as w"), on=by, delete="gone", name="j"
    ),
    "limit_in_flight": lambda by: read() | hf.limit_in_flight(3, by=by, timeout=10),
    "lookup_as_of": lambda by: hf.lookup(
        read("a"), hf.table(read("b") | hf.select("device", "site", "t", "v as w"), key=by), on=by, columns=["w"]
    ),
    "merge": lambda by: hf.merge(read("a"), {"b": read("b")}, by=by),
    "over": lambda by: read() | hf.over(rows=3, by=by, total=hf.sum("v")),
    "stateful": lambda by: read() | hf.stateful(step, by=by, schema=f"{by} STRING", state={"s": f"{by} STRING"}),
    "sync": lambda by: hf.sync({"a": read("a"), "b": read("b")}, by=by),
}


@pytest.mark.parametrize("kind", STATEFUL)
def test_an_operator_with_state_by_the_column_is_accepted(kind: str) -> None:
    assert built(out(STATEFUL[kind]("device"))).shard_by == "device"


@pytest.mark.parametrize("kind", STATEFUL)
def test_an_operator_with_state_by_another_column_is_refused(kind: str) -> None:
    refused(
        lambda: built(out(STATEFUL[kind]("site"))),
        f"shard_by='device': {kind} ",
        "test_shard_key.py",
        "has key (site)",
        "may have several values of 'device'",
        "shards that are independent",
    )


@pytest.mark.parametrize("kind", STATEFUL)
def test_a_key_that_has_the_column_and_more_is_accepted(kind: str) -> None:
    if kind in ("apply", "stateful"):
        pytest.skip("their schema here has one column")
    built(out(STATEFUL[kind](["device", "site"])))  # type: ignore[arg-type]


def test_every_operator_with_state_is_tried_here() -> None:
    """But for what a pipeline puts before its sinks: the gate of commit_at="pts", and changes in order."""
    kinds = {kind for kind, row in LOWERINGS.items() if row.keeps_state}
    assert kinds == {*STATEFUL, "gate", "change_order"}


def test_keys_of_an_operator_are_those_that_its_state_is_kept_by() -> None:
    for kind, make in STATEFUL.items():
        made = make("device").node
        pairs = zip(made.stateful_spec.input_names, made.inputs, strict=True)
        schemas = {name: pa.schema([WIDE.field(column) for column in before.columns or ()]) for name, before in pairs}
        assert made.stateful_spec.step(schemas).key.names == ["device"] == list(keys_of(made)), kind


def test_one_synchronisation_for_all_rows_is_refused() -> None:
    refused(lambda: built(out(hf.sync({"a": read("a"), "b": read("b")}))), "sync ", "has no key")


@pytest.mark.parametrize(
    "keep",
    [
        hf.filter("v > 3"),
        hf.select("*", w="v + 1"),
        hf.select("device", "t", "v"),
        hf.sql("select device, t, v from input where v > 3"),
        hf.clip(start=3, end=9),
        hf.row_id("device", "t"),
        hf.map_batches(lambda batch: batch, "device STRING, t BIGINT, v BIGINT", timestamp_offset=0),
    ],
    ids=["filter", "star", "select", "sql", "clip", "row_id", "map_batches"],
)
def test_what_passes_the_column_on_may_stand_between(keep: Any) -> None:
    built(out(read() | keep | hf.accumulate(by="device", total=hf.sum("v"))))


def test_the_column_may_be_renamed_and_copied() -> None:
    built(out(read() | hf.select("device as d", "t", "v") | hf.accumulate(by="d", total=hf.sum("v"))))
    built(out(read() | hf.select("*", d="device") | hf.accumulate(by="d", total=hf.sum("v"))))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (hf.select("site as device", "t", "v"), "the column is left out or computed"),
        (hf.select("* except (device)", "upper(device) as device"), "the column is left out or computed"),
        (hf.select("* except (device)", "site as device"), "the column is left out or computed"),
        (hf.sql("select upper(device) as device, t, v from input"), "the column is left out or computed"),
        (hf.map_batches(lambda batch: batch, "site STRING, t BIGINT, v BIGINT"), "the column is left out"),
        (hf.map(lambda frame: frame), "a function of a frame may do anything to the column"),
    ],
    ids=["renamed over", "computed", "of another", "sql", "map_batches", "map"],
)
def test_what_computes_or_drops_the_column_is_refused_and_named(change: Any, why: str) -> None:
    changed = read() | change
    key = "device" if changed.columns is None or "device" in changed.columns else "site"
    stream = changed | hf.distinct(by=key, horizon=10, timestamp="t")
    refused(lambda: built(out(stream)), why, f"at {changed.node.kind} {changed.node.name!r}")


def test_an_operator_behind_one_with_state_goes_by_what_that_one_gives() -> None:
    windows = read() | hf.aggregate(by=["device", "site"], window=hf.tumbling(10), total=hf.sum("v"), name="windows")
    built(out(windows | hf.accumulate(by="device", all=hf.sum("total"))))
    refused(lambda: built(out(windows | hf.accumulate(by="site", all=hf.sum("total")))), "has key (site)")


def test_streams_that_are_united_must_have_it_under_one_name() -> None:
    left, right = read("a"), read("b")
    built(out(hf.union(left, right) | hf.accumulate(by="device", total=hf.sum("v"))))
    swapped = right | hf.select("site as device", "device as site", "t", "v")
    united = hf.union(left, swapped, name="both")
    refused(
        lambda: built(out(united | hf.accumulate(by="device", total=hf.sum("v")))),
        "the inputs have the column under different names, at union 'both'",
    )


def test_rows_that_could_not_be_read_have_no_key() -> None:
    rows = hf.read.files("data", schema=COLUMNS, timestamp="t", name="rows", on_bad_row="reject")
    refused(
        lambda: built(out(rows), out(rows.rejects | hf.accumulate(by="reason", n=hf.count()), "bad")),
        "rows that could not be read have no columns",
    )
    built(out(rows), out(rows.rejects, "bad"))


def test_a_side_output_has_the_key_of_its_operator() -> None:
    rows = read() | hf.distinct(by="device", horizon=10, name="once")
    built(out(rows), out(rows.late | hf.accumulate(by="device", n=hf.count()), "late"))
    refused(lambda: built(out(rows), out(rows.late | hf.accumulate(by="input", n=hf.count()), "late")), "(input)")


def test_a_sink_that_replaces_rows_must_have_it_in_its_key(tmp_path: Any) -> None:
    def table(key: list[str], mode: Any = "upsert") -> SinkNode:
        return read() | hf.write.sqlite(tmp_path / "t.db", table="rows", mode=mode, key=key, name="table")

    built(table(["device", "t"]))
    refused(lambda: built(table(["t"])), "sqlite 'table'", "has key (t)")
    built(read() | hf.write.sqlite(tmp_path / "t.db", table="rows", name="table"))


def test_a_source_without_the_column_is_refused() -> None:
    refused(lambda: built(out(read("rows", "site STRING, t BIGINT"))), "no such column", "'site', 't'")
    refused(lambda: built(out(read("rows")), shard_by="Device"), "no such column")


def test_a_source_whose_columns_are_not_known_is_refused() -> None:
    rows = hf.read.spark("rate", name="rows")
    refused(lambda: built(out(rows)), "not known before it is read")


def test_a_column_that_cannot_be_hashed_is_refused() -> None:
    refused(lambda: built(out(read("rows", "device STRUCT<a INT>, t BIGINT"))), "device")


@pytest.mark.parametrize("given", ["", 3, ["device"]])
def test_what_is_no_name_is_refused(given: Any) -> None:
    refused(lambda: built(out(read()), shard_by=given), "is not a name of a column")


def test_a_source_that_one_shard_reads_alone_may_not_meet_others() -> None:
    alone = paper_source("alone", schema=COLUMNS, timestamp="t")
    built(out(alone | hf.accumulate(by="device", total=hf.sum("v"))), out(read(), "other"))
    refused(
        lambda: built(out(hf.union(alone, read()) | hf.accumulate(by="device", total=hf.sum("v"), name="sums"))),
        "accumulate 'sums'",
        "rows of paper 'alone'",
        "no segments",
    )


def test_a_table_that_is_looked_up_in_is_whole_in_each_shard() -> None:
    """So its rows need not have the column, and may come from a source that nobody can divide."""
    owners = paper_source("owners", schema="name STRING, t BIGINT, w BIGINT", timestamp="t")
    known = hf.table(owners | hf.distinct(by="w", horizon=5), key="name")
    assert built(out(hf.lookup(read(), known, on={"device": "name"}))).shard_by == "device"
    refused(lambda: built(out(hf.lookup(read(), known, on={"site": "name"}))), "input 'main'", "has key (site)")
    sink = out(hf.lookup(read(), known, on={"device": "name"}))
    assert {node.name for node in read_in_parts([sink]) if node.is_source} == {"rows"}


def test_a_graph_with_a_gate_is_checked_as_it_was_built() -> None:
    sums = read() | hf.aggregate(by="device", window=hf.tumbling(10), total=hf.sum("v"), name="sums")
    assert hf.Pipeline("p", out(sums), commit_at="pts", shard_by="device").shard_by == "device"


def test_the_explanation_says_it() -> None:
    assert "rows of one 'device' are in one segment" in built(out(read())).explain()
    assert "in one segment" not in hf.Pipeline("p", out(read())).explain()


def test_the_column_is_no_part_of_the_graph() -> None:
    def made(shard_by: str | None) -> str:
        return hf.Pipeline("p", out(read()), shard_by=shard_by).fingerprint()

    assert made("device") == made(None)


def test_a_graph_that_puts_rows_together_must_say_what_shards_may_share() -> None:
    def sums(**options: Any) -> hf.Pipeline:
        return hf.Pipeline("p", out(read() | hf.accumulate(by="device", total=hf.sum("v"), name="sums")), **options)

    refused(lambda: check_declared(sums(), independent=False), "accumulate 'sums'", "shard_by=")
    check_declared(sums(shard_by="device"), independent=False)
    check_declared(sums(), independent=True)
    check_declared(hf.Pipeline("p", out(read())), independent=False)
    refused(lambda: check_declared(sums(shard_by="device"), independent=True), "one in each shard")


def test_inputs_that_have_it_in_other_columns_of_their_key_are_refused() -> None:
    """The rows of one key would be in two shards: here by `device`, there by `site`."""
    left = read("a")
    right = read("b") | hf.select("device as site", "site as device", "t", "v as w")
    refused(lambda: built(out(hf.join(left, right, on=["device", "site"], within=5, name="j"))), "another name")


def test_the_column_of_an_operators_state_is_the_one_of_its_key_that_all_inputs_have() -> None:
    copied = read() | hf.select("device as d", "site", "t", "v")
    counts = copied | hf.accumulate(by=["site", "d"], n=hf.count(), name="counts")
    assert columns_of_state(built(out(counts))) == {"counts": "d"}
    gated = hf.Pipeline(
        "p", out(read() | hf.distinct(by="device", horizon=5, name="once")), shard_by="device", commit_at="pts"
    )
    assert columns_of_state(gated) == {"once": "device"}
