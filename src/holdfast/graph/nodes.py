"""The graph: streams, operators and sink nodes; a :class:`~holdfast.graph.graph.Graph` consists of them.

Everything here is a frozen value: building a graph runs nothing and opens nothing, so it can be checked, drawn,
fingerprinted and compared.  A cycle cannot be built: a node's inputs exist before it does.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar, cast

from holdfast.capabilities import capabilities, offers, optional
from holdfast.display import drawing
from holdfast.errors import InvalidPipeline, invariant
from holdfast.graph import naming
from holdfast.graph.building import (
    building,
    check_row_order,
    check_timestamp,
    no_such_attribute,
    not_attachable,
    register,
)
from holdfast.graph.evolution import NOTHING, Evolution
from holdfast.graph.naming import Origin
from holdfast.graph.row_ids import Identifying
from holdfast.graph.shape import Shape, shape_after
from holdfast.graph.side_outputs import SIDE_OUTPUTS, Rejects, SideOutput, no_rejects
from holdfast.graph.trigger import SinkPace, freshness_us
from holdfast.ports import ClockDriven, Guarantee, Guaranteeing, SinkSpec, SourceSpec, StatefulSpec

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class OperatorSpec(Protocol):
    """Frozen declaration of what one operator does, for the compiler; one kind per module of ``operators``."""

    @property
    def kind(self) -> str:
        """The kind's name, as users write it."""

    def arguments(self) -> Mapping[str, Any]:
        """Arguments for display and fingerprint: JSON values."""

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return what is known of the output's rows.

        Raises
        ------
        InvalidPipeline
            If the operator cannot work on such inputs.  The node and its line are added by the caller.
        """


@optional(OperatorSpec)
class MayReject(Protocol):
    """What an operator's declaration may have: rows that it rejects, as the side output ``rejects``."""

    def failing(self) -> OperatorSpec | None:
        """Return what keeps those rows of the operator's input; None where it rejects none."""


class Attachable(Protocol[T_co]):
    """What is allowed to the right of ``stream |``."""

    def attach(self, stream: Stream) -> T_co:
        """Return the stream, sink node or parts that result."""


@dataclass(frozen=True, eq=False)
class Node:
    """A source or an operator in its place.  Equal only to itself.

    Parameters
    ----------
    spec : SourceSpec or OperatorSpec
        What it does.
    inputs : tuple of Node
        The nodes it reads; empty for a source.
    name : str
        Explicit, or derived from kind, arguments and place.
    is_named : bool
        Whether the name was given by the user.
    origin : Origin
        The line of the user's code that built it.
    shape : Shape
        What is known of its rows.
    past : Evolution
        How it continues the state of the graph that ran before.
    """

    spec: SourceSpec | OperatorSpec
    inputs: tuple[Node, ...]
    name: str
    is_named: bool
    origin: Origin
    shape: Shape
    past: Evolution = NOTHING
    side_outputs: weakref.WeakValueDictionary[str, Node] = field(
        default_factory=weakref.WeakValueDictionary, init=False, repr=False
    )
    """Side outputs in use, by name: asking twice returns the same node."""

    def __post_init__(self) -> None:
        capabilities(self.spec)  # checked here, and not when one is first needed
        register(self)

    @property
    def kind(self) -> str:
        """Kind of the source or operator."""
        return self.spec.kind

    @property
    def is_source(self) -> bool:
        """Whether it reads no other node."""
        return not self.inputs

    @property
    def guarantee(self) -> Guarantee:
        """What it promises for each row; an operator keeps the guarantee of its input."""
        return self.spec.guarantee if offers(self.spec, Guaranteeing) else Guarantee.EXACTLY_ONCE

    @property
    def watches_clock(self) -> bool:
        """Whether it decides something by batch time."""
        return offers(self.spec, ClockDriven) and self.spec.watches_clock

    @property
    def source_spec(self) -> SourceSpec:
        """The declaration of a source; only a source has one."""
        invariant(self.is_source, f"{self} is asked for the declaration of a source.", participant=self.name)
        return cast("SourceSpec", self.spec)

    @property
    def stateful_spec(self) -> StatefulSpec:
        """The declaration of an operator that keeps state; only such an operator has one."""
        is_stateful = offers(self.spec, StatefulSpec)
        invariant(is_stateful, f"{self} is asked for the declaration of its state.", participant=self.name)
        return cast("StatefulSpec", self.spec)

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Names of its rows' columns, where known."""
        return self.shape.columns

    @property
    def timestamp(self) -> str | None:
        """Its rows' timestamp column, where known."""
        return self.shape.timestamp

    def arguments(self) -> Mapping[str, Any]:
        """Arguments for display and fingerprint: JSON values, without secrets."""
        return self.spec.arguments()

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name!r} built at {self.origin}>"


@dataclass(frozen=True)
class Stream:
    """The rows that a node produces.  ``stream | operator`` is a stream, ``stream | sink`` is a sink node.

    Examples
    --------
    ::

        late = flights | hf.filter("dep_delay > 15", name="late")
        pipeline = hf.Pipeline("trips", late | hf.write.files("out/late", name="late_files"))
    """

    node: Node

    @property
    def name(self) -> str:
        """Name of the node."""
        return self.node.name

    @property
    def origin(self) -> Origin:
        """The line of the user's code that built the node."""
        return self.node.origin

    @property
    def shape(self) -> Shape:
        """What is known of its rows."""
        return self.node.shape

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Names of the columns in order; None when unknown."""
        return self.node.columns

    @property
    def timestamp(self) -> str | None:
        """The column that holds event time; None when there is none or it is unknown."""
        return self.node.timestamp

    @property
    def rejects(self) -> Stream:
        """Side output: rows that a source could not read, with reason, text and position; or that an operator rejects.

        Raises
        ------
        InvalidPipeline
            If this is neither, or a source that fails at a malformed row.
        """
        return _rejects(self)

    @property
    def late(self) -> Stream:
        """Side output of a stateful operator: the late rows, with the reason and the row itself.

        Raises
        ------
        InvalidPipeline
            If the stream is not that of an operator for which a row can be late.
        """
        return side_output(self, "late")

    @property
    def unmatched(self) -> Stream:
        """Side output of ``join``, ``sync`` and ``merge``: rows that left without one of another input, and why.

        Raises
        ------
        InvalidPipeline
            If the stream is not that of one of these.
        """
        return side_output(self, "unmatched")

    @property
    def shed(self) -> Stream:
        """Side output of ``limit_in_flight``: the rows that were dropped at its entry, unchanged.

        Raises
        ------
        InvalidPipeline
            If the stream is not that of ``limit_in_flight``.
        """
        return side_output(self, "shed")

    def __or__(self, consumer: Attachable[T]) -> T:
        if not callable(getattr(type(consumer), "attach", None)):
            raise not_attachable(self, consumer, naming.origin())
        return consumer.attach(self)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(no_such_attribute(name))

    def __repr__(self) -> str:
        columns = "unknown columns" if self.columns is None else ", ".join(self.columns)
        return f"<stream of {self.node.kind} {self.name!r} built at {self.origin}: {columns}>"

    def _repr_html_(self) -> str:
        """Return the columns and a drawing of what leads here: what a notebook shows."""
        return drawing.stream_html(in_order([self.node]), self.columns)


def in_order(last: Sequence[Node]) -> tuple[Node, ...]:
    """Return some nodes and all that lead to them, inputs before their consumers."""
    found: dict[Node, None] = {}
    waiting = [*reversed(last)]
    while waiting:
        node = waiting[-1]
        missing = [before for before in node.inputs if before not in found]
        if node in found or not missing:
            found.setdefault(node)
            waiting.pop()
        else:
            waiting.extend(reversed(missing))
    return tuple(found)


def _rejects(stream: Stream) -> Stream:
    source = stream.node
    built_at = naming.origin()
    failing = source.spec.failing() if offers(source.spec, MayReject) else None
    if failing is None and not (source.is_source and source.source_spec.rejects):
        raise no_rejects(source.kind, source.name, source.origin, built_at, is_source=source.is_source)
    if (node := source.side_outputs.get("rejects")) is None:
        name = naming.extended(source.name, "rejects")
        inputs, is_derived = ((stream,) if failing is None else tuple(map(Stream, source.inputs))), not source.is_named
        node = apply(failing or Rejects(), inputs, name=name, built_at=built_at, is_derived=is_derived).node
        source.side_outputs["rejects"] = node
    return Stream(node)


def is_stateful(node: Node | SinkNode) -> bool:
    """Return whether a node's operator keeps state: whether its declaration has a step."""
    return offers(node.spec, StatefulSpec)


def side_output(stream: Stream, output: str) -> Stream:
    """Return a side output of the operator whose rows a stream has."""
    node, built_at = stream.node, naming.origin()
    if not is_stateful(node) or output not in node.stateful_spec.side_outputs:
        what, why, right = SIDE_OUTPUTS[output]
        raise InvalidPipeline(
            f"{node.kind} {node.name!r} has no {what}; asked for at {built_at}.",
            why=why,
            do=f"ask the operator that has them: {right}; or leave .{output} out.",
            participant=node.name,
        )
    found = node.side_outputs.get(output)
    if found is None:
        name = naming.extended(node.name, output)
        side = SideOutput(output, node.stateful_spec.side_outputs[output])
        found = apply(side, (stream,), name=name, built_at=built_at, is_derived=not node.is_named).node
        node.side_outputs[output] = found
    return Stream(found)


@dataclass(frozen=True)
class Operator:
    """An operator that has no input yet: what ``hf.filter(...)`` and its like return.

    Parameters
    ----------
    spec : OperatorSpec
        What it does.
    name : str, optional
        The name the user gave.
    origin : Origin
        The line of the user's code that built it.
    past : Evolution
        How it continues the state of the graph that ran before.
    """

    spec: OperatorSpec
    name: str | None
    origin: Origin
    past: Evolution = NOTHING

    def attach(self, stream: Stream) -> Stream:
        """Return the stream that results from this operator on ``stream``."""
        return apply(self.spec, (stream,), name=self.name, built_at=self.origin, past=self.past)


def apply(
    spec: OperatorSpec,
    inputs: tuple[Stream, ...],
    *,
    name: str | None,
    built_at: Origin,
    is_derived: bool = False,
    past: Evolution = NOTHING,
) -> Stream:
    """Apply an operator to one or several streams.

    Parameters
    ----------
    spec : OperatorSpec
        What it does.
    inputs : tuple of Stream
        The streams that it takes.
    name : str, optional
        Its name; derived from kind, arguments and place when None.
    built_at : Origin
        The line of the user's code that built it.
    is_derived : bool
        Whether ``name`` was derived by the caller and not chosen by the user.
    past : Evolution
        How it continues the state of the graph that ran before.
    """
    chosen = name or naming.derived_name(spec.kind, spec.arguments(), [stream.name for stream in inputs])
    with building(spec.kind, chosen, built_at):
        shape = shape_after(spec, [stream.shape for stream in inputs])
    is_named = name is not None and not is_derived
    return Stream(Node(spec, tuple(stream.node for stream in inputs), chosen, is_named, built_at, shape, past))


def stream_from(spec: SourceSpec, *, name: str | None = None) -> Stream:
    """Return the stream of a source: what every function of ``hf.read`` ends with.

    Raises
    ------
    InvalidPipeline
        If the name is not allowed, or the timestamp is not a column of the schema.
    """
    with building("source", name) as built_at:
        chosen = name or naming.derived_name(spec.kind, naming.where(spec.arguments()))
        columns = None if spec.schema is None else tuple(spec.schema.names)  # read.spark may leave it to Spark
        if spec.timestamp is not None and spec.schema is not None:
            check_timestamp(spec.timestamp, spec.schema)
    return Stream(Node(spec, (), chosen, name is not None, built_at, Shape(columns, spec.timestamp)))


@dataclass(frozen=True, eq=False)
class SinkNode:
    """A sink in its place: where one stream's rows go.

    Parameters
    ----------
    spec : SinkSpec
        What it writes to.
    stream : Stream, optional
        The stream it takes; None until it is used to the right of ``stream |``.
    name : str
        Explicit, or derived from kind and target.  The sink's ledger is kept under it.
    is_named : bool
        Whether the name was given by the user.
    origin : Origin
        The line of the user's code that built it.
    backfill : bool
        Whether it gets everything from the beginning when it is added to a pipeline that has run.
    pace : SinkPace, optional
        How seldom it commits; None: as often as the pipeline.
    freshness_us : int, optional
        How old the oldest row may be that it lacks, microseconds; None: as old as it is.
    """

    spec: SinkSpec
    stream: Stream | None
    name: str
    is_named: bool
    origin: Origin
    backfill: bool = False
    pace: SinkPace | None = None
    freshness_us: int | None = None

    def __post_init__(self) -> None:
        capabilities(self.spec)
        if self.stream is not None:
            register(self)

    @property
    def kind(self) -> str:
        """Kind of the sink."""
        return self.spec.kind

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The node whose rows it takes; empty while it is not attached."""
        return () if self.stream is None else (self.stream.node,)

    @property
    def guarantee(self) -> Guarantee:
        """What it promises for each row."""
        return self.spec.guarantee

    def arguments(self) -> Mapping[str, Any]:
        """Arguments for display and fingerprint: JSON values, without secrets."""
        return self.spec.arguments()

    def attach(self, stream: Stream) -> SinkNode:
        """Return this sink, taking ``stream``.

        Raises
        ------
        InvalidPipeline
            If the stream lacks a column that the sink needs.
        """
        with building("sink", self.name, self.origin):
            self.spec.check_columns(stream.columns)
            check_row_order(self.spec, stream.node)
            stream.shape.check_sink(self.spec)
            spec, shape = self.spec, stream.shape
            spec = spec.identified(shape.columns, shape.ids) if offers(spec, Identifying) else spec
        return replace(self, spec=spec, stream=stream)

    def __repr__(self) -> str:
        return f"<sink {self.kind} {self.name!r} built at {self.origin}>"


def sink(
    spec: SinkSpec,
    *,
    name: str | None = None,
    backfill: bool = False,
    pace: SinkPace | None = None,
    freshness: str | None = None,
) -> SinkNode:
    """Return a sink that takes no stream yet: what every function of ``hf.write`` ends with."""
    with building("sink", name) as built_at:
        chosen = name or naming.derived_name(spec.kind, naming.where(spec.arguments()))
        return SinkNode(spec, None, chosen, name is not None, built_at, backfill, pace, freshness_us(freshness))
