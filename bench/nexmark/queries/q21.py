"""Query 21: the number of the channel of each bid."""

from __future__ import annotations

import holdfast as hf
from bench.nexmark.tables import Tables

KEY: tuple[str, ...] = ()


def result(tables: Tables) -> hf.Stream:
    """Return the rows of the result."""
    numbered = tables.bid | hf.select(
        "auction",
        "bidder",
        "price",
        "channel",
        "CASE WHEN lower(channel) = 'apple' THEN '0' WHEN lower(channel) = 'google' THEN '1' "
        "WHEN lower(channel) = 'facebook' THEN '2' WHEN lower(channel) = 'baidu' THEN '3' "
        "ELSE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) END AS channel_id",
        name="numbered",
    )
    return numbered | hf.filter("channel_id <> ''", name="known")
