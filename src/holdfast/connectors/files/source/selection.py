"""Which files ``read.files`` reads, and how: the data that planning and reading go by."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Self

import pyarrow as pa

from holdfast.connectors.files.source.discovery import Place
from holdfast.connectors.files.source.division import FileDivision
from holdfast.connectors.files.source.layout import Layout
from holdfast.connectors.formats.convert import unless_of
from holdfast.positions import ALL_SEGMENTS, SegmentSet


@dataclass(frozen=True)
class FilesSelection:
    """What a source of files reads."""

    path: str
    where: Place
    layout: Layout
    schema: pa.Schema
    timestamp: str | None = None
    max_rows_per_epoch: int | None = None
    max_files_per_epoch: int | None = None
    rejects: bool = False
    min_age_us: int = 0
    bounded: bool = False
    start: str = "earliest"
    follow_links: bool = False
    compare: str = "identity"
    partition_by: tuple[str, ...] = ()
    since: int | None = None
    """No row before this time is wanted, microseconds or ticks; no argument of users."""
    before: int | None = None
    """No row at or above this time is wanted yet, microseconds or ticks; no argument of users."""
    has_bounds: bool = False
    """Whether the times of blocks are looked up, for bounds; no argument of users."""
    marker: str | None = None
    """Where a time is set to end at: the column that marks bound rows; no argument of users."""
    division: FileDivision | None = None
    """How the files are divided into segments; no argument of users."""
    reads: SegmentSet = ALL_SEGMENTS
    """The segments that are read; no argument of users."""

    @property
    def parts(self) -> int:
        """How many segments there are, where they are by the hash of a file's name."""
        return 0 if self.division is None else self.division.parts

    def group_of(self, segment: str) -> str:
        """Return the group, or the number of the part."""
        return segment.partition("/")[0] if self.parts else segment

    def narrowed(self, columns: Collection[str]) -> Self:
        """Return it with nulls where nothing reads them: of Parquet in columns that may be null.

        Itself where bad rows are rejected: whether a row is good does not depend on who uses what of it.
        """
        if self.layout.format != "parquet" or self.rejects:
            return self
        used = {*columns, self.timestamp, self.marker, *self.partition_by}
        free = (field.name for field in self.schema if field.nullable and unless_of(field) is None)
        return replace(self, layout=replace(self.layout, unread=frozenset(free).difference(used)))

    def identity(self, where: Place) -> dict[str, str]:
        """Return what its log is of, and of no other files."""
        return {"root": where.root, "format": self.layout.format}
