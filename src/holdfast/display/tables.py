"""A status as tables of texts, and as HTML; the terminal draws the same tables.

Stateful operators in words: the size of their state, late rows, and which key waits on which input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from holdfast.display.lines import busiest_of, limit_of, positions_text, rows_of, stages_of, utc
from holdfast.health import CallStatus, ExpectationStatus
from holdfast.masking import masked
from holdfast.status import (
    FilterStatus,
    OperatorStatus,
    ShardStatus,
    SinkStatus,
    SourceStatus,
    Status,
    Wait,
)

NUMBERS = frozenset(
    {
        "lag",
        "rows",
        "rejects",
        "epoch",
        "state rows",
        "size",
        "waiting",
        "late",
        "shed",
        "filtered",
        "shard",
        "restarts",
    }
)
"""Columns of numbers: to be aligned at the right."""

NOT_COUNTED = "-"
"""In place of a number that nobody knows: a lag before the first answer of a source, counts of what Spark evaluates."""


@dataclass(frozen=True)
class Grid:
    """A table of texts.

    Parameters
    ----------
    columns : tuple of str
        Its head.
    rows : tuple of tuple of str
        As many texts in each as there are columns.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, repr=False)
class ShownStatus(Status):
    """A status that a notebook shows as tables."""

    def _repr_html_(self) -> str:
        """Return the counts as tables."""
        return status_html(self)


def headline(status: Status) -> str:
    """Return what comes behind the name and the state of a run: what it does, and its counts."""
    parts = [status.doing] if status.doing else []
    parts += [f"generation {status.generation or '-'}", f"epoch {status.epoch or '-'}", f"{status.rows_total:,} rows"]
    parts += [f"{status.rows_per_s:,.0f} rows/s", f"retries {status.retries}"]
    if status.queue:
        parts.append(f"waiting for the commit thread {status.queue}")
    return "  ".join(parts)


def footlines(status: Status) -> Iterator[tuple[str, str]]:
    """Yield what stands below the tables: (``dim``, ``yellow`` or ``red``, text without secrets)."""
    if status.last_epoch is not None:
        yield "dim", f"last epoch: {rows_of(status.last_epoch)}, {stages_of(status.last_epoch)}"
    if status.time is not None:
        yield from (("dim", line) for line in (busiest_of(status.time), limit_of(status.time)) if line)
    for source in status.sources:
        if source.rescued:
            yield "yellow", masked(rescued_text(source))
    if status.waits_for:
        yield "yellow", f"tried again soon: {masked(status.waits_for)}"
    if status.error:
        yield "red", masked(status.error)


def grids(status: Status) -> Iterator[Grid]:
    """Yield the tables of a status: shards, sources, filters, stateful operators, sinks; none that would be empty."""
    for columns, rows in (
        (("shard", "state", "epoch", "lag", "rows", "restarts", "doing"), [_shard(each) for each in status.shards]),
        (("source", "position", "lag", "rows", "rejects"), [_source(each) for each in status.sources]),
        (("filter", "rows", "filtered"), [_filter(each) for each in status.filters]),
        (
            ("operator", "state rows", "size", "waiting", "late", "shed", "longest wait"),
            [_operator(each) for each in status.operators],
        ),
        (("expectation", "rows", "failed", "of all", "on fail"), [_expectation(each) for each in status.expectations]),
        (("call", "calls", "retries", "failed", "reused", "seconds", "cost"), [_call(each) for each in status.calls]),
        (("sink", "kind", "guarantee", "epoch", "rows", "last epoch"), [_sink(each) for each in status.sinks]),
    ):
        if rows:
            yield Grid(columns, tuple(rows))


def counts(status: Status) -> dict[str, str]:
    """Return a line of counts for each node that has any: node's name -> text, for a drawing."""
    lines = {source.name: f"{source.rows:,} rows" for source in status.sources}
    lines |= {each.name: f"{each.filtered:,} filtered" for each in status.filters if each.filtered is not None}
    lines |= {each.name: f"{each.failed:,} of {each.rows:,} fail" for each in status.expectations}
    lines |= {each.name: f"{each.state_rows:,} rows of state" for each in status.operators}
    return lines | {sink.name: f"{sink.rows:,} rows, epoch {sink.epoch}" for sink in status.sinks}


def status_html(status: Status, drawing: str = "") -> str:
    """Return a status as HTML.

    Parameters
    ----------
    status : Status
        What is shown.
    drawing : str
        HTML between the headline and the tables.

    Examples
    --------
    >>> status_html(Status("trips", state="running", epoch=4, rows_total=10, error="<b> password=x"))[:64]
    '<div><b>trips</b> running  generation -  epoch 4  10 rows  0 row'
    """
    head = f"<div><b>{_text(status.pipeline)}</b> {status.state}  {_text(headline(status))}</div>"
    feet = (f"<div>{_text(line)}</div>" for _, line in footlines(status))
    return "".join((head, drawing, *map(_table, grids(status)), *feet))


def _table(grid: Grid) -> str:
    sides = ["right" if column in NUMBERS else "left" for column in grid.columns]
    head = "".join(f'<th style="text-align:{s}">{_text(c)}</th>' for c, s in zip(grid.columns, sides, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f'<td style="text-align:{s}">{_text(text)}</td>' for text, s in zip(row, sides, strict=True))
        + "</tr>"
        for row in grid.rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _text(text: str) -> str:
    return escape(masked(text))


def _shard(shard: ShardStatus) -> tuple[str, ...]:
    said = (shard.error or "").splitlines()[:1] if shard.state in ("waiting", "failed") else [shard.doing]
    counts = (_number(shard.lag), f"{shard.rows_total:,}", f"{shard.restarts:,}")
    return f"{shard.shard}", shard.state, f"{shard.epoch or NOT_COUNTED}", *counts, masked("".join(said))


def _source(source: SourceStatus) -> tuple[str, ...]:
    return source.name, positions_text(source.positions), _number(source.lag), f"{source.rows:,}", f"{source.rejects:,}"


def _filter(each: FilterStatus) -> tuple[str, ...]:
    return each.name, _number(each.rows), _number(each.filtered)


def _expectation(each: ExpectationStatus) -> tuple[str, ...]:
    of_all = f"{each.failed_total:,} of {each.rows_total:,}"
    return each.name, f"{each.rows:,}", f"{each.failed:,}", of_all, f"{each.on_fail}{' (broken)' * each.is_broken}"


def _call(each: CallStatus) -> tuple[str, ...]:
    counted = (each.calls, each.retries, each.failed, each.reused)
    return each.name, *(f"{number:,}" for number in counted), f"{each.seconds:,.1f}", cost_text(each)


def cost_text(call: CallStatus) -> str:
    """Return what the function of a call reports.

    Examples
    --------
    >>> cost_text(CallStatus("judged", cost={"tokens": 1234.0, "usd": 0.25}))
    'tokens 1,234, usd 0.25'
    """
    return ", ".join(f"{name} {amount_text(amount)}" for name, amount in call.cost.items())


def amount_text(amount: float) -> str:
    """Return an amount of whatever is added up.

    Examples
    --------
    >>> amount_text(1234567.0), amount_text(123456.7), amount_text(0.000125)
    ('1,234,567', '123,456.70', '0.000125')
    """
    if amount % 1 == 0:
        return f"{amount:,.0f}"
    return f"{amount:,.2f}" if abs(amount) >= 1 else f"{amount:.4g}"


def _operator(operator: OperatorStatus) -> tuple[str, ...]:
    numbers = (operator.waiting_rows, operator.late, operator.shed)
    wait = wait_text(operator.waits[0]) if operator.waits else ""
    state = (f"{operator.state_rows:,}", size_text(operator.state_bytes))
    return (operator.name, *state, *(f"{number:,}" for number in numbers), wait)


def _sink(sink: SinkStatus) -> tuple[str, ...]:
    choice = f"staged: {sink.staging}" if sink.last_choice == "staged" and sink.staging else sink.last_choice
    waits = f"{sink.waiting_epochs} epochs, {sink.waiting_rows:,} rows wait" if sink.waiting_epochs else ""
    pace = f"every {sink.pace}" if sink.pace else ""
    shown = ", ".join(filter(None, (choice, pace, waits)))
    return sink.name, sink.kind, sink.guarantee, str(sink.epoch), f"{sink.rows:,}", shown


def _number(number: int | None) -> str:
    return NOT_COUNTED if number is None else f"{number:,}"


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


def rescued_text(source: SourceStatus) -> str:
    """Return how many rows of a source have members that are no column, and which.

    Examples
    --------
    >>> rescued_text(SourceStatus("rides", rescued=3, reasons={"rescued": {"tip": 3, "place.*": 1}}))
    "rides: 3 rows have members that are no column ('tip' 3, 'place.*' 1)"
    """
    which = _why({repr(name): count for name, count in source.reasons.get("rescued", {}).items()})
    return f"{source.name}: {source.rescued:,} rows have members that are no column{which}"


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
