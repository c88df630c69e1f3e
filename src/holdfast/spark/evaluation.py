"""Two ways to evaluate an epoch: through Spark's plan, or as an Arrow program whose rows never enter the JVM.

Both bring a small epoch's rows to the driver (*carry*) or let executors stage those of a large one, and count what they
read.  The contents of an epoch are the same: everything between Spark's logged positions.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, TypeVar

import pyarrow as pa
from pyspark import RDD, TaskContext
from pyspark.sql import DataFrame, SparkSession

from holdfast.checkpoint import spark_log
from holdfast.connectors.reading.wrapped import of_columns
from holdfast.errors import crossing, present
from holdfast.plan.counts import Counts, EpochReport, Observed, observed_since, united
from holdfast.plan.laps import HERE, OTHER, STAGING, Laps
from holdfast.plan.levels.taps import NO_WISH, Taps, Wish
from holdfast.plan.program import Program
from holdfast.plan.routes import Routes
from holdfast.ports import Carried, Part, Source, SourceSpec, Span
from holdfast.positions import Positions, SourcePositions
from holdfast.quarantine.mask import NOTHING, Mask, lettered, readable
from holdfast.spark import private
from holdfast.spark.failure import is_too_large
from holdfast.spark.sampling import Sampling
from holdfast.spark.staging import ANSWERS, TaskStaging, answer_of, answered


@dataclass(frozen=True)
class Evaluated:
    """The rows of one epoch, ready to be committed, and the report on them."""

    parts: Mapping[str, Sequence[Part]]
    report: EpochReport


T_co = TypeVar("T_co", covariant=True)


class Here(Protocol[T_co]):
    """Evaluates a whole small epoch without a job: in this process, or in the kept worker."""

    @property
    def times(self) -> float:
        """How many times the usual size and number of rows an epoch may have for it."""

    def __call__(self, *epoch: Any) -> T_co:
        """Return what the epoch gives."""

    def begin_worker(self) -> None:
        """Begin what evaluates outside of this process; does not wait for it."""

    def end_worker(self) -> None:
        """End it; called from any thread."""


CARRY_ROWS_MAX = 200_000
"""Measured: up to here the driver alone writes as fast as two executors' workers (0.84 million rows/s)."""


def is_small(here: Here[Any] | None, start: spark_log.Offsets, end: spark_log.Offsets, carry_bytes: int) -> bool:
    """Return whether an epoch is evaluated without a job.

    Parameters
    ----------
    here : Here, optional
        What would evaluate it, if anything else does than Spark's plan.
    start, end : Offsets
        Where it begins and ends, with sizes and rows as far as they are known.
    carry_bytes : int
        The usual size.
    """
    size, rows = spark_log.span(start.sizes, end.sizes), spark_log.span(start.rows, end.rows)
    # Compressed columns say little about the memory that rows take: where their number is known, it counts too.
    times = 1 if here is None else here.times
    return size is not None and size <= times * carry_bytes and (rows or 0) <= times * CARRY_ROWS_MAX


class Evaluation(Protocol):
    """How epochs are evaluated.  Lives on the driver."""

    @property
    def here(self) -> Here[Any] | None:
        """What evaluates small epochs without a job; None where there are jobs alone."""

    @property
    def sampling(self) -> Sampling:
        """Who wants to see rows of it."""

    def carry(self, batch: DataFrame, start: Positions, end: Positions, sinks: frozenset[str]) -> Evaluated | None:
        """Return the epoch with its rows here; None when they are too many, or must not be evaluated here."""

    def stage(self, batch: DataFrame, start: Positions, end: Positions, staging: TaskStaging) -> Evaluated:
        """Let executors stage the epoch, in one Spark job; return the handles that the driver received."""


@dataclass(frozen=True)
class SparkEvaluation:
    """Through Spark's plan: any operator.

    Parameters
    ----------
    routes : Routes
        How the plan's rows are assigned to sinks.
    observe : callable
        Returns what Spark counted in all attempts at the epoch that is evaluated.
    """

    routes: Routes
    observe: Callable[[], Mapping[str, Observed]]
    sampling: Sampling = field(default_factory=Sampling)
    here: ClassVar[None] = None

    def carry(self, batch: DataFrame, start: Positions, end: Positions, sinks: frozenset[str]) -> Evaluated | None:
        """Bring the epoch's rows to the driver as Arrow: no Python worker takes part."""
        before = self.observe()
        try:
            table: pa.Table = batch.toArrow()
        except pa.ArrowInvalid:
            # PySpark casts the result to the schema, which Arrow refuses for a struct that is null where a member is
            # NOT NULL.  When staged, the same rows pass (fitted_column).
            return None
        except Exception as error:
            if is_too_large(error):
                return None
            raise
        tables = self.routes.split_table(table)
        report = EpochReport(observed_since(before, self.observe()))
        return Evaluated({sink: (Carried(tables[sink]),) for sink in sinks}, report)

    def stage(self, batch: DataFrame, start: Positions, end: Positions, staging: TaskStaging) -> Evaluated:
        """Run the plan and the writers in one job."""
        before = self.observe()
        rows = private.rows_of(batch.mapInArrow(PlanTask(staging, self.routes), ANSWERS))
        parts, report = answered(rows, staging.writers)
        return Evaluated(parts, united([EpochReport(observed_since(before, self.observe())), report]))


@dataclass(frozen=True)
class PlanTask:
    """One task of a staged epoch: rows of the plan to writers.  Picklable; called by ``mapInArrow``."""

    staging: TaskStaging
    routes: Routes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Stage the rows of all batches; yield one batch of handles, and the report."""
        laps, taps = Laps(), Taps(self.staging.wish)
        rows = (pair for batch in laps.during(None, batches) for pair in self.routes.split(batch))
        with crossing():
            yield self.staging.stage(rows, laps, taps)
        yield answer_of(EpochReport(waves={STAGING: laps.take()}, samples=taps.take()))


@dataclass(frozen=True)
class Reader:
    """How any process opens a source to read spans of it.  Picklable.

    Parameters
    ----------
    spec : SourceSpec
        The declaration.
    name, workspace : str
        The node's name and its directory below the checkpoint.
    used : frozenset of str, optional
        The columns that the pipeline uses; None: all, or nobody knows.
    """

    spec: SourceSpec
    name: str
    workspace: str
    used: frozenset[str] | None = None

    def open(self) -> Source:
        """Open the source in this process."""
        return self.spec.open(self.name, self.workspace)

    def for_rows(self, wish: Wish) -> Reader:
        """Return how it is opened where its rows go to the pipeline alone: nobody wants to see any as they are."""
        return self if self.used is None or wish else replace(self, spec=of_columns(self.spec, self.used))


class SourcesHere:
    """The sources of a run, opened in the process that reads them, when it first does.  Picklable before that.

    Parameters
    ----------
    readers : mapping of str to Reader
        How each is opened.
    masks : mapping of str to Mask
        What is left out of sources, and sent again.
    retired : Positions
        Where a source begins that has come back: the epoch before says nothing of it.
    """

    def __init__(self, readers: Mapping[str, Reader], masks: Mapping[str, Mask], retired: Positions) -> None:
        self._readers = readers
        self._masks = masks
        self._retired = retired
        self._sources: dict[tuple[str, int, bool], Source] = {}

    def source(self, name: str, thread: int = 0, *, wish: Wish | None = None) -> Source:
        """Return a source, with what is left out of it; each thread that reads it has one of its own.

        Parameters
        ----------
        wish : mapping of str to int, optional
            Which rows somebody wants to see, for who reads rows for the pipeline; None: it is for planning.
        """
        reader = self._readers[name]
        asked = reader if wish is None else reader.for_rows(wish)
        key = (name, thread, asked.spec is reader.spec)
        if key not in self._sources:
            self._sources[key] = lettered(asked.open(), self._masks.get(name, NOTHING))
        return self._sources[key]

    def span(self, name: str, start: Positions, end: Positions) -> tuple[SourcePositions, SourcePositions]:
        """Return from where to where a source is read."""
        return start.get(name) or self._retired.get(name) or self.source(name).initial(), end[name]

    def spans(self, start: Positions, end: Positions, parallelism: int) -> Iterator[tuple[str, Span]]:
        """Yield what is read of each source, in pieces for so many readers."""
        for name in end:
            begin, until = self.span(name, start, end)
            for span in self.source(name).spans(begin, until, parallelism=parallelism):
                yield name, span


@dataclass(frozen=True)
class ProgramHere:
    """A whole epoch of a program in one process.  Picklable.

    Parameters
    ----------
    program : Program
        The pipeline.
    sources : SourcesHere
        Its sources.
    timestamps : mapping of str to str
        Source -> its timestamp column, for the counts.
    """

    program: Program
    sources: SourcesHere
    timestamps: Mapping[str, str | None]
    times: ClassVar[float] = 1

    def __call__(
        self, start: Positions, end: Positions, sinks: frozenset[str], wish: Wish = NO_WISH
    ) -> tuple[Mapping[str, pa.Table], EpochReport]:
        """Return the rows of some sinks, and what was counted."""
        counts = Counts(self.timestamps, taps=Taps(wish))
        counts.laps.to(OTHER)
        read = (
            (name, batch)
            for name, span in self.sources.spans(start, end, 1)
            for batch in counts.laps.during(name, self.sources.source(name, wish=wish).read(span))
        )
        tables = self.program.tables(read, sinks, counts)
        return tables, replace(counts.report(), waves={HERE: counts.laps.take()})

    def begin_worker(self) -> None:
        """Do nothing: it is this process."""

    def end_worker(self) -> None:
        """Do nothing: it is this process."""


class ColumnarEvaluation:
    """As an Arrow program: the driver plans the spans itself, tasks read, compute and stage in one Python worker.

    Parameters
    ----------
    session : SparkSession
        For the jobs of staged epochs.
    program : Program
        The pipeline.
    readers : mapping of str to Reader
        Its sources.
    parallelism : int
        Tasks that can run at a time.
    sources : SourcesHere
        The same, in this process.
    here : Here, optional
        Evaluates small epochs; None where executors stage all.
    """

    def __init__(
        self,
        session: SparkSession,
        program: Program,
        readers: Mapping[str, Reader],
        parallelism: int,
        sources: SourcesHere,
        here: Here[tuple[Mapping[str, pa.Table], EpochReport]] | None,
    ) -> None:
        self._jobs = SpanJobs(session, parallelism)
        self._program = program
        self._readers = readers
        self._parallelism = parallelism
        self._sources = sources
        self.here = here
        self.sampling = Sampling()

    def carry(self, batch: DataFrame, start: Positions, end: Positions, sinks: frozenset[str]) -> Evaluated | None:
        """Read and compute the epoch here."""
        if self.here is None:
            return None
        tables, report = self.here(start, end, sinks, self.sampling.wish)
        return Evaluated({sink: (Carried(table),) for sink, table in tables.items()}, report)

    def stage(self, batch: DataFrame, start: Positions, end: Positions, staging: TaskStaging) -> Evaluated:
        """Run one job with at most a task for each core."""
        spans = tuple(self._sources.spans(start, end, self._parallelism))
        if not spans:
            return Evaluated(dict.fromkeys(staging.writers, ()), EpochReport())
        readers = {name: reader.for_rows(staging.wish) for name, reader in self._readers.items()}
        task = SpanTask(replace(staging, epoch=NO_EPOCH), self._program, readers, timestamps_of(self._readers))
        return Evaluated(*answered(self._jobs.run(task, SpansOfEpoch(staging.epoch, spans)), staging.writers))


SPANS_PROPERTY = "holdfast.spans_secret"
"""Local property of an epoch's job: its number and its spans.

NB "secret": an event log of Spark shows properties, but those that are called so.
"""

NO_EPOCH = -1
"""Stands in a task for what the property of its job says."""

SPANS_TEXT_MAX = 2**16
"""Longer ones are part of the pickled task: each task gets the properties of its job."""


def timestamps_of(readers: Mapping[str, Reader]) -> dict[str, str | None]:
    """Return the timestamp column of each source."""
    return {name: reader.spec.timestamp for name, reader in readers.items()}


@dataclass(frozen=True)
class SpansOfEpoch:
    """What the tasks of a staged epoch read: task ``n`` of ``m`` reads each ``m``-th span from span ``n`` on."""

    epoch: int
    spans: tuple[tuple[str, Span], ...]

    def spans_of(self, shares: Iterable[tuple[int, int]]) -> list[tuple[str, Span]]:
        """Return what a task reads, by its number and how many there are."""
        return [span for number, count in shares for span in self.spans[number::count]]

    def to_text(self) -> str:
        """Return it as a property of a job."""
        return b64encode(private.pickled(self)).decode()


@dataclass(frozen=True)
class SpanTask:
    """The tasks of a staged epoch.  Picklable; ``mapPartitions`` calls one with its number, and how many there are."""

    staging: TaskStaging
    program: Program
    readers: Mapping[str, Reader]
    timestamps: Mapping[str, str | None]
    spans: SpansOfEpoch | None = None
    """None: a property of the job has them."""

    def __call__(self, shares: Iterable[tuple[int, int]]) -> Iterator[dict[str, Any]]:
        """Read, compute and stage; yield the handles and the report."""
        counts = Counts(self.timestamps, taps=Taps(self.staging.wish))
        counts.laps.to(OTHER)
        with crossing():
            given = self.of_epoch()
            staging, spans = replace(self.staging, epoch=given.epoch), given.spans_of(shares)
            yield from staging.stage(self._rows(spans, counts), counts.laps, counts.taps).to_pylist()
        yield from answer_of(replace(counts.report(), waves={HERE: counts.laps.take()})).to_pylist()

    def of_epoch(self) -> SpansOfEpoch:
        """Return the epoch and its spans, in a task."""
        if self.spans is not None:
            return self.spans
        context = present(TaskContext.get(), "an epoch is staged outside a task of Spark.")
        text = context.getLocalProperty(SPANS_PROPERTY)
        spans: SpansOfEpoch = private.unpickled(
            b64decode(present(text, "an epoch is staged in a job that does not say it."))
        )
        return spans

    def _rows(self, spans: Sequence[tuple[str, Span]], counts: Counts) -> Iterator[tuple[str, pa.RecordBatch]]:
        for name, span in spans:
            counts.laps.to(name)
            for batch in counts.laps.during(name, readable(self.readers[name].open(), span).read(span)):
                yield from self.program.counting(name, batch, counts)


class TaskCounts:
    """How many tasks read an epoch: at most one for each core, and one for each span.

    More than it needs where none had as many before: those without spans start the workers that a larger one needs.

    Parameters
    ----------
    parallelism : int
        Tasks that can run at a time.
    """

    def __init__(self, parallelism: int) -> None:
        self._parallelism = parallelism
        self._workers = 0

    def of(self, span_count: int) -> int:
        """Return how many tasks an epoch of so many spans has."""
        count = min(span_count, self._parallelism)
        if count > self._workers:
            self._workers = count = min(2 * count, self._parallelism)
        return count


class SpanJobs:
    """Runs a job for each staged epoch, as the job of an earlier one of as many tasks unless the task is another.

    As an RDD: what Spark does with a plan beside its job, for its listeners and its Arrow streams, takes as long as the
    job of a small epoch.  At most a task for each core, with several spans: between two tasks a worker waits for the
    JVM.

    Parameters
    ----------
    session : SparkSession
        Runs them.
    parallelism : int
        Tasks that can run at a time.
    """

    def __init__(self, session: SparkSession, parallelism: int) -> None:
        self._session = session
        self._counts = TaskCounts(parallelism)
        self._task = b""
        self._prepared: dict[int, RDD[dict[str, Any]]] = {}

    def run(self, task: SpanTask, spans: SpansOfEpoch) -> list[dict[str, Any]]:
        """Return what the tasks answer."""
        count, text = self._counts.of(len(spans.spans)), spans.to_text()
        if len(text) > SPANS_TEXT_MAX:
            return private.answers_of(self._tasks(replace(task, spans=spans), count))
        # By its bytes: what a sink's factory is made of may have changed in place.
        if (data := private.pickled(task)) != self._task:
            self._task, self._prepared = data, {}
        prepared = self._prepared.get(count)
        if prepared is None:
            prepared = self._prepared[count] = self._tasks(task, count)
        context = self._session.sparkContext
        context.setLocalProperty(SPANS_PROPERTY, text)
        try:
            return private.answers_of(prepared)
        finally:
            context.setLocalProperty(SPANS_PROPERTY, None)  # None removes it

    def _tasks(self, task: SpanTask, count: int) -> RDD[dict[str, Any]]:
        shares = [(number, count) for number in range(count)]
        return self._session.sparkContext.parallelize(shares, count).mapPartitions(task).mapPartitions(private.with_end)
