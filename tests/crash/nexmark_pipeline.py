"""A query of Nexmark that the process tests kill, in its graph or in one with more operators."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import holdfast as hf
from bench.nexmark.events import Events
from bench.nexmark.running import pipeline_of
from bench.nexmark.tables import Tables

WORK = Path(os.environ["CRASH_WORK"])
COUNT, EPOCHS, RATE, GROUP, CHANGED = (
    int(os.environ[f"NEXMARK_{name}"]) for name in ("COUNT", "EPOCHS", "RATE", "GROUP", "CHANGED")
)


@dataclass(frozen=True)
class ChangedTables:
    """The tables, each with a filter behind it that no row fails.

    Parameters
    ----------
    tables : Tables
        Those of the graph before.
    """

    tables: Tables

    @cached_property
    def person(self) -> hf.Stream:
        """Who bids and sells."""
        return self.tables.person | hf.filter("id >= 1000", name="known_persons")

    @cached_property
    def auction(self) -> hf.Stream:
        """What is sold."""
        return self.tables.auction | hf.filter("reserve > initialBid", name="reserved_auctions")

    @cached_property
    def bid(self) -> hf.Stream:
        """What is bidden."""
        return self.tables.bid | hf.filter("price BETWEEN 100 AND 100000000", name="priced_bids")


tables = Tables(Events(rate=RATE, out_of_order=GROUP), COUNT, max_events_per_epoch=-(-COUNT // EPOCHS))
pipeline = pipeline_of(os.environ["NEXMARK_QUERY"], ChangedTables(tables) if CHANGED else tables, WORK / "result")
