"""``sample``: rows as they pass a node of a live run, for one caller, until it has enough of them (design/0049, 5).

Nothing of it is durable, and nothing is to be undone: a run that dies takes with it who wanted to see what.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.errors import InvalidPipeline, Unavailable
from holdfast.graph.graph import Graph
from holdfast.graph.nodes import Node, SinkNode
from holdfast.graph.side_outputs import SideOutput
from holdfast.operators.lowering import lowering_of
from holdfast.operators.stateful.gate import ClockSpec, Gate, Released
from holdfast.plan.stages import ROWS
from holdfast.shards.naming import shard_of
from holdfast.spark.sampling import SampleCall
from holdfast.steer.protocol import SAMPLE_MAX, SAMPLE_S, Progress, SteerRequest

if TYPE_CHECKING:
    from holdfast.spark.run import Run

_LOOK_S = 0.05
"""How often it is looked what has come, and whether the run is alive."""
_TELL_S = 1.0
"""How often a caller is told that nothing has: one that has gone is noticed by that."""

Runs = Mapping[str, "Run | None"]
"""The runs of all shards, or the one that there is, by name; None for one that does not run."""


@dataclass(frozen=True)
class SampleWords:
    """What a request says, checked.

    Parameters
    ----------
    node : str
        A source, an operator or a sink.
    count : int
        How many rows.
    timeout_s : float
        After which it ends with fewer.
    shard : int, optional
        Of which shard alone.
    """

    node: str
    count: int
    timeout_s: float
    shard: int | None

    @classmethod
    def of(cls, request: SteerRequest) -> SampleWords:
        """Return those of a request.

        Raises
        ------
        InvalidPipeline
            If they are none.
        """
        count, timeout_s = request.number("n"), request.arguments.get("timeout_s", SAMPLE_S)
        is_time = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
        if not 1 <= count <= SAMPLE_MAX or not is_time or not (math.isfinite(timeout_s) and timeout_s > 0):
            raise InvalidPipeline(
                f"{count:,} rows are to be shown, within {timeout_s} s.",
                why=f"it can be 1 to {SAMPLE_MAX:,} rows, within a time above 0.",
                do="correct n or timeout_s: of the command line -n or --timeout.",
            )
        shard = None if request.arguments.get("shard") is None else request.number("shard")
        return cls(request.text("node"), count, float(timeout_s), shard)


def sample(
    pipeline: Graph, runs: Callable[[], Runs], is_active: Callable[[], bool], request: SteerRequest, tell: Progress
) -> Mapping[str, Any]:
    """Tell a caller rows that pass a node, as epochs bring them; return how many there were, and epochs.

    Parameters
    ----------
    pipeline : Graph
        What runs.
    runs : callable
        Returns its runs; another one may take the place of a shard's that has failed.
    is_active : callable
        Whether it is alive.
    request : SteerRequest
        What is wanted.
    tell : callable
        Tells the caller.

    Raises
    ------
    InvalidPipeline
        If there is no such node, or its rows cannot be seen.
    Unavailable
        If the run ends before.
    """
    words = SampleWords.of(request)
    _check_seen(pipeline, words.node, {name for run in _runs_of(runs(), words) for name in run.steering.in_spark})
    call, rows = SampleCall(tap_of(pipeline, words.node), words.count), 0
    told_s = time.monotonic()
    until_s = told_s + words.timeout_s
    asked: set[Run] = set()
    try:
        while True:
            was_active, now_s = is_active(), time.monotonic()
            for run in _runs_of(runs(), words):
                run.steering.sample(call)
                asked.add(run)
            some = call.take()
            if some or now_s - told_s >= _TELL_S:
                told_s, rows = now_s, rows + len(some)
                tell({"rows": some, "epochs": call.epochs})
            if rows == words.count or now_s >= until_s:
                return {"node": words.node, "count": rows, "epochs": call.epochs}
            if not was_active:
                raise Unavailable(
                    f"the run of pipeline {pipeline.name!r} has ended, with {rows:,} of {words.count:,} rows seen.",
                    why="it was stopped, or has failed.",
                    do="start it again, and ask again.",
                )
            time.sleep(_LOOK_S)
    finally:
        for run in asked:
            run.steering.end_sample(call)


def tap_of(pipeline: Graph, name: str) -> str:
    """Return where the rows of a node pass: an operator with state gives them at the head of what is behind it."""
    for node in pipeline.nodes:
        if node.name == name and isinstance(node.spec, SideOutput):
            return f"{node.inputs[0].name}/{node.spec.output}"
        if node.name == name and lowering_of(node).keeps_state:
            return f"{name}/{ROWS}"
    return name


def _runs_of(runs: Runs, words: SampleWords) -> Sequence[Run]:
    """Return the runs that are asked, those that there are."""
    if words.shard is not None and words.shard not in {shard_of(name)[1] for name in runs}:
        raise InvalidPipeline(
            f"there is no shard {words.shard}.",
            why=f"there are {len(runs)}.",
            do=f"name one from 0 to {len(runs) - 1}; or none, for all of them.",
        )
    of = {name: run for name, run in runs.items() if words.shard in (None, shard_of(name)[1])}
    return [run for run in of.values() if run is not None]


def _check_seen(pipeline: Graph, name: str, in_spark: Collection[str]) -> None:
    """Stop where there is no such node, or where its rows pass in the JVM alone."""
    names = [node.name for node in _everything(pipeline) if not _is_hidden(node)]
    if name not in names:
        raise InvalidPipeline(
            f"pipeline {pipeline.name!r} has no node {name!r}.",
            why=f"it has {', '.join(names)}.",
            do="name one of these.",
        )
    if name in in_spark:
        raise InvalidPipeline(
            f"rows of {name!r} cannot be seen.",
            why="Spark's plan evaluates it, so they pass in the JVM.",
            do=f"sample what takes them: {', '.join(_takers(pipeline, name, in_spark))}.",
            participant=name,
        )


def _takers(pipeline: Graph, name: str, in_spark: Collection[str]) -> Sequence[str]:
    """Return the next nodes downstream whose rows can be seen; those of sinks always can."""
    found, unseen = list[str](), {name}
    for node in _everything(pipeline):
        if not unseen.isdisjoint(before.name for before in node.inputs):
            if _is_hidden(node) or node.name in in_spark:
                unseen.add(node.name)
            else:
                found.append(node.name)
    return found


def _everything(pipeline: Graph) -> Sequence[Node | SinkNode]:
    """Return nodes and sinks, inputs first."""
    return [*pipeline.nodes, *pipeline.sinks]


def _is_hidden(node: Node | SinkNode) -> bool:
    """Return whether nobody has written a node: it is part of a commit at pts."""
    return isinstance(node.spec, Gate | Released | ClockSpec)
