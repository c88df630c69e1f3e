"""Rows of a run that somebody wants to see as they pass a node: what is wanted, and what tasks bring of it.

A *tap* is a place where rows pass: a source, a step or a sink by its name, an output of an operator with state as the
head of the program behind it.  What is wanted reaches tasks with each epoch; rows come back in its report, as text for
people.  Nothing of it is durable.  Where nothing is wanted, a batch costs one look into an empty mapping.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.display.rows import ShownRow, rows_of
from holdfast.ports import Carried, Part

Wish = Mapping[str, int]
"""Tap -> so many rows of it are wanted at most."""

NO_WISH: Wish = {}

Samples = Mapping[str, Sequence[ShownRow]]
"""Tap -> rows that passed it."""


class Taps:
    """What one task takes of the rows that pass: the first ones, and no more than are wanted.  Of one thread.

    Parameters
    ----------
    wish : mapping of str to int
        What is wanted.

    Examples
    --------
    >>> taps = Taps({"rides": 2})
    >>> for first in (1, 4):
    ...     taps.see("rides", [pa.RecordBatch.from_pydict({"id": [first, first + 1]})])
    >>> taps.take(), taps.take()
    ({'rides': [{'id': 1}, {'id': 2}]}, {})
    """

    def __init__(self, wish: Wish = NO_WISH) -> None:
        self.begin(wish)

    def begin(self, wish: Wish) -> None:
        """Begin with the next task of the thread; what is left of another one is forgotten."""
        self._left = dict(wish)
        self._rows: dict[str, list[dict[str, Any]]] = {}

    def see(self, tap: str, batches: Iterable[pa.RecordBatch]) -> None:
        """Take rows that pass a tap, where they are wanted."""
        if not self._left or tap not in self._left:
            return
        for batch in batches:
            if self._left[tap] and batch.num_rows:
                rows = rows_of(batch, self._left[tap])
                self._left[tap] -= len(rows)
                self._rows.setdefault(tap, []).extend(rows)

    def take(self) -> Samples:
        """Return the rows since the last call."""
        rows, self._rows = self._rows, {}
        return rows


def together(samples: Iterable[Samples]) -> dict[str, list[ShownRow]]:
    """Return the rows of several tasks.

    Examples
    --------
    >>> together([{"rides": [{"id": 1}]}, {"rides": [{"id": 2}]}])
    {'rides': [{'id': 1}, {'id': 2}]}
    """
    found: dict[str, list[ShownRow]] = {}
    for each in samples:
        for tap, rows in each.items():
            found.setdefault(tap, []).extend(rows)
    return found


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


def read_wish(stop_file: str) -> Wish:
    """Return what is wanted of the run with a stop file, for its planning processes."""
    try:
        found: Wish = json.loads(Path(_wish_file(stop_file)).read_bytes())
    except FileNotFoundError:
        return NO_WISH
    return found


def write_wish(stop_file: str, wish: Wish) -> None:
    """Tell its planning processes what is wanted."""
    path = Path(_wish_file(stop_file))
    with suppress(FileNotFoundError):  # the run has ended, and its directory is gone
        if wish:
            path.with_suffix(".new").write_text(json.dumps(wish))
            path.with_suffix(".new").replace(path)
        else:
            path.unlink()


def _wish_file(stop_file: str) -> str:
    return os.path.join(os.path.dirname(stop_file), "wish.json")
