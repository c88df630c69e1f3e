"""Which CSV records are surely bad, and why: fields counted, then each column taken as texts and checked as a whole."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.formats import blocks
from holdfast.connectors.formats.convert import unless_of
from holdfast.connectors.formats.lines import SHOWN, is_utf8, not_encoded
from holdfast.types.from_text import all_fit, trimmed, unfit

RETURN = "the line contains a carriage return (lines that end in it alone are not read: write LF, or CR LF)"
_QUOTE = b'"'
_ZERO, _X, _LOWER = ord("0"), ord("x"), 0x20
_TRUE = pa.array([b"1", b"true", b"TRUE", b"True"], pa.binary())
"""How Arrow's reader takes a text for true."""
_PIECES = re.compile(rb"[^\r\n]+")


def judge(
    contents: Sequence[bytes],
    columns: Sequence[str],
    schema: pa.Schema,
    separator: str,
    read: Callable[[bytes, list[str]], pa.Table],
    encoding: str,
) -> dict[int, str]:
    """Return why records are surely bad, by index; see :class:`~holdfast.connectors.formats.lines.Parser`.

    Parameters
    ----------
    read : callable
        Reads some columns of records that have as many fields as there are columns, as bytes: null where empty and not
        quoted.
    encoding : str
        What the text was before it became UTF-8.
    """
    some, joined = _left(contents, {})
    reasons = _of_returns(contents, separator) if b"\r" in joined else {}
    if reasons:
        some, joined = _left(contents, reasons)
    if not some:
        return reasons
    is_text = is_utf8(joined)
    # Of a text that may always be null nothing has to be known but whether it is UTF-8.
    is_free = {f.name: f.nullable and unless_of(f) is None and pa.types.is_string(f.type) for f in schema}
    names = [f.name for f in schema if not (is_text and is_free[f.name])]
    table = _read(read, joined, names or list(schema.names[:1]), len(some))
    if table is None:  # some record has too many fields, or too few
        found = _of_counts(contents if not reasons else [contents[at] for at in some], joined, len(columns), separator)
        reasons = {**reasons, **{some[at]: problem for at, problem in found.items()}} if reasons else found
        if not found or len(reasons) == len(contents):
            return reasons
        some, joined = _left(contents, reasons)
        table = _read(read, joined, names, len(some)) if names else None
    if table is None:
        return reasons
    for name in names:
        if len(reasons) == len(contents):
            break
        field = schema.field(name)
        marker = unless_of(field)
        found = of_column(
            field,
            pa.concat_arrays(table[name].chunks),
            None if marker is None else pa.concat_arrays(table[marker].chunks),
            encoding,
        )
        if len(some) < len(contents):
            found = {some[at]: problem for at, problem in found.items()}
        reasons = {**found, **reasons}
    return reasons


def _left(contents: Sequence[bytes], reasons: Mapping[int, str]) -> tuple[Sequence[int], bytes]:
    """Return the records that no reason is known for, and their text."""
    if not reasons:
        return range(len(contents)), b"\n".join(contents) + b"\n"
    some = [at for at in range(len(contents)) if at not in reasons]
    return some, b"\n".join([contents[at] for at in some]) + b"\n"


def _of_returns(contents: Sequence[bytes], separator: str) -> dict[int, str]:
    """Say which records are bad by a carriage return: for Arrow it ends a row.

    Without them each of the others is one row, so that rows are known by their records.
    """
    return {at: RETURN for at, content in enumerate(contents) if b"\r" in content and is_broken(content, separator)}


def is_broken(content: bytes, separator: str) -> bool:
    """Whether a carriage return stands outside of quoted fields and between something, or beside an odd quote."""
    if content.count(b"\r") == content.count(b"\r\n"):
        return False
    bare = _quoted_fields(separator.encode()).sub(rb"\1q", content) if _QUOTE in content else content
    return _QUOTE in bare or len(_PIECES.findall(bare)) > 1


def _read(read: Callable[[bytes, list[str]], pa.Table], joined: bytes, names: list[str], count: int) -> pa.Table | None:
    """Return columns of records; None unless each of them is one row."""
    try:
        table = read(joined, names)
    except pa.ArrowInvalid:
        return None
    return table if table.num_rows == count else None


def _of_counts(contents: Sequence[bytes], joined: bytes, wanted: int, separator: str) -> dict[int, str]:
    """Say of which records the number of fields is wrong."""
    sep = separator.encode()
    counts = _counts(contents, joined, sep)
    reasons = {}
    for count in np.unique(counts[counts != wanted]).tolist():
        reason = f"it has {count} fields where {wanted} are expected"
        reasons.update(dict.fromkeys(np.flatnonzero(counts == count).tolist(), reason))
    return reasons


def _counts(contents: Sequence[bytes], joined: bytes, sep: bytes) -> npt.NDArray[np.int64]:
    """Return how many fields each record has."""
    view = np.frombuffer(joined, np.uint8)
    found = np.flatnonzero(view == ord(sep))
    if _QUOTE in joined:
        if not blocks.quotes(joined, sep.decode()).is_clean:  # some are in the middle of fields
            strip = _quoted_fields(sep).sub
            return np.array([strip(rb"\1", content).count(sep) + 1 for content in contents])
        marks = np.flatnonzero(view == ord(_QUOTE))
        found = found[np.searchsorted(marks, found) % 2 == 0]
    ends = np.cumsum(np.fromiter(map(len, contents), np.int64, len(contents)) + 1)
    return np.diff(np.searchsorted(found, ends), prepend=0) + 1


@lru_cache(maxsize=8)
def _quoted_fields(sep: bytes) -> re.Pattern[bytes]:
    return re.compile(rb"(\A|" + re.escape(sep) + rb')"(?:[^"]++|"")*+"')


def has_hexadecimal(data: bytes) -> bool:
    """Whether ``0x`` may be in a text: looking for one character takes a fiftieth of looking for two."""
    if b"x" not in data and b"X" not in data:
        return False
    view = blocks.as_bytes(data)
    return bool((view[np.flatnonzero((view | _LOWER) == _X) - 1] == _ZERO).any())


def of_column(field: pa.Field, column: pa.Array, excuses: pa.Array | None, encoding: str) -> dict[int, str]:
    """Return the places of values that do not fit a column, and why; a row with a true excuse need not have one."""
    found: dict[int, str] = {}
    kind = field.type
    try:
        texts = column.cast(pa.string())
    except pa.ArrowInvalid:
        texts = pa.array([_decode(value) for value in column.to_pylist()], pa.string())
        problem = f"column {field.name!r} is declared {kind} ({not_encoded(encoding)})"
        found = dict.fromkeys(_differ(texts.is_null(), column.is_null()), problem)
    if column.null_count and (not field.nullable or excuses is not None):
        is_lacking = column.is_null()
        if excuses is not None:
            is_lacking = pc.and_(is_lacking, pc.invert(pc.fill_null(pc.is_in(excuses, _TRUE), False)))
        problem = f"{field.name!r} is declared NOT NULL and is empty"
        found.update(dict.fromkeys(_places(is_lacking), problem))
    texts = trimmed(texts, kind)
    if all_fit(texts, kind):
        return found
    bad = unfit(texts, kind).nonzero()[0]
    begin, end = f"column {field.name!r} is declared {kind} (invalid value '", "')"
    if pa.types.is_timestamp(kind):
        begin = f"column {field.name!r} is declared {kind} (Failed to parse string: '"
        end = f"' as a scalar of type {pa.timestamp('us')})"
    problems = pc.binary_join_element_wise(begin, _cut_short(texts.take(pa.array(bad))), end, "").to_pylist()
    # An empty text is none of these.
    return {**dict(zip(bad.tolist(), problems, strict=True)), **found}


def _cut_short(texts: pa.Array) -> pa.Array:
    if (pc.max(pc.binary_length(texts)).as_py() or 0) <= SHOWN:
        return texts
    begin = pc.utf8_slice_codeunits(texts, 0, SHOWN - 3)
    is_long = pc.greater(pc.utf8_length(texts), SHOWN)
    return pc.if_else(is_long, pc.binary_join_element_wise(begin, "...", ""), texts)


def _decode(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _differ(one: pa.Array, other: pa.Array) -> list[int]:
    places: list[int] = np.flatnonzero(
        one.to_numpy(zero_copy_only=False) != other.to_numpy(zero_copy_only=False)
    ).tolist()
    return places


def _places(mask: pa.Array) -> list[int]:
    places: list[int] = np.flatnonzero(mask.to_numpy(zero_copy_only=False)).tolist()
    return places
