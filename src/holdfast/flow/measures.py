"""How long each calculator takes, and a trace of its calls for a viewer."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.flow.nodes import Invocation, NodeRun

_FRACTION = 3
"""Bits after the first one by which times are told apart: a percentile is right to an eighth."""


@dataclass(frozen=True)
class CallTimes:
    """Times of the calls of one calculator.

    Parameters
    ----------
    count : int
        Calls.
    total_us, p50_us, p99_us : float
        Microseconds; percentiles are right to an eighth.
    """

    count: int
    total_us: float
    p50_us: float
    p99_us: float


class Measures:
    """Counts times of calls, and keeps them one by one where a trace is asked for.

    Parameters
    ----------
    is_traced : bool
        Whether each call is kept.
    """

    def __init__(self, *, is_traced: bool = False) -> None:
        self._counts: dict[str, dict[int, int]] = {}
        self._totals: dict[str, int] = {}
        self._is_traced = is_traced
        self._calls: list[tuple[str, int, int, int, int]] = []
        self._begun_ns = time.perf_counter_ns()

    def run(self, node: NodeRun, invocation: Invocation) -> None:
        """Call a calculator, and count how long it takes."""
        begin = time.perf_counter_ns()
        try:
            node.run(invocation)
        finally:
            took = time.perf_counter_ns() - begin
            self._totals[node.name] = self._totals.get(node.name, 0) + took
            width = took.bit_length()
            place = (width << _FRACTION) | ((took >> max(width - 1 - _FRACTION, 0)) & ((1 << _FRACTION) - 1))
            counts = self._counts.setdefault(node.name, {})
            counts[place] = counts.get(place, 0) + 1
            if self._is_traced:
                at = invocation.context.timestamp
                self._calls.append((node.name, begin, took, threading.get_ident(), at))

    def times(self) -> dict[str, CallTimes]:
        """Return node -> times."""
        found = {}
        for name, counts in list(self._counts.items()):
            number = sum(counts.values())
            percentiles = [_percentile(counts, number, share) / 1000 for share in (0.5, 0.99)]
            found[name] = CallTimes(number, self._totals[name] / 1000, *percentiles)
        return found

    def trace(self) -> dict[str, Any]:
        """Return the calls as Chrome's trace events, which Perfetto shows, too.

        References
        ----------
        Trace Event Format, "complete events"; https://ui.perfetto.dev.
        """
        threads = {ident: number for number, ident in enumerate(dict.fromkeys(call[3] for call in self._calls))}
        events = [
            {
                "name": name,
                "ph": "X",
                "ts": (begin - self._begun_ns) / 1000,
                "dur": took / 1000,
                "pid": 0,
                "tid": threads[ident],
                "args": {"timestamp": at},
            }
            for name, begin, took, ident, at in self._calls
        ]
        return {"traceEvents": events, "displayTimeUnit": "ns"}


def _percentile(counts: dict[int, int], number: int, share: float) -> float:
    passed = 0
    for place in sorted(counts):
        passed += counts[place]
        if passed >= share * number:
            break
    width, fraction = place >> _FRACTION, place & ((1 << _FRACTION) - 1)
    if width <= _FRACTION:
        return float(fraction)
    return float((1 << (width - 1)) + ((fraction * 2 + 1) << (width - 1)) / (1 << (_FRACTION + 1)))
