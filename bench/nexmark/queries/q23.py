"""Query 23: bids, with who bids and what they sell."""

from __future__ import annotations

import holdfast as hf
from bench.nexmark.tables import Tables

KEY: tuple[str, ...] = ()


def result(tables: Tables) -> hf.Stream:
    """Return the rows of the result: those who sell are few, so they are found first, and each bid is kept once."""
    bids = tables.bid | hf.select("auction", "bidder", "price", "dateTime", name="bids")
    people = tables.person | hf.select("id", "name", "city", "dateTime", name="people")
    some = tables.auction | hf.select("id", "seller", "itemName", "category", "dateTime", name="auctions")
    sold = hf.join(some, people, on={"seller": "id"}, forget_after=None, suffix="_person", name="sold")
    at = hf.select("id", "seller", "itemName", "category", "name", "city", "joined_time AS at", name="sellers")
    found = hf.join(bids, sold | at, on={"bidder": "seller"}, forget_after=None, name="found")
    columns = ("auction", "bidder", "price", "dateTime", "name", "city", "id", "itemName", "category")
    return found | hf.select(*columns, name="who_bids")
