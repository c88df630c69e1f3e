"""Sinks: what each says that it holds, what is in doubt, who waits, and whether the rows add up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.commit.recovery import Decision, Verdict
from holdfast.display.lines import utc
from holdfast.observe.audit_report import audit_lines
from holdfast.observe.inspection import SinkAnswer, SinkReport
from holdfast.observe.transactions import transaction_lines
from holdfast.page.html import Child, Html, el, facts, join, lines, link, table
from holdfast.page.model import Asked, Moment, Section
from holdfast.page.shards import each_shard
from holdfast.page.words import UNKNOWN, count, items, mark, percent, rate, span, when
from holdfast.status import SinkStatus

VERDICTS_SHOWN = 10

_NUMBERS = ("epoch", "rows", "rows a second", "part of an epoch")


def sinks(moment: Moment) -> Iterator[Section]:
    """Yield the parts of the view."""
    status, asked = moment.status, moment.asked
    if status is not None:
        yield Section("publish", "This run", _publishing(moment))
    if moment.shards:
        yield each_shard(
            moment, "What the sinks hold is asked of each shard, which has epochs and a ledger of its own."
        )
        yield from _attention(moment)
        return
    reports = moment.inspection.sinks
    for report in reports:
        yield Section(f"sink-{report.name}", f"What {report.name} says", _report(report, asked))
    if not reports:
        said = "Sinks are asked where the target is known: holdfast dashboard TARGET --checkpoint DIR."
        yield Section("unasked", "What they say", el("p", said, class_="empty"))
    yield from _attention(moment)


def _attention(moment: Moment) -> Iterator[Section]:
    # A live run in shards says in its status what is in doubt: the sinks of all of them are not asked for it.
    if (moment.status is None or not moment.shards) and moment.finding_lines:
        yield Section("findings", "What needs attention", lines(moment.finding_lines))
    yield Section("audit", "Do the rows add up?", lines(audit_lines(moment.reader.audit(moment.asked.shard))))


def _publishing(moment: Moment) -> Html:
    status = moment.status
    assert status is not None
    shares = {} if status.time is None else {node.name: node.share for node in status.time.nodes}
    rates = moment.reader.rates(moment.asked.shard)
    rows: list[Sequence[Child]] = [
        (
            sink.name,
            f"{sink.kind}, {sink.guarantee}",
            count(sink.epoch) if not status.shards else UNKNOWN,
            count(sink.rows),
            rate(rates.get(sink.name)),
            percent(shares.get(sink.name)),
            _freshness(sink),
            _waits(sink, moment.now_us),
        )
        for sink in status.sinks
    ]
    made = table(("sink", "kind", *_NUMBERS, "oldest row that it lacks", "waits"), rows, numbers=_NUMBERS)
    limited = (
        None
        if status.time is None or not status.time.limited_by
        else el("p", "Limited by: ", el("strong", status.time.limited_by))
    )
    again = el("p", mark("bad", "tried again"), " ", status.waits_for) if status.waits_for else None
    return join([again, limited, made])


def _freshness(sink: SinkStatus) -> Child:
    if sink.freshness_s is None:
        return span(sink.stale_s)
    is_stale = sink.stale_s is not None and sink.stale_s > sink.freshness_s
    return mark("bad" if is_stale else "good", f"{span(sink.stale_s)} of {span(sink.freshness_s)}")


def _waits(sink: SinkStatus, now_us: int) -> Child:
    if not sink.waiting_epochs:
        return f"commits every {sink.pace}" if sink.pace else ""
    said = f"{count(sink.waiting_epochs)} epochs, {count(sink.waiting_rows)} rows, the oldest since "
    return el("span", said, when(sink.waiting_since_us, now_us))


def _report(report: SinkReport, asked: Asked) -> Html:
    if report.problem:
        return el("p", mark("minor", "no answer"), " ", report.problem)
    held = report.held
    oldest = max((each.transaction.age_s for each in report.transactions), default=None)
    told = facts(
        {
            "kind": f"{report.kind}, {report.guarantee}",
            "holds everything up to epoch": None if held is None else count(held.epoch or None),
            "opened last by generation": None if held is None or not held.generation else count(held.generation),
            "pts": None if held is None or held.pts is None else utc(held.pts),
            "commits": f"every {report.pace}" if report.pace else None,
            "waits for it": f"{count(len(report.waiting))} epochs, {count(report.waiting_rows)} rows"
            if report.waiting
            else None,
            "open transactions": None
            if oldest is None
            else f"{count(len(report.transactions))}, the oldest for {span(oldest)}",
            "readers that wait": count(len(report.waiting_readers)) if report.waiting_readers else None,
            "orphans": None if not report.orphans else f"{count(len(report.orphans))}, swept by the next run",
        }
    )
    doubts = [_doubt(answer, asked) for answer in report.answers if is_in_doubt(answer)]
    shown: list[Child] = [*doubts[:VERDICTS_SHOWN]]
    shown += [f"and {count(len(doubts) - VERDICTS_SHOWN)} more epochs"] if len(doubts) > VERDICTS_SHOWN else []
    open_in_it = [*transaction_lines(report)]
    return join([told, items(shown, "") if shown else None, lines(open_in_it) if open_in_it else None])


def is_in_doubt(answer: SinkAnswer) -> bool:
    """Return whether ledger and sink have not settled an epoch."""
    return answer.decision is not Decision.DONE or answer.verdict is not Verdict.SKIP


def _doubt(answer: SinkAnswer, asked: Asked) -> Html:
    level = "bad" if answer.verdict in (Verdict.DIVERGED, Verdict.REVOKE) else "minor"
    return el(
        "span",
        mark(level, answer.verdict.name.lower()),
        " ",
        link(f"epoch {answer.epoch}", asked.to("epochs", f"{answer.epoch}")),
        f": ledger {answer.decision.name.lower()}, sink {answer.outcome.name.lower()}. {answer.why}",
    )
