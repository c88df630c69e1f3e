"""Where the time of a run's epochs goes, and which of it limits the run: added up on the driver.

The thread that runs epochs is looked at.  From the end of one epoch to the end of the next is a *period*.  It is cut
into stages that add up to it; the evaluation into nodes (:mod:`holdfast.plan.laps`); and the commit into sinks, those
of this thread by their own time, and what it waits for commit threads by how long each of their sinks was busy.

What limits a run is the stage with the largest part, in words.  A wait counts as a stage: a run that waits for rows for
most of its time is limited by nothing that it does.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from holdfast.commit.busy import LEDGER, Busy
from holdfast.plan.laps import OTHER, STATE, Spent, Waves, parts_of
from holdfast.time_use import (
    EPOCHS_LISTED,
    RECENT_EPOCHS,
    RECENT_S,
    WAIT_SOURCE,
    WAIT_TRIGGER,
    EpochLine,
    EpochTotals,
    EpochTrace,
    NodeTime,
    TimeUse,
)

Role = Literal["source", "operator", "sink"]

OTHERS = "(other)"
"""In totals, the name of what is no node's."""

AT_WORK = "(at work)"
"""The name of what no task has reported yet."""

_MOST = 0.5
"""A node that takes this part of a stage is what takes it."""


@dataclass(frozen=True)
class Period:
    """What was measured from the end of one epoch to the end of the next.

    Parameters
    ----------
    batch_id : int
        Which epoch, as Spark numbers it.
    began_us : int
        When it began, microseconds of Unix time; 0 for the first of a run, which has no epoch before it.
    ended_s : float
        When it ended, seconds of a clock that only grows.
    gap_s : float
        Until the epoch was begun here: Spark's planning and logs, and waiting; of the first period 0.
    plan_s, evaluate_s, commit_s, rest_s : float
        Until its rows were asked for; until they were there; until they were committed; until it ended.
    waves : mapping of str to Spent
        Of the evaluation.
    busy : Busy
        Seconds of sinks and ledger in this period.
    """

    batch_id: int
    began_us: int
    ended_s: float
    gap_s: float = 0.0
    plan_s: float = 0.0
    evaluate_s: float = 0.0
    commit_s: float = 0.0
    rest_s: float = 0.0
    waves: Waves = field(default_factory=dict)
    busy: Busy = field(default_factory=Busy)

    @property
    def call_s(self) -> float:
        """How long the epoch itself took, without what was before it."""
        return self.plan_s + self.evaluate_s + self.commit_s + self.rest_s


class EpochTimes:
    """Takes in what was measured of each epoch.  One thread notes, any may ask.

    Parameters
    ----------
    now_s : callable, optional
        Time that only grows, seconds; that of the process where it is omitted.
    now_us : callable
        Microseconds of Unix time.
    """

    def __init__(
        self,
        now_s: Callable[[], float] | None = None,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._now_s = now_s or time.perf_counter
        self._now_us = now_us
        self._periods: deque[Period] = deque(maxlen=RECENT_EPOCHS)
        self._before: tuple[float, int] | None = None
        self._busy = Busy()
        self._marks: list[float] = []
        self._batch_id = -1
        self.totals: EpochTotals | None = None
        """Of all epochs that were noted."""
        self.follow: Callable[[EpochTrace], object] | None = None
        """Is told each epoch that is noted; must be quick, and raise nothing."""
        self.lines: deque[EpochLine] = deque(maxlen=EPOCHS_LISTED)
        """The last epochs, the newest last."""

    def begin(self, batch_id: int, busy: Busy) -> None:
        """Begin an epoch; ``busy`` is that of the run."""
        if self._before is None:
            self._busy = busy  # of the start
        self._batch_id, self._marks = batch_id, [self._now_s()]

    def mark(self) -> None:
        """Say that the next stage begins: evaluation, commit, what comes after it."""
        self._marks.append(self._now_s())

    def end(self) -> None:
        """End an epoch, also one that failed, or that every sink held: of these nothing is known."""
        self._before = self._now_s(), self._now_us()
        self._marks = []

    def note(self, waves: Waves, busy: Busy, *, epoch: int = 0, rows: int = 0) -> None:
        """Take in an epoch that is committed, with its number and its rows; ``busy`` is that of the run."""
        began, planned, evaluated, committed = self._marks
        ended = self._now_s()
        before_s, before_us = self._before or (began, 0)
        period = Period(
            batch_id=self._batch_id,
            began_us=before_us,
            ended_s=ended,
            gap_s=began - before_s,
            plan_s=planned - began,
            evaluate_s=evaluated - planned,
            commit_s=committed - evaluated,
            rest_s=ended - committed,
            waves=waves,
            busy=busy.since(self._busy),
        )
        self._busy = busy
        self._periods.append(period)
        seconds = _seconds_of(period)
        stages, evaluate, publish = seconds
        self.totals = (self.totals or EpochTotals()).plus(stages, evaluate, publish)
        listed = {stage: took_s for stage, took_s in stages.items() if stage != "epoch"}
        self.lines.append(EpochLine(epoch, rows, self._now_us(), period.gap_s, listed, publish))
        if self.follow is not None:
            self.follow(_trace_of(period, epoch, rows, self._now_us(), seconds))

    def recent(self) -> tuple[Sequence[Period], float, int]:
        """Return the last periods; how many seconds nothing has been done since, and since when, in Unix time."""
        periods, before = list(self._periods), self._before
        if not periods:
            return (), 0.0, 0
        newest = periods[-1].ended_s
        recent = [period for period in periods if newest - period.ended_s <= RECENT_S]
        if self._marks or before is None:
            return recent, 0.0, 0
        return recent, max(0.0, self._now_s() - before[0]), before[1]

    def at_work(self, busy: Busy) -> Period | None:
        """Return an epoch that has taken longer than the last ones, and has not ended; None where there is none."""
        marks, now, usual = list(self._marks), self._now_s(), self.recent()[0]
        if not marks or not usual or now - marks[0] <= sum(one.call_s for one in usual) / len(usual):
            return None
        marks += [now] * (5 - len(marks))
        plan_s, evaluate_s, commit_s, rest_s = (later - earlier for earlier, later in pairwise(marks))
        waves = {AT_WORK: Spent({AT_WORK: 1}, round(evaluate_s * 1e9))}  # its tasks have not reported yet
        return Period(self._batch_id, 0, now, 0.0, plan_s, evaluate_s, commit_s, rest_s, waves, busy.since(self._busy))


def _trace_of(
    period: Period, epoch: int, rows: int, now_us: int, seconds: tuple[Mapping[str, float], ...]
) -> EpochTrace:
    stages, evaluate_s, publish_s = seconds
    decide_s = min(stages["decide"], period.commit_s)
    told = (
        *(("plan", period.plan_s), ("evaluate", period.evaluate_s), ("decide", decide_s)),
        *(("publish", period.commit_s - decide_s), ("log", period.rest_s)),
    )
    return EpochTrace(epoch, now_us, rows, told, {"evaluate": evaluate_s, "publish": publish_s})


def _seconds_of(period: Period) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Return the seconds of an epoch by stage, of its evaluation by node, and of its sinks."""
    commit = commit_parts(period.commit_s, period.busy)
    decide_s = commit.pop(LEDGER, 0.0)
    stages = {
        "epoch": period.call_s,
        "plan": period.plan_s + period.rest_s,
        "evaluate": period.evaluate_s,
        "decide": decide_s,
        "publish": sum(commit.values()),
    }
    parts = parts_of(period.waves, period.evaluate_s * 1e9)
    evaluate = {name or OTHERS: seconds / 1e9 for name, seconds in parts.items()}
    busy = period.busy
    publish = {name: busy.here.get(name, 0.0) + busy.beside.get(name, 0.0) for name in {**busy.here, **busy.beside}}
    return stages, evaluate, publish


@dataclass(frozen=True)
class Graphed:
    """What is known of a graph whose times are told.

    Parameters
    ----------
    roles : mapping of str to str
        Node -> what it is, in the order of the graph, sinks last.
    in_spark : collection of str
        The nodes that Spark's plan evaluates.
    interval_us : int, optional
        Of the trigger, microseconds; None where everything is there when the run begins, and nothing is waited for.
    held : collection of str
        The sources that back-pressure holds.
    """

    roles: Mapping[str, Role]
    in_spark: Collection[str] = ()
    interval_us: int | None = 0
    held: Collection[str] = ()


def time_use(
    of: Graphed,
    periods: Sequence[Period],
    idle: tuple[float, int] = (0.0, 0),
    spark_s: Mapping[str, float] | None = None,
    waits_for: str = "",
) -> TimeUse | None:
    """Return where the time of some epochs went.

    Parameters
    ----------
    of : Graphed
        The graph.
    periods : sequence of Period
        The epochs, the newest last.
    idle : (float, int)
        Seconds in which nothing was done since, and since when, microseconds of Unix time.
    spark_s : mapping of str to float, optional
        Seconds that Spark spent around an epoch: ``look``, ``plan``, ``log``.
    waits_for : str
        What failed and is tried again.

    Returns
    -------
    TimeUse, optional
        None before the first epoch has ended.
    """
    if not periods:
        return None
    stages = dict.fromkeys((WAIT_SOURCE, WAIT_TRIGGER, "look", "plan", "evaluate", "decide", "publish", "log"), 0.0)
    evaluated: dict[str, float] = {}
    published: dict[str, float] = {}
    for period in periods:
        _add_gap(stages, period, spark_s or {}, of.interval_us)
        stages["plan"] += period.plan_s + period.rest_s
        stages["evaluate"] += period.evaluate_s
        for name, seconds in parts_of(period.waves, period.evaluate_s * 1e9).items():
            evaluated[name] = evaluated.get(name, 0.0) + seconds / 1e9
        for name, seconds in commit_parts(period.commit_s, period.busy).items():
            stages["decide" if name == LEDGER else "publish"] += seconds
            published[name] = published.get(name, 0.0) + seconds
    _add_wait(stages, *idle, of.interval_us)
    count, whole = len(periods), sum(stages.values())
    active = whole - stages[WAIT_SOURCE] - stages[WAIT_TRIGGER]
    nodes = tuple(_node(name, of, evaluated, published, periods, active) for name in of.roles)
    told = sum(node.evaluate_ms or 0.0 for node in nodes)
    return TimeUse(
        count,
        whole / count * 1e3,
        {stage: seconds / count * 1e3 for stage, seconds in stages.items()},
        nodes,
        stages["evaluate"] / count * 1e3 - told,
        f"a system that does not answer: {waits_for}" if waits_for else _limit(of, stages, evaluated, published),
    )


def commit_parts(whole_s: float, busy: Busy) -> dict[str, float]:
    """Return which part each sink, and the ledger, has of a commit: together they are the whole.

    Examples
    --------
    >>> commit_parts(10.0, Busy({"(ledger)": 1.0}, {"table": 30.0, "log": 15.0}))
    {'(ledger)': 1.0, 'table': 6.0, 'log': 3.0}
    """
    here = sum(busy.here.values())
    scale = min(1.0, whole_s / here) if here else 0.0
    parts = {name: seconds * scale for name, seconds in busy.here.items()}
    left, beside = whole_s - here * scale, sum(busy.beside.values())
    shares = {name: seconds / beside for name, seconds in busy.beside.items()} if beside else {LEDGER: 1.0}
    for name, share in shares.items():
        parts[name] = parts.get(name, 0.0) + left * share
    return parts


def _add_gap(stages: dict[str, float], period: Period, spark_s: Mapping[str, float], interval_us: int | None) -> None:
    """Add what was before an epoch began here: what Spark did, and waiting."""
    asked = sum(spark_s.values())
    scale = min(1.0, period.gap_s / asked) if asked else 0.0
    for stage, seconds in spark_s.items():
        stages[stage] += seconds * scale
    _add_wait(stages, max(0.0, period.gap_s - asked), period.began_us, interval_us)


def _add_wait(stages: dict[str, float], seconds: float, since_us: int, interval_us: int | None) -> None:
    """Add a wait: until the trigger's next time it is for that, and then for the source."""
    if interval_us is None:
        stages["plan"] += seconds
        return
    until_next = (interval_us - since_us % interval_us) / 1e6 if interval_us and since_us else 0.0
    stages[WAIT_TRIGGER] += min(seconds, until_next)
    stages[WAIT_SOURCE] += max(0.0, seconds - until_next)


def _node(
    name: str,
    of: Graphed,
    evaluated: Mapping[str, float],
    published: Mapping[str, float],
    periods: Sequence[Period],
    active: float,
) -> NodeTime:
    count = len(periods)
    busy = sum(period.busy.here.get(name, 0.0) + period.busy.beside.get(name, 0.0) for period in periods)
    is_known = name not in of.in_spark or name in evaluated
    seconds, whole = evaluated.get(name, 0.0), sum(evaluated.values())
    held_up = seconds + published.get(name, 0.0)
    return NodeTime(
        name,
        seconds / count * 1e3 if is_known else None,
        busy / count * 1e3,
        (seconds / whole if whole else 0.0) if is_known else None,
        (held_up / active if active else 0.0) if is_known else None,
    )


# --- in a sentence ----------------------------------------------------------------------------------------------------

_WORDS = {
    "look": "asking the sources for new rows",
    "plan": "planning",
    "decide": "writing decisions to the checkpoint",
    "log": "Spark's logs of offsets and commits",
}


def _limit(
    of: Graphed, stages: Mapping[str, float], evaluated: Mapping[str, float], published: Mapping[str, float]
) -> str:
    """Return the stage with the largest part, and what takes it."""
    whole = sum(stages.values())
    if not whole:
        return ""
    stage = max(stages, key=lambda each: stages[each])
    active = whole - stages[WAIT_SOURCE] - stages[WAIT_TRIGGER]
    if stage == WAIT_TRIGGER:
        interval_s = (of.interval_us or 0) / 1e6
        return f"the trigger's interval of {interval_s:g} s, {_percent(stages[stage], whole)} of the time"
    if stage == WAIT_SOURCE and of.held:
        names = ", ".join(_some(sorted(of.held)))
        return f"back-pressure, which holds {names}, {_percent(stages[stage], whole)} of the time"
    if stage == WAIT_SOURCE:
        sources = "source" if [*of.roles.values()].count("source") == 1 else "sources"
        return f"waiting for the {sources}, {_percent(stages[stage], whole)} of the time"
    if stage == "evaluate":
        return _largest("the evaluation", {_doing(name, of): s for name, s in evaluated.items()}, active)
    if stage == "publish":
        sinks = {f"publish to {name}": seconds for name, seconds in published.items() if name != LEDGER}
        return _largest("publishing", sinks, active)
    return f"{_WORDS[stage]}, {_percent(stages[stage], active)} of the epoch"


def _largest(stage: str, parts: Mapping[str, float], active: float) -> str:
    name, seconds = max(parts.items(), key=lambda part: part[1])
    whole = sum(parts.values())
    if seconds >= _MOST * whole:
        return f"{name}, {_percent(seconds, active)} of the epoch"
    return f"{stage}, {_percent(whole, active)} of the epoch, most of it {name}, {_percent(seconds, active)}"


def _doing(name: str, of: Graphed) -> str:
    """Return what takes a part of an evaluation, in words."""
    if name == STATE:
        return "writing state to the checkpoint"
    if name == AT_WORK:
        return "an epoch that is still evaluated"
    if name != OTHER:
        role = of.roles.get(name, "operator")
        return f"writing rows for {name}" if role == "sink" else f"{role} {name}"
    if of.in_spark:
        return f"Spark's plan ({', '.join(_some([each for each in of.roles if each in of.in_spark]))})"
    return "rows between processes, and Spark's jobs"


def _some(names: Sequence[str]) -> Iterator[str]:
    yield from names[:3]
    if len(names) > 3:
        yield f"{len(names) - 3} more"


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole if whole else 0:.0f} %"
