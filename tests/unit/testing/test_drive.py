"""``holdfast.testing.drive``: a graph of pure operators without Spark."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import holdfast as hf
from holdfast.errors import InvalidPipeline
from holdfast.graph.naming import origin
from holdfast.graph.nodes import apply as put
from holdfast.operators.stateful.distinct import distinct
from holdfast.operators.stateful.merge import merge
from holdfast.plan import batches
from holdfast.state.step import ALL_KEYS, BOUND, CLOSED, PLACE, Change, Result, StateTable
from holdfast.testing.drive import Drive, drive
from holdfast.testing.given import Bound, bound, close, malformed

pytestmark = pytest.mark.slow

SCHEMA = "k STRING, t BIGINT"


def source(name="s", schema=SCHEMA):
    return hf.read.rows([], schema=schema, timestamp="t", name=name)


def timeless():
    return hf.read.rows([], schema=SCHEMA, name="s")


def row(t, k="a"):
    return {"k": k, "t": t}


@dataclass(frozen=True)
class Seen:
    """Gives what arrived, as text: rows, bounds and their places."""

    names: tuple[str, ...] = ("rows",)
    kind: str = "stateful"
    tables = {"count": StateTable(pa.schema([("k", pa.string()), ("n", pa.int64())]), ("k",))}  # noqa: RUF012
    key = pa.schema([("k", pa.string())])

    side_outputs = MappingProxyType({})

    @property
    def input_names(self):
        return self.names

    @property
    def time_columns(self):
        return (None,) * len(self.names)

    @property
    def inputs(self):
        return dict.fromkeys(self.names, pa.schema([("k", pa.string()), ("t", pa.int64())]))

    @property
    def outputs(self):
        return {"rows": pa.schema([("k", pa.string()), ("t", pa.int64()), ("what", pa.string())])}

    def arguments(self):
        return {}

    def shape(self, inputs):
        return inputs[0]

    def step(self, inputs):
        return self

    def apply(self, state, arrivals, at):
        found = []
        for name, given in arrivals.items():
            found += [(r[PLACE], name, r["k"], r["t"], "row") for r in given.rows.to_pylist()]
            found += [
                (b[PLACE], name, b["k"], b[BOUND], "all" if b[ALL_KEYS] else "key") for b in given.bounds.to_pylist()
            ]
        rows = [{"k": k, "t": t, "what": f"{name} {what}"} for _, name, k, t, what in sorted(found)]
        old = {r["k"]: r["n"] for r in state["count"].to_pylist()}
        counts = [{"k": k, "n": old.get(k, 0) + 1} for k in dict.fromkeys(r["k"] for r in rows)]
        table = self.tables["count"]
        change = Change(pa.Table.from_pylist(counts, table.schema), pa.schema([table.schema.field("k")]).empty_table())
        last = max((t for _, _, _, t, what in found if what == "all"), default=None)
        told = None
        if last is not None:
            told = pa.table({"k": pa.nulls(1, pa.string()), ALL_KEYS: [True], BOUND: [last]})
        return Result(
            {"rows": pa.Table.from_pylist(rows, self.outputs["rows"])}, {"count": change}, told, {"seen": len(rows)}
        )


def seen(*streams, name="seen"):
    names = ("rows",) if len(streams) == 1 else tuple("xyz"[: len(streams)])
    return put(Seen(names), streams, name=name, built_at=origin())


def told(epochs):
    return [[(r["k"], r["t"], r["what"]) for r in rows] for rows in epochs]


def test_stateless_operators_run_as_in_a_run():
    stream = source() | hf.filter("t > 1") | hf.select("k", double="t * 2")
    assert drive(stream, {"s": [[row(1), row(2)], [], [row(3)]]}) == [
        [{"k": "a", "double": 4}],
        [],
        [{"k": "a", "double": 6}],
    ]


def test_control_rows_arrive_between_the_rows_and_go_past_filters():
    stream = seen(source() | hf.filter("t > 1"))
    assert told(drive(stream, {"s": [[row(1), bound(2), row(3), bound(4, {"k": "b"}), close()]]})) == [
        [("a", 3, "rows row"), (None, 2, "rows all"), ("b", 4, "rows key"), (None, CLOSED, "rows all")]
    ]


def test_sources_arrive_in_the_order_in_which_they_are_given():
    stream = seen(source("one"), source("two"))
    rows = {"one": [[row(1), bound(5)]], "two": [[row(2)]]}
    assert [what for _, _, what in told(drive(stream, rows))[0]] == ["x row", "x all", "y row"]
    assert [what for _, _, what in told(drive(stream, dict(reversed(rows.items()))))[0]] == ["y row", "x row", "x all"]


def test_one_source_for_two_inputs_gives_places_that_are_unique():
    one = source()
    found = told(drive(seen(one | hf.filter("t > 0"), one | hf.filter("t < 9")), {"s": [[row(1), row(2)]]}))
    assert [(t, what) for _, t, what in found[0]] == [(1, "x row"), (2, "x row"), (1, "y row"), (2, "y row")]


def test_the_bound_of_a_union_is_the_least_of_its_inputs():
    stream = seen(hf.union(source("one"), source("two")))
    epochs = {"one": [[bound(5), bound(9, {"k": "a"})], [close()]], "two": [[row(1)], [bound(7)]]}
    assert told(drive(stream, epochs)) == [
        [("a", 1, "rows row")],
        [(None, 5, "rows all"), (None, 7, "rows all")],
    ]


def test_stateful_operators_follow_each_other_with_their_bounds():
    behind = seen(seen(source(), name="first") | hf.select("k", "t"), name="second")
    assert told(drive(behind, {"s": [[row(1), bound(3)]]})) == [
        [("a", 1, "rows row"), (None, 3, "rows row"), (None, 3, "rows all")]
    ]


def test_buckets_divide_keys_and_a_bound_for_all_reaches_each():
    stream = seen(source())
    rows = [[row(t, f"k{t}") for t in range(20)], [bound(30)]]
    one, several = Drive(stream, {"s": rows}), Drive(stream, {"s": rows}, buckets=3)
    first, last = several.tables()
    assert sorted(first.column("k").to_pylist()) == sorted(one.tables()[0].column("k").to_pylist())
    assert last.num_rows == 3
    assert several.counts == {("seen", "seen"): 3}
    assert len(several.states["seen"]) == 3


def test_a_side_output_is_a_stream():
    once = source() | distinct("k", 5, disorder=1, name="once")
    epochs = {"s": [[row(10), row(3)], [row(2)]]}
    assert [[r["timestamp"] for r in rows] for rows in drive(once.late, epochs)] == [[3], [2]]
    assert drive(once, epochs) == [[row(10)], []]
    behind = once.late | hf.select("input", "timestamp")
    assert drive(behind, epochs)[0] == [{"input": "rows", "timestamp": 3}]


def test_times_are_ticks_text_or_datetimes():
    assert bound("1970-01-01T00:00:01") == bound(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)) == Bound(1_000_000)
    typed = source(schema="k STRING, t TIMESTAMP")
    other = source("o", schema="k STRING, t TIMESTAMP")
    rows = drive(
        merge(typed, {"o": other}, by="k"),
        {"s": [[{"k": "a", "t": datetime(2013, 1, 1, tzinfo=UTC)}]], "o": [[bound("2013-01-02")]]},
    )
    assert rows[0][0]["t"] == datetime(2013, 1, 1, tzinfo=UTC)
    assert rows[0][0]["o"] is None


def test_more_batch_times_than_epochs_give_epochs_without_rows():
    assert drive(source(), {"s": [[row(1)]]}, batch_times=[0, 1, 2]) == [[row(1)], [], []]


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (lambda: drive(source(), {}), "source 's' is not given any rows"),
        (lambda: drive(source(), {"s": [], "x": []}), "source 'x' is not part of the graph"),
        (lambda: drive(source(), {"s": [[{"k": "a", "time": 1}]]}), "the key 'time', which is no column"),
        (lambda: drive(source(), {"s": [[row("late")]]}), "do not fit its schema"),
        (lambda: drive(source(), {"s": [[], []]}, batch_times=[1]), "2 epochs have 1 batch times"),
        (lambda: drive(source() | hf.map(lambda df: df), {"s": []}), "map .* cannot be driven without Spark"),
        (lambda: drive(source() | hf.sql("select * from input"), {"s": []}), "sql .* cannot be driven without Spark"),
        (lambda: drive(seen(source() | hf.map(lambda df: df)), {"s": []}), "map .* cannot be driven without Spark"),
        (lambda: drive(seen(source()) | hf.map(lambda df: df), {"s": []}), "map .* cannot be driven without Spark"),
        (lambda: drive(seen(timeless()), {"s": [[bound(1)]]}), "no timestamp, and is given a bound"),
        (lambda: drive(source(), {"s": [[bound(1, {"x": 1})]]}), "the key 'x', which is no column"),
        (lambda: drive(source(), {"s": [[malformed("?")]]}), "stops at the first one"),
        (lambda: drive(source(schema="k STRING NOT NULL, t BIGINT"), {"s": [[row(1, None)]]}), "do not fit its schema"),
    ],
)
def test_what_cannot_be_driven_says_why(run, says):
    with pytest.raises(InvalidPipeline, match=says):
        run()


def test_rows_that_a_source_cannot_read_go_to_its_rejects():
    files = hf.read.files("in", format="json", schema=SCHEMA, timestamp="t", on_bad_row="reject", name="s")
    epochs = {"s": [[row(1), malformed("?", "no JSON", "a.json:2"), row(3)]]}
    assert drive(files, epochs) == [[row(1), row(3)]]
    assert drive(files.rejects, epochs) == [[{"reason": "no JSON", "raw": "?", "position": "a.json:2"}]]
    assert [t for _, t, _ in told(drive(seen(files), {"s": [[*epochs["s"][0], bound(4)]]}))[0]] == [1, 3, 4]


def test_a_source_without_a_timestamp_can_end():
    assert told(drive(seen(timeless()), {"s": [[row(1), close()]]})) == [
        [("a", 1, "rows row"), (None, CLOSED, "rows all")]
    ]


def test_a_row_behind_the_end_of_its_source_is_late_in_the_same_epoch_and_later():
    once = source() | distinct("k", 5, name="once")
    epochs = {"s": [[row(1), close(), row(2)], [row(3)]]}
    assert [[r["timestamp"] for r in rows] for rows in drive(once.late, epochs)] == [[2], [3]]


def test_what_a_set_up_made_is_not_that_of_another_drive():
    def scaled(by):
        def fn(batch, factor):
            return batch.set_column(1, "t", pc.multiply(batch.column("t"), factor))

        return source() | hf.map_batches(fn, SCHEMA, setup=lambda: by, name="scaled")

    before = len(batches._ready)
    assert [drive(scaled(by), {"s": [[row(1)]]})[0][0]["t"] for by in (2, 3)] == [2, 3]
    assert len(batches._ready) == before, "what a set-up made is held for ever"


@pytest.mark.parametrize("way", ["apply", "stateful"])
def test_the_end_of_a_source_reaches_what_stands_behind_a_function_of_the_user(way):
    if way == "apply":
        behind = source() | hf.apply(lambda key, rows, state: rows, by="k", schema=SCHEMA, timestamp="t", name="mine")
    else:
        state = {"last": "k STRING, t BIGINT"}
        step = hf.stateful(lambda tables, rows, at: (None, rows), by="k", state=state, schema=SCHEMA, name="mine")
        behind = source() | step
    counted = behind | hf.aggregate(by="k", window=hf.tumbling(10), timestamp="t", n=hf.count(), name="counted")
    epochs = drive(counted, {"s": [[row(1), row(2)], [close()]]})
    assert epochs[0] == []
    assert [(each["k"], each["n"]) for each in epochs[1]] == [("a", 2)]
