"""Who wants to see rows of a run as they pass a node: what is wanted in each epoch, and who gets what it has brought.

Nothing of it is durable.  Tasks take the rows (:mod:`holdfast.plan.levels.taps`).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from holdfast.display.rows import ShownRow
from holdfast.plan.levels.taps import NO_WISH, Samples, Taps, Wish, together
from holdfast.ports import Carried, Part
from holdfast.spark.wishes import write_wish


class SampleCall:
    """What one caller wants to see, and what has come of it.  Any thread may call.

    Parameters
    ----------
    tap : str
        Where.
    count : int
        How many rows.
    """

    def __init__(self, tap: str, count: int) -> None:
        self.tap = tap
        self.left = count
        """How many rows are still wanted."""
        self.epochs = 0
        """How many epochs have passed that could have brought rows."""
        self._rows: list[ShownRow] = []
        self._lock = threading.Lock()

    def note(self, rows: Sequence[ShownRow]) -> None:
        """Take in what an epoch has brought."""
        with self._lock:
            self.epochs += 1
            some = rows[: self.left]
            self.left -= len(some)
            self._rows.extend(some)

    def take(self) -> list[ShownRow]:
        """Return the rows since the last call."""
        with self._lock:
            rows, self._rows = self._rows, []
            return rows


class Sampling:
    """Who wants to see rows of a run, or of one of its shards.  Any thread may ask; the one of epochs begins and notes.

    What is wanted is fixed while an epoch is evaluated, so that an epoch counts only for those who asked before it.
    """

    def __init__(self) -> None:
        self.wish: Wish = NO_WISH
        """What is wanted in the epoch that is evaluated."""
        self._calls: tuple[SampleCall, ...] = ()
        self._heard: tuple[SampleCall, ...] = ()
        self._lock = threading.Lock()

    def ask(self, call: SampleCall, stop_file: str) -> None:
        """Let a caller see rows of later epochs; nothing more where it does already.

        Parameters
        ----------
        call : SampleCall
            What it wants.
        stop_file : str
            By which the planning processes of the run are told: they read small epochs ahead.
        """
        with self._lock:
            if call not in self._calls:
                self._calls = (*self._calls, call)
                write_wish(stop_file, _wish_of(self._calls))

    def forget(self, call: SampleCall, stop_file: str) -> None:
        """Let a caller see no more."""
        with self._lock:
            self._calls = tuple(each for each in self._calls if each is not call)
            write_wish(stop_file, _wish_of(self._calls))

    def begin(self) -> None:
        """Fix what is wanted in the next epoch."""
        self._heard = tuple(call for call in self._calls if call.left > 0)
        self.wish = _wish_of(self._heard)

    def note(self, samples: Samples, parts: Mapping[str, Sequence[Part]]) -> None:
        """Give to those who asked what an epoch has brought.

        Parameters
        ----------
        samples : mapping of str to sequence of rows
            What its tasks report.
        parts : mapping of str to sequence of Part
            What it gives to sinks: of rows that are carried no task has taken any.
        """
        if not self._heard:
            return
        taps = Taps(self.wish)
        for sink in self.wish.keys() & parts.keys():
            for part in parts[sink]:
                if isinstance(part, Carried):
                    taps.see(sink, part.rows.to_batches())
        found = together([samples, taps.take()])
        for call in self._heard:
            call.note(found.get(call.tap, ()))


def _wish_of(calls: Sequence[SampleCall]) -> Wish:
    return {tap: max(call.left for call in calls if call.tap == tap) for tap in {call.tap for call in calls}}
