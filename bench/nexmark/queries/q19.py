"""Query 19: the ten highest bids on each auction."""

from __future__ import annotations

import holdfast as hf
from bench.nexmark.tables import Tables

KEY: tuple[str, ...] = ("auction", "rank")


def result(tables: Tables) -> hf.Stream:
    """Return the rows of the result."""
    bids = tables.bid | hf.select("auction", "bidder", "price", "dateTime", "extra", name="bids")
    return hf.top(bids, 10, by="auction", order="price desc", rank="rank", name="highest")
