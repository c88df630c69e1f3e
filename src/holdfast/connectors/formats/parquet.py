"""Parquet: cut by row groups, read with the declared schema; every column must be there and fit."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.connectors.formats.access import FilePart, opened, unavailable
from holdfast.connectors.formats.blocks import RowRules, TextBlock, too_long
from holdfast.connectors.formats.convert import forbidden_null, lacking
from holdfast.errors import BadRow
from holdfast.store.sealed import is_of_data
from holdfast.types.conversion import check_int96, check_range, convert, is_convertible, leaves

_BATCH_ROWS = 65_536
_HELD = 1 << 27
"""Bytes of rows that are kept while a part is decoded as a whole; one that holds more is decoded twice.  A block of the
usual size and packed as usual is kept."""

_UNREADABLE = (pa.ArrowException, OSError, ValueError, LookupError, OverflowError)
"""What Arrow raises of odd bytes, in C++ and in Python: names that are no UTF-8, or are there twice, for instance."""

_HYBRID_CALENDAR = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
"""Metadata by which Spark marks files with days of the Julian calendar: what Arrow reads there are other days."""

_SPARK_VERSION = b"org.apache.spark.version"
_HYBRID_VERSIONS = (b"1.", b"2.", b"3.0.")
_GREGORIAN_SINCE = dt.date(1582, 10, 15)
_ZONES_SINCE = dt.date(1900, 1, 1)
"""Before it times of the two calendars also differ by the local mean times of time zones."""


class Misfit(ValueError):
    """A file cannot provide the declared columns; the message says why."""


def cut(part: FilePart, *, block_size: int, rows: int | None) -> list[TextBlock] | None:
    """Cut a file into blocks of whole row groups, or of ``rows`` rows where that is less; None when it is damaged.

    The cuts count rows, not bytes.
    """
    try:
        with opened(part) as file, pq.ParquetFile(file) as parquet:
            metadata = parquet.metadata
            groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
            sizes = [(group.num_rows, _compressed_size(group)) for group in groups]
    except _UNREADABLE:
        return None  # the reader reports it, and treats the row as the user chose
    cuts: list[TextBlock] = []
    start = taken = size = 0
    for row_count, byte_count in sizes:
        if taken and (size + byte_count > block_size or (rows is not None and taken + row_count > rows)):
            cuts.append(TextBlock(start, start + taken, taken))
            start, taken, size = start + taken, 0, 0
        taken, size = taken + row_count, size + byte_count
        while rows is not None and taken > rows:
            cuts.append(TextBlock(start, start + rows, rows))
            start, taken, size = start + rows, taken - rows, 0
    if taken:
        cuts.append(TextBlock(start, start + taken, taken))
    return cuts


def _compressed_size(group: pq.RowGroupMetaData) -> int:
    return sum(group.column(index).total_compressed_size for index in range(group.num_columns))


def read(part: FilePart, rows: RowRules, *, longest: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part.  With rejects a part that cannot be read is one rejected row, and nothing else of it is
    yielded.

    Parameters
    ----------
    longest : int
        Bytes that a row may have: a longer one is a bad row.
    """
    try:
        if not rows.rejects:
            yield from _checked(_read(part, rows), part, rows, longest)
            return
        batches = _verify(part, rows)
    except _UNREADABLE as error:
        if not is_of_data(error):
            raise unavailable(part, error) from error
        reason = str(error).strip().rstrip(".")
        if rows.rejects:
            yield rows.bad(reason, "", f"{part.shown}:{part.start}")
            return
        raise BadRow(
            f"{part.shown} cannot be read: {reason}.",
            why="the file is damaged, or its columns are not the declared ones.",
            do="leave the file as it is (one that was taken must not change) and correct schema=, or write "
            'on_bad_row="reject" where the source is built: it goes on without the file, whose rows can come in again '
            "in a new one.",
            participant=part.shown,
        ) from error
    yield from _checked(_read(part, rows) if batches is None else batches, part, rows, longest)


def _verify(part: FilePart, rows: RowRules) -> list[pa.RecordBatch] | None:
    """Decode all of a part before any of it counts: a damaged page may be last.  None: it holds too much to keep."""
    batches: list[pa.RecordBatch] | None = []
    size = 0
    for batch in _read(part, rows):
        size += batch.nbytes
        if batches is not None and size <= _HELD:
            batches.append(batch)
        else:
            batches = None
    return batches


def _checked(
    batches: Iterable[pa.RecordBatch], part: FilePart, rows: RowRules, longest: int
) -> Iterator[pa.RecordBatch]:
    """Yield good rows, and in their places those that are too long."""
    number = part.start
    for batch in batches:
        at = 0
        for long in _too_long(batch, longest, 0, batch.num_rows):
            yield from rows.good([batch.slice(at, long - at)] if long > at else [])
            yield _long_row(part, number + long, rows, longest)
            at = long + 1
        if at < batch.num_rows:
            yield from rows.good([batch.slice(at)])
        number += batch.num_rows


def _too_long(batch: pa.RecordBatch, longest: int, first: int, last: int) -> Iterator[int]:
    """Yield the rows that are too long, looking closer only where many bytes are."""
    if first == last or batch.slice(first, last - first).nbytes <= longest:
        return
    if last - first == 1:
        yield first
        return
    middle = (first + last) // 2
    yield from _too_long(batch, longest, first, middle)
    yield from _too_long(batch, longest, middle, last)


def _long_row(part: FilePart, number: int, rows: RowRules, longest: int) -> pa.RecordBatch:
    reason = too_long(longest)
    if rows.rejects:
        return rows.bad(reason, "", f"{part.shown}:{number}")
    raise BadRow(
        f"{part.shown}, row {number}, cannot be read: {reason}.",
        why="a row is held in memory, and max_record_size says how much of it.",
        do='give read.files a larger max_record_size=, or write on_bad_row="reject" there to continue without the row.',
        participant=part.shown,
    )


def _read(part: FilePart, rules: RowRules) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part with all declared columns; those that nothing uses are not read, and are null."""
    schema = rules.schema
    used = pa.schema([field for field in schema if field.name not in rules.unread] or [schema.field(0)])
    nulls = {field.name: pa.nulls(_BATCH_ROWS, field.type) for field in schema if field.name not in used.names}
    # Of INT96 Arrow makes nanoseconds, else, which begin in 1677 and end in 2262.
    # What lies elsewhere is fetched ahead, in few requests; a local file column by column, so that little is held.
    options = {"coerce_int96_timestamp_unit": "us", "pre_buffer": not part.is_local}
    with opened(part) as file, pq.ParquetFile(file, **options) as parquet:
        _check_columns(parquet.schema_arrow, schema)
        groups, skipped = _groups(parquet.metadata, part)
        wanted = (parquet.metadata.num_rows if part.end < 0 else part.end) - part.start
        check_int96(file, used.names, groups)
        is_hybrid = _is_hybrid(parquet.metadata.metadata or {})
        batches = parquet.iter_batches(_BATCH_ROWS, row_groups=groups, columns=used.names, use_threads=False)
        for batch in batches if groups else ():
            taken = batch.slice(skipped, wanted)
            skipped = max(0, skipped - batch.num_rows)
            wanted -= taken.num_rows
            if taken.num_rows:
                rows = _declare(taken, used)
                if is_hybrid:
                    _check_calendar(rows)
                yield _with_nulls(rows, schema, nulls) if nulls else rows
            if wanted <= 0:
                return


def _with_nulls(rows: pa.RecordBatch, schema: pa.Schema, nulls: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """Return rows with the columns that were not read."""
    count = rows.num_rows
    columns = [nulls[name].slice(0, count) if name in nulls else rows.column(name) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _groups(metadata: pq.FileMetaData, part: FilePart) -> tuple[list[int], int]:
    """Return the row groups that hold the part's rows, and how many rows of the first precede them."""
    groups: list[int] = []
    skipped = first = 0
    for index in range(metadata.num_row_groups):
        last = first + metadata.row_group(index).num_rows
        if last > part.start and (part.end < 0 or first < part.end):
            skipped = skipped if groups else max(0, part.start - first)
            groups.append(index)
        first = last
    return groups, skipped


def _check_columns(held: pa.Schema, wanted: pa.Schema) -> None:
    for field in wanted:
        count = held.names.count(field.name)
        if count > 1:
            raise Misfit(f"it has the column {field.name!r} {count} times")
        if not count:
            raise Misfit(f"it has no column {field.name!r}; it has {', '.join(map(repr, held.names)) or 'none'}")
        found = held.field(field.name).type
        if not is_convertible(found, field.type):
            raise Misfit(f"column {field.name!r} is declared {field.type} and is {found} in the file")


def _declare(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns: list[pa.Array] = []
    for field in schema:
        column = batch.column(field.name)
        try:
            column.validate(full=True)  # a reader takes texts as they come, UTF-8 or not
            column = convert(column, field.type)
            check_range(column)
        except pa.ArrowException as error:
            if not is_of_data(error):
                raise
            raise Misfit(f"column {field.name!r} is declared {field.type}: {error}") from error
        if path := forbidden_null(column, field):
            raise Misfit(f"{path!r} is declared NOT NULL and has a null")
        columns.append(column)
    if name := lacking(columns, schema):
        raise Misfit(f"{name!r} is declared NOT NULL and has a null")
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _is_hybrid(metadata: Mapping[bytes, bytes]) -> bool:
    version = metadata.get(_SPARK_VERSION, b"")
    return any(key in metadata for key in _HYBRID_CALENDAR) or version.startswith(_HYBRID_VERSIONS)


def _check_calendar(rows: pa.RecordBatch) -> None:
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        for leaf in leaves(column):
            is_date = pa.types.is_date(leaf.type)
            since = _GREGORIAN_SINCE if is_date else _ZONES_SINCE
            is_time = is_date or pa.types.is_timestamp(leaf.type)
            if is_time and pc.any(pc.less(leaf, pa.scalar(since).cast(leaf.type))).as_py():
                raise Misfit(f"column {name!r} has a time before {since}, in the Julian calendar of old Spark files")
