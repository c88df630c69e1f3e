"""Aggregating before the exchange: partial rows in place of rows, and nothing else is different (design/0064)."""

from __future__ import annotations

import math
import pickle
from collections import defaultdict
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.connectors.memory import MemorySpec
from holdfast.errors import BadRow
from holdfast.graph.nodes import sink
from holdfast.operators.aggregate import partial_rows
from holdfast.plan import chunks
from holdfast.plan.chunks import COMBINED, ROWS, ChunkTarget, Packer, Routing, decode
from holdfast.plan.cutting import build_stages
from holdfast.plan.program_build import as_it_is
from holdfast.state import tables
from holdfast.state.call import call
from holdfast.state.step import ABSORBED, CLOSED, LEFT_OUT, PLACE, ROW_COUNT, Arrivals, StepTime
from holdfast.testing import close, step_contract
from holdfast.testing.drive import Drive
from holdfast.types.schema import to_arrow
from tests.everyday import examples

SCHEMA = "k STRING, day DATE, t BIGINT, v BIGINT, d DOUBLE, m DECIMAL(9, 2), w STRING"
FEW, MANY = "v < 10", "v >= 10"
SUMS: dict[str, Any] = {
    "n": hf.count(),
    "named": hf.count("w"),
    "few": hf.count(where=FEW),
    "total": hf.sum("v"),
    "money": hf.sum("m", where=FEW),
    "mean": hf.mean("v", where=MANY),
    "middle": hf.mean("d"),
    "weight": hf.sum("d", where=FEW),
    "spread": hf.variance("d"),
    "least": hf.min("d"),
    "most": hf.max("d", where=FEW),
    "last_name": hf.max("w"),
    "cheapest": hf.min("m"),
    "median": hf.quantile("d", 0.5),
    "about": hf.approx_count_distinct("w", relative_error=0.26),
}
SETS: dict[str, Any] = {
    "names": hf.distinct_count("w"),
    "names_of_few": hf.distinct_count("w", where=FEW),
    "names_of_many": hf.distinct_count("w", where=MANY),
    "values": hf.distinct_count("v", where=FEW),
    "days": hf.distinct_count("day"),
}
EVERY = SUMS | SETS


def source(schema=SCHEMA):
    return hf.read.rows([], schema=schema, timestamp="t", name="s")


def step_of(stream, schema=SCHEMA):
    """Return the step of an aggregation, over rows that have a column for each condition besides."""
    conditions = sorted({one.condition for _, one in stream.node.spec.aggregates if one.condition is not None})
    fields = [*to_arrow(schema), *(pa.field(name, pa.bool_()) for name in conditions)]
    return stream.node.spec.step({"rows": pa.schema(fields)})


@pytest.fixture
def eager(monkeypatch):
    """Combine chunks of any size."""
    monkeypatch.setattr(partial_rows, "ROWS_MIN", 1)


DOUBLES = (None, 0.0, -0.0, 1.5, -2.25, 0.1, 1e300, -1e300, 5e-324, math.inf, -math.inf, math.nan)
ROW = st.tuples(
    st.sampled_from("ab"),
    st.integers(0, 9),
    st.sampled_from([None, 1, 9, 10, -11, 2**62, -(2**62)]),
    st.sampled_from(DOUBLES),
    st.sampled_from([None, Decimal("0.10"), Decimal("-9999999.99")]),
    st.sampled_from([None, "x", "y", ""]),
)


def table_of(rows, step):
    """Return rows as the step's input has them, with the columns of the two conditions."""
    few, many = (aggregate.condition for aggregate in (SUMS["few"], SUMS["mean"]))
    names = set(step.inputs["rows"].names)
    dicts = [
        {
            "k": k, "day": None if v is None else v % 3, "t": t, "v": v, "d": d, "m": m, "w": w,
            few: None if v is None else v < 10, many: None if v is None else v >= 10,
        }
        for k, t, v, d, m, w in rows
    ]  # fmt: skip
    dicts = [{name: value for name, value in row.items() if name in names} for row in dicts]
    return pa.Table.from_pylist(dicts, schema=step.inputs["rows"])


class Bucket:
    """A bucket of a step, with what is left of an error."""

    def __init__(self, step):
        self.step = step
        self.state = tables.empty_state(step)
        self.epoch = 0
        self.combined = 0
        self.error = None

    def run(self, tasks, *, combines, at_us, bounds_between=(), ends=False):
        """Run an epoch of the rows of some tasks, of which some combine theirs; return all that came of it.

        The rows of a task are a chunk: bounds of sources are between chunks.
        """
        if self.error is not None:
            return self.error
        schema = self.step.inputs["rows"].append(pa.field(PLACE, pa.int64()))
        sent, as_rows, bounds, place = [], [schema.empty_table()], [], 0
        for at, (task, is_combined) in enumerate(zip(tasks, combines, strict=True)):
            made = self.step.combine(task) if is_combined else None
            if made is None:
                places = pa.array(range(place, place + task.num_rows), pa.int64())
                as_rows.append(task.append_column(schema.field(PLACE), places))
            elif PLACE in made.column_names:
                places = pc.add(made.column(PLACE), place)
                sent.append(made.set_column(made.column_names.index(PLACE), PLACE, places))
            else:
                sent.append(made)
            place += task.num_rows
            self.combined += made is not None
            for key, bound in bounds_between[at] if bounds_between else ():
                bounds.append({"k": key, "__all_keys__": key is None, "__bound__": bound, PLACE: place})
                place += 1
        rows = pa.concat_tables(as_rows)
        bounds_schema = tables.bounds_schema(self.step.key).append(pa.field(PLACE, pa.int64()))
        bounds += [{"__all_keys__": True, "__bound__": CLOSED, PLACE: place}] if ends else []
        bounds = pa.Table.from_pylist(bounds, schema=bounds_schema)
        partials = decode(chunks.encode(tables.united(sent, sent[0].schema))) if sent else None
        self.epoch += 1
        try:
            result = call(
                self.step, self.state, {"rows": Arrivals(rows, bounds, partials)}, StepTime(self.epoch, at_us),
                operator="aggregated",
            )  # fmt: skip
        except BadRow as error:
            self.error = str(error)
            return self.error
        self.state = tables.apply_changes(self.state, self.step.tables, result.changes)
        outputs = {name: list(map(repr, table.to_pylist())) for name, table in result.outputs.items()}
        if "late" in outputs:  # nobody reads them where rows are left out; of those only the times are there
            outputs["late"] = sorted(result.outputs["late"].column("timestamp").to_pylist())
        state = {name: sorted(map(repr, table.to_pylist())) for name, table in self.state.items()}
        bounds_of = None if result.bounds is None else result.bounds.to_pylist()
        return outputs, state, bounds_of, result.fates, result.counts, result.due_us


KINDS = {
    "reduce": lambda: hf.reduce(by="k", **EVERY),
    "told": lambda: hf.reduce(by="k", delete="gone", **EVERY),
    "forgotten": lambda: hf.reduce(by="k", forget_after="1 s", **EVERY),
    "total": lambda: hf.aggregate(by=["k", "day"], window=hf.total(), **SUMS),
    "timer": lambda: hf.aggregate(by="k", window=hf.timer("2 s"), **EVERY),
    "timer as it changes": lambda: hf.aggregate(by="k", window=hf.timer("2 s"), emit="changes", **EVERY),
    "of all": lambda: hf.aggregate(window=hf.total(), emit="changes", **EVERY),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(40))
@given(data=st.data())
def test_partial_rows_give_what_their_rows_give(kind, data):
    """Output, order of output, state, bounds, counts and errors are the same, whichever tasks combine."""
    stream = source() | KINDS[kind]()
    step = pickle.loads(pickle.dumps(step_of(stream)))
    plain, combining = Bucket(step), Bucket(step)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partial_rows, "ROWS_MIN", 1)
        epochs = data.draw(st.integers(1, 3))
        at_us = 0
        for number in range(epochs):
            rows = [*data.draw(st.lists(ROW, max_size=30))]
            rows = rows * data.draw(st.integers(1, 3))  # so that it pays
            ends = [0, *data.draw(st.lists(st.integers(0, len(rows)), max_size=2).map(sorted)), len(rows)]
            tasks = [table_of(rows[start:end], step) for start, end in pairwise(ends)]
            which = data.draw(st.lists(st.booleans(), min_size=len(tasks), max_size=len(tasks)))
            at_us += data.draw(st.integers(0, 3)) * 700_000
            has_ended = number == epochs - 1
            expected = plain.run(tasks, combines=[False] * len(tasks), at_us=at_us, ends=has_ended)
            found = combining.run(tasks, combines=which, at_us=at_us, ends=has_ended)
            assert found == expected


TOPS: dict[str, dict[str, Any]] = {
    "of a key": {"by": "k"},
    "told": {"by": "k", "delete": "gone"},
    "of all": {},
    "of a timer": {"by": "k", "window": hf.timer("2 s"), "emit": "settled"},
    "tumbling": {"by": "k", "window": hf.tumbling(4), "emit": "settled"},
    "tumbling, as it changes": {"by": "k", "window": hf.tumbling(4)},
    "tumbling, of all, with ties": {"window": hf.tumbling(4), "emit": "settled", "ties": "all"},
    "tumbling in disorder": {"by": "k", "window": hf.tumbling(4), "emit": "settled", "disorder": 3},
    "tumbling, strict": {"by": "k", "window": hf.tumbling(4), "emit": "settled", "timestamps": "strict"},
    "one window in disorder": {"by": "k", "window": hf.tumbling(100), "emit": "settled", "disorder": 5},
    "sliding": {"by": "k", "window": hf.sliding(6, 2), "emit": "settled", "disorder": 3},
    "idle": {"by": "k", "window": hf.tumbling(4), "emit": "settled", "disorder": 3, "idle_after": "1 s"},
}
ORDERS = ("v desc", "v", "d", "d desc nulls first, v", "w desc, v desc", "v desc, t")
BOUNDS = st.lists(st.tuples(st.sampled_from([None, "a"]), st.integers(0, 9)), max_size=1)


def test_rows_that_cannot_have_a_rank_give_nothing_for_some_of_them():
    """So that the property below is about something: each kind of window is combined in it."""
    for name, options in TOPS.items():
        step = step_of(hf.top(source(), 2, order="v desc", **options))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(partial_rows, "ROWS_MIN", 1)
            rows = table_of([("a", t // 2 if "strict" not in name else t, t, 0.0, None, "x") for t in range(12)], step)
            assert step.combine(rows).num_rows < 10, name


@pytest.mark.slow
@pytest.mark.parametrize("kind", TOPS)
@settings(max_examples=examples(40))
@given(data=st.data())
def test_rows_that_are_left_out_have_no_rank(kind, data):
    """Output, order of output, state, bounds and counts are the same, those of late rows too."""
    options = TOPS[kind]
    step = step_of(hf.top(source(), data.draw(st.integers(1, 3)), order=data.draw(st.sampled_from(ORDERS)), **options))
    if options.get("disorder") and data.draw(st.booleans()):
        step = step.by_bounds({"rows"})
    step = pickle.loads(pickle.dumps(step))
    plain, combining = Bucket(step), Bucket(step)
    at_us, epochs = 0, data.draw(st.integers(1, 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partial_rows, "ROWS_MIN", 1)
        for number in range(epochs):
            rows = data.draw(st.lists(ROW, max_size=40))
            if data.draw(st.booleans()):
                rows = sorted(rows, key=lambda row: row[1])
            ends = [0, *data.draw(st.lists(st.integers(0, len(rows)), max_size=2).map(sorted)), len(rows)]
            tasks = [table_of(rows[start:end], step).select(step.inputs["rows"].names) for start, end in pairwise(ends)]
            between = [[(key if step.key.names else None, at) for key, at in data.draw(BOUNDS)] for _ in tasks]
            at_us += data.draw(st.integers(0, 3)) * 700_000
            given_too = {"at_us": at_us, "bounds_between": between, "ends": number == epochs - 1}
            expected = plain.run(tasks, combines=[False] * len(tasks), **given_too)
            assert combining.run(tasks, combines=[True] * len(tasks), **given_too) == expected


@pytest.mark.slow
@settings(max_examples=examples(30))
@given(rows=st.lists(ROW, min_size=1, max_size=40), buckets=st.sampled_from([1, 3]), data=st.data())
def test_a_graph_gives_what_naive_python_gives(rows, buckets, data):
    computed = {"n": hf.count(), "few": hf.count(where=FEW), "most": hf.max("v"), "names": hf.distinct_count("w"),
                "names_of_few": hf.distinct_count("w", where=FEW)}  # fmt: skip
    rows = [dict(zip(["k", "t", "v", "d", "m", "w"], row, strict=True)) for row in rows * 2]
    ends = [0, *data.draw(st.lists(st.integers(0, len(rows)), max_size=2).map(sorted)), len(rows)]
    epochs = [rows[start:end] for start, end in pairwise(ends)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partial_rows, "ROWS_MIN", 1)
        found = Drive(source() | hf.reduce(by="k", **computed), {"s": epochs}, buckets=buckets).tables()
    latest = {row["k"]: row for table in found for row in table.to_pylist()}
    of_key = defaultdict(list)
    for row in rows:
        of_key[row["k"]].append(row)
    assert latest == {
        key: {
            "k": key,
            "n": len(mine),
            "few": sum(row["v"] is not None and row["v"] < 10 for row in mine),
            "most": max((row["v"] for row in mine if row["v"] is not None), default=None),
            "names": len({row["w"] for row in mine} - {None}),
            "names_of_few": len({row["w"] for row in mine if row["v"] is not None and row["v"] < 10} - {None}),
        }
        for key, mine in of_key.items()
    }


def test_state_is_the_same_with_and_without(monkeypatch):
    """So a version that combines and one that does not take turns on one checkpoint."""
    rows = [{"k": "ab"[n % 2], "t": n, "v": n % 7, "d": n / 3, "w": "xyz"[n % 3]} for n in range(40)]
    states = []
    for least in (1, 10**6):
        monkeypatch.setattr(partial_rows, "ROWS_MIN", least)
        driven = Drive(source() | hf.reduce(by="k", **EVERY, name="counted"), {"s": [rows, rows]}, buckets=2)
        driven.tables()
        states.append([tables.decode(state) for state in driven.states["counted"]])
    for mine, theirs in zip(*states, strict=True):
        assert mine.keys() == theirs.keys()
        for name, table in mine.items():
            assert sorted(map(repr, table.to_pylist())) == sorted(map(repr, theirs[name].to_pylist()))
        assert mine["windows"].equals(theirs["windows"])  # rows of windows come in the same order, too


# --- what is combined -------------------------------------------------------------------------------------------------


def declared(schema=SCHEMA, **given):
    computed = {name: one for name, one in given.items() if name not in ("by", "window", "emit", "delete")}
    options = {name: one for name, one in given.items() if name not in computed}
    return step_of(source(schema) | hf.aggregate(**{"by": "k", "window": hf.total(), **options}, **computed), schema)


@pytest.mark.parametrize(
    "window",
    [hf.tumbling(10), hf.sliding(10, 2), hf.session(3), hf.count_window(5), hf.timer("1 s", count_trigger=3)],
    ids=lambda window: window.kind,
)
def test_windows_for_which_a_bound_or_the_order_of_rows_decides_are_not(window):
    assert declared(window=window, n=hf.count()).partial_schema is None


@pytest.mark.parametrize(
    "aggregate", [hf.first("v"), hf.last("v"), hf.max_by("w", "v"), hf.min_by("w", "v"), hf.collect("v")]
)
def test_one_aggregate_for_which_arrival_decides_leaves_all_as_they_are(aggregate):
    assert declared(n=hf.count(), x=aggregate).partial_schema is None


def test_keys_and_values_whose_equals_look_different_are_not():
    """Of 0.0 and -0.0 the first to arrive is what the state has and the output shows."""
    assert declared("k DOUBLE, t BIGINT", n=hf.count()).partial_schema is None
    assert declared("k STRING, t BIGINT, d DOUBLE", n=hf.distinct_count("d")).partial_schema is None
    assert declared("k STRING, t BIGINT, d DOUBLE", n=hf.max("d"), s=hf.sum("d")).partial_schema is not None


def test_changes_and_some_ranks_are_not():
    spec = (source() | hf.reduce(by="k", n=hf.count())).node.spec
    changes = to_arrow("k STRING, t BIGINT, gone BOOLEAN")
    taking = type(spec)(**{**vars(spec), "retracted": "gone"})
    assert taking.step({"rows": changes}).partial_schema is None
    for options in ({"window": hf.session(3)}, {"window": hf.tumbling(4), "n": partial_rows.RANKS_MAX + 1}):
        top = hf.top(source(), **{"n": 3, "by": "k", "order": "v", "emit": "settled", **options})
        assert step_of(top).partial_schema is None


def test_names_that_would_be_columns_twice_are_not():
    assert (
        declared("d__values STRING, t BIGINT, v BIGINT", by="d__values", d=hf.distinct_count("v")).partial_schema
        is None
    )
    assert declared("`__rows__` STRING, t BIGINT", by="__rows__", n=hf.count()).partial_schema is None


def test_what_a_partial_row_holds(eager):
    step = declared(n=hf.count(), total=hf.sum("v"), names=hf.distinct_count("w"))
    rows = pa.Table.from_pylist(
        [{"k": "ab"[n // 4], "t": n, "v": n, "w": "x" if n % 2 else None} for n in range(8)], step.inputs["rows"]
    )
    combined = step.combine(rows)
    assert combined.schema.equals(step.partial_schema)
    assert combined.to_pylist() == [
        {"k": k, ROW_COUNT: 4, "n__count": 4, "total__count": 4, "total__upper": 0, "total__lower": total,
         "names__values": ["x"]}
        for k, total in (("a", 6), ("b", 22))
    ]  # fmt: skip


# --- what declines ----------------------------------------------------------------------------------------------------


def rows_of(keys, **columns):
    base = {"k": [str(key) for key in keys], "t": list(range(len(keys))), **columns}
    return pa.table(
        base, schema=pa.schema([("k", pa.string()), ("t", pa.int64()), *((n, pa.int64()) for n in columns)])
    )


COUNTING = "k STRING, t BIGINT"


def test_a_chunk_of_few_rows_goes_as_it_is():
    step = declared(COUNTING, n=hf.count())
    assert step.combine(rows_of([1] * (partial_rows.ROWS_MIN - 1))) is None
    assert step.combine(rows_of([1] * partial_rows.ROWS_MIN)).num_rows == 1


def test_keys_that_do_not_come_again_go_as_they_are():
    step = declared(COUNTING, n=hf.count())
    assert step.combine(rows_of(range(5000))) is None
    assert step.combine(rows_of([*([1] * 1024), *range(5000)])) is None, "the first rows are no sample of the others"
    assert step.combine(rows_of([key // 3 for key in range(6000)])).num_rows == 2000


def test_partial_rows_that_have_more_bytes_than_the_rows_are_not_sent():
    """An exact sum of doubles has ten times the bytes of a value."""
    columns = [f"d{number}" for number in range(8)]
    schema = "k STRING, t BIGINT, " + ", ".join(f"{name} DOUBLE" for name in columns)
    step = declared(schema, **{name: hf.sum(name) for name in columns})
    for repeats, is_combined in ((2, False), (500, True)):
        values = {name: [0.1 * number for number in range(2000)] for name in columns}
        rows = pa.table(
            {"k": [str(n // repeats) for n in range(2000)], "t": range(2000), **values}, step.inputs["rows"]
        )
        assert (step.combine(rows) is not None) == is_combined


def test_distinct_values_that_do_not_come_again_go_as_they_are():
    step = declared("k STRING, t BIGINT, v BIGINT", n=hf.distinct_count("v"))
    assert step.combine(rows_of([1] * 2000, v=list(range(2000)))) is None
    assert step.combine(rows_of([1] * 2000, v=[number % 9 for number in range(2000)])).num_rows == 1


def test_a_row_without_a_key_or_a_time_is_the_same_error(eager):
    stream = source() | hf.reduce(by="k", n=hf.count())
    for bad in ({"k": None, "t": 1}, {"k": "a", "t": None}):
        rows = [{"k": "a", "t": n} for n in range(6)]
        texts = []
        for least in (1, 100):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(partial_rows, "ROWS_MIN", least)
                with pytest.raises(BadRow) as found:
                    Drive(stream, {"s": [[*rows, bad]]}).tables()
            texts.append(str(found.value))
        assert texts[0] == texts[1]
        assert "have no value in" in texts[0]


# --- on the way -------------------------------------------------------------------------------------------------------


def test_the_packer_sends_partial_rows_to_the_bucket_of_their_key(eager):
    step = declared(COUNTING, n=hf.count())
    target = ChunkTarget(0, 1, "counted", "rows", step.inputs["rows"], step.key, step)
    packer = Packer(pickle.loads(pickle.dumps(Routing((target,), 4, 2))), 0, 0)
    rows = rows_of([number % 7 for number in range(100)])
    assert not list(packer.add(0, rows.to_batches()[0]))
    sent = list(packer.rows())
    assert {chunk.kind for chunk in sent} == {COMBINED}
    assert sum(row["n__count"] for chunk in sent for row in decode(chunk.data).to_pylist()) == 100
    plain = Packer(Routing((ChunkTarget(0, 1, "counted", "rows", step.inputs["rows"], step.key),), 4, 2), 0, 0)
    list(plain.add(0, rows.to_batches()[0]))
    as_rows = list(plain.rows())
    where = {row["k"]: chunk.bucket for chunk in as_rows for row in decode(chunk.data).to_pylist()}
    assert {row["k"]: chunk.bucket for chunk in sent for row in decode(chunk.data).to_pylist()} == where
    assert {chunk.kind for chunk in as_rows} == {ROWS}


def combining(stream):
    """Return for each operator of a graph whether it has a combiner."""
    pipeline = hf.Pipeline("one", stream | sink(MemorySpec("rows"), name="rows"))
    stages = build_stages(pipeline, as_it_is, "", buckets=2, partitions=1, prefix=lambda part: [])
    return {one.operator: one.combiner is not None for one in stages.routing.targets if one.operator}


@pytest.mark.parametrize("window", [None, hf.tumbling(20)])
def test_ranks_have_the_places_that_they_have_without(monkeypatch, window):
    """State has the place of each row among those of its bucket, whichever of these were sent."""
    options = {} if window is None else {"window": window, "emit": "settled"}
    top = hf.top(source(), 2, by="k", order="v desc", **options, name="best")
    epochs = [
        [{"k": "abcd"[n % 4], "t": base + n // 8, "v": n * 7 % 31, "w": "xyz"[n % 3]} for n in range(60)]
        for base in (0, 9, 18)
    ]
    found = []
    for least in (1, 10**6):
        monkeypatch.setattr(partial_rows, "ROWS_MIN", least)
        driven = Drive(top, {"s": epochs}, buckets=3)
        rows = [table.to_pylist() for table in driven.tables()]
        states = [tables.decode(state) for state in driven.states["best"]]
        found.append((rows, [{name: table.to_pylist() for name, table in state.items()} for state in states]))
    assert found[0] == found[1]


def test_a_row_that_is_left_out_counts_as_late_where_it_is(eager):
    """The bound of its bucket decides, which the task does not know."""
    top = hf.top(source(), 1, by="k", order="v desc", window=hf.tumbling(100), emit="settled", name="best")
    before = [{"k": "a", "t": 10, "v": 5}]
    mixed = [{"k": "a", "t": t, "v": t} for t in range(6, 14)]  # only the last one may be first; four are late
    driven = Drive(top, {"s": [before, mixed]})
    assert [table.num_rows for table in driven.tables()] == [0, 0]
    assert driven.counts["best", "late"] == 4


def test_a_row_that_is_left_out_may_be_late_where_no_row_that_is_sent_is(eager):
    """What an earlier chunk of the epoch said is the bound of a row of which the time alone is there."""
    options = {"window": hf.tumbling(100), "emit": "settled", "disorder": 5}
    step = step_of(hf.top(source(), 1, by="k", order="v desc", **options))
    later = [("a", 12, 9, 0.0, None, "x"), *[("a", 8, 1, 0.0, None, "x")] * 3]
    tasks = [table_of(rows, step) for rows in ([("a", 14, 5, 0.0, None, "x")], later)]
    assert step.combine(tasks[1]).num_rows == 1
    fates = [Bucket(step).run(tasks, combines=[False, which], at_us=0)[3] for which in (False, True)]
    assert fates == [{"late": 3, ABSORBED: 2}] * 2


def test_of_late_rows_that_are_left_out_nothing_large_is_copied(eager):
    """A row that stands for others may have a text of megabytes, and they be many."""
    options = {"window": hf.tumbling(100), "emit": "settled", "disorder": 5}
    step = step_of(hf.top(source(), 1, by="k", order="v desc", **options))
    rows = [("a", 11, 9, 0.0, None, "x" * 2**22), *[("a", 10, 1, 0.0, None, "x")] * 1100]
    tasks = [table_of([("a", 50, 5, 0.0, None, "x")], step), table_of(rows, step)]
    bucket, before = Bucket(step), pa.total_allocated_bytes()
    late = bucket.run(tasks, combines=[False, True], at_us=0)
    assert bucket.combined == 1
    assert late[3] == {"late": 1101, ABSORBED: 1}
    assert pa.total_allocated_bytes() - before < 2**26


def test_the_least_time_there_is_is_older_than_the_others(eager):
    """Rows that are not older beat a row; its negative is itself."""
    options = {"window": hf.tumbling(2**40), "emit": "settled", "disorder": 2**62}
    step = step_of(hf.top(source(), 1, by="k", order="v desc", **options))
    times = [-(2**63), -(2**63) + 7, -(2**63) + 5]
    rows = table_of([("a", t, 1 if n else 9, 0.0, None, "x") for n, t in enumerate([*times, *times[1:] * 3])], step)
    sent = step.combine(rows)
    assert sent is None or set(times) <= set(sent.column("t").to_pylist())


@pytest.mark.parametrize("kind", ["BIGINT", "STRING", "ARRAY<BIGINT>"])
@pytest.mark.parametrize("name", [ROW_COUNT, LEFT_OUT])
@pytest.mark.parametrize(
    "aggregated",
    [
        lambda rows: hf.top(rows, 1, by="k", order="v desc"),
        lambda rows: hf.top(rows, 1, by="k", order="v desc", window=hf.tumbling(100), emit="settled"),
        lambda rows: hf.top(rows, 1, by="k", order="v desc", window=hf.timer("2 s"), emit="settled"),
        lambda rows: rows | hf.aggregate(by="k", window=hf.tumbling(100), n=hf.count()),
        lambda rows: rows | hf.reduce(by="k", n=hf.count()),
    ],
    ids=["top", "top of windows", "top of a timer", "aggregate", "reduce"],
)
def test_a_column_of_the_user_may_have_any_name(monkeypatch, name, aggregated, kind):
    stream = aggregated(source(f"k STRING, t BIGINT, v BIGINT, `{name}` {kind}"))
    value = {"BIGINT": int, "STRING": str, "ARRAY<BIGINT>": lambda n: [n - 9]}[kind]
    rows = [{"k": "ab"[n % 2], "t": n, "v": n * 7 % 31, name: value(n)} for n in range(60)]
    found = []
    for least in (1, 10**6):
        monkeypatch.setattr(partial_rows, "ROWS_MIN", least)
        driven = Drive(stream, {"s": [rows, [close()]]})
        found.append([table.to_pylist() for table in driven.tables()])
    assert found[0] == found[1]
    assert any(found[0])


def test_late_rows_that_are_read_are_sent_whole(eager):
    top = hf.top(source(), 1, by="k", order="v desc", window=hf.tumbling(100), emit="settled", name="best")
    before = [{"k": "a", "t": 10, "v": 5}]
    mixed = [{"k": "a", "t": t, "v": t} for t in range(6, 14)]
    late = Drive(top.late, {"s": [before, mixed]}).tables()[1].to_pylist()
    assert [(row["timestamp"], row["rows"]["v"]) for row in late] == [(6, 6), (7, 7), (8, 8), (9, 9)]


def test_rows_of_an_operator_keep_the_order_of_their_buckets(eager):
    """They are put in order where they arrive, by all that each bucket has sent; so all of them are sent."""
    counted = source() | hf.aggregate(by=["k", "w"], window=hf.tumbling(1), n=hf.count(), name="counted")
    top = hf.top(counted, 1, by="k", order="n desc", name="best")
    assert combining(top) == {"counted": False, "best": False}
    assert combining(hf.top(source(), 1, by="k", order="v", name="best")) == {"best": True}


def test_an_operator_counts_rows_and_not_partial_rows(eager):
    rows = [{"k": "ab"[n % 2], "t": n, "v": n % 3} for n in range(50)]
    driven = Drive(source() | hf.reduce(by="k", n=hf.count()), {"s": [rows, [*rows, close()]]})
    last = [row for table in driven.tables() for row in table.to_pylist()][-1]
    assert last["n"] == 50  # Drive stops where the audit's sums do not add up


def test_the_contract_of_steps_finds_a_combiner_that_is_not_exact():
    class Losing(type(declared(COUNTING, n=hf.count()))):
        """Loses a row of each key that it combines."""

        def combine(self, rows):
            made = super().combine(rows)
            at = self.partial_schema.get_field_index("n__count")
            fewer = None if made is None else pa.array([count - 1 for count in made.column(at).to_pylist()])
            return None if made is None else made.set_column(at, self.partial_schema.field(at), fewer)

    step = declared(COUNTING, n=hf.count())
    losing = Losing(**step.__getstate__())
    events = lambda rng, count, keys: [("rows", {"k": str(n % keys), "t": n}) for n in range(count)]  # noqa: E731
    step_contract.check_partial_rows(step_contract.StepCase("counted", step, events))
    with pytest.raises(AssertionError, match="counted: partial rows leave other state in 'windows'"):
        step_contract.check_partial_rows(step_contract.StepCase("counted", losing, events))
