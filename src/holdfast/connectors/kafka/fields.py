"""What a message has besides the columns of its payload, and how numbers of messages become a column."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

HEADERS = pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]))

FIELDS: Mapping[str, pa.Field] = {
    "key": pa.field("key", pa.binary()),
    "value": pa.field("value", pa.binary()),
    "topic": pa.field("topic", pa.string(), nullable=False),
    "partition": pa.field("partition", pa.int32(), nullable=False),
    "offset": pa.field("offset", pa.int64(), nullable=False),
    "timestamp": pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    "headers": pa.field("headers", HEADERS),
}
"""What a message has, in the order of the columns."""


def int64s(values: np.ndarray, is_null: np.ndarray | None = None) -> pa.Array:
    """Return integers as Arrow has them; :func:`pyarrow.array` imports pandas first, half a second in each process."""
    validity = None
    if is_null is not None and is_null.any():
        validity = pa.py_buffer(np.packbits(~is_null, bitorder="little"))
    return pa.Array.from_buffers(pa.int64(), len(values), [validity, pa.py_buffer(np.ascontiguousarray(values))])
