"""What a message has besides the columns of its payload."""

from __future__ import annotations

from collections.abc import Mapping

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
