"""Rows in segments, and the engine of a shard that reads some of them: what :mod:`engine` is for a whole source."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import pyarrow as pa

from holdfast import faults
from holdfast.commit.coordinator import Coordinator
from holdfast.ports import Carried, EpochRecord, Explanation, Part, Sink, Store
from holdfast.positions import Positions, SegmentSet
from holdfast.testing.simulation.engine import SOURCE, EngineConflict, Load
from holdfast.testing.simulation.process import Process
from holdfast.testing.simulation.rows import ROW_US, SCHEMA, TaskRun, is_for
from holdfast.testing.simulation.tasks import EpochTasks, Workers

SEGMENT_ROWS_MAX = 1_000
"""Rows of a segment: the ids of its rows are above this times its number."""

Ranges = Mapping[str, tuple[int, int]]
"""Segment -> the rows of an epoch: from where, inclusive, to where."""


class SegmentedRows:
    """Rows in segments, which arrive while shards run.  What has arrived stays, and is the same to every reader.

    Parameters
    ----------
    ends : mapping of str to int
        Segment -> how many rows it has.
    """

    def __init__(self, ends: Mapping[str, int]) -> None:
        self.ends = dict(ends)

    def arrive(self, segment: str, count: int) -> None:
        """Let rows arrive; a segment that is not there is a new one."""
        self.ends[segment] = self.ends.get(segment, 0) + count

    def ids(self, segment: str) -> range:
        """Return the ids of the rows of a segment."""
        low = [*self.ends].index(segment) * SEGMENT_ROWS_MAX
        return range(low, low + self.ends[segment])

    def rows(self, ranges: Ranges, sink_index: int, luck: float) -> pa.Table:
        """Evaluate rows for one sink; ``luck`` is the random part of their value."""
        found = [
            (row_id, segment, row_id % SEGMENT_ROWS_MAX, row_id + luck)
            for segment, (start, end) in ranges.items()
            for row_id in self.ids(segment)[start:end]
            if is_for(sink_index, row_id)
        ]
        columns = zip(*found, strict=True) if found else [()] * len(SCHEMA)
        return pa.Table.from_arrays(list(map(pa.array, columns, SCHEMA.types)), schema=SCHEMA)

    def audit(
        self,
        sink_index: int,
        rows: Sequence[Sequence[object]],
        *,
        is_ordered: bool = True,
        segments: Iterable[str] | None = None,
    ) -> list[str]:
        """Compare what a sink shows with what it should hold, of all segments or of some; returns problems in words.

        Examples
        --------
        >>> SegmentedRows({"a": 2}).audit(0, [(0, "a", 0, 0.5), (0, "a", 0, 0.5)])
        ['lost: 1', 'doubled: 0']
        """
        if segments is not None:
            segments = [*segments]
            rows = [row for row in rows if row[1] in segments]
        names = self.ends if segments is None else segments
        wanted = {row_id for segment in names for row_id in self.ids(segment) if is_for(sink_index, row_id)}
        ids = [int(str(row[0])) for row in rows]
        doubled = sorted({each for each in ids if ids.count(each) > 1}) if len(set(ids)) < len(ids) else []
        problems = [
            f"{what}: {', '.join(map(str, sorted(of)))}"
            for what, of in (("lost", wanted - {*ids}), ("doubled", doubled), ("foreign", {*ids} - wanted))
            if of
        ]
        if is_ordered and not doubled:
            for segment in sorted({str(row[1]) for row in rows}):
                sequence = [int(str(row[2])) for row in rows if row[1] == segment]
                if sequence != sorted(sequence):
                    problems.append(f"{segment} out of order: {sequence}")
        return problems


class EngineDirectory:
    """The logs of a shard's engine, in directories of which the newest counts; the first has no header.

    Parameters
    ----------
    store : Store
        The shard's checkpoint.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    @cached_property
    def _number(self) -> int:
        """The newest directory when it was first asked: by then the shard is taken over."""
        found = self._store.keys("spark/")
        return max((int(key.split("/")[1]) for key in found if key.endswith("/origin.json")), default=0)

    @property
    def _header(self) -> dict[str, Any]:
        data = self._store.get(f"{self._below}origin.json") or b'{"base": 1, "start": {}, "layout": 0}'
        header: dict[str, Any] = json.loads(data)
        return header

    @property
    def base(self) -> int:
        """The epoch of the first batch."""
        return int(self._header["base"])

    def stop_after(self, end: Mapping[str, int]) -> dict[str, int] | None:
        """Return where the next epoch must end, because a sink stands there; None where it may end anywhere."""
        stops = (stop.get(SOURCE, {}) for stop in self._header.get("stops", ()))
        return next((stop for stop in stops if any(at > end.get(name, 0) for name, at in stop.items())), None)

    @property
    def _below(self) -> str:
        return f"spark/{self._number}/"

    def last(self, log: str) -> int:
        """Return the number of the last batch in a log; -1: none."""
        keys = self._store.keys(f"{self._below}{log}/")
        return int(keys[-1].rpartition("/")[2]) if keys else -1

    def end(self, batch: int) -> dict[str, int]:
        """Return where a batch ends, by segment; of the one before the first, where the directory begins."""
        data = self._store.get(f"{self._below}offsets/{batch:08d}") if batch >= 0 else None
        positions = json.loads(data) if data else self._header["start"].get(SOURCE, {})
        return {segment: int(at) for segment, at in positions.items()}

    def put(self, log: str, batch: int, content: Mapping[str, int]) -> None:
        """Log something about a batch.

        Raises
        ------
        EngineConflict
            If another driver has.
        """
        self._put(f"{self._below}{log}/{batch:08d}", dict(content))

    def _put(self, key: str, content: Mapping[str, object]) -> None:
        if not self._store.put_if_absent(key, json.dumps(content).encode()):
            raise EngineConflict(key)

    # --- as a move between shards sees it: ``holdfast.controller.layouts.moving.ShardDirectory`` ----------------------

    @property
    def layout(self) -> int:
        """Number of the layout under which the newest directory began."""
        return int(self._header["layout"])

    @property
    def has_begun(self) -> bool:
        """Whether there is anything of the engine."""
        return bool(self._store.keys("spark/"))

    def last_epoch(self) -> int:
        """Return the highest epoch that was ever planned."""
        return self.base + self.last("offsets")

    def planned_end(self) -> Positions:
        """Return where the last epoch ends that is planned."""
        return {SOURCE: self.end(self.last("offsets"))}

    def finished_end(self) -> Positions:
        """Return where the last epoch ends that is finished."""
        positions = self.end(self.last("commits"))
        return {SOURCE: positions} if positions else {}

    def explanations(self, kept: Mapping[str, Mapping[str, int]]) -> tuple[Explanation, ...]:
        """Return nothing: rows in segments need no explanation."""
        return ()

    def begin(self, layout: int, epoch: int, positions: Positions, stops: Sequence[Positions] = ()) -> None:
        """Begin a directory under a layout, behind an epoch; the first epochs end at stops."""
        header = {"base": epoch + 1, "start": positions, "layout": layout, "stops": [*stops]}
        self._put(f"spark/{self._number + 1}/origin.json", header)
        self._number += 1


class ShardEngine:
    """The engine of one shard, in one life.

    Parameters
    ----------
    pipeline : str
        The shard's name.
    sinks, coordinator, store, process, random_, workers
        As for :class:`~holdfast.testing.simulation.engine.SimulatedEngine`; the store is the shard's checkpoint.
    load : Load
        How epochs are cut and fail.
    topic : SegmentedRows
        What is read.
    segments : SegmentSet
        Which segments of it.
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
        workers: Workers,
        load: Load,
        topic: SegmentedRows,
        segments: SegmentSet,
    ) -> None:
        self._pipeline = pipeline
        self._indices = {name: index for index, name in enumerate(sinks)}
        self._coordinator = coordinator
        self._random = random_
        self._load = load
        self._topic = topic
        self._segments = segments
        self._tasks = EpochTasks(pipeline, sinks, coordinator, process, random_, workers)
        self._directory = EngineDirectory(store)

    def run(self, epochs_max: int | None = None) -> bool:
        """Replay what the last driver left, then run new epochs; returns whether nothing is left to read."""
        directory = self._directory
        if directory.last("offsets") > directory.last("commits"):
            self._run_batch(directory.last("offsets"))
        count = 0
        while (epochs_max is None or count < epochs_max) and (batch := self._plan()) is not None:
            self._run_batch(batch)
            self._coordinator.publish_due()
            count += 1
        self._coordinator.flush()
        self._coordinator.sweep(below_epoch=directory.base + directory.last("offsets") + 1)
        return not self._ahead(directory.end(directory.last("offsets")))

    def _ahead(self, at: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        ends = {name: end for name, end in self._topic.ends.items() if name in self._segments}
        return {name: (at.get(name, 0), end) for name, end in ends.items() if at.get(name, 0) < end}

    def _plan(self) -> int | None:
        """Return the next batch, its end positions logged; None when there is nothing to read."""
        planned = self._directory.last("offsets")
        end = self._directory.end(planned)
        if stop := self._directory.stop_after(end):
            self._directory.put("offsets", planned + 1, {**end, **stop})
            return planned + 1
        ahead = self._ahead(end)
        if not ahead:
            return None
        left = self._random.randint(self._load.epoch_rows_min, self._load.epoch_rows_max)
        for segment in self._random.sample(sorted(ahead), len(ahead)):
            start, there = ahead[segment]
            taken = min(left, self._random.randint(1, there - start))
            end |= {segment: start + taken} if taken else {}
            left -= taken
        self._directory.put("offsets", planned + 1, end)
        return planned + 1

    def _run_batch(self, batch: int) -> None:
        before, end = self._directory.end(batch - 1), self._directory.end(batch)
        self._run_epoch(self._directory.base + batch, before, end)
        self._directory.put("commits", batch, {})

    def _run_epoch(self, epoch: int, before: Mapping[str, int], end: Mapping[str, int]) -> None:
        positions = {SOURCE: end}
        self._coordinator.check_before_epoch()  # what was read of the logs is then not another driver's
        claim = self._coordinator.missing(epoch, positions, {SOURCE: before} if before else {})
        if not claim.sinks:
            return
        faults.reach("before-stage", epoch)
        ranges = {name: (before.get(name, 0), at) for name, at in end.items() if before.get(name, 0) < at}
        if self._random.random() < self._load.carried_share:
            tables = self._evaluate(ranges, claim.sinks)
            parts: dict[str, tuple[Part, ...]] = {name: (Carried(table),) for name, table in tables.items()}
        else:
            layout = partial(self._layout, ranges)
            parts = self._tasks.stage(epoch, layout, claim.sinks, self._load.task_failure_rate)
        faults.reach("after-stage", epoch)
        record = EpochRecord(self._pipeline, epoch, self._coordinator.generation, positions, sum(end.values()) * ROW_US)
        self._coordinator.commit(claim, record, parts)

    def _layout(self, ranges: Ranges) -> list[TaskRun]:
        """Cut an epoch into one to three tasks: a segment's rows stay in their order."""
        count = self._random.randint(1, 3)
        groups: list[dict[str, tuple[int, int]]] = [{} for _ in range(count)]
        for segment, rows in ranges.items():
            groups[self._random.randrange(count)][segment] = rows
        return [partial(self._evaluate, group) for group in groups]

    def _evaluate(self, ranges: Ranges, sinks: frozenset[str]) -> dict[str, pa.Table]:
        luck = self._random.random()
        return {name: self._topic.rows(ranges, index, luck) for name, index in self._indices.items() if name in sinks}
