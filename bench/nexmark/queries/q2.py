"""Query 2: the bids on some auctions."""

from __future__ import annotations

import holdfast as hf
from bench.nexmark.tables import Tables

KEY: tuple[str, ...] = ()


def result(tables: Tables) -> hf.Stream:
    """Return the rows of the result."""
    return tables.bid | hf.filter("auction % 123 = 0", name="some") | hf.select("auction", "price", name="bids")
