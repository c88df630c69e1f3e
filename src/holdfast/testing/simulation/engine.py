"""An engine that behaves as Spark's micro-batches do, without a JVM; it drives any sink, real or simulated.

What it does as Spark does: an epoch's end positions are logged before it runs (put-if-absent, so that two drivers
collide), its end in a commit log afterwards; after a restart the last logged epoch without a commit is run again with
the same positions.  Tasks fail, before or after they staged, and are repeated with another layout; values differ from
one evaluation to the next; and workers outlive their driver and stage late (measured with PySpark: the Python workers
are in a process group of their own).
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial

from holdfast import faults
from holdfast.checkpoint.explained import Explanations
from holdfast.commit.coordinator import Coordinator
from holdfast.operators.expect import Expectation
from holdfast.plan.counts import Observed
from holdfast.plan.expectations import Expectations
from holdfast.ports import Carried, EpochRecord, Explanation, Held, Part, Sink, Store
from holdfast.positions import Positions
from holdfast.testing.simulation.process import Process
from holdfast.testing.simulation.rows import NumberedRows, SimulatedEvaluation
from holdfast.testing.simulation.tasks import EpochTasks, Workers

SOURCE = "numbers"

EXPECTED = "no third"
"""What rows are expected to be: no number that three divides."""


class EngineConflict(Exception):
    """Two drivers log the same epoch: Spark's "Multiple streaming queries are concurrently using" the checkpoint."""


@dataclass(frozen=True)
class Load:
    """What an engine runs.

    Parameters
    ----------
    row_count : int
        Rows of the source in all.
    epoch_rows_min, epoch_rows_max : int
        How many rows a new epoch has, as far as there are enough.
    carried_share : float
        Probability that an epoch is carried.
    task_failure_rate : float
        Probability that a task attempt fails, before or after it staged, or lives on as a stray worker.
    snapshot_share : float
        Probability that a snapshot follows an epoch: sinks with a pace of their own commit before it.
    expects : bool
        Whether rows are held to :data:`EXPECTED`, and counted.
    """

    row_count: int = 12
    epoch_rows_max: int = 5
    carried_share: float = 0.5
    task_failure_rate: float = 0.0
    epoch_rows_min: int = 1
    snapshot_share: float = 0.0
    expects: bool = False


class SimulatedEngine:
    """One driver's engine.

    Parameters
    ----------
    pipeline : str
        Its name.
    sinks : mapping of str to Sink
        In the order in which :func:`holdfast.testing.simulation.rows.is_for` counts them.
    coordinator : Coordinator
        Opened.
    store : Store
        For the engine's own logs.
    process : Process
        The life that this engine is part of.
    random_ : random.Random
        Decides sizes, layouts, failures and values.
    load : Load
        What is run.
    workers : Workers
        Where stray workers go.
    evaluation : SimulatedEvaluation, optional
        Makes the rows of epochs; by default the numbered ones.
    """

    def __init__(
        self,
        *,
        pipeline: str,
        sinks: Mapping[str, Sink],
        coordinator: Coordinator,
        store: Store,
        process: Process,
        random_: random.Random,
        load: Load,
        workers: Workers,
        evaluation: SimulatedEvaluation | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._coordinator = coordinator
        self._store = store
        self._random = random_
        self.load = load
        self._tasks = EpochTasks(pipeline, sinks, coordinator, process, random_, workers)
        self._explanations: Explanations | None = None
        self._sink_count = len(sinks)
        self._directory = self._newest_directory()
        self._evaluation: SimulatedEvaluation = evaluation or NumberedRows(list(sinks), random_)

    @cached_property
    def _expectations(self) -> Expectations:
        declared = {EXPECTED: Expectation("id % 3 <> 0", "warn", 0.0)} if self.load.expects else {}
        return Expectations.declared_as(self._pipeline, declared, self._coordinator.last_decided)

    def run(self, epochs_max: int | None = None) -> None:
        """Replay what the last driver left, then run new epochs until the source is drained (or as given)."""
        if self._last("offsets/") > self._last("commits/"):  # it died before it had logged the end
            self._run_batch(self._last("offsets/"))
        count = 0
        while (epochs_max is None or count < epochs_max) and (batch := self._plan()) is not None:
            self._run_batch(batch)
            if self.load.snapshot_share and self._random.random() < self.load.snapshot_share:
                self._coordinator.publish_held()
            self._coordinator.publish_due()
            count += 1
        if epochs_max is None:
            self._coordinator.flush()
        self._coordinator.sweep(below_epoch=self._last("offsets/") + 1)

    def resumes_at(self) -> int:
        """Return the epoch that :meth:`run` would start with."""
        return self._directory.base + self._last("commits/") + 1

    def leave_if_behind(self, held: Mapping[str, Held], last_epoch: int) -> bool:
        """Begin another directory where the sink stands that holds least, if this one will not give it what it lacks.

        As on Spark (design/0011, 5a): one durable write; its first epochs end where sinks stand, and where this one had
        come to.
        """
        places = {name: _place(each.positions) for name, each in held.items() if not each.is_empty}
        finished = self._offset(self._last("commits/"))
        if min(places.values(), default=finished) >= finished:
            return False
        stops = {*places.values(), finished, *(_place(stop) for each in held.values() for stop in each.stops)}
        start = min(places.values())
        base = max(last_epoch, self._directory.base + self._last("offsets/")) + 1
        header = _Directory(
            self._directory.number + 1, base, start, tuple(sorted(stop for stop in stops if stop > start))
        )
        key = f"directories/{header.number:08d}"
        if not self._store.put_if_absent(key, json.dumps(asdict(header)).encode()):
            raise EngineConflict(key)
        self._directory = header
        return True

    def _newest_directory(self) -> _Directory:
        keys = self._store.keys("directories/")
        if not keys:
            return _Directory()
        found = json.loads(self._store.get(keys[-1]) or b"{}")
        return _Directory(**{**found, "stops": tuple(found["stops"])})

    def _plan(self) -> int | None:
        """Return the next batch, its end positions logged; None when the source is drained."""
        planned = self._last("offsets/")
        start = self._offset(planned)
        if start >= self.load.row_count:
            return None
        size = self._random.randint(self.load.epoch_rows_min, self.load.epoch_rows_max)
        stop = next((stop for stop in self._directory.stops if stop > start), self.load.row_count)
        end = min(start + size, stop, self.load.row_count)
        self._put(f"offsets/{planned + 1:08d}", {"end": end})
        return planned + 1

    def _run_batch(self, batch: int) -> None:
        self._run_epoch(self._directory.base + batch, self._offset(batch - 1), self._offset(batch))
        self._put(f"commits/{batch:08d}", {})

    def _run_epoch(self, epoch: int, start: int, end: int) -> None:
        positions = {SOURCE: {"log": end}}
        claim = self._coordinator.missing(epoch, positions, {SOURCE: {"log": start}} if start else {})
        if not claim.sinks:  # the last driver died between the sinks' publish and its commit log
            self._evaluation.mute(epoch, start, end)
            return
        faults.reach("before-stage", epoch)
        if self._random.random() < self.load.carried_share:
            tables = self._evaluation.carry(epoch, start, end, claim.sinks)
            parts: dict[str, tuple[Part, ...]] = {name: (Carried(table),) for name, table in tables.items()}
        else:
            layout = partial(self._evaluation.tasks, epoch, start, end)
            parts = self._tasks.stage(epoch, layout, claim.sinks, self.load.task_failure_rate)
            self._evaluation.keep(epoch, {name: sum(of.row_count for of in each) for name, each in parts.items()})
        faults.reach("after-stage", epoch)
        explanations = self._explained(parts)
        observed = {EXPECTED: Observed(end - start, len([each for each in range(start, end) if each % 3 == 0]))}
        expected = self._expectations.look(epoch, observed, is_new=len(claim.sinks) == self._sink_count)
        record = replace(self._record(epoch, positions, end), explanations=explanations, recent_ends=f"to {end}")
        self._coordinator.commit(claim, replace(record, expected=expected), parts)
        self._expectations.note(epoch, expected)

    def _record(self, epoch: int, positions: Positions, end: int) -> EpochRecord:
        return EpochRecord(self._pipeline, epoch, self._coordinator.generation, positions, self._evaluation.pts(end))

    def _explained(self, sinks: Collection[str]) -> tuple[Explanation, ...]:
        if self._directory.number:
            return ()  # numbers of its epochs say nothing of the source's log
        if self._explanations is None:
            self._explanations = Explanations({SOURCE: self._durable_above}, self._coordinator.explained)
        return self._explanations.take(sinks)

    def _durable_above(self, number: int) -> list[Explanation]:
        """Return where epochs end: a source's log, in which an epoch has the number of its increment."""
        last = self._last("offsets/") + 1
        return [Explanation(SOURCE, each, str(self._offset(each - 1))) for each in range(number + 1, last + 1)]

    def _last(self, prefix: str) -> int:
        keys = self._store.keys(self._directory.below + prefix)
        return int(keys[-1].rpartition("/")[2]) if keys else -1

    def _offset(self, batch: int) -> int:
        data = self._store.get(f"{self._directory.below}offsets/{batch:08d}") if batch >= 0 else None
        return int(json.loads(data)["end"]) if data else self._directory.start

    def _put(self, key: str, content: Mapping[str, int]) -> None:
        key = self._directory.below + key
        if not self._store.put_if_absent(key, json.dumps(dict(content)).encode()):
            raise EngineConflict(key)


@dataclass(frozen=True)
class _Directory:
    """A directory of the engine's logs: the epoch of its first batch, where that begins, where epochs must end."""

    number: int = 0
    base: int = 1
    start: int = 0
    stops: tuple[int, ...] = ()

    @property
    def below(self) -> str:
        return f"{self.number:08d}/" if self.number else ""


def _place(positions: Positions) -> int:
    return int(positions.get(SOURCE, {}).get("log", 0))
