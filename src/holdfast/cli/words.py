"""An inspection and a resolution, in words: plain aligned lines, the same on a terminal and in a pipe."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from holdfast.commit.ledger import Standing
from holdfast.commit.owner import Owner
from holdfast.commit.recovery import Decision, Verdict
from holdfast.display.lines import busiest_of, limit_of, utc
from holdfast.display.tables import rejects_text, state_text, wait_lines
from holdfast.errors import HoldfastError
from holdfast.graph.event_time import TimeUnit
from holdfast.json_values import as_json
from holdfast.observe.changes import change_lines
from holdfast.observe.inspection import DecisionSummary, Inspection, SinkAnswer, SinkReport, StateReport
from holdfast.observe.ledgers import lease_lines
from holdfast.observe.reading import Configuration, source_lines
from holdfast.observe.schemas import schema_lines
from holdfast.observe.shards import shard_lines
from holdfast.observe.time_indexes import time_index_lines
from holdfast.observe.transactions import transaction_lines
from holdfast.ports import Held
from holdfast.positions import Positions
from holdfast.shards.naming import shard_of
from holdfast.starts.behind import ranges_text
from holdfast.starts.rewind_target import Rewound
from holdfast.starts.table import ResumeCase, StartWay
from holdfast.state.timeline import CLOSED

if TYPE_CHECKING:
    from holdfast.cli.resolve import Resolved
    from holdfast.observe.foreseen import Foreseen
    from holdfast.starts.directory import Directory
    from holdfast.starts.plan import Plan, PlannedBeginning, PlannedRecovery

DECISIONS_SHOWN = 10


def inspection_lines(inspection: Inspection) -> Iterator[str]:
    """Say what a checkpoint holds, what its sinks hold, and what has to be done."""
    yield f"checkpoint  {inspection.checkpoint}"
    yield f"pipeline    {inspection.pipeline or 'none: nothing has run here yet'}"
    yield f"generation  {_owner(inspection.owner)}"
    yield f"ledger      {_ledger(inspection)}"
    for decision in [d for d in inspection.decisions if d.standing is not Standing.DONE][-DECISIONS_SHOWN:]:
        yield f"              {_decision(decision)}"
    for heads in inspection.spark:
        yield f"{heads.directory:<10}  planned epoch {heads.planned or '-'}, finished epoch {heads.finished or '-'}"
        if heads.ended:
            yield f"              finished sources: {', '.join(heads.ended)}"
    last = next((d for d in reversed(inspection.decisions) if d.expected), None)
    for name, count in () if last is None else last.expected.items():
        in_epoch = f"{count.failed:,} of {count.rows:,} rows in epoch {last.epoch if last else 0}"
        yield f"expected    {name}: {count.failed_total:,} of {count.rows_total:,} rows failed, {in_epoch}"
    yield from time_index_lines(inspection.time_indexes)
    yield from lease_lines(inspection.lease)
    if (noted := inspection.supervisor) is not None:
        yield f"supervisor  {noted['restarts']} restarts, the last one {utc(noted['at_us'])}: the run {noted['why']}"
    yield from shard_lines(inspection.shards)
    for note in inspection.backfills:
        done = "not done" if note.ended_us is None else f"done {utc(note.ended_us)}"
        where = f"{note.shown} of {', '.join(note.sources)} to {', '.join(note.sinks)}"
        yield f"backfill    {note.name}  {done}: {where}"
    if inspection.state is not None:
        yield from _state(inspection.state)
    for sink in inspection.sinks:
        is_behind = sink.name in {each.sink for each in inspection.behind}
        yield from _sink(sink, inspection.owner, is_behind=is_behind)
    yield from source_lines(inspection.sources)
    yield from schema_lines(inspection.schemas)
    yield from findings(inspection)


def configuration_lines(shown: Configuration) -> Iterator[str]:
    """Say every setting, its value, and where it comes from."""
    width = max(len(one.variable) for one in shown.settings)
    for one in shown.settings:
        of = "" if one.is_setting else ", no setting: for tests, demo and benchmark"
        yield f"{one.variable:<{width}}  {one.value:<12}  {one.whence}{of}"
    for warning in shown.warnings:
        yield f"! {warning}"


def findings(inspection: Inspection) -> Iterator[str]:
    """Say what needs attention, and what to type; nothing when all is well."""
    answers = inspection.answers
    if diverged := sorted({(sink, a.epoch) for sink, a in answers if a.verdict is Verdict.DIVERGED}):
        for sink, epoch in diverged:
            yield f"! diverged: the ledger says that {sink} published epoch {epoch}, and {sink} does not hold it."
        yield "  Do: delete nothing; docs/operations.md, 'It says Diverged'."
    yield from behind_lines(inspection)
    if any(d.standing is Standing.DAMAGED for d in inspection.decisions):
        yield "! a decision cannot be read."
        yield "  Do: delete nothing; docs/operations.md, 'It says Corrupt'."
    if unanswered := [s.name for s in inspection.sinks if s.problem and s.held is None and s.staging]:
        yield f"! {', '.join(unanswered)} did not answer; the answers of the others are still valid."
    if undone := inspection.open_without_reason if inspection.owner.is_alive else inspection.open_epochs:
        epochs = ", ".join(map(str, undone[:DECISIONS_SHOWN]))
        yield f"! decided, and not known to be published everywhere: epoch {epochs}."
        if inspection.owner.is_alive:
            yield "  Nothing to do: a run is alive and publishes them."
        else:
            yield "  Do: start the pipeline again, or: holdfast resolve TARGET --checkpoint " + _checkpoint_option(
                inspection
            )
    for each in inspection.shards:
        if each.in_doubt and each.shard:  # what stands above is of shard 0
            yield f"! shard {each.shard}: {each.in_doubt} epochs are decided, and not known to be published everywhere."
            yield f"  Do: start the pipeline again; holdfast inspect --shard {each.shard} has more"


def _checkpoint_option(inspection: Inspection) -> str:
    """Return how a command is given a checkpoint: that of the pipeline, and which shard."""
    shard = shard_of(inspection.pipeline)[1]
    whole = inspection.checkpoint.removesuffix(f"/shards/{shard}")
    return inspection.checkpoint if whole == inspection.checkpoint else f"{whole} --shard {shard}"


def behind_lines(inspection: Inspection) -> Iterator[str]:
    """Say which sinks have lost what was staged for them, or published, and what the next start does about it."""
    for sink in inspection.sinks:
        if epochs := [str(each.epoch) for each in sink.answers if each.verdict is Verdict.REVOKE]:
            yield f"! expired: rows staged for {sink.name} are gone, of epoch {', '.join(epochs)}, which is decided:"
            yield f"  {', '.join(sink.expired)}"
            yield "  Do: start the pipeline again: it reads that again for this sink, or says why it cannot."
    known = {each.sink for each in inspection.behind}
    for name, answer in inspection.answers:
        if answer.verdict is Verdict.REPLAY and name not in known:
            yield f"! behind: the ledger says that {name} published epoch {answer.epoch}, and {name} does not hold it."
            yield "  Do: start the pipeline again: it replays what is missing, or says why it cannot."
    for each in inspection.behind:
        yield (
            f"! behind: {each.sink} holds everything up to epoch {each.epoch}, and epoch {each.published} was "
            f"published: it lacks {each.lacks}."
        )
        for obstacle in each.obstacles:
            yield f"  {obstacle}"
        if each.obstacles:
            yield "  Do: delete nothing; docs/operations.md, 'It says Diverged'."
        else:
            yield "  Do: start the pipeline again: it first reads that range again, for the sinks that lack it."


def verdict_lines(inspection: Inspection, epoch: int | None = None) -> Iterator[str]:
    """Say what recovery would do, epoch by epoch and sink by sink: the words of ``resolve --dry-run``."""
    yield from _by_epoch((a.epoch, sink, _answer(a)) for sink, a in inspection.answers if epoch in (None, a.epoch))
    for sink_report in inspection.sinks:
        if sink_report.problem:
            yield f"{sink_report.name}: {sink_report.problem}"
    if not inspection.open_epochs:
        yield "no epoch is in doubt."


def warning_lines(warnings: Sequence[str]) -> Iterator[str]:
    """Say what to mind."""
    yield from (f"warning: {warning}" for warning in warnings)


def plan_lines(pipeline: str, plan: Plan, *, shows_kept: bool = False, is_refused: bool = False) -> Iterator[str]:
    """Say what happens to each node and its state, to kept ones if asked; and what a start would do, if it is one."""
    directory, change = plan.directory, plan.change
    if plan.begins is not None:
        yield from _beginning_lines(pipeline, plan.begins)
    elif change is None:
        yield f"pipeline {pipeline!r} continues in {directory.below}; there is nothing to compare it with."
    else:
        yield _continues(pipeline, directory)
    if change is not None:
        yield from change_lines(directory, change, shows_kept=shows_kept)
    for operator, why in plan.bounds_end.items():
        yield f"* no bound but the end of the stream holds downstream of {operator}: {why}"
    if not is_refused:  # what is said next is why
        yield from _start_lines(plan)


def _start_lines(plan: Plan) -> Iterator[str]:
    case = plan.case
    if case is None:
        yield "start    not known while a run is alive, or a sink does not say what it holds: see holdfast inspect"
    else:
        yield from _case_lines(case)
    if plan.recovery is not None:
        yield from _recovery_lines(plan.recovery)


def first_lines(checkpoint: str, pipeline: str, found: Foreseen) -> Iterator[str]:
    """Say that nothing has run, as far as the sinks can be asked."""
    more = ""
    if found.asked.unknown:
        more = "; or, if the checkpoint was lost and one of the sinks that were not asked holds epochs, where they are"
    yield f"nothing has run in {checkpoint} yet: pipeline {pipeline!r} starts from the beginning{more}."
    yield from _unasked_lines(found)


def lost_lines(checkpoint: str, pipeline: str, found: Foreseen, *, shows_refusal: bool = True) -> Iterator[str]:
    """Say that a checkpoint is lost, by what the sinks hold, and how a start would go on."""
    what, nothing = f"checkpoint {checkpoint}", "nothing has run in it, and "
    if found.inspection.pipeline:
        what, nothing = f"Spark's part of checkpoint {checkpoint}", ""
    yield f"{what} is lost, or new: {nothing}sinks of pipeline {pipeline!r} hold epochs."
    yield from _unasked_lines(found)
    if found.plan is not None and found.plan.case is None and found.plan.refusal is None:
        for name, said in found.asked.said.items():
            yield f"sink {name}  {_held(said.held, None)}"
            yield from (f"    {line}" for line in _positions(said.held.positions))
        yield "start    checked at the start, when every sink is asked"
    elif found.plan is not None:
        yield from _start_lines(found.plan)
        refusal = found.plan.refusal
        if refusal is not None and shows_refusal:
            yield f"! the start is refused: {refusal.what}"
            yield f"  Why: {refusal.why}"
            yield f"  Do:  {refusal.do}"


def _unasked_lines(found: Foreseen) -> Iterator[str]:
    yield from (f"sink {name} was not asked: {why}" for name, why in found.asked.unknown.items())


def foreseen_json(found: Foreseen) -> dict[str, Any]:
    """Return what a start would do, for programs, and which sinks could not be asked."""
    return {} if found.plan is None else {**plan_json(found.plan), **unasked_json(found)}


def unasked_json(found: Foreseen) -> dict[str, Any]:
    """Return which sinks could not be asked, and why; nothing where all could."""
    return {"unasked": dict(found.asked.unknown)} if found.asked.unknown else {}


def _recovery_lines(recovery: PlannedRecovery) -> Iterator[str]:
    for source, at in recovery.seek.items():
        shown = ", ".join(f"{name}={place}" if name else str(place) for name, place in at.items()) or "its beginning"
        past = "; what its positions mean comes from the sinks" if source in recovery.restored else ""
        yield f"source {source}  is read from {shown} on{past}"
    for source in recovery.restored:
        if source not in recovery.seek:
            yield f"source {source}  is read from its beginning; what its positions mean comes from the sinks"
    for name, sink in recovery.sinks.items():
        nothing = "holds no epoch as a whole" if sink.segments else "holds nothing"
        holds = f"holds up to epoch {sink.epoch}" if sink.epoch else nothing
        gets = f"of what is read it skips {ranges_text(sink.skips)}" if sink.skips else "it gets all that is read"
        yield f"sink {name}  {holds}: {gets}"
        for segment, ranges in sink.segments.items():
            gets = f"skips {ranges_text(ranges)}" if ranges else "gets all that is read"
            yield f"  segment {segment}  {gets}" if segment else f"  each segment  {gets}, if not one of those below"


def _case_lines(case: ResumeCase) -> Iterator[str]:
    yield f"start    row {case.letter}: the pipeline {case.way.value}"
    if case.way is not StartWay.REFUSE:
        yield f"         state: {case.keeps}"
        yield f"         sources: {case.reads}"
        yield f"         sinks: {case.gives}"


def start_json(case: ResumeCase | None, refusal: HoldfastError | None) -> dict[str, Any]:
    """Return how a start continues, or why it is refused, for programs."""
    start = None
    if case is not None:
        start = {"row": case.letter, "way": as_json(case.way), "says": case.way.value}
        start |= {"state": case.keeps, "sources": case.reads, "sinks": case.gives, "numbers": case.numbers}
    return {"start": start, "refusal": None if refusal is None else refusal.what}


def plan_json(plan: Plan) -> dict[str, Any]:
    """Return what a start would do, for programs."""
    chosen = plan.directory
    directory = {
        "below": chosen.below,
        "previous": chosen.previous,
        "is_changed": chosen.is_changed,
        "reasons": list(chosen.reasons),
    }
    bounds_end = {"bounds_end": dict(plan.bounds_end)} if plan.bounds_end else {}
    begins = {} if plan.begins is None else {"begins": as_json(plan.begins)}
    recovery = {} if plan.recovery is None else {"recovery": as_json(plan.recovery)}
    start = start_json(plan.case, plan.refusal)
    return {"directory": directory, "change": as_json(plan.change), **begins, **start, **recovery, **bounds_end}


def _beginning_lines(pipeline: str, begins: PlannedBeginning) -> Iterator[str]:
    yield f"pipeline {pipeline!r} has not begun; it would begin with {begins.asked}."
    if begins.checkpoint:
        yield f"checkpoint {begins.checkpoint}  the end of epoch {begins.epoch} of {begins.of}; every file is whole"
    for operator, tables in begins.state.items():
        yield f"state of {operator}  " + ", ".join(f"{table} {rows:,} rows" for table, rows in tables.items())


def _continues(pipeline: str, directory: Directory) -> str:
    if not directory.is_changed:
        return f"pipeline {pipeline!r} continues in {directory.below}, with all its state."
    return f"pipeline {pipeline!r} has changed: it continues in {directory.below}, from the end of the last epoch."


def open_lines(inspection: Inspection) -> Iterator[str]:
    """Say what comes before anything else: decided epochs that are not published everywhere."""
    if inspection.open_epochs:
        epochs = ", ".join(map(str, inspection.open_epochs))
        yield f"first  what is decided and not published everywhere yet is: epochs {epochs}; where a sink refuses a row"
        yield "       of them: holdfast resolve --reject-rows"


def rewind_lines(pipeline: str, rewound: Rewound) -> Iterator[str]:
    """Say what a rewind withdraws, where state comes from, and where the pipeline is then."""
    verb = "is withdrawn" if rewound.epoch else "would be withdrawn"
    for name, each in rewound.sinks.items():
        since = f"of {each.epoch_count} epochs after epoch {each.epoch}"
        which = "that differ from what they were then" if each.is_recomputed else since
        yield f"{name}  {each.row_count:,} rows {which}: {verb}"
    for name in rewound.absent:
        left = "not in the graph: it keeps what it holds"
        yield f"{name}  {left}; after epoch {rewound.to}, it is refused if it is put back"
    for name in rewound.left_out:
        yield f"{name}  left out: what it holds from after epoch {rewound.to} stays, and the next graph makes it again:"
        yield "       it is there twice, unless the sink is emptied with its ledger and filled by backfill=True; until"
        yield "       then a start refuses the sink under this name"
    if rewound.snapshot is not None:
        since = "by this graph, which has published them: their rows stay as they are"
        again = f"; {rewound.replayed} epochs after it are evaluated again {since}" if rewound.replayed else ""
        source = "journal, at the end" if rewound.is_from_journal else "snapshot"
        yield f"state  from the {source} of epoch {rewound.snapshot}{again}"
    for line in _positions(rewound.positions):
        yield f"source  {line}"
    if rewound.epoch:
        yield f"{pipeline} is back at the end of epoch {rewound.to}; the rewind itself is epoch {rewound.epoch}."
        yield "The next run continues from here."


def resolved_lines(
    pipeline: str,
    resolved: Resolved,
    epoch: int | None,
    pts_unit: TimeUnit | None,
    *,
    is_at_pts: bool = False,
) -> Iterator[str]:
    """Say what recovery did, where the pipeline is now, and how its next start continues."""
    resumption = resolved.resumption
    done = [each for each in resumption.resolved if epoch in (None, each.epoch)]
    said = "ledger {}, sink {} -> {}"
    yield from _by_epoch(
        (e.epoch, e.sink, said.format(e.decision.name.lower(), e.outcome.name.lower(), _done(e.verdict))) for e in done
    )
    if not any(each.decision is Decision.COMMIT for each in resumption.resolved):
        yield "no epoch was in doubt."
    for sink, held in resumption.held.items():
        yield f"{sink} {_held(held, pts_unit, is_at_pts=is_at_pts)}"
    then = "The next run continues from here." if resolved.refusal is None else "The next start is refused."
    yield f"{pipeline} is resolved, as generation {resumption.generation}. {then}"
    if resolved.case is not None:
        yield from _case_lines(resolved.case)


def _by_epoch(said: Iterable[tuple[int, str, str]]) -> Iterator[str]:
    """Say something of each epoch in each sink: (epoch, sink, what); of many epochs in a row at once."""
    several = list(said)
    if len({epoch for epoch, _, _ in several}) <= DECISIONS_SHOWN:
        yield from (f"epoch {epoch}, {sink}: {what}" for epoch, sink, what in several)
        return
    for (sink, what), alike in groupby(sorted(several, key=itemgetter(1, 0)), key=itemgetter(1, 2)):
        epochs = [epoch for epoch, _, _ in alike]
        shown = f"epoch {epochs[0]}" if len(epochs) == 1 else f"epochs {epochs[0]} to {epochs[-1]}"
        yield f"{shown}, {sink}: {what}"


def _owner(owner: Owner) -> str:
    if not owner.generation:
        return "none has run here yet"
    alive = {True: ", alive", False: ", gone", None: ""}[owner.is_alive]
    return f"{owner.generation}, taken {utc(owner.at_us)} by {owner.host}, process {owner.pid}{alive}"


def _ledger(inspection: Inspection) -> str:
    counts = dict.fromkeys(Standing, 0)
    for decision in inspection.decisions:
        counts[decision.standing] += 1
    if not inspection.decisions:
        return "empty (with one sink, the sink's own ledger row is the decision)"
    parts = [f"last done epoch {inspection.last_done or '-'}"]
    parts += [f"{count} {standing.name.lower()}" for standing, count in counts.items() if count]
    return ", ".join(parts)


def _decision(decision: DecisionSummary) -> str:
    rows = ", ".join(
        f"{sink} {count:,} rows {'carried' if sink in decision.carried else 'staged'}"
        for sink, count in decision.rows.items()
    )
    head = f"epoch {decision.epoch} of generation {decision.generation}: {decision.standing.value}"
    if decision.rewound_to is not None:
        return f"{head}; a rewind to epoch {decision.rewound_to} of {', '.join(sorted(decision.rows))}"
    return f"{head}; {rows}" if rows else head


def _sink(sink: SinkReport, owner: Owner, *, is_behind: bool) -> Iterator[str]:
    head = f"sink {sink.name}  {sink.kind}, {sink.guarantee}"
    yield f"{head}, stages by: {sink.staging}" if sink.staging else head
    if sink.problem:
        yield f"  not asked: {sink.problem}" if not sink.staging else f"  no answer: {sink.problem}"
        return
    if sink.held is not None:
        yield f"  {_held(sink.held, sink.pts_unit, is_at_pts=sink.is_at_pts)}"
        for line in _positions(sink.held.positions):
            yield f"    {line}"
    if sink.controls:
        schema, partition = sink.controls.get("schema", 0), sink.controls.get("partition", 0)
        yield f"  control rows: {schema:,} changed its columns, {partition:,} dropped partitions"
    if sink.orphans:
        count = len(sink.orphans)
        more = " ..." if count > 3 else ""
        named = ", ".join(sink.orphans[:3])
        yield f"  {count} orphan{'s' if count > 1 else ''}, swept by the next run: {named}{more}"
    yield from (f"  {line}" for line in transaction_lines(sink))
    if sink.pace:
        yield f"  commits every {sink.pace}; {_backlog(sink)}"
    for answer in sink.answers:
        if answer.epoch in sink.waiting:
            continue
        if answer.decision is Decision.NONE and owner.is_alive:
            yield f"  epoch {answer.epoch}: at work"
        elif answer.decision is Decision.NONE and is_behind:
            continue  # what follows in this sink is reported below
        elif answer.decision is not Decision.DONE or answer.verdict is not Verdict.SKIP:
            yield f"  epoch {answer.epoch}: {_answer(answer)}"


def _backlog(sink: SinkReport) -> str:
    if not sink.waiting:
        return "nothing waits for it"
    first, last = sink.waiting[0], sink.waiting[-1]
    epochs = f"epoch {first} waits" if first == last else f"epochs {first} to {last} wait"
    return f"{epochs} for it in the ledger, {sink.waiting_rows:,} rows"


def _state(report: StateReport) -> Iterator[str]:
    if report.problem:
        yield f"state       {report.problem}"
        return
    what = "state" if report.operators or report.rejects else "time "
    yield f"{what}       as of epoch {report.epoch} of generation {report.generation}, noted {utc(report.at_us)}"
    if report.time is not None:
        yield from (f"  {line}" for line in (busiest_of(report.time), limit_of(report.time)) if line)
    for source, reasons in report.rejects.items():
        yield f"  {source}  {rejects_text(reasons)}"
    for operator in report.operators:
        yield f"  {operator.name}  {operator.kind}, {state_text(operator)}"
        yield from (f"    {line}" for line in wait_lines(operator.waits))


def _answer(answer: SinkAnswer) -> str:
    verdict = {
        Verdict.ABORT: "nothing of it is visible; it is produced again",
        Verdict.SKIP: "it is there; nothing to write",
        Verdict.PUBLISH: "it will be published, from the decision",
        Verdict.REPLAY: "the sink is behind; what it lacks is replayed by the next start",
        Verdict.REVOKE: "its staged rows are gone; the next start reads the epoch again for it",
        Verdict.ASK: "ask again",
        Verdict.DIVERGED: "DIVERGED, a person decides",
    }[answer.verdict]
    words = f"ledger {answer.decision.name.lower()}, sink {answer.outcome.name.lower()} -> {verdict}."
    return f"{words} {answer.why}"


def _done(verdict: Verdict) -> str:
    done = {
        Verdict.PUBLISH: "published",
        Verdict.SKIP: "was there already",
        Verdict.ABORT: "dropped",
        Verdict.REPLAY: "behind: the next start replays what it lacks",
        Verdict.REVOKE: "revoked, as its staged rows are gone: the next start reads the epoch again",
    }
    return done.get(verdict, verdict.name.lower())


def _held(held: Held, pts_unit: TimeUnit | None, *, is_at_pts: bool = False) -> str:
    if not held.epoch:
        return "holds nothing yet" if held.is_empty else "holds rows of some segments, and no epoch as a whole"
    generation = f", opened last by generation {held.generation}" if held.generation else ""
    if is_at_pts and held.pts is not None:
        upto = f"up to epoch {held.epoch}{generation}"
        if held.pts == CLOSED:
            return f"holds everything of every input: all have ended, {upto}"
        return f"holds exactly what lies before {_pts(held.pts, pts_unit)}, of every input, {upto}"
    pts = f", pts {_pts(held.pts, pts_unit)}" if held.pts is not None else ""
    return f"holds everything up to epoch {held.epoch}{generation}{pts}"


def _pts(pts: int, unit: TimeUnit | None) -> str:
    """Return the minimum timestamp over the inputs in words; BIGINT ticks as they are, their unit is unknown."""
    return (
        utc(pts, is_exact=True)
        if unit is TimeUnit.MICROSECONDS
        else f"{pts:,} ticks"
        if unit is TimeUnit.TICKS
        else str(pts)
    )


def _positions(positions: Positions) -> Sequence[str]:
    return [
        f"{source}  "
        + "  ".join(f"{segment}={position}" if segment else str(position) for segment, position in at.items())
        for source, at in positions.items()
    ]
