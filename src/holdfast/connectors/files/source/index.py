"""What the time index decides of a file when it is logged: which of its blocks are read, and which rows of them.

Decided once, and durable with the log: a replay, and a planner of another process, read the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from holdfast.connectors.files.source.log import Block, LoggedFile
from holdfast.connectors.files.source.reading import read_parts
from holdfast.connectors.files.source.selection import FilesSelection
from holdfast.connectors.formats import texts
from holdfast.connectors.formats.access import FilePart
from holdfast.connectors.formats.identity import FileIdentity
from holdfast.connectors.reading.bounds import bounds_for_all
from holdfast.connectors.reading.until import shown_timestamp
from holdfast.errors import HoldfastError
from holdfast.store.time_ranges import TimeRange, united

_NEVER = -(2**63)
_SPENT_MAX = 1 << 28
"""Bytes that are read for the index before an epoch is planned with what is known: the first rows should not wait for
all ranges of a large directory."""
_FOOTER = 1 << 18
"""What opening a file for its footer counts for."""


class _Known(NamedTuple):
    """What is known of a block.

    Parameters
    ----------
    range : TimeRange, optional
        Where its timestamps are.
    is_timeless : bool
        Whether it was read, and has none.
    may_be_left : bool
        Whether it need not be read if its timestamps are not wanted.
    bound : int, optional
        The time that it shows its source to have reached.
    """

    range: TimeRange | None = None
    is_timeless: bool = False
    may_be_left: bool = True
    bound: int | None = None


class TimeIndex:
    """The time index of one source, in the process that plans.

    Parameters
    ----------
    spec : FilesSelection
        The declaration, with the times from which and up to which rows are wanted.

    Notes
    -----
    Where a time is set it opens each file to read its footer; where one is set to end at, and the footer does not say
    enough, it reads all rows.
    """

    def __init__(self, spec: FilesSelection) -> None:
        self._spec = spec
        self._spent = 0

    @property
    def has_spent_much(self) -> bool:
        """Whether an epoch should be planned with what is known by now: bytes were read since :meth:`begin_epoch`."""
        return self._spent >= _SPENT_MAX

    def begin_epoch(self) -> None:
        """Forget what was spent."""
        self._spent = 0

    def divided(self, cut: LoggedFile, path: str, identity: FileIdentity) -> LoggedFile:
        """Return a file without the blocks of which every row is before the time from which rows are wanted, and with
        those apart of which none is below the time up to which they are.

        Parameters
        ----------
        cut : LoggedFile
            The file, cut.
        path : str
            Where it lies.
        identity : FileIdentity
            What it is compared with when it is opened.

        Raises
        ------
        Corrupt
            If it is another file by now.
        """
        spec = self._spec
        if spec.timestamp is None or (spec.since is None and spec.before is None and not spec.has_bounds):
            return cut
        read, later, passed_over, reached = list[Block](), list[Block](), 0, list[int]()
        for block, known in self._known(cut, FilePart(path, cut.size, 0, -1, identity)):
            if known.bound is not None:
                reached.append(known.bound)
            is_before = spec.since is not None and known.range is not None and known.range.high < spec.since
            if is_before and known.may_be_left:
                passed_over += 1
                continue
            timed = block._replace(times=known.range)
            if spec.before is not None and known.range is not None and known.range.low >= spec.before:
                later.append(timed)
            else:
                read.append(timed if known.is_timeless else _up_to(timed, spec.before))
        is_owed = bool(later) or any(block.before is not None for block in read)
        return cut._replace(
            blocks=tuple(read),
            passed_over=passed_over,
            later=tuple(later),
            reached=max(reached, default=None),
            by=shown_timestamp(spec) if is_owed else "",
        )

    def due(self, owed: Iterable[Block]) -> Iterator[Block]:
        """Yield what is read now of what earlier runs have left."""
        before = self._spec.before
        for block in owed:
            if before is None:
                yield block
                continue
            low = max(t for t in (block.since, block.times and block.times.low, _NEVER) if t is not None)
            if low < before:
                yield _up_to(block, before)

    def due_count(self, owed: Mapping[tuple[str, int, int], Block]) -> int:
        """Return how many blocks that are; cheap where all of them are."""
        return len(owed) if self._spec.before is None else sum(1 for _ in self.due(owed.values()))

    def _known(self, cut: LoggedFile, whole: FilePart) -> Iterator[tuple[Block, _Known]]:
        spec = self._spec
        ranges: list[TimeRange | None] = [None] * len(cut.blocks)
        if spec.layout.format == "parquet" and cut.blocks:
            column = spec.schema.field(str(spec.timestamp))
            self._spent += _FOOTER
            ranges = texts.of_blocks(whole, column, [(block.start, block.end) for block in cut.blocks])
        for block, range_ in zip(cut.blocks, ranges, strict=True):
            is_wanted = spec.before is not None or spec.has_bounds
            if not is_wanted or (range_ is not None and spec.marker is None):
                yield block, _Known(range_, bound=None if range_ is None or spec.before is None else range_.high)
            else:
                yield block, self._learned(whole._replace(start=block.start, end=block.end), range_)

    def _learned(self, part: FilePart, range_: TimeRange | None) -> _Known:
        """Read a block; rows that are rejected are no reason to leave it out, and a bad one is its reader's to name."""
        spec, column = self._spec, str(self._spec.timestamp)
        self._spent += part.size
        found: list[TimeRange | None] = []
        bounds: list[int] = []
        try:
            for batch in read_parts(spec, (part,)):
                found.append(texts.of_rows([batch], column))
                bounds += bounds_for_all(batch, column, spec.marker) if spec.marker is not None else []
        except HoldfastError:
            return _Known(range_)
        learned = united(each for each in found if each is not None)
        if spec.marker is None and learned is not None:
            bounds.append(learned.high)
        return _Known(learned, learned is None, not spec.rejects, max(bounds, default=None))


def _up_to(block: Block, before: int | None) -> Block:
    """Return a block without its rows at or above a time; as it is where it has none."""
    is_below = before is not None and block.times is not None and block.times.high < before
    return block._replace(before=None if is_below else before)
