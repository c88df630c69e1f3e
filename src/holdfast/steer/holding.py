"""What a planning process makes of the controls of its source: it delivers nothing, so much a second, up to an end.

Lives in the process that plans a source, on the driver's machine; the driver replaces the note that it goes by.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.limits import ROW_SIZE, ReadLimit
from holdfast.ports import Source
from holdfast.positions import SourcePositions
from holdfast.steer.controls import Controls
from holdfast.store.notes import beside, read_note, write_note

UNLIMITED_BYTES = 10**15
"""Of an epoch whose rows are limited: more than any."""

BURST_S = 1.0
"""So many seconds of its rate a source that has waited may deliver at once."""

LOOK_S = 0.05
"""How often a source that is faster than it may be looks whether that has changed."""


def controls_file(stop_file: str) -> str:
    """Return the path of the note that says what is in force: beside the one that stops a run."""
    return beside(stop_file, "controls")


def write_controls(stop_file: str, controls: Controls) -> None:
    """Replace what the planning processes of a run go by."""
    write_note(controls_file(stop_file), controls.as_json())


def read_controls(stop_file: str) -> Controls:
    """Return what the planning processes of a run go by."""
    said = read_note(controls_file(stop_file), None)
    return Controls() if said is None else Controls.from_json(said)


@dataclass
class SourceHolding:
    """Holds one source to what was told of it.

    Parameters
    ----------
    stop_file : str
        Of the run.
    source : str
        Its name.
    now_s : callable
        A clock that never goes back, seconds.
    """

    stop_file: str
    source: str
    now_s: Callable[[], float] = time.monotonic
    controls: Controls = field(default_factory=Controls)
    _tokens: float = 0.0
    _filled_s: float | None = None

    def look(self) -> bool:
        """Read what is in force; return whether the source delivers nothing now."""
        self.controls = read_controls(self.stop_file)
        return self.controls.is_paused(self.source) or self.wait_s() > 0

    @property
    def rate(self) -> float | None:
        """Rows per second; None: no limit."""
        return self.controls.limits.get(self.source)

    def wait_s(self) -> float:
        """Return for how long the source delivers nothing, since it was faster than it may be; 0: it may."""
        if self.rate is None:
            self._filled_s = None
            return 0.0
        now_s = self.now_s()
        most = max(1.0, self.rate * BURST_S)
        if self._filled_s is None:
            self._tokens = most
        else:
            self._tokens = min(most, self._tokens + (now_s - self._filled_s) * self.rate)
        self._filled_s = now_s
        return 0.0 if self._tokens >= 1 else (1 - self._tokens) / self.rate

    def lets_pass(self, *, is_bounded: bool) -> bool:
        """Return whether the source may deliver something now.

        Parameters
        ----------
        is_bounded : bool
            Whether the run ends by itself: then a source that is faster than it may be is waited for.
        """
        while self.look():
            wait_s = self.wait_s()
            if not is_bounded or not wait_s or os.path.exists(self.stop_file):
                return False
            time.sleep(min(wait_s, LOOK_S))
        return True

    def latest(
        self, source: Source, start: SourcePositions, given: ReadLimit | None, *, is_bounded: bool
    ) -> SourcePositions:
        """Return where the next epoch ends: no further than the run takes of the source, and was told."""
        if self.rate is None:
            return self._within_ends(start, source.latest(start, bounded=is_bounded, limit=given))
        until = source.latest(start, bounded=is_bounded, limit=self.limit(given))
        if source.rows_between(start, until) is None:
            limit = self.limit(given, are_rows_known=False)
            until = source.latest(start, bounded=is_bounded, limit=limit)
        return self._within_ends(start, until)

    def limit(self, given: ReadLimit | None, *, are_rows_known: bool = True) -> ReadLimit:
        """Return how much the next epoch takes at most, within what is given."""
        rows = max(1, int(self._tokens))
        size_bytes = UNLIMITED_BYTES if are_rows_known else rows * ROW_SIZE
        if given is None:
            return ReadLimit(rows, size_bytes)
        return ReadLimit(min(rows, given.rows), min(size_bytes, given.size_bytes))

    def took(self, source: Source, start: SourcePositions, until: SourcePositions) -> None:
        """Take in what an epoch has taken; where its rows are not known, as many as its bytes are counted for."""
        if self.rate is not None:
            rows, size_bytes = source.rows_between(start, until), source.size_between(start, until)
            self._tokens -= max(1, (size_bytes or 0) // ROW_SIZE) if rows is None else rows

    def _within_ends(self, start: SourcePositions, until: SourcePositions) -> SourcePositions:
        return self.controls.end_of(self.source, start, until)
