"""Does what was decided at a start, so that every epoch is held by a sink whole or not at all.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Protocol

from holdfast.checkpoint.directory_header import FILE_NAME, LEFT, DirectoryHeader, note_beginning, read_origin
from holdfast.checkpoint.manifest import decode
from holdfast.checkpoint.replay_floor import lower_floor
from holdfast.checkpoint.snapshot import snapshot_keys
from holdfast.checkpoint.source_history import last_positions, note_positions, positions_at
from holdfast.checkpoint.spark_log import CONTROLS, begun_log, last_logged, newest_positions, plain
from holdfast.clock import SystemClock
from holdfast.errors import Corrupt, Unavailable, present
from holdfast.plan.lookup_versions import unknown_to
from holdfast.ports import Held, Store
from holdfast.positions import Positions, covers_all
from holdfast.starts.decide import StartDecision, check_can_seek
from holdfast.starts.facts import StartFacts
from holdfast.starts.inputs import StartInputs
from holdfast.starts.restore import Restoration, left_at
from holdfast.starts.table import Spark, StartWay
from holdfast.store import sealed

log = logging.getLogger("holdfast.checkpoint")


class Beginning(Protocol):
    """How a directory begins that neither goes on nor begins where the sinks are: a fork, or a changed graph."""

    def begin(self, header: DirectoryHeader, held: Mapping[str, Held]) -> DirectoryHeader:
        """Write what the header of the directory names; return it, given that of one at the beginning."""


def act(
    decision: StartDecision, check_fenced: Callable[[], None], beginning: Beginning | None = None
) -> DirectoryHeader:
    """Do what was decided; return the header of Spark's directory, written if new.

    Parameters
    ----------
    decision : StartDecision
        What is done.
    check_fenced : callable
        Raises ``Fenced`` if a higher generation has taken the pipeline over.
    beginning : Beginning, optional
        How the directory begins, where the pipeline has not begun elsewhere yet, or its graph has changed.

    Raises
    ------
    HoldfastError
        What was decided is a refusal.
    DirectoryIsLeft
        If the directory is left, for sinks that lack what it published: the start begins anew.
    Fenced, Unavailable
        If another run has begun the directory meanwhile: a newer one, or an older one that is fenced.
    """
    facts, case = decision.facts, decision.case
    inputs = facts.inputs
    log.info("row %s of the table of starts: pipeline %r %s", case.letter, inputs.pipeline.name, case.way.value)
    if decision.refusal is not None:
        raise decision.refusal
    if case.way is StartWay.LEAVE:
        check_fenced()  # it may already be the directory of a run that took over meanwhile
        raise _leave(facts)
    header = present(decision.header, _lacks(facts, "header"), pipeline=inputs.pipeline.name)
    if case.way is StartWay.ON:
        _note_those_that_left(inputs, header)
        _begin_log(inputs, header)
        return header
    header = _seed(decision, header, check_fenced, beginning)
    _log_what_is_done(facts, header)
    return _begin_directory(facts, header, check_fenced)


def _lacks(facts: StartFacts, what: str) -> str:
    return f"case {facts.case.letter} of the table of starts has no {what}."


# --- what a header names ------------------------------------------------------------------------------------------


def _seed(
    decision: StartDecision, header: DirectoryHeader, check_fenced: Callable[[], None], beginning: Beginning | None
) -> DirectoryHeader:
    """Write everything that a header names; return the header."""
    facts, way = decision.facts, decision.case.way
    inputs = facts.inputs
    if way in (StartWay.FORK, StartWay.MOVE, StartWay.FILL):
        beginning = present(beginning, _lacks(facts, "beginning"), pipeline=inputs.pipeline.name)
        header = beginning.begin(header, facts.holders)
        if way is StartWay.FORK:
            begins = present(inputs.begins, _lacks(facts, "place to begin"), pipeline=inputs.pipeline.name)
            note_beginning(inputs.store, begins.noted, header)
        else:
            check_can_seek(facts, header)
    elif decision.seed is not None:
        header = _with_seed(decision, decision.seed, header)
    elif way is StartWay.REBUILD and not header.replayed:
        header = _cut(facts, header)
    elif way is StartWay.NEW and facts.situation.spark is Spark.NONE:
        check_fenced()
        _forget_unbegun(inputs.store)
    return header


def _forget_unbegun(store: Store) -> None:
    """Remove snapshots that this pipeline did not begin with: a start with other options died, and was given up.

    They would be taken for state of rows that sinks hold, once these hold any.
    """
    for key in snapshot_keys(store):
        store.delete(key.path)


def _with_seed(decision: StartDecision, seed: Restoration, header: DirectoryHeader) -> DirectoryHeader:
    """Return a header with the snapshot to begin with; made now where the graph wants it in another form."""
    manifest, transfer, sources = seed.manifest, decision.facts.inputs.transfer, decision.sources
    taken = {name: name for name in manifest.operators} if sources is None else sources  # into other buckets, at most
    if transfer is not None and transfer.is_needed(manifest, taken):
        manifest = transfer.made(manifest, taken)
    return replace(header, seed=manifest.key.path, kept=header.kept if sources is None else tuple(sources))


def _cut(facts: StartFacts, header: DirectoryHeader) -> DirectoryHeader:
    """Return a header that rebuilds state in epochs as the sources cut them, at times that sinks tell.

    Each has the time of the first known epoch at or after it: what was due by then is muted, and nothing later.
    """
    seek = facts.inputs.backfill.cuts(header.seek[-1], facts.holders)
    ends = [step.ended for step in facts.inputs.known_steps(facts.holders.values())]
    times: list[tuple[int, int]] = []
    for number, stop in enumerate(seek[1:], 1):
        known = [ended.batch_us for ended in ends if covers_all(ended.positions, stop)]
        if not known:
            break
        times.append((number, min(known)))
    return replace(header, base=max(header.base, len(seek)), seek=seek, replayed=tuple(times))


def _log_what_is_done(facts: StartFacts, header: DirectoryHeader) -> None:
    way, point = facts.case.way, facts.point
    if way is StartWay.REBUILD:
        log.warning("state is computed again from the beginning of the sources, in %d epochs", header.replay_count)
    if point.unsure:
        log.warning("as was accepted, state may be another one than what is lost. %s", point.why_unsure())
    if way is StartWay.SEEK and (seeing := _seeing_other_versions(facts, header)):
        log.warning(
            "what sinks lack is looked up in tables as they are now, by %s: which versions its epochs saw is not known",
            ", ".join(seeing),
        )
    if point.snapshot is not None:
        ended = point.snapshot.manifest.ended
        log.warning(
            "state is restored from the snapshot of epoch %d, made %s; %s",
            ended.epoch,
            _utc(point.snapshot.manifest.at_us),
            _what_is_replayed(point.snapshot),
        )
    if point.every_epoch is not None:
        log.warning("state is computed again, from all %d epochs since the directory before began", header.replay_count)


def _seeing_other_versions(facts: StartFacts, header: DirectoryHeader) -> Sequence[str]:
    """Return the look-ups by which some sinks get other rows than those that others hold."""
    look_ups = facts.inputs.look_ups
    if len(facts.point.stops) == 1 or not look_ups:
        return ()
    return unknown_to(facts.inputs.store, look_ups, header.replayed[0][0]) if header.replayed else look_ups


# --- what is written ----------------------------------------------------------------------------------------------


def _begin_directory(facts: StartFacts, header: DirectoryHeader, check_fenced: Callable[[], None]) -> DirectoryHeader:
    """Write what a directory begins with; its header comes last."""
    inputs = facts.inputs
    check_fenced()  # reading large state takes minutes, in which another run may have taken over
    if header.seek:
        # Durable before the directory counts: a source that leaves with it is in none of its positions.
        note_positions(inputs.store, header.base, header.seek[-1], else_known=_retired_before(inputs))
        lower_floor(inputs.store, header.seek[0])
    last, retired = inputs.last_move, _retired(inputs, header, facts.holders)
    header = replace(header, retired=retired, layout=last.layout, moved=last.moved, stood=last.stood)
    _put_header(inputs, header, check_fenced)
    _begin_log(inputs, header)
    return header


def _begin_log(inputs: StartInputs, header: DirectoryHeader) -> None:
    """Write the first entries of Spark's log where they say where its own sources begin, if they are not there.

    They follow from the header: a crash before, or between them, leaves that to the next start.
    """
    is_begun = last_logged(inputs.spark, "offsets") >= header.replay_count - 1
    if inputs.has_spark_sources and header.seek and not is_begun:
        for name, content in begun_log(header.seek[1:], SystemClock().now_us()).items():
            inputs.store.put(f"{inputs.chosen.below}/{name}", content.encode())


def _put_header(inputs: StartInputs, header: DirectoryHeader, check_fenced: Callable[[], None]) -> None:
    """Write the header of a new directory, never over that of another run: its workers use what it had read."""
    key, data = f"{inputs.chosen.below}/{FILE_NAME}", header.to_json()
    if inputs.store.put_if_absent(key, data) or inputs.store.get(key) == data:
        return
    check_fenced()
    raise Unavailable(
        f"{inputs.chosen.below} of pipeline {inputs.pipeline.name!r} was begun by another run just now.",
        why="that run was starting when this one took over.",
        do="start again: what that run left is taken into account.",
        pipeline=inputs.pipeline.name,
        participant=key,
    )


def _note_those_that_left(inputs: StartInputs, header: DirectoryHeader) -> None:
    """Record the positions of sources that leave a directory which stays in use, beside ``read.spark``."""
    if all(node.kind != "spark" for node in inputs.sources):
        return
    store, spark = inputs.store, inputs.spark
    names = [node.name for node in inputs.sources]
    left = {n: of for n, of in newest_positions(spark).items() if n not in names and n != CONTROLS}
    if left:
        note_positions(store, header.base + last_logged(spark, "offsets") + 1, left, else_known=header.retired)


def _retired(inputs: StartInputs, header: DirectoryHeader, held: Mapping[str, Held]) -> Positions:
    """Return where sources begin that have no position at the start of the directory."""
    # One that has a position there without a segment begins at its beginning: the part of a shard, say.
    known = {name: of for name, of in last_positions(inputs.store).items() if header.start.get(name, of)}
    if not header.start:  # planned from the beginning of every source that the graph has: read from there too
        names = [node.name for node in inputs.sources]
        return {name: of for name, of in known.items() if name not in names}
    if left_at(inputs.store, inputs.chosen.previous) is None:
        return known
    # It begins before some sources were added to the graph: they begin at their positions of that time.
    new = [node.name for node in inputs.sources if node.name not in header.start]
    then = positions_at(inputs.store, _begins_after(inputs, header, held))
    return {name: of for name, of in known.items() if name not in new} | {n: then[n] for n in new if n in then}


def _begins_after(inputs: StartInputs, header: DirectoryHeader, held: Mapping[str, Held]) -> int:
    """Return the last epoch before what a directory reads."""
    if header.seed:
        return decode(inputs.store.get(header.seed) or b"", header.seed).ended.epoch
    if inputs.state_schemas:
        return read_origin(inputs.previous / FILE_NAME).base
    return min((each.epoch for each in held.values() if covers_all(header.start, each.positions)), default=0)


def _retired_before(inputs: StartInputs) -> Positions:
    """Return the positions of sources that left under an older version: it recorded them in Spark's directory alone."""
    try:
        return read_origin(inputs.previous / FILE_NAME).retired
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


def _leave(facts: StartFacts) -> DirectoryIsLeft:
    """Leave Spark's directory; return the exception that makes the start begin anew."""
    inputs = facts.inputs
    start, ends = present(facts.replay, _lacks(facts, "range to replay"), pipeline=inputs.pipeline.name)
    for each in facts.behind:
        log.warning("%s", each)
    why = "; ".join(map(str, facts.behind))
    inputs.store.put(f"{inputs.chosen.below}/{LEFT}", sealed.dump({"why": why, "reached": ends}))
    log.warning("what is missing is read again, from %s on, and given to the sinks that lack it", _show(start))
    return DirectoryIsLeft()


def _show(positions: Positions) -> str:
    """Return positions as people read them."""
    parts = [
        f"{name!r} {', '.join(f'{segment}={at}' for segment, at in plain(of)[0].items()) or 'its beginning'}"
        for name, of in positions.items()
        if name != CONTROLS
    ]
    return "; ".join(parts) or "the beginning"
