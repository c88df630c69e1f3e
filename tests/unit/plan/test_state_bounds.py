"""Bound rows between rows (design/0010, section 4): packed, and unpacked again as a bucket sees them; no JVM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from operator import or_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import BadRow, InvalidPipeline
from holdfast.operators.aggregate.aggregates import count
from holdfast.operators.aggregate.spec import aggregate
from holdfast.operators.aggregate.window import tumbling
from holdfast.operators.stateful.merge import merge
from holdfast.operators.sync.spec import sync
from holdfast.plan import feeds
from holdfast.plan.chunks import BOUNDS, PLACED, ROWS, Chunk, in_order
from holdfast.plan.cutting import build_stages
from holdfast.plan.feeds import Unchanged
from holdfast.plan.levels.arrivals import FeedBounds, arrivals_of
from holdfast.plan.levels.packing import Packing, packings
from holdfast.plan.stages import SparkPart, Stages
from holdfast.state.step import ALL_KEYS, BOUND, PLACE, UNBOUNDED
from holdfast.testing.drive import drive
from holdfast.testing.given import bound
from tests.everyday import examples

SCHEMA = "k STRING, t BIGINT, is_bound BOOLEAN"
MARKED = hf.read.rows([], schema=SCHEMA, timestamp="t", bounds="is_bound", name="marked")
PLAIN = hf.read.rows([], schema="k STRING, t BIGINT", timestamp="t", name="plain")
BUCKETS = 2


def cut(pipeline: hf.Pipeline) -> Stages:
    def never(part: object) -> list[pa.Schema]:
        raise AssertionError("stage 0 is Arrow's")

    return build_stages(pipeline, lambda schema: schema, "test", buckets=BUCKETS, partitions=2, prefix=never)


def packed(stages: Stages, batches: Sequence[Sequence[dict[str, Any]]], source: str = "marked") -> list[Chunk]:
    """Return the chunks of one span, given batch by batch."""
    program = stages.stages[0].program
    assert program is not None
    names = [name for name in program.schemas if "/" not in name]
    bounds_alone = replace(stages, closing=dict.fromkeys(names, ()), waking=(), row_bounds={})
    packing: Packing = packings(bounds_alone, dict.fromkeys(names))[source]
    spec: Any = MARKED.node.spec
    read = [pa.RecordBatch.from_pylist(list(batch), schema=spec.given.schema) for batch in batches]
    return list(packing.rows(0, iter(read)))


def heard(stages: Stages, chunks: Sequence[Chunk], operator: str, name: str) -> list[tuple[Any, ...]]:
    """Return what an input of an operator hears, over all buckets: rows, and bounds, with their key and ticks."""
    hosted = next(stage.hosted[operator] for stage in stages.stages if operator in stage.hosted)
    found: list[tuple[Any, ...]] = []
    for bucket in range(BUCKETS):
        feeds = FeedBounds(hosted, {}, BUCKETS)
        mine = in_order([c for c in chunks if c.bucket == bucket and c.target in hosted.targets.values()])
        arrivals = arrivals_of(hosted, mine, feeds)[name]
        rows = [(row[PLACE], row["k"], row["t"]) for row in arrivals.rows.to_pylist()]
        bounds = [
            (b[PLACE], "for all" if b[ALL_KEYS] else f"for {b['k']}", b[BOUND]) for b in arrivals.bounds.to_pylist()
        ]
        assert len({place for place, *_ in rows + bounds}) == len(rows) + len(bounds)
        found += [(bucket, what, t) for _, what, t in sorted(rows + bounds)]
    return found


def synced(*, through: Any = None) -> Stages:
    stream = MARKED if through is None else through(MARKED)
    both = sync({"x": stream, "y": PLAIN}, by="k", timestamps="ascending", name="both")
    return cut(hf.Pipeline("p", both | hf.write.console(name="out")))


SYNCED = synced()


def row(k: str | None, t: int, *, is_bound: bool = False) -> dict[str, Any]:
    return {"k": k, "t": t, "is_bound": is_bound or None}


def test_a_bound_reaches_its_key_and_one_without_a_key_every_bucket() -> None:
    stages = synced()
    chunks = packed(stages, [[row("a", 1), row("a", 5, is_bound=True), row(None, 3, is_bound=True), row("b", 8)]])
    said = heard(stages, chunks, "both", "x")
    assert [bucket for bucket, what, _ in said if what == "for all"] == [0, 1]
    assert sorted((what, t) for _, what, t in said if what != "for all") == [("a", 1), ("b", 8), ("for a", 5)]


def test_bounds_that_keep_their_word_travel_together_behind_the_rows() -> None:
    stages = synced()
    many = [line for t in range(100) for line in (row("a", t), row("a", t, is_bound=True))]
    chunks = packed(stages, [many[:51], many[51:]])
    assert [chunk.kind for chunk in chunks if chunk.kind in (ROWS, PLACED)] == [ROWS, PLACED]
    assert heard(stages, chunks, "both", "x")[-1][1:] == ("for a", 99)


lines = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(0, 12), st.booleans()).filter(
        lambda line: line[0] is not None or line[2]
    ),
    max_size=25,
)


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(lines, st.lists(st.integers(0, 25), max_size=3))
def test_a_row_below_a_bound_is_below_it_however_batches_are_cut(
    drawn: list[tuple[str | None, int, bool]], cuts: list[int]
) -> None:
    """The bound at each row's place is what the lines before it said of its key, or less than the row: never more."""
    all_lines = [row(k, t, is_bound=b) for k, t, b in drawn]
    borders = sorted({0, *[min(c, len(all_lines)) for c in cuts], len(all_lines)})
    stages = SYNCED
    chunks = packed(stages, [all_lines[a:b] for a, b in pairwise(borders)])
    late: list[tuple[str | None, int]] = []
    known: dict[str | None, int] = {}
    for k, t, is_bound in drawn:
        if is_bound:
            known[k] = max(t, known.get(k, t))
        elif t < max(known.get(k, UNBOUNDED), known.get(None, UNBOUNDED)):
            late.append((k, t))
    found: list[tuple[str, int]] = []
    after: dict[tuple[int, str], int] = {}
    for bucket, what, t in heard(stages, chunks, "both", "x"):
        if what.startswith("for "):
            after[bucket, what] = max(t, after.get((bucket, what), t))
        elif t < max(after.get((bucket, f"for {what}"), UNBOUNDED), after.get((bucket, "for all"), UNBOUNDED)):
            found.append((what, t))
    assert sorted(found) == sorted(late)
    final = {what.removeprefix("for "): t for (_, what), t in after.items()}
    assert final == {"all" if k is None else k: t for k, t in known.items()}


def passes(through: Any) -> list[tuple[Any, ...]]:
    """Return which bounds come through a stateless operator."""
    stages = synced(through=through)
    if not stages.bounding:
        return []
    chunks = packed(stages, [[row("a", 4, is_bound=True), row(None, 2, is_bound=True)]])
    return sorted({(what, t) for _, what, t in heard(stages, chunks, "both", "x")})


def test_bounds_pass_where_key_and_timestamp_come_through_unchanged() -> None:
    both = [("for a", 4), ("for all", 2)]
    assert passes(lambda s: s | hf.filter("t > 100", name="no_row_passes")) == both
    assert passes(lambda s: s | hf.select("k", "t", twice="t * 2", name="chosen")) == both
    assert passes(lambda s: s | hf.select("* except (k)", "k AS k", name="starred")) == both
    renamed = hf.select("k AS who", "t AS at", name="renamed")
    assert passes(lambda s: s | renamed | hf.select("who AS k", "at", name="back")) == both


def with_offset(offset: Any) -> Any:
    mapped = hf.map_batches(lambda batch: batch, "k STRING, t BIGINT", timestamp_offset=offset, name="mapped")
    return lambda stream: stream | mapped


def test_bounds_for_all_keys_pass_a_function_that_says_how_far_it_goes_back() -> None:
    """What becomes of keys, nobody says: a bound of one key does not pass."""
    assert passes(with_offset(0)) == [("for all", 2)]
    assert passes(with_offset(-5)) == [("for all", -3)]
    assert passes(lambda s: with_offset(7)(s) | hf.filter("t > 0", name="kept")) == [("for all", 9)]
    assert passes(with_offset(None)) == []


def test_bounds_pass_a_query_where_key_and_timestamp_come_through_unchanged() -> None:
    def through(query: str) -> Any:
        both = sync({"x": MARKED | hf.sql(query, name="queried"), "y": PLAIN}, by="k", name="both")
        (feed,) = feeds.feeds_of(both.node, 0)
        return feed.bounds, feed.key(["k"])

    assert through("select t, k, t * 2 as twice from input where t > 3") == ("every", ("k",))
    assert through("select t, upper(k) as k from input") == ("every", None)


def analysed(*through: Any, analysis: Mapping[str, Unchanged], timestamp: str | None = None) -> Stages:
    """Cut a graph whose first stage is Spark's, as if Spark had said this of it."""
    sums = aggregate(by="k", window=tumbling(10), n=count(), timestamp=timestamp, name="sums")
    pipeline = hf.Pipeline("p", reduce(or_, through, MARKED) | sums | hf.write.console(name="out"))
    row = pa.schema([("k", pa.string()), ("t", pa.int64()), ("at", pa.int64())])

    def by_spark(part: SparkPart) -> list[pa.Schema]:
        return [row for _ in part.sinks]

    return build_stages(
        pipeline, lambda schema: schema, "test", buckets=2, partitions=2, prefix=by_spark, analysis=analysis
    )


MAPPED = hf.map(lambda frame: frame, timestamp="at", name="mapped")
RENAMED = {"mapped": Unchanged((("k", "k"), ("at", "t")), ("k", "at", "t"))}


def test_bounds_pass_a_function_of_a_frame_where_its_plan_leaves_the_timestamp_as_it_is() -> None:
    """Under its own name or another one: what counts is that it is the same column to Spark."""
    stages = analysed(MAPPED, analysis=RENAMED)
    assert [(target.key, target.number) for target in stages.bounding["marked"].targets] == [(("k",), 0)]
    assert stages.bounds_end == {}
    unnamed = analysed(hf.map(lambda frame: frame, name="mapped"), analysis=RENAMED, timestamp="at")
    assert unnamed.bounding == stages.bounding, "an operator may say itself which column it goes by"
    key_is_computed = analysed(MAPPED, analysis={"mapped": Unchanged((("at", "t"),), ("k", "at", "t"))})
    assert [target.key for target in key_is_computed.bounding["marked"].targets] == [None]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (Unchanged((("k", "k"),), ("k", "at")), "'at' is computed"),
        (Unchanged((("k", "k"),), ("k",)), "'at' is left out or renamed"),
        (Unchanged((("t", "t"),), ("t", "at")), "'at' is computed"),
        (Unchanged((), ("at",), "Union"), "Spark makes more of it than projections and filters: Union"),
    ],
)
def test_else_bounds_end_there_and_the_plan_says_why(said: Unchanged, why: str) -> None:
    stages = analysed(MAPPED, analysis={"mapped": said})
    assert stages.bounding == {}
    assert stages.bounds_end == {"mapped": why}


def test_what_stands_behind_a_function_of_a_frame_passes_bounds_on_as_ever() -> None:
    """Of select Spark is asked too where the columns before it are not known."""
    behind = (hf.filter("k = 'a'", name="kept"), hf.select("k", "at", name="chosen"))
    said = {"chosen": Unchanged((("k", "k"), ("at", "at")), ("k", "at"))}
    assert analysed(MAPPED, *behind, analysis={**RENAMED, **said}).bounding["marked"].targets[0].key == ("k",)
    assert analysed(MAPPED, *behind, analysis={**RENAMED, "chosen": Unchanged((), ("k", "at"))}).bounds_end == {
        "chosen": "'at' is computed"
    }


def test_a_bound_that_passed_a_function_settles_what_waits_behind_it() -> None:
    def back(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([batch.column("k"), pc.subtract(batch.column("t"), 1)], names=["k", "t"])

    mapped = PLAIN | hf.map_batches(back, "k STRING, t BIGINT", timestamp_offset=-1, name="mapped")
    sums = mapped | aggregate(by="k", window=tumbling(10), n=count(), name="sums")
    told: dict[str, Any] = {"plain": [[{"k": "a", "t": 3}], [bound(10)], [bound(11)]]}
    assert [[row["n"] for row in rows] for rows in drive(sums, told)] == [[], [], [1]]


@pytest.mark.slow
def test_bounds_of_an_operator_pass_a_function_behind_it() -> None:
    first = PLAIN | aggregate(by="k", window=tumbling(5), n=count(), name="first")
    schema = "k STRING, window_start BIGINT, window_end BIGINT, n BIGINT"
    kept = first | hf.map_batches(lambda batch: batch, schema, timestamp_offset=-2, name="kept")
    second = kept | aggregate(by="k", window=tumbling(10), n=count(), name="second")
    told: dict[str, Any] = {"plain": [[{"k": "a", "t": 3}], [bound(10)], [bound(11)], [bound(15)]]}
    assert [[row["n"] for row in rows] for rows in drive(second, told, buckets=2)] == [[], [], [], [1]]


def test_a_function_that_breaks_its_promise_is_stopped_before_anything_is_visible() -> None:
    def back(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([batch.column("k"), pc.subtract(batch.column("t"), 5)], names=["k", "t"])

    mapped = PLAIN | hf.map_batches(back, "k STRING, t BIGINT", timestamp_offset=0, name="mapped")
    with pytest.raises(InvalidPipeline, match="'t' is 5 below its batch") as raised:
        drive(mapped, {"plain": [[{"k": "a", "t": 3}]]})
    assert "timestamp_offset=-5" in str(raised.value.do)


def test_a_computed_key_hears_bounds_for_all_keys_only() -> None:
    assert passes(lambda s: s | hf.select("t", k="concat(k, 'x')", name="computed")) == [("for all", 2)]


def test_an_operator_that_goes_by_another_column_hears_no_bound() -> None:
    def counted(timestamp: str | None) -> Stages:
        stream = MARKED | hf.select("k", "t", later="t + 5", name="chosen")
        sums = aggregate(by="k", window=tumbling(10), n=count(), timestamp=timestamp, name="sums")
        return cut(hf.Pipeline("p", stream | sums | hf.write.console(name="out")))

    assert counted(None).bounding
    assert not counted("later").bounding


def test_a_bound_names_the_keys_of_all_operators_that_its_source_feeds() -> None:
    """For one that has another key it says nothing: of ``j`` alone it promises nothing for a whole ``k``."""
    schema = "k STRING, j STRING, t BIGINT, is_bound BOOLEAN"
    given = hf.read.rows([], schema=schema, timestamp="t", bounds="is_bound", name="marked")
    other = hf.read.rows([], schema="k STRING, j STRING, t BIGINT", timestamp="t", name="plain")
    by_k = sync({"x": given, "y": other}, by="k", name="by_k")
    by_j = sync({"x": given, "y": other}, by="j", name="by_j")
    by_k_j = merge(given, {"y": other}, by=["k", "j"], name="by_k_j")
    stages = cut(hf.Pipeline("p", *[s | hf.write.console(name=f"{s.name}_out") for s in (by_k, by_j, by_k_j)]))
    bounding = stages.bounding["marked"]
    assert bounding.scope == ("k", "j")
    spec: Any = given.node.spec
    table = [{"k": "a", "t": 4}, {"j": "b", "t": 5}, {"k": "a", "j": "b", "t": 6}, {"t": 1}]
    batch = pa.RecordBatch.from_pylist(table, schema=spec.schema)
    said = {}
    for target in bounding.targets:
        of = stages.routing.targets[target.number]
        told = [row for _, part in bounding.for_target([batch], target, of.key, 1) for row in part.to_pylist()]
        said[of.operator] = sorted(row[BOUND] for row in told)
    assert said == {"by_k": [1, 4], "by_j": [1, 5], "by_k_j": [1, 6]}


@pytest.mark.parametrize(
    ("beside", "narrows"),
    [
        (lambda s: s | hf.reduce(by="k", n=hf.max("v"), name="beside"), False),
        (lambda s: s | hf.reduce(by=["k", "v"], n=hf.max("t"), name="beside"), True),  # although it never waits
        (lambda s: s | hf.select("t", kk="concat(k, k)") | hf.reduce(by="kk", n=hf.count(), name="beside"), True),
    ],
    ids=["same_key", "longer_key", "computed_key"],
)
def test_an_operator_beside_narrows_a_bound_by_values_that_need_not_be_there(beside: Any, narrows: bool) -> None:
    """Where a key is computed every column counts, for it may be computed of any."""
    schema = "k STRING, v BIGINT, t BIGINT, is_bound BOOLEAN"
    marked = hf.read.rows([], schema=schema, timestamp="t", bounds="is_bound", name="marked")
    windows = marked | hf.aggregate(by="k", window=hf.tumbling(5), n=hf.count(), name="windows")
    shown = windows | hf.select(start="window_start", name="shown")
    other = beside(marked) | hf.select(start="n - 100", name="other")
    together = hf.union(shown, other, name="together") | hf.filter("start >= 0", name="starts")
    for v, has_effect in [(None, True), (1, not narrows)]:
        bounds = [{"k": "a", "v": v, "t": 9, "is_bound": True}]
        epochs: Any = [[{"k": "a", "v": 1, "t": 1, "is_bound": None}], bounds]
        assert drive(shown, {"marked": epochs}) == [[], [{"start": 0}]], "alone"
        assert drive(together, {"marked": epochs}) == [[], [{"start": 0}] if has_effect else []]


def test_a_bound_row_without_a_timestamp_is_an_error() -> None:
    nothing: Any = {"k": "a", "t": None, "is_bound": True}
    with pytest.raises(BadRow, match="has no 't'"):
        packed(synced(), [[nothing]])


def test_bounds_stand_behind_all_rows_where_rows_are_packed_anew_on_their_way() -> None:
    first = hf.sync({"x": MARKED, "y": PLAIN}, by="k", timestamps="ascending", name="first")
    given = hf.union(first | hf.select("k", "timestamp AS t", name="shaped"), MARKED, name="with_the_source")
    second = hf.sync({"x": given, "y": PLAIN}, by="k", timestamps="ascending", name="second")
    stages = cut(hf.Pipeline("p", second | hf.write.console(name="out")))
    direct = {stages.routing.targets[t.number].operator: t.is_direct for t in stages.bounding["marked"].targets}
    assert direct == {"first": True, "second": False}
    chunks = packed(stages, [[row("a", 5, is_bound=True), row("a", 1)]])
    kinds = {(stages.routing.targets[c.target].operator, c.kind) for c in chunks if c.kind in (BOUNDS, PLACED)}
    assert kinds == {("first", PLACED), ("second", BOUNDS)}


def test_a_driven_graph_hears_marked_rows_as_a_run_does() -> None:
    both = hf.sync({"x": MARKED, "y": PLAIN}, by="k", timestamps="ascending", name="both")
    given = [[row("a", 1), row("a", 9, is_bound=True), row("b", 2)], [row(None, 9, is_bound=True)]]
    plain: Any = [[{"k": "a", "t": 3}, {"k": "b", "t": 3}, bound(9)]]
    sets = drive(both, {"marked": given, "plain": plain})
    assert [[(each["k"], each["timestamp"]) for each in epoch] for epoch in sets] == [
        [("a", 1), ("a", 3)],
        [("b", 2), ("b", 3)],
    ]
