"""A status as tables of texts, and as HTML; the terminal draws the same tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from holdfast.display.lines import positions_text, rows_of, stages_of
from holdfast.display.operators import size_text, wait_text
from holdfast.masking import masked
from holdfast.status import FilterStatus, OperatorStatus, SinkStatus, SourceStatus, Status

NUMBERS = frozenset({"lag", "rows", "rejects", "epoch", "state rows", "size", "waiting", "late", "shed", "filtered"})
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
    if status.waits_for:
        yield "yellow", f"tried again soon: {masked(status.waits_for)}"
    if status.error:
        yield "red", masked(status.error)


def grids(status: Status) -> Iterator[Grid]:
    """Yield the tables of a status: sources, filters, stateful operators, sinks; none that would be empty."""
    for columns, rows in (
        (("source", "position", "lag", "rows", "rejects"), [_source(each) for each in status.sources]),
        (("filter", "rows", "filtered"), [_filter(each) for each in status.filters]),
        (
            ("operator", "state rows", "size", "waiting", "late", "shed", "longest wait"),
            [_operator(each) for each in status.operators],
        ),
        (("sink", "kind", "guarantee", "epoch", "rows", "last epoch"), [_sink(each) for each in status.sinks]),
    ):
        if rows:
            yield Grid(columns, tuple(rows))


def counts(status: Status) -> dict[str, str]:
    """Return a line of counts for each node that has any: node's name -> text, for a drawing."""
    lines = {source.name: f"{source.rows:,} rows" for source in status.sources}
    lines |= {each.name: f"{each.filtered:,} filtered" for each in status.filters if each.filtered is not None}
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


def _source(source: SourceStatus) -> tuple[str, ...]:
    return source.name, positions_text(source.positions), _number(source.lag), f"{source.rows:,}", f"{source.rejects:,}"


def _filter(each: FilterStatus) -> tuple[str, ...]:
    return each.name, _number(each.rows), _number(each.filtered)


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
