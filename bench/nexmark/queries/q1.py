"""Query 1: every bid with its price in euro."""

from __future__ import annotations

import holdfast as hf
from bench.nexmark.tables import Tables

KEY: tuple[str, ...] = ()


def result(tables: Tables) -> hf.Stream:
    """Return the rows of the result."""
    return tables.bid | hf.select(
        "auction", "bidder", "CAST(price * 0.908 AS DECIMAL(23, 3)) AS price", "dateTime", "extra", name="euro"
    )
