"""What a row shows by itself: values that a PostgreSQL column cannot keep, found column by column in the driver.

Each check is the server's own rule.  They are made before an epoch is decided; staged rows are checked by the same
rules in their staging table, whose columns have the target's types.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.kit import refusals, sql
from holdfast.connectors.postgres import copy
from holdfast.connectors.postgres.copy import CopyColumn, copy_format, is_binary, is_text
from holdfast.connectors.postgres.rules import INDEXED_BYTES, PostgresRules
from holdfast.connectors.postgres.table import PostgresTable
from holdfast.connectors.postgres.types import TableColumn
from holdfast.errors import BadRow

# Of src/include/datatype/timestamp.h, counted from 2000-01-01; the ends of the integers are the infinities.
_DAYS = (-2_451_545, 2_145_031_948)
_MICROSECONDS = (-211_813_488_000_000_000, 9_223_371_331_199_999_999)
_DAY_US = (0, 86_400_000_000)
_WRITTEN_DAYS = (-730_119, 2_921_939)
_WRITTEN_US = (-63_082_281_600_000_000, 252_455_615_999_999_999)
"""Years 1 to 9999: what Arrow and PostgreSQL write alike, as text."""

_UUID = r"^(\{([0-9a-fA-F]{4}-?){7}[0-9a-fA-F]{4}\}|([0-9a-fA-F]{4}-?){7}[0-9a-fA-F]{4})$"
_NUL_ESCAPE = r"(^|[^\\])(\\\\)*\\u0000"


def check_values(table: PostgresTable, rules: PostgresRules, rows: pa.Table) -> bool:
    """Check carried rows; return whether there are values that only the server can judge.

    Raises
    ------
    BadRow
        If one cannot be kept: names the column and the value.
    """
    sql.check_keys(table.node, table.mode, rows)
    is_text_form = copy_format(table.copied) != "binary"
    is_odd = False
    for batch in rows.to_batches():
        kept = batch
        if table.mode.delete is not None:
            kept = batch.filter(pc.invert(pc.fill_null(batch.column(table.mode.delete), False)))
        for column in table.columns:
            if column.name not in batch.schema.names:
                continue  # the epoch's number
            if table.mode.delete is not None and column.name in rules.required and kept.column(column.name).null_count:
                is_odd = True  # unless a later row of its key replaces it
            elif column.name in rules.required:
                refusals.check_no_null(table.node, table.name, column.name, kept.column(column.name))
            is_odd |= _check_column(table, column, rules, batch, is_text_form=is_text_form)
        is_odd |= any(_indexed_bytes(batch, names) > INDEXED_BYTES for names in rules.indexed)
    return is_odd


def _check_column(
    table: PostgresTable, column: TableColumn, rules: PostgresRules, batch: pa.RecordBatch, *, is_text_form: bool
) -> bool:
    values = sql.flat(batch.column(column.name))
    kind = values.type
    if is_text(kind):
        _check_text(table, column, rules, values)
    elif sql.is_nested(kind):
        sql.check_nested(table.node, column.name, values, "PostgreSQL")
        if column.base == "jsonb" and _may_hold_nul(values):
            bad = pc.match_substring_regex(sql.json_text(values), _NUL_ESCAPE)
            _refuse(table, column, values, bad, "jsonb cannot keep the character NUL (U+0000)")
    elif pa.types.is_temporal(kind):
        return _check_time(table, column, batch, kind, is_text_form=is_text_form)
    return False


def _check_text(table: PostgresTable, column: TableColumn, rules: PostgresRules, values: pa.Array) -> None:
    sql.check_text(table.node, column.name, values)
    values = pc.cast(values, pa.string())
    copy.without_nul(table.node, column.name, values)
    if column.base in ("varchar", "bpchar") and column.modifier >= 0:
        limit = column.modifier - 4
        long = pc.greater(pc.utf8_length(pc.utf8_rtrim(values, " ")), limit)  # blanks at the end are cut off
        _refuse(table, column, values, long, f"it is longer than {limit} characters")
    elif column.base == "uuid":
        _refuse(table, column, values, pc.invert(pc.match_substring_regex(values, _UUID)), "it is not a uuid")
    elif column.name in rules.labels:
        known = pc.or_(pc.is_in(values, pa.array(rules.labels[column.name], pa.string())), pc.is_null(values))
        _refuse(table, column, values, pc.invert(known), f"{column.declared} has no such value")


def _check_time(
    table: PostgresTable, column: TableColumn, batch: pa.RecordBatch, kind: pa.DataType, *, is_text_form: bool
) -> bool:
    numbers = copy.plain(table.node, CopyColumn(column.name, kind, column.base), batch)
    if pa.types.is_duration(kind):
        return False  # an integer, and all of them fit
    least, most = _DAYS if pa.types.is_date(kind) else _DAY_US if pa.types.is_time(kind) else _MICROSECONDS
    outside = pc.or_(pc.less(numbers, least), pc.greater(numbers, most))
    values = sql.flat(batch.column(column.name))
    _refuse(table, column, values, outside, f"it is out of the range of {column.declared}")
    if not is_text_form or pa.types.is_time(kind):
        return False
    least, most = _WRITTEN_DAYS if pa.types.is_date(kind) else _WRITTEN_US
    return bool(pc.any(pc.or_(pc.less(numbers, least), pc.greater(numbers, most))).as_py())


def _refuse(table: PostgresTable, column: TableColumn, values: pa.Array, bad: pa.Array, why: str) -> None:
    if pc.any(bad).as_py():
        first = values.filter(pc.fill_null(bad, False))[0]
        try:
            shown = repr(first.as_py())
        except (ValueError, OverflowError):  # a time that Python cannot say
            shown = str(first.value)
        raise BadRow(
            f"{table.node}: column {column.name!r} of table {table.name} cannot keep {shown[:60]}.",
            why=f"{why}.",
            do="correct or filter such rows before the sink.",
        )


def _may_hold_nul(values: pa.Array) -> bool:
    """Return whether a text anywhere inside has the character NUL."""
    kind = values.type
    if pa.types.is_struct(kind):
        return any(_may_hold_nul(member) for member in values.flatten())
    if pa.types.is_map(kind):
        return _may_hold_nul(values.keys) or _may_hold_nul(values.items)
    if pa.types.is_nested(kind):
        return _may_hold_nul(values.flatten()) if hasattr(values, "flatten") else True
    return is_text(kind) and bool(pc.any(pc.match_substring(pc.cast(values, pa.string()), "\0")).as_py())


def _indexed_bytes(batch: pa.RecordBatch, names: Sequence[str]) -> int:
    """Return how long an entry of an index can be, at most; nested values count as long."""
    total = 0
    for name in names:
        values = sql.flat(batch.column(name))
        if not (is_text(values.type) or is_binary(values.type)):
            return INDEXED_BYTES + 1
        total += pc.max(pc.binary_length(values)).as_py() or 0
    return total
