"""Rows as the text of statements, column by column: what the driver would make of each value, without a loop over rows.

LOAD DATA LOCAL would be as quick, and turns what a column refuses into a warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.kit import sql
from holdfast.connectors.kit.sql_values import converted, is_binary, is_text

STATEMENT_BYTES = 2**20
"""About how large a statement becomes: far below the server's ``max_allowed_packet``."""

_ESCAPES = ((b"\\", b"\\\\"), (b"'", b"\\'"), (b"\0", b"\\0"))
_BYTES = pa.large_binary()


def literals(values: pa.Array) -> pa.Array:
    r"""Return a column as bytes of a statement, in the session's ``sql_mode`` and character set.

    Examples
    --------
    >>> [text.decode() for text in literals(pa.array(["it's", None, "a\\b"])).to_pylist()]
    ["'it\\'s'", 'NULL', "'a\\\\b'"]
    >>> literals(pa.array([1.5, float("nan")])).to_pylist()
    [b'1.5e0', b'NULL']
    """
    kind = values.type
    if pa.types.is_null(kind):
        texts = pa.nulls(len(values), _BYTES)
    elif pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_duration(kind):
        texts = _bytes(converted(values.cast(pa.uint8()) if pa.types.is_boolean(kind) else values).cast(pa.string()))
    elif pa.types.is_floating(kind):
        texts = _numbers(values.cast(pa.float64()))
    elif is_binary(kind):
        texts = _quoted(values.cast(_BYTES), b"_binary'")
    else:
        naive = values.cast(pa.timestamp(kind.unit)) if pa.types.is_timestamp(kind) else values
        texts = _quoted(_bytes(naive if is_text(kind) else converted(naive)), b"'")
    return pc.fill_null(texts, pa.scalar(b"NULL", _BYTES))


def _numbers(values: pa.Array) -> pa.Array:
    """Return floats with an exponent, which makes them such and no decimals; NaN and infinities are null."""
    texts = pc.if_else(pc.is_finite(values), values, None).cast(pa.string())
    has_exponent = pc.match_substring(texts, "e")
    return _bytes(pc.if_else(has_exponent, texts, pc.binary_join_element_wise(texts, "e0", "")))


def _bytes(texts: pa.Array) -> pa.Array:
    return texts.cast(pa.large_string()).cast(_BYTES)


def _quoted(values: pa.Array, opening: bytes) -> pa.Array:
    for sign, escaped in _ESCAPES:
        values = pc.replace_substring(values, pattern=sign, replacement=escaped)
    edges = (pa.scalar(opening, _BYTES), pa.scalar(b"'", _BYTES), pa.scalar(b"", _BYTES))
    return pc.binary_join_element_wise(edges[0], values, *edges[1:])


def statements(
    batch: pa.RecordBatch, head: bytes, before: Sequence[bytes], after: bytes, tail: bytes = b"", rows_max: int = 2**20
) -> Iterator[bytes]:
    """Yield statements that hold the rows of a batch.

    Parameters
    ----------
    batch : pa.RecordBatch
        One or more rows.
    head, tail : bytes
        Around the rows of a statement.
    before : sequence of bytes
        Before each column.
    after : bytes
        Between two rows, behind the closing parenthesis.
    rows_max : int
        How many rows a statement has.
    """
    parts: list[pa.Array | pa.Scalar] = []
    for opening, column in zip(before, batch.columns, strict=True):
        parts += [pa.scalar(opening, _BYTES), literals(sql.flat(column))]
    rows = pc.binary_join_element_wise(*parts, pa.scalar(b")" + after, _BYTES), pa.scalar(b"", _BYTES))
    offsets = np.frombuffer(rows.buffers()[1], np.int64, len(rows) + 1, rows.offset * 8)
    data = memoryview(rows.buffers()[2])
    first = 0
    while first < len(rows):
        end = int(np.searchsorted(offsets, offsets[first] + STATEMENT_BYTES, "right")) - 1
        end = min(max(end, first + 1), first + rows_max, len(rows))
        yield b"".join((head, data[offsets[first] : offsets[end] - len(after)], tail))
        first = end
