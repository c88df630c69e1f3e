"""What a changed graph is refused for, before anything runs: said alike by ``holdfast plan`` and by a start."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from holdfast.checkpoint.graph_record import Role
from holdfast.errors import InvalidPipeline
from holdfast.starts.graph_diff import GraphChange, NodeVerdict, Replay

_FORCE = "or start with --force (HOLDFAST_FORCE_GRAPH_CHANGE=true)"


def check_change(change: GraphChange, pipeline: str, *, is_forced: bool, drop_state: Collection[str] = ()) -> None:
    """Refuse a change by which state would be lost, rows come twice, or a finished node be taken up again.

    Parameters
    ----------
    change : GraphChange
        What becomes of every node.
    pipeline : str
        Whose it is.
    is_forced : bool
        Operators whose state does not fit begin without, and finished sources stay finished.
    drop_state : collection of str
        Operators whose state the user has dropped explicitly.

    Raises
    ------
    InvalidPipeline
        Naming the node, and the cures.
    """
    _check_dropped(change, pipeline, drop_state)
    _check_targets(change, pipeline)
    if change.replay is not None and not change.backfilled:
        _check_replay(change, change.replay, pipeline)
    _check_fit(change, pipeline, is_forced=is_forced)
    check_claimed(change.unclaimed, pipeline, drop_state)
    if change.finished and not change.is_empty and not is_forced:
        raise InvalidPipeline(
            f"the graph of pipeline {pipeline!r} has changed, and source {change.finished[0]!r} is finished.",
            why="to go on with a changed graph would take a finished node up again, with undefined results or rows "
            "that come twice.",
            do=f"start the changed graph with a new checkpoint and new targets; {_FORCE}: the source then stays "
            "finished.",
            pipeline=pipeline,
            participant=change.finished[0],
        )


def check_claimed(unclaimed: Sequence[tuple[str, str]], pipeline: str, drop_state: Collection[str]) -> None:
    """Refuse to drop the state of an operator that may have been renamed, unless the user says that it goes.

    A start with ``renamed_from=`` may die before it takes effect; who then takes the argument out again would lose the
    state, and read of it in a log at best.

    Parameters
    ----------
    unclaimed : sequence of (str, str)
        As of :func:`~holdfast.starts.graph_diff.unclaimed`.
    pipeline : str
        Whose they are.
    drop_state : collection of str
        The operators whose state goes.

    Raises
    ------
    InvalidPipeline
        Naming both operators, and the two cures.
    """
    for old, new in unclaimed:
        if old not in drop_state:
            raise InvalidPipeline(
                f"the state of stateful operator {old!r} would be lost.",
                why=f"the graph that ran last has it and this one has not, while {new!r}, of the same kind, is new and "
                f"begins without state. If a start was to rename {old!r} to {new!r}, it did not get so far: nothing "
                "has moved yet.",
                do=f"if it is the same operator, renamed_from={old!r} at {new!r}; if its state is not wanted any more, "
                f"drop_state=[{old!r}] (--drop-state {old}, HOLDFAST_DROP_STATE={old}).",
                pipeline=pipeline,
                participant=old,
            )


def _check_dropped(change: GraphChange, pipeline: str, drop_state: Collection[str]) -> None:
    for name in sorted({*change.sources.values()} & {*drop_state}):
        raise InvalidPipeline(
            f"the state of stateful operator {name!r} is to be dropped, and is taken over.",
            why="only state that no operator of the graph takes can be dropped.",
            do=f"leave {name!r} out of drop_state (--drop-state, HOLDFAST_DROP_STATE); or give the operator another "
            "name, so that it begins without state.",
            pipeline=pipeline,
            participant=name,
        )


def _check_targets(change: GraphChange, pipeline: str) -> None:
    for node in change.nodes:
        if node.name in change.backfilled and node.was:
            raise InvalidPipeline(
                f"sink {node.name!r} is to get everything (backfill=True), and writes where {node.was!r} wrote.",
                why="what that one has written would be there twice: each knows its own ledger only.",
                do=f"keep the name {node.was!r}, or give the sink another target.",
                pipeline=pipeline,
                participant=node.name,
            )


def _check_replay(change: GraphChange, replay: Replay, pipeline: str) -> None:
    left = f"{replay.count} epochs that sinks hold are still to be evaluated again"
    if replay.is_of_old_graph:
        raise InvalidPipeline(
            "the graph has changed before the old one had caught up with its sinks.",
            why=f"Spark's part of the checkpoint was damaged or lost, or a rewind was interrupted, and {left}: the old "
            "graph has published them, and its state is what their rows were computed with.",
            do="start the old graph until it has reached new rows, then the changed one; or, if what it would publish "
            "is wrong, holdfast rewind with the old graph, then start the changed one.",
            pipeline=pipeline,
        )
    for node in change.nodes:
        if node.role is Role.SOURCE and node.verdict in (NodeVerdict.NEW, NodeVerdict.GONE):
            raise InvalidPipeline(
                f"source {node.name!r} comes or goes before the graph has caught up with its sinks.",
                why=f"{left}, and they were cut with the sources of then.",
                do="start the changed graph with the sources of then until it has reached new rows; change the "
                "sources after it.",
                pipeline=pipeline,
                participant=node.name,
            )


def _check_fit(change: GraphChange, pipeline: str, *, is_forced: bool) -> None:
    refused = [node for node in change.nodes if node.verdict is NodeVerdict.REFUSED]
    if refused and not is_forced:
        first = refused[0]
        raise InvalidPipeline(
            f"the state of {first.role.value} {first.name!r} does not fit the changed graph.",
            why="; ".join(first.details) + ".",
            do="say how it is converted (migrate=, renamed_from=); or give the operator another name, so that "
            "it begins without state, and drop that of the old one (drop_state=); or change it back; "
            f"{_FORCE}: it then begins without state.",
            pipeline=pipeline,
            participant=first.name,
        )
