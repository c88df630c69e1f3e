"""Query 7: the bids with the highest price of each ten seconds."""

from __future__ import annotations

import holdfast as hf
from bench.nexmark.tables import Tables

KEY: tuple[str, ...] = ()


def result(tables: Tables) -> hf.Stream:
    """Return the rows of the result."""
    window = hf.tumbling("10 s")
    bids = tables.bid | hf.select("auction", "bidder", "price", "dateTime", "extra", name="bids")
    return hf.top(bids, 1, order="price desc", window=window, ties="all", emit="settled", name="highest")
