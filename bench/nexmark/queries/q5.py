"""Query 5: the auctions with most bids, in windows of ten seconds every two."""

from __future__ import annotations

import holdfast as hf
from bench.nexmark.tables import Tables

KEY: tuple[str, ...] = ()


def result(tables: Tables) -> hf.Stream:
    """Return the rows of the result."""
    window = hf.sliding("10 s", every="2 s")
    counted = tables.bid | hf.aggregate(by="auction", window=window, num=hf.count(), name="counted")
    starts = counted | hf.select("auction", "num", "window_start AS starts", "window_end AS at", name="starts")
    most = hf.top(
        starts, 1, by="starts", order="num desc", window=hf.tumbling("2 s"), ties="all", emit="settled", name="most"
    )
    return most | hf.select("auction", "starts AS window_start", "num", name="hot")
