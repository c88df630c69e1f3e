"""The part of a source that cannot be divided which all readers but one have: no rows, and positions that stay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from holdfast.capabilities import offers
from holdfast.connectors.reading.identified import KnownPlace, NumberedSpec
from holdfast.connectors.reading.wrapped import WrappedSpec
from holdfast.limits import ReadLimit
from holdfast.ports import Explanation, Source, Span
from holdfast.positions import SourcePositions


@dataclass(frozen=True)
class EmptyPartSpec(WrappedSpec):
    """Declaration of a source without its rows: arguments and fingerprint are those of the whole.

    Parameters
    ----------
    given : SourceSpec
        The source.
    """

    def open(self, name: str, workspace: str) -> Source:
        """Return the source without opening the one inside."""
        return EmptyPart()

    def obstacle(
        self, name: str, workspace: str, positions: SourcePositions, until: SourcePositions | None = None
    ) -> str:
        """Return nothing: there is nothing to read."""
        return ""

    def explanations(self, name: str, workspace: str, after: int) -> Sequence[Explanation]:
        """Return nothing: who reads the rows has them explained."""
        return ()

    def from_time(self, at_us: int) -> EmptyPartSpec:
        """Return itself."""
        return self

    def up_to(self, before: int, marker: str | None) -> EmptyPartSpec:
        """Return itself."""
        return self

    @property
    def numbering(self) -> str:
        """What of a row its number is."""
        return self.given.numbering if offers(self.given, NumberedSpec) else ""

    def places(self, name: str, workspace: str, until: SourcePositions) -> Iterator[KnownPlace]:
        """Yield nothing."""
        return iter(())


class EmptyPart:
    """A source that has no rows, and has ended."""

    def initial(self) -> SourcePositions:
        """Positions of no segment."""
        return {}

    def latest(self, start: SourcePositions, *, bounded: bool, limit: ReadLimit | None = None) -> SourcePositions:
        """Return where it began."""
        return start

    def freeze(self) -> None:
        """Do nothing."""

    def newest(self) -> SourcePositions | None:
        """Positions of no segment."""
        return {}

    def spans(self, start: SourcePositions, end: SourcePositions, *, parallelism: int) -> Sequence[Span]:
        """Return no span."""
        return ()

    def size_between(self, start: SourcePositions, end: SourcePositions) -> int | None:
        """No bytes."""
        return 0

    def rows_between(self, start: SourcePositions, end: SourcePositions) -> int | None:
        """No rows."""
        return 0

    def read(self, span: Span) -> Iterator[pa.RecordBatch]:
        """Yield nothing."""
        return iter(())

    def committed(self, end: SourcePositions) -> None:
        """Do nothing."""

    def has_ended(self, positions: SourcePositions) -> bool:
        """Return that nothing follows."""
        return True

    def has_passed(self, positions: SourcePositions) -> bool:
        """Return that nothing follows."""
        return True
