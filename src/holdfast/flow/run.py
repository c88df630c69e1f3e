"""A graph that runs: packets in, packets out, and what it shows of itself."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.errors import InvalidPipeline
from holdfast.flow import timestamps
from holdfast.flow.building import PlacedNode, Stream, Structure
from holdfast.flow.engine import Engine, GraphInput, Root, wall_clock_us
from holdfast.flow.executors import Application, Executor, Seeded, Sequential, Threads
from holdfast.flow.measures import CallTimes, Measures
from holdfast.flow.nodes import NodeRun
from holdfast.flow.policies import Policy, SettledInputs
from holdfast.flow.policy_table import POLICIES
from holdfast.flow.queues import ABSENT, BrokenContract, InputQueue, Packet, Payload, checked_time, type_text
from holdfast.flow.streams import Observer, OutputStream
from holdfast.flow.timestamps import DONE


class Run:
    """A graph that runs in this process.

    Made by :meth:`Graph.start`; a context manager, which closes the inputs and waits for the end.  Without
    ``executors`` the default one runs all nodes.
    """

    def __init__(
        self,
        graph: Structure,
        *,
        side_inputs: Mapping[str, Payload] | None = None,
        executor: Executor | None = None,
        executors: Mapping[str, Executor] | None = None,
        clock: Callable[[], int] | None = None,
        is_traced: bool = False,
        observers: Mapping[str, Observer] | None = None,
        starts: bool = True,
    ) -> None:
        graph.check()
        self.graph = graph
        self._sides = _checked_sides(graph, side_inputs or {})
        default = executor if executor is not None else Threads(_threads_for(graph))
        self._has_names = executors is not None
        self._executors = {"": default.fresh(), **{name: each.fresh() for name, each in (executors or {}).items()}}
        self._measures = Measures(is_traced=is_traced)
        self.engine = Engine(
            graph.name,
            self._executors,
            clock=clock if clock is not None else wall_clock_us,
            report_deadlock=graph.report_deadlock,
            measures=self._measures,
        )
        self._streams: dict[str, OutputStream] = {}
        self.collected: dict[str, list[Packet]] = {}
        """Graph output -> packets that left; by :meth:`collect`."""

        self._is_drained = all(isinstance(each, Sequential) for each in self._executors.values())
        self._works_on_add = self._is_drained or any(isinstance(each, Seeded) for each in self._executors.values())
        self._build()
        for name, observer in (observers or {}).items():
            self.observe(name, observer)
        if starts:
            self.begin()

    def begin(self) -> None:
        """Open all calculators, and begin; of a run that was made with ``starts=False``."""
        self.engine.open()
        self.engine.begin()

    # --- packets -------------------------------------------------------------------------------------

    def add(self, name: str, value: Payload, at: int, *, wait: bool = True) -> bool:
        """Add a packet to a graph input.

        Parameters
        ----------
        name : str
            Graph input.
        value : object
            Payload, by reference.
        at : int
            Its time.
        wait : bool
            Whether to wait where queues are full; else the packet is refused.

        Returns
        -------
        bool
            Whether it was taken.

        Raises
        ------
        BrokenContract
            If it is late, or its payload has another type than was declared.
        HoldfastError
            What has ended the run before.
        """
        types = (self.graph.inputs.get(name) or self._input(name)).types
        if types is not None and not isinstance(value, types):
            raise BrokenContract(
                f"Graph input {name!r} is given {type(value).__name__}, at {timestamps.text(at)}.",
                rule="type",
                why=f"it takes {type_text(types)}.",
                do="add that, or declare another type.",
                participant=name,
            )
        if type(at) is not int:
            at = checked_time(at, f"Graph input {name!r} is given a packet at")
        taken = self.engine.add(name, (at, value), wait=wait)
        if self._works_on_add:
            self._work()
        return taken

    def _work(self) -> None:
        """Run what is to run before the next packet is added; nothing from inside, where it would wait for itself."""
        if self.engine.is_inside():
            return
        if self._is_drained:
            self.engine.run_until_idle()
        else:
            for executor in self._executors.values():
                executor.after_add(self.engine)

    def raise_bound(self, name: str, at: int) -> None:
        """Promise that no packet below a time comes to a graph input.

        Raises
        ------
        BrokenContract
            If it goes back.
        """
        self._input(name)
        self.engine.raise_bound(name, checked_time(at, f"Graph input {name!r} is given the bound"))
        if self._works_on_add:
            self._work()

    def close(self, name: str | None = None) -> None:
        """Close a graph input, or all of them: nothing comes any more."""
        for each in self.graph.inputs if name is None else (name,):
            self._input(each)
            self.engine.close_input(each)
        if self._works_on_add:
            self._work()

    def observe(self, name: str, observer: Observer, *, bounds: bool = False) -> None:
        """Call a function with time and payload of each packet of a graph output, or of any stream by its name.

        Parameters
        ----------
        name : str
            Graph output, or ``node.output``.
        observer : callable
            Called by the thread that sends, which waits for it.
        bounds : bool
            Whether to call it, with ``hf.flow.ABSENT`` as payload, also where a bound rises and no packet came.
        """
        stream = self._stream(name)
        with self.engine.lock:
            stream.observers.append(observer)
            if bounds:
                stream.bound_observers.append(observer)

    def collect(self, name: str) -> list[Packet]:
        """Return a list that the packets of a graph output are appended to, from now on."""
        if name not in self.collected:
            self.collected[name] = []
            self.observe(name, partial(_append, self.collected[name]))
        return self.collected[name]

    def wait_until_idle(self) -> None:
        """Wait, and work where the executor is the caller's, until nothing can go on without further packets."""
        self.engine.wait_until_idle()

    def finish(self) -> None:
        """Close the inputs, and wait until everything is done.

        Raises
        ------
        HoldfastError
            What has ended the run before its end.
        """
        try:
            if not self.engine.is_over:
                self.close()
            self.engine.wait_until_idle()
        finally:
            self.stop()

    def stop(self) -> None:
        """End now: what waits in queues is dropped.  Calculators may call it, and observers."""
        self.engine.stop()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if error is None:
            self.finish()
        else:
            self.stop()

    # --- what it shows -------------------------------------------------------------------------------

    def times(self) -> dict[str, CallTimes]:
        """Return node -> how often and how long it was called."""
        with self.engine.lock:
            return self._measures.times()

    def queue_lengths(self) -> dict[str, int]:
        """Return ``node.input`` -> packets that wait."""
        with self.engine.lock:
            return {
                f"{node.name}.{queue.name}": len(queue.items) for node in self.engine.nodes for queue in node.queues
            }

    def drops(self) -> dict[str, int]:
        """Return node -> packets that it has dropped, of those that have: by its policy, or by its own code."""
        with self.engine.lock:
            return {node.name: node.drop_count for node in self.engine.nodes if node.drop_count}

    def trace(self, path: str | Path | None = None) -> dict[str, Payload]:
        """Return the calls as Chrome's trace events, and write them to a file for Perfetto or chrome://tracing."""
        with self.engine.lock:
            found = self._measures.trace()
        if path is not None:
            Path(path).write_text(json.dumps(found))
        return found

    def waits(self) -> list[str]:
        """Return for each calculator that has packets and does not run: which input it waits for, and since when."""
        found = []
        with self.engine.lock:
            for node in self.engine.nodes:
                waiting = [queue for queue in node.queues if queue.items]
                if not waiting or node.in_flight or node.is_closed:
                    continue
                first = min(queue.items[0][0] for queue in waiting)
                count = sum(len(each.items) for each in waiting)
                found += [
                    f"{node.name} waits for input {queue.name} ({queue.stream}), which is known below "
                    f"{timestamps.text(queue.bound)}, since {timestamps.text(first)}: "
                    f"{count} {'packet waits' if count == 1 else 'packets wait'}"
                    for queue in node.policy.missing()
                ]
        return found

    # --- building ------------------------------------------------------------------------------------

    def bound_of(self, output: str) -> int:
        """Return the lowest time that the next packet of a graph output may have."""
        return self._stream(output).bound

    def stream_bound(self, name: str) -> int:
        """Return the lowest time that the next packet of a stream may have."""
        return self._streams[name].bound

    def _input(self, name: str) -> Stream:
        try:
            return self.graph.inputs[name]
        except KeyError:
            raise InvalidPipeline(
                f"Graph {self.graph.name!r} has no input {name!r}.",
                why=f"it has {', '.join(self.graph.inputs) or 'none'}.",
                do="use one of these.",
            ) from None

    def _stream(self, name: str) -> OutputStream:
        declared = self.graph.outputs.get(name)
        found = self._streams.get(declared.name if declared is not None else name)
        if found is None:
            raise InvalidPipeline(
                f"Graph {self.graph.name!r} has no output {name!r}.",
                why=f"it has {', '.join(self.graph.outputs) or 'none'}; its streams are {', '.join(self._streams)}.",
                do="use one of these.",
            )
        return found

    def _build(self) -> None:
        graph = self.graph
        for name in graph.inputs:
            stream = self._streams[name] = OutputStream(name)
            self.engine.inputs[name] = GraphInput(stream)
        order = graph.order()
        if len(order) < len(graph.nodes):
            cycle = [name for name in graph.nodes if name not in order]
            raise InvalidPipeline(
                f"Graph {graph.name!r} has a cycle of {', '.join(map(repr, cycle))}.",
                why="each of them waits for another one.",
                do="declare the stream that comes from behind: edge = graph.back_edge(...), edge.comes_from(stream).",
            )
        runs = {}
        for number, name in enumerate(order):
            placed = graph.nodes[name]
            for stream_name in (stream.name for stream in placed.outputs.values()):
                self._streams[stream_name] = OutputStream(stream_name)
            sides = {own: self._sides[given] for own, given in placed.side_inputs.items()}
            node = NodeRun(
                self.engine,
                name,
                number,
                placed.node.contract,
                placed.node.kind,
                sides,
                placed.node.source_layer,
            )
            executor = placed.node.executor if self._has_names else ""
            if executor not in self._executors:
                raise InvalidPipeline(
                    f"Node {name!r} runs on executor {executor!r}, which was not given.",
                    do=f'start the graph with executors={{"{executor}": hf.flow.Threads(1)}}.',
                )
            self.engine.assign(node, executor)
            runs[name] = node
        for edge, source in graph.loops.items():
            assert source is not None  # checked
            self._streams[edge] = self._streams[source.name]
        for name, node in runs.items():
            self._connect(node, graph.nodes[name])
        self._hold_back(runs)

    def _connect(self, node: NodeRun, placed: PlacedNode) -> None:
        limit = placed.node.max_queue_size if placed.node.max_queue_size is not None else self.graph.max_queue_size
        queues = []
        for port in placed.node.contract.inputs:
            stream = self._streams[placed.inputs[port].name]
            types = placed.node.contract.inputs[port] if placed.inputs[port].types is None else None
            queue = InputQueue(node, port, stream.name, limit, types)
            stream.queues.append(queue)
            queues.append(queue)
        outputs = {port: self._streams[stream.name] for port, stream in placed.outputs.items()}
        node.connect(queues, outputs, self._policy(node, placed, queues))

    def _policy(self, node: NodeRun, placed: PlacedNode, queues: list[InputQueue]) -> Policy:
        with_bounds = node.contract.process_timestamp_bounds
        declared = self.graph.policy_of(placed)
        if declared is None:
            return SettledInputs(queues, with_bounds)
        if isinstance(declared, type):
            return declared(queues, with_bounds)
        return POLICIES[declared.kind](queues, with_bounds, **declared.arguments())

    def _hold_back(self, runs: Mapping[str, NodeRun]) -> None:
        """Find for each queue the sources and graph inputs that feed it."""
        feeding: dict[str, dict[Root, None]] = {name: {each: None} for name, each in self.engine.inputs.items()}
        is_new = True
        while is_new:  # once through the graph, and again for back edges
            is_new = False
            for node in runs.values():
                found: dict[Root, None] = {node: None} if node.is_source else {}
                for queue in node.queues:
                    found |= feeding.get(queue.stream, {})
                for stream in node.streams:
                    is_new = is_new or feeding.get(stream.name, {}).keys() != found.keys()
                    feeding[stream.name] = found
        for node in runs.values():
            for queue in node.queues:
                self.engine.feeds(queue, list(feeding[queue.stream]))


def _threads_for(graph: Structure) -> int | None:
    import os

    return max(1, min(os.cpu_count() or 1, len(graph.nodes)))


def _checked_sides(graph: Structure, given: Mapping[str, Payload]) -> Mapping[str, Payload]:
    missing = [name for name in graph.side_inputs if name not in given]
    unknown = [name for name in given if name not in graph.side_inputs]
    if missing or unknown:
        raise InvalidPipeline(
            f"Graph {graph.name!r} lacks the side input {missing[0]!r}."
            if missing
            else f"Graph {graph.name!r} has no side input {unknown[0]!r}.",
            why=f"it has {', '.join(graph.side_inputs) or 'none'}.",
            do="give each of them once: side_inputs={...}.",
        )
    for name, types in graph.side_inputs.items():
        if types is not None and not isinstance(given[name], types):
            raise InvalidPipeline(
                f"Side input {name!r} of graph {graph.name!r} is {type(given[name]).__name__}.",
                why=f"it takes {type_text(types)}.",
                do="give that.",
            )
    return given


def run_over(
    graph: Structure,
    inputs: Mapping[str, Iterable[Packet]],
    side_inputs: Mapping[str, Payload] | None,
    executor: Executor | None,
) -> dict[str, list[Packet]]:
    """Run a graph over packets that there are, the lowest time first."""
    found: dict[str, list[Packet]] = {name: [] for name in graph.outputs}
    observers = {name: partial(_append, packets) for name, packets in found.items()}
    executor = executor if executor is not None else Application()
    run = Run(graph, side_inputs=side_inputs, executor=executor, observers=observers)
    for name in graph.inputs:
        if name not in inputs:
            run.close(name)
    for name in inputs:
        run._input(name)
    streams = [_with_places(name, packets) for name, packets in inputs.items()]
    with run:
        for t, _, name, value in heapq.merge(*streams, key=lambda each: each[0]):
            run.add(name, value, t)
    return found


def _append(packets: list[Packet], t: int, value: Payload) -> None:
    packets.append((t, value))


def _with_places(name: str, packets: Iterable[Packet]) -> Iterable[tuple[int, int, str, Any]]:
    for place, (t, value) in enumerate(packets):
        yield t, place, name, value


__all__ = ["ABSENT", "DONE", "Run", "run_over"]
