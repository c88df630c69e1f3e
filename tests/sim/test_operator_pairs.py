"""Any operator behind any operator: what ``explain`` accepts runs, and what it does not accept has a cure.

One graph for each pair, judged by plain Python: before all state, and between two operators with state.  In a
simulation (:mod:`holdfast.testing.simulation.levels`), where functions of Arrow rows stand in for what Spark evaluates.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import InvalidPipeline
from holdfast.graph.nodes import Stream
from holdfast.operators.lowering import LOWERINGS
from holdfast.testing import StandIn, drive, malformed
from holdfast.testing.given import close
from tests.everyday import SEEDS
from tests.sim.flows import SIDES, Graph
from tests.sim.operator_makers import MAKERS, PLAIN, calculators, new_answers
from tests.sim.stateful_graphs import BEFORE, PAIRS, add_source, pair_graph, random_graph
from tests.sim.test_stateful_graphs import lived

pytestmark = pytest.mark.slow

OF_COMMIT_AT = {"clock", "gate", "released"}
"""Kinds that users do not write: ``commit_at="pts"`` puts them before the sinks."""

OF_SINKS = {"change_order"}
"""Kinds that a pipeline puts before its sinks where they are needed: tests/crash/test_join_changes_kill.py."""

OF_TABLES = {"lookup", "lookup_as_of"}
"""Not made at random yet; see tests/unit/plan/test_lookup_versions.py and tests/crash/test_lookup_kill.py."""

VARIANTS = {"function": "filter", "explode": "select", "alarm": "apply", "over_changes": "aggregate"}
"""What is made more than once -> of which kind it is."""


def test_every_kind_of_operator_is_in_the_table_of_pairs() -> None:
    elsewhere = OF_COMMIT_AT | OF_SINKS | OF_TABLES
    assert {VARIANTS.get(name, name) for name in BEFORE} - {"source"} == set(LOWERINGS) - elsewhere


def run(kind: str, before: str, *, is_deep: bool, is_dull: bool) -> None:
    outcome = lived(pair_graph(kind, before, is_deep=is_deep), seed=1, is_dull=is_dull)
    assert not outcome.problems, f"{kind} behind {before}{' behind state' * is_deep}: {outcome}"


@pytest.mark.parametrize("before", [name for name in BEFORE if name != "rejects"])
def test_every_operator_stands_behind_every_other(before: str) -> None:
    """One pair in four between two operators with state, one in four before all state; at night all, with deaths."""
    for place, (kind, other, is_deep) in enumerate(PAIRS):
        if other == before and (before == "source" or place // 2 % 4 == 2 * (not is_deep)):
            run(kind, before, is_deep=is_deep, is_dull=True)


@pytest.mark.nightly
@pytest.mark.parametrize("before", [name for name in BEFORE if name != "rejects"])
def test_every_operator_stands_behind_every_other_and_dies_there(before: str) -> None:
    for kind, other, is_deep in PAIRS:
        if other == before:
            run(kind, before, is_deep=is_deep, is_dull=False)


@pytest.mark.nightly
def test_random_graphs_have_every_operator_behind_every_other() -> None:
    found = {pair for seed in range(SEEDS) for pair in random_graph(seed).pairs()}
    assert {(kind, before) for kind, before, _ in PAIRS} <= found


# --- what cannot stand there -----------------------------------------------------------------------------------------

HAS: Mapping[str, set[str]] = {
    "aggregate": {"late"},
    "sync": {"late", "unmatched"},
    "merge": {"late", "unmatched"},
    "join": {"late", "unmatched"},
    "distinct": {"late"},
    "accumulate": {"late"},
    "over": {"late"},
    "limit_in_flight": {"late", "shed"},
    "flow": {"late"},
    "answered": {"rejects"},
}
"""Operator -> its side outputs.  That of a source, ``rejects``, it has where it is told to reject rows."""


@pytest.mark.parametrize("before", ["source", *MAKERS])
def test_a_side_output_that_an_operator_does_not_have_is_refused_with_a_cure(before: str) -> None:
    stream = _made_by(before)
    for output in SIDES:
        if output in HAS.get(before, set()):
            getattr(stream, output)
            continue
        with pytest.raises(InvalidPipeline, match=r"has no .*asked for at .*test_operator_pairs.py:\d+") as caught:
            getattr(stream, output)
        assert output.rstrip("s") in caught.value.do


def _made_by(kind: str) -> Stream:
    """Return a source, or what an operator makes of one that it fits."""
    for seed in range(100):
        graph = Graph(random.Random(seed))
        add_source(graph, "s0", row_count=4)
        add_source(graph, "s1", row_count=4)
        sources = len(graph.flows)
        if kind != "source" and MAKERS[kind].fits(graph.flows[0]):
            MAKERS[kind].make(graph, graph.flows[0])
        if kind == "source" or len(graph.flows) > sources:
            return graph.flows[-1].stream
    raise AssertionError(f"no graph has {kind}")


def _read(batch: pa.RecordBatch) -> pa.RecordBatch:
    ones = pa.array([1] * batch.num_rows, pa.int64())
    return pa.RecordBatch.from_arrays([batch.column("raw"), ones, ones], names=["k", "t", "v"])


def _count(key: Any, rows: Any, state: Any) -> list[dict[str, Any]]:
    return [{"raw": row["raw"], "n": 1} for row in rows]


def _step(state: Any, rows: Any, at: Any) -> Any:
    return {"seen": rows.select(["raw"])}, rows.select(["raw"])


async def _ask(row: Any) -> dict[str, Any]:
    return {"said": row["raw"]}


async def _refuse(row: Any) -> None:
    raise ValueError(row["raw"])


def _called(fn: Any, **given: Any) -> Any:
    return hf.call(fn, "said STRING", key="raw", answers=new_answers(), retry=0, name="op", **given)


BEHIND_REJECTS: Mapping[str, Callable[[Stream, Stream], Stream]] = {
    "filter": lambda bad, rows: bad | hf.filter("raw <> 'no'", name="op"),
    "expect": lambda bad, rows: bad | hf.expect("raw <> 'no'", name="op"),
    "unmet": lambda bad, rows: (bad | hf.expect("raw = 'no'", on_fail="reject", name="op")).rejects,
    "function": lambda bad, rows: bad | hf.filter(lambda df: df.raw != "no", name="op"),
    "select": lambda bad, rows: bad | hf.select("raw", name="op"),
    "explode": lambda bad, rows: bad | hf.select("raw", one="explode(array(1))", name="op"),
    "split": lambda bad, rows: (bad | hf.split(yes="raw <> 'no'", name="op")).yes,
    "union": lambda bad, rows: hf.union(bad, bad | hf.filter("raw = 'no'", name="none"), name="op"),
    "map": lambda bad, rows: bad | hf.map(lambda df: df, name="op"),
    "sql": lambda bad, rows: bad | hf.sql("select * from input where raw <> 'no'", name="op"),
    "map_batches": lambda bad, rows: bad | hf.map_batches(_read, PLAIN, timestamp="t", name="op"),
    "row_id": lambda bad, rows: bad | hf.row_id("raw", "position", name="op"),
    "call": lambda bad, rows: bad | _called(_ask),
    "answered": lambda bad, rows: bad | _called(_ask, on_fail="reject"),
    "unanswered": lambda bad, rows: (bad | _called(_refuse, on_fail="reject")).rejects,
    "aggregate": lambda bad, rows: bad | hf.aggregate(by="raw", window=hf.total(), emit="changes", n=hf.count(),
                                                      name="op"),
    "over_changes": lambda bad, rows: bad | hf.reduce(by="raw", n=hf.count(), delete="gone")
                                          | hf.aggregate(by="raw", window=hf.total(), n=hf.count(), name="op"),
    "join_changes": lambda bad, rows: hf.join(bad, bad | hf.select("raw"), on="raw", delete="gone")
                                      | hf.aggregate(by="raw", window=hf.total(), n=hf.count(), name="op"),
    "accumulate": lambda bad, rows: bad | hf.accumulate(by="raw", n=hf.count(), name="op"),
    "over": lambda bad, rows: bad | hf.over(rows=2, by="raw", n=hf.count(), name="op"),
    "stateful": lambda bad, rows: bad | hf.stateful(_step, "raw", schema="raw STRING", state={"seen": "raw STRING"},
                                                    name="op"),
    "apply": lambda bad, rows: bad | hf.apply(_count, by="raw", schema="raw STRING, n BIGINT", state="n BIGINT",
                                              name="op"),
    "clip": lambda bad, rows: bad | hf.clip(3, name="op"),
    "sync": lambda bad, rows: hf.sync({"a": bad, "b": rows}, by="k", name="op"),
    "merge": lambda bad, rows: hf.merge(rows, {"m": bad}, by="k", name="op"),
    "join": lambda bad, rows: hf.join(rows, bad, on="k", within=3, name="op"),
    "distinct": lambda bad, rows: bad | hf.distinct(by="raw", horizon=3, name="op"),
    "alarm": lambda bad, rows: bad | hf.apply(_count, by="raw", schema="raw STRING", timers="event", name="op"),
    "limit_in_flight": lambda bad, rows: bad | hf.limit_in_flight(1, "raw", timeout=3, name="op"),
    "flow": lambda bad, rows: hf.flow({"rows": bad}, calculators(), by="raw", outputs={"both": "b INT", "odd": "o INT"},
                                      name="op")["both"],
}  # fmt: skip

NEEDS_TIME = {"clip", "sync", "merge", "join", "distinct", "alarm", "limit_in_flight", "flow", "over"}
"""Operators by event time, which rows that could not be read do not have."""


@pytest.mark.parametrize("kind", MAKERS)
def test_behind_rejects_stands_what_needs_no_event_time_and_anything_behind_a_function_that_reads_it(kind: str) -> None:
    source = hf.read.files("nowhere", schema=PLAIN, timestamp="t", name="given", on_bad_row="reject", bounded=True)
    others = hf.read.rows([], schema=PLAIN, timestamp="t", name="others", bounded=True)
    if kind in NEEDS_TIME:
        with pytest.raises(InvalidPipeline, match="timestamp") as caught:
            BEHIND_REJECTS[kind](source.rejects, others)
        assert caught.value.do
        return
    stream = BEHIND_REJECTS[kind](source.rejects, others)
    counted = source | hf.accumulate(by="k", seen=hf.count(), name="counted")  # so that there is state beside it
    hf.Pipeline("p", stream | hf.write.console(name="out"), counted | hf.write.console(name="other")).explain()
    key = stream.columns[0] if kind == "map_batches" and stream.columns else "raw"
    ended = stream | hf.accumulate(by=key, seen=hf.count(), name="seen")
    stand_ins = {"op": StandIn(lambda batch: batch, lambda schema: schema)}
    found = drive(ended, {"given": [[malformed("one"), malformed("two")], [close()]]},
                  stand_ins=stand_ins if kind in ("function", "explode", "map", "sql") else {})  # fmt: skip
    assert sum(len(rows) for rows in found) == 2


@pytest.mark.parametrize("kind", sorted(NEEDS_TIME - {"alarm", "distinct"}))
def test_behind_a_map_that_names_no_timestamp_an_operator_by_event_time_says_how_to_name_it(kind: str) -> None:
    mapped = hf.read.rows([], schema=PLAIN, timestamp="t", name="given") | hf.map(lambda df: df, name="mapped")
    others = hf.read.rows([], schema=PLAIN, timestamp="t", name="others")
    with pytest.raises(InvalidPipeline, match="timestamp") as caught:
        BEHIND_REJECTS[kind](mapped, others)
    assert "timestamp=" in caught.value.do
