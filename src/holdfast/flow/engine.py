"""What runs a graph: which node is called next, by whom, and when all is done.

One lock guards queues, bounds and states; calculators are called without it.  Each node belongs to one queue of tasks,
and each queue to one executor.  The order within a queue is that of the reference: nodes nearer to the outputs first,
sources last, those of lower layers and with lower times first.

Back-pressure: a queue that is full holds back the sources and graph inputs that feed it, and nothing else, so what is
inside can always go on.  Where nothing can go on and something is held back, full queues may grow by one, for ever; or
that is an error, where it is asked for.

References
----------
MediaPipe, "Synchronization: scheduling mechanics, flow control".
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from threading import get_ident
from time import perf_counter_ns
from typing import Any, cast

from holdfast.errors import HoldfastError, InvalidPipeline
from holdfast.flow.context import Context
from holdfast.flow.executors import Executor, TaskQueue, Worker
from holdfast.flow.measures import Measures
from holdfast.flow.nodes import CalculatorCall, NodeRun, Scheduler
from holdfast.flow.queues import InputQueue, Packet, checked_bound
from holdfast.flow.streams import OutputStream
from holdfast.flow.timestamps import DONE, UNSET


def wall_clock_us() -> int:
    """Return real time, in microseconds since 1970."""
    return time.time_ns() // 1000


class GraphInput:
    """A stream that is filled from outside."""

    def __init__(self, stream: OutputStream) -> None:
        self.stream = stream
        self.blocked_by: set[InputQueue] = set()

    @property
    def is_closed(self) -> bool:
        """Whether nothing comes any more."""
        return self.stream.bound == DONE


Root = NodeRun | GraphInput
"""What can be held back."""


class Engine(Scheduler, Worker):
    """A graph that runs.

    Parameters
    ----------
    name : str
        The graph's.
    executors : mapping of str to Executor
        Name -> what runs the nodes that are assigned to it.
    clock : callable
        Real time, in microseconds.
    report_deadlock : bool
        Whether it is an error when full queues keep everything from going on; else they may grow.
    measures : Measures
        Where times of calls are counted.
    """

    def __init__(
        self,
        name: str,
        executors: Mapping[str, Executor],
        *,
        clock: Callable[[], int],
        report_deadlock: bool,
        measures: Measures,
    ) -> None:
        self.name = name
        self.clock = clock
        self.nodes: list[NodeRun] = []
        self.inputs: dict[str, GraphInput] = {}
        self.error: HoldfastError | None = None
        self.is_over = False
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self._executors = executors
        self._tasks = {name: executor.tasks for name, executor in executors.items()}
        self._tasks_of: dict[int, TaskQueue] = {}
        self._by_caller = [each for each in executors.values() if each.is_by_caller]
        self._report_deadlock = report_deadlock
        self._measures = measures
        self._is_stopped = False
        self._opened: list[NodeRun] = []
        self._inside: set[int] = set()
        """Threads that call calculators now."""

        self._pending = 0
        self._full: dict[InputQueue, None] = {}
        self._roots: dict[InputQueue, list[Root]] = {}
        self._layers: list[int] = []
        self._waiting = 0
        self._sequence = 0

    # --- building ------------------------------------------------------------------------------------

    def assign(self, node: NodeRun, executor: str) -> None:
        """Add a node, to a queue of tasks."""
        self.nodes.append(node)
        self._tasks_of[node.number] = self._tasks[executor]

    def feeds(self, queue: InputQueue, roots: Sequence[Root]) -> None:
        """Say what is held back while a queue is full."""
        self._roots[queue] = list(roots)

    def open(self, muted: Collection[str] = ()) -> None:
        """Open all calculators.

        Parameters
        ----------
        muted : collection of str
            Nodes that were open before: what they send has left then.
        """
        with self.lock:
            self._layers = sorted({node.source_layer for node in self.nodes if node.is_source})
            for node in self.nodes:
                self._opened.append(node)
                self._or_close(partial(node.open, is_muted=node.name in muted))

    def begin(self) -> None:
        """Ask all nodes what is next, and begin the first layer of sources."""
        with self.lock:
            for node in self.nodes:
                if not node.is_source:
                    self._or_close(node.ask)
            self._next_layer()
        for executor in self._executors.values():
            executor.start(self)

    def _or_close(self, call: Callable[[], object]) -> None:
        """Call something; where it fails, the run is over before it has begun."""
        try:
            call()
        except HoldfastError as error:
            self.fail(error)
            self._close_nodes()
            raise

    # --- scheduling: under the lock ------------------------------------------------------------------

    def schedule(self, invocation: CalculatorCall) -> None:
        """Add a task to the node's queue."""
        self._pending += 1
        self._sequence += 1
        node = invocation.node
        self._tasks_of[node.number].add(node.priority, self._sequence, invocation)
        if self._waiting and self._by_caller:
            self.changed.notify_all()  # who waits may be the one to do it

    def hold_back(self, queue: InputQueue) -> None:
        """Hold back what feeds a queue."""
        self._full[queue] = None
        for root in self._roots.get(queue, ()):
            root.blocked_by.add(queue)

    def let_go(self, queue: InputQueue) -> None:
        """Let go what fed a queue that was full."""
        self._full.pop(queue, None)
        for root in self._roots.get(queue, ()):
            root.blocked_by.discard(queue)
            if isinstance(root, NodeRun) and not root.blocked_by and self._is_active(root):
                root.ask_source()
        if self._waiting:
            self.changed.notify_all()

    def stop_sources(self) -> None:
        """Close all sources: a calculator wants no more."""
        for node in self.nodes:
            if node.is_source:
                node.stop()

    def _is_active(self, node: NodeRun) -> bool:
        return not self._layers or node.source_layer < self._layers[0]

    def _next_layer(self) -> None:
        """Begin the next layer of sources, where those below are closed."""
        while self._layers:
            if any(node.is_source and not node.is_closed and self._is_active(node) for node in self.nodes):
                return
            layer = self._layers.pop(0)
            for node in self.nodes:
                if node.is_source and node.source_layer == layer:
                    node.ask_source()

    def _at_idle(self) -> bool:
        """Let full queues grow, or begin the next layer; return whether something can go on now."""
        roots: list[Root] = [*self.inputs.values(), *(node for node in self.nodes if node.is_source)]
        if any(root.blocked_by and not root.is_closed for root in roots) and self._full:
            if self._report_deadlock:
                raise self._deadlock()
            for queue in list(self._full):
                queue.limit = len(queue.items) + 1
                queue.is_full = False
                self.let_go(queue)
            if self._pending:
                return True
        self._next_layer()
        return self._pending > 0

    def _deadlock(self) -> InvalidPipeline:
        full = ", ".join(
            f"input {queue.name!r} of {queue.node.name!r} ({len(queue.items)} packets)" for queue in self._full
        )
        return InvalidPipeline(
            f"Nothing can go on: full queues hold back what would empty them: {full}.",
            why="a calculator waits for another input, whose packets come behind those that are held back.",
            do="raise max_queue_size, or let full queues grow: report_deadlock=False.",
        )

    # --- tasks ---------------------------------------------------------------------------------------

    def work(self, tasks: TaskQueue, *, once: bool = False) -> bool:
        """Run tasks of a queue until it is empty; return whether there was one."""
        thread = get_ident()
        count = self._measures.count
        with self.lock:
            task = self._pop(tasks)
            if task is None:
                return False
            is_outermost = thread not in self._inside
            self._inside.add(thread)
        try:
            while task is not None:
                invocation, node = task, task.node
                begin = perf_counter_ns()
                node.run(invocation)
                took = perf_counter_ns() - begin
                with self.lock:
                    count(node.name, invocation.context.timestamp, begin, took)
                    node.finish(invocation)
                    self._pending -= 1
                    if self._pending == 0 and self._waiting:
                        self.changed.notify_all()
                    task = None if once else self._pop(tasks)
        except HoldfastError as error:
            self.fail(error)
        except BaseException as error:  # an exit: somebody else may wait for the end
            self.fail(node.error_of(error, invocation.context.timestamp))
            raise
        finally:
            if is_outermost:
                self._inside.remove(thread)
            if self._is_stopped:
                self._close_nodes()
        return True

    def _pop(self, tasks: TaskQueue) -> CalculatorCall | None:
        if self.is_over:
            tasks.clear()
            return None
        return cast("CalculatorCall | None", tasks.pop())

    def is_inside(self) -> bool:
        """Return whether a calculator or an observer asks, which must not wait for the graph: it waits for them."""
        return get_ident() in self._inside

    def fail(self, error: HoldfastError) -> None:
        """End the run with an error: nothing new is begun."""
        with self.lock:
            if self.error is None:
                self.error = error
            self._end(wait=False)

    def _end(self, *, wait: bool) -> None:
        with self.lock:
            self.is_over = True
            self.changed.notify_all()
        for executor in self._executors.values():
            executor.stop(wait=wait)

    def check(self) -> None:
        """Raise the error that has ended the run, or another one if it has ended without."""
        if self.error is not None:
            raise self.error
        if self.is_over:
            raise InvalidPipeline(
                f"The run of graph {self.name!r} has ended.",
                why="it was stopped or finished, and takes nothing any more.",
                do="start the graph again.",
            )

    # --- from outside --------------------------------------------------------------------------------

    def add(self, name: str, packet: Packet, *, wait: bool = True) -> bool:
        """Add a packet to a graph input; return whether it was taken.

        Parameters
        ----------
        name : str
            Graph input.
        packet : tuple
            Time and payload.
        wait : bool
            Whether to wait while the input is held back, else the packet is refused.
        """
        graph_input = self.inputs[name]
        while True:
            with self.lock:
                if self.is_over:
                    self.check()
                if graph_input.blocked_by and not wait:
                    return False
                if not graph_input.blocked_by or self.is_inside():  # what is inside is never held back
                    try:
                        graph_input.stream.send(packet)
                    except HoldfastError as error:
                        self.fail(error)
                        raise
                    return True
                executor = next((each for each in self._by_caller if each.tasks), None)
                if executor is None:
                    self._wait_or_let_grow()
            if executor is not None:
                self.work(executor.tasks, once=True)

    def _wait_or_let_grow(self) -> None:
        """Wait until another thread has done something, or handle that nobody can."""
        if self._pending == 0:
            self._or_fail(self._at_idle)
        else:
            self._wait()

    def _or_fail(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except HoldfastError as error:
            self.fail(error)
            raise

    def raise_bound(self, name: str, bound: int) -> None:
        """Promise that no packet below a time comes to a graph input."""
        stream = self.inputs[name].stream
        with self.lock:
            self.check()

            def promise() -> None:
                checked_bound(stream.name, bound, UNSET)
                if any(queue.is_ordered and not queue.node.is_closed for queue in stream.queues):
                    checked_bound(stream.name, bound, stream.bound)
                stream.raise_bound(bound)

            self._or_fail(promise)

    def close_input(self, name: str) -> None:
        """Promise that nothing comes to a graph input any more; again is nothing."""
        with self.lock:
            self.check()
            self._or_fail(partial(self.inputs[name].stream.raise_bound, DONE))

    def wait_until_idle(self) -> None:
        """Run, or wait, until nothing can go on without further input.

        Raises
        ------
        HoldfastError
            What a calculator raised, or a broken contract, or a deadlock where that is an error.
        """
        if self.is_inside():
            raise InvalidPipeline(
                f"A calculator or an observer of graph {self.name!r} waits for its own graph.",
                why="the graph waits for it.",
                do="wait where packets are added; inside, return.",
            )
        self.run_until_idle()

    def run_until_idle(self) -> None:
        """Do it for a caller that is known to be outside."""
        while True:
            worked = False
            for executor in self._by_caller:
                worked |= executor.work(self)
            with self.lock:
                if self.error is not None:
                    raise self.error
                if self.is_over:
                    return
                if worked:
                    continue
                if self._pending == 0 and not self._or_fail(self._at_idle):
                    return
                if self._pending and not any(executor.tasks for executor in self._by_caller):
                    self._wait()

    def _wait(self) -> None:
        self._waiting += 1
        try:
            self.changed.wait()
        finally:
            self._waiting -= 1

    def stop(self) -> None:
        """End the run, and close what is open; from inside, that is done when the calls that run have ended.

        Raises
        ------
        HoldfastError
            What a calculator raised in its ``close``.
        """
        error = self.error
        self._is_stopped = True
        self._end(wait=not self.is_inside())
        self._close_nodes()
        if self.error is not error:
            self.check()

    def _close_nodes(self) -> None:
        """Close what is open, as soon as nothing is called; what it sends is discarded: nobody waits for it."""
        with self.lock:
            if self._inside:
                return
            nodes, self._opened = self._opened, []
            for node in nodes:
                if node.is_ended or node.is_closed:
                    continue
                try:
                    node.close(Context(node))
                except Exception as error:
                    if self.error is None:
                        self.fail(node.error_of(error, DONE))

    def is_idle(self) -> bool:
        """Return whether nothing is scheduled or running."""
        return self._pending == 0

    def held_back(self) -> Iterable[InputQueue]:
        """Return the queues that are full."""
        return tuple(self._full)
