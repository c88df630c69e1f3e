"""What a start finds, in the words of the table of starts (:mod:`holdfast.resume.decide`).  Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from holdfast.errors import Diverged, HoldfastError
from holdfast.ports import Held
from holdfast.positions import Positions
from holdfast.resume.behind import Behind
from holdfast.resume.decide import Begin, ResumeCase, Sinks, Situation, Spark, StateSource, decide
from holdfast.resume.directory_header import noted_beginning
from holdfast.resume.logged_epochs import left_at
from holdfast.spark.resume.beginning import Anew, Beginning
from holdfast.spark.resume.catching_up import lagging, replay_of
from holdfast.spark.resume.stale_checkpoint import check_reached


@dataclass(frozen=True)
class Findings:
    """What was found, and the facts for each column of the table.

    Parameters
    ----------
    found : Situation
        The row of the table of starts.
    held : mapping of str to Held
        What each sink holds.
    refusal : HoldfastError, optional
        Why the sinks contradict the checkpoint, or cannot be given what they lack.
    behind : tuple of Behind
        Sinks that lack what was published in them.
    replay : (Positions, Positions), optional
        Start and end of the range that is read again for those.
    anew : Anew
        Where a directory begins that goes on with none.
    """

    found: Situation
    held: Mapping[str, Held]
    refusal: HoldfastError | None = None
    behind: tuple[Behind, ...] = ()
    replay: tuple[Positions, Positions] | None = None
    anew: Anew = field(default_factory=Anew)

    @cached_property
    def case(self) -> ResumeCase:
        """The row of the table."""
        return decide(self.found)

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
    # Another run may have begun the same directory since it was chosen.
    spark = Spark.GOOD if beginning.has_begun else beginning.spark
    if refusal := _first_refusal([*checks, lambda: check_reached(beginning, held)]):
        return Findings(Situation(spark, Sinks.CONTRADICTING, _begin(beginning), StateSource.NONE), held, refusal)
    if spark.has_log:
        return _with_directory(beginning, spark, held, held if remembered is None else remembered)
    return _without_directory(beginning, spark, held)


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
    begin, holders = _begin(beginning), [*_holders(held).values()]
    if not holders:
        return Findings(Situation(spark, Sinks.EMPTY, begin, StateSource.NONE), held)
    if begin is Begin.ASKED:  # refused, wherever they are: to look for state costs reading snapshots
        return Findings(Situation(spark, Sinks.LEVEL, begin, StateSource.NONE), held)
    anew = beginning.anew(holders, left_at(beginning.store, beginning.previous))
    if anew is None:
        return Findings(Situation(spark, Sinks.UNORDERED, begin, StateSource.NONE), held)
    return Findings(Situation(spark, Sinks.LEVEL, begin, anew.state), held, anew=anew)


def _holders(held: Mapping[str, Held]) -> dict[str, Held]:
    return {name: each for name, each in held.items() if each.epoch > 0}
