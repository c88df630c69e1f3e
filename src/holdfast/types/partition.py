"""Hive-style partition directories: ``column=value/`` paths, written as Spark writes them."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.types.from_text import from_text
from holdfast.types.units import refused_destination

NULL_NAME = "__HIVE_DEFAULT_PARTITION__"
"""The directory of null, and, as in Spark, of the empty string."""

_ESCAPED = re.compile("[\\x00-\\x1f\\x7f\"#%'*/:=?\\\\{\\[\\]^]")
_NAME_BYTES_MAX = 255

_PATH_BYTES_MAX = 4095
_BESIDE_BYTES = 256
"""What stands in a path besides the sink's directory and a partition: the directory of a task, and the file's name."""

_DO = "correct or filter such rows before the sink, or partition by columns with shorter values."

_BEYOND = 2
_BYTES = np.array([bool(_ESCAPED.match(chr(n))) if n < 0x80 else _BEYOND for n in range(256)], np.uint8)
"""Of each byte: 1 where it is a character that is escaped, ``_BEYOND`` where it is a part of one beyond ASCII."""

_MANY = 16
"""From so many values on, Arrow names them faster than Python does."""


def is_partition_type(kind: pa.DataType) -> bool:
    """Return whether values of this type can name a directory and be read back from it."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
    )


def room_below(directory: str) -> int:
    """Return how many bytes the directories of a partition may have together, below a directory of a file system."""
    return _PATH_BYTES_MAX - _BESIDE_BYTES - len(os.fsencode(directory))


def check(batch: pa.RecordBatch, columns: Sequence[str], room_bytes: int) -> None:
    """Raise :class:`BadRow` if a row cannot go to the directories that its partition columns name; see :func:`groups`.

    Cheaper than a division: names are made once for each value, and combined only where that could be too long.
    """
    names = [_names(column, batch.column(column).unique()) for column in columns]
    longest = [pc.max(pc.binary_length(each)).as_py() or 0 for each in names]
    if batch.num_rows and sum(longest) + len(longest) > room_bytes:
        groups(batch, columns, room_bytes)


def split(
    batch: pa.RecordBatch, columns: Sequence[str], room_bytes: int = _PATH_BYTES_MAX
) -> list[tuple[str, pa.RecordBatch]]:
    """Split rows by the values of partition columns.

    Parameters
    ----------
    batch : pyarrow.RecordBatch
        The rows.
    columns : sequence of str
        Partition columns, outermost first.  Empty: everything belongs to the directory itself.
    room_bytes : int
        How long the directories of a partition may be together.

    Returns
    -------
    list of (str, pyarrow.RecordBatch)
        Relative directory and its rows, in their order, without the partition columns.

    Raises
    ------
    BadRow
        If a value cannot name a directory.

    Examples
    --------
    >>> batch = pa.RecordBatch.from_pydict({"day": ["mo", "tu", "mo"], "n": [1, 2, 3]})
    >>> [(directory, rows["n"].to_pylist()) for directory, rows in split(batch, ["day"])]
    [('day=mo', [1, 3]), ('day=tu', [2])]
    """
    if not batch.num_rows:
        return []
    if not columns:
        return [("", batch)]
    names, starts, order = groups(batch, columns, room_bytes)
    rest = batch.drop_columns(list(columns)).take(pa.array(order))
    ends = [*starts[1:], batch.num_rows]
    return [(name, rest[start:end]) for name, start, end in zip(names.to_pylist(), starts, ends, strict=True)]


def groups(
    batch: pa.RecordBatch, columns: Sequence[str], room_bytes: int = _PATH_BYTES_MAX
) -> tuple[pa.StringArray, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the directories that rows belong to, and how the rows are brought together.

    Parameters
    ----------
    batch : pyarrow.RecordBatch
        The rows, at least one.
    columns : sequence of str
        Partition columns, outermost first; at least one.
    room_bytes : int
        How long the directories of a partition may be together.

    Returns
    -------
    pyarrow.StringArray, array, array
        Directories; where the rows of each begin in the new order; and that order, in which rows of one directory
        keep theirs.

    Raises
    ------
    BadRow
        If a value cannot name a directory.
    """
    group: np.ndarray[Any, Any] | None = None
    count = 1
    names: list[pa.StringArray] = []
    codes: list[np.ndarray[Any, Any]] = []
    for column in columns:
        encoded = batch.column(column).dictionary_encode(null_encoding="encode")
        code = encoded.indices.to_numpy()
        names.append(_names(column, encoded.dictionary))
        codes.append(code)
        if group is None:
            group, count = code, len(names[-1])
        else:  # Renumbered after each column: products of several would overflow.
            found, group = np.unique(group.astype(np.int64) * len(names[-1]) + code, return_inverse=True)
            group, count = group.reshape(-1), len(found)
    assert group is not None
    # Numbers of 16 bits are sorted by their digits, in a fraction of the time that comparing takes.
    order = np.argsort(group.astype(np.uint16) if count <= 2**16 else group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    firsts = order[starts]
    parts = [known.take(pa.array(code[firsts])) for known, code in zip(names, codes, strict=True)]
    directories = parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, "/")
    too_long = directories.filter(pc.greater(pc.binary_length(directories), room_bytes))
    if len(too_long):
        why = f"its path would be too long for the file system or the store: there is room for {room_bytes} bytes"
        raise refused_destination("partition_by", "directory", too_long[0].as_py(), why, _DO)
    return directories, starts, order


def partition_names(column: str, values: pa.Array) -> list[str]:
    """Return the directories' names for values of one column.

    Raises
    ------
    BadRow
        If one is too long for a directory's name, is not UTF-8, or a time that Python has not.
    """
    names: list[str] = _names(column, values).to_pylist()
    return names


def _names(column: str, values: pa.Array) -> pa.StringArray:
    try:
        names = _plain_names(column, values)
        if names is None:
            names = pa.array([partition_name(column, value) for value in values.to_pylist()], pa.string())
    except (ValueError, OverflowError) as error:
        raise refused_destination(f"partition column {column!r}", "directory", None, str(error), _DO) from error
    return names


def _plain_names(column: str, values: pa.Array) -> pa.StringArray | None:
    """Return the names of many values at once; None where one of them needs a closer look."""
    if pa.types.is_integer(values.type):
        values = values.cast(pa.string())
    if not pa.types.is_string(values.type) or len(values) < _MANY or not _is_plain(values):
        return None
    prefix = f"{_escape(column)}="
    longest = _NAME_BYTES_MAX - len(os.fsencode(prefix))
    if (pc.max(pc.binary_length(values)).as_py() or 0) > longest:
        return None
    if pc.any(pc.equal(values, NULL_NAME)).as_py():
        return None
    is_empty = pc.equal(pc.fill_null(values, ""), "")
    if pc.any(is_empty).as_py():
        values = pc.if_else(is_empty, NULL_NAME, values)
    return pc.binary_join_element_wise(prefix, values, "")


def _is_plain(values: pa.StringArray) -> bool:
    """Return whether values are UTF-8 without a character that is escaped."""
    offsets, data = values.buffers()[1:]
    if data is None:
        return True
    first, last = np.frombuffer(offsets, np.int32)[[values.offset, values.offset + len(values)]]
    found = _BYTES[np.frombuffer(data, np.uint8)[first:last]].max(initial=0)
    if found != _BEYOND:
        return bool(found == 0)
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:  # no UTF-8
        return False
    return not pc.any(pc.match_substring_regex(values, _ESCAPED.pattern)).as_py()


def partition_name(column: str, value: Any) -> str:
    """Return the directory's name for one value of one column.

    Examples
    --------
    >>> partition_name("route", "LHR/JFK"), partition_name("day", None)
    ('route=LHR%2FJFK', 'day=__HIVE_DEFAULT_PARTITION__')
    """
    text = "" if value is None else _text(value)
    if text == NULL_NAME:
        why = "that text is null to every reader of directories"
        raise refused_destination(f"partition column {column!r}", "directory", text, why, _DO)
    name = f"{_escape(column)}={_escape(text) if text else NULL_NAME}"
    if len(os.fsencode(name)) > _NAME_BYTES_MAX:
        why = f"a directory's name has at most {_NAME_BYTES_MAX} bytes"
        raise refused_destination(f"partition column {column!r}", "directory", name, why, _DO)
    return name


def partition_columns(directory: str) -> frozenset[str]:
    """Return the columns that a directory's name tells of.

    Examples
    --------
    >>> sorted(partition_columns("out/route=LHR%2FJFK/day=7"))
    ['day', 'route']
    """
    return frozenset(unquote(part.partition("=")[0]) for part in directory.split("/") if "=" in part)


def partition_values(directory: str, schema: pa.Schema) -> dict[str, pa.Scalar]:
    """Return the values that a directory's name has for columns of a schema; the empty string comes back as null.

    Examples
    --------
    >>> partition_values("route=LHR%2FJFK/day=7", pa.schema([("day", pa.int64()), ("route", pa.string())]))
    {'route': <pyarrow.StringScalar: 'LHR/JFK'>, 'day': <pyarrow.Int64Scalar: 7>}
    """
    found: dict[str, pa.Scalar] = {}
    for part in directory.split("/") if directory else ():
        column, _, text = part.partition("=")
        place = schema.get_field_index(unquote(column))
        if place >= 0:
            kind = schema.field(place).type
            found[schema.field(place).name] = (
                pa.scalar(None, kind) if text == NULL_NAME else from_text(pa.array([unquote(text)]), kind)[0]
            )
    return found


def _escape(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime.datetime):
        whole = value.replace(tzinfo=None).isoformat(" ", "seconds")  # strftime has no zeros before a year
        return f"{whole}.{value.microsecond:06}".rstrip("0") if value.microsecond else whole
    if isinstance(value, Decimal):
        return format(value, "f")
    return str(value)
