"""What waits for an upsert, without the rows that a later row of the same key replaces: fewer writes, the same table.

Only rows that the driver holds are left out; a later one of the same key is in the same transaction behind them, so
the table is the same at its end.  Columns of which Arrow and a database may disagree on what is equal are no key here:
then every row is written, as it would be epoch by epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.commit.group import Underway
from holdfast.ports import Carried, Part

_ROW = "__holdfast_row"


def folded(sink: str, entries: Sequence[Underway], key: Sequence[str]) -> list[Underway]:
    """Return epochs of one sink without carried rows that a later carried row of their key replaces.

    Parameters
    ----------
    sink : str
        Whose rows.
    entries : sequence of Underway
        Ascending.
    key : sequence of str
        Columns that identify a row; empty: every row stays.
    """
    tables = [part.rows for entry in entries for part in entry.decided.parts[sink] if isinstance(part, Carried)]
    if not key or len(tables) < 2:
        return list(entries)
    keeps = _last_of_each_key(tables, key)
    if keeps is None:
        return list(entries)
    ends = np.cumsum([table.num_rows for table in tables])
    masks = iter(np.split(keeps, ends[:-1]))

    def left(part: Part) -> Part:
        return Carried(part.rows.filter(pa.array(next(masks)))) if isinstance(part, Carried) else part

    return [
        replace(entry, decided=replace(entry.decided, parts={sink: tuple(map(left, entry.decided.parts[sink]))}))
        for entry in entries
    ]


def _last_of_each_key(tables: Sequence[pa.Table], key: Sequence[str]) -> np.ndarray | None:
    """Return for each row of all tables whether it is the last of its key; None where that is not for us to say."""
    if any(column not in table.column_names for table in tables for column in key):
        return None
    keys = pa.concat_tables([table.select(list(key)) for table in tables], promote_options="none")
    if not all(_is_plain(field.type) for field in keys.schema):
        return None
    if any(keys[column].null_count for column in key):
        return None  # the sink says which epoch has them
    numbered = keys.append_column(_ROW, pa.array(np.arange(keys.num_rows)))
    last = numbered.group_by(list(key)).aggregate([(_ROW, "max")])[f"{_ROW}_max"]
    keeps = np.zeros(keys.num_rows, dtype=bool)
    keeps[pc.cast(last, pa.int64()).to_numpy()] = True
    return keeps


def _is_plain(of: pa.DataType) -> bool:
    is_text = pa.types.is_string(of) or pa.types.is_large_string(of)
    is_number = pa.types.is_integer(of) or pa.types.is_boolean(of)
    return bool(is_text or is_number or pa.types.is_date(of) or pa.types.is_timestamp(of))
