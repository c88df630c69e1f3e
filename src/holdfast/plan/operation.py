"""What one step of a program does to the batches of its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

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
