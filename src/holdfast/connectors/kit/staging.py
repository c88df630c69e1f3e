"""Rows that tasks staged for a sink whose driver writes them, read back as record batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, TypeVar

import pyarrow as pa

from holdfast.connectors.kit import refusals
from holdfast.connectors.kit.expected import rows_gone
from holdfast.errors import Diverged, Unavailable
from holdfast.ports import Part, Staged, WriterFactory
from holdfast.retry import UNLIMITED, RetryPolicy

T = TypeVar("T")

PATIENCE_S = 90.0
"""How long a task waits for a server that does not answer before its first row: Spark retries a task only thrice."""

_REACHING = RetryPolicy(UNLIMITED, first_s=0.1, cap_s=5.0, jitter=1.0)


def reach_server(call: Callable[[], T]) -> T:
    """Call for a task until its server answers."""
    return _REACHING.call(call, lambda error: isinstance(error, Unavailable), PATIENCE_S)


class Staging(ABC):
    """What is staged for one sink, as the driver sees it."""

    tables: ClassVar[tuple[str, ...]] = ()
    """Tables of Holdfast's own that it needs."""

    @property
    @abstractmethod
    def node(self) -> str:
        """The sink, in errors."""

    @abstractmethod
    def factory(self) -> WriterFactory:
        """Return the factory that executors call."""

    @abstractmethod
    def whole(self, part: Staged) -> Iterator[pa.RecordBatch]:
        """Read all rows of a staged part, whatever its handle promises.

        Raises
        ------
        Diverged
            If they cannot be read.
        """

    @abstractmethod
    def remove(self, parts: Sequence[Part]) -> None:
        """Remove staged parts; absent is fine."""

    @abstractmethod
    def sweep(self, generation: int, below_epoch: int) -> int:
        """Remove what lower generations left, and this one below an epoch; return of how many attempts of tasks."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return :attr:`Task.name` of everything staged, once."""

    def close(self) -> None:
        """Close what is open."""
        return

    def batches(self, part: Staged) -> Iterator[pa.RecordBatch]:
        """Read a staged part batch by batch: memory does not grow with the epoch.

        Raises
        ------
        Diverged
            If its rows are gone, or not as many as its handle promises.
        """
        if not part.reference:
            return
        every = refusals.left_out(part)
        row_count = 0
        for batch in self.whole(part):
            first, row_count = row_count, row_count + batch.num_rows
            gone = [number - first for number in every if first <= number < row_count]
            yield from refusals.without(pa.Table.from_batches([batch]), gone).to_batches()
        promised = part.row_count + len(every)
        if row_count != promised:
            raise rows_gone(self.node, part.name, f"{row_count} of {promised} rows are there.")

    def expired(self, parts: Sequence[Staged]) -> list[str]:
        """Return the names of the parts that cannot be read any more as they were staged."""
        return [part.name for part in parts if self._is_expired(part)]

    def _is_expired(self, part: Staged) -> bool:
        try:
            for _ in self.batches(part):
                pass
        except Diverged:
            return True
        return False
