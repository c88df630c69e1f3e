"""Query 16: per channel and day what query 15 counts, and the latest minute."""

from __future__ import annotations

import holdfast as hf
from bench.nexmark.queries.q15 import DAY, counts
from bench.nexmark.tables import Tables

KEY: tuple[str, ...] = ("channel", "day")


def result(tables: Tables) -> hf.Stream:
    """Return the rows of the result."""
    columns = ("channel", "bidder", "auction", "price")
    dated = tables.bid | hf.select(*columns, day=DAY, minute="date_format(dateTime, 'HH:mm')", name="dated")
    return dated | hf.reduce(by=KEY, minute=hf.max("minute"), name="counted", **counts())
