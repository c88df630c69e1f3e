"""Query 18: the last bid of each bidder on each auction."""

from __future__ import annotations

import holdfast as hf
from bench.nexmark.tables import Tables

KEY: tuple[str, ...] = ("auction", "bidder")


def result(tables: Tables) -> hf.Stream:
    """Return the rows of the result."""
    last = hf.latest(tables.bid, by=("bidder", "auction"), name="last")
    columns = ("auction", "bidder", "price", "channel", "url", "dateTime", "extra")
    return last | hf.select(*columns, name="bids")
