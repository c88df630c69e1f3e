"""Sources: how far each is, what it has rejected, and one by one its segments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.display.tables import rejects_text
from holdfast.observe.inspection import SegmentReport
from holdfast.page.html import Child, Html, el, join, link, pages, part, table
from holdfast.page.model import Asked, Moment, Section
from holdfast.page.shards import each_shard
from holdfast.page.steering import source_forms
from holdfast.page.words import UNKNOWN, count, items, mark, rate, span, when
from holdfast.positions import Position
from holdfast.status import SourceStatus, Status

_NUMBERS = ("rows", "rows a second", "left to read", "behind for", "rejected", "segments")


def sources(moment: Moment) -> Iterator[Section]:
    """Yield the parts of the view: all sources, or the segments of one."""
    status, asked = moment.status, moment.asked
    if status is None and moment.shards:
        yield each_shard(moment, "The checkpoint of each shard says how far it has read its segments.")
        return
    if asked.item:
        yield Section("segments", f"Source {asked.item}", _segments(moment, asked.item))
        if status is not None and (why := _rejects(status, asked.item)):
            yield Section("rejects", "Rejected rows", el("p", why))
        return
    if status is None:
        yield Section("sources", "Sources", _reports(moment))
        return
    yield Section("sources", "Sources", _list(status, moment))
    every = [each for source in status.sources if (each := _rejects(status, source.name))]
    yield Section("rejects", "Rejected rows", items(every, "None in this run."))


def _list(status: Status, moment: Moment) -> Html:
    rates, asked = moment.reader.rates(moment.asked.shard), moment.asked
    columns = ("source", "state", *_NUMBERS, "bound") + (("",) if asked.form_token else ())
    rows: list[Sequence[Child]] = []
    for source in status.sources:
        cells: list[Child] = [
            link(source.name, asked.to("sources", source.name)),
            _state(source),
            count(source.rows),
            rate(rates.get(source.name)),
            count(source.lag),
            span(source.lag_s),
            count(source.rejects),
            count(len(source.positions)),
            when(source.bound_us or 0),
        ]
        rows.append([*cells, source_forms(source, asked)] if asked.form_token else cells)
    return table(columns, rows, numbers=_NUMBERS)


def _state(source: SourceStatus) -> Html:
    if source.is_paused:
        return mark("minor", "paused")
    if source.limit_rows_per_s is not None:
        return mark("minor", f"limited to {rate(source.limit_rows_per_s)}")
    return mark("good", "delivers")


def _reports(moment: Moment) -> Html:
    inspection = moment.inspection
    rows: list[Sequence[Child]] = [
        (
            link(report.name, moment.asked.to("sources", report.name)),
            report.problem
            or f"{count(len(report.segments))} segments, {count(sum(s.lag for s in report.segments))} left",
        )
        for report in inspection.sources
    ]
    known = {report.name for report in inspection.sources}
    ends = inspection.decisions[-1].positions if inspection.decisions else {}
    rows += [
        (link(name, moment.asked.to("sources", name)), f"{count(len(at))} segments in the last decision")
        for name, at in ends.items()
        if name not in known
    ]
    return table(("source", "how far"), rows, empty="The checkpoint does not say how far the sources are.")


def _segments(moment: Moment, name: str) -> Html:
    status, asked = moment.status, moment.asked
    found = next((each for each in status.sources if each.name == name), None) if status is not None else None
    if found is not None:
        newest = found.newest or {}
        rows: list[tuple[str, Position | None, Position | None, int | None]] = [
            (segment, at, newest.get(segment), _distance(at, newest.get(segment)))
            for segment, at in found.positions.items()
        ]
        rows += [(segment, None, at, None) for segment, at in newest.items() if segment not in found.positions]
        rows.sort(key=lambda row: -(row[3] or 0))
        shown, page, last = part(len(rows), asked.page)
        cells = [
            (s or "(the only one)", _position(at), _position(end), count(left)) for s, at, end, left in rows[shown]
        ]
        made = table(
            ("segment", "published up to", "newest", "left"), cells, numbers=("published up to", "newest", "left")
        )
        return join([_head(found), made, pages(page, last, ("sources", name), asked.base, shard=asked.shard)])
    report = next((each for each in moment.inspection.sources if each.name == name), None)
    if report is None or not report.segments:
        why = report.problem if report is not None else "Nothing is known of its segments without a live run."
        return el("p", why or "It has none.", class_="empty")
    return _measures(report.segments, asked, name)


def _head(source: SourceStatus) -> Html:
    said = f"{count(source.rows)} rows, {count(source.lag)} left to read, behind for {span(source.lag_s)}. "
    return el("p", said, _state(source))


def _measures(segments: Sequence[SegmentReport], asked: Asked, name: str) -> Html:
    ordered = sorted(segments, key=lambda each: -each.lag)
    shown, page, last = part(len(ordered), asked.page)
    rows: list[Sequence[Child]] = [
        (
            each.place,
            ", ".join(f"{sink} {at:,}" for sink, at in each.held.items()) or UNKNOWN,
            count(each.read),
            count(each.end),
            count(each.lag),
            span(each.lag_s),
        )
        for each in ordered[shown]
    ]
    made = table(("segment", "held", "read", "end", "left", "oldest"), rows, numbers=("read", "end", "left", "oldest"))
    return join([made, pages(page, last, ("sources", name), asked.base, shard=asked.shard)])


def _distance(at: Position, newest: Position | None) -> int | None:
    return newest - at if isinstance(at, int) and isinstance(newest, int) else None


def _position(at: Position | None) -> str:
    return UNKNOWN if at is None else f"{at:,}" if isinstance(at, int) else at


def _rejects(status: Status, name: str) -> str:
    reasons = next((each.reasons.get("rejects", {}) for each in status.sources if each.name == name), {})
    return f"{name}: {rejects_text(reasons)}" if reasons else ""
