"""Query 13: bids with a value of a side table."""

from __future__ import annotations

import holdfast as hf
from bench.nexmark.expected import side_table
from bench.nexmark.tables import Tables

KEY: tuple[str, ...] = ()


def result(tables: Tables) -> hf.Stream:
    """Return the rows of the result."""
    keyed = tables.bid | hf.select("auction", "bidder", "price", "dateTime", "auction % 10000 AS key", name="keyed")
    found = hf.lookup(keyed, side_table(), on="key", how="inner", name="side")
    return found | hf.select("auction", "bidder", "price", "dateTime", "value", name="joined")
