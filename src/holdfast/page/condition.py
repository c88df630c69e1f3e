"""How a pipeline is, in a sentence, and the reasons: a pure function of its status, or of what is left of it.

What is bad is what :mod:`holdfast.display.health` says; what is minor is why a run may be slow or lack rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.display.health import health_of
from holdfast.display.tables import wait_text
from holdfast.observe.inspection import Inspection
from holdfast.page.model import Asked, Level, Reason
from holdfast.page.words import count, rate, span
from holdfast.status import SourceStatus, Status

BEHIND_S = 60.0
"""From here on a source is behind, and a key waits long."""


def sentence(status: Status | None, inspection: Inspection | None, reasons: Sequence[Reason]) -> tuple[Level, str]:
    """Return how a pipeline is: the level, and a sentence."""
    worst: Level = "bad" if any(r.level == "bad" for r in reasons) else "minor" if reasons else "good"
    if status is not None:
        if worst == "good":
            told = status.doing or status.state
            return worst, f"All is well: {told}; {rate(status.rows_per_s).replace('/s', ' rows/s')}."
        return worst, _first(reasons)
    if inspection is None or not inspection.owner.generation:
        return "minor", "Nothing has run here yet."
    if reasons:
        return worst, f"No run is alive. {_first(reasons)}"
    return "minor", "No run is alive; nothing is in doubt, and the next start continues."


def _first(reasons: Sequence[Reason]) -> str:
    first = next((each for each in reasons if each.level == "bad"), reasons[0])
    more = len(reasons) - 1
    return first.what + (f" And {more} more." if more else "")


def reasons_of(status: Status, asked: Asked, now_us: int) -> Iterator[Reason]:
    """Yield why a live run is not well, the worst first."""
    found = [*_of_health(status, asked), *_of_sources(status, asked), *_of_operators(status, asked, now_us)]
    found += [*_of_sinks(status, asked)]
    yield from (each for each in found if each.level == "bad")
    yield from (each for each in found if each.level != "bad")


def reasons_left(findings: Sequence[str], asked: Asked) -> Iterator[Reason]:
    """Yield what the checkpoint of a run that is gone, and its sinks, ask for."""
    for line in findings:
        if line.startswith("!"):
            where = "" if asked.shard is None else f"shard {asked.shard}: "
            yield Reason("bad", _capital(where + line[1:].strip()), asked.to("sinks"))


def _capital(line: str) -> str:
    return line[:1].upper() + line[1:]


def _of_health(status: Status, asked: Asked) -> Iterator[Reason]:
    """Yield what is wrong, as probes and metrics have it, and where to look."""
    for line in health_of(status).reasons:
        yield Reason("bad", _capital(line), next((asked.to(*to) for start, to in _LEADS if line.startswith(start)), ""))


_LEADS = (
    ("a system", ("sinks",)),
    ("sink", ("sinks",)),
    ("the rows of epochs", ("sinks",)),
    ("expectation", ("state",)),
    ("no snapshot", ("starts",)),
)
"""How a reason begins, and the view in which it is seen."""


def _of_sources(status: Status, asked: Asked) -> Iterator[Reason]:
    limited = "" if status.time is None else status.time.limited_by
    for source in status.sources:
        href = asked.to("sources", source.name)
        if source.is_paused:
            yield Reason("minor", f"Source {source.name} is paused{_behind(source)}.", asked.to("sources"))
        elif source.limit_rows_per_s is not None and source.lag:
            limit = rate(source.limit_rows_per_s).replace("/s", " rows/s")
            yield Reason("minor", f"Source {source.name} is limited to {limit}{_behind(source)}.", asked.to("sources"))
        elif (source.lag_s or 0) >= BEHIND_S:
            why = f" The run is limited by: {limited}." if limited else ""
            to = asked.to("sinks") if limited.startswith("publish") else href
            yield Reason("minor", f"Source {source.name} is behind{_behind(source)}.{why}", to)
        if source.rejects:
            most = max(source.reasons.get("rejects", {}).items(), key=lambda one: one[1], default=("", 0))[0]
            why = f": {most}" if most else ""
            yield Reason("minor", f"Source {source.name} has rejected {count(source.rejects)} rows{why}", href)


def _behind(source: SourceStatus) -> str:
    if not source.lag:
        return ""
    since = f", for {span(source.lag_s)}" if source.lag_s else ""
    return f", with {count(source.lag)} left to read{since}"


def _of_operators(status: Status, asked: Asked, now_us: int) -> Iterator[Reason]:
    for operator in status.operators:
        for wait in operator.waits[:1]:
            if now_us - wait.since_us >= BEHIND_S * 1e6:
                yield Reason("minor", f"In {operator.name}, {wait_text(wait)}.", asked.to("state"))


def _of_sinks(status: Status, asked: Asked) -> Iterator[Reason]:
    newest = max((sink.epoch for sink in status.sinks), default=0)
    for sink in status.sinks:
        if status.in_doubt and sink.epoch < newest and not sink.pace:
            lacks = newest - sink.epoch
            yield Reason("minor", f"Sink {sink.name} lacks {count(lacks)} epochs that others hold.", asked.to("sinks"))
