"""Starts: the row of the table that decided each; snapshots, and what a rewind to each would withdraw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.display.tables import size_text
from holdfast.errors import HoldfastError
from holdfast.page.html import Child, Html, el, facts, join, lines, link, table
from holdfast.page.model import Asked, Moment, Section
from holdfast.page.shards import each_shard
from holdfast.page.words import count, mark, span, when
from holdfast.status import CheckpointStatus


def starts(moment: Moment) -> Iterator[Section]:
    """Yield the parts of the view: starts and snapshots, or what a rewind to one would do."""
    asked = moment.asked
    if asked.item:
        yield Section("rewind", f"A rewind to {asked.item} would do this", _rewind(moment))
        return
    if moment.shards:
        yield each_shard(moment, "Each shard is started by itself, also when one alone has failed.")
    else:
        yield Section("starts", "Starts", _starts(moment))
    status = moment.status
    if status is not None and status.checkpoints is not None:
        yield Section("snapshots", "Snapshots of this run", _snapshots(status.checkpoints, moment.now_us))
    yield Section(
        "named", "Named checkpoints", _names(moment.reader.checkpoint_names(asked.shard), asked, moment.now_us)
    )
    yield Section("elsewhere", "What would a rewind withdraw?", _ask(asked))
    if moment.shards:
        return
    heads = [(h.directory, count(h.planned or None), count(h.finished or None)) for h in moment.inspection.spark]
    yield Section(
        "directories",
        "Spark's directories",
        table(("directory", "planned", "finished"), heads, numbers=("planned", "finished")),
    )


def _starts(moment: Moment) -> Html:
    rows: list[Sequence[Child]] = [
        (
            count(each.generation),
            when(each.at_us, moment.now_us),
            each.row,
            f"The pipeline {each.way}.",
            each.why,
            join(
                [
                    el("div", f"{what}: {told}")
                    for what, told in (("state", each.keeps), ("sources", each.reads), ("sinks", each.gives))
                    if told
                ]
            ),
        )
        for each in moment.reader.starts(moment.asked.shard)
    ]
    columns = ("generation", "begun", "row", "what was done", "what leads there", "what became of")
    empty = "No start is noted: an earlier version of Holdfast made them."
    return table(columns, rows, numbers=("generation",), empty=empty)


def _snapshots(made: CheckpointStatus, now_us: int) -> Html:
    return facts(
        {
            "made": count(made.count),
            "the last one": when(made.at_us, now_us) if made.at_us else "none yet",
            "at the end of epoch": count(made.epoch or None),
            "took": span(made.duration_ms / 1e3),
            "size": f"{size_text(made.size_bytes)}, {count(made.rows)} rows",
            "left out, as one was being made": count(made.dropped),
            "failed": count(made.failed),
            "the last failure": made.last_error or None,
        }
    )


def _names(found: Sequence[Mapping[str, Any]], asked: Asked, now_us: int) -> Html:
    rows: list[Sequence[Child]] = []
    for each in found:
        name = str(each["name"])
        if each["problem"]:
            rows.append((name, mark("bad", str(each["problem"])), "", "", "", ""))
            continue
        epoch = "of each shard" if each["epoch"] is None else count(each["epoch"])
        to = link("what a rewind to it would withdraw", asked.to("starts", name))
        rows.append(
            (name, epoch, when(int(each["at_us"]), now_us), count(each["rows"]), size_text(int(each["size_bytes"])), to)
        )
    columns = ("name", "epoch", "made", "rows", "size", "")
    return table(columns, rows, numbers=("epoch", "rows", "size"), empty="No checkpoint has a name.")


def _ask(asked: Asked) -> Html:
    hidden = el("input", type="hidden", name="shard", value=f"{asked.shard}") if asked.shard is not None else None
    typed = el(
        "input", name="to", required=True, size=28, placeholder="epoch, time or name", aria_label="epoch, time or name"
    )
    asking = el("form", hidden, typed, el("button", "Look", type="submit"), method="get", action=asked.to("rewind"))
    return join([asking, el("p", "A dry run: it asks the sinks, and changes nothing.", class_="small")])


def _rewind(moment: Moment) -> Html:
    asked = moment.asked
    back = el("p", link("back to starts and snapshots", asked.to("starts")), class_="small")
    try:
        said = moment.reader.rewind(asked.item, asked.shard)
    except HoldfastError as error:
        return join([failure(error), back])
    shard = "" if asked.shard is None else f"--shard {asked.shard} "
    return join([lines(said), el("p", f"To do it: holdfast rewind TARGET {shard}--to …", class_="small"), back])


def failure(error: HoldfastError) -> Html:
    """Return an error: what, why, and what to do."""
    told = {"why": error.why or None, "do": error.do or None}
    return el("div", el("p", mark("bad", type(error).__name__), " ", error.what), facts(told), class_="failure")
