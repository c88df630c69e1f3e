"""Query 10: bids with their day and minute, by which files are partitioned."""

from __future__ import annotations

import holdfast as hf
from bench.nexmark.tables import Tables

KEY: tuple[str, ...] = ()


def result(tables: Tables) -> hf.Stream:
    """Return the rows of the result."""
    return tables.bid | hf.select(
        "auction",
        "bidder",
        "price",
        "dateTime",
        "extra",
        day="date_format(dateTime, 'yyyy-MM-dd')",
        minute="date_format(dateTime, 'HH:mm')",
        name="logged",
    )
