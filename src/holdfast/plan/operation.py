"""What one step of a program does to the batches of its inputs.

The sources that back-pressure holds: a file that the driver writes, and every source's planning process reads.

What the driver tells the processes that plan sources: small files beside the one that stops a run.

Hints only: what an epoch decides is logged with it.  Whoever reads one finds the newest whole, or none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

Batches = list[pa.RecordBatch]


class Made(NamedTuple):
    """What a step made of the batches of its inputs."""

    batches: Batches
    due: int
    """How many rows must have left it: by its own count, and not of ``batches``."""


class Operation(Protocol):
    """What one step does to the batches of its inputs.  Picklable."""

    def apply(self, inputs: Sequence[Batches]) -> Made:
        """Return the step's output, and how many rows it must have."""


@runtime_checkable
class Choosing(Protocol):
    """What an operation may say: which columns it uses.  One that does not uses all of them."""

    def reads(self, wanted: frozenset[str]) -> frozenset[str]:
        """Return the columns of its inputs that it uses, where some of its own are wanted."""


FILE_NAME = "held"


def hold_file(stop_file: str) -> str:
    """Return the path of the file that names held sources: beside the one that stops a run."""
    return beside(stop_file, FILE_NAME)


def write_held(path: str, held: Iterable[str]) -> None:
    """Replace the list of sources that are held from now on."""
    write_note(path, sorted(held))


def is_held(path: str, source: str) -> bool:
    """Return whether a source is to deliver nothing in the next epoch."""
    return source in read_note(path, ())


def beside(stop_file: str, name: str) -> str:
    """Return the path of a file of a run."""
    return os.path.join(os.path.dirname(stop_file), name)


def write_note(path: str, value: Any) -> None:
    """Replace what a file says: a JSON value."""
    aside = f"{path}.new"
    with open(aside, "w", encoding="utf-8") as file:
        json.dump(value, file)
    os.replace(aside, path)


def read_note(path: str, default: Any) -> Any:
    """Return what a file says; the default where there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return default
