"""How the files of one source are divided into segments that can be read alone: by their names, so for ever.

Invariants: a file is of one segment, which its name alone tells; the blocks of all segments stand in one log, so a
position, the ordinal of the next block, means the same to whoever reads a part, and to the whole.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.connectors.files.source.log import Block
from holdfast.positions import SegmentSet, SourcePositions

SEGMENT = "log"
"""The only segment of a source that is not divided; of one that is: up to where it was read before."""

NO_GROUP = "."
"""The segment of the files whose names tell no group."""


@dataclass(frozen=True)
class FileDivision:
    r"""A rule by which a file's name tells its segment.

    Parameters
    ----------
    parts : int
        By the hash of the name: how many segments there are; 0 where they are groups.
    pattern : str, optional
        A regular expression that is searched in the name: what its first group matches is the segment.  None: the first
        directory of the name is.

    Examples
    --------
    >>> FileDivision().segment_of("left/0001.json"), FileDivision().segment_of("0001.json")
    ('left', '.')
    >>> FileDivision(pattern=r"cam(\d+)").segment_of("2024/cam7-0001.json")
    '7'
    >>> FileDivision(parts=4).segment_of("0001.json")
    '3/4'
    """

    parts: int = 0
    pattern: str | None = None

    def segment_of(self, name: str) -> str:
        """Return the segment of a file."""
        if self.parts:
            digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
            return f"{int.from_bytes(digest[:8], 'little') % self.parts}/{self.parts}"
        if self.pattern is None:
            return name.partition("/")[0] if "/" in name else NO_GROUP
        found = re.search(self.pattern, name)
        return (found[1] or NO_GROUP) if found else NO_GROUP

    def argument(self) -> str:
        """Return the rule in a few words, as part of the declaration."""
        return f"{self.parts} by hash" if self.parts else self.pattern or "first directory"


def segment_of(division: FileDivision | None, name: str) -> str:
    """Return the segment of a file of a source that may not be divided."""
    return SEGMENT if division is None else division.segment_of(name)


class BlockIndex:
    """Which blocks of a log are whose: those of some segments, in the order of the log.

    Parameters
    ----------
    blocks : sequence of Block
        The log's; it grows, and what is in it stays where it is.
    division : FileDivision, optional
        How they are divided.
    reads : SegmentSet
        The segments that are looked for.
    """

    def __init__(self, blocks: Sequence[Block], division: FileDivision | None, reads: SegmentSet) -> None:
        self._blocks = blocks
        self._division = division
        self._reads = reads
        self._seen = 0
        self._ordinals: dict[str, list[int]] = {}

    def is_own(self, name: str) -> bool:
        """Return whether a file is of one of the segments."""
        return segment_of(self._division, name) in self._reads

    def ends(self) -> dict[str, int]:
        """Return the position after the last block of each segment that has one."""
        return {segment: ordinals[-1] + 1 for segment, ordinals in self._own().items()}

    def after(self, start: SourcePositions) -> list[int]:
        """Return the ordinals of the blocks that follow positions."""
        return self._in_order({segment: (low_of(start, segment), len(self._blocks)) for segment in self._own()})

    def between(self, start: SourcePositions, end: SourcePositions) -> list[int]:
        """Return the ordinals of the blocks between two positions, of whatever segments these name."""
        own = self._own()
        return self._in_order(
            {segment: (low_of(start, segment), int(at)) for segment, at in end.items() if segment in own}
        )

    def positions_after(self, start: SourcePositions, ordinals: Sequence[int]) -> dict[str, int]:
        """Return the positions after some blocks, which follow these positions."""
        found = {segment: int(at) for segment, at in start.items()}
        for ordinal in ordinals:
            found[segment_of(self._division, self._blocks[ordinal].name)] = ordinal + 1
        return found

    def _in_order(self, ranges: Mapping[str, tuple[int, int]]) -> list[int]:
        found: list[int] = []
        for segment, (low, high) in ranges.items():
            ordinals = self._ordinals[segment]
            found += ordinals[bisect_left(ordinals, low) : bisect_left(ordinals, high)]
        return found if len(ranges) == 1 else sorted(found)

    def _own(self) -> dict[str, list[int]]:
        for ordinal in range(self._seen, len(self._blocks)):
            segment = segment_of(self._division, self._blocks[ordinal].name)
            if segment in self._reads:
                self._ordinals.setdefault(segment, []).append(ordinal)
        self._seen = len(self._blocks)
        return self._ordinals


def low_of(start: SourcePositions, segment: str) -> int:
    """Return where a segment is read next: where it has no position, where the source was read before it was divided.

    Examples
    --------
    >>> low_of({"log": 7, "left": 9}, "left"), low_of({"log": 7}, "right"), low_of({}, "left")
    (9, 7, 0)
    """
    return int(start.get(segment, start.get(SEGMENT, 0)))
