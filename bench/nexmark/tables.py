"""The three tables that a query may read, as streams."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import holdfast as hf
from bench.nexmark.events import Events
from bench.nexmark.source import nexmark


class Readable(Protocol):
    """What has the three tables as streams, wherever they are read."""

    @property
    def person(self) -> hf.Stream: ...

    @property
    def auction(self) -> hf.Stream: ...

    @property
    def bid(self) -> hf.Stream: ...


@dataclass(frozen=True)
class Tables:
    """Tables of a sequence of events; a query makes those that it reads.

    Parameters
    ----------
    events : Events
        The sequence.
    count : int
        How many events there are.
    max_events_per_epoch : int, optional
        Limit of one epoch.
    """

    events: Events
    count: int
    max_events_per_epoch: int | None = None

    @cached_property
    def person(self) -> hf.Stream:
        """Who bids and sells."""
        return self._made("person")

    @cached_property
    def auction(self) -> hf.Stream:
        """What is sold."""
        return self._made("auction")

    @cached_property
    def bid(self) -> hf.Stream:
        """What is bidden."""
        return self._made("bid")

    def _made(self, table: str) -> hf.Stream:
        return nexmark(table, self.events, self.count, max_events_per_epoch=self.max_events_per_epoch)
