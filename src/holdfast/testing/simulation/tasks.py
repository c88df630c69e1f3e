"""The tasks of a simulated epoch: they fail, before or after they staged, and are repeated with another layout.

Workers outlive their driver and stage late (measured with PySpark: the Python workers are in a process group of their
own).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.commit.coordinator import Coordinator
from holdfast.errors import HoldfastError
from holdfast.ports import Part, Sink, Staged, Task, Writer
from holdfast.testing.simulation.process import Process, SimulatedCrash
from holdfast.testing.simulation.rows import TaskRun


class Workers:
    """Workers that outlived their driver; they stage when the test says so."""

    def __init__(self) -> None:
        self._late: list[Writer] = []

    def add(self, writer: Writer) -> None:
        """Leave a worker behind."""
        self._late.append(writer)

    def stage_late(self, how_many: int | None = None) -> None:
        """Let the oldest ones take the cut of their input for its end, and stage."""
        count = len(self._late) if how_many is None else how_many
        late, self._late = self._late[:count], self._late[count:]
        for writer in late:
            try:
                writer.stage()
            except HoldfastError:
                writer.abort()  # its place is gone: a sink may refuse it


@dataclass(frozen=True)
class EpochTasks:
    """Runs the tasks of epochs, until all parts of one are staged.

    Parameters
    ----------
    pipeline : str
        Its name.
    sinks : mapping of str to Sink
        Where rows are staged.
    coordinator : Coordinator
        Whose generation the tasks are of.
    process : Process
        The life that this is part of.
    random_ : random.Random
        Decides which tasks fail, and how.
    workers : Workers
        Where stray workers go.
    """

    pipeline: str
    sinks: Mapping[str, Sink]
    coordinator: Coordinator
    process: Process
    random_: random.Random
    workers: Workers

    def stage(
        self, epoch: int, layout: Callable[[], Sequence[TaskRun]], missing: frozenset[str], failure_rate: float
    ) -> dict[str, tuple[Part, ...]]:
        """Run the tasks; when one fails, now and then the whole stage again with another layout.

        Parameters
        ----------
        epoch : int
            The epoch.
        layout : callable
            Lays it out anew, and returns its tasks.
        missing : frozenset of str
            The sinks that lack it.
        failure_rate : float
            Probability that a task attempt fails.
        """
        attempt = 0
        while True:
            received: dict[str, list[Part]] = {name: [] for name in self.sinks if name in missing}
            for task, run in enumerate(layout()):
                while (handles := self._attempt(epoch, task, attempt, run, missing, failure_rate)) is None:
                    attempt += 1
                    if self.random_.random() < 0.3:
                        break
                if handles is None:
                    break
                for name, handle in handles.items():
                    received[name].append(handle)
            else:
                return {name: tuple(parts) for name, parts in received.items()}

    def _attempt(
        self, epoch: int, task: int, attempt: int, run: TaskRun, missing: frozenset[str], failure_rate: float
    ) -> dict[str, Staged] | None:
        """Run one attempt of one task; None when it failed, whatever it left behind."""
        tables = run(missing)
        fate = self._fate(failure_rate)
        handles = {}
        for name, table in tables.items():
            identity = Task(self.pipeline, self.coordinator.generation, epoch, task, attempt)
            writer = self.sinks[name].writer_factory()(identity)
            for batch in table.to_batches():
                writer.write(batch)
            if fate == "aborts":
                writer.abort()
            elif fate == "lives on":
                self.workers.add(writer)
            else:
                handles[name] = self._received(f"stage {name} {identity.name}", writer)
        return handles if fate == "succeeds" else None

    def _received(self, label: str, writer: Writer) -> Staged:
        """Let a worker stage, and receive the handle; if the driver dies before, the worker stages late."""
        has_begun = False

        def stage() -> Staged:
            nonlocal has_begun
            has_begun = True
            return writer.stage()

        try:
            return self.process.write(label, stage)
        except SimulatedCrash:
            if not has_begun:
                self.workers.add(writer)
            raise

    def _fate(self, failure_rate: float) -> str:
        if self.random_.random() >= failure_rate:
            return "succeeds"
        return self.random_.choice(("aborts", "lives on", "answer is lost"))
