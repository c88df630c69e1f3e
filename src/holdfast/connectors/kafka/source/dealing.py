"""Pure arithmetic of planning: which task reads which offsets of which partitions."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.connectors.reading.partition_times import OffsetRange

SPANS_PER_CORE = 2
SPAN_ROWS_MIN = 20_000
SPAN_ROWS_ENOUGH = 4_000_000
"""As long as one span a core has no more, it has one: a task begins with connections, and with waiting for them."""


def dealt(ranges: Sequence[OffsetRange], parallelism: int) -> list[tuple[OffsetRange, ...]]:
    """Deal messages to tasks: neighbouring ones, of about as many offsets; large partitions are cut.

    Examples
    --------
    >>> dealt([OffsetRange("a/0", 5, 25_005), OffsetRange("a/1", 0, 15_000)], 4)
    [(OffsetRange(segment='a/0', first=5, last=20005),), (OffsetRange(segment='a/0', first=20005, last=25005), \
OffsetRange(segment='a/1', first=0, last=15000))]
    """
    total = sum(last - first for _, first, last in ranges)
    cores = max(1, parallelism)
    wanted = max(1, min(cores if total <= cores * SPAN_ROWS_ENOUGH else SPANS_PER_CORE * cores, total // SPAN_ROWS_MIN))
    goal = -(-total // wanted)
    tasks: list[tuple[OffsetRange, ...]] = []
    held: list[OffsetRange] = []
    left = goal
    for segment, first, last in ranges:
        while first < last:
            until = min(last, first + left)
            held.append(OffsetRange(segment, first, until))
            left -= until - first
            first = until
            if left == 0:
                tasks.append(tuple(held))
                held, left = [], goal
    return [*tasks, *([tuple(held)] if held else [])]
