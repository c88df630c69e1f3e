"""Query 0: every bid, passed through."""

from __future__ import annotations

import holdfast as hf
from bench.nexmark.tables import Tables

KEY: tuple[str, ...] = ()


def result(tables: Tables) -> hf.Stream:
    """Return the rows of the result."""
    return tables.bid | hf.select("auction", "bidder", "price", "dateTime", "extra", name="bids")
