"""Query 4: for each category, the mean of what its auctions were sold for."""

from __future__ import annotations

import holdfast as hf
from bench.nexmark.tables import Tables

KEY: tuple[str, ...] = ("category",)
DELETE = "is_deleted"


def result(tables: Tables) -> hf.Stream:
    """Return the rows of the result."""
    within = ("dateTime", "expires")
    auctions = tables.auction | hf.select("id", "category", "dateTime", "expires", name="auctions")
    offers = tables.bid | hf.select("auction", "price", "dateTime", name="offers")
    bids = hf.join(auctions, offers, on={"id": "auction"}, within=within, suffix="_bid", name="bids")
    sold = bids | hf.reduce(by=["id", "category"], best=hf.max("price"), delete=DELETE, name="sold")
    return sold | hf.reduce(by="category", price=hf.mean("best"), delete=DELETE, name="mean")
