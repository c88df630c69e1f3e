"""Where the time of a run goes: by stage and by node, and which of it limits the run; frozen values.

Times are means for an epoch, over the last epochs: :data:`RECENT_S`, and :data:`RECENT_EPOCHS` at most.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

RECENT_S = 30.0
"""How far back the epochs go that are looked at; the last one counts however old it is."""

RECENT_EPOCHS = 256
"""How many they are at most."""

WAIT_SOURCE, WAIT_TRIGGER = "wait_source", "wait_trigger"
"""Stages in which nothing is done: the sources have nothing new; the trigger's interval is not over."""

WAITS = (WAIT_SOURCE, WAIT_TRIGGER)

BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Bounds of the classes that the durations of epochs are counted in, seconds."""


STAGES: tuple[str, ...] = ("plan", "evaluate", "decide", "publish", "forget", "log")
"""Stages of an epoch in their order, for display; an :class:`EpochStatus` may name others, shown after these."""


@dataclass(frozen=True)
class EpochStatus:
    """One finished epoch and where its milliseconds went.

    Parameters
    ----------
    epoch : int
        Its number.
    rows : int
        Rows that all sinks together received.
    bytes : int
        Size of what was read; 0 when unknown.
    duration_ms : mapping of str to float
        Stage (see :data:`STAGES`) -> milliseconds.
    carried : bool
        Whether the driver carried the rows (small epoch) instead of executors staging them.
    """

    epoch: int
    rows: int = 0
    bytes: int = 0
    duration_ms: Mapping[str, float] = field(default_factory=dict)
    carried: bool = False

    @property
    def total_ms(self) -> float:
        """Milliseconds of all stages together."""
        return sum(self.duration_ms.values())


@dataclass(frozen=True)
class NodeTime:
    """The time of one node.

    Parameters
    ----------
    name : str
        A source, an operator or a sink.
    evaluate_ms : float, optional
        Milliseconds of an epoch's evaluation; of a sink: what its writers take there. None where Spark's plan evaluates
        the node, and does not tell it from others.
    publish_ms : float
        Of a sink: milliseconds in which it is asked, and publishes. Other epochs may be evaluated meanwhile.
    evaluate_share : float, optional
        Part of the evaluation, 0 to 1; None where that is not known.
    share : float, optional
        Part of an epoch's time that it holds up, 0 to 1; None where that is not known.
    """

    name: str
    evaluate_ms: float | None = None
    publish_ms: float = 0.0
    evaluate_share: float | None = None
    share: float | None = None


@dataclass(frozen=True)
class TimeUse:
    """Where the time of the last epochs went.

    Parameters
    ----------
    epochs : int
        How many they are.
    period_ms : float
        Milliseconds from the end of one to the end of the next.
    stages_ms : mapping of str to float
        Where they go; together they are ``period_ms``. ``wait_source``, ``wait_trigger``: nothing is done; ``look``:
        the sources are asked for new rows; ``plan``, ``evaluate``, ``decide``, ``publish``; ``log``: Spark's logs.
    nodes : tuple of NodeTime
        In the order of the graph, sinks last.
    other_ms : float
        Of the evaluation, what is no node's: Spark's jobs, rows between processes, the state of an epoch; and what
        Spark does not tell apart.
    limited_by : str
        What holds the run up, in words.
    """

    epochs: int = 0
    period_ms: float = 0.0
    stages_ms: Mapping[str, float] = field(default_factory=dict)
    nodes: tuple[NodeTime, ...] = ()
    other_ms: float = 0.0
    limited_by: str = ""

    @property
    def epoch_ms(self) -> float:
        """Milliseconds of an epoch in which something is done."""
        return self.period_ms - sum(self.stages_ms.get(wait, 0.0) for wait in WAITS)

    def busiest(self, count: int = 3) -> tuple[NodeTime, ...]:
        """Return the nodes that take the largest parts of an epoch; none that takes nothing.

        Examples
        --------
        >>> use = TimeUse(nodes=(NodeTime("rows", share=0.1), NodeTime("sums", share=0.6), NodeTime("up")))
        >>> [node.name for node in use.busiest()]
        ['sums', 'rows']
        """
        known = [node for node in self.nodes if node.share]
        return tuple(sorted(known, key=lambda node: -(node.share or 0.0))[:count])


EPOCHS_LISTED = 10_000
"""How many of its epochs a run lists."""


@dataclass(frozen=True)
class EpochLine:
    """One epoch of a run, in the list of its last ones.

    Parameters
    ----------
    epoch, rows : int
        Its number, and the rows that all sinks together received.
    ended_us : int
        When it ended, microseconds of Unix time.
    wait_s : float
        Since the epoch before it: waiting, and Spark's planning and logs; 0 of the first one.
    stages_s : mapping of str to float
        ``plan``, ``evaluate``, ``decide``, ``publish`` -> seconds.
    sinks_s : mapping of str to float
        Sink -> seconds in which it was asked and published, also beside the evaluation of other epochs.
    """

    epoch: int
    rows: int
    ended_us: int
    wait_s: float = 0.0
    stages_s: Mapping[str, float] = field(default_factory=dict)
    sinks_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def took_s(self) -> float:
        """How long it took, without the wait before it."""
        return sum(self.stages_s.values())


@dataclass(frozen=True)
class EpochTotals:
    """What all epochs of a run took together.

    Parameters
    ----------
    stages_s : mapping of str to float
        ``epoch``, ``plan``, ``evaluate``, ``decide``, ``publish`` -> seconds.
    buckets : mapping of str to tuple of int
        The same -> how many took longer than one of :data:`BUCKETS_S` and at most as long as the next; the last is of
        those that took longer than all.
    evaluate_s, publish_s : mapping of str to float
        Node -> seconds of evaluations; sink -> seconds in which it was asked and published.
    """

    stages_s: Mapping[str, float] = field(default_factory=dict)
    buckets: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    evaluate_s: Mapping[str, float] = field(default_factory=dict)
    publish_s: Mapping[str, float] = field(default_factory=dict)

    def plus(
        self, stages_s: Mapping[str, float], evaluate_s: Mapping[str, float], publish_s: Mapping[str, float]
    ) -> EpochTotals:
        """Return it with one more epoch.

        Examples
        --------
        >>> totals = EpochTotals().plus({"epoch": 0.02}, {"sums": 0.01}, {}).plus({"epoch": 7.0}, {"sums": 4.0}, {})
        >>> totals.stages_s, totals.buckets["epoch"][:3], sum(totals.buckets["epoch"]), totals.evaluate_s
        ({'epoch': 7.02}, (0, 0, 1), 2, {'sums': 4.01})
        """
        buckets = {stage: list(counts) for stage, counts in self.buckets.items()}
        for stage, seconds in stages_s.items():
            buckets.setdefault(stage, [0] * (len(BUCKETS_S) + 1))[bisect_left(BUCKETS_S, seconds)] += 1
        return EpochTotals(
            _sums(self.stages_s, stages_s),
            {stage: tuple(counts) for stage, counts in buckets.items()},
            _sums(self.evaluate_s, evaluate_s),
            _sums(self.publish_s, publish_s),
        )


def _sums(before: Mapping[str, float], more: Mapping[str, float]) -> dict[str, float]:
    return {name: before.get(name, 0.0) + more.get(name, 0.0) for name in {**before, **more}}


@dataclass(frozen=True)
class EpochTrace:
    """One epoch, for who follows them one by one.

    Parameters
    ----------
    epoch : int
        Its number.
    ended_us : int
        When it had ended, microseconds of Unix time.
    rows : int
        Rows that all sinks together received.
    stages : tuple of (str, float)
        Its stages, one after the other -> seconds.
    nodes : mapping of str to mapping of str to float
        Stage -> node -> seconds of it.
    """

    epoch: int
    ended_us: int
    rows: int = 0
    stages: tuple[tuple[str, float], ...] = ()
    nodes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
