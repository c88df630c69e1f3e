"""What the views show: one moment of a pipeline, read when a view asks for it, and asked once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from holdfast.observe.inspection import Inspection
from holdfast.page.html import Html, address
from holdfast.page.reading import CheckpointReader
from holdfast.status import Status
from holdfast.time_use import EpochLine

Level = Literal["good", "minor", "bad"]


@dataclass(frozen=True)
class Asked:
    """What a request asks for.

    Parameters
    ----------
    view : str
        Which view.
    base : str
        What comes before the address of each view.
    shard : int, optional
        Which shard; None: the pipeline as a whole.
    page : int
        Which page of its table, from 1.
    item : str
        What of the view: an epoch, a source, a target of a rewind.
    form_token : str
        What each form sends back; empty where there are no commands.
    """

    view: str = "now"
    base: str = ""
    shard: int | None = None
    page: int = 1
    item: str = ""
    form_token: str = field(default="", repr=False)

    def to(self, *parts: str, **query: str | int | None) -> str:
        """Return the address of a view of the same pipeline and shard."""
        return address(*parts, base=self.base, **{"shard": self.shard, **query})


@dataclass(frozen=True)
class Reason:
    """Why a pipeline is not well, and where to look."""

    level: Level
    what: str
    href: str = ""


@dataclass(frozen=True)
class Section:
    """A part of a view, which is replaced as a whole when it has changed.

    Parameters
    ----------
    key : str
        Its name in the view.
    title : str
        Its heading.
    body : Html
        What is in it.
    """

    key: str
    title: str
    body: Html


@dataclass(frozen=True)
class Moment:
    """A pipeline when a view is made: each thing is read once, and only if the view shows it.

    Parameters
    ----------
    reader : CheckpointReader
        Reads.
    asked : Asked
        The request.
    now_us : int
        When, microseconds of Unix time.
    """

    reader: CheckpointReader
    asked: Asked
    now_us: int

    @cached_property
    def status(self) -> Status | None:
        """The status of the live run."""
        return self.reader.status(self.asked.shard)

    @cached_property
    def inspection(self) -> Inspection:
        """What checkpoint and sinks say."""
        return self.reader.inspection(self.asked.shard)

    @cached_property
    def shards(self) -> Sequence[int]:
        """The shards, where a pipeline in some is shown as a whole: those that have run."""
        if self.asked.shard is not None:
            return ()
        if self.status is not None:
            return [each.shard for each in self.status.shards]
        return [each.shard for each in self.inspection.shards if each.generation]

    @cached_property
    def findings(self) -> Mapping[int | None, Sequence[str]]:
        """What needs attention, by shards; None is the pipeline, or the shard that is asked for."""
        return self.reader.findings(self.shards or [self.asked.shard])

    @property
    def finding_lines(self) -> Sequence[str]:
        """The same in lines."""
        found = []
        for shard, said in self.findings.items():
            found += [f"shard {shard}"] if self.shards and said else []
            found += said
        return found

    @cached_property
    def epochs(self) -> Sequence[EpochLine]:
        """The last epochs of the live run."""
        return self.reader.epochs(self.asked.shard)

    @property
    def pipeline(self) -> str:
        """Its name."""
        return self.status.pipeline if self.status is not None else self.inspection.pipeline
