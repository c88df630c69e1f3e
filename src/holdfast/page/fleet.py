"""A fleet: every pipeline below some directories or buckets, by what its checkpoint has noted.  No sink is asked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from holdfast.commit.owner import Owner, noted_owner
from holdfast.errors import HoldfastError
from holdfast.observe.inspection import StateReport, inspect_checkpoint
from holdfast.page.html import Child, Html, el, link, pages, part, table
from holdfast.page.model import Asked, Level
from holdfast.page.words import UNKNOWN, count, mark, when
from holdfast.ports import Store
from holdfast.shards.layout import newest_layout
from holdfast.shards.naming import shard_checkpoint
from holdfast.steer.client import attach
from holdfast.store import scratch
from holdfast.store.objects.store import ObjectStore, open_objects
from holdfast.store.paths import open_store, viewed_directory

DEPTH = 2
"""How many levels below a root checkpoints are looked for."""

AT_ONCE = 16
"""How many are read at the same time."""

_OWN = frozenset({"shards", "spark", "sources", "ledger", "state", "control", "steer"})
"""Directories of a checkpoint, in which there is none."""


@dataclass(frozen=True)
class FleetLine:
    """One pipeline of a fleet.

    Parameters
    ----------
    key : str
        Its name in addresses of the page.
    location : str
        Its checkpoint.
    pipeline : str
        Its name.
    level : str
        ``good``, ``minor`` or ``bad``.
    told : str
        How it is, in words.
    epoch : int, optional
        The last that is known to be done.
    lag : int, optional
        What its sources have left, of a live run on this machine.
    graph : str
        Version of the graph: the beginning of its fingerprint.
    at_us : int
        When it was noted last that it is at work, microseconds of Unix time.
    """

    key: str
    location: str
    pipeline: str
    level: Level
    told: str
    epoch: int | None = None
    lag: int | None = None
    graph: str = ""
    at_us: int = 0


def key_of(location: str) -> str:
    """Return the name of a checkpoint in addresses: nothing of its path."""
    return hashlib.sha256(location.encode()).hexdigest()[:16]


def find_checkpoints(roots: Iterable[str]) -> list[str]:
    """Return the checkpoints below some directories and buckets, two levels deep, and those that are named themselves.

    Raises
    ------
    HoldfastError
        If a bucket does not answer.
    """
    found: list[str] = []
    for root in roots:
        found += _in_objects(root) if scratch.is_address(root) else _in_directory(Path(root).expanduser())
    return list(dict.fromkeys(found))


def _in_directory(root: Path, depth: int = DEPTH) -> Iterator[str]:
    if (root / "identity.json").is_file():
        yield str(root)
        return
    if depth == 0 or not root.is_dir():
        return
    for below in sorted(root.iterdir()):
        if below.name not in _OWN and not below.name.startswith(".") and below.is_dir() and not below.is_symlink():
            yield from _in_directory(below, depth - 1)


def _in_objects(root: str) -> Iterator[str]:
    store = open_objects(root.rstrip("/"))
    yield from (f"{root.rstrip('/')}/{below}".rstrip("/") for below in _levels(store, "", DEPTH))


def _levels(store: ObjectStore, prefix: str, depth: int) -> Iterator[str]:
    """Yield the prefixes below which there is a checkpoint; what is below one is not listed."""
    if store.get(f"{prefix}identity.json") is not None:
        yield prefix
        return
    if depth:
        for name in store.directories(prefix):
            if name not in _OWN:
                yield from _levels(store, f"{prefix}{name}/", depth - 1)


def fleet_lines(locations: Sequence[str]) -> list[FleetLine]:
    """Return a line for each checkpoint, 16 at a time."""
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="holdfast-fleet") as threads:
        return [*threads.map(_line, locations)]


def _line(location: str) -> FleetLine:
    key = key_of(location)
    try:
        directory = viewed_directory(location)
        store = open_store(str(directory))
        live = _live(location)
        inspection = inspect_checkpoint(location, store, directory)
        layout, owner = newest_layout(store), noted_owner(store)
        of = inspection.state
        others = range(1, 0 if layout is None or live is not None else layout.shard_count)
        in_doubt = len(inspection.open_epochs) + sum(_in_doubt(shard_checkpoint(location, each)) for each in others)
        told: tuple[Level, str] = _condition(owner, of, in_doubt, live)
        shards = f", {layout.shard_count} shards" if layout is not None else ""
        # Each shard has epochs of its own.
        epoch = 0 if shards else max([inspection.last_done, *(heads.finished for heads in inspection.spark)])
        return FleetLine(
            key,
            location,
            inspection.pipeline,
            told[0],
            told[1] + shards,
            epoch or None,
            None if live is None else live.lag,
            _graph(store),
            max(owner.at_us, 0 if of is None else of.at_us),
        )
    except Exception as error:  # whatever it is: the other pipelines are shown
        what = error.what if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
        return FleetLine(key, location, "", "bad", f"cannot be read: {what}")


def _in_doubt(location: str) -> int:
    """Return how many epochs of a shard are decided, and not known to be published."""
    directory = viewed_directory(location)
    return len(inspect_checkpoint(location, open_store(str(directory)), directory).open_epochs)


class LiveLine(NamedTuple):
    """What a live run says of itself: in words, what is left to read, and whether it is healthy."""

    told: str
    lag: int | None
    is_healthy: bool


def _live(location: str) -> LiveLine | None:
    """Return what a live run on this machine does, and how far its sources are behind."""
    try:
        said = attach(location).status()
    except (HoldfastError, OSError):
        return None
    lags = [source["lag"] for source in said["sources"] if source["lag"] is not None]
    wrong: Sequence[str] = said["health"]["reasons"]
    return LiveLine(wrong[0] if wrong else said["doing"] or said["state"], sum(lags) if lags else None, not wrong)


def _condition(owner: Owner, of: StateReport | None, in_doubt: int, live: LiveLine | None) -> tuple[Level, str]:
    if live is not None:
        return "good" if live.is_healthy else "bad", live.told
    if owner.is_alive:
        return "minor", "its process is alive, and does not listen here"
    if in_doubt:
        return "bad", f"not running; {in_doubt} epochs are in doubt"
    where = f"on {owner.host}" if owner.is_alive is None and owner.host else "not running"
    limited = (
        "" if of is None or of.time is None or not of.time.limited_by else f"; it was limited by: {of.time.limited_by}"
    )
    return "minor", where + limited


def _graph(store: Store) -> str:
    """Return the beginning of the fingerprint of the graph that ran last."""
    newest = max((key for key in store.keys("spark/") if key.endswith("/graph.json")), default=None, key=_number)
    if newest is None:
        return ""
    try:
        body = json.loads(store.get(newest) or b"{}")
        return str(body.get("fingerprint", ""))[:8]
    except (ValueError, AttributeError):
        return ""


def _number(key: str) -> int:
    part = key.split("/")[1]
    return int(part) if part.isdigit() else -1


def fleet_table(lines: Sequence[FleetLine], asked: Asked, now_us: int) -> Html:
    """Return the fleet as a table, what is worst first."""
    order = {"bad": 0, "minor": 1, "good": 2}
    ordered = sorted(lines, key=lambda line: (order[line.level], line.pipeline, line.location))
    shown, page, last = part(len(ordered), asked.page)
    rows: list[Sequence[Child]] = [
        (
            link(line.pipeline or "(none)", f"/at/{line.key}/"),
            mark(line.level, line.told),
            count(line.epoch),
            count(line.lag),
            line.graph or UNKNOWN,
            when(line.at_us, now_us),
            line.location,
        )
        for line in ordered[shown]
    ]
    columns = ("pipeline", "how it is", "last epoch", "left to read", "graph", "last noted", "checkpoint")
    made = table(columns, rows, numbers=("last epoch", "left to read"), empty="There is no checkpoint below.")
    return el("section", el("h2", f"{count(len(ordered))} pipelines"), made, pages(page, last, (), ""), id="part-fleet")
