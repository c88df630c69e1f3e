"""Parquet: cut by row groups, read with the declared schema; every column must be there and fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.errors import BadRow
from holdfast.sources.files.access import FilePart, is_of_format, opened, unavailable
from holdfast.sources.formats import convert
from holdfast.sources.formats.blocks import TextBlock
from holdfast.sources.formats.lines import RowRules, too_long

_BATCH_ROWS = 65_536
_HELD = 1 << 27
"""Bytes of rows that are kept while a part is decoded as a whole; one that holds more is decoded twice.  A block of the
usual size and packed as usual is kept."""


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
    except (pa.ArrowException, OSError, ValueError):
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
            yield from _checked(_read(part, rows.schema), part, rows, longest)
            return
        batches = _verified(part, rows.schema)
    except (pa.ArrowException, Misfit, OSError) as error:
        if not (isinstance(error, Misfit) or is_of_format(error)):
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
    yield from _checked(_read(part, rows.schema) if batches is None else batches, part, rows, longest)


def _verified(part: FilePart, schema: pa.Schema) -> list[pa.RecordBatch] | None:
    """Decode all of a part before any of it counts: a damaged page may be last.  None: it holds too much to keep."""
    batches: list[pa.RecordBatch] | None = []
    size = 0
    for batch in _read(part, schema):
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


def _read(part: FilePart, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    with opened(part) as file, pq.ParquetFile(file) as parquet:
        _check_columns(parquet.schema_arrow, schema)
        groups, skipped = _groups(parquet.metadata, part)
        wanted = (parquet.metadata.num_rows if part.end < 0 else part.end) - part.start
        batches = parquet.iter_batches(_BATCH_ROWS, row_groups=groups, columns=schema.names, use_threads=False)
        for batch in batches if groups else ():
            taken = batch.slice(skipped, wanted)
            skipped = max(0, skipped - batch.num_rows)
            wanted -= taken.num_rows
            if taken.num_rows:
                yield _declared(taken, schema)
            if wanted <= 0:
                return


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
        if field.name not in held.names:
            raise Misfit(f"it has no column {field.name!r}; it has {', '.join(map(repr, held.names)) or 'none'}")
        found = held.field(field.name).type
        if not _fits(found, field.type):
            raise Misfit(f"column {field.name!r} is declared {field.type} and is {found} in the file")


def _fits(held: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether every value, or every value in range, of one type is a value of the other."""
    kinds = pa.types
    if held == wanted or kinds.is_null(held):
        return True
    if kinds.is_dictionary(held):
        return _fits(held.value_type, wanted)
    if kinds.is_struct(held) and kinds.is_struct(wanted):
        inner = {member.name: member.type for member in held}
        return all(member.name in inner and _fits(inner[member.name], member.type) for member in wanted)
    if _is_list(held) and _is_list(wanted):
        return _fits(held.value_type, wanted.value_type)
    if kinds.is_map(held) and kinds.is_map(wanted):
        return _fits(held.key_type, wanted.key_type) and _fits(held.item_type, wanted.item_type)
    number = (kinds.is_integer, kinds.is_decimal, kinds.is_floating)
    rank_held = next((rank for rank, test in enumerate(number) if test(held)), None)
    rank_wanted = next((rank for rank, test in enumerate(number) if test(wanted)), None)
    if rank_held is not None and rank_wanted is not None:
        return rank_held <= rank_wanted and not (kinds.is_float64(held) and kinds.is_float32(wanted))
    alike = (_is_text, _is_binary, kinds.is_timestamp, kinds.is_date, kinds.is_time, kinds.is_duration)
    return any(test(held) and test(wanted) for test in alike)


def _widened(data_type: pa.DataType) -> pa.DataType:
    """Return a type with 256 bits for its decimals: with 128 Arrow appends digits modulo 2**128, to another number."""
    kinds = pa.types
    if kinds.is_decimal128(data_type):
        return pa.decimal256(data_type.precision, data_type.scale)
    if kinds.is_struct(data_type):
        return pa.struct([member.with_type(_widened(member.type)) for member in data_type])
    if _is_list(data_type):
        of = pa.large_list if kinds.is_large_list(data_type) else pa.list_
        return of(data_type.value_field.with_type(_widened(data_type.value_type)))
    if kinds.is_map(data_type):
        return pa.map_(_widened(data_type.key_type), _widened(data_type.item_type))
    return data_type


def _is_list(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_list(data_type) or pa.types.is_large_list(data_type))


def _is_text(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_string(data_type) or pa.types.is_large_string(data_type))


def _is_binary(data_type: pa.DataType) -> bool:
    kinds = pa.types
    return bool(kinds.is_binary(data_type) or kinds.is_large_binary(data_type) or kinds.is_fixed_size_binary(data_type))


def _declared(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns: list[pa.Array] = []
    for field in schema:
        column = batch.column(field.name)
        if column.type != field.type:
            # Nanoseconds lose their last three digits, as they do in every other format; nothing else may be lost.
            options = pc.CastOptions(field.type, allow_time_truncate=True)
            try:
                column = pc.cast(column.cast(_widened(column.type)), options=options)
            except pa.ArrowException as error:
                if not is_of_format(error):
                    raise
                raise Misfit(f"column {field.name!r} is declared {field.type}: {error}") from error
        if path := convert.forbidden_null(column, field):
            raise Misfit(f"{path!r} is declared NOT NULL and has a null")
        columns.append(column)
    if name := convert.lacking(columns, schema):
        raise Misfit(f"{name!r} is declared NOT NULL and has a null")
    return pa.RecordBatch.from_arrays(columns, schema=schema)
