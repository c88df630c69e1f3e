"""What a span of files is, and its rows: touches nothing but the files themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from holdfast.sources.files.access import FilePart
from holdfast.sources.files.numbering import read_numbered
from holdfast.sources.formats import parquet
from holdfast.sources.formats.lines import RowRules
from holdfast.sources.formats.texts import read_texts
from holdfast.sources.identified import Numbered
from holdfast.sources.until.between import numbered_between, rows_between

if TYPE_CHECKING:
    from holdfast.sources.files.spec import FilesSourceSpec


class PartsBetween(NamedTuple):
    """Parts of files of which the rows of a time are read."""

    parts: tuple[FilePart, ...]
    since: int | None
    before: int | None


def read_parts(spec: FilesSourceSpec, value: Sequence[FilePart] | PartsBetween) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a span."""
    if isinstance(value, PartsBetween):
        yield from rows_between(read_parts(spec, value.parts), str(spec.timestamp), value.since, value.before)
        return
    rows = RowRules(spec.schema, spec.rejects)
    if spec.layout.format == "parquet":
        for part in value:
            yield from parquet.read(part, rows, longest=spec.layout.max_record_size)
    else:
        yield from read_texts(spec.layout.texts(value, rows), rows)


def read_parts_numbered(spec: FilesSourceSpec, value: Sequence[FilePart] | PartsBetween) -> Iterator[Numbered]:
    """Yield the rows of a span with their numbers: those of all rows that are there, whichever of them are read."""
    if isinstance(value, PartsBetween):
        every = read_parts_numbered(spec, value.parts)
        yield from numbered_between(every, str(spec.timestamp), value.since, value.before)
        return
    yield from read_numbered(value, spec.where, spec.layout, RowRules(spec.schema, spec.rejects))
