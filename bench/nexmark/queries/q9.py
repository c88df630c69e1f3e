"""Query 9: the winning bid of each auction."""

from __future__ import annotations

import holdfast as hf
from bench.nexmark.tables import Tables

KEY: tuple[str, ...] = ("id",)
OPEN_MAX = "1 min"
"""No auction is open for longer; at 10,000 events a second it is a third of a second."""


def result(tables: Tables) -> hf.Stream:
    """Return the rows of the result."""
    within = ("0 s", OPEN_MAX)
    bids = hf.join(tables.auction, tables.bid, on={"id": "auction"}, within=within, suffix="_bid", name="bids")
    valid = bids | hf.filter("dateTime_bid <= expires", name="valid")
    best = hf.top(valid, 1, by="id", order="price desc, dateTime_bid", name="best")
    auction = ("id", "itemName", "description", "initialBid", "reserve", "dateTime", "expires", "seller", "category")
    return best | hf.select(*auction, "extra", "bidder", "price", "dateTime_bid AS bid_time", name="won")
