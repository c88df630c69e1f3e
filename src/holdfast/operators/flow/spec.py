"""``flow``: a graph of calculators for each key, as an operator of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar
from uuid import uuid4

import pyarrow as pa

from holdfast.errors import InvalidPipeline
from holdfast.flow.drawing import policy_text
from holdfast.flow.graph import Graph
from holdfast.flow.queues import Payload
from holdfast.graph.building import a_type, building, require_columns
from holdfast.graph.evolution import NOTHING, Evolution, Migration, past_of
from holdfast.graph.naming import Origin
from holdfast.graph.nodes import Stream, apply, side_output
from holdfast.graph.shape import Shape
from holdfast.operators.flow.checks import (
    RIGHT,
    check_graph,
    check_renames,
    checked_idle,
    checked_threads,
    disorder_by_input,
    output_schemas,
)
from holdfast.operators.flow.rows import Port
from holdfast.operators.flow.step import FlowStep
from holdfast.ports import SideRows
from holdfast.state import checks, keyed
from holdfast.state.timeline import Promise
from holdfast.types import units

PARTS = "calculators"
"""The argument that says what its calculators are: each has state by its name."""


@dataclass(frozen=True)
class Flow:
    """A graph of calculators, once for each key.

    Parameters
    ----------
    graph : Graph
        What it runs.
    by : tuple of str
        Key columns.
    times : mapping of str to str
        Graph input -> timestamp column of the stream that fills it.
    columns : mapping of str to str
        Graph input -> the column whose value is the payload; the others get whole rows.
    schemas : mapping of str to pa.Schema
        Graph output -> columns of its payloads; the first is the operator's main output.
    disorder : mapping of str to str or int
        Graph input -> how far a row may be behind the highest timestamp before it.
    side_inputs : mapping
        Of the graph.
    renamed : mapping of str to str
        Node of the graph -> its name before.
    forget_after : str, optional
        How long a silent key is remembered, in logged batch time.
    threads : int, optional
        Of each graph; None: its calculators are called one at a time.
    idle_after : str, optional
        How long a key waits for a silent input, in logged batch time.
    token : str
        By which a worker knows the graphs that it has built of this one.
    """

    graph: Graph
    by: tuple[str, ...]
    times: Mapping[str, str]
    columns: Mapping[str, str]
    schemas: Mapping[str, pa.Schema]
    disorder: Mapping[str, str | int]
    side_inputs: Mapping[str, Payload] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    forget_after: str | None = None
    threads: int | None = None
    idle_after: str | None = None
    token: str = field(default_factory=lambda: uuid4().hex)
    kind: ClassVar[str] = "flow"

    @property
    def input_names(self) -> tuple[str, ...]:
        """The graph's inputs."""
        return tuple(self.times)

    @property
    def time_columns(self) -> tuple[str, ...]:
        """The timestamp of each input."""
        return tuple(self.times.values())

    @property
    def side_outputs(self) -> Mapping[str, SideRows]:
        """``late``, and the graph's outputs but the first."""
        others = {name: SideRows(self._columns(name), self._time, keeps_bounds=True) for name in [*self.schemas][1:]}
        return {"late": SideRows.of_inputs(self.by, self.input_names), **others}

    @property
    def wakes(self) -> bool:
        """Whether rows leave it by the clock: those that wait for a silent input."""
        return bool(self.idle_after)

    @property
    def watches_clock(self) -> bool:
        """Whether keys are forgotten, or do not wait for ever."""
        return bool(self.forget_after) or self.wakes

    @property
    def _time(self) -> str:
        return next(iter(self.times.values()))

    def _columns(self, output: str) -> tuple[str, ...]:
        return (*self.by, self._time, *self.schemas[output].names)

    def arguments(self) -> Mapping[str, Payload]:
        """Return key, inputs, outputs, and what each calculator is."""
        return {
            "by": list(self.by),
            "inputs": {name: [time, self.columns.get(name)] for name, time in self.times.items()},
            "outputs": {name: checks.spelled(schema) for name, schema in self.schemas.items()},
            "disorder": dict(self.disorder),
            "idle_after": self.idle_after,
            "forget_after": self.forget_after,
            PARTS: {
                name: {
                    "is": placed.node.kind.identity,
                    "inputs": {port: stream.name for port, stream in placed.inputs.items()},
                    "policy": policy_text(self.graph.policy_of(placed)),
                }
                for name, placed in self.graph.nodes.items()
            },
        }

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return key, timestamp and the columns of the first output."""
        for (name, time), shape in zip(self.times.items(), inputs, strict=True):
            wanted = [self.columns[name]] if name in self.columns else []
            require_columns([*self.by, time, *wanted], shape.columns, f"input {name!r}")
        return Shape(self._columns(next(iter(self.schemas))), self._time)

    def step(self, inputs: Mapping[str, pa.Schema]) -> FlowStep:
        """Return the step for inputs of these schemas.

        Raises
        ------
        InvalidPipeline
            If keys or timestamps differ in name or type.
        """
        first = next(iter(self.times))
        key = keyed.key_schema(inputs[first], self.by)
        time = keyed.time_field(inputs[first], self.times[first])
        times, ports = {}, {}
        for name, column in self.times.items():
            mine, theirs = keyed.time_field(inputs[name], column), keyed.key_schema(inputs[name], self.by)
            if mine.type != time.type or theirs.names != key.names or theirs.types != key.types:
                raise InvalidPipeline(
                    f"input {name!r} does not fit input {first!r}.",
                    why=f"it has {checks.spelled(theirs)} and {mine.name} {mine.type}; the other has "
                    f"{checks.spelled(key)} and {time.name} {time.type}.",
                    do="bring key and timestamp to the same names and types before.",
                )
            times[name] = mine.name
            ports[name] = Port(name, self.columns.get(name), tuple(key.names))
        promises = {
            name: Promise(
                True, keyed.duration_ticks(self.disorder[name], time, "disorder") if name in self.disorder else None
            )
            for name in times
        }
        forget_us = None if self.forget_after is None else units.duration_us(self.forget_after)
        return FlowStep(
            self.graph,
            {name: inputs[name] for name in times},
            key,
            times,
            ports,
            self.schemas,
            promises,
            self.side_inputs,
            self.renamed,
            forget_us,
            self.token,
            self.threads,
            None if self.idle_after is None else units.duration_us(self.idle_after),
        )


@dataclass(frozen=True)
class FlowAnywhere:
    """A flow that has no input yet: what ``hf.flow(graph, ...)`` returns."""

    graph: Graph
    arguments: Mapping[str, Payload]
    name: str | None
    origin: Origin
    past: Evolution = NOTHING

    def attach(self, stream: Stream) -> Any:
        """Return the stream of the graph's output, or all of them by name."""
        with building(Flow.kind, self.name, self.origin):
            names = list(self.graph.inputs)
            if len(names) != 1:
                raise InvalidPipeline(
                    f"graph {self.graph.name!r} has {len(names)} inputs, and one stream was given.",
                    why=f"they are {', '.join(names) or 'none'}.",
                    do="name them: hf.flow({" + ", ".join(f'"{name}": ...' for name in names) + "}, graph, ...).",
                )
            spec = _spec(self.graph, {names[0]: stream}, **self.arguments)
        return _put(spec, (stream,), self.name, self.origin, self.past)


def flow(
    streams: Mapping[str, Stream] | Graph,
    graph: Graph | None = None,
    *,
    by: str | Sequence[str],
    schema: Any = None,
    outputs: Mapping[str, Payload] | None = None,
    inputs: Mapping[str, str] | None = None,
    disorder: str | int | Mapping[str, str | int] | None = None,
    idle_after: str | None = None,
    side_inputs: Mapping[str, Payload] | None = None,
    renamed_nodes: Mapping[str, str] | None = None,
    forget_after: str | None = None,
    threads: int | None = None,
    name: str | None = None,
    renamed_from: str | None = None,
    migrate: Migration | Mapping[str, Migration] | None = None,
) -> Any:
    """Run a graph of calculators for each key: ``frames | hf.flow(graph, by="camera", schema=...)``.

    Parameters
    ----------
    streams : mapping of str to Stream
        Graph input -> stream, for a graph of several; of one, left of ``|``, it is left out.
    graph : Graph
        Made with ``hf.flow.Graph``.
    by : str or sequence of str
        Key columns: each key has a graph of its own.
    schema : str, StructType or pyarrow.Schema
        Columns of the payloads of a graph with one output; key and timestamp stand before them.  A payload is a mapping
        of column to value, or the value itself where there is one column.
    outputs : mapping of str to schema
        The same for a graph with several outputs: each is a stream.
    inputs : mapping of str to str, optional
        Graph input -> column whose value is the payload.  Without one the payload is the row, a dict of its columns
        without the key.
    disorder : str, int or mapping, optional
        How far a row may be behind the highest timestamp before it: a duration, or ticks where timestamps are BIGINT.
        Rows are fed in the order of their timestamps, each as soon as nothing below it can come.
    idle_after : str, optional
        Duration after which a key no longer waits on a silent input, decided on logged batch time.
    side_inputs : mapping, optional
        Side input of the graph -> value; it is sent to the executors.
    renamed_nodes : mapping of str to str, optional
        Node of the graph -> the name under which its state was kept before.  It has an effect once, and may stay.
    forget_after : str, optional
        Forget a key that was silent for this long, in logged batch time, and of which nothing waits.
    threads : int, optional
        Threads on which calculators of a graph run side by side; without it they are called one at a time.  Each graph
        in memory has its own.  Only where no policy goes by arrival: what leaves is the same then.
    name : str, optional
        The operator's name, under which its state is kept.
    renamed_from : str, optional
        Its name in the graph that ran before: its state continues under the new one.
    migrate : function or mapping of str to function, optional
        Converts state tables of another form, table to table: ``docs/state.md``.

    Returns
    -------
    Stream, or mapping of str to Stream
        Of a graph with one output its stream, else all of them by name; ``late`` of the first one has late rows, and
        those whose key and timestamp another row had.

    Raises
    ------
    InvalidPipeline
        If the graph is not complete, has sources of its own, or inputs and outputs do not fit; in a run, if a
        calculator raises: the error names it, the key and the timestamp.

    Notes
    -----
    Runs on the executors, in Python, once per bucket and epoch; rows go through Python one by one.  Calculators run one
    at a time.  What waits by a policy between two epochs, and what calculators save, is the operator's state, so a
    crash resumes exactly.  ``Context.now`` is the logged batch time.

    References
    ----------
    MediaPipe, "Synchronization": calculators, input policies, flow control.

    Examples
    --------
    ::

        tracks = frames | hf.flow(tracking(), by="camera", inputs={"frames": "image"}, schema="track INT, box STRING")
    """
    with building(Flow.kind, name) as built_at:
        past = replace(
            past_of(renamed_from, migrate, kind=Flow.kind, built_at=built_at),
            parts=PARTS,
            renamed_parts=dict(renamed_nodes or {}),
        )
        arguments = {
            "by": by,
            "schema": schema,
            "outputs": outputs,
            "inputs": inputs,
            "disorder": disorder,
            "idle_after": idle_after,
            "side_inputs": side_inputs,
            "renamed_nodes": renamed_nodes,
            "forget_after": forget_after,
            "threads": threads,
        }
        if isinstance(streams, Graph) and graph is None:
            return FlowAnywhere(streams.snapshot(), arguments, name, built_at, past)
        if not isinstance(graph, Graph) or not isinstance(streams, Mapping):
            raise InvalidPipeline(
                f"hf.flow got {a_type(streams)} and {a_type(graph)}.",
                why="it takes a graph, or streams by graph input and a graph.",
                do=f'write {RIGHT}, or hf.flow({{"frames": frames, "gps": gps}}, graph, ...).',
            )
        spec = _spec(graph.snapshot(), streams, **arguments)
        given = tuple(streams[each] for each in spec.input_names)
    return _put(spec, given, name, built_at, past)


def _put(spec: Flow, streams: tuple[Stream, ...], name: str | None, origin: Origin, past: Evolution) -> Any:
    main = apply(spec, streams, name=name, built_at=origin, past=past)
    first, *others = spec.schemas
    if not others:
        return main
    return {first: main, **{each: side_output(main, each) for each in others}}


def _spec(
    graph: Graph,
    streams: Mapping[str, Stream],
    *,
    by: str | Sequence[str],
    schema: Any,
    outputs: Mapping[str, Payload] | None,
    inputs: Mapping[str, str] | None,
    disorder: str | int | Mapping[str, str | int] | None,
    idle_after: str | None,
    side_inputs: Mapping[str, Payload] | None,
    renamed_nodes: Mapping[str, str] | None,
    forget_after: str | None,
    threads: int | None,
) -> Flow:
    graph.check()
    check_graph(graph, streams)
    keys = keyed.key_names(by)
    times = {name: keyed.timestamp_of(streams[name], None) for name in graph.inputs}
    columns = dict(inputs or {})
    if unknown := [name for name in columns if name not in graph.inputs]:
        raise InvalidPipeline(
            f"inputs= names {unknown[0]!r}, which is no input of graph {graph.name!r}.",
            why=f"its inputs are {', '.join(graph.inputs)}.",
            do="use one of these.",
        )
    if forget_after is not None:
        units.duration_us(forget_after, argument="forget_after")
    if missing := [name for name in graph.side_inputs if name not in (side_inputs or {})]:
        raise InvalidPipeline(
            f"graph {graph.name!r} lacks the side input {missing[0]!r}.",
            do=f"give it: side_inputs={{{missing[0]!r}: ...}}.",
        )
    return Flow(
        graph,
        keys,
        times,
        columns,
        output_schemas(graph, schema, outputs, (*keys, next(iter(times.values())))),
        disorder_by_input(disorder, list(graph.inputs)),
        dict(side_inputs or {}),
        check_renames(graph, dict(renamed_nodes or {})),
        forget_after,
        checked_threads(graph, threads),
        checked_idle(graph, idle_after),
    )
