"""Every operator, put behind a flow of a random graph: what it is given, and what it must make of the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from tempfile import TemporaryDirectory
from typing import Any, get_args

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

import holdfast as hf
from holdfast import flow as flowgraphs
from holdfast.flow.calculators import FlowLimiter
from holdfast.graph.nodes import Stream
from holdfast.operators.expect import OnFail
from holdfast.testing.stand_in import StandIn
from holdfast.types.row_ids import ids_of_columns, key_of
from tests.calculators import Both, Decoder, Odd, Total
from tests.sim.flows import FAR, KEYS, OUTPUT, Flow, Graph, Lines, Row

PLAIN = "k STRING, t BIGINT, v BIGINT"


def _any(flow: Flow) -> bool:
    return True


def _is_ordered(flow: Flow) -> bool:
    return flow.is_ordered


def _is_timed(flow: Flow) -> bool:
    return flow.is_timed


def _is_ordered_and_timed(flow: Flow) -> bool:
    return flow.is_ordered and flow.is_timed


@dataclass(frozen=True)
class Maker:
    """How a random graph gets an operator.

    Parameters
    ----------
    make : callable
        Adds it behind a flow.
    fits : callable
        Tells behind which flows it can be judged: whether it can stand there is a matter of the graph's checks.
    keeps_state : bool
        Whether it has state.
    weight : int
        How often it is chosen.
    """

    make: Callable[[Graph, Flow], None]
    fits: Callable[[Flow], bool] = _any
    keeps_state: bool = False
    weight: int = 1


def _other(graph: Graph, flow: Flow, fits: Callable[[Flow], bool]) -> Flow:
    """Return a flow for a second input; the same rows, filtered, where there is none."""
    fitting = [one for one in graph.flows if fits(one) and one.stream.node is not flow.stream.node]
    if fitting:
        return graph.chance.choice([*fitting, *fitting[-2:]])
    first = next(one for one in (flow, *graph.flows) if fits(one))
    stream = first.stream | hf.filter(f"{first.value} >= 100", name=graph.name("filter"))
    return replace(first, stream=stream, lines=first.where(lambda row: row[first.value] >= 100))


def _chosen(flow: Flow, rows: Lines, *columns: str) -> Lines:
    """Return rows with key, time and value alone, under other names."""
    time, value = columns
    return {key: [{"k": key, time: row[flow.time], value: row[flow.value]} for row in of] for key, of in rows.items()}


# --- operators without state -----------------------------------------------------------------------------------------


def _filter(graph: Graph, flow: Flow) -> None:
    least = graph.chance.choice((2, 100, 300))
    stream = flow.stream | hf.filter(f"{flow.value} >= {least}", name=graph.name("filter"))
    graph.flows.append(replace(flow, stream=stream, lines=flow.where(lambda row: row[flow.value] >= least)))


def _expect(graph: Graph, flow: Flow) -> None:
    least, ways = graph.chance.choice((2, 100, 300)), get_args(OnFail)[:2]
    on_fail: OnFail = graph.chance.choice(ways)
    stream = flow.stream | hf.expect(f"{flow.value} >= {least}", on_fail=on_fail, name=graph.name("expect"))
    lines = flow.where(lambda row: on_fail == "warn" or row[flow.value] >= least)
    graph.flows.append(replace(flow, stream=stream, lines=lines))


def _unmet(graph: Graph, flow: Flow) -> None:
    least = graph.chance.choice((2, 100, 300))
    stream = flow.stream | hf.expect(f"{flow.value} >= {least}", on_fail="reject", name=graph.name("unmet"))
    graph.write(replace(flow, stream=stream, lines=flow.where(lambda row: row[flow.value] >= least)))
    lines = flow.where(lambda row: row[flow.value] < least)
    graph.flows.append(replace(flow, stream=stream.rejects, lines=lines))


def _select(graph: Graph, flow: Flow) -> None:
    """The time column keeps its name, or the graph would not know it any more."""
    stream = flow.stream | hf.select("k", flow.time, v=flow.value, name=graph.name("select"))
    lines = _chosen(flow, flow.lines, flow.time, "v")
    graph.flows.append(replace(flow, stream=stream, lines=lines, columns=("k", flow.time, "v"), value="v"))


def _split(graph: Graph, flow: Flow) -> None:
    least = graph.chance.choice((2, 100))
    parts = flow.stream | hf.split(much=f"{flow.value} >= {least}", otherwise="little", name=graph.name("split"))
    graph.flows.append(
        replace(flow, stream=parts.little, lines=flow.where(lambda row: row[flow.value] < least)),
    )
    graph.flows.append(replace(flow, stream=parts.much, lines=flow.where(lambda row: row[flow.value] >= least)))


def _clip(graph: Graph, flow: Flow) -> None:
    start, end = graph.chance.choice(((1, FAR), (0, 40), (-FAR, 25)))
    stream = flow.stream | hf.clip(start, end, name=graph.name("clip"))
    lines = flow.where(lambda row: start <= row[flow.time] < end)
    graph.flows.append(replace(flow, stream=stream, lines=lines))


def _union(graph: Graph, flow: Flow) -> None:
    """With rows of another flow, in any order; or with one that has none, which keeps the order certain."""
    same = [
        one
        for one in graph.flows
        if one.columns == flow.columns and one.time == flow.time and one.stream.node is not flow.stream.node
    ]
    same = [one for one in same if one.stream.columns == flow.stream.columns and _types(one) == _types(flow)]
    name = graph.name("union")
    if same and graph.chance.random() < 0.5:
        one = graph.chance.choice(same)
        lines = {key: [*flow.lines.get(key, []), *one.lines.get(key, [])] for key in KEYS}
        stream = hf.union(flow.stream, one.stream, name=name)
        graph.flows.append(replace(flow, stream=stream, lines=lines, is_ordered=False, is_strict=False))
        return
    nothing = flow.stream | hf.filter(f"{flow.value} < {-FAR}", name=graph.name("filter"))
    graph.flows.append(replace(flow, stream=hf.union(flow.stream, nothing, name=name)))


def _types(flow: Flow) -> str:
    """Return what tells flows of the same columns apart: those of plain rows are one kind, any other is its own."""
    return "plain" if flow.columns == ("k", flow.time, flow.value) else flow.stream.name


def _kept(value: str, least: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pc.greater_equal(batch.column(value), least))


def _keeping(graph: Graph, flow: Flow, name: str) -> tuple[int, Lines]:
    """Let something stand in for a filter that only Spark evaluates."""
    least = graph.chance.choice((2, 100))
    fn = partial(_kept, flow.value, least)
    graph.stand_ins[name] = StandIn(fn, lambda schema: schema, leaves_columns=True)
    return least, flow.where(lambda row: row[flow.value] >= least)


def _sql(graph: Graph, flow: Flow) -> None:
    """A statement, which Arrow evaluates behind state or, by turns, only Spark; it says what becomes of columns."""
    name = graph.name("sql")
    least, lines = _keeping(graph, flow, name)
    border = f"abs({least})" if len(graph.kinds) % 2 else f"{least}"
    stream = flow.stream | hf.sql(f"select * from input where {flow.value} >= {border}", name=name)
    graph.flows.append(replace(flow, stream=stream, lines=lines))


def _function(graph: Graph, flow: Flow) -> None:
    """A condition that is a function of a frame."""
    name = graph.name("function")
    least, lines = _keeping(graph, flow, name)
    stream = flow.stream | hf.filter(lambda frame: frame[flow.value] >= least, name=name)
    graph.flows.append(replace(flow, stream=stream, lines=lines))


def _map(graph: Graph, flow: Flow) -> None:
    """A function of a frame: nothing is known of its columns before the run, of its timestamp what it is told."""
    name = graph.name("map")
    least, lines = _keeping(graph, flow, name)
    timestamp = flow.time if graph.chance.random() < 0.7 else None
    stream = flow.stream | hf.map(
        lambda frame: frame.filter(f"{flow.value} >= {least}"), timestamp=timestamp, name=name
    )
    graph.flows.append(replace(flow, stream=stream, lines=lines))


def _twice(column: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    rows = batch.take(pa.array([row for row in range(batch.num_rows) for _ in (0, 1)], pa.int64()))
    return rows.append_column(column, pa.array([0, 1] * batch.num_rows, pa.int32()))


def _explode(graph: Graph, flow: Flow) -> None:
    """Every row becomes two."""
    name = graph.name("explode")
    column = f"copy_{name}"
    lines = {key: [{**row, column: copy} for row in rows for copy in (0, 1)] for key, rows in flow.lines.items()}
    stream = flow.stream | hf.select("*", **{column: "explode(array(0, 1))"}, name=name)
    graph.stand_ins[name] = StandIn(
        partial(_twice, column), lambda schema: schema.append(pa.field(column, pa.int32())), leaves_columns=True
    )
    columns = (*flow.columns, column)
    graph.flows.append(replace(flow, stream=stream, lines=lines, columns=columns, is_strict=False))


def _row_id(graph: Graph, flow: Flow) -> None:
    """An id of key, time and value, with the time that the graph knows."""
    name = graph.name("row_id")
    column, timestamp = f"id_{name}", flow.stream.timestamp
    numbers = sorted({flow.time, flow.value})
    stream = flow.stream | hf.row_id("k", *numbers, into=column, name=name)

    def identified(row: Row) -> Row:
        values = [pa.array([row["k"]], pa.string())]
        values += [pa.array([row[each]], pa.int64()) for each in numbers]
        times = None if timestamp is None else pa.array([row[timestamp]], pa.int64())
        return {**row, column: ids_of_columns(key_of("columns", name), values, times)[0].as_py()}

    lines = {key: [identified(row) for row in rows] for key, rows in flow.lines.items()}
    graph.flows.append(replace(flow, stream=stream, lines=lines, columns=(*flow.columns, column)))


def _is_small_and_timed(flow: Flow) -> bool:
    return _is_small(flow) and _is_timed(flow)


def _is_small(flow: Flow) -> bool:
    return flow.row_count < 60


def _plain(time: str, value: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [batch.column("k"), batch.column(time), batch.column(value)]
    return pa.RecordBatch.from_arrays(columns, names=["k", "t", "v"])


def _map_batches(graph: Graph, flow: Flow) -> None:
    offset = 0 if flow.is_timed and graph.chance.random() < 0.5 else None
    stream = flow.stream | hf.map_batches(
        partial(_plain, flow.time, flow.value),
        PLAIN,
        timestamp="t",
        timestamp_offset=offset,
        name=graph.name("map_batches"),
    )
    lines = _chosen(flow, flow.lines, "t", "v")
    graph.flows.append(replace(flow, stream=stream, lines=lines, columns=("k", "t", "v"), time="t", value="v"))


_ANSWERS = TemporaryDirectory(prefix="holdfast-answers-")
_NUMBERS = count()
ASKED: Counter[tuple[str, int]] = Counter()
"""(File of answers, value) -> how often a service was asked about it.  What was recorded is not asked for again."""


def new_answers() -> str:
    """Return the path of a file of answers that is not there yet."""
    return f"{_ANSWERS.name}/{next(_NUMBERS)}.sqlite"


async def _answer(file: str, column: str, value: str, refuses: bool, row: Row) -> Row:
    """Answer in another way each time: what a replay shows, and was not recorded, shows as a wrong row."""
    ASKED[file, row[value]] += 1
    if refuses and _is_refused(row[value]):
        raise ValueError(f"asked {ASKED[file, row[value]]} times")
    return {column: _answered(row[value]) + ASKED[file, row[value]] - 1}


def _is_refused(value: int) -> bool:
    return value % 3 == 0


def _answered(value: int) -> int:
    return value % 1009 + 7


def _asked(graph: Graph, flow: Flow, kind: str, **given: Any) -> tuple[Stream, str, str]:
    """Return the rows with what the service answers, and the names of the columns of answers and errors."""
    name = graph.name(kind)
    column, error = f"said_{name}", f"why_{name}"
    file = new_answers()
    if given:
        given["error"] = error
    ask = partial(_answer, file, column, flow.value, bool(given))
    call: Any = hf.call(ask, f"{column} BIGINT", key=flow.value, answers=file, retry=0, name=name, **given)
    return flow.stream | call, column, error


def _call(graph: Graph, flow: Flow) -> None:
    stream, column, _ = _asked(graph, flow, "call")
    lines = {key: [{**row, column: _answered(row[flow.value])} for row in rows] for key, rows in flow.lines.items()}
    graph.flows.append(replace(flow, stream=stream, lines=lines, columns=(*flow.columns, column)))


def _answered_and_not(graph: Graph, flow: Flow, kind: str) -> tuple[Flow, Flow]:
    stream, column, error = _asked(graph, flow, kind, on_fail="reject")
    told = {error: "ValueError: asked 1 times"}
    good = {
        key: [{**row, column: _answered(row[flow.value])} for row in rows if not _is_refused(row[flow.value])]
        for key, rows in flow.lines.items()
    }
    bad = {key: [{**row, **told} for row in rows if _is_refused(row[flow.value])] for key, rows in flow.lines.items()}
    return (
        replace(flow, stream=stream, lines=good, columns=(*flow.columns, column)),
        replace(flow, stream=stream.rejects, lines=bad, columns=(*flow.columns, error)),
    )


def _answered_alone(graph: Graph, flow: Flow) -> None:
    good, bad = _answered_and_not(graph, flow, "answered")
    graph.write(bad)
    graph.flows.append(good)


def _unanswered(graph: Graph, flow: Flow) -> None:
    good, bad = _answered_and_not(graph, flow, "unanswered")
    graph.write(good)
    graph.flows.append(bad)


# --- operators with state --------------------------------------------------------------------------------------------


def _aggregate(graph: Graph, flow: Flow) -> None:
    chance = graph.chance
    size = chance.choice((2, 5, 11))
    is_session = chance.random() < 0.3
    stream = flow.stream | hf.aggregate(
        by="k",
        window=hf.session(size) if is_session else hf.tumbling(size),
        timestamp=flow.time,
        disorder=flow.promise,
        name=graph.name("aggregate"),
        n=hf.count(),
        total=hf.sum(flow.value),
        top=hf.max(flow.value),
        large=hf.count(where=f"{flow.value} >= 100"),
    )
    good, late = flow.judged()
    frame = _frame(flow, good).sort("k", "t")
    if is_session:
        begins = (pl.col("t").diff().over("k") >= size).fill_null(True)
        frame = frame.with_columns(part=begins.cum_sum().over("k"))
        start, end = pl.col("t").min(), pl.col("t").max() + size
    else:
        frame = frame.with_columns(part=pl.col("t").floordiv(size))
        start, end = pl.col("part").first() * size, pl.col("part").first() * size + size
    windows = frame.group_by("k", "part").agg(
        start.alias("window_start"), end.alias("window_end"), pl.len().alias("n"), pl.col("v").sum().alias("total"),
        pl.col("v").max().alias("top"), (pl.col("v") >= 100).sum().cast(pl.Int64).alias("large"),
    )  # fmt: skip
    rows = windows.sort("k", "window_start").drop("part").to_dicts()
    graph.add_side(stream, "late", {"rows": (flow, late)})
    columns = ("k", "window_start", "window_end", "n", "total", "top", "large")
    graph.flows.append(Flow(stream, _by_key(rows), columns, time="window_start", value="total", is_strict=True))


def _over_changes(graph: Graph, flow: Flow) -> None:
    """An aggregate over one that changes: of each value the last time, and of these times the last."""
    last = flow.stream | hf.reduce(
        by=["k", flow.value], times=hf.max(flow.time), n=hf.count(), delete="gone", name=graph.name("over_changes")
    )
    few = last | hf.filter("n < 3", name=graph.name("filter"))
    t, v = graph.column("t"), graph.column("v")
    computed: dict[str, Any] = {t: hf.max("times"), v: hf.sum(flow.value), "values": hf.count()}
    stream = few | hf.aggregate(by="k", window=hf.total(), **computed, name=graph.name("over_changes"))
    lines: Lines = {}
    for key, rows in flow.lines.items():
        found: dict[Any, list[Any]] = {}
        for row in rows:
            found.setdefault(row[flow.value], []).append(row[flow.time])
        held = {value: max(times) for value, times in found.items() if len(times) < 3}
        if held:
            lines[key] = [{"k": key, t: max(held.values()), v: sum(held), "values": len(held)}]
    graph.flows.append(Flow(stream, lines, ("k", t, v, "values"), time=t, value=v, is_strict=True))


def _join_changes(graph: Graph, flow: Flow) -> None:
    """A join with counts that change, of rows that only come or of the last time of each value; then an aggregate."""
    other, how = _other(graph, flow, _any), graph.chance.choice(("inner", "left", "semi", "anti"))
    counts = other.stream | hf.reduce(by="k", n=hf.count(), delete="gone", name=graph.name("join_changes"))
    retracts = graph.chance.random() < 0.5
    left = flow.stream | hf.select("k", flow.value, times=flow.time, name=graph.name("select"))
    if retracts:
        by = ["k", flow.value]
        left = flow.stream | hf.reduce(by=by, times=hf.max(flow.time), delete="gone", name=graph.name("join_changes"))
    joined = hf.join(left, counts, on="k", how=how, delete="gone", name=graph.name("join_changes"))
    t, v = graph.column("t"), graph.column("v")
    computed: dict[str, Any] = {t: hf.max("times"), v: hf.sum(flow.value), "values": hf.count()}
    computed |= {"most": hf.max("n")} if how in ("inner", "left") else {}
    stream = joined | hf.aggregate(by="k", window=hf.total(), **computed, name=graph.name("join_changes"))
    lines: Lines = {}
    for key, rows in flow.lines.items():
        held = [(row[flow.value], row[flow.time]) for row in rows]
        if retracts:
            held = [(value, max(at for other, at in held if other == value)) for value in {value for value, _ in held}]
        count = len(other.lines.get(key, []))
        if held and (how == "left" or (count > 0) == (how != "anti")):
            found = {"k": key, t: max(at for _, at in held), v: sum(value for value, _ in held), "values": len(held)}
            lines[key] = [found | ({"most": count or None} if "most" in computed else {})]
    graph.flows.append(Flow(stream, lines, ("k", *computed), time=t, value=v, is_strict=True))


def _frame(flow: Flow, lines: Lines) -> pl.DataFrame:
    rows = [{"k": key, "t": row[flow.time], "v": row[flow.value]} for key, of in lines.items() for row in of]
    return pl.DataFrame(rows, schema={"k": pl.String, "t": pl.Int64, "v": pl.Int64})


def _by_key(rows: Sequence[Row]) -> Lines:
    lines: Lines = {}
    for row in rows:
        lines.setdefault(row["k"], []).append(row)
    return lines


def _rest(row: Row, flow: Flow) -> Row:
    return {column: value for column, value in row.items() if column not in ("k", flow.time)}


def _sync(graph: Graph, flow: Flow) -> None:
    inputs = {"a": flow, "b": _other(graph, flow, _is_ordered_and_timed)}
    stream = hf.sync(
        {name: flow.stream for name, flow in inputs.items()},
        by="k",
        policy=hf.policy.settled(),
        timestamps={name: "strict" if flow.is_strict else "ascending" for name, flow in inputs.items()},
        disorder={name: flow.disorder or None for name, flow in inputs.items()},
        name=graph.name("sync"),
    )
    judged = {name: flow.judged() for name, flow in inputs.items()}
    sets: dict[tuple[str, int], dict[str, list[Row]]] = {}
    for name, of in inputs.items():
        for key, rows in judged[name][0].items():
            for row in rows:
                sets.setdefault((key, row[of.time]), {}).setdefault(name, []).append(row)
    made: list[Row] = []
    alone: dict[str, Lines] = {name: {} for name in inputs}
    for (key, at), found in sorted(sets.items()):
        given = {
            name: [_rest(row, of) for row in found[name]] if name in found else None for name, of in inputs.items()
        }
        shown = {name: of[0] if of and inputs[name].is_strict else of for name, of in given.items()}
        made.append({"k": key, "timestamp": at, **shown})
        if len(found) == 1:
            ((name, rows),) = found.items()
            alone[name].setdefault(key, []).extend(rows)
    graph.add_side(stream, "late", {name: (of, judged[name][1]) for name, of in inputs.items()})
    graph.add_side(stream, "unmatched", {name: (of, alone[name]) for name, of in inputs.items()})
    columns = ("k", "timestamp", *inputs)
    graph.flows.append(Flow(stream, _by_key(made), columns, time="timestamp", value="timestamp", is_strict=True))


def _merge(graph: Graph, main: Flow) -> None:
    slow, name = _other(graph, main, _is_ordered_and_timed), graph.name("merge")
    beside = graph.column("m")
    tolerance = graph.chance.choice((None, 0, 4))
    stream = hf.merge(
        main.stream,
        {beside: slow.stream},
        by="k",
        tolerance=tolerance,
        disorder={"main": main.promise, beside: slow.disorder},
        name=name,
    )
    (good, late), (known, missed) = main.judged(), slow.judged()
    lines: Lines = {}
    alone: Lines = {}
    for key, rows in good.items():
        for row in sorted(rows, key=lambda row: row[main.time]):
            found = _latest(known.get(key, []), slow.time, row[main.time])
            if found is not None and tolerance is not None and found[slow.time] < row[main.time] - tolerance:
                found = None
            rest = found and {name: value for name, value in found.items() if name != "k"}
            lines.setdefault(key, []).append({**row, beside: rest})
            if found is None:
                alone.setdefault(key, []).append(row)
    graph.add_side(stream, "late", {"main": (main, late), beside: (slow, missed)})
    graph.add_side(stream, "unmatched", {"main": (main, alone), beside: (slow, {})})
    columns = (*main.columns, beside)
    graph.flows.append(replace(main, stream=stream, lines=lines, columns=columns, disorder=0))


def _join(graph: Graph, left: Flow) -> None:
    """Of both flows the order within a key is known at most: no row is late here."""
    right, name = _other(graph, left, _is_timed), graph.name("join")
    how = graph.chance.choice(("inner", "inner", "left", "left", "right", "full", "semi", "anti"))
    limits = graph.chance.choice((
        {"within": (-4, 4)}, {"within": (0, 6)}, {"within": (-9, -1)}, {"forget_after": None}, {"within": (None, 2)},
        {"within": (left.time, left.value)}, {"within": (left.value, None), "forget_after": 7},
    ))  # fmt: skip
    suffix, time = graph.column("_r"), graph.column("j")
    stream = hf.join(
        left.stream, right.stream, on="k", **limits, how=how,
        disorder=FAR, suffix=suffix, timestamp=time, name=name,
    )  # fmt: skip
    beside = [column for column in right.columns if column != "k"]
    alone: dict[str, Lines] = {"left": {}, "right": {}}
    lines: Lines = {}
    none = dict.fromkeys(left.columns)
    taken = {column: column + suffix if column in left.columns else column for column in beside}
    for key in {**left.lines, **right.lines}:
        ours, theirs = left.lines.get(key, []), right.lines.get(key, [])
        found: list[Row] = []
        met: set[int] = set()
        for one in ours:
            near = [number for number, row in enumerate(theirs) if _is_near(one, left.time, row[right.time], limits)]
            met.update(near)
            if not near:
                alone["left"].setdefault(key, []).append(one)
            if how in ("semi", "anti"):
                found += [one] if bool(near) == (how == "semi") else []
                continue
            if not near and how in ("left", "full"):
                found.append({**one, **dict.fromkeys(taken.values()), time: one[left.time]})
            for other in (theirs[number] for number in near):
                later = max(one[left.time], other[right.time])
                found.append({**one, **{taken[name]: other[name] for name in beside if name in other}, time: later})
        for number, other in enumerate(theirs):
            if number not in met:
                alone["right"].setdefault(key, []).append(other)
                if how in ("right", "full"):
                    own = {taken[name]: other[name] for name in beside if name in other}
                    found.append({**none, "k": key, **own, time: other[right.time]})
        if found:
            lines[key] = found
    columns = left.columns if how in ("semi", "anti") else (*left.columns, *taken.values(), time)
    sides = {"left": (left, alone["left"])}
    sides["right"] = (right, {} if how in ("semi", "anti") else alone["right"])
    graph.write(graph.side_of(stream, "unmatched", sides))
    made = replace(left, stream=stream, lines=lines, columns=columns, disorder=FAR, is_ordered=False, is_strict=False)
    made = made if how in ("semi", "anti") else replace(made, time=time)
    if how == "inner" and left.is_ordered and right.is_ordered:  # pairs of a key ascend, of one time as their rows came
        in_order = {key: sorted(rows, key=lambda row: row[time]) for key, rows in lines.items()}
        made = replace(made, lines=in_order, disorder=0, is_ordered=True)
    if how in ("right", "full"):  # rows without a row of left have no value to go on with
        graph.write(made)
    else:
        graph.flows.append(made)


def _is_near(one: Row, time: str, at: int, limits: Mapping[str, Any]) -> bool:
    """Return whether a time of right is in the range of a row of left."""
    if (apart := limits.get("forget_after")) is not None and abs(at - one[time]) > apart:
        return False
    for limit, sign in zip(limits.get("within", (None, None)), (1, -1), strict=True):
        end = one[limit] if isinstance(limit, str) else at if limit is None else one[time] + limit
        if end is None or sign * (at - end) < 0:
            return False
    return True


def _latest(rows: Sequence[Row], time: str, at: int) -> Row | None:
    """Return the last of the rows with the highest time that is not above one."""
    latest = None
    for row in rows:
        if row[time] <= at and (latest is None or row[time] >= latest[time]):
            latest = row
    return latest


def _distinct(graph: Graph, flow: Flow) -> None:
    horizon = graph.chance.choice((2, 6))
    stream = flow.stream | hf.distinct(
        by="k", horizon=horizon, timestamp=flow.time, disorder=FAR, name=graph.name("distinct")
    )
    lines: Lines = {}
    for key, rows in flow.lines.items():
        kept: list[Row] = []
        for row in rows:
            if all(abs(row[flow.time] - other[flow.time]) >= horizon for other in kept):
                kept.append(row)
        lines[key] = kept
    graph.flows.append(replace(flow, stream=stream, lines=lines))


def _accumulate(graph: Graph, flow: Flow) -> None:
    name = graph.name("accumulate")
    seen, top = graph.column("seen"), graph.column("top")
    computed: dict[str, Any] = {seen: hf.count(), top: hf.max(flow.value)}
    stream = flow.stream | hf.accumulate(by="k", name=name, **computed)
    lines = {}
    for key, rows in flow.lines.items():
        highest = [max(row[flow.value] for row in rows[: place + 1]) for place in range(len(rows))]
        lines[key] = [{**row, seen: place + 1, top: highest[place]} for place, row in enumerate(rows)]
    graph.flows.append(replace(flow, stream=stream, lines=lines, columns=(*flow.columns, seen, top)))


def _over(graph: Graph, flow: Flow) -> None:
    name, size = graph.name("over"), graph.chance.choice((1, 2, 5))
    seen, top = graph.column("seen"), graph.column("top")
    computed: dict[str, Any] = {seen: hf.count(), top: hf.max(flow.value)}
    stream = flow.stream | hf.over(
        rows=size, by="k", timestamp=flow.time, disorder=flow.promise or None, name=name, **computed
    )
    good, late = flow.judged()
    lines: Lines = {}
    for key, rows in good.items():
        rows = sorted(rows, key=lambda row: row[flow.time])
        last = [rows[max(0, place + 1 - size) : place + 1] for place in range(len(rows))]
        lines[key] = [{**of[-1], seen: len(of), top: max(row[flow.value] for row in of)} for of in last]
    graph.add_side(stream, "late", {"rows": (flow, late)})
    columns = (*flow.columns, seen, top)
    graph.flows.append(replace(flow, stream=stream, lines=lines, columns=columns, disorder=0))


def _difference(time: str, value: str, tables: Any, rows: Any, at: Any) -> Any:
    """A step of the user's own: how much the value grew since the key's last row."""
    last = {} if tables is None else {row["k"]: row["v"] for row in tables["last"].to_pylist()}
    made = []
    for row in rows.to_pylist():
        made.append({"k": row["k"], "t": row[time], "v": row[value] - last.get(row["k"], 0)})
        last[row["k"]] = row[value]
    known = pl.DataFrame([{"k": key, "v": v} for key, v in last.items()], schema={"k": pl.String, "v": pl.Int64})
    return {"last": known}, pl.DataFrame(made, schema={"k": pl.String, "t": pl.Int64, "v": pl.Int64})


def _stateful(graph: Graph, flow: Flow) -> None:
    stream = flow.stream | hf.stateful(
        partial(_difference, flow.time, flow.value),
        "k",
        schema=PLAIN,
        state={"last": "k STRING, v BIGINT"},
        timestamp="t",
        name=graph.name("stateful"),
    )
    graph.flows.append(_grown(flow, stream))


def _growth(time: str, value: str, key: Any, rows: Any, state: Any) -> list[Row]:
    """A function of the user's own, key by key: how much the value grew since the key's last row."""
    made = []
    for row in rows:
        made.append({"k": row["k"], "t": row[time], "v": row[value] - (state.get("last") or 0)})
        state.set(last=row[value])
    return made


def _apply(graph: Graph, flow: Flow) -> None:
    stream = flow.stream | hf.apply(
        partial(_growth, flow.time, flow.value),
        by="k",
        schema=PLAIN,
        state="last BIGINT",
        timestamp="t",
        name=graph.name("apply"),
    )
    graph.flows.append(_grown(flow, stream))


def _grown(flow: Flow, stream: Any) -> Flow:
    lines: Lines = {}
    for key, rows in flow.lines.items():
        before = 0
        for row in rows:
            lines.setdefault(key, []).append({"k": key, "t": row[flow.time], "v": row[flow.value] - before})
            before = row[flow.value]
    return replace(flow, stream=stream, lines=lines, columns=("k", "t", "v"), time="t", value="v")


def _alarm(graph: Graph, flow: Flow) -> None:
    """A function that asks to be called again some time behind each row, and says when it is."""
    gap = graph.chance.choice((0, 1, 4))
    # A late row would ask for a time that is over, maybe once more: then rows must promise nothing.
    promises = not flow.judged()[1] and graph.chance.random() < 0.6
    stream = flow.stream | hf.apply(
        partial(_ring, flow.time, gap),
        by="k",
        schema=PLAIN,
        state="rung BIGINT" if graph.chance.random() < 0.5 else None,
        timestamp="t",
        timers="event",
        disorder=flow.disorder if promises else None,
        name=graph.name("alarm"),
    )
    lines = {
        key: [{"k": key, "t": at, "v": at} for at in sorted({row[flow.time] + gap for row in rows})]
        for key, rows in flow.lines.items()
    }
    graph.flows.append(Flow(stream, lines, is_strict=True))


def _ring(time: str, gap: int, key: str, rows: list[Row], state: hf.KeyState) -> list[Row]:
    for row in rows:
        state.timer(row[time] + gap)
    return [] if state.fired is None else [{"k": key, "t": state.fired.at, "v": state.fired.at}]


def _limit(graph: Graph, flow: Flow) -> None:
    n, timeout = graph.chance.choice((1, 2)), graph.chance.choice((3, 9))
    stream = flow.stream | hf.limit_in_flight(n, "k", timeout=timeout, name=graph.name("limit_in_flight"))
    lines: Lines = {}
    shed: Lines = {}
    late: Lines = {}
    for key, rows in flow.lines.items():
        newest, flying, is_admitted = -FAR, list[int](), False
        for row in rows:
            at = row[flow.time]
            if at < newest:
                late.setdefault(key, []).append(row)
                continue
            if at > newest:
                flying = [other for other in flying if other >= at - timeout]
                newest, is_admitted = at, len(flying) < n
                flying += [at] * is_admitted
            (lines if is_admitted else shed).setdefault(key, []).append(row)
    graph.add_side(stream, "late", {"rows": (flow, late)})
    graph.flows.append(replace(flow, stream=stream, lines=lines, disorder=0))
    graph.sides["shed"] = replace(flow, stream=stream.shed, lines=shed, disorder=0)
    graph.write(graph.sides["shed"])


def _small(value: int) -> int:
    return value // 100 + value % 100


def _frame_of(value: int) -> dict[str, Any]:
    return {"is_key": value % 4 == 0, "v": value}


def calculators() -> flowgraphs.Graph:
    """Return a graph with a limiter and its loop, a calculator with state, and one that is replayed."""
    made = flowgraphs.Graph("calculators")
    finished = made.back_edge("finished")
    values = made.input("rows") | flowgraphs.node(_small, name="values")
    limited = {"main": values, "finished": finished} | flowgraphs.node(FlowLimiter, name="limiter")
    images = limited["main"] | flowgraphs.node(_frame_of, name="frames") | flowgraphs.node(Decoder, name="decoder")
    both = {"left": limited["main"] | flowgraphs.node(Total, name="total"), "right": images} | flowgraphs.node(
        Both, name="both"
    )
    finished.comes_from(both)
    made.output("both", both)
    made.output("odd", limited["main"] | flowgraphs.node(Odd, name="odd"))
    return made


def _flow(graph: Graph, given: Flow) -> None:
    both, odd = graph.column("both"), graph.column("odd")
    streams: Any = hf.flow(
        {"rows": given.stream},
        calculators(),
        by="k",
        inputs={"rows": given.value},
        outputs={"both": f"{both} BIGINT", "odd": f"{odd} BIGINT"},
        disorder=given.promise,
        name=graph.name("flow"),
    )
    good, late = given.judged()
    lines: Lines = {}
    odds: Lines = {}
    for key, rows in good.items():
        first: dict[int, Row] = {}
        for row in rows:
            if first.setdefault(row[given.time], row) is not row:
                late.setdefault(key, []).append(row)
        total, image = 0, None
        for at, row in sorted(first.items()):
            value = _small(row[given.value])
            total += value
            image = value if value % 4 == 0 else None if image is None else (31 * image + value) % 1_000_003
            made = {"k": key, given.time: at}
            lines.setdefault(key, []).append({**made, both: 2 * total + 3 * (image or 0) + 1})
            if value % 2:
                odds.setdefault(key, []).append({**made, odd: value})
    graph.add_side(streams["both"], "late", {"rows": (given, late)})
    form = Flow(streams["both"], lines, ("k", given.time, both), given.time, both, is_strict=True)
    graph.flows.append(form)
    graph.sides[OUTPUT] = replace(form, stream=streams["odd"], lines=odds, columns=("k", given.time, odd), value=odd)
    graph.write(graph.sides[OUTPUT])


MAKERS: Mapping[str, Maker] = {
    "filter": Maker(_filter),
    "expect": Maker(_expect),
    "unmet": Maker(_unmet),
    "function": Maker(_function),
    "select": Maker(_select),
    "explode": Maker(_explode, _is_small),
    "split": Maker(_split),
    "clip": Maker(_clip, _is_timed),
    "union": Maker(_union),
    "map": Maker(_map),
    "sql": Maker(_sql, weight=2),
    "map_batches": Maker(_map_batches),
    "row_id": Maker(_row_id),
    "call": Maker(_call),
    "answered": Maker(_answered_alone),
    "unanswered": Maker(_unanswered),
    "aggregate": Maker(_aggregate, keeps_state=True, weight=2),
    "over_changes": Maker(_over_changes, keeps_state=True),
    "join_changes": Maker(_join_changes, keeps_state=True),
    "sync": Maker(_sync, _is_ordered_and_timed, keeps_state=True, weight=3),
    "merge": Maker(_merge, _is_timed, keeps_state=True, weight=2),
    "join": Maker(_join, _is_small_and_timed, keeps_state=True, weight=2),
    "distinct": Maker(_distinct, _is_ordered, keeps_state=True),
    "accumulate": Maker(_accumulate, _is_ordered, keeps_state=True),
    "over": Maker(_over, _is_ordered_and_timed, keeps_state=True),
    "stateful": Maker(_stateful, _is_ordered, keeps_state=True),
    "apply": Maker(_apply, _is_ordered, keeps_state=True),
    "alarm": Maker(_alarm, _is_ordered_and_timed, keeps_state=True),
    "limit_in_flight": Maker(_limit, _is_ordered_and_timed, keeps_state=True),
    "flow": Maker(_flow, _is_ordered_and_timed, keeps_state=True),
}
"""What an operator is made as -> how."""

OF_TIMED = frozenset(
    kind for kind, maker in MAKERS.items() if maker.fits in (_is_timed, _is_ordered_and_timed, _is_small_and_timed)
)
"""What stands only where the graph knows the time of rows: not behind a total of all times."""
