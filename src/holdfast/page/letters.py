"""Dead letters: rows that were isolated, why, and their replay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.masking import masked_json
from holdfast.page.html import Child, Html, el, join, pages, part, table
from holdfast.page.model import Asked, Moment, Section
from holdfast.page.steering import form
from holdfast.page.words import count, items, when

VALUE_MAX = 200
"""Characters of a value that are shown."""

_REPLAYABLE = ("left out", "added, not sent yet")


def letters(moment: Moment) -> Iterator[Section]:
    """Yield the parts of the view."""
    asked, found = moment.asked, moment.reader.letters(moment.asked.shard)
    waiting = [each for each in found if each["standing"] in _REPLAYABLE]
    yield Section("sum", "Dead letters", _sum(found, waiting, asked))
    if found:
        shown, page, last = part(len(found), asked.page)
        listed = _list(found[shown], asked, moment.now_us)
        yield Section("letters", "One by one", join([listed, pages(page, last, ("letters",), asked.base)]))


def _sum(found: Sequence[Mapping[str, Any]], waiting: Sequence[object], asked: Asked) -> Html:
    reasons: dict[str, int] = {}
    for each in found:
        reason = f"{each['error'].get('kind', '')}: {each['error'].get('what', '')}"
        reasons[reason] = reasons.get(reason, 0) + 1
    most = sorted(reasons.items(), key=lambda one: -one[1])
    said = el("p", f"{count(len(found))} dead letters, {count(len(waiting))} of them not sent again.")
    shard = "" if asked.shard is None else f"{asked.shard}"
    label = f"Replay all {count(len(waiting))}"
    all_of_them = form("replay", label, asked, shard=shard) if waiting and asked.form_token else None
    why = items([f"{count(number)} times {reason}" for reason, number in most[:20]], "No row was isolated.")
    note = el(
        "p", "A replay is recorded, and done by the next start; so it waits until no run is alive.", class_="small"
    )
    return join([said, why, all_of_them, note if waiting else None])


def _list(found: Sequence[Mapping[str, Any]], asked: Asked, now_us: int) -> Html:
    columns = ("shard", "letter", "epoch", "when", "standing", "why", "row", "")
    first = 0 if any("shard" in each for each in found) else 1
    rows = [_line(each, asked, now_us)[first:] for each in found]
    return table(columns[first:], rows, numbers=("shard", "epoch"))


def _line(of: Mapping[str, Any], asked: Asked, now_us: int) -> Sequence[Child]:
    """Return the cells of a letter, its shard first."""
    row, error = masked_json(of["row"]), of["error"]
    shard = f"{of.get('shard', '')}"
    can = bool(asked.form_token) and of["standing"] in _REPLAYABLE
    return (
        shard,
        str(of["name"]),
        count(of["epoch"]),
        when(int(of["at_us"]), now_us),
        str(of["standing"]),
        f"{error.get('kind', '')}: {error.get('what', '')} {error.get('why', '')}",
        join([el("div", el("b", str(column)), f" {_cut(value)}") for column, value in row.items()]),
        form("replay", "Replay", asked, letter=str(of["name"]), shard=shard) if can else "",
    )


def _cut(value: object) -> str:
    said = f"{value}"
    return said if len(said) <= VALUE_MAX else said[: VALUE_MAX - 1] + "…"
