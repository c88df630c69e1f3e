"""For how long a source has been behind: since when there was something that is not read yet."""

from __future__ import annotations

from holdfast.positions import SourcePositions
from holdfast.status import lag_between

KEPT = 1000
"""So many moments are remembered; the oldest is never let go before it is reached."""


class BehindSince:
    """What was the newest of one source, and when that was seen first; any thread may ask, one at a time.

    Examples
    --------
    >>> of = BehindSince()
    >>> of.lag_s({"log": 3}, {"log": 5}, seen_us=1_000_000, now_us=1_000_000)
    0.0
    >>> of.lag_s({"log": 4}, {"log": 9}, seen_us=3_000_000, now_us=4_000_000)
    3.0
    >>> of.lag_s({"log": 6}, {"log": 9}, seen_us=3_000_000, now_us=5_000_000)
    2.0
    >>> of.lag_s({"log": 9}, {"log": 9}, seen_us=3_000_000, now_us=6_000_000)
    0.0
    """

    def __init__(self) -> None:
        self._seen: list[tuple[int, SourcePositions]] = []

    def lag_s(self, positions: SourcePositions, newest: SourcePositions, seen_us: int, now_us: int) -> float:
        """Return for how many seconds there has been something behind positions.

        Parameters
        ----------
        positions, newest : mapping of str to int or str
            What was published, and what was there when that was planned.
        seen_us, now_us : int
            When that was, and now; microseconds of Unix time.
        """
        seen = [each for each in self._seen if lag_between(positions, each[1])]
        if lag_between(positions, newest) and (not seen or seen[-1][1] != newest):
            seen.append((seen_us, dict(newest)))
        self._seen = [*seen[:1], *seen[1:][-KEPT:]]
        return max(0.0, (now_us - seen[0][0]) / 1e6) if seen else 0.0
