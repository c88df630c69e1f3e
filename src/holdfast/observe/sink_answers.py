"""What the sinks hold: asked of each without opening it, because opening fences.

A sink's answer on an epoch and the ledger's answer on it give the verdict that recovery would reach: the same table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.capabilities import offers
from holdfast.checkpoint.explained import workspace
from holdfast.checkpoint.participation import has_taken_part
from holdfast.checkpoint.schemas import OUT_OF_REACH, noted_schema
from holdfast.commit.ledger import Standing, survey
from holdfast.commit.records import Decided
from holdfast.commit.recovery import VERDICTS, Decision, Verdict
from holdfast.connectors.control.columns import Controlled
from holdfast.errors import Corrupt, Unavailable
from holdfast.graph.event_time import common_unit
from holdfast.graph.graph import Graph
from holdfast.graph.nodes import SinkNode
from holdfast.observe.inspection import (
    BehindReport,
    Inspection,
    SinkAnswer,
    SinkReport,
    TransactionReport,
    TransactionStanding,
)
from holdfast.observe.ledgers import first_line, ledger_of
from holdfast.ports import (
    Expiring,
    Guarantee,
    Held,
    Inspectable,
    OpenTransaction,
    Outcome,
    Sink,
    Staged,
    Store,
    Transactional,
)
from holdfast.shards.naming import sources_place
from holdfast.starts.behind import Behind, behind, ranges_text, unreadable

_EMPTIED = "It has taken part and holds nothing: the next start is refused, since it may be another target by mistake."

NEVER_OPENED = "never opened by this checkpoint: what it holds is not known"

EPOCH_MAX = 2**62
"""Bound of the search, for a sink that claims to hold whatever it is asked about."""


def inspect_sinks(pipeline: Graph, store: Store, inspection: Inspection) -> tuple[SinkReport, ...]:
    """Ask every sink of a pipeline what it holds.

    Parameters
    ----------
    pipeline : Graph
        The graph.
    store : Store
        The checkpoint, for the schemas with which the sinks were opened last.
    inspection : Inspection
        The checkpoint, for the epochs to ask about.

    Notes
    -----
    Sinks are connected and not opened: no run is fenced.  A sink that does not answer is reported as such.
    """
    unit, is_at_pts = common_unit(pipeline.sources), pipeline.commit_at is not None
    asked = [_ask(node, pipeline.name, store, inspection) for node in pipeline.sinks]
    return tuple(replace(each, pts_unit=unit, is_at_pts=is_at_pts) for each in asked)


def sinks_behind(pipeline: Graph, store: Store, checkpoint: Path, inspection: Inspection) -> tuple[BehindReport, ...]:
    """Return the sinks that are behind what was published in them, as the next start would find them.

    Parameters
    ----------
    pipeline : Graph
        The graph: whether its sources can replay what is missing.
    store, checkpoint : Store, Path
        The checkpoint, and its location.
    inspection : Inspection
        With the sinks' answers.  Nothing is said about a live run: it advances while it is inspected.
    """
    if inspection.owner.is_alive or not inspection.spark:
        return ()
    held = {report.name: _resolved(report, inspection) for report in inspection.sinks if report.held is not None}
    finished = inspection.spark[-1].finished
    emptied = [name for name, each in held.items() if each.is_empty and has_taken_part(store, name)]
    reports = [BehindReport(name, 0, finished, "everything", (_EMPTIED,)) for name in emptied]
    try:
        found = behind(checkpoint / inspection.spark[-1].directory, held)
        return (*reports, *(_behind_report(each, pipeline, store, checkpoint) for each in found))
    except (Corrupt, Unavailable):
        return tuple(reports)  # the start says so


def held_when_resolved(pipeline: Graph, inspection: Inspection) -> dict[str, Held] | None:
    """Return what each sink will hold once recovery has resolved what is in doubt; None where one did not answer.

    Of sinks that do not remember what they hold nothing is said.  One that this checkpoint never opened holds nothing
    of it.
    """
    held: dict[str, Held] = {}
    reports = {report.name: report for report in inspection.sinks}
    for node in pipeline.sinks:
        if node.guarantee is not Guarantee.EXACTLY_ONCE or node.kind in OUT_OF_REACH:
            continue
        report = reports.get(node.name)
        if report is None or (report.held is None and report.problem != NEVER_OPENED):
            return None
        held[node.name] = Held() if report.held is None else _resolved(report, inspection)
    return held


def _behind_report(found: Behind, pipeline: Graph, store: Store, checkpoint: Path) -> BehindReport:
    places = partial(workspace, sources_place(checkpoint, pipeline.name))
    obstacles = unreadable([found], found.held.positions, pipeline.sources, places, store)
    return BehindReport(found.sink, found.held.epoch, found.published, ranges_text(found.lost), tuple(obstacles))


def _resolved(report: SinkReport, inspection: Inspection) -> Held:
    """Return what a sink will hold once recovery has published what is decided; it does so only where none is lost."""
    held = report.held
    assert held is not None
    decided = [
        d
        for d in inspection.decisions
        if d.standing is Standing.OPEN and report.name in d.rows and d.epoch > held.epoch
    ]
    if not decided or any(answer.verdict is Verdict.REPLAY for answer in report.answers):
        return held
    revoked = [answer.epoch for answer in report.answers if answer.verdict is Verdict.REVOKE]
    if revoked:
        last = decided[-1]
        decided = [each for each in decided if each.epoch < min(revoked)]
        if not decided:  # one that holds nothing is no new one
            return replace(held, stops=(last.positions,)) if held.is_empty else held
    if held.epoch < decided[0].before.get(report.name, 0):
        return held
    last = decided[-1]
    return replace(held, epoch=last.epoch, positions=last.positions, recent_ends=last.recent_ends)


def highest_held(sink: Sink, at_least: int = 0) -> int:
    """Return the highest epoch that a sink holds, by asking only ``outcome``: what is below a held epoch is held too.

    Parameters
    ----------
    sink : Sink
        Connected.
    at_least : int
        A guess, from which the search starts.

    Raises
    ------
    Unavailable
        If the sink does not answer.

    Notes
    -----
    About ``2 * log2`` of the distance to the guess many questions.
    """

    def holds(epoch: int) -> bool:
        if epoch <= 0:
            return True
        outcome = sink.outcome(epoch)
        if outcome is Outcome.UNKNOWN:
            raise Unavailable(
                f"sink {sink.name!r} does not answer.",
                why="it was asked for an epoch.",
                do="try again.",
                participant=sink.name,
            )
        return outcome is Outcome.PUBLISHED

    low, step = max(at_least, 0), 1
    while not holds(low):
        low, step = max(low - step, 0), step * 2
    high, step = low + 1, 1
    while high < EPOCH_MAX and holds(high):
        low, high, step = high, high + step, step * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _ask(node: SinkNode, pipeline: str, store: Store, inspection: Inspection) -> SinkReport:
    report = SinkReport(node.name, node.kind, node.guarantee.value, pace="" if node.pace is None else str(node.pace))
    if node.kind in OUT_OF_REACH:
        return replace(report, problem=OUT_OF_REACH[node.kind])
    if node.guarantee is Guarantee.AT_LEAST_ONCE:
        return replace(report, problem="keeps no ledger, so it cannot say what it holds")
    try:
        schema = noted_schema(store, node.name)
        if schema is None:
            said = ledger_of(node, pipeline)
            if said is None or said.held.is_empty:
                return replace(report, problem=NEVER_OPENED)
            return replace(report, held=said.held)  # opened with a checkpoint that is lost
        sink = node.spec.connect(node.name, pipeline, schema)
    except Exception as error:  # whatever a driver raises: the other sinks are asked nevertheless
        return replace(report, problem=first_line(error))
    try:
        held, orphans = _inspect(sink, inspection)
        answers, expired = _revoked(sink, store, list(_answers(sink, questions(inspection, node.name))))
        return _with_backlog(
            inspection,
            report,
            staging=sink.staging,
            held=held,
            orphans=orphans,
            answers=tuple(answers),
            expired=expired,
            **_open_in(sink, held, inspection),
            controls=sink.control_counts() if offers(sink, Controlled) else {},
        )
    except Exception as error:
        return replace(report, staging=sink.staging, problem=first_line(error))
    finally:
        sink.close()


def _with_backlog(inspection: Inspection, report: SinkReport, **said: Any) -> SinkReport:
    """Return a report with what the sink said, and what waits for it, if it has a pace."""
    report = replace(report, **said)
    if not report.pace:
        return report
    lacks = {answer.epoch for answer in report.answers if answer.verdict is Verdict.PUBLISH}
    rows = sum(decision.rows.get(report.name, 0) for decision in inspection.decisions if decision.epoch in lacks)
    return replace(report, waiting=tuple(sorted(lacks)), waiting_rows=rows)


def _inspect(sink: Sink, inspection: Inspection) -> tuple[Held, tuple[str, ...] | None]:
    if offers(sink, Inspectable):
        held, staged = sink.inspect()
        return held, tuple(sorted(name for name in staged if _is_orphan(name, held, inspection)))
    epoch = highest_held(sink, inspection.last_done)
    positions = next((d.positions for d in inspection.decisions if d.epoch == epoch), {})
    return Held(epoch=epoch, positions=positions), None


def _open_in(sink: Sink, held: Held, inspection: Inspection) -> dict[str, Any]:
    """Return what is open in the sink's system, and who waits for it."""
    if not offers(sink, Transactional):
        return {}
    found = [TransactionReport(each, _standing(each, held, inspection)) for each in sink.open_transactions()]
    return {"transactions": tuple(found), "waiting_readers": tuple(sink.waiting_readers())}


def _standing(transaction: OpenTransaction, held: Held, inspection: Inspection) -> TransactionStanding:
    if not transaction.task:
        return "left behind" if inspection.owner.is_alive is False else "at work"
    if transaction.is_decided or int(transaction.task.split("/")[2]) in inspection.open_epochs:
        return "decided"
    return "orphan" if _is_orphan(transaction.task, held, inspection) else "at work"


def _is_orphan(staged: str, held: Held, inspection: Inspection) -> bool:
    """Return whether staged rows are orphans: they are of no open decision, and of no run that may be at work."""
    _, generation, epoch, *_ = staged.split("/")
    owner = inspection.owner
    is_at_work = int(generation) >= owner.generation and owner.is_alive is not False and int(epoch) > held.epoch
    return int(epoch) not in inspection.open_epochs and not is_at_work


def questions(inspection: Inspection, sink: str) -> list[tuple[int, Decision]]:
    """Return the epochs to ask a sink about, with the ledger's word: the last done, all open, the one that is planned.

    What Spark has finished is in no doubt; whether the sink holds it follows from positions (:func:`sinks_behind`).
    """
    asked = {
        d.epoch: Decision.COMMIT if d.standing is Standing.OPEN else Decision.DONE
        for d in inspection.decisions
        if sink in d.rows
        and (d.standing is Standing.OPEN or (d.standing is Standing.DONE and d.epoch == inspection.last_done))
    }
    known = max((d.epoch for d in inspection.decisions if d.standing in (Standing.OPEN, Standing.DONE)), default=0)
    planned = max((heads.planned for heads in inspection.spark), default=0)
    finished = max((heads.finished for heads in inspection.spark), default=0)
    if planned > max(known, finished):
        asked[planned] = Decision.NONE
    return sorted(asked.items())


def _answers(sink: Sink, asked: Iterable[tuple[int, Decision]]) -> Iterator[SinkAnswer]:
    for epoch, decision in asked:
        outcome = sink.outcome(epoch)
        yield SinkAnswer(epoch, decision, outcome, VERDICTS[decision, outcome])


def _revoked(sink: Sink, store: Store, answers: Sequence[SinkAnswer]) -> tuple[list[SinkAnswer], tuple[str, ...]]:
    """Return the answers, where staged rows of a decision are gone, and the names of those rows."""
    lacks = [each.epoch for each in answers if (each.decision, each.outcome) == (Decision.COMMIT, Outcome.ABSENT)]
    if not lacks or not offers(sink, Expiring):
        return list(answers), ()
    for entry in survey(store, lacks):
        content, epoch = entry.content, entry.key.epoch
        if entry.standing is not Standing.OPEN or not isinstance(content, Decided):
            continue
        staged = [part for part in content.parts.get(sink.name, ()) if isinstance(part, Staged)]
        gone = sink.expired(staged)
        if gone and sink.outcome(epoch) is Outcome.ABSENT:  # else a run that is alive has published it meanwhile
            verdict = VERDICTS[Decision.COMMIT, Outcome.EXPIRED]
            return [
                replace(each, outcome=Outcome.EXPIRED, verdict=verdict)
                if each.epoch in lacks and each.epoch >= epoch
                else each
                for each in answers
            ], tuple(gone)
    return list(answers), ()
