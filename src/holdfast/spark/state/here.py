"""An epoch of a pipeline with state in one process, from its sources to its chunks: no job, no shuffle.

The process is the driver, or the kept worker where functions of the user are called
(:mod:`holdfast.spark.kept_worker`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import ClassVar

from holdfast.plan.chunks import Chunk
from holdfast.plan.counts import EpochReport
from holdfast.plan.laps import READING, Laps, Spent
from holdfast.plan.levels.host import LevelsHere, ReadPiece, report_of
from holdfast.plan.levels.journal import BucketChange, JournalReader, StateVersion, StoredPiece
from holdfast.plan.levels.level import EpochContext
from holdfast.plan.levels.packing import Packing
from holdfast.plan.levels.taps import NO_WISH, Taps, Wish
from holdfast.ports import Span
from holdfast.positions import Positions
from holdfast.spark.evaluation import SourcesHere
from holdfast.spark.state.given import given
from holdfast.store.paths import open_store

HERE_TIMES = 4
"""So many times the usual size an epoch may have that the driver evaluates with its state.

Measured with two cores, windows of 10 000 keys, epochs of 500 000 rows (41 MB of JSON): 160 ms here, 410 ms as a job.
"""

ALONE_BYTES = 2**21
"""Spans of a source are read by several threads from here on, bytes."""


@dataclass(frozen=True)
class PiecesAt:
    """Reads pieces of state in any process.  Picklable before it does.

    Parameters
    ----------
    checkpoint, below : str
        Our directory, and Spark's below it: where the journal of state is.
    """

    checkpoint: str
    below: str

    def __call__(self, piece: StoredPiece) -> bytes:
        """Return the bytes of a piece."""
        return self._reader.piece(piece)

    @cached_property
    def _reader(self) -> JournalReader:
        return JournalReader(open_store(self.checkpoint), self.below)


@dataclass(frozen=True)
class EvaluationHere:
    """All of a pipeline in one process, from its sources to its sinks.  Picklable before it is first called.

    Parameters
    ----------
    sources : SourcesHere
        The sources.
    packings : mapping of str to Packing
        How their rows become chunks.
    levels : LevelsHere
        The levels.
    threads : int
        How many spans of a source are read at a time.
    read : callable
        Returns the bytes of a piece of state.
    """

    sources: SourcesHere
    packings: Mapping[str, Packing]
    levels: LevelsHere
    threads: int
    read: ReadPiece
    times: ClassVar[float] = HERE_TIMES

    def __call__(
        self, start: Positions, end: Positions, before: StateVersion, at: EpochContext
    ) -> tuple[list[Chunk], list[BucketChange]]:
        """Return what comes out of the last level, and what was changed of state."""
        return self.levels.run(self.chunks(start, end, at.wish), before, self.read, at)

    def begin_worker(self) -> None:
        """Do nothing: it is this process."""

    def end_worker(self) -> None:
        """Do nothing: it is this process."""

    def chunks(self, start: Positions, end: Positions, wish: Wish = NO_WISH) -> Iterator[Chunk]:
        """Yield what the sources give for an epoch: as their readers do in a job."""
        for of_source in given(self.sources, self.packings, start, end):
            size = of_source.size_bytes(self.sources)
            threads = 1 if size is not None and size < ALONE_BYTES else self.threads
            spans = of_source.spans(self.sources, threads)
            if spans:
                chunks, spent = self._packed(of_source.name, spans, threads, wish)
                yield report_of(EpochReport(waves={f"{READING} {of_source.name}": spent}))
                yield from chunks
            if of_source.has_controls:
                yield from self.packings[of_source.name].controls(len(spans), of_source.ended)

    def _packed(self, name: str, spans: Sequence[Span], threads: int, wish: Wish) -> tuple[list[Chunk], Spent]:
        """Read spans as chunks, several at a time: reading and packing leave Python to other threads mostly."""
        packing = self.packings[name]
        spent: list[Spent] = []

        def pack(thread: int) -> list[tuple[int, list[Chunk]]]:
            laps, taps = Laps(), Taps(wish)
            laps.to(name)
            source = self.sources.source(name, thread, wish=wish)
            mine = [(ordinal, span) for ordinal, span in enumerate(spans) if ordinal % threads == thread]
            read = [
                (ordinal, list(packing.rows(ordinal, packing.read(source, span), laps, taps))) for ordinal, span in mine
            ]
            spent.append(laps.take())
            return read

        if threads == 1 or len(spans) == 1:
            packed = [pair for thread in range(threads) for pair in pack(thread)]
        else:
            with ThreadPoolExecutor(threads, thread_name_prefix="holdfast-read") as pool:
                packed = [pair for pairs in pool.map(pack, range(threads)) for pair in pairs]
        chunks = [chunk for _, of_span in sorted(packed, key=lambda pair: pair[0]) for chunk in of_span]
        return chunks, reduce(Spent.beside, spent, Spent())
