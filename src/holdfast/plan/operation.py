"""What one step of a program does to the batches of its inputs.

The sources that back-pressure holds: a file that the driver writes, and every source's planning process reads.

What the driver tells the processes that plan sources: small files beside the one that stops a run.

Hints only: what an epoch decides is logged with it.  Whoever reads one finds the newest whole, or none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa

from holdfast.capabilities import optional
from holdfast.limits import ROW_SIZE, ReadLimit
from holdfast.store.notes import beside, read_note, write_note

Batches = list[pa.RecordBatch]


class Made(NamedTuple):
    """What a step made of the batches of its inputs."""

    batches: Batches
    due: int
    """How many rows must have left it: by its own count, and not of ``batches``."""
    failed: int | None = None
    """Of an expectation: how many rows did not meet it."""


class Operation(Protocol):
    """What one step does to the batches of its inputs.  Picklable."""

    def apply(self, inputs: Sequence[Batches]) -> Made:
        """Return the step's output, and how many rows it must have."""


@optional(Operation)
class Choosing(Protocol):
    """What an operation may say: which columns it uses.  One that does not uses all of them."""

    def reads(self, wanted: frozenset[str]) -> frozenset[str]:
        """Return the columns of its inputs that it uses, where some of its own are wanted."""


def hold_file(stop_file: str) -> str:
    """Return the path of the file that names held sources: beside the one that stops a run."""
    return beside(stop_file, "held")


def write_held(path: str, held: Iterable[str]) -> None:
    """Replace the list of sources that are held from now on."""
    write_note(path, sorted(held))


def is_held(path: str, source: str) -> bool:
    """Return whether a source is to deliver nothing in the next epoch."""
    return source in read_note(path, ())


def limit_file(stop_file: str) -> str:
    """Return the path of the file that says how much an epoch takes: beside the one that stops a run."""
    return beside(stop_file, "limit")


def read_limit(path: str, source: str) -> ReadLimit | None:
    """Return how much the next epoch takes of a source at most; None: there is no limit."""
    if (noted := read_note(path, None)) is None:
        return None
    of_all, larger = noted
    size_bytes = larger.get(source, of_all)
    return ReadLimit(max(1, size_bytes // ROW_SIZE), size_bytes)


def due_file(stop_file: str) -> str:
    """Return the path of the file that says when the next epoch is needed: beside the one that stops a run."""
    return beside(stop_file, "due")


def is_due(path: str, now_us: int) -> bool:
    """Return whether an epoch is needed now; true also before the first epoch of a run has written anything."""
    due_us = read_note(path, 0)
    # Spark's batch time is cut to milliseconds: what is due within this one would not be released yet.
    return due_us is not None and now_us // 1000 * 1000 >= due_us
