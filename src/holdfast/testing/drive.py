"""``drive``: any graph of pure operators, run in this process and without Spark, epoch by epoch.

Stateless operators run through the same Arrow operations as in a run, stateful ones through their step.  State goes
through bytes after every epoch, as it does in a run, so a test that passes here has shown that it survives that.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from holdfast.errors import InvalidPipeline
from holdfast.graph import naming
from holdfast.graph.nodes import Node, Stream
from holdfast.operators.lowering import InArrow, lowering_of
from holdfast.sources.bounds import MarkedSpec
from holdfast.state import call, checks, encoding, tables
from holdfast.state.step import ALL_KEYS, BOUND, CLOSED, PLACE, Arrivals, Step, StepTime

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RIGHT = 'drive(stream, {"flights": [[{"origin": "JFK", "t": 10}], [bound(20)]]})'

Time = int | str | datetime


@dataclass(frozen=True)
class Bound:
    """A control row: what an input promises from here on.

    Parameters
    ----------
    ticks : int
        No row below it comes any more.
    key : mapping, optional
        The key it holds for, as ``{column: value}``; None for all keys.
    """

    ticks: int
    key: Mapping[str, Any] | None = None


def bound(t: Time, key: Mapping[str, Any] | None = None) -> Bound:
    """Return a control row for :func:`drive`: no row below ``t`` comes any more.

    Parameters
    ----------
    t : int, str or datetime
        Ticks (microseconds of Unix time for a TIMESTAMP), ISO 8601 text or a datetime; without a zone UTC.
    key : mapping, optional
        ``{"origin": "JFK"}``: the key it holds for.  Without it, all keys.

    Examples
    --------
    >>> bound(20), bound("1970-01-01T00:00:01", {"origin": "JFK"})
    (Bound(ticks=20, key=None), Bound(ticks=1000000, key={'origin': 'JFK'}))
    """
    return Bound(_ticks(t), key)


def close(key: Mapping[str, Any] | None = None) -> Bound:
    """Return a control row for :func:`drive`: the input has ended (for one key, or altogether)."""
    return Bound(CLOSED, key)


def _ticks(t: Time) -> int:
    if isinstance(t, int):
        return t
    moment = datetime.fromisoformat(t) if isinstance(t, str) else t
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)


Item = Mapping[str, Any] | Bound


def drive(
    stream: Stream,
    sources: Mapping[str, Sequence[Sequence[Item]]],
    *,
    buckets: int = 1,
    batch_times: Sequence[Time] | None = None,
    behind: Sequence[Collection[str]] = (),
) -> list[list[dict[str, Any]]]:
    """Run a graph of pure operators without Spark.

    Parameters
    ----------
    stream : Stream
        Whose rows are wanted; also a side output such as ``aligned.late``.
    sources : mapping of str to sequence
        Source name -> for each epoch its rows, as dicts, with control rows (:func:`bound`, :func:`close`) among them.
        Within an epoch the rows of the first source arrive before those of the second, and so on; a source with fewer
        epochs than others brings nothing in the later ones.
    buckets : int
        Number of buckets that keys are divided into.  The rows do not depend on it; their order across keys may.
    batch_times : sequence, optional
        Batch time of each epoch: microseconds of Unix time, ISO 8601 text or datetimes.  By default one second apart.
        More times than epochs give epochs without rows.
    behind : sequence of collection of str, optional
        For each epoch the sources that have more to give than it takes: their silence is no silence (``idle_after``).

    Returns
    -------
    list of list of dict
        For each epoch the rows of the stream.

    Raises
    ------
    InvalidPipeline
        If a source is not given or not part of the graph, a row does not fit its schema, or an operator needs Spark.

    Notes
    -----
    Timestamps in rows are what the schema says: datetimes for TIMESTAMP, integers for BIGINT.

    Examples
    --------
    >>> import holdfast as hf
    >>> flights = hf.read.rows([], schema="origin STRING, delay INT", name="flights")
    >>> drive(flights | hf.filter("delay > 15"), {"flights": [[{"origin": "JFK", "delay": 20}], []]})
    [[{'origin': 'JFK', 'delay': 20}], []]
    """
    driven = Drive(stream, sources, buckets=buckets, batch_times=batch_times, behind=behind)
    return [table.to_pylist() for table in driven.tables()]


@dataclass
class _Flow:
    """What a node gives in one epoch: rows, and bounds for whoever stands behind; each with its place."""

    rows: pa.Table
    bounds: list[tuple[int, Bound]] = field(default_factory=list)


class Drive:
    """A graph under test, with what :func:`drive` does not return: counts and state.

    Parameters
    ----------
    stream, sources, buckets, batch_times, behind
        See :func:`drive`.

    Attributes
    ----------
    counts : dict of (str, str) to int
        (operator, what) -> sum over buckets of the last epoch.
    outputs : dict of str to dict of str to pa.Table
        Operator -> output -> its rows of the last epoch, side outputs included.
    dues : list of int or None
        For each epoch, when something leaves next although nothing arrives.
    states : dict of str to list of bytes
        Operator -> the state of each bucket, as :func:`holdfast.state.encoding.encode` writes it.
    """

    def __init__(
        self,
        stream: Stream,
        sources: Mapping[str, Sequence[Sequence[Item]]],
        *,
        buckets: int = 1,
        batch_times: Sequence[Time] | None = None,
        behind: Sequence[Collection[str]] = (),
    ) -> None:
        self.counts: dict[tuple[str, str], int] = {}
        self.outputs: dict[str, dict[str, pa.Table]] = {}
        self.states: dict[str, list[bytes]] = {}
        self._nodes = _in_order(stream.node)
        self._end = stream.node
        self._sources = sources
        self._buckets = buckets
        times = None if batch_times is None else [_ticks(time) for time in batch_times]
        count = max([len(epochs) for epochs in sources.values()] + [len(times or [])])
        self._times = times if times is not None else [epoch * 1_000_000 for epoch in range(count)]
        if len(self._times) < count:
            raise InvalidPipeline(
                f"{count} epochs have {len(self._times)} batch times.", do="give one for each epoch, or none at all."
            )
        self._check_sources()
        self._operators = _compiled(self._nodes)
        self._united: dict[Node, list[dict[Any, int]]] = {}
        self._behind = behind
        self._heard: dict[str, int] = {}
        self.dues: list[int | None] = []

    def tables(self) -> list[pa.Table]:
        """Run all epochs; return the stream's rows of each."""
        return [self._epoch(epoch, time) for epoch, time in enumerate(self._times)]

    def _check_sources(self) -> None:
        known = {node.name for node in self._nodes if node.is_source}
        if set(self._sources) != known:
            odd = sorted(set(self._sources) ^ known)[0]
            raise InvalidPipeline(
                f"source {odd!r} is {'not given any rows' if odd in known else 'not part of the graph'}.",
                why=f"the graph reads {', '.join(sorted(known))}.",
                do=f"give the rows of each: {_RIGHT}",
            )

    def _epoch(self, epoch: int, time: int) -> pa.Table:
        self.counts = {}
        self.dues.append(None)
        self._hear(epoch, time)
        done: dict[tuple[Node, str], _Flow] = {}
        place = 0
        for name, epochs in self._sources.items():
            node = next(node for node in self._nodes if node.is_source and node.name == name)
            items = self._with_bounds(node, epochs[epoch] if epoch < len(epochs) else [])
            done[node, "rows"] = _arrived(items, self._operators.schemas[node], name, place)
            place += len(items)
        for node in self._nodes:
            if node.is_source or (node, "rows") in done:
                continue
            before = [done[self._operators.read(behind)] for behind in node.inputs]
            if node in self._operators.steps:
                at = self._moment(node, epoch, time)
                for output, flow in self._stateful(node, before, at).items():
                    done[node, output] = flow
            elif node in self._operators.operations:
                done[node, "rows"] = self._stateless(node, before)
        return done[self._operators.read(self._end)].rows.drop_columns([PLACE])

    def _hear(self, epoch: int, time: int) -> None:
        """Note up to when the silence of sources says nothing: also in the epoch in which one has given all at last."""
        before = self._behind[epoch - 1] if 0 < epoch <= len(self._behind) else ()
        now = self._behind[epoch] if epoch < len(self._behind) else ()
        self._heard |= dict.fromkeys((*before, *now), time)

    def _moment(self, node: Node, epoch: int, time: int) -> StepTime:
        heard = {}
        for name, behind in zip(self._operators.steps[node].inputs, node.inputs, strict=True):
            times = [self._heard[each.name] for each in _in_order(behind) if each.name in self._heard]
            if times:
                heard[name] = max(times)
        return StepTime(epoch, time, heard)

    def _with_bounds(self, node: Node, items: Sequence[Item]) -> Sequence[Item]:
        """Return what a source gives with its bound rows as control rows, and without the column that marks them."""
        if not isinstance(node.spec, MarkedSpec):
            return items
        keys = {name for step in self._operators.steps.values() for name in step.key.names}
        return [item if isinstance(item, Bound) else _unmarked(item, node.spec, keys) for item in items]

    def _stateless(self, node: Node, before: Sequence[_Flow]) -> _Flow:
        """Run a stateless operator; places are those of the rows that it kept, where it says which these are."""
        operation, schema = self._operators.operations[node]
        if len(before) > 1:
            rows = pa.concat_tables(
                [flow.rows.select([*schema.names, PLACE]).cast(_placed(schema, flow.rows.schema)) for flow in before]
            ).sort_by(PLACE)
            return _Flow(rows, self._least(node, before))
        parts: list[pa.RecordBatch] = []
        places: list[int] = []
        # One row at a time: an operation does not say which row became which, and a test has few.
        table = before[0].rows
        for index in range(table.num_rows):
            one = table.slice(index, 1)
            for batch in operation.apply([one.drop_columns([PLACE]).combine_chunks().to_batches()]):
                parts.append(batch)
                places += [one.column(PLACE)[0].as_py()] * batch.num_rows
        made = pa.Table.from_batches([part.cast(schema) for part in parts], schema=schema)
        return _Flow(made.append_column(PLACE, pa.array(places, pa.int64())), before[0].bounds)

    def _least(self, node: Node, before: Sequence[_Flow]) -> list[tuple[int, Bound]]:
        """Return the bounds of a union: the least of its inputs', told when it rises."""
        known = self._united.setdefault(node, [{} for _ in before])
        merged = sorted(
            ((place, number, told) for number, flow in enumerate(before) for place, told in flow.bounds),
            key=lambda item: item[0],
        )
        given: list[tuple[int, Bound]] = []
        for place, number, told in merged:
            key = None if told.key is None else tuple(sorted(told.key.items()))
            known[number][key] = max(told.ticks, known[number].get(key, told.ticks))
            least = [max((ticks for k, ticks in one.items() if k in (None, key)), default=None) for one in known]
            if None not in least:
                given.append((place, Bound(min(ticks for ticks in least if ticks is not None), told.key)))
        return given

    def _stateful(self, node: Node, before: Sequence[_Flow], at: StepTime) -> dict[str, _Flow]:
        step = self._operators.steps[node]
        states = self.states.setdefault(node.name, [encoding.encode(tables.empty_state(step))] * self._buckets)
        outputs: dict[str, list[pa.Table]] = {name: [] for name in step.outputs}
        bounds: list[tuple[int, Bound]] = []
        before = _placed_anew(before)
        for bucket in range(self._buckets):
            arrivals = {
                name: _arrivals(flow, step, bucket, self._buckets)
                for name, flow in zip(step.inputs, before, strict=True)
            }
            state = encoding.decode(states[bucket])
            result = call.call(step, state, arrivals, at, operator=node.name, bucket=bucket)
            if result.due_us is not None:
                self.dues[-1] = min(result.due_us, result.due_us if self.dues[-1] is None else self.dues[-1])
            changes = encoding.decode_changes(encoding.encode_changes(result.changes))
            states[bucket] = encoding.encode(tables.apply_changes(state, step.tables, changes))
            for name, rows in result.outputs.items():
                outputs[name].append(rows)
            for what, count in result.counts.items():
                self.counts[node.name, what] = self.counts.get((node.name, what), 0) + count
            bounds += [(0, _told(row)) for row in ([] if result.bounds is None else result.bounds.to_pylist())]
        self.outputs[node.name] = {name: pa.concat_tables(parts) for name, parts in outputs.items()}
        flows: dict[str, _Flow] = {}
        for name, rows in self.outputs[node.name].items():
            flows[name] = _Flow(rows.append_column(PLACE, pa.array(range(rows.num_rows), pa.int64())))
        if self._buckets == 1:  # a bound for all keys is one bucket's word; the others may be behind
            flows["rows"].bounds = [(flows["rows"].rows.num_rows, told) for _, told in bounds]
        else:
            flows["rows"].bounds = [
                (flows["rows"].rows.num_rows, told) for _, told in bounds if told.key is not None
            ] + self._all_said(node, bounds)
        return flows

    def _all_said(self, node: Node, bounds: Sequence[tuple[int, Bound]]) -> list[tuple[int, Bound]]:
        said = [told for _, told in bounds if told.key is None]
        return [(1 << 40, min(said, key=lambda told: told.ticks))] if len(said) == self._buckets else []


@dataclass(frozen=True)
class _Operators:
    steps: Mapping[Node, Step]
    operations: Mapping[Node, tuple[Any, pa.Schema]]
    schemas: Mapping[Node, pa.Schema]
    sides: Mapping[Node, str]

    def read(self, node: Node) -> tuple[Node, str]:
        """Return the node that really gives a node's rows, and which of its outputs they are."""
        return (node.inputs[0], self.sides[node]) if node in self.sides else (node, "rows")


def _in_order(end: Node) -> list[Node]:
    seen: dict[Node, None] = {}

    def visit(node: Node) -> None:
        for behind in node.inputs:
            visit(behind)
        seen.setdefault(node)

    visit(end)
    return list(seen)


def _compiled(nodes: Sequence[Node]) -> _Operators:
    from holdfast.plan.program_build import Builder  # of all that stands there it alone is wanted, and only here

    builder = Builder(lambda schema: schema, "drive")
    steps: dict[Node, Step] = {}
    operations: dict[Node, tuple[Any, pa.Schema]] = {}
    schemas: dict[Node, pa.Schema] = {}
    sides: dict[Node, str] = {}
    for node in nodes:
        spec: Any = node.spec
        before = [schemas[behind] for behind in node.inputs]
        row = lowering_of(node)
        if row.in_arrow is InArrow.READ:
            schemas[node] = spec.schema
        elif row.in_arrow is InArrow.STEP:
            steps[node] = spec.step(dict(zip(spec.input_names, before, strict=True)))
            schemas[node] = steps[node].outputs["rows"]
        elif row.in_arrow is InArrow.SIDE_OUTPUT and spec.output in (given := steps[node.inputs[0]].outputs):
            sides[node] = spec.output
            schemas[node] = given[spec.output]
        elif builder.add(node):
            made = builder.steps[builder.number_of(node)]
            operations[node] = (made.operation, made.schema)
            schemas[node] = made.schema
            continue
        else:
            raise InvalidPipeline(
                f"{node.kind} {node.name!r}, built at {node.origin}, cannot be driven without Spark.",
                why=f"its arguments are Spark's to evaluate: {naming.canonical_json(dict(node.arguments()))}.",
                do="write it with expressions that Arrow evaluates, or test the graph with Pipeline.run.",
                participant=node.name,
            )
        builder.head(node, schemas[node])
    return _Operators(steps, operations, schemas, sides)


def _placed(schema: pa.Schema, found: pa.Schema) -> pa.Schema:
    return schema.append(found.field(PLACE))


def _unmarked(item: Mapping[str, Any], spec: MarkedSpec, keys: Collection[str]) -> Item:
    if item.get(spec.marker) is not True:
        return {name: value for name, value in item.items() if name != spec.marker}
    key = {name: value for name, value in item.items() if name in keys and value is not None}
    return bound(item[spec.timestamp or ""], key or None)


def _arrived(items: Sequence[Item], schema: pa.Schema, source: str, first: int) -> _Flow:
    rows: list[Mapping[str, Any]] = []
    places: list[int] = []
    bounds: list[tuple[int, Bound]] = []
    for place, item in enumerate(items, start=first):
        if isinstance(item, Bound):
            bounds.append((place, item))
            continue
        if unknown := [name for name in item if name not in schema.names]:
            raise InvalidPipeline(
                f"a row of source {source!r} has the key {unknown[0]!r}, which is no column.",
                do=f"use the columns of the schema: {', '.join(schema.names)}.",
            )
        rows.append(item)
        places.append(place)
    try:
        table = pa.Table.from_arrays(
            [pa.array([row.get(column.name) for row in rows], column.type) for column in schema], schema=schema
        )
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise InvalidPipeline(
            f"rows of source {source!r} do not fit its schema.",
            why=f"{error}.",
            do=f"its columns are {checks.spelled(schema)}.",
        ) from error
    return _Flow(table.append_column(PLACE, pa.array(places, pa.int64())), bounds)


def _placed_anew(flows: Sequence[_Flow]) -> list[_Flow]:
    """Return flows whose places are unique: what two nodes gave has the same places."""
    found = [
        (place, number, kind, index)
        for number, flow in enumerate(flows)
        for kind, places in enumerate((flow.rows.column(PLACE).to_pylist(), [place for place, _ in flow.bounds]))
        for index, place in enumerate(places)
    ]
    anew = {(number, kind, index): at for at, (_, number, kind, index) in enumerate(sorted(found))}
    placed = []
    for number, flow in enumerate(flows):
        places = pa.array([anew[number, 0, index] for index in range(flow.rows.num_rows)], pa.int64())
        rows = flow.rows.drop_columns([PLACE]).append_column(PLACE, places)
        placed.append(_Flow(rows, [(anew[number, 1, index], told) for index, (_, told) in enumerate(flow.bounds)]))
    return placed


def _told(row: Mapping[str, Any]) -> Bound:
    if row[ALL_KEYS]:
        return Bound(row[BOUND])
    return Bound(row[BOUND], {name: value for name, value in row.items() if name not in (ALL_KEYS, BOUND)})


def _arrivals(flow: _Flow, step: Step, bucket: int, buckets: int) -> Arrivals:
    key = list(step.key.names)
    rows = flow.rows
    if buckets > 1:
        of_rows = [_bucket(tuple(row.values()), buckets) for row in rows.select(key).to_pylist()]
        rows = rows.filter(pa.array([it == bucket for it in of_rows], pa.bool_()))
    told = []
    for place, one in flow.bounds:
        if one.key is None:
            told.append({ALL_KEYS: True, BOUND: one.ticks, PLACE: place})
        elif set(one.key) == set(key) and _bucket(tuple(one.key[name] for name in key), buckets) == bucket:
            told.append({**one.key, ALL_KEYS: False, BOUND: one.ticks, PLACE: place})
    schema = tables.bounds_schema(step.key).append(pa.field(PLACE, pa.int64()))
    return Arrivals(rows, pa.Table.from_pylist(told, schema=schema))


def _bucket(values: tuple[Any, ...], buckets: int) -> int:
    return zlib.crc32(repr(values).encode()) % buckets
