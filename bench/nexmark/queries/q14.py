"""Query 14: bids between one and fifty million euro, by the time of the day."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

import holdfast as hf
from bench.nexmark.tables import Tables

KEY: tuple[str, ...] = ()
SCHEMA = (
    "auction BIGINT, bidder BIGINT, price DECIMAL(23, 3), bidTimeType STRING, dateTime TIMESTAMP, extra STRING, "
    "c_counts INT"
)


def count_letters(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Add how many letters c there are: the user's own function."""
    return rows.append_column("c_counts", pc.count_substring(rows.column("extra"), "c"))


def result(tables: Tables) -> hf.Stream:
    """Return the rows of the result."""
    some = tables.bid | hf.filter("price * 0.908 > 1000000 AND price * 0.908 < 50000000", name="some")
    timed = some | hf.select(
        "auction",
        "bidder",
        "CAST(price * 0.908 AS DECIMAL(23, 3)) AS price",
        "CASE WHEN hour(dateTime) BETWEEN 8 AND 18 THEN 'dayTime' WHEN hour(dateTime) <= 6 OR hour(dateTime) >= 20 "
        "THEN 'nightTime' ELSE 'otherTime' END AS bidTimeType",
        "dateTime",
        "extra",
        name="timed",
    )
    return timed | hf.map_batches(count_letters, SCHEMA, name="counted")
