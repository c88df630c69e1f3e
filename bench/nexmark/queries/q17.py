"""Query 17: per auction and day how many bids there are, and their prices."""

from __future__ import annotations

import holdfast as hf
from bench.nexmark.queries.q15 import DAY, HIGH, LOW, MIDDLE
from bench.nexmark.tables import Tables

KEY: tuple[str, ...] = ("auction", "day")


def result(tables: Tables) -> hf.Stream:
    """Return the rows of the result."""
    dated = tables.bid | hf.select("auction", "price", day=DAY, name="dated")
    return dated | hf.reduce(
        by=KEY,
        total_bids=hf.count(),
        rank1_bids=hf.count(where=LOW),
        rank2_bids=hf.count(where=MIDDLE),
        rank3_bids=hf.count(where=HIGH),
        min_price=hf.min("price"),
        max_price=hf.max("price"),
        avg_price=hf.mean("price"),
        sum_price=hf.sum("price"),
        name="counted",
    )
