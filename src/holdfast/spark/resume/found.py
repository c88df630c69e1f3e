"""What a start finds, in the words of the table of starts (:mod:`holdfast.resume.decide`).  Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.checkpoint.manifest import EpochEnd
from holdfast.errors import Diverged, HoldfastError
from holdfast.ports import Held
from holdfast.positions import Positions, ascending
from holdfast.resume.behind import Behind
from holdfast.resume.decide import Begin, Sinks, Situation, Spark, StateSource
from holdfast.resume.directory_header import noted_beginning
from holdfast.resume.logged_epochs import left_at
from holdfast.resume.restore import Restoration
from holdfast.spark.resume.beginning import Beginning
from holdfast.spark.resume.catching_up import lagging, replay_of
from holdfast.spark.resume.stale_checkpoint import check_reached


@dataclass(frozen=True)
class Findings:
    """What was found, and the facts behind each word.

    Parameters
    ----------
    found : Situation
        The words.
    held : mapping of str to Held
        What each sink holds.
    refusal : HoldfastError, optional
        Why the sinks contradict the checkpoint, or cannot be given what they lack.
    behind : tuple of Behind
        Sinks that lack what was published in them.
    replay : (Positions, Positions), optional
        From where to where everything is read again for those.
    stops : tuple of Positions
        Where the sinks are, earliest first.
    reached : Positions, optional
        Up to where a directory had published that is left.
    snapshot : Restoration, optional
        Where state comes from.
    every_epoch : (Positions, list of EpochEnd), optional
        From where, and by which epochs, state is computed again.
    passed_over : tuple of str
        Snapshots that cannot be used, with the reasons.
    """

    found: Situation
    held: Mapping[str, Held]
    refusal: HoldfastError | None = None
    behind: tuple[Behind, ...] = ()
    replay: tuple[Positions, Positions] | None = None
    stops: tuple[Positions, ...] = ()
    reached: Positions | None = None
    snapshot: Restoration | None = None
    every_epoch: tuple[Positions, list[EpochEnd]] | None = None
    passed_over: tuple[str, ...] = ()

    @property
    def holders(self) -> dict[str, Held]:
        """The sinks that hold an epoch."""
        return _holders(self.held)


def look(
    beginning: Beginning,
    held: Mapping[str, Held],
    remembered: Mapping[str, Held] | None = None,
    checks: Sequence[Callable[[], None]] = (),
) -> Findings:
    """Return what a start finds.

    Parameters
    ----------
    beginning : Beginning
        Spark's directory, and what it is for.
    held : mapping of str to Held
        What each sink holds, with everything resolved.
    remembered : mapping of str to Held, optional
        Of these the sinks whose word counts when they lack something; all, where it is not given.
    checks : sequence of callable
        Raise why a sink contradicts the checkpoint.

    Raises
    ------
    Corrupt
        If a record of the checkpoint cannot be read.
    """
    spark = _spark(beginning)
    if refusal := _first_refusal([*checks, lambda: check_reached(beginning, held)]):
        return Findings(Situation(spark, Sinks.CONTRADICTING, _begin(beginning), StateSource.NONE), held, refusal)
    if spark in (Spark.GOOD, Spark.OTHER, Spark.FILLING):
        return _with_directory(beginning, spark, held, held if remembered is None else remembered)
    return _without_directory(beginning, spark, held)


def _spark(beginning: Beginning) -> Spark:
    if beginning.has_begun:
        return Spark.GOOD
    if beginning.changed is not None:
        return beginning.changed
    if not beginning.previous:
        return Spark.NONE
    if beginning.is_rewound:
        return Spark.REWOUND
    return Spark.DAMAGED if left_at(beginning.store, beginning.previous) is None else Spark.LEFT


def _begin(beginning: Beginning) -> Begin:
    noted = noted_beginning(beginning.store)
    if beginning.first is not None and (noted is None or noted[0] != beginning.first.given):
        return Begin.ASKED
    # Asked for in the same words: another run of this program has begun while this one started.
    return Begin.START if noted is None else Begin.NOTED


def _first_refusal(checks: Sequence[Callable[[], None]]) -> HoldfastError | None:
    for check in checks:
        try:
            check()
        except Diverged as error:
            return error
    return None


def _with_directory(
    beginning: Beginning, spark: Spark, held: Mapping[str, Held], remembered: Mapping[str, Held]
) -> Findings:
    lacking = lagging(beginning, remembered)
    begin = _begin(beginning)
    if not lacking:
        sinks = Sinks.LEVEL if _holders(held) else Sinks.EMPTY
        return Findings(Situation(spark, sinks, begin, StateSource.NONE), held)
    try:
        replay = replay_of(beginning, lacking, remembered)
    except Diverged as error:
        return Findings(Situation(spark, Sinks.LOST, begin, StateSource.NONE), held, error, lacking)
    return Findings(Situation(spark, Sinks.BEHIND, begin, StateSource.NONE), held, None, lacking, replay)


def _without_directory(beginning: Beginning, spark: Spark, held: Mapping[str, Held]) -> Findings:
    begin, holders = _begin(beginning), _holders(held)
    stops = ascending([each.positions for each in holders.values()])
    if stops is None:
        return Findings(Situation(spark, Sinks.UNORDERED, begin, StateSource.NONE), held)
    if not holders:
        return Findings(Situation(spark, Sinks.EMPTY, begin, StateSource.NONE), held)
    reached = left_at(beginning.store, beginning.previous)
    state, snapshot, every_epoch, passed_over = StateSource.NONE, None, None, list[str]()
    if beginning.keeps and begin is not Begin.ASKED:
        state = StateSource.GONE
        snapshot = beginning.restorable([*holders.values()], passed_over.append, reached)
        if snapshot is not None:
            state = StateSource.SNAPSHOT
        elif (every_epoch := beginning.recomputable([*holders.values()], reached)) is not None:
            state = StateSource.EVERY_EPOCH
    return Findings(
        Situation(spark, Sinks.LEVEL, begin, state),
        held,
        stops=tuple(stops),
        reached=reached,
        snapshot=snapshot,
        every_epoch=every_epoch,
        passed_over=tuple(passed_over),
    )


def _holders(held: Mapping[str, Held]) -> dict[str, Held]:
    return {name: each for name, each in held.items() if each.epoch > 0}
