"""Query 23: bids, with who bids and what they sell."""

from __future__ import annotations

import holdfast as hf
from bench.nexmark.tables import FOREVER, Tables

KEY: tuple[str, ...] = ()


def result(tables: Tables) -> hf.Stream:
    """Return the rows of the result."""
    known = hf.join(tables.bid, tables.person, on={"bidder": "id"}, within=FOREVER, suffix="_person", name="known")
    bids = known | hf.select("auction", "bidder", "price", "dateTime", "name", "city", "joined_time AS at", name="bids")
    sold = hf.join(bids, tables.auction, on={"bidder": "seller"}, within=FOREVER, suffix="_auction", name="sold")
    columns = ("auction", "bidder", "price", "dateTime", "name", "city", "id", "itemName", "category")
    return sold | hf.select(*columns, name="sellers")
