"""How each kind of operator is run: one row for each kind.

The table is data: neither Spark nor programs nor stages are known here.  Those who run operators have one entry for
each *way*, and find it by the row of a node's kind:

- :class:`InSpark`: ``WAYS`` in :mod:`holdfast.spark.compile`, where rows go through Spark's plan;
- :class:`InArrow`: ``WAYS`` in :mod:`holdfast.plan.program_build`, where they stay in Arrow batches;
- :class:`BoundsDownstream`: ``WAYS`` in :mod:`holdfast.plan.feeds`, which says what promises hold downstream of it.

A new operator that uses these ways is a file of its own and a row here.  One that needs a new way adds an entry
in each of the three, and cannot be forgotten anywhere: a way without an entry is an error that names the place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from holdfast.errors import InternalError

if TYPE_CHECKING:
    from holdfast.graph.nodes import Node

W = TypeVar("W", bound=Enum)
E = TypeVar("E")


class InSpark(Enum):
    """How an operator is part of Spark's plan; in brackets what its declaration has for it."""

    READ = "the frame of a source"
    READABLE = "the rows of a source that could be read: the second half of READ, where a source has rejects"
    REJECTS = "the rows of a source that could not be read"
    BOUND_ROWS = "the bound rows of a source: where its rows go through Spark's plan, and it gives any"
    FUNCTION = "a function of a frame (fn)"
    SELECT = "select expressions (items)"
    FILTER = "the rows for which a condition is true (condition: text, or a function of a frame)"
    EXPECT = "the rows, or those for which a condition is true, and a count of the others (condition, drops)"
    SPAN = "the rows of a span of time (column, start_us, end_us)"
    SQL = "a statement (query)"
    IDENTIFIED = "a column with the id of the values of others (columns, into, key)"
    BATCHES = "a function of Arrow batches, in Python workers (fn, setup, output, offset)"
    LOOKED_UP = "rows of a table, by key, in Python workers (used)"
    UNION = "the rows of several frames"
    HOSTED = "no part of the plan: it runs in a level, or after one, and gets its rows as chunks"


class InArrow(Enum):
    """How an operator is part of an Arrow program; in brackets what its declaration has for it."""

    READ = "the batches of a source, without those rows that could not be read"
    REJECTS = "the rows of a source that could not be read"
    COMPUTE = "expressions (items)"
    KEEP = "the rows for which a condition is true (condition); a function of a frame is Spark's to call"
    VERIFY = "the rows, or those for which a condition is true, and a count of the others (condition, drops)"
    BETWEEN = "the rows of a span of time (column, start_us, end_us)"
    IDENTIFY = "a column with the id of the values of others (columns, into, key)"
    CALL = "a function of batches, in Python workers (fn, setup, output, offset)"
    LOOK_UP = "rows of a table, by key (used)"
    UNITE = "the rows of several streams"
    STEP = "a step over state (a StatefulSpec)"
    SIDE_OUTPUT = "what a step gives besides its rows (output)"
    LATEST = "of each batch the row with the latest time (column), or none (is_silent)"
    STATEMENT = "behind state, where it is no more than expressions and a condition (query); else not at all"
    SPARK_ONLY = "not at all: a function of a frame is Spark's to evaluate"


class BoundsDownstream(Enum):
    """Which bounds, promises that no row below a time follows, hold downstream of an operator."""

    OF_SOURCE = "those that the source gives"
    OF_STEP = "those that its step gives"
    SAME = "every bound of its input, where rows keep their timestamp column: it drops rows, and changes none"
    WHERE_TIMED = "every bound of its inputs, where they have the same timestamp column"
    ADDED = "every bound of its input, where that has the columns of the key: it adds a column, and changes none"
    SELECTED = "those of the keys and the timestamp that it passes on as they are (items_read, or Spark's plan of it)"
    ANALYSED = "those of the keys and the timestamp that Spark's plan of it leaves as they are: known at the start"
    MOVED = "those for all keys, shifted by the offset that it declares (offset); without one, only the end"
    SIDE_OUTPUT = "those of the operator, if they hold as declared (rows); else only that all of its inputs have ended"
    END = "only the end of the stream: it may do anything to the timestamp"


@dataclass(frozen=True)
class Lowering:
    """How a kind of operator is run.

    Parameters
    ----------
    in_spark : InSpark
        How Spark does it.
    in_arrow : InArrow
        How Arrow does it.
    bounds : BoundsDownstream
        What happens to bounds.
    keeps_state : bool
        Whether it keeps state under its name: it begins a level, and a checkpoint holds it.
    counts_dropped : bool
        Whether the rows that it drops are counted, for the status.
    calls_user : bool
        Whether it calls a function of the user: that belongs into a worker.
    on_one_machine : bool
        Whether all of its workers need one disk: it is refused where they are on several machines.
    """

    in_spark: InSpark
    in_arrow: InArrow
    bounds: BoundsDownstream
    keeps_state: bool = False
    counts_dropped: bool = False
    calls_user: bool = False
    on_one_machine: bool = False


SOURCE = Lowering(InSpark.READ, InArrow.READ, BoundsDownstream.OF_SOURCE)
"""The row of every source: what its kind is, its declaration alone knows."""

_STATEFUL = Lowering(InSpark.HOSTED, InArrow.STEP, BoundsDownstream.OF_STEP, keeps_state=True)
_CALLING = replace(_STATEFUL, calls_user=True)
_SIDE_OUTPUT = Lowering(InSpark.HOSTED, InArrow.SIDE_OUTPUT, BoundsDownstream.SIDE_OUTPUT)

LOWERINGS: Mapping[str, Lowering] = MappingProxyType({
    # kind             in Spark          in Arrow            bounds after it
    "map": Lowering(InSpark.FUNCTION, InArrow.SPARK_ONLY, BoundsDownstream.ANALYSED),
    "sql": Lowering(InSpark.SQL, InArrow.STATEMENT, BoundsDownstream.SELECTED),
    "map_batches": Lowering(InSpark.BATCHES, InArrow.CALL, BoundsDownstream.MOVED, calls_user=True),
    "select": Lowering(InSpark.SELECT, InArrow.COMPUTE, BoundsDownstream.SELECTED),
    "filter": Lowering(InSpark.FILTER, InArrow.KEEP, BoundsDownstream.SAME, counts_dropped=True),
    "row_id": Lowering(InSpark.IDENTIFIED, InArrow.IDENTIFY, BoundsDownstream.ADDED),
    "call": Lowering(InSpark.BATCHES, InArrow.CALL, BoundsDownstream.ADDED, calls_user=True, on_one_machine=True),
    "answered": Lowering(InSpark.BATCHES, InArrow.CALL, BoundsDownstream.ADDED),
    "unanswered": Lowering(InSpark.BATCHES, InArrow.CALL, BoundsDownstream.ADDED),
    "lookup": Lowering(InSpark.LOOKED_UP, InArrow.LOOK_UP, BoundsDownstream.ADDED),
    "expect": Lowering(InSpark.EXPECT, InArrow.VERIFY, BoundsDownstream.SAME),
    "unmet": Lowering(InSpark.FILTER, InArrow.KEEP, BoundsDownstream.SAME),
    "split": Lowering(InSpark.FILTER, InArrow.KEEP, BoundsDownstream.SAME),
    "clip": Lowering(InSpark.SPAN, InArrow.BETWEEN, BoundsDownstream.SAME, counts_dropped=True),
    "union": Lowering(InSpark.UNION, InArrow.UNITE, BoundsDownstream.WHERE_TIMED),
    "clock": Lowering(InSpark.SELECT, InArrow.LATEST, BoundsDownstream.SAME),
    "rejects": Lowering(InSpark.REJECTS, InArrow.REJECTS, BoundsDownstream.END),
    "late": _SIDE_OUTPUT,
    "shed": _SIDE_OUTPUT,
    "unmatched": _SIDE_OUTPUT,
    "output": _SIDE_OUTPUT,
    "released": Lowering(InSpark.HOSTED, InArrow.SIDE_OUTPUT, BoundsDownstream.END),
    "accumulate": _STATEFUL,
    "aggregate": _STATEFUL,
    "apply": _CALLING,
    "change_order": _STATEFUL,
    "distinct": _STATEFUL,
    "flow": _CALLING,
    "gate": _STATEFUL,
    "join": _STATEFUL,
    "join_changes": _STATEFUL,
    "limit_in_flight": _STATEFUL,
    "lookup_as_of": _STATEFUL,
    "merge": _STATEFUL,
    "over": _STATEFUL,
    "stateful": _CALLING,
    "sync": _STATEFUL,
})  # fmt: skip


def lowering_of(node: Node) -> Lowering:
    """Return the row of a node.

    Raises
    ------
    InternalError
        If its kind has none.
    """
    if node.is_source:
        return SOURCE
    row = LOWERINGS.get(node.kind)
    if row is None:
        raise InternalError(
            f"nothing says how {node.kind} {node.name!r}, built at {node.origin}, is run.",
            why="the table of operators has no row for its kind.",
            do=f"add the row {node.kind!r} to LOWERINGS in holdfast/operators/lowering.py.",
            participant=node.name,
        )
    return row


def entry_of(ways: Mapping[W, E], way: W, place: str) -> E:
    """Return the entry of a way.

    Parameters
    ----------
    ways : mapping
        Way -> what is done; it has one entry for each.
    way : InSpark, InArrow or BoundsDownstream
        The way.
    place : str
        Where the mapping is, for the developer who must add to it.

    Raises
    ------
    InternalError
        If there is none.
    """
    if way not in ways:
        raise InternalError(
            f"nothing says there what {type(way).__name__}.{way.name} is: {way.value}.",
            why=f"{place} has no entry for it.",
            do=f"add the entry {type(way).__name__}.{way.name} to WAYS in {place}.",
        )
    return ways[way]
