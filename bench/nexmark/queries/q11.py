"""Query 11: how often somebody bids in each session."""

from __future__ import annotations

import holdfast as hf
from bench.nexmark.tables import Tables

KEY: tuple[str, ...] = ()


def result(tables: Tables) -> hf.Stream:
    """Return the rows of the result."""
    sessions = tables.bid | hf.aggregate(by="bidder", window=hf.session("10 s"), bids=hf.count(), name="sessions")
    return sessions | hf.select(
        "bidder", "bids", "window_start AS starts", "window_end AS ends", name="bids_of_sessions"
    )
