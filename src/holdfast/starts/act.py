"""Performs a case of the table of starts, so that every epoch is held by a sink whole or not at all.

When Spark's directory was lost and sinks hold epochs already, the sources *seek*: reading starts at the earliest
positions that a sink holds, and the first epochs end exactly at those of the other sinks.  So every sink holds either
the whole of such an epoch or nothing of it, and it is left out where it is held.  With state, reading starts at a
snapshot, and the epochs after it are replayed with the ends and batch times that they had
(:mod:`holdfast.starts.restore`).

Durable writes, in this order: what the way itself needs (a snapshot in the form of the new graph, the files of a named
checkpoint); the positions of sources that leave; the floor; the header of the directory, which makes it valid.  A crash
before the header leaves objects that the next start writes again.

Where sinks lack what was published, Spark's directory is *left* (``left.json`` in it, one durable write) and the start
begins anew, as after the loss of that directory: reading begins at the lowest position of the sinks, and each sink gets
what it lacks.  After a crash before the new directory has its header, the next start finds the record, and the sinks as
they are then.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from holdfast.checkpoint.directory_header import FILE_NAME, LEFT, DirectoryHeader, note_beginning, read_origin
from holdfast.checkpoint.manifest import decode
from holdfast.checkpoint.retention import lower_floor
from holdfast.checkpoint.snapshot import snapshot_keys
from holdfast.checkpoint.source_history import last_positions, note_positions, positions_at
from holdfast.checkpoint.spark_log import CONTROLS, begun_log, last_logged, newest_positions, plain
from holdfast.clock import SystemClock
from holdfast.errors import Corrupt, Unavailable, present
from holdfast.plan.lookup_versions import unknown_to
from holdfast.ports import Held, Store
from holdfast.positions import Positions, covers_all
from holdfast.starts.behind import Behind
from holdfast.starts.decide import Prepared, check_can_seek, prepare
from holdfast.starts.facts import Findings
from holdfast.starts.inputs import Beginning
from holdfast.starts.restore import Restoration, left_at
from holdfast.starts.table import Spark, StartWay
from holdfast.store import sealed

log = logging.getLogger("holdfast.checkpoint")


def perform(beginning: Beginning, findings: Findings, last_epoch: int) -> DirectoryHeader:
    """Perform the case of the table for what was found; return the header of Spark's directory, written if new.

    Parameters
    ----------
    beginning : Beginning
        The directory, and what it is for.
    findings : Findings
        What was found.
    last_epoch : int
        Highest epoch that any sink or the ledger knows.

    Raises
    ------
    Corrupt
        If Spark's files are there and the header is not, or one of them is damaged.
    Diverged, InvalidPipeline
        If the case is a refusal; or a source cannot seek to the positions of the sinks, or the state of a snapshot
        does not fit.
    DirectoryIsLeft
        If the directory is left, for sinks that lack what it published: the start begins anew.
    Fenced, Unavailable
        If another run has begun the directory meanwhile: a newer one, or an older one that is fenced.
    """
    case = findings.case
    log.info("row %s of the table of starts: pipeline %r %s", case.letter, beginning.pipeline, case.way.value)
    prepared = prepare(beginning, findings, last_epoch)
    if prepared is None:
        replay = present(findings.replay, _lacks(findings, "range to replay"), pipeline=beginning.pipeline)
        raise leave(beginning, findings.behind, replay)
    if case.way is StartWay.ON:
        _note_those_that_left(beginning, prepared.header)
        _begin_log(beginning, prepared.header)
        return prepared.header
    header = _made(beginning, findings, prepared)
    _tell(beginning, findings, header)
    return _written(beginning, findings, header)


# --- what a header names ------------------------------------------------------------------------------------------


def _made(beginning: Beginning, findings: Findings, prepared: Prepared) -> DirectoryHeader:
    """Write everything that a header names; return the header."""
    way, header = findings.case.way, prepared.header
    if way is StartWay.FORK:
        first = present(beginning.first, _lacks(findings, "beginning"), pipeline=beginning.pipeline)
        header = first.begun(header)
        note_beginning(beginning.store, first.given, header)
    elif way in (StartWay.MOVE, StartWay.FILL):
        change = present(beginning.change, _lacks(findings, "changed state"), pipeline=beginning.pipeline)
        header = change.begun(header, findings.holders)
        check_can_seek(beginning, findings, header)
    elif prepared.seed is not None:
        header = _seeded(beginning, prepared.seed, prepared.sources, header)
    elif way is StartWay.REBUILD and not header.replayed:
        header = _cut(beginning, findings, header)
    elif way is StartWay.NEW and findings.found.spark is Spark.NONE:
        _forget_unbegun(beginning)
    return header


def _lacks(findings: Findings, what: str) -> str:
    return f"case {findings.case.letter} of the table of starts has no {what}."


def _forget_unbegun(beginning: Beginning) -> None:
    """Remove snapshots that this pipeline did not begin with: a start with other options died, and was given up.

    They would be taken for state of rows that sinks hold, once these hold any.
    """
    beginning.check_fenced()
    for key in snapshot_keys(beginning.store):
        beginning.store.delete(key.path)


def _seeded(
    beginning: Beginning, seed: Restoration, sources: Mapping[str, str] | None, header: DirectoryHeader
) -> DirectoryHeader:
    """Return a header with the snapshot to begin with; made now where the graph wants it in another form."""
    manifest, transfer = seed.manifest, beginning.transfer
    taken = {name: name for name in manifest.operators} if sources is None else sources  # into other buckets, at most
    if transfer is not None and transfer.is_needed(manifest, taken):
        manifest = transfer.made(manifest, taken)
    return replace(header, seed=manifest.key.path, kept=header.kept if sources is None else tuple(sources))


def _cut(beginning: Beginning, findings: Findings, header: DirectoryHeader) -> DirectoryHeader:
    """Return a header that rebuilds state in epochs as the sources cut them, at times that sinks tell.

    Each has the time of the first known epoch at or after it: what was due by then is muted, and nothing later.
    """
    backfill = present(beginning.backfill, _lacks(findings, "way to cut epochs"), pipeline=beginning.pipeline)
    seek = backfill.cuts(header.seek[-1], findings.holders)
    ends = [step.ended for step in beginning.known_steps(findings.holders.values())]
    times: list[tuple[int, int]] = []
    for number, stop in enumerate(seek[1:], 1):
        known = [ended.batch_us for ended in ends if covers_all(ended.positions, stop)]
        if not known:
            break
        times.append((number, min(known)))
    return replace(header, base=max(header.base, len(seek)), seek=seek, replayed=tuple(times))


def _tell(beginning: Beginning, findings: Findings, header: DirectoryHeader) -> None:
    if findings.case.way is StartWay.REBUILD:
        log.warning("state is computed again from the beginning of the sources, in %d epochs", header.replay_count)
    if findings.anew.unsure:
        log.warning("as was accepted, state may be another one than what is lost. %s", findings.anew.why_unsure())
    if findings.case.way is StartWay.SEEK and (seeing := _seeing_other_versions(beginning, findings, header)):
        log.warning(
            "what sinks lack is looked up in tables as they are now, by %s: which versions its epochs saw is not known",
            ", ".join(seeing),
        )
    snapshot = findings.anew.snapshot
    if snapshot is not None:
        ended = snapshot.manifest.ended
        log.warning(
            "state is restored from the snapshot of epoch %d, made %s; %s",
            ended.epoch,
            _utc(snapshot.manifest.at_us),
            _what_is_replayed(snapshot),
        )
    if findings.anew.every_epoch is not None:
        log.warning("state is computed again, from all %d epochs since the directory before began", header.replay_count)


def _seeing_other_versions(beginning: Beginning, findings: Findings, header: DirectoryHeader) -> Sequence[str]:
    """Return the look-ups by which some sinks get other rows than those that others hold."""
    if len(findings.anew.stops) == 1 or not beginning.look_ups:
        return ()
    return (
        unknown_to(beginning.store, beginning.look_ups, header.replayed[0][0])
        if header.replayed
        else beginning.look_ups
    )


# --- what is written ----------------------------------------------------------------------------------------------


def _written(beginning: Beginning, findings: Findings, header: DirectoryHeader) -> DirectoryHeader:
    """Write what a directory begins with; its header comes last."""
    store, holders = beginning.store, findings.holders
    beginning.check_fenced()  # reading large state takes minutes, in which another run may have taken over
    if header.seek:
        # Durable before the directory counts: a source that leaves with it is in none of its positions.
        note_positions(store, header.base, header.seek[-1], else_known=_retired_before(beginning))
        lower_floor(store, header.seek[0])
    header = replace(header, retired=_retired(beginning, header, holders))
    _note(beginning, header)
    _begin_log(beginning, header)
    return header


def _begin_log(beginning: Beginning, header: DirectoryHeader) -> None:
    """Write the first entries of Spark's log where they say where its own sources begin, if they are not there.

    They follow from the header: a crash before, or between them, leaves that to the next start.
    """
    spark = beginning.directory / beginning.below
    if beginning.has_spark_sources and header.seek and last_logged(spark, "offsets") < header.replay_count - 1:
        for name, content in begun_log(header.seek[1:], SystemClock().now_us()).items():
            beginning.store.put(f"{beginning.below}/{name}", content.encode())


def _note(beginning: Beginning, header: DirectoryHeader) -> None:
    """Write the header of a new directory, never over that of another run: its workers use what it had read."""
    key, data = f"{beginning.below}/{FILE_NAME}", header.to_json()
    if beginning.store.put_if_absent(key, data) or beginning.store.get(key) == data:
        return
    beginning.check_fenced()
    raise Unavailable(
        f"{beginning.below} of pipeline {beginning.pipeline!r} was begun by another run just now.",
        why="that run was starting when this one took over.",
        do="start again: what that run left is taken into account.",
        pipeline=beginning.pipeline,
        participant=key,
    )


def _note_those_that_left(beginning: Beginning, header: DirectoryHeader) -> None:
    """Record the positions of sources that leave a directory which stays in use, beside ``read.spark``."""
    if all(node.kind != "spark" for node in beginning.sources):
        return
    store, spark = beginning.store, beginning.directory / beginning.below
    names = [node.name for node in beginning.sources]
    left = {n: of for n, of in newest_positions(spark).items() if n not in names and n != CONTROLS}
    if left:
        note_positions(store, header.base + last_logged(spark, "offsets") + 1, left, else_known=header.retired)


def _retired(beginning: Beginning, header: DirectoryHeader, held: Mapping[str, Held]) -> Positions:
    """Return where sources begin that have no position at the start of the directory."""
    known = last_positions(beginning.store)
    if not header.start:  # planned from the beginning of every source that the graph has: read from there too
        names = [node.name for node in beginning.sources]
        return {name: of for name, of in known.items() if name not in names}
    if left_at(beginning.store, beginning.previous) is None:
        return known
    # It begins before some sources were added to the graph: they begin at their positions of that time.
    new = [node.name for node in beginning.sources if node.name not in header.start]
    then = positions_at(beginning.store, _begins_after(beginning, header, held))
    return {name: of for name, of in known.items() if name not in new} | {n: then[n] for n in new if n in then}


def _begins_after(beginning: Beginning, header: DirectoryHeader, held: Mapping[str, Held]) -> int:
    """Return the last epoch before what a directory reads."""
    if header.seed:
        return decode(beginning.store.get(header.seed) or b"", header.seed).ended.epoch
    if beginning.state_schemas:
        return read_origin(beginning.directory / beginning.previous / FILE_NAME).base
    return min((each.epoch for each in held.values() if covers_all(header.start, each.positions)), default=0)


def _retired_before(beginning: Beginning) -> Positions:
    """Return the positions of sources that left under an older version: it recorded them in Spark's directory alone."""
    try:
        return read_origin(beginning.directory / beginning.previous / FILE_NAME).retired
    except Corrupt:
        return {}


def _utc(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _what_is_replayed(found: Restoration) -> str:
    """Say which epochs are evaluated again for their state; the sinks hold them."""
    parts = []
    recorded = found.replayed[: len(found.replayed) - found.joined_count]
    if recorded:
        first, last = recorded[0], recorded[-1]
        parts.append(
            f"{len(recorded)} epochs after it, {first.epoch} to {last.epoch}, planned {_utc(first.batch_us)} to "
            f"{_utc(last.batch_us)}, are replayed as they were"
        )
    if found.joined_count:
        times = ", ".join(_utc(ended.batch_us) for ended in found.replayed[len(recorded) :])
        parts.append(
            f"what nobody knows the epochs of is replayed up to each sink, with the time that it tells: {times}"
        )
    if found.stops:
        parts.append("what nobody knows the epochs of is replayed as one epoch, with the current time")
    return " and ".join(parts) or "nothing has to be replayed"


class DirectoryIsLeft(Exception):
    """Spark's directory is not used again: the start begins anew."""


def leave(beginning: Beginning, found: Sequence[Behind], replay: tuple[Positions, Positions]) -> DirectoryIsLeft:
    """Leave Spark's directory; return the exception that makes the start begin anew.

    Parameters
    ----------
    beginning : Beginning
        Spark's directory, and the sources.
    found : sequence of Behind
        The sinks that lack something.
    replay : (Positions, Positions)
        As of :func:`replay_of`.
    """
    beginning.check_fenced()  # it may already be the directory of a run that took over meanwhile
    for each in found:
        log.warning("%s", each)
    start, ends = replay
    _note_left(beginning.store, beginning.below, found, ends)
    log.warning("what is missing is read again, from %s on, and given to the sinks that lack it", _show(start))
    return DirectoryIsLeft()


def _note_left(store: Store, below: str, found: Sequence[Behind], reached: Positions) -> None:
    """Record that a directory is not used again, why, and up to where it had published."""
    why = "; ".join(map(str, found))
    store.put(f"{below}/{LEFT}", sealed.dump({"why": why, "reached": reached}))


def _show(positions: Positions) -> str:
    """Return positions as people read them."""
    parts = [
        f"{name!r} {', '.join(f'{segment}={at}' for segment, at in plain(of)[0].items()) or 'its beginning'}"
        for name, of in positions.items()
        if name != CONTROLS
    ]
    return "; ".join(parts) or "the beginning"
