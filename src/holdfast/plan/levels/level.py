"""A level: all stateful operators of one depth, one call for each bucket and epoch, and the stateless ones after them.

Its host gives it the chunks of one bucket, or of one passage, and the cells in which that bucket's state is kept.  The
chunks that it yields are addressed to the next level.  A task of Spark is such a host
(:mod:`holdfast.spark.state.host`), the driver (:mod:`holdfast.plan.levels.host`), a test without Spark
(:mod:`holdfast.testing.drive`) and a simulation (:mod:`holdfast.testing.simulation.levels`) are others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from holdfast.capabilities import offers
from holdfast.checkpoint.snapshot import Bucket
from holdfast.errors import invariant
from holdfast.operators.waits import longest_waits
from holdfast.plan.bounds import all_keys, moved
from holdfast.plan.chunks import ROWS, Chunk, Packer, Routing, decode, in_order, rank_of
from holdfast.plan.counts import Counts
from holdfast.plan.laps import OTHER, Laps
from holdfast.plan.levels.arrivals import FeedBounds, arrivals_of, bounds_for
from holdfast.plan.levels.parts import SnapshotParts
from holdfast.plan.levels.seed import Seeds, adopted
from holdfast.plan.levels.store import Cache, Cells, HeldTables, Record, advance, compacted, load
from holdfast.plan.levels.taps import Taps, Wish
from holdfast.plan.pressure import is_costly, pressure_of
from holdfast.plan.report import Pace
from holdfast.plan.stages import Hosted, Stage, feed_label
from holdfast.quarantine.mask import EVERYTHING, GivenRows, Passing, outlet_of
from holdfast.state import tables
from holdfast.state.bucket_report import BucketReport, KeptVersion
from holdfast.state.call import call
from holdfast.state.step import CLOSED, Arrivals, CountsHeld, Result, Step, StepTime
from holdfast.status import Wait


@dataclass(frozen=True)
class EpochContext:
    """What the driver sends to all levels in an epoch.

    Parameters
    ----------
    epoch : int
        Its number, as steps know it.
    batch_us : int
        Its batch time, as it was logged.
    active_until_us : mapping of str to int
        Source -> the time up to which it counts as active, although no row of it arrived.
    is_barrier : bool
        Whether its state is needed for a snapshot.
    passing : Passing
        What passes behind operators with state.
    wish : mapping of str to int
        Of which rows somebody wants to see some (:mod:`holdfast.plan.levels.taps`).
    """

    epoch: int
    batch_us: int
    active_until_us: Mapping[str, int] = field(default_factory=dict)
    is_barrier: bool = False
    passing: Passing = EVERYTHING
    wish: Wish = field(default_factory=dict)

    def time_of(self, hosted: Hosted) -> StepTime:
        """Return the epoch as it is passed to an operator's step."""
        return StepTime(self.epoch, self.batch_us, hosted.active_until(self.active_until_us))


@dataclass(frozen=True)
class WorkerMemory:
    """What a process that runs levels holds from call to call.

    Parameters
    ----------
    cache : Cache
        The latest tables of each bucket that it has processed.
    pace : Pace
        How often it computes which inputs keys wait for.
    laps : Laps
        Of its thread: whoever begins them takes them.
    taps : Taps
        Of its thread, for the rows of one epoch that somebody wants to see.
    """

    cache: Cache = field(default_factory=Cache)
    pace: Pace = field(default_factory=Pace)
    laps: Laps = field(default_factory=Laps)
    taps: Taps = field(default_factory=Taps)


class Level:
    """All stateful operators of one depth, and the stateless ones after them.  Picklable.

    Parameters
    ----------
    number : int
        The level.
    stage : Stage
        Its operators, and the program after them.
    routing : Routing
        Where chunks go.
    token : str
        Unique for the run.
    seeds : Seeds, optional
        The initial state of buckets that the store does not have.
    parts : SnapshotParts, optional
        Takes the tables of each bucket that is called in a barrier.
    staying : collection of int
        Targets whose chunks are opened in the task that hosts the level: those of a subplan behind it.
    """

    def __init__(
        self,
        number: int,
        stage: Stage,
        routing: Routing,
        token: str,
        seeds: Seeds | None = None,
        parts: SnapshotParts | None = None,
        staying: Collection[int] = (),
    ) -> None:
        self.number = number
        self._stage = stage
        self._routing = routing
        self._token = token
        self._seeds = seeds
        self._snapshot_parts = parts
        self._staying = staying

    @property
    def token(self) -> str:
        """Unique for the run: what a process keeps of another one does not count."""
        return self._token

    def run(
        self, key: tuple[str, int], chunks: Sequence[Chunk], cells: Cells, at: EpochContext, memory: WorkerMemory
    ) -> Iterator[Chunk]:
        """Yield the chunks that result from those of one bucket, or of one passage.

        Parameters
        ----------
        key : (str, int)
            Operator and label (:meth:`holdfast.plan.chunks.Routing.address`); no operator: a passage.
        chunks : sequence of Chunk
            All of the epoch, in any order.
        cells : Cells
            Where the bucket's state is kept.
        at : EpochContext
            The epoch.
        memory : WorkerMemory
            Of this process.
        """
        operator, label = key
        strays = [chunk for chunk in chunks if self._routing.address(chunk, self.number) != key]
        invariant(
            not strays,
            f"level {self.number} got chunks of another bucket than {key}.",
            why="state is found where the hash of a key says.",
            epoch=at.epoch,
            story=lambda: f"Addressed to: {[self._routing.address(chunk, self.number) for chunk in strays]}",
        )
        if not operator:
            return self._passed(in_order(chunks), memory)
        bucket = _Bucket(self._stage.hosted[operator], label % self._routing.buckets, cells, at, memory)
        return self._called(bucket, in_order(chunks))

    def arriving(self, chunks: Iterable[Chunk]) -> list[tuple[tuple[str, int], list[Chunk]]]:
        """Return chunks by the key under which they arrive, for a host without a shuffle; keys are sorted."""
        by_key: dict[tuple[str, int], list[Chunk]] = {}
        for chunk in chunks:
            by_key.setdefault(self._routing.address(chunk, self.number), []).append(chunk)
        return sorted(by_key.items())

    def onward(self, chunk: Chunk) -> tuple[str, int]:
        """Return the key under which a chunk goes to the next level."""
        return self._routing.address(chunk, self.number + 1)

    # --- what passes ----------------------------------------------------------------------------------------------

    def _passed(self, chunks: Sequence[Chunk], memory: WorkerMemory) -> Iterator[Chunk]:
        """Pass chunks on; compute what the stage after this level does to rows that bypass it."""
        packers: dict[int, Packer] = {}
        counts = Counts({}, memory.laps, memory.taps)
        for chunk in chunks:
            head = self._stage.relays.get(chunk.target) if chunk.kind == ROWS else None
            if head is None:
                yield chunk
                continue
            packer = packers.setdefault(chunk.rank, self._packer(chunk.rank, chunk.bucket))
            yield from self._computed(head, decode(chunk.data), packer, counts)
        for packer in packers.values():
            yield from packer.rows()
        if counts.tally:
            yield packer.report("", counts.report())

    def _packer(self, rank: int, passage: int) -> Packer:
        return Packer(self._routing, rank, passage, self._staying)

    def _computed(self, head: str, rows: pa.Table, packer: Packer, counts: Counts) -> Iterator[Chunk]:
        assert self._stage.program is not None
        for batch in rows.to_batches():
            for target, made in self._stage.program.run(head, batch, counts):
                yield from packer.add(int(target), made)

    # --- what is called -------------------------------------------------------------------------------------------

    def _called(self, bucket: _Bucket, chunks: Sequence[Chunk]) -> Iterator[Chunk]:
        """Call an operator's step for one bucket."""
        hosted, laps = bucket.hosted, bucket.memory.laps
        laps.to(hosted.name)
        stored, loaded, state = self._loaded(bucket)
        feeds = FeedBounds(hosted, loaded.feeds, self._routing.buckets)
        arrivals = arrivals_of(hosted, chunks, feeds)
        result = call(hosted.step, state, arrivals, bucket.time, operator=hosted.name, bucket=bucket.number)
        before = state
        record, state = _advanced(bucket, loaded, state, result)
        if feeds.has_moved:
            record = replace(record, feeds=feeds.bounds)
        if record is not stored:
            bucket.cells.put_record(record.to_json())
        self._hold(bucket, record, state)
        packer = self._packer(rank_of(self.number, hosted.number, bucket.number), bucket.number)
        counts = Counts({}, laps, bucket.memory.taps)
        flow = _flow(hosted.step, arrivals, before, state, result)
        counts.flowed(hosted.name, flow)
        given: dict[str, GivenRows] = {}
        for output, rows in result.outputs.items():
            if rows.num_rows:
                outlet = outlet_of(hosted.name, output, bucket.number)
                if (reported := bucket.at.passing.report(outlet, rows)) is not None:
                    given[outlet] = reported
                passing = bucket.at.passing.of(self.number, outlet, rows)
                counts.flowed(hosted.name, {f"made.{output}": rows.num_rows, f"out.{output}": passing.num_rows})
                head = f"{hosted.name}/{output}"
                if bucket.at.wish:
                    counts.taps.see(head, passing.to_batches())
                yield from self._computed(head, passing, packer, counts)
        laps.to(OTHER)
        yield from packer.rows()
        laps.to(hosted.name)
        yield from self._bounds(bucket, result, packer)
        if feeds.has_moved and feeds.has_ended:
            yield from self._ends(bucket, packer)
        report = self._report(bucket, result, record, state)
        if offers(hosted.step, CountsHeld) and result.fates is not None:
            report = replace(report, held=(flow["held before"], flow["held after"]))
        if self._snapshot_parts is not None:
            kept = self._offered(bucket, record, state, has_moved=feeds.has_moved)
            report = replace(report, kept=kept)
        laps.to(OTHER)
        yield packer.report(hosted.name, counts.report({bucket.name: report}, given))

    def _loaded(self, bucket: _Bucket) -> tuple[Record, Record, dict[str, pa.Table]]:
        """Return a bucket's record as stored, the one to begin with (perhaps that of a seed), and its tables."""
        cache, held_as = bucket.memory.cache, self._held_as(bucket)
        cache.drop_others(self._token)
        found = bucket.cells.record()
        record = stored = Record.from_json(found)
        if found is None and self._seeds is not None:
            seed = adopted(bucket.cells, self._seeds, bucket.hosted.name, bucket.number, bucket.hosted.step)
            if seed is not None:
                record, held = seed
                cache.put(held_as, held)
        return stored, record, load(bucket.cells, record, bucket.hosted.step, cache.get(held_as))

    def _hold(self, bucket: _Bucket, record: Record, state: Mapping[str, pa.Table]) -> None:
        size = sum(table.nbytes for table in state.values())
        bucket.memory.cache.put(self._held_as(bucket), HeldTables(record.version, record.token, state, size))

    def _bounds(self, bucket: _Bucket, result: Result, packer: Packer) -> Iterator[Chunk]:
        """Yield the bounds of an operator's output for the operators downstream of it."""
        if result.bounds is None or not result.bounds.num_rows:
            return
        hosted = bucket.hosted
        for number, passes in hosted.onward:
            target = self._routing.targets[number]
            said = moved(result.bounds, hosted.offsets.get(number, 0))
            for to, bounds in bounds_for(said, hosted.step.key, target.key, passes, self._routing.buckets):
                yield packer.bounds(number, to, bucket.name, bounds)

    def _ends(self, bucket: _Bucket, packer: Packer) -> Iterator[Chunk]:
        """Yield the ends of an operator's side outputs, once all of its inputs have ended.

        The bounds of its step do not imply them: the rows of ``merge`` end with the main input, and rows of a slow
        input may still be late.
        """
        for number, output in bucket.hosted.ends:
            label = feed_label(bucket.hosted.name, output, bucket.number)
            for to in range(self._routing.buckets):
                yield packer.bounds(number, to, label, all_keys(self._routing.targets[number].key, CLOSED))

    def _report(self, bucket: _Bucket, result: Result, record: Record, state: Mapping[str, pa.Table]) -> BucketReport:
        """Return the bucket's report to the driver."""
        step, pace = bucket.hosted.step, bucket.memory.pace
        state_rows = sum(table.num_rows for table in state.values())
        held_as = "/".join(self._held_as(bucket))
        waits = pace.measured(held_as, lambda: longest_waits(step, state, bucket.time))
        if is_costly(step, state_rows):
            pressure = pace.measured(f"{held_as}/pressure", lambda: pressure_of(step, state))
        else:
            pressure = pressure_of(step, state)
        return BucketReport.of(
            result,
            state_rows=state_rows,
            state_bytes=record.size_bytes,
            waits=None if waits is None else tuple(Wait(**wait) for wait in waits[0]),
            waiting_keys=None if waits is None else waits[1],
            pressure=pressure,
        )

    def _offered(
        self, bucket: _Bucket, record: Record, state: Mapping[str, pa.Table], *, has_moved: bool
    ) -> KeptVersion:
        """Offer the tables of a barrier; return what the driver must know of the bucket for a snapshot."""
        assert self._snapshot_parts is not None
        is_barrier = bucket.at.is_barrier
        if is_barrier and record.version:
            name, number = bucket.hosted.name, bucket.number
            self._snapshot_parts.offer(Bucket(name, number, record.version, record.token, record.feeds, state))
        return KeptVersion(record.version, record.token, record.feeds if has_moved or is_barrier else None)

    def _held_as(self, bucket: _Bucket) -> tuple[str, ...]:
        return self._token, bucket.hosted.name, str(bucket.number)


@dataclass(frozen=True)
class _Bucket:
    """One bucket of an operator in one epoch, with its context."""

    hosted: Hosted
    number: int
    cells: Cells
    at: EpochContext
    memory: WorkerMemory

    @property
    def name(self) -> str:
        """Its name in reports and as the origin of bounds."""
        return f"{self.hosted.name}/{self.number}"

    @property
    def time(self) -> StepTime:
        """The epoch as it is passed to its step."""
        return self.at.time_of(self.hosted)


def _flow(
    step: Step,
    arrivals: Mapping[str, Arrivals],
    before: Mapping[str, pa.Table],
    after: Mapping[str, pa.Table],
    result: Result,
) -> dict[str, int]:
    """Return what is counted of a call, for the audit: what came and was held, and what became of it."""
    came = {name: given.count for name, given in arrivals.items()}
    flow = {f"in.{name}": count for name, count in came.items()} | {"in": sum(came.values())}
    if result.fates is None:
        return flow
    held = step.held if offers(step, CountsHeld) else lambda state: 0
    due = {f"due.{name}": count for name, count in result.fates.items() if name in step.outputs}
    fates = {f"fate.{name}": count for name, count in result.fates.items() if name not in step.outputs and count}
    sums = {"held before": held(before), "held after": held(after), "fates": sum(result.fates.values())}
    return flow | due | fates | sums


def _advanced(
    bucket: _Bucket, record: Record, state: dict[str, pa.Table], result: Result
) -> tuple[Record, dict[str, pa.Table]]:
    """Write what a call has changed; return the record, which is not written yet, and the resulting tables."""
    declared = bucket.hosted.step.tables
    changes = {
        name: change for name, change in result.changes.items() if change.upserts.num_rows or change.deletes.num_rows
    }
    if not changes:
        return record, state
    state = compacted(tables.apply_changes(state, declared, changes))
    return advance(bucket.cells, record, declared, changes, state, bucket.at.epoch), state
