"""What a start finds, in the words of the table of starts (:mod:`holdfast.resume.decide`).  Changes nothing.

A start, ``holdfast plan``, ``holdfast resolve`` and a rewind look here, so that they are refused the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from holdfast.checkpoint.participation import Participation
from holdfast.commit.takeover import Expired
from holdfast.errors import Diverged, HoldfastError
from holdfast.graph.graph import Graph
from holdfast.ports import Held
from holdfast.positions import Positions, lacking
from holdfast.resume.behind import Behind, unreadable
from holdfast.resume.decide import Begin, ResumeCase, Sinks, Situation, Spark, StateSource, decide
from holdfast.resume.directory_header import noted_beginning
from holdfast.resume.logged_epochs import left_at
from holdfast.resume.rewind import check_none_holds_withdrawn
from holdfast.spark.resume.beginning import Anew, Beginning
from holdfast.spark.resume.catching_up import cannot_give_again, lagging, replay_of, why_not_replayed
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

    def is_of_all(self, pipeline: Graph) -> bool:
        """Whether a start of a pipeline would find the same, though sinks that only it can ask were not asked."""
        # Where Spark's log does not say what was published in them, a start asks them.
        return self.found.spark.has_log or all(sink.name in self.held for sink in pipeline.sinks)

    @property
    def holders(self) -> dict[str, Held]:
        """The sinks that hold something."""
        return _holders(self.held)


def look(beginning: Beginning, held: Mapping[str, Held], remembering: Collection[str] | None = None) -> Findings:
    """Return what a start finds.

    Parameters
    ----------
    beginning : Beginning
        Spark's directory, and what it is for.
    held : mapping of str to Held
        What each sink holds, with everything resolved.
    remembering : collection of str, optional
        Those of them that know what another process published; all, where it is not given.

    Raises
    ------
    Corrupt
        If a record of the checkpoint cannot be read.
    """
    names = held.keys() if remembering is None else remembering
    # Another run may have begun the same directory since it was chosen.
    spark = Spark.GOOD if beginning.has_begun else beginning.spark
    if refusal := _contradiction(beginning, held, names):
        return Findings(Situation(spark, Sinks.CONTRADICTING, _begin(beginning), StateSource.NONE), held, refusal)
    if spark.has_log:
        return _with_directory(beginning, spark, held, _remembered(beginning, held, names))
    return _without_directory(beginning, spark, held)


def check_replayable(
    beginning: Beginning, behind: Collection[str], held: Mapping[str, Held], remembering: Collection[str]
) -> None:
    """Refuse sinks that have lost what is done in them, if it cannot be replayed, while open decisions stay open.

    Once they are resolved, what was decided for such a sink and not yet published in it is only in the sources: a copy
    of the sink that has everything published would not have that either.  And if a sink is another one by mistake, its
    open decisions must stay.

    Parameters
    ----------
    beginning : Beginning
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
    store, pipeline = beginning.store, beginning.pipeline
    Participation(pipeline, store, remembering).check({name: held[name] for name in behind})
    check_none_holds_withdrawn(store, pipeline, behind, held)
    remembered = _remembered(beginning, held, remembering)
    if lacking := [each for each in lagging(beginning, remembered) if each.sink in behind]:
        replay_of(beginning, lacking, remembered)


def check_given_again(
    beginning: Beginning, expired: Sequence[Expired], held: Mapping[str, Held], remembering: Collection[str]
) -> None:
    """Refuse to revoke decisions of which staged rows are gone, if the sources cannot give their rows again.

    What is left of them, and what later decisions have for those sinks, stays where it is then.

    Parameters
    ----------
    beginning : Beginning
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
        if (lacks := lagging(beginning, {each.sink: at})) and each.sink not in remembering:
            raise cannot_give_again(beginning, each, "Spark has finished it, and the sink cannot say what it holds.")
        if lacks or beginning.spark.is_changed:
            others = {name: of for name, of in _remembered(beginning, held, remembering).items() if name != each.sink}
            reason = why_not_replayed(beginning, lacks, {**others, each.sink: at})
        else:  # Spark has not finished it: it evaluates it again, as it was planned
            lost = Behind(each.sink, at, each.epochs[-1], lacking(at.positions, each.until))
            reason = " ".join(unreadable([lost], at.positions, beginning.sources, beginning.workspace, beginning.store))
        if reason:
            raise cannot_give_again(beginning, each, reason)


def _without(expired: Expired, held: Held) -> Held:
    """Return what a sink holds when nothing of what has expired is published in it."""
    stops = (expired.until,) if held.is_empty else held.stops
    return replace(held, positions=expired.after, stops=stops)


def _remembered(beginning: Beginning, held: Mapping[str, Held], remembering: Collection[str]) -> dict[str, Held]:
    return {name: held[name] for name in remembering if name not in beginning.filling}


def _begin(beginning: Beginning) -> Begin:
    noted = noted_beginning(beginning.store)
    if beginning.first is not None and (noted is None or noted[0] != beginning.first.given):
        return Begin.ASKED
    # Asked for in the same words: another run of this program has begun while this one started.
    return Begin.START if noted is None else Begin.NOTED


def _contradiction(
    beginning: Beginning, held: Mapping[str, Held], remembering: Collection[str]
) -> HoldfastError | None:
    """Return why a sink contradicts the checkpoint: it was emptied, or holds what a rewind withdrew, or more."""
    store, pipeline = beginning.store, beginning.pipeline
    checks: tuple[Callable[[], None], ...] = (
        partial(Participation(pipeline, store, remembering).check, held),
        partial(check_none_holds_withdrawn, store, pipeline, remembering, held),
        partial(check_reached, beginning, held),
    )
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
    return {name: each for name, each in held.items() if not each.is_empty}
