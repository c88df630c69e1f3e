"""State: what operators keep, who waits on which input since when, and where rows went."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.display.tables import cost_text, size_text
from holdfast.health import CallStatus, ExpectationStatus
from holdfast.page.html import Child, Html, el, join, pages, part, table
from holdfast.page.model import Moment, Section
from holdfast.page.shards import each_shard
from holdfast.page.words import UNKNOWN, count, items, mark, percent, when
from holdfast.status import OperatorStatus, Wait

_NUMBERS = ("rows", "size", "waiting rows", "late", "shed")


def state(moment: Moment) -> Iterator[Section]:
    """Yield the parts of the view."""
    status = moment.status
    if status is None and moment.shards:
        yield each_shard(moment, "Each shard keeps the state of its own keys.")
        return
    report = None if status is not None else moment.inspection.state
    operators = status.operators if status is not None else () if report is None else report.operators
    noted = (
        None
        if report is None
        else el("p", f"As of epoch {report.epoch}, noted ", when(report.at_us, moment.now_us), class_="small")
    )
    yield Section("operators", "Operators with state", _operators(operators, noted))
    waits = [(operator, wait) for operator in operators for wait in operator.waits]
    yield Section("waits", "Who waits, the longest first", _waits(waits, moment))
    yield Section("reasons", "Rows that were late, shed or dropped", _reasons(operators))
    if status is not None and status.expectations:
        yield Section("expectations", "Expectations", _expectations(status.expectations))
    if status is not None and status.calls:
        yield Section("calls", "What calls have cost", _calls(status.calls))
    if status is not None and status.filters:
        rows = [(each.name, count(each.rows), count(each.filtered)) for each in status.filters]
        yield Section("filters", "Filters", table(("filter", "rows", "filtered"), rows, numbers=("rows", "filtered")))
    schemas = [
        (of.operator, f"{of.key or UNKNOWN}", f"{each.name}: {each.columns}")
        for of in moment.inspection.schemas
        for each in of.tables
    ]
    yield Section("tables", "Tables", table(("operator", "key", "table"), schemas, empty="No operator keeps any."))


def _operators(operators: Sequence[OperatorStatus], noted: Html | None) -> Html:
    rows: list[Sequence[Child]] = [
        (
            each.name,
            each.kind,
            count(each.state_rows),
            size_text(each.state_bytes),
            count(each.waiting_rows),
            count(each.late),
            count(each.shed),
            ", ".join(f"{what} {count(number)}" for what, number in each.counts.items()),
        )
        for each in operators
    ]
    made = table(("operator", "kind", *_NUMBERS, "counted"), rows, numbers=_NUMBERS, empty="No operator keeps state.")
    return el("div", noted, made)


def _expectations(several: Sequence[ExpectationStatus]) -> Html:
    rows: list[Sequence[Child]] = [
        (
            each.name,
            each.within,
            mark("bad", "broken") if each.is_broken else mark("good", "met"),
            each.on_fail,
            percent(each.max_fraction),
            f"{count(each.last_failed)} of {count(each.last_rows)}",
            f"{count(each.failed)} of {count(each.rows)}",
            f"{count(each.failed_total)} of {count(each.rows_total)}",
        )
        for each in several
    ]
    numbers = ("may fail", "last epoch", "this run", "in all")
    return table(("expectation", "within", "", "on_fail", *numbers), rows, numbers=numbers)


def _calls(several: Sequence[CallStatus]) -> Html:
    rows: list[Sequence[Child]] = [
        (
            each.name,
            *map(count, (each.calls, each.retries, each.failed, each.reused)),
            f"{each.seconds:,.1f}",
            cost_text(each),
        )
        for each in several
    ]
    numbers = ("calls", "retries", "failed", "reused", "seconds")
    return table(("call", *numbers, "cost"), rows, numbers=numbers)


def _waits(waits: Sequence[tuple[OperatorStatus, Wait]], moment: Moment) -> Html:
    asked = moment.asked
    shown, page, last = part(len(waits), asked.page)
    rows: list[Sequence[Child]] = [
        (
            operator.name,
            " ".join(f"{column}={value}" for column, value in wait.key.items()) or "everything",
            wait.input,
            when(wait.since_us, moment.now_us),
            _bound_cell(wait),
            count(wait.waiting_rows),
        )
        for operator, wait in sorted(waits, key=lambda one: one[1].since_us)[shown]
    ]
    columns = ("operator", "key", "waits on", "since", "which has come to", "rows")
    made = table(columns, rows, numbers=("rows",), empty="Nobody waits.")
    return join([made, pages(page, last, ("state",), asked.base, shard=asked.shard)])


def _bound_cell(wait: Wait) -> Child:
    if wait.bound is None:
        return "nothing yet"
    return when(wait.bound) if wait.is_time else count(wait.bound)


def _reasons(operators: Sequence[OperatorStatus]) -> Html:
    said = [
        f"{each.name}: {count(number)} {what}, {reason}"
        for each in operators
        for what, reasons in each.reasons.items()
        for reason, number in reasons.items()
    ]
    return items(said, "None.")
