"""The job of an epoch with state whose rows never enter the JVM as rows: an RDD's, from the spans of sources to sinks.

Tasks read spans and make chunks of them; a shuffle brings each bucket's chunks together before each level; the tasks of
the last level hand what comes out to the writers, in the same process.  Through Spark's plan each chunk would be copied
into a row and out of it again, and a plan made for each epoch (design/0066).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from pyspark import RDD
from pyspark.sql import DataFrame, SparkSession

from holdfast.errors import crossing
from holdfast.plan.chunks import Chunk, by_size
from holdfast.plan.levels.packing import Packing
from holdfast.plan.levels.taps import Taps
from holdfast.ports import Source, Span
from holdfast.positions import Positions
from holdfast.quarantine.mask import readable
from holdfast.spark import private
from holdfast.spark.evaluation import Reader, SourcesHere, TaskCounts
from holdfast.spark.state.evaluation import LastTask
from holdfast.spark.state.given import given
from holdfast.spark.state.here import PiecesAt
from holdfast.spark.state.host import POOL_VARIABLE, LevelTask
from holdfast.spark.state.plan import StatefulPlan
from holdfast.spark.wishes import wish_of_task


@dataclass(frozen=True)
class SourcePiece:
    """What a task reads at one place of a source.  Picklable.

    Parameters
    ----------
    source : str
        The source.
    ordinal : int
        Its place among those of the source: the order of arrival.
    span : Span, optional
        Its rows; None: it has none, and says something to operators.
    ended : tuple of str
        The sources that are said to have ended.
    """

    source: str
    ordinal: int
    span: Span | None
    ended: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReadTask:
    """Tasks that read: pieces to chunks.  Picklable; called by ``mapPartitions``.

    Parameters
    ----------
    readers : mapping of str to Reader
        How each source is opened.
    packings : mapping of str to Packing
        How its rows become chunks.
    """

    readers: Mapping[str, Reader]
    packings: Mapping[str, Packing]

    def __call__(self, shares: Iterable[Sequence[SourcePiece]]) -> Iterator[Chunk]:
        """Yield the chunks of all pieces."""
        with crossing():
            wish = wish_of_task()
            taps, opened = Taps(wish), dict[str, Source]()
            for piece in (piece for share in shares for piece in share):
                packing = self.packings[piece.source]
                if piece.span is None:
                    yield from packing.controls(piece.ordinal, piece.ended)
                    continue
                if piece.source not in opened:
                    opened[piece.source] = self.readers[piece.source].for_rows(wish).open()
                source = readable(opened[piece.source], piece.span)
                yield from packing.rows(piece.ordinal, packing.read(source, piece.span), taps=taps)


@dataclass(frozen=True)
class Grouping:
    """What takes chunks to the tasks of a level: groups for each.  Picklable; called by ``mapPartitions``.

    Parameters
    ----------
    partitions : int
        How many tasks take them.
    """

    partitions: int

    def __call__(self, chunks: Iterable[Chunk]) -> Iterator[tuple[int, list[Chunk]]]:
        """Yield groups behind the number of the task that takes them: together they are as large as a batch."""
        for together in by_size(chunks):
            groups = defaultdict[int, list[Chunk]](list)
            for chunk in together:
                groups[chunk.bucket % self.partitions].append(chunk)
            yield from groups.items()


@dataclass(frozen=True)
class LevelChunks:
    """Tasks of a level, between two shuffles.  Picklable; called by ``mapPartitions``."""

    task: LevelTask

    def __call__(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        """Take all chunks of some buckets; yield what comes out."""
        with crossing():
            for out in self.task.run(list(chunks)):
                yield from out


@dataclass(frozen=True)
class LastChunks:
    """What becomes of the chunks of the last level.  Picklable; called by ``mapPartitions``."""

    last: LastTask

    def __call__(self, chunks: Iterable[Chunk]) -> Iterator[dict[str, Any]]:
        """Yield answers, as rows."""
        for batch in self.last([chunk] for chunk in chunks):
            yield from batch.to_pylist()


@dataclass(frozen=True)
class PickledTask:
    """A function of what tasks are given, pickled once and not for each job.  Picklable."""

    data: bytes

    @classmethod
    def of(cls, function: Callable[[Iterable[Any]], Iterable[Any]]) -> PickledTask:
        """Return a function as bytes."""
        return cls(private.pickled(function))

    def __call__(self, given: Iterable[Any]) -> Iterable[Any]:
        """Return what it makes of that."""
        made: Iterable[Any] = private.unpickled(self.data)(given)
        return made


class LevelJobs:
    """Runs the levels of an epoch as an RDD's job.

    Parameters
    ----------
    session : SparkSession
        Runs it.
    sources : SourcesHere
        The sources, to plan with.
    task : ReadTask
        Reads them.
    levels : sequence of LevelTask
        The levels, in their order.
    partitions : int
        How many tasks each of them has.
    parallelism : int
        Tasks that can run at a time.
    """

    def __init__(
        self,
        session: SparkSession,
        sources: SourcesHere,
        task: ReadTask,
        levels: Sequence[LevelTask],
        partitions: int,
        parallelism: int,
    ) -> None:
        self._session = session
        self._sources = sources
        self._packings = task.packings
        self._partitions = partitions
        self._read = PickledTask.of(task)
        self._levels = [(of.number, PickledTask.of(LevelChunks(of))) for of in levels]
        self._parallelism = parallelism
        self._counts = TaskCounts(parallelism)

    @classmethod
    def of(
        cls,
        session: SparkSession,
        plan: StatefulPlan,
        sources: SourcesHere,
        readers: Mapping[str, Reader],
        at: PiecesAt,
        parallelism: int,
    ) -> LevelJobs:
        """Return the jobs of a plan, whose state is in a place that every worker sees."""
        routing = plan.stages.routing
        levels = [LevelTask(level, level.number, routing, at.checkpoint, at.below) for level in plan.levels]
        return cls(session, sources, ReadTask(readers, plan.packings), levels, routing.partitions, parallelism)

    def answers(self, batch: DataFrame, start: Positions, end: Positions, last: LastTask) -> list[Any]:
        """Return what the last tasks answer."""
        return self._run(start, end, LastChunks(last))

    def chunks(self, batch: DataFrame, start: Positions, end: Positions) -> list[Chunk]:
        """Return what comes out of the last level."""
        return self._run(start, end, None)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _run(self, start: Positions, end: Positions, last: LastChunks | None) -> list[Any]:
        pieces = list(self._pieces(start, end))
        if not pieces:
            return []
        context, count = self._session.sparkContext, self._counts.of(len(pieces))
        made: RDD[Any] = context.parallelize([pieces[number::count] for number in range(count)], count)
        made, pool = made.mapPartitions(self._read), ""
        for number, level in self._levels:
            with self._workers(pool):
                made = private.spread(made.mapPartitions(Grouping(self._partitions)), self._partitions)
            made, pool = made.mapPartitions(level), f"level-{number}"
        with self._workers(pool):
            made = (made if last is None else made.mapPartitions(last)).mapPartitions(private.with_end)
            made.id()  # NB it is not made before, and by then its functions have their workers
        return private.answers_of(made)

    def _workers(self, pool: str) -> AbstractContextManager[None]:
        """Return what gives functions their workers: each level has its own, which keep the state of its buckets."""
        if not pool:
            return nullcontext()
        return private.workers_apart(self._session.sparkContext, POOL_VARIABLE, pool)

    def _pieces(self, start: Positions, end: Positions) -> Iterator[SourcePiece]:
        for of_source in given(self._sources, self._packings, start, end):
            name = of_source.name
            spans = of_source.spans(self._sources, self._parallelism)
            yield from (SourcePiece(name, ordinal, span) for ordinal, span in enumerate(spans))
            if of_source.has_controls:
                yield SourcePiece(name, len(spans), None, of_source.ended)
