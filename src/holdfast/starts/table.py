"""How a start continues: one table from what was found to what is done.

Four things are looked at, each a word of :class:`Spark`, :class:`Sinks`, :class:`Begin` and :class:`StateSource`;
together they give one lettered case.  ``holdfast plan`` prints it, a start performs it, ``holdfast resolve`` does what
comes before it and says it, and a rewind and a fork make what leads to one.  The table in
``docs/how-recovery-works.md`` is made from :data:`CASES`.  Every case says which crash or which change leads there.

What was found is gathered by :mod:`holdfast.starts.facts`, which changes nothing; what a case does, by
:mod:`holdfast.starts.act`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import product

from holdfast.errors import REPORT, InternalError


class Spark(Enum):
    """What is left of Spark's directory.  The value is the definition."""

    NONE = "none has begun, or all of it is lost"
    GOOD = "the newest one is whole, and of this graph"
    DAMAGED = "the newest one, or the state in it, cannot be read, and there are snapshots"
    LEFT = "a start has abandoned the newest one, for sinks that had lost what it published"
    REWOUND = "a rewind has withdrawn what the newest one published after its target"
    OTHER = "the newest one is of other state, other sources or another number of buckets"
    FILLING = "as other, and a new sink gets everything from the beginning (backfill=True)"

    @property
    def is_changed(self) -> bool:
        """Whether the graph differs from that of the newest directory."""
        return self in (Spark.OTHER, Spark.FILLING)

    @property
    def has_log(self) -> bool:
        """Whether Spark's log shows what was published in each sink."""
        return self is Spark.GOOD or self.is_changed


class Sinks(Enum):
    """What the sinks say, once everything in doubt is resolved.  The value is the definition."""

    EMPTY = "no sink holds an epoch"
    LEVEL = "sinks hold epochs, and none lacks what was published in it"
    BEHIND = "a sink lacks what was published in it, and all of that can be read again"
    LOST = "a sink lacks what was published in it, and not all of that can be read again"
    UNORDERED = "the positions of two sinks have no order"
    CONTRADICTING = "a sink was emptied, or holds what a rewind withdrew, or more than the checkpoint knows of"


class Begin(Enum):
    """Where the pipeline is to begin.  The value is the definition."""

    START = "at the beginning of its sources"
    NOTED = "at a time, a named checkpoint or with given state, as an earlier start has noted"
    ASKED = "at a time, a named checkpoint or with given state, as this start is asked for the first time"


class StateSource(Enum):
    """Where state can come from without Spark's directory.  The value is the definition."""

    NONE = "the graph keeps none, or the case does not depend on it: to look costs reading snapshots"
    SNAPSHOT = "a good snapshot that is not ahead of any sink"
    EVERY_EPOCH = "no snapshot, and the ends of all epochs since the beginning are known"
    UNSURE = "as one of these, but what epochs decided since, which operators depend on, is not known any more"
    SOURCES = "nowhere else, and this start is asked to compute it again from the sources (`--rebuild-state`)"
    GONE = "nowhere"


class StartWay(Enum):
    """What is done.  The value is its description for people."""

    NEW = "begins at the beginning"
    FORK = "begins at the time, the named checkpoint or with the state that was asked for"
    AGAIN = "begins where the first start noted"
    ON = "continues"
    SEEK = "continues where the sinks are"
    RESTORE = "continues from a snapshot"
    RECOMPUTE = "continues with state that is recomputed from the beginning"
    REBUILD = "continues with state that is computed again from the beginning of its sources"
    LEAVE = "abandons Spark's directory, and replays to the sinks what they lack"
    MOVE = "continues with the changed graph, from the end of the last epoch"
    FILL = "reads everything again for the sink that is new"
    REFUSE = "is refused"


@dataclass(frozen=True)
class Situation:
    """What a start has found, in the words of the table."""

    spark: Spark
    sinks: Sinks
    begin: Begin
    state: StateSource = StateSource.NONE


@dataclass(frozen=True)
class ResumeCase:
    """One row of the table.

    Parameters
    ----------
    letter : str
        Its name.
    spark, sinks, begin, state : tuple
        What must have been found.
    way : StartWay
        What is done.
    keeps, reads, gives, numbers : str
        What becomes of state, sources, sinks and epoch numbers; where it is refused, nothing is changed.
    why : str
        The crash or the change that leads there.
    """

    letter: str
    spark: tuple[Spark, ...]
    sinks: tuple[Sinks, ...]
    begin: tuple[Begin, ...]
    state: tuple[StateSource, ...]
    way: StartWay
    keeps: str
    reads: str
    gives: str
    numbers: str
    why: str

    def is_met_by(self, found: Situation) -> bool:
        """Tell whether this row is of what was found."""
        return (
            found.spark in self.spark
            and found.sinks in self.sinks
            and found.begin in self.begin
            and found.state in self.state
        )


def case_of(found: Situation) -> ResumeCase:
    """Return the one row of what was found."""
    rows = [case for case in CASES if case.is_met_by(found)]
    if len(rows) != 1:
        raise InternalError(f"{len(rows)} rows of the table of starts are of {found}.", do=REPORT)
    return rows[0]


def combinations() -> Iterator[Situation]:
    """Yield everything that could be found."""
    yield from (Situation(*words) for words in product(Spark, Sinks, Begin, StateSource))


_NOT_THERE = (Spark.NONE, Spark.DAMAGED, Spark.LEFT, Spark.REWOUND)
_CHANGED = (Spark.OTHER, Spark.FILLING)
_BEGUN = tuple(each for each in Spark if each is not Spark.NONE)
_HOLDING = (Sinks.LEVEL, Sinks.BEHIND, Sinks.LOST)
_FINE = (Sinks.EMPTY, Sinks.LEVEL, Sinks.UNORDERED)
_LACKING = (Sinks.BEHIND, Sinks.LOST)
_ANSWERING = tuple(each for each in Sinks if each is not Sinks.CONTRADICTING)
_UNASKED = (Begin.START, Begin.NOTED)
_NOTHING = "nothing is changed"


def _refusal(
    letter: str,
    spark: tuple[Spark, ...],
    sinks: tuple[Sinks, ...],
    begin: tuple[Begin, ...],
    state: tuple[StateSource, ...],
    why: str,
) -> ResumeCase:
    """Return a row that refuses."""
    return ResumeCase(letter, spark, sinks, begin, state, StartWay.REFUSE, _NOTHING, _NOTHING, _NOTHING, _NOTHING, why)


CASES: tuple[ResumeCase, ...] = (
    ResumeCase(
        "A",
        (Spark.NONE,),
        (Sinks.EMPTY,),
        (Begin.START,),
        tuple(StateSource),
        StartWay.NEW,
        "empty",
        "from their beginning",
        "get everything",
        "from 1, or above all that are known",
        "The first start; or the run died, or Spark's directory was lost, before a sink held an epoch.",
    ),
    ResumeCase(
        "B",
        (Spark.NONE,),
        (Sinks.EMPTY,),
        (Begin.ASKED,),
        tuple(StateSource),
        StartWay.FORK,
        "that of the named checkpoint, or the given one; else empty",
        "from there",
        "get what comes from there on",
        "above the checkpoint's",
        "The first start with `at=`, `from_checkpoint=` or `state=`; or that start died before it had noted where it "
        "begins.",
    ),
    ResumeCase(
        "C",
        _NOT_THERE,
        (Sinks.EMPTY,),
        (Begin.NOTED,),
        tuple(StateSource),
        StartWay.AGAIN,
        "as the first time",
        "from where the first start noted",
        "get what comes from there on",
        "above all that are known",
        "A run with `at=`, `from_checkpoint=` or `state=` died, or Spark's directory was lost, before a sink held an "
        "epoch.",
    ),
    ResumeCase(
        "D",
        (Spark.DAMAGED, Spark.LEFT, Spark.REWOUND),
        (Sinks.EMPTY,),
        (Begin.START,),
        tuple(StateSource),
        StartWay.NEW,
        "empty",
        "from their beginning",
        "get everything",
        "above all that are known",
        "Spark's directory was damaged before a sink held an epoch.",
    ),
    ResumeCase(
        "E",
        _NOT_THERE,
        _HOLDING,
        _UNASKED,
        (StateSource.NONE,),
        StartWay.SEEK,
        "none",
        "from the earliest position that a sink holds; the first epochs end where the others are",
        "each gets what it does not hold",
        "above all that are known",
        "Spark's directory was lost or damaged; or a start has abandoned it (K); or `holdfast rewind` was used.",
    ),
    ResumeCase(
        "F",
        _NOT_THERE,
        _HOLDING,
        _UNASKED,
        (StateSource.SNAPSHOT,),
        StartWay.RESTORE,
        "from the newest good snapshot; the epochs after it are evaluated again as they were",
        "from the end of the snapshot's epoch",
        "each gets what it does not hold",
        "above all that are known",
        "As E, with state; or the state of a bucket could not be read, and the run that found it has noted that.",
    ),
    ResumeCase(
        "G",
        _NOT_THERE,
        _HOLDING,
        _UNASKED,
        (StateSource.EVERY_EPOCH,),
        StartWay.RECOMPUTE,
        "recomputed, by the same epochs at the same times",
        "from where the directory before began",
        "each gets what it does not hold",
        "above all that are known",
        "A start has abandoned Spark's directory (K) before a snapshot was made.",
    ),
    _refusal(
        "H",
        _NOT_THERE,
        _HOLDING,
        _UNASKED,
        (StateSource.GONE,),
        "Spark's directory and the snapshots were lost; or the sinks were written with another checkpoint.",
    ),
    _refusal(
        "I",
        _NOT_THERE,
        (Sinks.UNORDERED,),
        _UNASKED,
        tuple(StateSource),
        "No crash leads here: the sinks were written with different checkpoints.",
    ),
    ResumeCase(
        "J",
        (Spark.GOOD,),
        _FINE,
        _UNASKED,
        tuple(StateSource),
        StartWay.ON,
        "as Spark's directory has it",
        "from where Spark's log is; an epoch that was planned and not finished is evaluated again",
        "each gets what it does not hold",
        "continue those of Spark's log",
        "A stop, or a run that died anywhere after its first start.",
    ),
    ResumeCase(
        "K",
        (Spark.GOOD,),
        (Sinks.BEHIND,),
        _UNASKED,
        tuple(StateSource),
        StartWay.LEAVE,
        "as E, F or G",
        "as E, F or G",
        "each gets what it does not hold",
        "above all that are known",
        "No crash of Holdfast leads here: a sink failed over to a copy that lagged, or was restored from a backup.",
    ),
    _refusal(
        "L",
        (Spark.GOOD,),
        (Sinks.LOST,),
        _UNASKED,
        tuple(StateSource),
        "As K, and a source no longer has what the sink lacks, or nothing has the state of before it.",
    ),
    ResumeCase(
        "M",
        (Spark.OTHER,),
        _FINE,
        _UNASKED,
        tuple(StateSource),
        StartWay.MOVE,
        "kept, renamed, migrated, new or dropped, operator by operator",
        "from the end of the last epoch that the old graph finished",
        "each gets what comes from there on",
        "above all that are known",
        "The graph has changed: its state, its sources, or how state is divided.",
    ),
    ResumeCase(
        "N",
        (Spark.FILLING,),
        _FINE,
        _UNASKED,
        tuple(StateSource),
        StartWay.FILL,
        "recomputed by the new graph",
        "from their beginning",
        "the new one gets everything, the others what they do not hold",
        "above all that are known",
        "A sink with `backfill=True` was added.",
    ),
    _refusal(
        "O",
        _CHANGED,
        _LACKING,
        _UNASKED,
        tuple(StateSource),
        "As K, and the graph has changed as well: what the old graph published only the old graph can replay.",
    ),
    _refusal(
        "P",
        (Spark.NONE,),
        (*_HOLDING, Sinks.UNORDERED),
        (Begin.ASKED,),
        tuple(StateSource),
        "`at=`, `from_checkpoint=` or `state=` with a new checkpoint, and a sink that holds epochs of this pipeline.",
    ),
    _refusal(
        "Q",
        _BEGUN,
        _ANSWERING,
        (Begin.ASKED,),
        tuple(StateSource),
        "`at=`, `from_checkpoint=` or `state=` for a pipeline that has begun otherwise.",
    ),
    _refusal(
        "R",
        tuple(Spark),
        (Sinks.CONTRADICTING,),
        tuple(Begin),
        tuple(StateSource),
        "No crash leads here: a target was emptied, a sink or the checkpoint restored from a copy, or a sink was out "
        "of the graph during a rewind.",
    ),
    _refusal(
        "S",
        _NOT_THERE,
        _HOLDING,
        _UNASKED,
        (StateSource.UNSURE,),
        "As F or G, and progress records or the logged versions of a table were damaged or lost besides; or snapshots "
        "are switched off, and with them progress records.",
    ),
    ResumeCase(
        "T",
        _NOT_THERE,
        _HOLDING,
        _UNASKED,
        (StateSource.SOURCES,),
        StartWay.REBUILD,
        "computed again, in epochs as the sources cut them now; muted up to what each sink holds",
        "from their beginning",
        "each gets what it does not hold",
        "above all that are known",
        "As H, and the start is asked for that: nothing is left of the state.",
    ),
)
"""The table, in the order in which people read it."""
