"""Query 8: persons who appeared and sold something in the same ten seconds."""

from __future__ import annotations

import holdfast as hf
from bench.nexmark.tables import Tables

KEY: tuple[str, ...] = ()


def result(tables: Tables) -> hf.Stream:
    """Return the rows of the result."""
    window = hf.tumbling("10 s")
    new = tables.person | hf.aggregate(by=("id", "name"), window=window, persons=hf.count(), name="new")
    sellers = tables.auction | hf.aggregate(by="seller", window=window, auctions=hf.count(), name="sellers")
    keys = {"id": "seller", "window_start": "window_start"}
    both = hf.join(new, sellers, on=keys, within="0 s", name="both")
    return both | hf.select("id", "name", "window_start", name="new_sellers")
