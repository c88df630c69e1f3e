"""Query 12: how often somebody bids in ten seconds of processing time."""

from __future__ import annotations

import holdfast as hf
from bench.nexmark.tables import Tables

KEY: tuple[str, ...] = ()


def result(tables: Tables) -> hf.Stream:
    """Return the rows of the result."""
    return tables.bid | hf.aggregate(by="bidder", window=hf.timer("10 s"), bids=hf.count(), name="bids")
