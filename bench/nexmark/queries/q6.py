"""Query 6: the mean price of the last eleven auctions of each seller, as they are closed."""

from __future__ import annotations

import holdfast as hf
from bench.nexmark.queries.q9 import OPEN_MAX
from bench.nexmark.tables import Tables

KEY: tuple[str, ...] = ("seller",)


def result(tables: Tables) -> hf.Stream:
    """Return the rows of the result."""
    within = ("0 s", OPEN_MAX)
    bids = hf.join(tables.auction, tables.bid, on={"id": "auction"}, within=within, suffix="_bid", name="bids")
    valid = bids | hf.filter("dateTime_bid <= expires", name="valid")
    closed = valid | hf.aggregate(
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
