"""What a start finds, in the words of the table of starts (:mod:`holdfast.starts.table`).  Changes nothing.

A start, ``holdfast plan``, ``holdfast resolve`` and a rewind look here, so that they are refused the same.

*A checkpoint that is older than its sinks*: their positions are beyond those that it has for its sources.  The meaning
of a position is durable in the checkpoint (or the feed) before the source returns it, so no crash leads here: the
checkpoint was restored from a copy.  A file log would continue from there with other files under the same positions,
and a sink knows only these numbers: rows would be skipped as if the sink held them.

*Sinks that are behind*: what a sink holds is compared with Spark's log at every start, before the first epoch, whether
new rows arrive or not (:mod:`holdfast.starts.behind`).  What it lacks is replayed, where every source can still deliver
the range; else the start is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

from holdfast.checkpoint.directory_header import FILE_NAME, noted_beginning
from holdfast.checkpoint.last_move import check_none_is_before
from holdfast.checkpoint.participation import Participation
from holdfast.checkpoint.spark_log import newest_positions
from holdfast.commit.takeover import Expired
from holdfast.errors import Diverged, HoldfastError
from holdfast.graph.graph import Graph
from holdfast.graph.nodes import Node
from holdfast.ports import Held
from holdfast.positions import Positions, lacking
from holdfast.starts.behind import Behind, behind, ranges_text, reached, unreadable
from holdfast.starts.inputs import StartInputs, StartPoint
from holdfast.starts.restore import left_at
from holdfast.starts.rewind_target import check_none_holds_withdrawn
from holdfast.starts.table import Begin, ResumeCase, Sinks, Situation, Spark, StateSource, case_of


@dataclass(frozen=True)
class StartFacts:
    """What was found, and the facts for each column of the table.

    Parameters
    ----------
    inputs : StartInputs
        What it was looked for with.
    held : mapping of str to Held
        What each sink holds.
    last_epoch : int
        Highest epoch that any sink or the ledger knows.
    situation : Situation
        What was found, in the words of the table.
    refusal : HoldfastError, optional
        Why the sinks contradict the checkpoint, or cannot be given what they lack.
    behind : tuple of Behind
        Sinks that lack what was published in them.
    replay : (Positions, Positions), optional
        Start and end of the range that is read again for those.
    point : StartPoint
        Where a directory begins that goes on with none.
    """

    inputs: StartInputs
    held: Mapping[str, Held]
    last_epoch: int
    situation: Situation
    refusal: HoldfastError | None = None
    behind: tuple[Behind, ...] = ()
    replay: tuple[Positions, Positions] | None = None
    point: StartPoint = field(default_factory=StartPoint)

    @cached_property
    def case(self) -> ResumeCase:
        """The row of the table."""
        return case_of(self.situation)

    def is_of_all(self, pipeline: Graph) -> bool:
        """Whether a start of a pipeline would find the same, though sinks that only it can ask were not asked."""
        # Where Spark's log does not say what was published in them, a start asks them.
        return self.situation.spark.has_log or all(sink.name in self.held for sink in pipeline.sinks)

    @property
    def holders(self) -> dict[str, Held]:
        """The sinks that hold something."""
        return {name: each for name, each in self.held.items() if not each.is_empty}


def look(
    inputs: StartInputs, held: Mapping[str, Held], last_epoch: int = 0, remembering: Collection[str] | None = None
) -> StartFacts:
    """Return what a start finds.

    Parameters
    ----------
    inputs : StartInputs
        Spark's directory, and what it is for.
    held : mapping of str to Held
        What each sink holds, with everything resolved.
    last_epoch : int
        Highest epoch that any sink or the ledger knows.
    remembering : collection of str, optional
        Those of them that know what another process published; all, where it is not given.

    Raises
    ------
    Corrupt
        If a record of the checkpoint cannot be read.
    """
    names = held.keys() if remembering is None else remembering
    # Another run may have begun the same directory since it was chosen.
    spark, begin = Spark.GOOD if inputs.has_begun else inputs.chosen.spark, _begin(inputs)
    facts = StartFacts(inputs, held, last_epoch, Situation(spark, Sinks.EMPTY, begin))

    def stand(sinks: Sinks, state: StateSource = StateSource.NONE) -> Situation:
        return Situation(spark, sinks, begin, state)

    if refusal := _contradiction(inputs, held, names):
        return replace(facts, situation=stand(Sinks.CONTRADICTING), refusal=refusal)
    if spark.has_log:
        remembered = _remembered(inputs, held, names)
        lacking = lagging(inputs, remembered)
        if not lacking:
            return replace(facts, situation=stand(Sinks.LEVEL)) if facts.holders else facts
        try:
            replay = replay_of(inputs, lacking, remembered)
        except Diverged as error:
            return replace(facts, situation=stand(Sinks.LOST), refusal=error, behind=lacking)
        return replace(facts, situation=stand(Sinks.BEHIND), behind=lacking, replay=replay)
    if not facts.holders:
        return facts
    if begin is Begin.ASKED:  # refused, wherever they are: to look for state costs reading snapshots
        return replace(facts, situation=stand(Sinks.LEVEL))
    point = inputs.start_point([*facts.holders.values()], left_at(inputs.store, inputs.chosen.previous))
    if point is None:
        return replace(facts, situation=stand(Sinks.UNORDERED))
    return replace(facts, situation=stand(Sinks.LEVEL, point.state), point=point)


def check_replayable(
    inputs: StartInputs, behind: Collection[str], held: Mapping[str, Held], remembering: Collection[str]
) -> None:
    """Refuse sinks that have lost what is done in them, if it cannot be replayed, while open decisions stay open.

    Once they are resolved, what was decided for such a sink and not yet published in it is only in the sources: a copy
    of the sink that has everything published would not have that either.  And if a sink is another one by mistake, its
    open decisions must stay.

    Parameters
    ----------
    inputs : StartInputs
        As for :func:`look`.
    behind : collection of str
        The sinks.
    held, remembering
        As for :func:`look`; nothing is resolved yet.

    Raises
    ------
    Diverged
        If it cannot.  Nothing is changed.
    """
    store, pipeline = inputs.store, inputs.pipeline.name
    Participation(pipeline, store, remembering).check({name: held[name] for name in behind})
    check_none_holds_withdrawn(store, pipeline, behind, held)
    remembered = _remembered(inputs, held, remembering)
    if lacking := [each for each in lagging(inputs, remembered) if each.sink in behind]:
        replay_of(inputs, lacking, remembered)


def check_given_again(
    inputs: StartInputs, expired: Sequence[Expired], held: Mapping[str, Held], remembering: Collection[str]
) -> None:
    """Refuse to revoke decisions of which staged rows are gone, if the sources cannot give their rows again.

    What is left of them, and what later decisions have for those sinks, stays where it is then.

    Parameters
    ----------
    inputs : StartInputs
        As for :func:`look`.
    expired : sequence of Expired
        What would be revoked.
    held, remembering
        As for :func:`look`; nothing is resolved yet.

    Raises
    ------
    Diverged
        If they cannot.  Nothing is changed.
    """
    revoked = {each.sink: _without(each, held[each.sink]) for each in expired}
    for each in expired:
        at = revoked[each.sink]
        if (lacks := lagging(inputs, {each.sink: at})) and each.sink not in remembering:
            raise cannot_give_again(inputs, each, "Spark has finished it, and the sink cannot say what it holds.")
        if lacks or inputs.chosen.spark.is_changed:
            others = {name: of for name, of in _remembered(inputs, held, remembering).items() if name != each.sink}
            reason = why_not_replayed(inputs, lacks, {**others, each.sink: at})
        else:  # Spark has not finished it: it evaluates it again, as it was planned
            lost = Behind(each.sink, at, each.epochs[-1], lacking(at.positions, each.until))
            reason = " ".join(unreadable([lost], at.positions, inputs.sources, inputs.workspace, inputs.store))
        if reason:
            raise cannot_give_again(inputs, each, reason)


def _without(expired: Expired, held: Held) -> Held:
    """Return what a sink holds when nothing of what has expired is published in it."""
    stops = (expired.until,) if held.is_empty else held.stops
    return replace(held, positions=expired.after, stops=stops)


def _remembered(inputs: StartInputs, held: Mapping[str, Held], remembering: Collection[str]) -> dict[str, Held]:
    return {name: held[name] for name in remembering if name not in inputs.chosen.filling}


def _begin(inputs: StartInputs) -> Begin:
    noted = noted_beginning(inputs.store)
    if inputs.begins is not None and (noted is None or noted[0] != inputs.begins.noted):
        return Begin.ASKED
    # Asked for in the same words: another run of this program has begun while this one started.
    return Begin.START if noted is None else Begin.NOTED


def _contradiction(inputs: StartInputs, held: Mapping[str, Held], remembering: Collection[str]) -> HoldfastError | None:
    """Return why a sink contradicts the checkpoint: it was emptied, or holds what a rewind withdrew, or more."""
    store, pipeline = inputs.store, inputs.pipeline.name
    checks: tuple[Callable[[], None], ...] = (
        partial(Participation(pipeline, store, remembering).check, held),
        partial(check_none_holds_withdrawn, store, pipeline, remembering, held),
        partial(check_none_is_before, inputs.last_move, held, remembering, pipeline),
        partial(check_reached, inputs, held),
    )
    for check in checks:
        try:
            check()
        except Diverged as error:
            return error
    return None


def check_reached(inputs: StartInputs, held: Mapping[str, Held]) -> None:
    """Refuse to begin or go on with a checkpoint that is older than a sink.  Changes nothing.

    Parameters
    ----------
    inputs : StartInputs
        Spark's directory, and the sources.
    held : mapping of str to Held
        What each sink holds.

    Raises
    ------
    Diverged
        If a sink holds positions of a source that the source has not reached.
    """
    if not inputs.chosen.spark.is_changed and not (inputs.spark / FILE_NAME).exists():
        return  # Spark's directory is lost: beginning a new one checks whether sources can be read from there
    logged = {**newest_positions(inputs.previous), **newest_positions(inputs.spark)}
    for node in inputs.sources:
        reached = node.source_spec.reached(node.name, inputs.workspace(node.name))
        for segment, known in reached.items():
            if _at(logged, node, segment) > int(known):
                continue  # the source's own files were lost, and Spark's log was not: planning reports it
            for sink in sorted(held):
                at = _at(held[sink].positions, node, segment)
                if at > int(known):
                    raise _older(inputs, node.name, int(known), sink, held[sink], at)


def _at(positions: Positions, node: Node, segment: str) -> int:
    return int(positions.get(node.name, {}).get(segment, 0))


def _older(inputs: StartInputs, source: str, known: int, sink: str, held: Held, at: int) -> Diverged:
    return Diverged(
        f"sink {sink!r} holds source {source!r} up to position {at}, and checkpoint {inputs.directory} knows of "
        f"{known}.",
        why="the checkpoint is older than the sink: it was restored from a copy. What it would read next may be other "
        "rows than those that the sink holds under these positions.",
        do="start with the newer checkpoint, which the sink was written with; or bring the sink to the moment of this "
        "copy: restore it too; or, if it can withdraw rows, holdfast rewind --to the last epoch of the copy.",
        pipeline=inputs.pipeline.name,
        participant=sink,
        epoch=held.epoch,
    )


log = logging.getLogger("holdfast.checkpoint")


_CHANGED = "the graph has changed as well, and only the old graph can replay what it published."


def lagging(inputs: StartInputs, held: Mapping[str, Held]) -> tuple[Behind, ...]:
    """Return the sinks that lack what was published in them, as far as Spark's directory can tell.

    Parameters
    ----------
    inputs : StartInputs
        Spark's directory.
    held : mapping of str to Held
        What each sink with a ledger holds.
    """
    return behind(_spark(inputs), held)


def _spark(inputs: StartInputs) -> Path:
    return inputs.previous if inputs.chosen.spark.is_changed else inputs.spark


def replay_of(inputs: StartInputs, found: Sequence[Behind], held: Mapping[str, Held]) -> tuple[Positions, Positions]:
    """Return the start and the end of the range that is read again for sinks that lack something.

    Raises
    ------
    Diverged
        If that cannot be.
    """
    if inputs.chosen.spark.is_changed:
        raise _refusal(
            inputs,
            found,
            _CHANGED,
            "start the old graph with this sink once: it replays what is missing; then the changed one. Or give the "
            "sink another name: it is a new one then.",
        )
    ends = reached(found)
    start, why = _range_read_again(inputs, found, held, ends)
    if why:
        raise _refusal(inputs, found, why, "")
    return start, ends


def why_not_replayed(inputs: StartInputs, found: Sequence[Behind], held: Mapping[str, Held]) -> str:
    """Say why what sinks lack cannot be read again; empty where it can.  Parameters as those of :func:`replay_of`."""
    if inputs.chosen.spark.is_changed:
        return f"{_CHANGED} Start the old graph once, then the changed one."
    return _range_read_again(inputs, found, held, reached(found))[1]


def cannot_give_again(inputs: StartInputs, expired: Expired, why: str) -> Diverged:
    """Return the error of a decision that can neither be carried out nor be revoked."""
    lacks = ranges_text(lacking(expired.after, expired.until))
    return Diverged(
        f"{expired}, and it cannot be read again: {expired.row_count} rows, {lacks}.",
        why=f"somebody removed what was staged: a prepared transaction, a staging table, staged files. {why}",
        do="bring back what was staged, or what the source needs to give its rows again, and start: the rest is done "
        "by itself; or restore the checkpoint and all sinks from the same moment; or start over with a new checkpoint "
        "and empty targets.",
        pipeline=inputs.pipeline.name,
        participant=expired.sink,
        epoch=expired.epochs[0],
    )


def _range_read_again(
    inputs: StartInputs, found: Sequence[Behind], held: Mapping[str, Held], ends: Positions
) -> tuple[Positions, str]:
    """Return where reading begins again, and why that cannot be; empty where it can."""
    left = replace(inputs, chosen=replace(inputs.chosen, previous=inputs.chosen.below))
    start, why = _read_again_from(left, held, ends)
    if why:
        return start, why
    return start, " ".join(unreadable(found, start, inputs.sources, inputs.workspace, inputs.store))


def _read_again_from(inputs: StartInputs, held: Mapping[str, Held], reached: Positions) -> tuple[Positions, str]:
    """Return where reading would begin if the directory before were left, and why that cannot be.

    ``reached``: the positions up to which that directory had published.
    """
    point = inputs.start_point([each for each in held.values() if not each.is_empty], reached)
    if point is None:
        return {}, "The sinks hold positions that cannot be put in an order."
    if point.state is StateSource.UNSURE:
        return {}, point.why_unsure()
    if point.snapshot is not None:
        why = inputs.other_graph(point.snapshot)
        return point.snapshot.manifest.ended.positions, f"{why[0].upper()}{why[1:]}" if why else ""
    if point.every_epoch is not None:
        return point.every_epoch[0], ""
    if point.state is StateSource.NONE:
        return point.stops[0], ""
    if point.state is StateSource.SOURCES:
        return {}, ""
    names = ", ".join(inputs.state_schemas)
    more = "".join(f" {each}." for each in point.passed_over)
    return {}, f"No snapshot has the state of {names} before that, and not every epoch since the start is known.{more}"


def _refusal(inputs: StartInputs, found: Sequence[Behind], why: str, do: str) -> Diverged:
    first = min(found, key=lambda each: each.held.epoch)
    sinks = " and ".join(repr(each.sink) for each in found)
    return Diverged(
        f"sink {first.sink!r} has lost what was published after epoch {first.held.epoch}, up to epoch "
        f"{first.published}.",
        why=f"the sink failed over to a copy that lagged, was restored from a backup, or replaced. {why}",
        do=do
        or f"restore sink {sinks} to a state that holds epoch {first.published}; or bring back what the source needs "
        "to give its rows again, and start: the rest is done by itself; or restore the checkpoint and all sinks from "
        "the same moment; or start over with a new checkpoint and empty targets.",
        pipeline=inputs.pipeline.name,
        participant=first.sink,
        epoch=first.published,
    )
