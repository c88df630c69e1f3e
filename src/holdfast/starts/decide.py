"""Where a directory goes on or begins, as far as that is known before anything is written; and why it cannot.

``holdfast plan`` asks this as a start does: what a start is refused for before it writes is refused here.  Changes
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from holdfast.checkpoint.directory_header import FILE_NAME, DirectoryHeader, noted_beginning, read_origin
from holdfast.checkpoint.manifest import EpochEnd, decode
from holdfast.checkpoint.source_history import last_positions
from holdfast.checkpoint.spark_log import CONTROLS, check_logs, newest_positions, plain
from holdfast.connectors.spark import SparkSpec
from holdfast.errors import REPORT, Diverged, HoldfastError, InternalError, InvalidPipeline, present
from holdfast.graph.nodes import Node
from holdfast.ports import Held, RecordedStartSpec, SourceSpec
from holdfast.positions import Positions, SourcePositions
from holdfast.starts.facts import Findings
from holdfast.starts.graph_diff import unclaimed
from holdfast.starts.inputs import Beginning, above_all
from holdfast.starts.refusals import check_claimed
from holdfast.starts.restore import Restoration, epochs_between, planned_in
from holdfast.starts.table import Begin, Sinks, Spark, StartWay, StateSource

ANEW = (StartWay.SEEK, StartWay.RESTORE, StartWay.RECOMPUTE, StartWay.REBUILD)
"""The ways in which a directory begins where sinks, or what state comes from, say that reading begins."""

_STOPS_BY_LOG = 3
"""Where a log begins, the end of its finished batch, which is there too, and that of the one that is planned."""


@dataclass(frozen=True)
class Prepared:
    """How a directory goes on or begins, with everything looked at that can be before something is written.

    Parameters
    ----------
    header : DirectoryHeader
        Its header; the seed is not made yet.
    seed : Restoration, optional
        The snapshot that it begins with.
    sources : mapping of str to str, optional
        Operator -> the one whose state in the snapshot it takes; None: the snapshot is of the same graph.
    """

    header: DirectoryHeader
    seed: Restoration | None = None
    sources: Mapping[str, str] | None = None


def prepare(beginning: Beginning, findings: Findings, last_epoch: int) -> Prepared | None:
    """Return how a directory goes on or begins; None where the newest one is left, and the start begins again.

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
    """
    way = findings.case.way
    if way is StartWay.REFUSE:
        raise refusal(beginning, findings)
    if way is StartWay.LEAVE:
        check_no_backfill(beginning, findings.held)  # the directory that comes next could not fill it
        return None
    if way is StartWay.ON:
        return Prepared(_gone_on_with(beginning))
    new = new_header(beginning, findings, last_epoch)
    if way is StartWay.AGAIN:
        return _begun_again(beginning, new)
    if way in ANEW:
        prepared = _seeding(beginning, sought(beginning, findings, new), findings.anew.snapshot)
        check_can_seek(beginning, findings, prepared.header)
        return prepared
    return Prepared(new)


def _gone_on_with(beginning: Beginning) -> DirectoryHeader:
    spark = beginning.directory / beginning.below
    check_logs(spark)
    header = read_origin(spark / FILE_NAME)
    check_none_is_back(beginning)
    return header


def _begun_again(beginning: Beginning, new: DirectoryHeader) -> Prepared:
    """Begin where the first start noted, for a graph or buckets that may have changed since."""
    _, first = present(noted_beginning(beginning.store), "no beginning is recorded.", pipeline=beginning.pipeline)
    base = max(new.base, first.base)
    header = replace(first, base=base, graph=beginning.graph, graph_since=beginning.graph_since or base)
    return _seeding(beginning, header, noted_seed(beginning, header) if header.seed else None)


def _seeding(beginning: Beginning, header: DirectoryHeader, seed: Restoration | None) -> Prepared:
    return Prepared(header, seed, None if seed is None else seeds(beginning, seed))


def noted_seed(beginning: Beginning, header: DirectoryHeader) -> Restoration:
    """Return the snapshot with which a pipeline began that noted it."""
    manifest = decode(beginning.store.get(header.seed) or b"", header.seed)
    return Restoration(header.seeding(manifest), (), ())


def check_none_is_back(beginning: Beginning) -> None:
    """Refuse a source that left a directory which stays in use, beside ``read.spark``, and comes back.

    Raises
    ------
    InvalidPipeline
        Naming the source.
    """
    if all(node.kind != "spark" for node in beginning.sources):
        return  # every other graph gets a new directory when its sources change
    newest = newest_positions(beginning.directory / beginning.below)
    for name in [node.name for node in beginning.sources]:
        if newest and name not in newest and name in (before := last_positions(beginning.store)):
            raise InvalidPipeline(
                f"source {name!r} has left the graph, and cannot come back.",
                why=f"its last position is {dict(before[name])}; beside read.spark a directory of Spark's cannot be "
                "begun anew, and in this one Spark would read the source from its beginning: rows would be there "
                "twice.",
                do="give the source another name, and filter the rows that were published; or start over with a new "
                "checkpoint and empty targets.",
                pipeline=beginning.pipeline,
                participant=name,
            )


def new_header(beginning: Beginning, findings: Findings, last_epoch: int) -> DirectoryHeader:
    """Return the header of a directory that begins without state, above every epoch that is recorded anywhere."""
    base = above_all(beginning.store, last_epoch) + 1
    if findings.anew.reached is not None:  # planned in the directory that was left: such a number is not used again
        base = max(base, planned_in(beginning.directory / beginning.previous) + 1)
    since = beginning.graph_since or base
    return DirectoryHeader(base, findings.anew.stops, graph=beginning.graph, graph_since=since)


def sought(beginning: Beginning, findings: Findings, new: DirectoryHeader) -> DirectoryHeader:
    """Return the header of a directory that begins at the sinks' positions, or before; its seed is not made yet.

    Raises
    ------
    InvalidPipeline
        If a sink is new that is to get everything.
    """
    check_no_backfill(beginning, findings.held)
    anew = findings.anew
    if anew.snapshot is not None:
        return replace(_replaying(new, anew.snapshot.seek[0], anew.snapshot.replayed), seek=anew.snapshot.seek)
    if anew.every_epoch is not None:
        return _replaying(new, *anew.every_epoch)
    if anew.state is StateSource.SOURCES:
        ends = epochs_between([{}, *anew.stops], beginning.known_steps(findings.holders.values()))
        return replace(new, seek=({}, *anew.stops)) if ends is None else _replaying(new, {}, ends)
    if beginning.has_spark_sources and new.seek and anew.reached is None:
        return _by_log(new)
    if len(anew.stops) > 1 and (anew.reached is not None or beginning.look_ups):
        ends = epochs_between(anew.stops, beginning.known_steps(findings.holders.values()))
        if ends is not None:
            return _replaying(new, anew.stops[0], ends)
    return new


def _replaying(new: DirectoryHeader, start: Positions, ends: Sequence[EpochEnd]) -> DirectoryHeader:
    """Return a header whose first epochs are older ones, as they were."""
    times = tuple(ended.step_time for ended in ends)
    return replace(new, seek=(start, *(ended.positions for ended in ends)), replayed=times)


def _by_log(new: DirectoryHeader) -> DirectoryHeader:
    """Return a header whose first batch is finished where reading begins: so Spark takes its own sources there.

    The batch has the number of the last epoch: what a sink holds beyond is not missing (:mod:`holdfast.starts.behind`).
    """
    return replace(new, base=new.base - 1, seek=(new.seek[0], *new.seek))


def seeds(beginning: Beginning, found: Restoration) -> dict[str, str] | None:
    """Return operator -> the one whose state in a snapshot it takes; None: the snapshot is of the same graph.

    Raises
    ------
    Diverged
        If the graph has changed, and the snapshot is not of the change point.
    InvalidPipeline
        If the state of an operator does not fit, or would be dropped.
    """
    manifest = found.manifest
    transfer = beginning.transfer
    if manifest.graph == beginning.graph:
        return None
    if why := beginning.other_graph(found):
        raise Diverged(
            "the graph has changed, and Spark's part of the checkpoint, with the state of the old graph, is lost.",
            why=why,
            do="start the old graph once: it takes its state from the snapshot, and leaves a new one when it is "
            "stopped; then start the changed one.",
            pipeline=beginning.pipeline,
            epoch=manifest.ended.epoch,
        )
    sources = {name: name for name in beginning.state_schemas if name in manifest.operators}
    if transfer is not None:
        sources = transfer.sources(manifest.operators)
    fresh = [name for name in beginning.state_schemas if name not in sources]
    lost = unclaimed(manifest.state_schemas, beginning.state_schemas, sources.values(), fresh)
    check_claimed(lost, beginning.pipeline, beginning.drop_state)
    for name, was in sources.items():
        schema = manifest.operators[was].schema
        reasons = () if transfer is None else transfer.move(name, schema).reasons
        if reasons or (transfer is None and not schema.fits(beginning.state_schemas[name])):
            raise InvalidPipeline(
                f"the state of operator {name!r} does not fit the changed graph.",
                why="; ".join(reasons or ("its key or its tables have changed",)) + "; and Spark's part of the "
                "checkpoint is lost.",
                do="give the operator another name, so that it begins without state; or change it back.",
                pipeline=beginning.pipeline,
                participant=name,
            )
    return sources


def refusal(beginning: Beginning, findings: Findings) -> HoldfastError:
    """Return the error of a case that is a refusal."""
    if findings.refusal is not None:
        return findings.refusal
    if findings.found.begin is Begin.ASKED and beginning.first is not None:
        if findings.found.spark is Spark.GOOD:
            read_origin(beginning.directory / beginning.below / FILE_NAME)  # without it its beginning is unknown
        return beginning.first.refusal(findings.holders)
    if findings.found.sinks is Sinks.UNORDERED:
        return Diverged(
            "the sinks hold positions that cannot be put in an order.",
            why="they were written with different checkpoints.",
            do="restore the sinks to states that belong together.",
        )
    if findings.found.state is StateSource.UNSURE:
        return _state_is_unsure(beginning, findings)
    if findings.holders:
        return _state_is_gone(beginning, findings)
    letter = findings.case.letter
    return InternalError(f"case {letter} of the table of starts has no error.", do=REPORT)


def check_no_backfill(beginning: Beginning, held: Mapping[str, Held]) -> None:
    """Refuse a new sink that gets everything where the sinks alone say where reading begins: it would be left out."""
    for name in sorted(beginning.backfilled):
        if name in held and held[name].is_empty:
            raise InvalidPipeline(
                f"sink {name!r} is to get everything (backfill=True), and Spark's part of the checkpoint is lost.",
                why="reading continues where the other sinks are; the ends of earlier epochs are unknown.",
                do=f"start once without sink {name!r}, then with it.",
                pipeline=beginning.pipeline,
                participant=name,
            )


def _state_is_unsure(beginning: Beginning, findings: Findings) -> Diverged:
    return Diverged(
        f"Spark's part of the checkpoint {beginning.directory} is lost, and state cannot be what it was.",
        why=findings.anew.why_unsure(),
        do="restore the checkpoint's directories progress/ and lookups/ from a copy; or accept that these operators' "
        "state will be another one: start once with --rebuild-state (rebuild_state=True); or start over with a new "
        "checkpoint and empty targets.",
        pipeline=beginning.pipeline,
        participant=findings.anew.unsure[0],
    )


def _state_is_gone(beginning: Beginning, findings: Findings) -> Diverged:
    sink, held = max(findings.holders.items(), key=lambda item: item[1].epoch)
    obstacle = why_not_rebuilt(beginning, findings.anew.stops[-1])
    rebuild = (
        "or let it be computed again from the sources, which still give everything: start once with --rebuild-state "
        "(rebuild_state=True); "
    )
    return Diverged(
        f"Spark's part of the checkpoint {beginning.directory} is new, and sink {sink!r} holds epoch {held.epoch}.",
        why=f"either the state of {', '.join(beginning.state_schemas)} was in it, and no snapshot serves; or the sink "
        "was written with another checkpoint. Without that state, what comes next would be wrong."
        + "".join(f" {each}" for each in findings.anew.passed_over)
        + (f" It cannot be computed again from the sources: {obstacle}" if obstacle else ""),
        do="start with the checkpoint that the sink was written with; if it is damaged, restore it, or its directory "
        f"snapshots/; {'' if obstacle else rebuild}or give the sinks new targets; or empty the targets and their "
        "holdfast_ledger rows (files: the _holdfast directory), and start over.",
        participant=sink,
        epoch=held.epoch,
    )


def why_not_rebuilt(beginning: Beginning, end: Positions) -> str:
    """Return why state cannot be computed again from the sources, up to some positions; empty where it can."""
    if beginning.began_with:
        return f"the pipeline began with {beginning.began_with}."
    here = {CONTROLS, *(node.name for node in beginning.sources)}
    if left := sorted(end.keys() - here):
        return f"source {left[0]!r}, whose rows are in it, has left the graph."
    obstacles = []
    for node in [node for node in beginning.sources if node.name in end]:
        start: SourcePositions | None = {}
        if isinstance(node.spec, RecordedStartSpec):
            start = node.spec.recorded_start(node.name, beginning.workspace(node.name))
        if start is None:
            obstacles.append(f"where reading of source {node.name!r} began is not known any more.")
        elif why := _obstacle(beginning, node, {node.name: start}, _plain(end)):
            obstacles.append(why)
    return " ".join(obstacles)


def check_can_seek(beginning: Beginning, findings: Findings, header: DirectoryHeader) -> None:
    """Refuse sources that cannot be taken to where a directory begins, or to where its replays end.

    Raises
    ------
    Diverged
        Naming the source.
    """
    if not header.seek or not findings.holders:
        return
    sink, held = max(findings.holders.items(), key=lambda item: item[1].epoch)
    start, end = (_plain(each) for each in (header.seek[0], header.seek[-1]))
    obstacles = [each for node in beginning.sources if (each := _obstacle(beginning, node, start, end))]
    if findings.case.way is StartWay.REBUILD and (why := why_not_rebuilt(beginning, end)):
        obstacles = [why]
    if beginning.has_spark_sources and not obstacles:
        obstacles = _not_by_log(findings, header)
    if obstacles:
        raise Diverged(
            f"Spark's part of the checkpoint {beginning.directory} is new, and sink {sink!r} holds epoch {held.epoch} "
            "of the pipeline.",
            why=" ".join(obstacles),
            do="start with the checkpoint that the sink was written with; or bring back what is gone, as it was; if "
            "both are lost, empty the targets and their holdfast_ledger rows (files: the _holdfast directory) and "
            "start over, or give the pipeline another name.",
            participant=sink,
            epoch=held.epoch,
        )


def _not_by_log(findings: Findings, header: DirectoryHeader) -> list[str]:
    """Return why Spark's log cannot be begun where the sinks are: it has room for one epoch that is planned."""
    if findings.case.way is not StartWay.SEEK or findings.anew.reached is not None:
        return ["beside read.spark nothing is evaluated again: its positions are those of Spark's own checkpoint."]
    if len(header.seek) > _STOPS_BY_LOG:
        stand = len(header.seek) - 1
        return [f"the sinks stand at {stand} different positions, and beside read.spark they may stand at two."]
    return []


def _plain(positions: Positions) -> Positions:
    return {name: plain(of)[0] for name, of in positions.items()}


def _obstacle(beginning: Beginning, node: Node, start: Positions, end: Positions) -> str:
    """Return why a source cannot be taken to where a directory begins, or not be read up to where its replays end."""
    at, until = start.get(node.name), end.get(node.name)
    if at is None and until is None:
        return ""  # nothing of it was read
    spec, workspace = cast("SourceSpec", node.spec), beginning.workspace(node.name)
    if isinstance(spec, SparkSpec):
        why = spec.seek_obstacle()
    else:
        why = spec.obstacle(node.name, workspace, at or {}, until if at != until else None)
    return f"source {node.name!r} cannot be taken to the positions that the sinks hold: {why}" if why else ""
