"""Query 15: per day bids, bidders and auctions, of all prices and of three ranges."""

from __future__ import annotations

from typing import Any

import holdfast as hf
from bench.nexmark.tables import Tables

KEY: tuple[str, ...] = ("day",)
LOW, MIDDLE, HIGH = "price < 10000", "price >= 10000 AND price < 1000000", "price >= 1000000"
DAY = "date_format(dateTime, 'yyyy-MM-dd')"


def counts() -> dict[str, Any]:
    """Return the twelve counts."""
    ranges = {"total": None, "rank1": LOW, "rank2": MIDDLE, "rank3": HIGH}
    bids = {f"{rank}_bids": hf.count(where=where) for rank, where in ranges.items()}
    bidders = {f"{rank}_bidders": hf.distinct_count("bidder", where=where) for rank, where in ranges.items()}
    auctions = {f"{rank}_auctions": hf.distinct_count("auction", where=where) for rank, where in ranges.items()}
    return {**bids, **bidders, **auctions}


def result(tables: Tables) -> hf.Stream:
    """Return the rows of the result."""
    dated = tables.bid | hf.select("bidder", "auction", "price", day=DAY, name="dated")
    return dated | hf.reduce(by="day", name="counted", **counts())
