"""Query 20: bids with their auction, of category 10."""

from __future__ import annotations

import holdfast as hf
from bench.nexmark.tables import Tables

KEY: tuple[str, ...] = ()


def result(tables: Tables) -> hf.Stream:
    """Return the rows of the result."""
    some = tables.auction | hf.filter("category = 10", name="category_10")
    sold = hf.join(tables.bid, some, on={"auction": "id"}, forget_after=None, suffix="_auction", name="sold")
    return sold | hf.select(
        "* except (joined_time, dateTime_auction, extra_auction)",
        "dateTime_auction AS opened",
        "extra_auction AS auction_extra",
        name="bids",
    )
