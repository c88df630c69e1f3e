"""The first view: how the pipeline is, in a sentence; its graph; what limits it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from holdfast.display.drawing import Box
from holdfast.page.condition import reasons_left, reasons_of, sentence
from holdfast.page.drawing import drawing
from holdfast.page.html import Child, Html, el, facts, join, lines, link, table
from holdfast.page.model import Level, Moment, Reason, Section
from holdfast.page.shards import live_shards, noted_shards
from holdfast.page.steering import run_forms, sample_form
from holdfast.page.words import UNKNOWN, count, items, mark, percent, rate, span, when
from holdfast.status import Status
from holdfast.time_use import TimeUse

_HIDDEN = ("gate", "clock", "released")
"""Kinds of nodes of a commit at pts, which nobody has written."""


def now(moment: Moment) -> Iterator[Section]:
    """Yield the parts of the view."""
    status, asked = moment.status, moment.asked
    level, told, reasons = condition(moment)
    yield Section("condition", "", _condition(level, told, reasons))
    if status is None:
        yield Section("left", "What is left of it", _remains(moment))
        if moment.finding_lines:
            yield Section("findings", "What to do", lines(moment.finding_lines))
        if moment.shards:
            yield Section("shards", "Shards", noted_shards(moment.inspection.shards, asked, moment.now_us))
        if tail := moment.reader.log_tail():
            yield Section("log", "The end of its log", lines(tail, class_="log"))
        yield from _graph(moment, None)
        return
    yield Section("numbers", "Now", _numbers(status, moment.now_us))
    yield from _graph(moment, status)
    if status.shards:
        yield Section("shards", "Shards", live_shards(status.shards, asked))
    if status.time is not None:
        yield Section("time", "Where the time goes", _time(status.time))
    if asked.form_token:
        nodes = [box.name for box in moment.reader.boxes() if box.kind not in _HIDDEN]
        yield Section("steering", "Tell the run", join([run_forms(status, asked), sample_form(nodes, asked)]))


def condition(moment: Moment) -> tuple[Level, str, Sequence[Reason]]:
    """Return how the pipeline is: level, sentence, and why."""
    status = moment.status
    if status is not None:
        reasons = [*reasons_of(status, moment.asked, moment.now_us)]
        return (*sentence(status, None, reasons), reasons)
    if (waiting := _of_shard(moment)) is not None:
        return waiting.level, waiting.what, [waiting]
    of = {shard: replace(moment.asked, shard=shard) if moment.shards else moment.asked for shard in moment.findings}
    reasons = [reason for shard, said in moment.findings.items() for reason in reasons_left(said, of[shard])]
    return (*sentence(None, moment.inspection, reasons), reasons)


def _of_shard(moment: Moment) -> Reason | None:
    """Return why a shard does not run while others of a live run do; None where that is not so."""
    shard = moment.asked.shard
    whole = moment.reader.status(None) if shard is not None else None
    found = next((each for each in whole.shards if each.shard == shard), None) if whole is not None else None
    if found is None:
        return None
    why = found.error.splitlines()[0] if found.error else found.doing
    return Reason("bad", f"Shard {shard} does not run, while others may: it is {found.state}{why and f': {why}'}")


def _condition(level: Level, told: str, reasons: Sequence[Reason]) -> Html:
    """Return the sentence, which leads to where its reason is seen, and all reasons where there are several."""
    first = next((each for each in reasons if each.level == level), None)
    said = link(told, first.href) if first is not None and first.href else told
    each = [join([mark(r.level, "●"), " ", link(r.what, r.href) if r.href else r.what]) for r in reasons]
    listed = items(each, "") if len(each) > 1 else None
    return join([el("p", said, class_=f"condition {level}", role="status"), listed])


def _numbers(status: Status, now_us: int) -> Html:
    lags = [source.lag for source in status.sources if source.lag is not None]
    snapshots = status.checkpoints
    return facts(
        {
            "epoch": count(status.epoch) if not status.shards else None,
            "rows": count(status.rows_total),
            "rows a second": rate(status.rows_per_s),
            "left to read": count(sum(lags)) if lags else UNKNOWN,
            "behind for": span(max((s.lag_s for s in status.sources if s.lag_s is not None), default=None)),
            "in doubt": count(status.in_doubt),
            "tried again": count(status.retries),
            "an epoch takes": None if status.time is None else span(status.time.epoch_ms / 1e3),
            "last snapshot": when(snapshots.at_us, now_us) if snapshots is not None and snapshots.at_us else None,
            "running since": when(status.started_at_us, now_us),
        }
    )


def _remains(moment: Moment) -> Html:
    inspection, shards = moment.inspection, moment.shards
    looked_at: Sequence[int | None] = shards or [moment.asked.shard]
    owner, state = inspection.owner, inspection.state
    in_doubt = sum(len(moment.reader.inspection(each).open_epochs) for each in looked_at)
    gone = {True: "alive, but it does not listen here", False: "gone", None: "on another host"}[owner.is_alive]
    supervisor: Mapping[str, Child] = {}
    if inspection.supervisor is not None:
        restarts = count(int(inspection.supervisor.get("restarts", 0)))
        supervisor = {"last restart": f"number {restarts}: the run {inspection.supervisor.get('why', '')}"}
    return facts(
        {
            "last done epoch": None if shards else count(inspection.last_done or None),
            "in doubt": count(in_doubt),
            "generation": None if shards else count(owner.generation),
            "its process": f"{owner.pid} on {owner.host}, {gone}" if owner.generation else None,
            "taken over": when(owner.at_us, moment.now_us) if owner.generation else None,
            "last noted": None if state is None else when(state.at_us, moment.now_us),
            "limited by": None if shards or state is None or state.time is None else state.time.limited_by or None,
            **supervisor,
        }
    )


def _graph(moment: Moment, status: Status | None) -> Iterator[Section]:
    boxes = [*moment.reader.boxes()]
    if not boxes:
        return
    rates = {} if status is None else moment.reader.rates(moment.asked.shard)
    use = status.time if status is not None else moment.inspection.state and moment.inspection.state.time
    shares = {node.name: node.share for node in use.nodes if node.share is not None} if use else {}
    noted = [replace(box, note=_note(box, status, shares)) for box in boxes]
    edges = {} if status is None else _edges(boxes, status, rates)
    troubled = {} if status is None else _trouble(status)
    drawn = drawing(noted, f"the graph of {moment.pipeline}", edges=edges, shares=shares, troubled=troubled)
    yield Section("graph", "The graph", drawn)


def _note(box: Box, status: Status | None, shares: Mapping[str, float]) -> str:
    notes = [percent(shares[box.name]) + " busy"] if shares.get(box.name, 0) >= 0.005 else []
    if status is not None:
        notes += [f"epoch {sink.epoch}" for sink in status.sinks if sink.name == box.name and not status.shards]
        notes += ["paused" for source in status.sources if source.name == box.name and source.is_paused]
        notes += [
            f"{count(o.state_rows)} rows of state" for o in status.operators if o.name == box.name and o.state_rows
        ]
    return ", ".join(notes)


def _edges(boxes: Sequence[Box], status: Status, rates: Mapping[str, float]) -> dict[tuple[str, str], str]:
    """Return what stands on the edges: rows a second and lag behind a source, rows that wait before an operator."""
    sources = {source.name: source for source in status.sources}
    waiting = {operator.name: operator.waiting_rows for operator in status.operators}
    waiting |= {sink.name: sink.waiting_rows for sink in status.sinks}
    edges = {}
    for box in boxes:
        for at in box.inputs:
            before, told = boxes[at], []
            if before.name in sources:
                lag = sources[before.name].lag
                told += [rate(rates.get(before.name))] + ([f"lag {count(lag)}"] if lag else [])
            elif box.role == "sink":
                told.append(rate(rates.get(box.name)))
            if waiting.get(box.name):
                told.append(f"{count(waiting[box.name])} wait")
            edges[before.name, box.name] = ", ".join(each for each in told if each != UNKNOWN)
    return edges


def _trouble(status: Status) -> dict[str, str]:
    found = {source.name: "minor" for source in status.sources if source.is_paused or source.rejects}
    found |= {operator.name: "minor" for operator in status.operators if operator.waits}
    return found | {sink.name: "bad" for sink in status.sinks if status.waits_for and sink.name in status.waits_for}


def _time(use: TimeUse) -> Html:
    told = el("p", "Limited by: ", el("strong", use.limited_by)) if use.limited_by else None
    rows: list[Sequence[Child]] = [
        (node.name, percent(node.share), _ms(node.evaluate_ms), _ms(node.publish_ms)) for node in use.busiest(10)
    ]
    listed = table(
        ("node", "part of an epoch", "evaluate", "publish"),
        rows,
        numbers=("part of an epoch", "evaluate", "publish"),
        empty="no node takes any time",
    )
    return join([told, listed, el("p", f"Means of the last {count(use.epochs)} epochs.", class_="small")])


def _ms(milliseconds: float | None) -> str:
    return UNKNOWN if milliseconds is None else span(milliseconds / 1e3)
