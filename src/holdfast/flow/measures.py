"""How long each calculator takes, and a trace of its calls for a viewer."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from dataclasses import dataclass

from holdfast.flow import timestamps
from holdfast.flow.queues import Payload

_BITS = 4
"""First bits by which times are told apart: a percentile is right to an eighth."""


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
    """Counts times of calls, and keeps them one by one where a trace is asked for; under the engine's lock.

    Parameters
    ----------
    is_traced : bool
        Whether each call is kept.
    """

    def __init__(self, *, is_traced: bool = False) -> None:
        self._counts: dict[str, defaultdict[int, int]] = {}
        """Node -> which of the first bits of a time, and how many follow -> calls."""

        self._totals: defaultdict[str, int] = defaultdict(int)
        self._is_traced = is_traced
        self._calls: list[tuple[str, int, int, int, int]] = []
        self._begun_ns = time.perf_counter_ns()

    def count(self, name: str, at: int, begin: int, took: int) -> None:
        """Count a call of a node: for which time, when it began, and how long it took, in nanoseconds."""
        if name in self._counts:
            counts = self._counts[name]
        else:
            counts = self._counts[name] = defaultdict(int)
        self._totals[name] += took
        shift = took.bit_length() - _BITS
        counts[(shift << _BITS) + (took >> shift) if shift > 0 else took] += 1
        if self._is_traced:
            self._calls.append((name, begin, took, threading.get_ident(), at))

    def times(self) -> dict[str, CallTimes]:
        """Return node -> times."""
        found = {}
        for name, counts in self._counts.items():
            number = sum(counts.values())
            percentiles = [_percentile(counts, number, share) / 1000 for share in (0.5, 0.99)]
            found[name] = CallTimes(number, self._totals[name] / 1000, *percentiles)
        return found

    def trace(self) -> dict[str, Payload]:
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
                "args": {"timestamp": at if timestamps.MIN <= at <= timestamps.MAX else timestamps.text(at)},
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
    shift, first_bits = divmod(place, 1 << _BITS)
    return (first_bits + 0.5) * (1 << shift) if shift else float(first_bits)
