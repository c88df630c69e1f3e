"""Pure arithmetic of planning: how many blocks an epoch takes, and how they are distributed to tasks."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.connectors.files.source.log import Block
from holdfast.limits import EpochRoom

_SPANS_PER_CORE = 4
_SPAN_SIZE_MIN = 2_000_000
_COST_OF_OPENING = 64_000  # bytes that could be read while a file is opened


def within_limits(blocks: Sequence[Block], start: int, room: EpochRoom) -> tuple[int, bool]:
    """Return the end of an epoch from ``start``, and whether a limit (not the end of the log) ended it.

    An epoch takes at least one block, even one that is larger than the limit.

    Examples
    --------
    >>> blocks = [Block("a", 9, 0, 4, 2, 4), Block("a", 9, 4, 9, 2, 5), Block("b", 5, 0, -1, 1, 5)]
    >>> [within_limits(blocks, 0, EpochRoom(*most, None)) for most in ((1, None), (None, 5), (None, 4), (None, None))]
    [(2, True), (3, True), (2, True), (3, False)]
    """
    if room.is_limited:
        for at in range(start, len(blocks)):
            if not room.fits(blocks[at]):
                return at, True
            room.take(blocks[at])
    return len(blocks), len(blocks) > start and room.is_full


def grouped(blocks: Sequence[Block], parallelism: int) -> list[Sequence[Block]]:
    """Deal neighbouring blocks to at most a few tasks per core, of about equal cost; tiny epochs to one task.

    Examples
    --------
    >>> block = Block("a", 9_000_000, 0, -1, None, 9_000_000)
    >>> [len(group) for group in grouped([block] * 5, 1)], [len(group) for group in grouped([block] * 2, 2)]
    ([2, 1, 1, 1], [1, 1])
    """
    if not blocks:
        return []
    costs = [block.size_bytes + _COST_OF_OPENING for block in blocks]
    total = sum(costs)
    wanted = min(len(blocks), _SPANS_PER_CORE * max(1, parallelism), max(1, total // _SPAN_SIZE_MIN))
    groups: list[Sequence[Block]] = []
    first, done = 0, 0
    for at, cost in enumerate(costs):
        done += cost
        if done * wanted >= total * (len(groups) + 1) or len(blocks) - at - 1 <= wanted - len(groups) - 1:
            groups.append(blocks[first : at + 1])
            first = at + 1
    if first < len(blocks):
        groups.append(blocks[first:])
    return groups
