"""Query 3: who sells in category 10, in three states."""

from __future__ import annotations

import holdfast as hf
from bench.nexmark.tables import Tables

KEY: tuple[str, ...] = ()


def result(tables: Tables) -> hf.Stream:
    """Return the rows of the result."""
    category = tables.auction | hf.filter("category = 10", name="category_10")
    some = category | hf.select("id", "seller", "dateTime", name="auctions")
    states = tables.person | hf.filter("state IN ('OR', 'ID', 'CA')", name="three_states")
    sellers = states | hf.select("id", "name", "city", "state", "dateTime", name="people")
    sold = hf.join(some, sellers, on={"seller": "id"}, forget_after=None, suffix="_person", name="sold")
    return sold | hf.select("name", "city", "state", "id", name="local")
