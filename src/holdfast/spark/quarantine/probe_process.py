"""The process in which a probe evaluates rows: it reports which ones it begins, and may die of them.

Started by :mod:`holdfast.spark.quarantine.probe` in a worker, or in the driver, as ``python -m`` with its own name; in
the driver it is forked, from a process without threads.  A fork of the worker itself could hang: libraries with threads
of their own do not survive one.
On stdin: a line with the places of modules; the length of a pickled :class:`ProbePart`, and it; then a line for each
request, ``[first row, row after the last, rows at a time]``. On stdout: lines of JSON, each ``[word, first row, number
of rows, ...]``; see :class:`Word`.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.reading.bounds import MarkedSource, marks_of
from holdfast.errors import BadRow, HoldfastError, InvalidPipeline
from holdfast.plan.program import Program
from holdfast.ports import Source
from holdfast.positions import Positions
from holdfast.quarantine.mask import Mask, lettered
from holdfast.spark.evaluation import Reader


class Word:
    """What the process reports."""

    HERE = "here"
    """Said first: the number is that of the process."""
    BEGIN = "begin"
    """These rows are evaluated next: if nothing follows, they have killed it, or hang."""
    FAIL = "fail"
    """They failed; kind, what and why follow."""
    END = "end"
    """The request is done."""
    GIVE_UP = "give up"
    """Something failed that rows did not cause: a system that did not answer.  Kind, what and why follow."""


@dataclass(frozen=True)
class ProbePart:
    """Consecutive rows of an epoch, and what evaluates them.  Picklable.

    Parameters
    ----------
    program : Program
        The pipeline, or what is upstream of its state.
    readers : mapping of str to Reader
        Its sources.
    masks : mapping of str to Mask
        Which rows of each source are of the part; none is left out, so that they can be counted.
    start, end : Positions
        Of the epoch, with those of sources that were put back.  The order of ``end`` is that of the rows' numbers.
    low : int
        The number of the first row.
    """

    program: Program
    readers: Mapping[str, Reader]
    masks: Mapping[str, Mask]
    start: Positions
    end: Positions
    low: int

    def batches(self) -> Iterator[tuple[str, pa.RecordBatch, str]]:
        """Yield source, rows and the column that marks bound rows (empty: none does), in the order of numbers."""
        for name, until in self.end.items():
            opened: Any = self.readers[name].open()
            marker = opened.marker if isinstance(opened, MarkedSource) else ""
            unmarked: Source = opened.source if isinstance(opened, MarkedSource) else opened
            source = lettered(unmarked, self.masks[name])
            begin = self.start.get(name) or source.initial()
            for span in source.spans(begin, until, parallelism=1):
                for batch in source.read(span):
                    yield name, batch, marker

    def pieces(self, first: int, end_row: int, size: int) -> Iterator[tuple[int, int, str, pa.RecordBatch]]:
        """Yield number of the first row, number of rows, source, and the rows without bound rows."""
        at = self.low
        for name, batch, marker in self.batches():
            begin, end = max(first - at, 0), min(end_row - at, batch.num_rows)
            for offset in range(begin, end, size):
                piece = batch.slice(offset, min(size, end - offset))
                yield at + offset, piece.num_rows, name, _without_bounds(piece, marker)
            at += batch.num_rows
            if at >= end_row:
                return


def _without_bounds(batch: pa.RecordBatch, marker: str) -> pa.RecordBatch:
    return batch.filter(pc.invert(marks_of(batch, marker))).drop_columns([marker]) if marker else batch


def answer(part: ProbePart, request: tuple[int, int, int], tell: Callable[..., object]) -> None:
    """Evaluate the rows of one request, some at a time."""
    try:
        for number, count, source, rows in part.pieces(*request):
            tell(Word.BEGIN, number, count)
            try:
                for _ in part.program.run(source, rows):
                    pass
            except HoldfastError as error:
                if not isinstance(error, BadRow | InvalidPipeline):
                    raise
                tell(Word.FAIL, number, count, *_said(error))
            except Exception as error:
                tell(Word.FAIL, number, count, *_said(error))
    except Exception as error:
        tell(Word.GIVE_UP, 0, 0, *_said(error))
        return
    tell(Word.END, 0, 0)


def _said(error: Exception) -> tuple[str, str, str]:
    if isinstance(error, HoldfastError):
        return type(error).__name__, error.what, error.why
    return BadRow.__name__, f"the pipeline's own code raised {type(error).__name__}.", str(error)


def main() -> None:
    """Answer requests until stdin ends, and end with it, whatever is at work then."""
    out = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)  # what a user's function prints is no answer
    given = sys.stdin.buffer
    out.write(json.dumps([Word.HERE, os.getpid(), 0]) + "\n")
    sys.path[:] = json.loads(given.readline())
    part: ProbePart = pickle.loads(given.read(int(given.readline())))
    requests: SimpleQueue[tuple[int, int, int]] = SimpleQueue()

    def listen() -> None:
        for line in given:
            first, end_row, size = json.loads(line)
            requests.put((first, end_row, size))
        os._exit(0)  # the worker is gone, or has finished: no further answer is read

    threading.Thread(target=listen, daemon=True).start()
    while True:
        answer(part, requests.get(), lambda *words: out.write(json.dumps(words) + "\n"))


if __name__ == "__main__":
    main()
