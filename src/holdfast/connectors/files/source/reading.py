"""What a span of files is, and its rows: touches nothing but the files themselves."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.files.source.numbering import one_row, read_numbered
from holdfast.connectors.files.source.selection import FilesSelection
from holdfast.connectors.formats import parquet
from holdfast.connectors.formats.access import FilePart
from holdfast.connectors.formats.blocks import RowRules
from holdfast.connectors.formats.texts import read_texts
from holdfast.connectors.reading.identified import Numbered
from holdfast.connectors.reading.until import numbered_between, rows_between
from holdfast.errors import BadRow
from holdfast.ports import REJECT_COLUMN
from holdfast.types.partition import partition_values


class PartsBetween(NamedTuple):
    """Parts of files of which the rows of a time are read."""

    parts: tuple[FilePart, ...]
    since: int | None
    before: int | None


def read_parts(spec: FilesSelection, value: Sequence[FilePart] | PartsBetween) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a span."""
    if isinstance(value, PartsBetween):
        yield from rows_between(read_parts(spec, value.parts), str(spec.timestamp), value.since, value.before)
        return
    for group in _by_directory(spec, value):
        for batch in _in_files(spec, group):
            yield group.completed(batch)


def _in_files(spec: FilesSelection, group: DirectoryGroup) -> Iterator[pa.RecordBatch]:
    if group.problem:
        for part in group.parts:
            yield group.refused(part)
    elif spec.layout.format == "parquet":
        for part in group.parts:
            yield from parquet.read(part, group.in_files, longest=spec.layout.max_record_size)
    else:
        yield from read_texts(spec.layout.texts(group.parts, group.in_files), group.in_files)


def read_parts_numbered(spec: FilesSelection, value: Sequence[FilePart] | PartsBetween) -> Iterator[Numbered]:
    """Yield the rows of a span with their numbers: those of all rows that are there, whichever of them are read."""
    if isinstance(value, PartsBetween):
        every = read_parts_numbered(spec, value.parts)
        yield from numbered_between(every, str(spec.timestamp), value.since, value.before)
        return
    for group in _by_directory(spec, value):
        numbered: Iterator[Numbered]
        if group.problem:
            numbered = (one_row(part, spec.where, spec.layout, group.refused(part)) for part in group.parts)
        else:
            numbered = read_numbered(group.parts, spec.where, spec.layout, group.in_files)
        for runs, batch in numbered:
            yield Numbered(runs, group.completed(batch))


@dataclass(frozen=True)
class DirectoryGroup:
    """Neighbouring parts, and the columns that the names of their directories have.

    Parameters
    ----------
    rows : RowRules
        What becomes of the rows, with all columns.
    parts : sequence of FilePart
        The parts.
    values : mapping of str to pyarrow.Scalar
        Column -> its value in all of their rows.
    problem : str
        Why there is no value for some column; empty where there are all.
    """

    rows: RowRules
    parts: Sequence[FilePart]
    values: Mapping[str, pa.Scalar] = field(default_factory=dict)
    problem: str = ""

    @property
    def in_files(self) -> RowRules:
        """What becomes of what the files themselves have."""
        columns = [column for column in self.rows.schema if column.name not in self.values]
        return replace(self.rows, schema=pa.schema(columns))

    def completed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of the files with all columns; those that are rejected have no values."""
        if not self.values:
            return batch
        schema = self.rows.read_schema
        columns = []
        for column in schema:
            if column.name not in self.values:
                columns.append(batch.column(column.name))
                continue
            values = pa.repeat(self.values[column.name], batch.num_rows)
            if self.rows.rejects and batch.column(REJECT_COLUMN).null_count < batch.num_rows:
                values = pc.if_else(pc.is_null(batch.column(REJECT_COLUMN)), values, pa.scalar(None, column.type))
            columns.append(values)
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def refused(self, part: FilePart) -> pa.RecordBatch:
        """Return one rejected row for a part whose directory has no values.

        Raises
        ------
        BadRow
            If rows are not rejected.
        """
        if self.rows.rejects:
            return self.rows.bad(self.problem, "", f"{part.shown}:{part.start}")
        raise BadRow(
            f"{part.shown} cannot be read: {self.problem}.",
            why="partition_by= says which columns the names of directories have, column=value/.",
            do="leave the file as it is (one that was taken must not change) and correct partition_by= or schema=, or "
            'write on_bad_row="reject" where the source is built: it goes on without the file.',
            participant=part.shown,
        )


def _by_directory(spec: FilesSelection, parts: Sequence[FilePart]) -> Iterator[DirectoryGroup]:
    rows = RowRules(spec.schema, spec.rejects, spec.layout.schema_file, spec.layout.unread)
    if not spec.partition_by:
        yield DirectoryGroup(rows, parts)
        return
    columns = pa.schema([spec.schema.field(name) for name in spec.partition_by])
    for directory, group in groupby(parts, key=lambda part: os.path.dirname(part.path)):
        try:
            values = partition_values(directory, columns)
            problem = next(filter(None, (_problem(column, values) for column in columns)), "")
        except (pa.ArrowException, ValueError) as error:
            values, problem = {}, f"the name of its directory does not fit its column: {error}"
        yield DirectoryGroup(rows, tuple(group), {} if problem else values, problem)


def _problem(column: pa.Field, values: Mapping[str, pa.Scalar]) -> str:
    if column.name not in values:
        return f"no directory above it is named {column.name}=..."
    if not column.nullable and not values[column.name].is_valid:
        return f"{column.name!r} is declared NOT NULL and has a null"
    return ""
