"""What is done for what was found, as far as that is known before anything is written; and why it cannot be.

A start, ``holdfast plan`` and a rewind ask this: what a start is refused for before it writes is refused here.  Changes
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.capabilities import offers
from holdfast.checkpoint.directory_header import FILE_NAME, DirectoryHeader, noted_beginning, read_origin
from holdfast.checkpoint.manifest import EpochEnd, decode
from holdfast.checkpoint.source_history import last_positions
from holdfast.checkpoint.spark_log import CONTROLS, check_logs, newest_positions, plain
from holdfast.connectors.spark import SparkSpec
from holdfast.errors import REPORT, Diverged, HoldfastError, InternalError, InvalidPipeline, present
from holdfast.graph.nodes import Node
from holdfast.ports import RecordedStartSpec
from holdfast.positions import Positions, SourcePositions
from holdfast.starts.facts import StartFacts
from holdfast.starts.graph_diff import unclaimed
from holdfast.starts.inputs import StartInputs, above_all
from holdfast.starts.refusals import check_claimed
from holdfast.starts.restore import Restoration, epochs_between, planned_in
from holdfast.starts.table import Begin, ResumeCase, Sinks, Spark, StartWay, StateSource

AT_SINKS = (StartWay.SEEK, StartWay.RESTORE, StartWay.RECOMPUTE, StartWay.REBUILD)
"""The ways in which a directory begins where sinks, or what state comes from, say that reading begins."""

_STOPS_BY_LOG = 3
"""Where a log begins, the end of its finished batch, which is there too, and that of the one that is planned."""


@dataclass(frozen=True)
class StartDecision:
    """What a start does, with everything looked at that can be before something is written.

    Parameters
    ----------
    facts : StartFacts
        What it follows from.
    header : DirectoryHeader, optional
        That of the directory that goes on or begins; its seed is not made yet.  None where the newest directory is
        left and the start begins again, and where it is refused before that is known.
    seed : Restoration, optional
        The snapshot that the directory begins with.
    sources : mapping of str to str, optional
        Operator -> the one whose state in the snapshot it takes; None: the snapshot is of the same graph.
    refusal : HoldfastError, optional
        Why the start is refused.
    """

    facts: StartFacts
    header: DirectoryHeader | None = None
    seed: Restoration | None = None
    sources: Mapping[str, str] | None = None
    refusal: HoldfastError | None = None

    @property
    def case(self) -> ResumeCase:
        """The row of the table."""
        return self.facts.case


def decide(facts: StartFacts) -> StartDecision:
    """Return what is done for what was found; a refusal is an answer, not raised.  Changes nothing.

    Refused is a case of the table that is a refusal; a source that cannot seek to the positions of the sinks; state of
    a snapshot that does not fit; and Spark's files that are there without their header, or damaged.
    """
    way, header = facts.case.way, None
    try:
        if way is StartWay.REFUSE:
            return StartDecision(facts, refusal=refusal(facts))
        if way is StartWay.LEAVE:
            check_no_backfill(facts)  # the directory that comes next could not fill it
            return StartDecision(facts)
        if way is StartWay.ON:
            return StartDecision(facts, _header_of_now(facts.inputs))
        if way is StartWay.AGAIN:
            header = _header_as_noted(facts)
            return _with_snapshot(facts, header, noted_seed(facts.inputs, header) if header.seed else None)
        if way in AT_SINKS:
            header = _header_at_sinks(facts)
            decision = _with_snapshot(facts, header, facts.point.snapshot)
            check_can_seek(facts, header)
            return decision
        return StartDecision(facts, new_header(facts))
    except HoldfastError as error:
        return StartDecision(facts, header, refusal=error)


def _header_of_now(inputs: StartInputs) -> DirectoryHeader:
    check_logs(inputs.spark)
    header = read_origin(inputs.spark / FILE_NAME)
    check_none_is_back(inputs)
    return header


def _header_as_noted(facts: StartFacts) -> DirectoryHeader:
    """Return that of the first start, for a graph or buckets that may have changed since."""
    inputs, new = facts.inputs, new_header(facts)
    _, first = present(noted_beginning(inputs.store), "no beginning is recorded.", pipeline=inputs.pipeline.name)
    base = max(new.base, first.base)
    return replace(first, base=base, graph=inputs.graph, graph_since=inputs.graph_since or base)


def _with_snapshot(facts: StartFacts, header: DirectoryHeader, seed: Restoration | None) -> StartDecision:
    return StartDecision(facts, header, seed, None if seed is None else seeds(facts.inputs, seed))


def noted_seed(inputs: StartInputs, header: DirectoryHeader) -> Restoration:
    """Return the snapshot with which a pipeline began that noted it."""
    manifest = decode(inputs.store.get(header.seed) or b"", header.seed)
    return Restoration(header.seeding(manifest), (), ())


def check_none_is_back(inputs: StartInputs) -> None:
    """Refuse a source that left a directory which stays in use, beside ``read.spark``, and comes back.

    Raises
    ------
    InvalidPipeline
        Naming the source.
    """
    if all(node.kind != "spark" for node in inputs.sources):
        return  # every other graph gets a new directory when its sources change
    newest = newest_positions(inputs.spark)
    for name in [node.name for node in inputs.sources]:
        if newest and name not in newest and name in (before := last_positions(inputs.store)):
            raise InvalidPipeline(
                f"source {name!r} has left the graph, and cannot come back.",
                why=f"its last position is {dict(before[name])}; beside read.spark a directory of Spark's cannot be "
                "begun anew, and in this one Spark would read the source from its beginning: rows would be there "
                "twice.",
                do="give the source another name, and filter the rows that were published; or start over with a new "
                "checkpoint and empty targets.",
                pipeline=inputs.pipeline.name,
                participant=name,
            )


def new_header(facts: StartFacts) -> DirectoryHeader:
    """Return the header of a directory that begins without state, above every epoch that is recorded anywhere."""
    inputs, point = facts.inputs, facts.point
    base = above_all(inputs.store, facts.last_epoch) + 1
    if point.reached is not None:  # planned in the directory that was left: such a number is not used again
        base = max(base, planned_in(inputs.previous) + 1)
    since = inputs.graph_since or base
    return DirectoryHeader(base, point.stops, graph=inputs.graph, graph_since=since)


def _header_at_sinks(facts: StartFacts) -> DirectoryHeader:
    """Return that of a directory that begins at the sinks' positions, or before.

    Raises
    ------
    InvalidPipeline
        If a sink is new that is to get everything.
    """
    check_no_backfill(facts)
    inputs, point, new = facts.inputs, facts.point, new_header(facts)
    if point.snapshot is not None:
        return replace(_replaying(new, point.snapshot.seek[0], point.snapshot.replayed), seek=point.snapshot.seek)
    if point.every_epoch is not None:
        return _replaying(new, *point.every_epoch)
    if point.state is StateSource.SOURCES:
        ends = epochs_between([{}, *point.stops], inputs.known_steps(facts.holders.values()))
        return replace(new, seek=({}, *point.stops)) if ends is None else _replaying(new, {}, ends)
    if inputs.has_spark_sources and new.seek and point.reached is None:
        return _by_log(new)
    if len(point.stops) > 1 and (point.reached is not None or inputs.look_ups):
        ends = epochs_between(point.stops, inputs.known_steps(facts.holders.values()))
        if ends is not None:
            return _replaying(new, point.stops[0], ends)
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


def seeds(inputs: StartInputs, found: Restoration) -> dict[str, str] | None:
    """Return operator -> the one whose state in a snapshot it takes; None: the snapshot is of the same graph.

    Raises
    ------
    Diverged
        If the graph has changed, and the snapshot is not of the change point.
    InvalidPipeline
        If the state of an operator does not fit, or would be dropped.
    """
    manifest = found.manifest
    transfer = inputs.transfer
    if manifest.graph == inputs.graph:
        return None
    if why := inputs.other_graph(found):
        raise Diverged(
            "the graph has changed, and Spark's part of the checkpoint, with the state of the old graph, is lost.",
            why=why,
            do="start the old graph once: it takes its state from the snapshot, and leaves a new one when it is "
            "stopped; then start the changed one.",
            pipeline=inputs.pipeline.name,
            epoch=manifest.ended.epoch,
        )
    sources = {name: name for name in inputs.state_schemas if name in manifest.operators}
    if transfer is not None:
        sources = transfer.sources(manifest.operators)
    fresh = [name for name in inputs.state_schemas if name not in sources]
    lost = unclaimed(manifest.state_schemas, inputs.state_schemas, sources.values(), fresh)
    check_claimed(lost, inputs.pipeline.name, inputs.drop_state)
    for name, was in sources.items():
        schema = manifest.operators[was].schema
        reasons = () if transfer is None else transfer.move(name, schema).reasons
        if reasons or (transfer is None and not schema.fits(inputs.state_schemas[name])):
            raise InvalidPipeline(
                f"the state of operator {name!r} does not fit the changed graph.",
                why="; ".join(reasons or ("its key or its tables have changed",)) + "; and Spark's part of the "
                "checkpoint is lost.",
                do="give the operator another name, so that it begins without state; or change it back.",
                pipeline=inputs.pipeline.name,
                participant=name,
            )
    return sources


def refusal(facts: StartFacts) -> HoldfastError:
    """Return the error of a case that is a refusal."""
    inputs = facts.inputs
    if facts.refusal is not None:
        return facts.refusal
    if facts.situation.begin is Begin.ASKED and inputs.begins is not None:
        if facts.situation.spark is Spark.GOOD:
            read_origin(inputs.spark / FILE_NAME)  # without it its beginning is unknown
        return inputs.begins.refusal(inputs.pipeline.name, noted_beginning(inputs.store), facts.holders)
    if facts.situation.sinks is Sinks.UNORDERED:
        return Diverged(
            "the sinks hold positions that cannot be put in an order.",
            why="they were written with different checkpoints.",
            do="restore the sinks to states that belong together.",
        )
    if facts.situation.state is StateSource.UNSURE:
        return _state_is_unsure(facts)
    if facts.holders:
        return _state_is_gone(facts)
    letter = facts.case.letter
    return InternalError(f"case {letter} of the table of starts has no error.", do=REPORT)


def check_no_backfill(facts: StartFacts) -> None:
    """Refuse a new sink that gets everything where the sinks alone say where reading begins: it would be left out."""
    inputs, held = facts.inputs, facts.held
    for name in sorted(sink.name for sink in inputs.pipeline.sinks if sink.backfill):
        if name in held and held[name].is_empty:
            raise InvalidPipeline(
                f"sink {name!r} is to get everything (backfill=True), and Spark's part of the checkpoint is lost.",
                why="reading continues where the other sinks are; the ends of earlier epochs are unknown.",
                do=f"start once without sink {name!r}, then with it.",
                pipeline=inputs.pipeline.name,
                participant=name,
            )


def _state_is_unsure(facts: StartFacts) -> Diverged:
    inputs = facts.inputs
    return Diverged(
        f"Spark's part of the checkpoint {inputs.directory} is lost, and state cannot be what it was.",
        why=facts.point.why_unsure(),
        do="restore the checkpoint's directories progress/ and lookups/ from a copy; or accept that these operators' "
        "state will be another one: start once with --rebuild-state (rebuild_state=True); or start over with a new "
        "checkpoint and empty targets.",
        pipeline=inputs.pipeline.name,
        participant=facts.point.unsure[0],
    )


def _state_is_gone(facts: StartFacts) -> Diverged:
    inputs = facts.inputs
    sink, held = max(facts.holders.items(), key=lambda item: item[1].epoch)
    obstacle = why_not_rebuilt(inputs, facts.point.stops[-1])
    rebuild = (
        "or let it be computed again from the sources, which still give everything: start once with --rebuild-state "
        "(rebuild_state=True); "
    )
    return Diverged(
        f"Spark's part of the checkpoint {inputs.directory} is new, and sink {sink!r} holds epoch {held.epoch}.",
        why=f"either the state of {', '.join(inputs.state_schemas)} was in it, and no snapshot serves; or the sink "
        "was written with another checkpoint. Without that state, what comes next would be wrong."
        + "".join(f" {each}" for each in facts.point.passed_over)
        + (f" It cannot be computed again from the sources: {obstacle}" if obstacle else ""),
        do="start with the checkpoint that the sink was written with; if it is damaged, restore it, or its directory "
        f"snapshots/; {'' if obstacle else rebuild}or give the sinks new targets; or empty the targets and their "
        "holdfast_ledger rows (files: the _holdfast directory), and start over.",
        participant=sink,
        epoch=held.epoch,
    )


def why_not_rebuilt(inputs: StartInputs, end: Positions) -> str:
    """Return why state cannot be computed again from the sources, up to some positions; empty where it can."""
    if inputs.began_with:
        return f"the pipeline began with {inputs.began_with}."
    here = {CONTROLS, *(node.name for node in inputs.sources)}
    if left := sorted(end.keys() - here):
        return f"source {left[0]!r}, whose rows are in it, has left the graph."
    obstacles = []
    for node in [node for node in inputs.sources if node.name in end]:
        start: SourcePositions | None = {}
        if offers(node.spec, RecordedStartSpec):
            start = node.spec.recorded_start(node.name, inputs.workspace(node.name))
        if start is None:
            obstacles.append(f"where reading of source {node.name!r} began is not known any more.")
        elif why := _obstacle(inputs, node, {node.name: start}, _plain(end)):
            obstacles.append(why)
    return " ".join(obstacles)


def check_can_seek(facts: StartFacts, header: DirectoryHeader) -> None:
    """Refuse sources that cannot be taken to where a directory begins, or to where its replays end.

    Raises
    ------
    Diverged
        Naming the source.
    """
    if not header.seek or not facts.holders:
        return
    inputs = facts.inputs
    sink, held = max(facts.holders.items(), key=lambda item: item[1].epoch)
    start, end = (_plain(each) for each in (header.seek[0], header.seek[-1]))
    obstacles = [each for node in inputs.sources if (each := _obstacle(inputs, node, start, end))]
    if facts.case.way is StartWay.REBUILD and (why := why_not_rebuilt(inputs, end)):
        obstacles = [why]
    if inputs.has_spark_sources and not obstacles:
        obstacles = _not_by_log(facts, header)
    if obstacles:
        raise Diverged(
            f"Spark's part of the checkpoint {inputs.directory} is new, and sink {sink!r} holds epoch {held.epoch} "
            "of the pipeline.",
            why=" ".join(obstacles),
            do="start with the checkpoint that the sink was written with; or bring back what is gone, as it was; if "
            "both are lost, empty the targets and their holdfast_ledger rows (files: the _holdfast directory) and "
            "start over, or give the pipeline another name.",
            participant=sink,
            epoch=held.epoch,
        )


def _not_by_log(facts: StartFacts, header: DirectoryHeader) -> list[str]:
    """Return why Spark's log cannot be begun where the sinks are: it has room for one epoch that is planned."""
    if facts.case.way is not StartWay.SEEK or facts.point.reached is not None:
        return ["beside read.spark nothing is evaluated again: its positions are those of Spark's own checkpoint."]
    if len(header.seek) > _STOPS_BY_LOG:
        stand = len(header.seek) - 1
        return [f"the sinks stand at {stand} different positions, and beside read.spark they may stand at two."]
    return []


def _plain(positions: Positions) -> Positions:
    return {name: plain(of)[0] for name, of in positions.items()}


def _obstacle(inputs: StartInputs, node: Node, start: Positions, end: Positions) -> str:
    """Return why a source cannot be taken to where a directory begins, or not be read up to where its replays end."""
    at, until = start.get(node.name), end.get(node.name)
    if at is None and until is None:
        return ""  # nothing of it was read
    spec, workspace = node.source_spec, inputs.workspace(node.name)
    if isinstance(spec, SparkSpec):
        why = spec.seek_obstacle()
    else:
        why = spec.obstacle(node.name, workspace, at or {}, until if at != until else None)
    return f"source {node.name!r} cannot be taken to the positions that the sinks hold: {why}" if why else ""
