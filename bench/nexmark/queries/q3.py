"""Query 3: who sells in category 10, in three states."""

from __future__ import annotations

import holdfast as hf
from bench.nexmark.tables import FOREVER, Tables

KEY: tuple[str, ...] = ()


def result(tables: Tables) -> hf.Stream:
    """Return the rows of the result."""
    some = tables.auction | hf.filter("category = 10", name="category_10")
    sellers = tables.person | hf.filter("state IN ('OR', 'ID', 'CA')", name="three_states")
    sold = hf.join(some, sellers, on={"seller": "id"}, within=FOREVER, suffix="_person", name="sold")
    return sold | hf.select("name", "city", "state", "id", name="local")
