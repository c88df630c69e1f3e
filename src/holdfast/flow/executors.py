"""Who calls the calculators: the caller itself, a pool of threads, or a seeded choice for tests."""

from __future__ import annotations

import heapq
import os
import random
import threading
from collections.abc import Callable

from holdfast.errors import InvalidPipeline


class Worker:
    """What an executor needs of the engine whose tasks it runs."""

    is_over: bool
    lock: threading.RLock
    """Of queues and states."""

    def work(self, tasks: TaskQueue, *, once: bool = False) -> bool:
        """Run tasks; return whether there was one."""
        raise NotImplementedError


class TaskQueue:
    """Tasks by priority; of equal ones in the order in which they came."""

    __slots__ = ("_heap", "on_added")

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, ...], int, object]] = []
        self.on_added: Callable[[], object] | None = None

    def __bool__(self) -> bool:
        return bool(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, priority: tuple[int, ...], sequence: int, task: object) -> None:
        """Add a task."""
        heapq.heappush(self._heap, (priority, sequence, task))
        if self.on_added is not None:
            self.on_added()

    def pop(self) -> object | None:
        """Take the first task."""
        if not self._heap:
            return None
        return heapq.heappop(self._heap)[2]

    def clear(self) -> None:
        """Drop all: the run has failed."""
        self._heap.clear()


class TasksByChance(TaskQueue):
    """Tasks in an order that chance chooses."""

    __slots__ = ("_chance",)

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance

    def pop(self) -> object | None:
        """Take any task."""
        if not self._heap:
            return None
        return self._heap.pop(self._chance.randrange(len(self._heap)))[2]


class Executor:
    """Runs the tasks of one queue."""

    is_by_caller = True
    """Whether tasks run in the thread that waits for the graph."""

    def __init__(self) -> None:
        self.tasks = TaskQueue()

    def fresh(self) -> Executor:
        """Return one like it for another run."""
        return type(self)()

    def start(self, engine: Worker) -> None:
        """Begin."""

    def work(self, engine: Worker) -> bool:
        """Run what there is, in the thread that waits; return whether there was something."""
        return engine.work(self.tasks)

    def after_add(self, engine: Worker) -> None:
        """Run what is to run before the next packet is added."""

    def stop(self, *, wait: bool = True) -> None:
        """End; wait for calls that run."""


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
        self._alive = 0

    def fresh(self) -> Executor:
        """Return one like it for another run."""
        return Threads(self.count)

    def start(self, engine: Worker) -> None:
        """Start the threads."""
        wanted = threading.Condition(engine.lock)
        self.tasks.on_added = wanted.notify
        self._wanted = wanted

        def loop() -> None:
            try:
                work()
            finally:
                with wanted:
                    self._alive -= 1
                    wanted.notify_all()

        def work() -> None:
            while True:
                with wanted:
                    while not self.tasks and not engine.is_over:
                        wanted.wait()
                    if engine.is_over:
                        return
                engine.work(self.tasks)

        self._threads = [
            threading.Thread(target=loop, name=f"holdfast-flow-{n}", daemon=True) for n in range(self.count)
        ]
        self._alive = self.count
        for thread in self._threads:
            thread.start()

    def work(self, engine: Worker) -> bool:
        """Do nothing: the threads do."""
        return False

    def stop(self, *, wait: bool = True) -> None:
        """End the threads; wait for calls that run."""
        if not self._threads:
            return
        with self._wanted:
            self._wanted.notify_all()
            if wait:  # without the lock, which an observer may hold that stops the run
                self._wanted.wait_for(lambda: not self._alive)
        if wait:
            for thread in self._threads:
                thread.join()
            self._threads = []


class Seeded(Executor):
    """One task at a time, each chosen by chance among all that are ready: every interleaving has a seed.

    Chance also says how many tasks run before the next packet is added.

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
        self.tasks = TasksByChance(self._chance)

    def fresh(self) -> Executor:
        """Return one like it for another run."""
        return Seeded(self.seed)

    def after_add(self, engine: Worker) -> None:
        """Run some tasks, or none."""
        while self._chance.random() < 0.5 and engine.work(self.tasks, once=True):
            pass
