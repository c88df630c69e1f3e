"""Stateful operators in words: the size of their state, late rows, and which key waits on which input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from holdfast.display.times import utc
from holdfast.status import OperatorStatus, Wait


def state_text(operator: OperatorStatus) -> str:
    """Return sizes and counts of an operator in one line; zero counts are omitted.

    Examples
    --------
    >>> state_text(OperatorStatus("seen", "merge", 12_000, 4_500_000, waiting_rows=3, late=2, counts={"dropped": 1}))
    'state 12,000 rows, 4.5 MB; waiting 3, late 2, dropped 1'
    >>> state_text(OperatorStatus("seen", late=2, reasons={"late": {"below the bound": 2}}))
    'state 0 rows, 0 B; late 2 (below the bound 2)'
    """
    text = f"state {operator.state_rows:,} rows, {size_text(operator.state_bytes)}"
    counts = {"waiting": operator.waiting_rows, "late": operator.late, "shed": operator.shed, **operator.counts}
    some = [f"{what} {count:,}{_why(operator.reasons.get(what, {}))}" for what, count in counts.items() if count]
    return f"{text}; {', '.join(some)}" if some else text


def rejects_text(reasons: Mapping[str, int]) -> str:
    """Return how many rows of a source were rejected, and why.

    Examples
    --------
    >>> rejects_text({"it is not UTF-8": 2, "column 'v' is declared int64": 1})
    "rejects 3 (it is not UTF-8 2, column 'v' is declared int64 1)"
    """
    return f"rejects {sum(reasons.values()):,}{_why(reasons)}"


def _why(reasons: Mapping[str, int]) -> str:
    return f" ({', '.join(f'{reason} {count:,}' for reason, count in reasons.items())})" if reasons else ""


def wait_text(wait: Wait) -> str:
    """Return a wait in one line.

    Examples
    --------
    >>> wait_text(Wait({"origin": "JFK"}, "weather", 1_700_000_000_000_000, waiting_rows=7))
    'origin=JFK waits on weather since 2023-11-14T22:13:20Z, which has sent nothing yet: 7 rows'
    """
    who = " ".join(f"{column}={value}" for column, value in wait.key.items()) or "everything"
    if wait.bound is None:
        reached = "which has sent nothing yet"
    else:
        reached = f"which has come to {utc(wait.bound) if wait.is_time else wait.bound}"
    return f"{who} waits on {wait.input} since {utc(wait.since_us)}, {reached}: {wait.waiting_rows:,} rows"


def wait_lines(waits: Sequence[Wait]) -> Iterator[str]:
    """Yield a line for each input that is waited on and how far it has come: the longest wait, and how many more.

    Examples
    --------
    >>> waits = [Wait({"id": n}, "weather", 1_700_000_000_000_000, 5, 1) for n in range(3)]
    >>> list(wait_lines(waits))
    ['id=0 waits on weather since 2023-11-14T22:13:20Z, which has come to 5: 1 rows; so do 2 more keys']
    """
    alike: dict[tuple[str, int | None], list[Wait]] = {}
    for wait in waits:
        alike.setdefault((wait.input, wait.bound), []).append(wait)
    for first, *others in alike.values():
        more = "key" if len(others) == 1 else "keys"
        yield wait_text(first) + (f"; so do {len(others)} more {more}" if others else "")


def size_text(size_bytes: int) -> str:
    """Return bytes with a unit, three digits or so.

    Examples
    --------
    >>> size_text(0), size_text(999), size_text(4_500_000), size_text(123_456_789_000)
    ('0 B', '999 B', '4.5 MB', '123 GB')
    """
    size, units = float(size_bytes), ["B", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size:.0f} {units[0]}" if units[0] == "B" or size >= 10 else f"{size:.1f} {units[0]}"
