"""Totals: of each source, operator and sink, the rows that came, and where they are, in one epoch or in many.

For people to read, and to be added up: each :class:`Balance` is an equation in itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.graph.graph import Graph
from holdfast.operators.lowering import InArrow, lowering_of
from holdfast.plan.counting.counts import EpochReport

ABSORBED, DEAD, FILTERED, REJECTED = "absorbed", "dead", "filtered", "rejected"

_FUNCTIONS = frozenset({InArrow.CALL, InArrow.LATEST})


@dataclass(frozen=True)
class Balance:
    """Rows of a source, an operator or a sink: what came has left, is gone for a reason that is named, or is held.

    Parameters
    ----------
    came : int
        Rows that it read, or that came.
    left : int
        Rows of them that left it, row for row.
    gone : mapping of str to int
        What became of the others: ``filtered``, ``late``, ``shed``, ``rejected``, ``dead`` (dead letters), ``dropped``
        (by an operator that says so), ``absorbed`` (by windows, sets and functions).
    held : int
        By how much the rows grew that wait in its state.
    made : int
        Rows that left it in the place of those absorbed: any number.

    Examples
    --------
    >>> one = Balance(5, 2, {"late": 1}, 2)
    >>> one.is_even, one.plus(Balance(1, 3, held=-2)).to_json()
    (True, {'in': 6, 'out': 5, 'late': 1})
    """

    came: int = 0
    left: int = 0
    gone: Mapping[str, int] = field(default_factory=dict)
    held: int = 0
    made: int = 0

    @property
    def is_even(self) -> bool:
        """Whether all rows that came are accounted for."""
        return self.came == self.left + sum(self.gone.values()) + self.held

    def plus(self, other: Balance) -> Balance:
        """Return both together."""
        gone = dict(Counter(self.gone) + Counter(other.gone))
        return Balance(
            self.came + other.came, self.left + other.left, gone, self.held + other.held, self.made + other.made
        )

    def to_json(self) -> dict[str, int]:
        """Return it as it is kept and shown; what is 0 is left out."""
        value = {"in": self.came, "out": self.left, **self.gone, "held": self.held, "made": self.made}
        return {name: count for name, count in value.items() if count or name in ("in", "out")}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Balance:
        """Return what :meth:`to_json` gave."""
        gone = {str(name): int(count) for name, count in value.items() if name not in ("in", "out", "held", "made")}
        return cls(int(value["in"]), int(value["out"]), gone, int(value.get("held", 0)), int(value.get("made", 0)))


Balances = Mapping[str, Balance]
"""Source, operator or sink -> its rows, in the order of the graph."""


def added(one: Balances, other: Balances) -> dict[str, Balance]:
    """Return the balances of both together."""
    names = dict.fromkeys([*one, *other])
    return {name: one.get(name, Balance()).plus(other.get(name, Balance())) for name in names}


class Totals:
    """How the counts of an epoch are totals of the nodes of a pipeline.

    Parameters
    ----------
    pipeline : Graph
        The graph.
    """

    def __init__(self, pipeline: Graph) -> None:
        self._sources = [node.name for node in pipeline.sources]
        self._sinks = [sink.name for sink in pipeline.sinks]
        self._ways = {node.name: lowering_of(node).in_arrow for node in pipeline.nodes if not node.is_source}

    def of(self, report: EpochReport, sink_rows: Mapping[str, int], due: Mapping[str, int]) -> dict[str, Balance]:
        """Return the balances of an epoch.

        Parameters
        ----------
        report : EpochReport
            What was counted.
        sink_rows : mapping of str to int
            Sink -> rows that are carried or staged for it.
        due : mapping of str to int
            Sink -> rows that left the operator before it; without those whose operators are not counted.
        """
        found: dict[str, Balance] = {}
        for name in self._sources:
            if name in report.observed:
                of = report.observed[name]
                found[name] = Balance(of.rows, of.rows - of.rejects, _some({REJECTED: of.rejects}))
        for name, way in self._ways.items():
            if name in report.tally:
                found[name] = _balance(way, report.tally[name])
        for name in self._sinks:
            if name in sink_rows:
                found[name] = Balance(due.get(name, sink_rows[name]), sink_rows[name])
        return found


def _balance(way: InArrow, counted: Mapping[str, int]) -> Balance:
    if "due" not in counted:
        return _with_state(counted)
    came, left = counted["in"], counted["out"]
    if way in _FUNCTIONS:
        return Balance(came, 0, _some({ABSORBED: came}), made=left)
    if way is InArrow.REJECTS:  # it reads what the source reads, and gives what the source counts as rejected
        return Balance(left, left)
    return Balance(came, left, _some({FILTERED: came - left}))


def _with_state(counted: Mapping[str, int]) -> Balance:
    left = made = dead = 0
    gone: Counter[str] = Counter()
    for output in _named("made.", counted):
        out, given = counted.get(f"out.{output}", 0), counted[f"made.{output}"]
        if f"due.{output}" not in counted:
            made += out
        elif output in ("late", "shed"):
            gone[output] += given
        else:
            left += out
            dead += given - out
    for fate in _named("fate.", counted):
        gone[ABSORBED if fate.startswith("(") else fate] += counted[f"fate.{fate}"]
    if "fates" not in counted:
        gone[ABSORBED] += counted["in"]
    gone[DEAD] += dead
    held = counted.get("held after", 0) - counted.get("held before", 0)
    return Balance(counted["in"], left, _some(gone), held, made)


def _named(prefix: str, counted: Mapping[str, int]) -> Iterable[str]:
    return (what.removeprefix(prefix) for what in counted if what.startswith(prefix))


def _some(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}
