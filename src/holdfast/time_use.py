"""Where the time of a run goes: by stage and by node, and which of it limits the run; frozen values.

Times are means for an epoch, over the last epochs: :data:`RECENT_S`, and :data:`RECENT_EPOCHS` at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

RECENT_S = 30.0
"""How far back the epochs go that are looked at; the last one counts however old it is."""

RECENT_EPOCHS = 256
"""How many they are at most."""

WAIT_SOURCE, WAIT_TRIGGER = "wait_source", "wait_trigger"
"""Stages in which nothing is done: the sources have nothing new; the trigger's interval is not over."""

WAITS = (WAIT_SOURCE, WAIT_TRIGGER)


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
