"""How a new Spark checkpoint directory begins, so that every epoch is held by a sink whole or not at all.

When Spark's directory was lost and sinks hold epochs already, the sources *seek*: reading starts at the earliest
positions that a sink holds, and the first epochs end exactly at those of the other sinks.  So every sink holds either
the whole of such an epoch or nothing of it, and it is left out where it is held.  With state, reading starts at a
snapshot, and the epochs behind it are replayed with the ends and batch times that they had
(:mod:`holdfast.resume.restore`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, cast

from holdfast.checkpoint import progress
from holdfast.checkpoint.manifest import EpochEnd, StateSchema, decode
from holdfast.checkpoint.progress import EpochSpan
from holdfast.checkpoint.retention import lower_floor
from holdfast.checkpoint.snapshot import snapshot_keys
from holdfast.checkpoint.source_history import note_stood, stood, stood_at
from holdfast.errors import Corrupt, Diverged, InvalidPipeline, Unavailable
from holdfast.graph.nodes import Node
from holdfast.ports import Held, SourceSpec, Store
from holdfast.positions import Positions, ascending, covers_all
from holdfast.resume.directory_header import FILE_NAME, DirectoryHeader, note_beginning, noted_beginning, read_origin
from holdfast.resume.graph_diff import unclaimed
from holdfast.resume.refusals import check_claimed
from holdfast.resume.restore import Restoration, restoration
from holdfast.resume.rewind import is_behind_rewind
from holdfast.resume.spark_log import CONTROLS, check_logs, last_logged, logged, newest_positions, plain, read_offsets
from holdfast.spark.resume.lost_epochs import filled, from_the_start, left_at, planned_in
from holdfast.spark.state.transfer import Transfer

log = logging.getLogger("holdfast.checkpoint")


class StartElsewhere(Protocol):
    """How a pipeline begins that does not begin at the beginning."""

    @property
    def given(self) -> str:
        """The option that says so, as the user wrote it."""

    def origin(self, origin: DirectoryHeader, held: Mapping[str, Held]) -> DirectoryHeader:
        """Return the record of the first directory, given the one that begins at the beginning."""


class ChangedState(Protocol):
    """How the state of another graph becomes the beginning of a directory."""

    def origin(self, origin: DirectoryHeader, held: Mapping[str, Held]) -> DirectoryHeader:
        """Return the record of the new directory, given the one without state, and what sinks hold."""


@dataclass(frozen=True)
class Beginning:
    """What a new Spark directory is begun with.

    Parameters
    ----------
    store, directory : Store, Path
        The checkpoint, and where it lies.
    below : str
        Spark's directory below it.
    pipeline : str
        Its name.
    sources : sequence of Node
        The pipeline's sources.
    keeps : mapping of str to StateSchema
        What the operators keep whose state is in the directory.
    graph : str
        Fingerprint of the graph's state.
    previous : str
        The directory that was used before, where it is left; empty when there is none.
    change : ChangedState, optional
        How state comes from the directory before; None where the graph has not changed.
    transfer : Transfer, optional
        Brings state of another form over; None: there is none.
    first : StartElsewhere, optional
        Where the pipeline begins; None where it has begun, or begins at the beginning.
    backfilled : frozenset of str
        Sinks that get everything from the beginning.
    drop_state : frozenset of str
        Operators whose state is not wanted any more.
    check_fenced : callable
        Raises ``Fenced`` if a higher generation has taken the pipeline over.
    """

    store: Store
    directory: Path
    below: str
    pipeline: str
    sources: Sequence[Node]
    keeps: Mapping[str, StateSchema] = field(default_factory=dict)
    graph: str = ""
    previous: str = ""
    change: ChangedState | None = None
    transfer: Transfer | None = None
    first: StartElsewhere | None = None
    backfilled: frozenset[str] = frozenset()
    drop_state: frozenset[str] = frozenset()
    check_fenced: Callable[[], None] = lambda: None


def settle_origin(beginning: Beginning, held: Mapping[str, Held], last_epoch: int) -> DirectoryHeader:
    """Return the record of a Spark checkpoint directory, made now if the directory is new.

    Parameters
    ----------
    beginning : Beginning
        The directory, and what it is for.
    held : mapping of str to Held
        What each sink holds.
    last_epoch : int
        Highest epoch that any sink or the ledger knows.

    Raises
    ------
    Corrupt
        If Spark's files are there and the record is not, or one of them is damaged.
    Diverged
        If sinks hold epochs, and state is gone and no snapshot serves; or a source cannot seek to their positions
        because what it needs for that is gone too.
    Fenced, Unavailable
        If another run has begun the directory meanwhile: a newer one, or an older one that is fenced.
    """
    store, directory, below = beginning.store, beginning.directory, beginning.below
    path = directory / below / FILE_NAME
    has_batches = bool(logged(directory / below, "offsets"))
    if path.exists() or has_batches:
        check_logs(directory / below)
        origin = read_origin(path)
        _check_none_is_back(beginning, origin)
        return origin
    holders = {name: each for name, each in held.items() if each.epoch > 0}
    stops = [] if beginning.change is not None else ascending([each.positions for each in holders.values()])
    if stops is None:
        raise Diverged(
            "the sinks hold positions that cannot be put in an order.",
            why="they were written with different checkpoints.",
            do="restore the sinks to states that belong together.",
        )
    origin = DirectoryHeader(above_all(store, last_epoch) + 1, tuple(stops), graph=beginning.graph)
    if beginning.first is not None:
        origin = beginning.first.origin(origin, holders)
        note_beginning(store, beginning.first.given, origin)
    elif beginning.change is not None:
        origin = beginning.change.origin(origin, holders)
    elif not holders and (begun := noted_beginning(store)) is not None:
        origin = _begun(beginning, replace(begun[1], base=max(origin.base, begun[1].base), graph=beginning.graph))
    elif stops:
        _check_no_backfill(beginning, held)
        newest = max(holders.items(), key=lambda item: item[1].epoch)
        if (reached := left_at(store, beginning.previous)) is not None:
            origin = replace(origin, base=max(origin.base, planned_in(directory / beginning.previous) + 1))
        if beginning.keeps:
            origin = _restored(beginning, origin, list(holders.values()), newest, reached)
        elif reached is not None:
            origin = replace(origin, seek=filled(stops, _known_steps(beginning)))
    if origin.seek and holders:
        newest = max(holders.items(), key=lambda item: item[1].epoch)
        _check_can_seek(directory, beginning.sources, [origin.seek[0], origin.seek[-1]], newest)
    beginning.check_fenced()  # reading large state takes minutes, in which another run may have taken over
    if origin.seek:
        # Durable before the directory counts: a source that leaves with it is in none of its positions.
        note_stood(store, origin.base, origin.seek[-1], else_known=_retired_before(beginning))
        lower_floor(store, origin.seek[0])
    origin = replace(origin, retired=_retired(beginning, origin, holders))
    _note(beginning, origin)
    return origin


def _note(beginning: Beginning, origin: DirectoryHeader) -> None:
    """Write the record of a new directory, and never over that of another run: its workers go by what it had read."""
    key, data = f"{beginning.below}/{FILE_NAME}", origin.to_json()
    if beginning.store.put_if_absent(key, data) or beginning.store.get(key) == data:
        return
    beginning.check_fenced()
    raise Unavailable(
        f"{beginning.below} of pipeline {beginning.pipeline!r} was begun by another run just now.",
        why="that run was starting when this one took over.",
        do="start again: what it has left is looked at first.",
        pipeline=beginning.pipeline,
        participant=key,
    )


def _check_none_is_back(beginning: Beginning, origin: DirectoryHeader) -> None:
    """Note sources that leave a directory which stays in use, beside ``read.spark``; refuse one that comes back."""
    if all(node.kind != "spark" for node in beginning.sources):
        return  # every other graph gets a new directory when its sources change
    store, spark = beginning.store, beginning.directory / beginning.below
    newest, names = newest_positions(spark), [node.name for node in beginning.sources]
    left = {name: of for name, of in newest.items() if name not in names and name != CONTROLS}
    if left:
        note_stood(store, origin.base + last_logged(spark, "offsets") + 1, left, else_known=origin.retired)
    for name in names:
        if newest and name not in newest and name in (before := stood(store)):
            raise InvalidPipeline(
                f"source {name!r} has left the graph, and cannot come back.",
                why=f"it stood at {dict(before[name])}; beside read.spark a directory of Spark's cannot be begun anew, "
                "and in this one Spark would read the source from its beginning: rows would be there twice.",
                do="give the source another name, and filter the rows that were published; or start over with a new "
                "checkpoint and empty targets.",
                pipeline=beginning.pipeline,
                participant=name,
            )


def _check_no_backfill(beginning: Beginning, held: Mapping[str, Held]) -> None:
    """Refuse a new sink that gets everything where the sinks alone say where reading begins: it would be left out."""
    for name in sorted(beginning.backfilled):
        if name in held and held[name].epoch == 0:
            raise InvalidPipeline(
                f"sink {name!r} is to get everything (backfill=True), and Spark's part of the checkpoint is lost.",
                why="reading goes on where the other sinks are; how the epochs before were cut is not known.",
                do=f"start once without sink {name!r}, then with it.",
                pipeline=beginning.pipeline,
                participant=name,
            )


def above_all(store: Store, last_epoch: int) -> int:
    """Return the highest epoch that anybody knows, replayed ones that no sink was told of included."""
    return max(
        [last_epoch, *(key.epoch for key in snapshot_keys(store)), *(s.ended.epoch for s in progress.read(store))]
    )


def _begun(beginning: Beginning, origin: DirectoryHeader) -> DirectoryHeader:
    """Return the noted beginning as that of a directory made now, which may be for another graph or other buckets."""
    if not origin.seed:
        return origin
    manifest = origin.seeding(decode(beginning.store.get(origin.seed) or b"", origin.seed))
    seed, kept = _fitting(beginning, Restoration(manifest, (), ()), origin.base)
    return replace(origin, seed=seed, kept=origin.kept if kept is None else kept)


def _restored(
    beginning: Beginning,
    origin: DirectoryHeader,
    held: Sequence[Held],
    newest: tuple[str, Held],
    reached: Positions | None,
) -> DirectoryHeader:
    """Return where a directory begins whose state comes from a snapshot, or is computed again from the start."""
    refused: list[str] = []
    found = restorable(beginning, held, refused.append, reached)
    if found is None:
        again = _from_the_start(beginning, held, reached)
        if again is None:
            raise _state_is_gone(beginning.directory, list(beginning.keeps), newest, refused)
        start, ends = again
        log.warning("state is computed again, from all %d epochs since the directory before began", len(ends))
        times = tuple((each.step_epoch, each.batch_us) for each in ends)
        return replace(origin, seek=(start, *(each.positions for each in ends)), replayed=times)
    seed, kept = _fitting(beginning, found, origin.base)
    ended = found.manifest.ended
    log.warning(
        "state is restored from the snapshot of epoch %d, made %s; %s",
        ended.epoch,
        _utc(found.manifest.at_us),
        _what_is_replayed(found),
    )
    replayed = tuple((each.step_epoch, each.batch_us) for each in found.replayed)
    return replace(origin, seek=found.seek, seed=seed, replayed=replayed, kept=kept)


def restorable(
    beginning: Beginning,
    held: Sequence[Held],
    passed_over: Callable[[str], None] = lambda why: None,
    reached: Positions | None = None,
) -> Restoration | None:
    """Return the snapshot that a directory would begin with, and what is replayed behind it; None: no snapshot."""
    return restoration(
        beginning.store,
        beginning.pipeline,
        held,
        _known_steps(beginning),
        graph=beginning.graph,
        reached=reached,
        passed_over=passed_over,
    )


def read_again_from(beginning: Beginning, held: Mapping[str, Held], reached: Positions) -> tuple[Positions, str]:
    """Return where reading would begin if the directory before were left, and why that cannot be.

    Parameters
    ----------
    beginning : Beginning
        The directory that would be begun.
    held : mapping of str to Held
        What the sinks hold that hold anything.
    reached : Positions
        Up to where the directory before had published.
    """
    holders = list(held.values())
    stops = ascending([each.positions for each in holders])
    if stops is None:
        return {}, "The sinks hold positions that cannot be put in an order."
    if not beginning.keeps:
        return stops[0], ""
    refused: list[str] = []
    found = restorable(beginning, holders, refused.append, reached)
    if found is not None:
        why = _other_graph(beginning, found)
        return found.manifest.ended.positions, f"{why[0].upper()}{why[1:]}" if why else ""
    again = _from_the_start(beginning, holders, reached)
    if again is not None:
        return again[0], ""
    names = ", ".join(beginning.keeps)
    more = "".join(f" {each}." for each in refused)
    return {}, f"No snapshot has the state of {names} before that, and not every epoch since the start is known.{more}"


def _from_the_start(
    beginning: Beginning, held: Sequence[Held], reached: Positions | None
) -> tuple[Positions, list[EpochEnd]] | None:
    if reached is None:
        return None
    spark = beginning.directory / beginning.previous
    return from_the_start(spark, beginning.graph, held, _known_steps(beginning), reached)


def _known_steps(beginning: Beginning) -> list[EpochSpan]:
    return [*steps_of(beginning.directory, beginning.previous), *progress.read(beginning.store)]


def _other_graph(beginning: Beginning, found: Restoration) -> str:
    """Return why a snapshot cannot serve that is of another graph, with epochs behind it; empty where it can."""
    manifest = found.manifest
    if manifest.graph == beginning.graph or not (found.replayed or found.stops):
        return ""
    return (
        f"the newest good snapshot is of epoch {manifest.ended.epoch}, and sinks hold later ones: the new "
        "graph would evaluate again what the old one has published."
    )


def _fitting(beginning: Beginning, found: Restoration, base: int) -> tuple[str, tuple[str, ...] | None]:
    """Return the snapshot to begin with, and the operators that it fits; None: all, it is of the same graph.

    ``base`` is the first epoch of the directory that begins.

    Raises
    ------
    Diverged
        If the graph has changed, and the snapshot is not of the change point, and no rewind has left what is behind
        it to the graph that is started next.
    """
    manifest = found.manifest
    transfer = beginning.transfer
    if manifest.graph == beginning.graph:
        same = {name: name for name in manifest.operators}
        if transfer is not None and transfer.is_needed(manifest, same):  # into other buckets
            return transfer.made(manifest, same).key.path, None
        return manifest.key.path, None
    if (why := _other_graph(beginning, found)) and not is_behind_rewind(beginning.store, base, found.seek[-1]):
        raise Diverged(
            "the graph has changed, and Spark's part of the checkpoint, with the state of the old graph, is lost.",
            why=why,
            do="start the old graph once: it takes its state from the snapshot, and leaves a new one when it is "
            "stopped; then start the changed one.",
            pipeline=beginning.pipeline,
            epoch=manifest.ended.epoch,
        )
    sources = {name: name for name in beginning.keeps if name in manifest.operators}
    if transfer is not None:
        sources = transfer.sources(manifest.operators)
    fresh = [name for name in beginning.keeps if name not in sources]
    lost = unclaimed(manifest.keeps, beginning.keeps, sources.values(), fresh)
    check_claimed(lost, beginning.pipeline, beginning.drop_state)
    for name, was in sources.items():
        keeps = manifest.operators[was].keeps
        reasons = () if transfer is None else transfer.move(name, keeps).reasons
        if reasons or (transfer is None and not keeps.fits(beginning.keeps[name])):
            raise InvalidPipeline(
                f"the state of operator {name!r} does not fit the changed graph.",
                why="; ".join(reasons or ("its key or its tables have changed",)) + "; and Spark's part of the "
                "checkpoint is lost.",
                do="give the operator another name, so that it begins without state; or change it back.",
                pipeline=beginning.pipeline,
                participant=name,
            )
    if transfer is not None and transfer.is_needed(manifest, sources):
        manifest = transfer.made(manifest, sources)
    return manifest.key.path, tuple(sources)


def _retired(beginning: Beginning, origin: DirectoryHeader, held: Mapping[str, Held]) -> Positions:
    """Return where sources begin of which nothing was read before the directory does."""
    known = stood(beginning.store)
    if not origin.seek:  # planned from the beginning of every source that the graph has: read from there too
        names = [node.name for node in beginning.sources]
        return {name: of for name, of in known.items() if name not in names}
    if left_at(beginning.store, beginning.previous) is None:
        return known
    # It begins further back than some came into the graph: they begin where they stood then, not where they are.
    new = [node.name for node in beginning.sources if node.name not in origin.start]
    then = stood_at(beginning.store, _begins_behind(beginning, origin, held))
    return {name: of for name, of in known.items() if name not in new} | {n: then[n] for n in new if n in then}


def _begins_behind(beginning: Beginning, origin: DirectoryHeader, held: Mapping[str, Held]) -> int:
    """Return the last epoch before what a directory reads."""
    if origin.seed:
        return decode(beginning.store.get(origin.seed) or b"", origin.seed).ended.epoch
    if beginning.keeps:
        return read_origin(beginning.directory / beginning.previous / FILE_NAME).base
    return min((each.epoch for each in held.values() if covers_all(origin.start, each.positions)), default=0)


def _retired_before(beginning: Beginning) -> Positions:
    """Return where sources stood that left by an older version, which noted it in Spark's directory alone."""
    try:
        return read_origin(beginning.directory / beginning.previous / FILE_NAME).retired
    except Corrupt:
        return {}


def _utc(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _what_is_replayed(found: Restoration) -> str:
    """Say which epochs are evaluated again for their state; the sinks hold them."""
    parts = []
    if found.replayed:
        first, last = found.replayed[0], found.replayed[-1]
        parts.append(
            f"{len(found.replayed)} epochs behind it, {first.epoch} to {last.epoch}, planned {_utc(first.batch_us)} to "
            f"{_utc(last.batch_us)}, are replayed as they were"
        )
    if found.stops:
        parts.append("what no progress record tells is replayed as one epoch, with the time of now")
    return " and ".join(parts) or "nothing has to be replayed"


def all_steps(directory: Path) -> list[EpochSpan]:
    """Return the ends of the epochs that are left in the offset logs of all directories.

    What an older one had planned and not finished, the next one has planned anew, under the same numbers.
    """
    numbers = sorted(int(path.name) for path in (directory / "spark").glob("[0-9]*") if path.name.isdigit())
    found: dict[int, EpochSpan] = {}
    for number in numbers:
        steps = steps_of(directory, f"spark/{number}")
        if steps:
            found = {epoch: step for epoch, step in found.items() if epoch < steps[0].ended.epoch}
        found.update((step.ended.epoch, step) for step in steps)
    return [found[epoch] for epoch in sorted(found)]


def steps_of(directory: Path, previous: str) -> list[EpochSpan]:
    """Return the ends of the epochs that are left in the offset log of a directory."""
    spark = directory / previous
    try:
        origin = read_origin(spark / FILE_NAME)
    except Corrupt:
        return []
    steps: list[EpochSpan] = []
    before = (-1, origin.start)
    for number in logged(spark, "offsets"):
        try:
            found = read_offsets(spark, number)
        except Corrupt:
            break
        if before[0] == number - 1:
            step_epoch, batch_us = origin.step_time(number, found.batch_us)
            steps.append(EpochSpan(before[1], EpochEnd(origin.base + number, step_epoch, found.positions, batch_us)))
        before = (number, found.positions)
    return steps


def _state_is_gone(
    directory: Path, stateful: Sequence[str], newest: tuple[str, Held], refused: Sequence[str]
) -> Diverged:
    sink, held = newest
    return Diverged(
        f"Spark's part of the checkpoint {directory} is new, and sink {sink!r} holds epoch {held.epoch}.",
        why=f"either the state of {', '.join(stateful)} was in it, and no snapshot serves; or the sink was written "
        "with another checkpoint. Without that state, what comes next would be wrong."
        + "".join(f" {each}" for each in refused),
        do="start with the checkpoint that the sink was written with; if it is damaged, restore it, or its directory "
        "snapshots/; or give the sinks new targets; or empty the targets and their holdfast_ledger rows (files: the "
        "_holdfast directory), and start over.",
        participant=sink,
        epoch=held.epoch,
    )


def _check_can_seek(
    directory: Path, sources: Sequence[Node], stops: Sequence[Positions], newest: tuple[str, Held]
) -> None:
    sink, held = newest
    for node in sources:
        spec = cast("SourceSpec", node.spec)
        for positions in [stop[node.name] for stop in stops if node.name in stop]:  # none: nothing of it was read
            why = spec.obstacle(node.name, str(directory / "sources" / node.name), plain(positions)[0])
            if not why:
                continue
            raise Diverged(
                f"Spark's part of the checkpoint {directory} is new, and sink {sink!r} holds epoch {held.epoch} of the "
                "pipeline.",
                why=f"source {node.name!r} cannot be taken to the positions that the sinks hold: {why}",
                do="start with the checkpoint that the sink was written with; if it is lost, empty the targets and "
                "their holdfast_ledger rows (files: the _holdfast directory) and start over, or give the pipeline "
                "another name.",
                participant=sink,
                epoch=held.epoch,
            )
