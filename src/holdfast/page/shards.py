"""Shards: how each is, and where a view of its own is; what only a shard has is in no view of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from holdfast.observe.shards import ShardReport
from holdfast.page.html import Child, Html, el, join, link, pages, part, table
from holdfast.page.model import Asked, Moment, Section
from holdfast.page.words import UNKNOWN, count, mark, rate, when
from holdfast.status import ShardStatus

_FAILING = ("waiting", "failed")


def each_shard(moment: Moment, what: str) -> Section:
    """Return the links to the view of each shard, where that of the whole would be of shard 0 alone.

    Parameters
    ----------
    moment : Moment
        The pipeline as a whole.
    what : str
        What each has of its own.
    """
    asked = moment.asked
    shown, page, last = part(len(moment.shards), asked.page)
    parts = (asked.view, asked.item) if asked.item else (asked.view,)
    links = [link(f"shard {each}", replace(asked, shard=each).to(*parts)) for each in moment.shards[shown]]
    listed = el("ul", *(el("li", each) for each in links))
    return Section("of-shards", "Shard by shard", join([el("p", what), listed, pages(page, last, parts, asked.base)]))


def live_shards(shards: Sequence[ShardStatus], asked: Asked) -> Html:
    """Return the shards of a live run as a table."""
    shown, page, last = part(len(shards), asked.page)
    rows: list[Sequence[Child]] = [
        (
            link(f"{each.shard}", asked.to(shard=each.shard)),
            mark("bad" if each.state in _FAILING else "good", each.state),
            count(each.epoch),
            count(each.lag),
            rate(each.rows_per_s),
            count(each.restarts),
            each.doing if each.error is None else each.error.splitlines()[0],
        )
        for each in shards[shown]
    ]
    columns = ("shard", "state", "epoch", "lag", "rows a second", "restarts", "doing")
    made = table(columns, rows, numbers=("epoch", "lag", "rows a second", "restarts"))
    return join([made, pages(page, last, (), asked.base)])


def noted_shards(shards: Sequence[ShardReport], asked: Asked, now_us: int) -> Html:
    """Return the shards of a pipeline that does not run, as the checkpoint knows them."""
    shown, page, last = part(len(shards), asked.page)
    rows: list[Sequence[Child]] = [
        (
            link(f"{each.shard}", asked.to(shard=each.shard)) if each.generation else f"{each.shard}",
            mark(
                "bad" if each.state in _FAILING else "minor", each.state or ("ran" if each.generation else "never ran")
            ),
            count(each.epoch) if each.at_us else UNKNOWN,
            count(each.rows_total) if each.at_us else UNKNOWN,
            count(each.restarts),
            when(each.at_us, now_us),
            each.error.splitlines()[0] if each.error else "",
        )
        for each in shards[shown]
    ]
    columns = ("shard", "noted last", "epoch", "rows", "restarts", "when", "why")
    made = table(columns, rows, numbers=("epoch", "rows", "restarts"))
    return join([made, pages(page, last, (), asked.base)])
