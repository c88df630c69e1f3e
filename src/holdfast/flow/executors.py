"""Who calls the calculators: the caller itself, a pool of threads, or a seeded choice for tests."""

from __future__ import annotations

import heapq
import os
import random
import threading
from typing import TYPE_CHECKING, Any

from holdfast.errors import InvalidPipeline

if TYPE_CHECKING:
    from holdfast.flow.engine import Engine
    from holdfast.flow.nodes import Invocation, NodeRun


class TaskQueue:
    """Tasks by priority; of equal ones in the order in which they came."""

    __slots__ = ("_heap", "on_added")

    def __init__(self) -> None:
        self._heap: list[Any] = []
        self.on_added: Any = None

    def __bool__(self) -> bool:
        return bool(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, priority: tuple[int, ...], sequence: int, node: NodeRun, invocation: Invocation) -> None:
        """Add a task."""
        heapq.heappush(self._heap, (priority, sequence, node, invocation))
        if self.on_added is not None:
            self.on_added()

    def pop(self) -> tuple[NodeRun, Invocation] | None:
        """Take the first task."""
        if not self._heap:
            return None
        task = heapq.heappop(self._heap)
        return task[2], task[3]

    def pop_any(self, chance: random.Random) -> None:
        """Move a task to the front that chance chooses."""
        place = chance.randrange(len(self._heap))
        task = self._heap.pop(place)
        heapq.heapify(self._heap)
        heapq.heappush(self._heap, ((-1,), *task[1:]))

    def clear(self) -> None:
        """Drop all: the run has failed."""
        self._heap.clear()


class Executor:
    """Runs the tasks of one queue."""

    is_by_caller = True
    """Whether tasks run in the thread that waits for the graph."""

    def __init__(self) -> None:
        self.tasks = TaskQueue()

    def fresh(self) -> Executor:
        """Return one like it for another run."""
        return type(self)()

    def start(self, engine: Engine) -> None:
        """Begin."""

    def work(self, engine: Engine) -> bool:
        """Run what there is, in the thread that waits; return whether there was something."""
        return engine.work(self.tasks)

    def stop(self) -> None:
        """End."""


class Sequential(Executor):
    """One task at a time, in the thread that adds packets or waits: each packet is worked on before the next is added.

    Deterministic: the same input gives the same order of calls.
    """


class Application(Executor):
    """One task at a time, in the thread of the application, and only while that waits for the graph."""


class Threads(Executor):
    """A pool of threads.

    Parameters
    ----------
    count : int, optional
        How many; as many as there are processors by default.
    """

    is_by_caller = False

    def __init__(self, count: int | None = None) -> None:
        super().__init__()
        if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
            raise InvalidPipeline(f"Threads({count!r}) is no number of threads.", do="write Threads(4), or Threads().")
        self.count = count if count is not None else max(1, os.cpu_count() or 1)
        self._threads: list[threading.Thread] = []

    def fresh(self) -> Executor:
        """Return one like it for another run."""
        return Threads(self.count)

    def start(self, engine: Engine) -> None:
        """Start the threads."""
        wanted = threading.Condition(engine.lock)
        self.tasks.on_added = wanted.notify
        self._wanted = wanted
        self._is_over = False

        def loop() -> None:
            while True:
                with wanted:
                    while not self.tasks and not self._is_over:
                        wanted.wait()
                    if self._is_over:
                        return
                engine.work(self.tasks)

        self._threads = [
            threading.Thread(target=loop, name=f"holdfast-flow-{n}", daemon=True) for n in range(self.count)
        ]
        for thread in self._threads:
            thread.start()

    def work(self, engine: Engine) -> bool:
        """Do nothing: the threads do."""
        return False

    def stop(self) -> None:
        """End the threads; a call that runs ends first."""
        if not self._threads:
            return
        with self._wanted:
            self._is_over = True
            self._wanted.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        self._threads = []


class Seeded(Executor):
    """One task at a time, each chosen by chance among all that are ready: every interleaving has a seed.

    For tests: what a graph makes must not depend on the seed, where no policy depends on arrival.

    Parameters
    ----------
    seed : int
        The same gives the same order.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.seed = seed
        self._chance = random.Random(seed)

    def fresh(self) -> Executor:
        """Return one like it for another run."""
        return Seeded(self.seed)

    def work(self, engine: Engine) -> bool:
        """Run tasks until there is none."""
        worked = False
        while self.tasks and engine.error is None:
            with engine.lock:
                self.tasks.pop_any(self._chance)
            worked |= engine.work(self.tasks, once=True)
        return worked
