"""Query 22: three directories of the address of each bid."""

from __future__ import annotations

import holdfast as hf
from bench.nexmark.tables import Tables

KEY: tuple[str, ...] = ()


def result(tables: Tables) -> hf.Stream:
    """Return the rows of the result."""
    return tables.bid | hf.select(
        "auction",
        "bidder",
        "price",
        "channel",
        "split_part(url, '/', 4) AS dir1",
        "split_part(url, '/', 5) AS dir2",
        "split_part(url, '/', 6) AS dir3",
        name="directories",
    )
