"""Sources around a source: what one of them does not do itself is delegated to the source inside.

The same for their declarations, of which everything that is optional is asked by its type: so it stands here once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import pyarrow as pa

from holdfast.capabilities import offers
from holdfast.ports import (
    Bounded,
    Confidential,
    ExplainedSpec,
    Explanation,
    Guarantee,
    Guaranteeing,
    NarrowedSpec,
    PartitionedSpec,
    RecordedStartSpec,
    Source,
    SourceSpec,
)
from holdfast.positions import SourcePositions


@dataclass(frozen=True)
class WrappedSpec:
    """Declaration of a source around another one; whatever it does not say itself, it says of that one.

    Parameters
    ----------
    given : SourceSpec
        The declaration inside.
    """

    given: SourceSpec

    @property
    def kind(self) -> str:
        """Kind of the source."""
        return self.given.kind

    @property
    def schema(self) -> pa.Schema:
        """The columns of its rows."""
        return self.given.schema

    @property
    def timestamp(self) -> str | None:
        """The column that holds event time."""
        return self.given.timestamp

    @property
    def rejects(self) -> bool:
        """Whether malformed rows become rows of the side output."""
        return self.given.rejects

    @property
    def bounded(self) -> bool:
        """Whether it ends."""
        return offers(self.given, Bounded) and self.given.bounded

    @property
    def guarantee(self) -> Guarantee:
        """What it promises for each row."""
        return self.given.guarantee if offers(self.given, Guaranteeing) else Guarantee.EXACTLY_ONCE

    @property
    def partitions(self) -> str:
        """What users call its partitions; empty where it has none."""
        return self.given.partitions if offers(self.given, PartitionedSpec) else ""

    @property
    def sends_secret(self) -> bool:
        """Whether a secret travels to executors."""
        return offers(self.given, Confidential) and self.given.sends_secret

    def arguments(self) -> Mapping[str, Any]:
        """Arguments for display and fingerprint."""
        return self.given.arguments()

    def obstacle(
        self, name: str, workspace: str, positions: SourcePositions, until: SourcePositions | None = None
    ) -> str:
        """Return why reading cannot continue at these positions."""
        return self.given.obstacle(name, workspace, positions, until)

    def reached(self, name: str, workspace: str) -> SourcePositions:
        """Return the latest positions of the source."""
        return self.given.reached(name, workspace)

    def recorded_start(self, name: str, workspace: str) -> SourcePositions | None:
        """Return where reading began."""
        return self.given.recorded_start(name, workspace) if offers(self.given, RecordedStartSpec) else {}

    def narrowed(self, columns: Collection[str]) -> SourceSpec:
        """Return the declaration of the same source whose rows are asked only for these columns."""
        return cast("SourceSpec", replace(self, given=of_columns(self.given, self.columns_inside(columns))))

    def columns_inside(self, columns: Collection[str]) -> Collection[str]:
        """Return the columns of the source inside that are needed where some of its own are asked for."""
        return columns

    def explanations(self, name: str, workspace: str, after: int) -> Sequence[Explanation]:
        """Return what is durable of what its positions mean; nothing where they mean something by themselves."""
        return self.given.explanations(name, workspace, after) if offers(self.given, ExplainedSpec) else ()

    def restore(self, name: str, workspace: str, explanations: Sequence[Explanation]) -> None:
        """Make these durable."""
        assert offers(self.given, ExplainedSpec)
        self.given.restore(name, workspace, explanations)


def of_columns(spec: SourceSpec, columns: Collection[str]) -> SourceSpec:
    """Return the declaration of a source whose rows are asked only for some columns; itself where it reads all."""
    return spec.narrowed(columns) if offers(spec, NarrowedSpec) else spec


class WrappedSource:
    """A source that reads another one, and passes on whatever else it is asked.  Who wraps a source is one of these.

    Parameters
    ----------
    source : Source
        The source inside.
    """

    def __init__(self, source: Source) -> None:
        self.source = source

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "source" not in self.__dict__:  # while it is unpickled there is no source yet
            raise AttributeError(name)
        return getattr(self.source, name)


def innermost_spec(spec: SourceSpec) -> SourceSpec:
    """Return the declaration beneath all wrappers."""
    while isinstance(spec, WrappedSpec):
        spec = spec.given
    return spec


def innermost(source: Source) -> Source:
    """Return the innermost source of all wrappers: the one to ask for optional protocols.

    ``isinstance`` does not see what ``__getattr__`` passes on (from Python 3.12 on).
    """
    while isinstance(source, WrappedSource):
        source = source.source
    return source
