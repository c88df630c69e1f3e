"""Cells of buckets in a dictionary: what keeps state where there is no store of Spark's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Stored = dict[tuple[Any, ...], Any]
"""(key of a bucket, "record") -> the record; (key, "piece", part, number) -> a piece of a part."""


@dataclass(frozen=True)
class DictionaryCells:
    """The cells of one bucket (:class:`holdfast.plan.levels.store.Cells`).

    Parameters
    ----------
    stored : dict
        Of all buckets.
    key : (str, int)
        The bucket: operator and label.
    """

    stored: Stored
    key: tuple[str, int]

    def record(self) -> str | None:
        """Return the record; None when there is none."""
        found: str | None = self.stored.get((self.key, "record"))
        return found

    def put_record(self, record: str) -> None:
        """Replace the record."""
        self.stored[self.key, "record"] = record

    def piece(self, part: int, number: int) -> bytes:
        """Return a piece of a part."""
        found: bytes = self.stored[self.key, "piece", part, number]
        return found

    def put_piece(self, part: int, number: int, data: bytes) -> None:
        """Store a piece of a part."""
        self.stored[self.key, "piece", part, number] = data

    def drop_piece(self, part: int, number: int) -> None:
        """Remove a piece of a part."""
        del self.stored[self.key, "piece", part, number]
