"""Epochs: the last ones by stage, and the story of one: what happened, what it read, who holds it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from holdfast.commit.ledger import Standing
from holdfast.commit.transaction import Event, State
from holdfast.page.details import SourceSpan
from holdfast.page.drawing import CHART_EPOCHS, chart, legend
from holdfast.page.html import Child, Html, el, facts, join, link, pages, part, table
from holdfast.page.model import Asked, Moment, Section
from holdfast.page.shards import each_shard
from holdfast.page.sinks import is_in_doubt
from holdfast.page.words import count, items, mark, span, when
from holdfast.time_use import EpochLine

_STAGES = ("plan", "evaluate", "decide", "publish")
SINKS_SHOWN = 10
"""Sinks of a decision in a line; the epoch's own view has all."""

_NUMBERS = ("epoch", "rows", "took", "waited before", *_STAGES)


def epochs(moment: Moment) -> Iterator[Section]:
    """Yield the parts of the view: all epochs, or one."""
    asked = moment.asked
    if moment.shards:
        yield each_shard(moment, "Each shard counts its own epochs.")
        return
    if asked.item:
        yield from _one(moment, int(asked.item))
        return
    known = moment.epochs
    if known:
        bars = [(_tip(line), asked.to("epochs", f"{line.epoch}"), line.stages_s) for line in known[-CHART_EPOCHS:]]
        yield Section(
            "chart",
            f"The last {count(len(bars))} epochs" if len(bars) > 1 else "The last epoch",
            join([legend(), el("div", chart(bars), class_="scroll", tabindex=0)]),
        )
        yield Section("all", "All that are listed", _canvas(asked))
        yield Section("list", "One by one, the newest first", _list(known, moment))
    yield Section("ledger", "The ledger of the checkpoint", _ledger(moment))


def _tip(line: EpochLine) -> str:
    stages = ", ".join(f"{stage} {span(line.stages_s.get(stage))}" for stage in _STAGES if stage in line.stages_s)
    return f"epoch {line.epoch}: {count(line.rows)} rows, {span(line.took_s)} ({stages})"


def _canvas(asked: Asked) -> Html:
    """Return what the browser draws into, where it runs scripts; without, the section says what it would show."""
    said = el("p", "With scripts, all epochs of the run are drawn here; the list below has them, too.", class_="small")
    return el("div", said, class_="plot", data_series=asked.to("epochs.json"))


def _list(known: Sequence[EpochLine], moment: Moment) -> Html:
    asked = moment.asked
    shown, page, last = part(len(known), asked.page)
    newest = len(known) - (shown.start or 0)
    rows: list[Sequence[Child]] = [
        (
            link(f"{line.epoch}", asked.to("epochs", f"{line.epoch}")),
            count(line.rows),
            span(line.took_s),
            span(line.wait_s),
            *(span(line.stages_s.get(stage)) for stage in _STAGES),
            when(line.ended_us, moment.now_us),
            _slowest(line),
        )
        for line in reversed(known[max(0, newest - (shown.stop - (shown.start or 0))) : newest])
    ]
    made = table((*_NUMBERS, "ended", "slowest sink"), rows, numbers=_NUMBERS)
    return join([made, pages(page, last, ("epochs",), asked.base, shard=asked.shard)])


def _slowest(line: EpochLine) -> str:
    sinks = {name: seconds for name, seconds in line.sinks_s.items() if not name.startswith("(")}
    if not sinks:
        return ""
    name, seconds = max(sinks.items(), key=lambda one: one[1])
    return f"{name} {span(seconds)}"


def _ledger(moment: Moment) -> Html:
    asked, inspection = moment.asked, moment.inspection
    rows: list[Sequence[Child]] = [
        (
            link(f"{each.epoch}", asked.to("epochs", f"{each.epoch}")),
            count(each.generation),
            mark(
                "good" if each.standing is Standing.DONE else "minor" if each.standing is Standing.OPEN else "bad",
                each.standing.value,
            ),
            _rows(each.rows),
        )
        for each in [*reversed(inspection.decisions)][:100]
    ]
    empty = "It is empty: with one sink, the sink's own row is the decision."
    return table(("epoch", "generation", "standing", "rows"), rows, numbers=("epoch", "generation"), empty=empty)


def _rows(of: Mapping[str, int]) -> str:
    more = f", and {count(len(of) - SINKS_SHOWN)} more sinks" if len(of) > SINKS_SHOWN else ""
    return ", ".join(f"{sink} {count(rows)}" for sink, rows in [*of.items()][:SINKS_SHOWN]) + more


def _one(moment: Moment, epoch: int) -> Iterator[Section]:
    asked = moment.asked
    details = moment.reader.details(epoch, asked.shard)
    line = next((each for each in moment.epochs if each.epoch == epoch), None)
    decision = next((each for each in moment.inspection.decisions if each.epoch == epoch), None)
    yield Section(
        "epoch",
        f"Epoch {epoch}",
        join(
            [
                facts(
                    {
                        "ended": None if line is None else when(line.ended_us, moment.now_us),
                        "planned": None if details.planned_us is None else when(details.planned_us, moment.now_us),
                        "rows": None if line is None else count(line.rows),
                        "took": None if line is None else span(line.took_s),
                        "ledger": None if decision is None else decision.standing.value,
                        "decided by generation": None if decision is None else count(decision.generation),
                        "goes back to epoch": None
                        if decision is None or decision.rewound_to is None
                        else count(decision.rewound_to),
                    }
                ),
                _neighbours(epoch, asked),
            ]
        ),
    )
    yield Section("story", "What happened", _story(moment, epoch))
    if line is not None:
        yield Section("stages", "Where its time went", _stages(line))
    answers = [
        (report.name, each) for report in moment.inspection.sinks for each in report.answers if each.epoch == epoch
    ]
    told = [
        el(
            "span",
            mark("minor" if is_in_doubt(each) else "good", each.verdict.name.lower()),
            f" sink {name}: ledger {each.decision.name.lower()}, sink {each.outcome.name.lower()}. {each.why}",
        )
        for name, each in answers
    ]
    holds = [
        el("span", mark("good", "held"), f" {report.name} holds everything up to epoch {report.held.epoch}")
        for report in moment.inspection.sinks
        if report.held is not None and report.held.epoch >= epoch and report.name not in {name for name, _ in answers}
    ]
    yield Section("sinks", "What the sinks say of it", items([*told, *holds], "No sink was asked about it."))
    for read in details.spans:
        yield Section(f"read-{read.source}", f"What it read of {read.source}", _read(read))


def _neighbours(epoch: int, asked: Asked) -> Html:
    before = link("the epoch before", asked.to("epochs", f"{epoch - 1}"), rel="prev") if epoch > 1 else None
    return el("p", before, " ", link("the next one", asked.to("epochs", f"{epoch + 1}"), rel="next"), class_="small")


def _story(moment: Moment, epoch: int) -> Html:
    rows: list[Sequence[Child]] = [
        (
            when(line.at_us),
            el("span", line.event.lower(), title=_meaning(Event, line.event)),
            el("span", line.after.lower().replace("_", " "), title=_meaning(State, line.after)),
            line.participant,
            line.detail,
        )
        for line in moment.reader.details(epoch, moment.asked.shard).story
    ]
    empty = "Only a live run has the story of an epoch, of its last ones. The sinks and the ledger tell below."
    return table(("when", "event", "then it is", "sink", "details"), rows, empty=empty)


def _meaning(kind: type[Event] | type[State], name: str) -> str:
    found = kind.__members__.get(name.upper())
    return "" if found is None else str(found.value)


def _stages(line: EpochLine) -> Html:
    rows: list[Sequence[Child]] = [(stage, span(seconds)) for stage, seconds in line.stages_s.items()]
    rows += [
        (f"in {name}", span(seconds)) for name, seconds in sorted(line.sinks_s.items(), key=lambda one: -one[1])[:20]
    ]
    return table(("stage", "time"), rows, numbers=("time",))


def _read(read: SourceSpan) -> Html:
    moved = [*read.end.items()]
    rows: list[Sequence[Child]] = [
        (segment or "(the only one)", read.start.get(segment, "its beginning"), at) for segment, at in moved[:100]
    ]
    more = f"and {count(len(moved) - 100)} more segments" if len(moved) > 100 else None
    made = table(("segment", "from", "to"), rows, numbers=("from", "to"), empty="Nothing.")
    places: list[Child] = [*read.places]
    if read.place_count > len(read.places):
        places.append(f"and {count(read.place_count - len(read.places))} more")
    return join([made, more, items(places, "") if places else None])
