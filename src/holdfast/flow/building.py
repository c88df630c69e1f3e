"""Graphs of calculators: how they are put together, and checked before they run."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Self

from holdfast.errors import InvalidPipeline
from holdfast.flow.codec import Codec, Keeping, dataclasses_in
from holdfast.flow.contract import Contract, Kind, kind_of
from holdfast.flow.policies import Declared, Policy
from holdfast.flow.policy_table import POLICIES
from holdfast.flow.queues import DEFAULT_LIMIT, Types, check_types, checked_limit

PolicyGiven = Declared | type[Policy] | None


@dataclass(frozen=True, eq=False)
class Stream:
    """What flows from a graph input, or from an output of a node, to any number of inputs."""

    graph: Structure = field(repr=False)
    name: str
    types: Types = None

    def __or__(self, node: object) -> Any:
        if isinstance(node, NodeSpec | Structure):
            return node.__ror__(self)
        return NotImplemented


@dataclass(frozen=True, eq=False)
class BackEdge(Stream):
    """A stream that comes from behind: it is declared before what fills it."""

    def comes_from(self, stream: Stream) -> None:
        """Say which stream it is.

        Raises
        ------
        InvalidPipeline
            If it was said before, or the stream is of another graph.
        """
        self.graph._close_loop(self, stream)


class Streams(Mapping[str, Stream]):
    """The outputs of a node that has several, or none: ``made["boxes"]`` or ``made.boxes``."""

    def __init__(self, of: str, streams: Mapping[str, Stream]) -> None:
        self._of = of
        self._streams = dict(streams)

    def __getitem__(self, name: str) -> Stream:
        try:
            return self._streams[name]
        except KeyError:
            raise InvalidPipeline(
                f"{self._of!r} has no output {name!r}.",
                why=f"it has {', '.join(self._streams) or 'none'}.",
                do="use one of these.",
            ) from None

    def __getattr__(self, name: str) -> Stream:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._streams)

    def __len__(self) -> int:
        return len(self._streams)


@dataclass(frozen=True)
class NodeSpec:
    """A calculator with its options, to be put into a graph: ``stream | node``.

    Made by :func:`node`.
    """

    kind: Kind
    contract: Contract
    name: str | None = None
    executor: str = ""
    policy: PolicyGiven = None
    max_queue_size: int | None = None
    source_layer: int = 0
    side_inputs: Mapping[str, str] = field(default_factory=dict)

    def with_name(self, name: str) -> NodeSpec:
        """Return the same under another name."""
        return replace(self, name=name)

    def __ror__(self, inputs: object) -> Any:
        graph, given = _inputs_of(inputs, self.name or self.kind.name, tuple(self.contract.inputs))
        return graph.add(self, given)


def node(
    calculator: object,
    options: object = None,
    *,
    name: str | None = None,
    executor: str = "",
    policy: PolicyGiven = None,
    max_queue_size: int | None = None,
    source_layer: int = 0,
    side_inputs: Mapping[str, str] | None = None,
) -> NodeSpec:
    """Return a calculator as a node: ``frames | hf.flow.node(Detect, Detect.Options(threshold=0.3))``.

    Parameters
    ----------
    calculator : subclass of Calculator, or function
        What it does.
    options : object, optional
        An instance of the class's ``Options``.
    name : str, optional
        Unique in the graph; it is the identity of its state.  By default the calculator's, with a number where there
        are several.
    executor : str, optional
        Name of the executor that runs it; the graph's default one by default.
    policy : policy, optional
        Instead of the one that the contract declares.
    max_queue_size : int, optional
        Of its inputs, instead of the graph's.
    source_layer : int
        Of a source: it begins when all sources of lower layers are closed.
    side_inputs : mapping of str to str, optional
        Side input of the calculator -> of the graph, where the names differ.

    Raises
    ------
    InvalidPipeline
        If it is no calculator, or the options are not its own.
    """
    kind = kind_of(calculator, options)
    return NodeSpec(kind, kind.contract, name, executor, policy, max_queue_size, source_layer, dict(side_inputs or {}))


def _inputs_of(given: object, of: str, names: tuple[str, ...]) -> tuple[Structure, dict[str, Stream]]:
    """Return the graph and the streams by input, of what stands left of ``|``."""
    if isinstance(given, Stream):
        if len(names) != 1:
            raise InvalidPipeline(
                f"{of!r} has {len(names)} inputs, and one stream was given.",
                why=f"they are {', '.join(names) or 'none'}.",
                do=f"name them: {{{', '.join(f'{name!r}: ...' for name in names)}}} | ..."
                if names
                else "put a source into the graph by graph.add(node).",
            )
        return given.graph, {names[0]: given}
    if not isinstance(given, Mapping) or not given:
        raise InvalidPipeline(
            f"{of!r} cannot take {given!r}.", why="its inputs are streams.", do='write {"frame": frames} | ...'
        )
    wrong = next((name for name, stream in given.items() if not isinstance(stream, Stream)), None)
    if wrong is not None:
        raise InvalidPipeline(
            f"Input {wrong!r} of {of!r} is {given[wrong]!r}.",
            why="it is no stream" + ("; a node with several outputs gives a mapping." if given[wrong] else "."),
            do='name the output: made["boxes"].',
        )
    graphs = {id(stream.graph): stream.graph for stream in given.values()}
    if len(graphs) > 1:
        raise InvalidPipeline(
            f"The inputs of {of!r} come from {len(graphs)} graphs.",
            do="build all of it in one graph; a part of its own is a subgraph: inputs | part.",
        )
    return next(iter(graphs.values())), dict(given)


@dataclass
class PlacedNode:
    """A node in a graph."""

    name: str
    node: NodeSpec
    inputs: dict[str, Stream]
    outputs: dict[str, Stream]
    side_inputs: dict[str, str]


class Structure:
    """A graph of calculators as it is put together; :class:`~holdfast.flow.graph.Graph` runs, and has the arguments."""

    def __init__(
        self,
        name: str = "flow",
        *,
        max_queue_size: int = DEFAULT_LIMIT,
        report_deadlock: bool = False,
        policy: PolicyGiven = None,
        keeps: Mapping[type, Keeping] | None = None,
    ) -> None:
        self.name = name
        self.keeps = dict(keeps or {})
        self._codec: Codec | None = None
        self.max_queue_size = checked_limit(max_queue_size)
        self.report_deadlock = report_deadlock
        self.policy = policy
        self.nodes: dict[str, PlacedNode] = {}
        self.inputs: dict[str, Stream] = {}
        self.outputs: dict[str, Stream] = {}
        self.side_inputs: dict[str, Types] = {}
        self.loops: dict[str, Stream | None] = {}
        """Back edge -> what fills it."""

    # --- building ------------------------------------------------------------------------------------

    def input(self, name: str, types: Types = None) -> Stream:
        """Return a stream that is filled from outside."""
        self._check_new(name, self.inputs, "input")
        self._codec = None
        self.inputs[name] = Stream(self, name, types)
        return self.inputs[name]

    def side_input(self, name: str, types: Types = None) -> None:
        """Declare what nodes are given once, by this name, when the graph starts."""
        self._check_new(name, self.side_inputs, "side input")
        self.side_inputs[name] = types

    def output(self, name: str, stream: Stream) -> None:
        """Give a stream to the outside, under a name."""
        self._check_new(name, self.outputs, "output")
        if not isinstance(stream, Stream) or stream.graph is not self:
            raise InvalidPipeline(
                f"Output {name!r} of graph {self.name!r} is {stream!r}.",
                why="it is no stream of this graph.",
                do=f'write graph.output("{name}", frames | hf.flow.node(Detect)).',
            )
        self.outputs[name] = stream

    def back_edge(self, name: str, types: Types = None) -> BackEdge:
        """Return a stream that comes from behind; say afterwards which: ``edge.comes_from(stream)``."""
        self._check_new(name, self.loops, "back edge")
        edge = BackEdge(self, f"{name} (back)", types)
        self.loops[edge.name] = None
        return edge

    def add(self, node: NodeSpec, inputs: Mapping[str, Stream] | None = None) -> Any:
        """Put a node into the graph: a source, or with its inputs; the same as ``inputs | node``.

        Returns
        -------
        Stream or Streams
            Its output, or all of them where it has several or none.

        Raises
        ------
        InvalidPipeline
            If inputs are missing, unknown or of another type.
        """
        name = self._name_for(node)
        given = dict(inputs or {})
        self._check_inputs(name, node.contract, given)
        outputs = {output: Stream(self, f"{name}.{output}", types) for output, types in node.contract.outputs.items()}
        sides = {each: node.side_inputs.get(each, each) for each in node.contract.side_inputs}
        self._codec = None
        self.nodes[name] = PlacedNode(name, node, given, outputs, sides)
        return next(iter(outputs.values())) if len(outputs) == 1 else Streams(name, outputs)

    def with_name(self, name: str) -> Self:
        """Return the same graph under another name, for where it is a part of another one."""
        other = self.snapshot()
        other.name = name
        return other

    def snapshot(self) -> Self:
        """Return the graph as it is now: what is built on afterwards is not in it."""
        other = copy(self)
        for name in ("nodes", "inputs", "outputs", "side_inputs", "loops", "keeps"):
            setattr(other, name, dict(getattr(self, name)))
        return other

    def __ror__(self, inputs: object) -> Any:
        """Put this graph into another one, as a part of it: its nodes are named ``part/node`` there."""
        graph, given = _inputs_of(inputs, self.name, tuple(self.inputs))
        return graph._take_in(self, given)

    def _take_in(self, part: Structure, given: Mapping[str, Stream]) -> Any:
        part._check_loops()
        wanted = Contract(inputs={name: stream.types for name, stream in part.inputs.items()})
        self._check_inputs(part.name, wanted, given)
        if any(name.startswith(f"{part.name}/") for name in self.nodes):
            raise InvalidPipeline(
                f"Graph {self.name!r} has a part {part.name!r} already.",
                do=f'give this one a name of its own: part.with_name("{part.name}_2").',
            )
        translated: dict[str, Stream] = {part.inputs[name].name: stream for name, stream in given.items()}
        for edge in part.loops:
            translated[edge] = self.back_edge(f"{part.name}/{edge.removesuffix(' (back)')}")
        missing = {name: types for name, types in part.side_inputs.items() if name not in self.side_inputs}
        self.side_inputs.update(missing)
        self.keeps = {**part.keeps, **self.keeps}
        for name in part.order():
            placed = part.nodes[name]
            inputs = {port: translated[stream.name] for port, stream in placed.inputs.items()}
            policy = placed.node.policy if placed.node.policy is not None else part.policy
            limit = placed.node.max_queue_size if placed.node.max_queue_size is not None else part.max_queue_size
            copied = replace(placed.node, name=f"{part.name}/{name}", policy=policy, max_queue_size=limit)
            made = self.add(copied, inputs)
            streams = {next(iter(placed.outputs)): made} if isinstance(made, Stream) else dict(made)
            translated.update({placed.outputs[port].name: stream for port, stream in streams.items()})
        for edge, source in part.loops.items():
            assert source is not None
            loop = translated[edge]
            assert isinstance(loop, BackEdge)
            loop.comes_from(translated[source.name])
        outputs = {name: translated[stream.name] for name, stream in part.outputs.items()}
        return next(iter(outputs.values())) if len(outputs) == 1 else Streams(part.name, outputs)

    def _close_loop(self, edge: BackEdge, stream: Stream) -> None:
        if not isinstance(stream, Stream) or stream.graph is not self or isinstance(stream, BackEdge):
            raise InvalidPipeline(
                f"Back edge {edge.name!r} of graph {self.name!r} cannot come from {stream!r}.",
                why="it is no output of a node of this graph.",
                do="write edge.comes_from(rendered), with a stream that was made in this graph.",
            )
        if self.loops[edge.name] is not None:
            raise InvalidPipeline(f"Back edge {edge.name!r} has a stream already.", do="declare one for each stream.")
        check_types(edge.name, stream.types, edge.types)
        self.loops[edge.name] = stream

    def _name_for(self, node: NodeSpec) -> str:
        if node.name is not None:
            if node.name in self.nodes:
                raise InvalidPipeline(
                    f"Graph {self.name!r} has two nodes {node.name!r}.",
                    why="a node's name is the identity of its state.",
                    do="give one of them another name.",
                )
            return node.name
        name, number = node.kind.name, 1
        while name in self.nodes:
            number += 1
            name = f"{node.kind.name}_{number}"
        return name

    def _check_inputs(self, name: str, contract: Contract, given: Mapping[str, Stream]) -> None:
        unknown = sorted(given.keys() - contract.inputs.keys())
        missing = [each for each in contract.inputs if each not in given]
        if unknown or missing:
            raise InvalidPipeline(
                f"{name!r} has no input {unknown[0]!r}." if unknown else f"{name!r} lacks its input {missing[0]!r}.",
                why=f"its inputs are {', '.join(contract.inputs) or 'none: it is a source'}.",
                do="name each of them once: {" + ", ".join(f"{each!r}: ..." for each in contract.inputs) + "} | ...",
            )
        for each, stream in given.items():
            if stream.graph is not self:
                raise InvalidPipeline(
                    f"Input {each!r} of {name!r} is a stream of graph {stream.graph.name!r}, not of {self.name!r}.",
                    do="build it in one graph.",
                )
            check_types(f"input {each!r} of {name!r}", stream.types, contract.inputs[each])

    def _check_new(self, name: str, there: Iterable[str], what: str) -> None:
        if not isinstance(name, str) or not name:
            raise InvalidPipeline(f"A {what} of graph {self.name!r} is named {name!r}.", do="give it a text.")
        if name in there or f"{name} (back)" in there:
            raise InvalidPipeline(f"Graph {self.name!r} has two {what}s {name!r}.", do="give one another name.")

    @property
    def codec(self) -> Codec:
        """What makes bytes of the graph's values."""
        if self._codec is not None:
            return self._codec
        types = [stream.types for stream in self.inputs.values()]
        for placed in self.nodes.values():
            contract = placed.node.contract
            types += [*contract.inputs.values(), *contract.outputs.values()]
        self._codec = Codec(self.keeps, dataclasses_in(types))
        return self._codec

    # --- before it runs ------------------------------------------------------------------------------

    def order(self) -> list[str]:
        """Return the nodes, each behind those that fill it; back edges do not count.

        Raises
        ------
        InvalidPipeline
            If nodes are in a cycle without a back edge.
        """
        producers = {
            stream.name: place for place, placed in enumerate(self.nodes.values()) for stream in placed.outputs.values()
        }
        names = list(self.nodes)
        behind: list[list[int]] = [[] for _ in names]
        lacking = [0] * len(names)
        for place, placed in enumerate(self.nodes.values()):
            for stream in placed.inputs.values():
                if stream.name in producers:
                    behind[producers[stream.name]].append(place)
                    lacking[place] += 1
        free = [place for place, count in enumerate(lacking) if not count]
        heapq.heapify(free)
        found = []
        while free:
            place = heapq.heappop(free)
            found.append(names[place])
            for other in behind[place]:
                lacking[other] -= 1
                if not lacking[other]:
                    heapq.heappush(free, other)
        return found

    def check(self) -> None:
        """Check what can only be seen of the whole: open loops, side inputs, policies, executors.

        Raises
        ------
        InvalidPipeline
            If something is missing or unknown.
        """
        self._check_loops()
        for placed in self.nodes.values():
            for given in placed.side_inputs.values():
                if given not in self.side_inputs:
                    raise InvalidPipeline(
                        f"Node {placed.name!r} needs the side input {given!r}, which graph {self.name!r} lacks.",
                        do=f'declare it: graph.side_input("{given}").',
                    )
            self.policy_of(placed)

    def _check_loops(self) -> None:
        open_loop = next((name for name, stream in self.loops.items() if stream is None), None)
        if open_loop is not None:
            raise InvalidPipeline(
                f"{open_loop!r} of graph {self.name!r} comes from nowhere.",
                do="say which stream it is: edge.comes_from(stream).",
            )

    def policy_of(self, placed: PlacedNode) -> PolicyGiven:
        """Return the policy that a node follows.

        Raises
        ------
        InvalidPipeline
            If it cannot be followed here, or names no input of the node.
        """
        node = placed.node
        contract = node.contract.policy
        policy = node.policy if node.policy is not None else self.policy if self.policy is not None else contract
        if policy is None or isinstance(policy, type):
            return policy
        if policy.kind not in POLICIES:
            raise InvalidPipeline(
                f"Node {placed.name!r} cannot follow the policy {policy.kind!r}.",
                why=f"in a flowgraph there are {', '.join(POLICIES)}; it is one of columns.",
                do="use one of these, or a subclass of hf.flow.Policy.",
            )
        arguments = policy.arguments()
        named = [name for group in arguments.get("groups", ()) for name in group]
        named += [arguments[key] for key in ("select", "base") if arguments.get(key)]
        unknown = [name for name in named if name not in node.contract.inputs]
        if unknown:
            raise InvalidPipeline(
                f"The policy {policy.kind!r} of node {placed.name!r} names {unknown[0]!r}, which is no input.",
                why=f"its inputs are {', '.join(node.contract.inputs)}.",
                do="use one of these.",
            )
        return policy
