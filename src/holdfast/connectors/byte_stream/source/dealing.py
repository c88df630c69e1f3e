"""Pure arithmetic of planning: how many messages of each stream an epoch takes, and which task reads which of them."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.connectors.byte_stream.store.branch import StreamView
from holdfast.ports import Span

SPANS_PER_CORE = 4
SPAN_BYTES_MIN = 2_000_000


def dealt(ranges: Sequence[tuple[str, StreamView, int, int]], parallelism: int) -> list[Span]:
    """Deal messages to tasks: consecutive ones of about as many bytes.

    Parameters
    ----------
    ranges : sequence of (str, StreamView, int, int)
        Segment, stream, first and last position.
    parallelism : int
        Cores.

    Returns
    -------
    list of Span
        The value of each is a tuple of (segment, first, last).
    """
    total = sum(stream.bytes_between(first, last) for _, stream, first, last in ranges)
    wanted = max(1, min(SPANS_PER_CORE * max(1, parallelism), total // SPAN_BYTES_MIN))
    goal = -(-total // wanted) if total else 1
    spans: list[Span] = []
    held: list[tuple[str, int, int]] = []
    rows = size = 0

    def close() -> None:
        nonlocal rows, size
        if held:
            spans.append(Span(tuple(held), rows, size))
        held.clear()
        rows = size = 0

    for segment, stream, first, last in ranges:
        at, left = first, stream.count_between(first, last)
        while left:
            per_message = max(1, stream.bytes_between(at, last) // left)
            count = min(left, max(1, -(-(goal - size) // per_message)))
            end = last if count == left else stream.after(at, count)
            held.append((segment, at, end))
            rows, size = rows + count, size + stream.bytes_between(at, end)
            at, left = end, left - count
            if size >= goal:
                close()
    close()
    return spans
