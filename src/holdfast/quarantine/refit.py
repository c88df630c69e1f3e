"""A dead letter's row in the schema that its source has now: the one it was kept with may be older.

Columns go by name.  One that the row lacks is null, one that the source no longer has is dropped, and a type may
differ where the value stays the same.  Anything else is refused: the row that is read again is the original row.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from holdfast.connectors.formats.convert import forbidden_null
from holdfast.connectors.reading.bounds import unmarked
from holdfast.connectors.reading.identified import IdentifiedSpec
from holdfast.connectors.rows import to_ipc
from holdfast.ports import REJECT_COLUMN, REJECT_TYPE, SourceSpec
from holdfast.types.casting import same_in
from holdfast.types.from_text import Unfit
from holdfast.types.row_ids import ids_of_numbers, key_of


def refitted(row: bytes, spec: SourceSpec, name: str = "") -> bytes:
    """Return a row as its source delivers rows now; the same bytes where its schema has not changed.

    Parameters
    ----------
    row : bytes
        An Arrow IPC stream of one row.
    spec : SourceSpec
        The source's declaration.
    name : str
        The letter's: what the row's id is made of where it has none yet.

    Raises
    ------
    Unfit
        If it cannot be such a row: says which column, and why.

    Examples
    --------
    >>> from holdfast import read
    >>> source = read.rows([], schema="v SMALLINT, x STRING, k STRING", name="given").node.spec
    >>> row = to_ipc(pa.RecordBatch.from_pylist([{"k": "a", "v": 13}]))
    >>> pa.ipc.open_stream(refitted(row, source)).read_all().to_pylist()
    [{'v': 13, 'x': None, 'k': 'a'}]
    """
    table = pa.ipc.open_stream(row).read_all().combine_chunks()
    given = unmarked(spec)  # bound rows are letters, too
    declared = given.schema
    if isinstance(given, IdentifiedSpec) and given.column not in table.column_names:
        table = _identified(table, given, name)
    wanted = _as_read(declared, rejects=spec.rejects)
    if table.schema.equals(wanted):
        return row
    is_rejected = REJECT_COLUMN in table.column_names and not table[REJECT_COLUMN].null_count
    if is_rejected and not spec.rejects:
        raise Unfit("it could not be read and was rejected, and the source rejects no rows now")
    if not is_rejected and not set(declared.names) & set(table.column_names):
        raise Unfit(f"it has none of the columns {', '.join(map(repr, declared.names))}")
    columns = [_column(table, field) for field in wanted]
    for column, field in zip(columns, declared, strict=False):
        if not is_rejected and (path := forbidden_null(column, field)) is not None:
            raise Unfit(f"column {path!r} is NOT NULL now, and the row has no value for it")
    return to_ipc(pa.RecordBatch.from_arrays(columns, schema=wanted))


def _identified(table: pa.Table, spec: IdentifiedSpec, name: str) -> pa.Table:
    """Return a row that was kept without an id, or was added by somebody, with the one of its letter."""
    times = table[spec.id_time].combine_chunks() if spec.id_time in table.column_names else None
    is_timed = times is not None and (pa.types.is_timestamp(times.type) or times.type == pa.int64())
    ids = ids_of_numbers(key_of("letter", name), np.zeros(table.num_rows, np.uint64), times if is_timed else None)
    return table.append_column(spec.column, ids)


def _as_read(declared: pa.Schema, *, rejects: bool) -> pa.Schema:
    if not rejects:
        return declared
    return pa.schema([*(field.with_nullable(True) for field in declared), pa.field(REJECT_COLUMN, REJECT_TYPE)])


def _column(table: pa.Table, field: pa.Field) -> pa.Array:
    if field.name not in table.column_names:
        return pa.nulls(table.num_rows, field.type)
    column = table[field.name].combine_chunks()
    try:
        return same_in(column, field.type)
    except ValueError as error:
        raise Unfit(f"column {field.name!r} was {column.type} and is {field.type} now: {error}") from error
