"""Query 6: the mean price of the last eleven auctions of each seller, as they are closed."""

from __future__ import annotations

import holdfast as hf
from bench.nexmark.tables import Tables

KEY: tuple[str, ...] = ("seller",)
OPEN_MAX = "1 min"
"""No auction is open for longer; at 10,000 events a second it is a third of a second."""


def result(tables: Tables) -> hf.Stream:
    """Return the rows of the result."""
    within = ("dateTime", "expires")
    auctions = tables.auction | hf.select("id", "seller", "dateTime", "expires", name="auctions")
    offers = tables.bid | hf.select("auction", "price", "dateTime", name="offers")
    bids = hf.join(auctions, offers, on={"id": "auction"}, within=within, suffix="_bid", name="bids")
    closed = bids | hf.aggregate(
        by=("id", "seller"),
        window=hf.session(OPEN_MAX),  # no two bids of an auction are further apart: it has one session
        best=hf.max("price"),
        sold=hf.max_by("dateTime_bid", "price"),
        name="closed",
    )
    lately = closed | hf.over(
        rows=11, by="seller", order="id", timestamp="sold", disorder=OPEN_MAX, price=hf.mean("best"), name="lately"
    )
    return lately | hf.select("seller", "price", name="prices")
