"""Query 9: the winning bid of each auction."""

from __future__ import annotations

import holdfast as hf
from bench.nexmark.tables import Tables

KEY: tuple[str, ...] = ("id",)


def result(tables: Tables) -> hf.Stream:
    """Return the rows of the result."""
    offers = tables.bid | hf.select("auction", "bidder", "price", "dateTime", name="offers")
    within = ("dateTime", "expires")
    bids = hf.join(tables.auction, offers, on={"id": "auction"}, within=within, suffix="_bid", name="bids")
    best = hf.top(bids, 1, by="id", order="price desc, dateTime_bid", name="best")
    auction = ("id", "itemName", "description", "initialBid", "reserve", "dateTime", "expires", "seller", "category")
    return best | hf.select(*auction, "extra", "bidder", "price", "dateTime_bid AS bid_time", name="won")
