"""Which logged files cannot be read again, in words: the positions of each, its blocks and rows, and what became of it.

Positions count blocks, so a file is a range of them; of a file that is there in part by then only that part is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from holdfast.connectors.files.source.log import Block
from holdfast.connectors.formats.access import FilePart, opened
from holdfast.errors import Corrupt

_NAMED = 20
"""Files that are named, at most; of the others only how many there are, and where the last one lies."""


def what_is_gone(blocks: Sequence[Block], start: int, end: int, part_of: Callable[[Block], FilePart]) -> str:
    """Return which of the files between two positions are not there as they were logged; empty where all are.

    Parameters
    ----------
    blocks : sequence of Block
        The log.
    start, end : int
        Positions.
    part_of : callable
        What a reader of a block needs.

    Raises
    ------
    Unavailable
        If a file cannot be looked at now.
    """
    files = list(_files(blocks, start, end))
    gone = [(low, high, part, why) for low, high, part in files if (why := _why_gone(part_of(part)))]
    if not gone:
        return ""
    named = [
        f"{_positions(low, high)}, {part_of(block).shown} ({_rows(blocks[low:high])}): {why}"
        for low, high, block, why in gone[:_NAMED]
    ]
    if more := gone[_NAMED:]:
        named.append(f"and {len(more)} more, up to {_positions(*more[-1][:2])}, {part_of(more[-1][2]).shown}")
    return f"{len(gone)} of its {len(files)} files are gone, or are not as they were: {'; '.join(named)}."


def _files(blocks: Sequence[Block], start: int, end: int) -> Iterator[tuple[int, int, Block]]:
    """Yield first and last position (exclusive) of each file, and one of its blocks."""
    for _, several in groupby(range(start, min(end, len(blocks))), key=lambda at: blocks[at].name):
        low, *others = several
        yield low, (others[-1] if others else low) + 1, blocks[low]


def _why_gone(part: FilePart) -> str:
    try:
        with opened(part):
            return ""
    except Corrupt as error:
        return error.what.rpartition("logged: ")[2].rstrip(".")


def _positions(low: int, high: int) -> str:
    return f"position {low}" if high == low + 1 else f"positions {low} to {high - 1}"


def _rows(blocks: Sequence[Block]) -> str:
    """Return how many rows blocks have, where that was counted; else which bytes (of Parquet: rows) they are."""
    counts = [block.row_count for block in blocks if block.row_count is not None]
    if len(counts) == len(blocks):
        return f"{sum(counts):,} rows"
    first, last = blocks[0], blocks[-1]
    size = sum(block.size_bytes for block in blocks)
    is_whole = first.start == 0 and last.end in (-1, last.file_size)
    return f"all {size:,} bytes" if is_whole else f"{size:,} bytes, from {first.start:,} on"
