"""Progress of a run: a live display on a terminal, one plain line per interval elsewhere, JSON lines for programs.

What is shown is a pure function of a :class:`~holdfast.status.Status`; only :func:`progress_of` knows threads and
streams.  A display that fails (terminal gone, pipe closed) stops showing and never stops the run.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from holdfast.display import lines
from holdfast.display.lines import as_last_line, as_line
from holdfast.display.tables import NUMBERS, Grid, footlines, grids, headline
from holdfast.masking import masked, masked_json
from holdfast.status import Status

REFRESHES_PER_S = 4
"""Often enough to look alive, seldom enough to cost nothing."""

REPEATED_EVERY = 12
"""Of equal lines: with the default interval one in a minute."""

_STYLES = {"running": "green", "stopping": "yellow", "starting": "cyan", "stopped": "bold", "failed": "bold red"}

_log = logging.getLogger(__name__)


class Observable(Protocol):
    """What the display needs of a run."""

    def status(self) -> Status:
        """Return the run's status now; any thread may call it."""


def as_display(status: Status) -> RenderableType:
    """Return a status as what the terminal shows: headline, sources, stateful operators, sinks, the last epoch."""
    head = Text.assemble((status.pipeline, "bold"), "  ", (status.state, _STYLES[status.state]), "  ", headline(status))
    feet = (Text(line, style=style) for style, line in footlines(status))
    return Group(head, *map(_table, grids(status)), *feet)


@contextmanager
def progress_of(
    run: Observable,
    *,
    interval_s: float,
    now_us: Callable[[], int],
    as_json: bool = False,
    is_terminal: bool | None = None,
    has_end: bool = True,
) -> Iterator[None]:
    """Show a run's progress while the block runs, and a last line at its end.

    Parameters
    ----------
    run : Observable
        The run; its ``status`` is called from a thread of the display.
    interval_s : float
        Seconds between two lines where there is no terminal.
    now_us : callable
        Clock for the last line: microseconds of Unix time.
    as_json : bool
        One JSON object per interval on stdout instead of anything on stderr.
    is_terminal : bool, optional
        Whether stderr is a terminal; asked of it when omitted.
    has_end : bool
        Whether there is a last line.
    """
    picture = _LastGood(run)
    on_terminal = sys.stderr.isatty() if is_terminal is None else is_terminal
    if as_json:
        shown = _every(interval_s, lambda: _write_json(picture()))
    elif on_terminal:
        shown = _live(picture)
    else:
        news = _News()
        shown = _every(interval_s, lambda: news.write(as_line(picture())))
    try:
        with shown:
            yield
    finally:
        # After the display has gone, and after a failure too: how far the run got.
        if has_end:
            _quietly(lambda: _write_json(picture()) if as_json else _write(as_last_line(picture(), now_us())))


@contextmanager
def start_shown(
    pipeline: str,
    *,
    interval_s: float,
    now_us: Callable[[], int],
    as_json: bool = False,
    is_terminal: bool | None = None,
) -> Iterator[None]:
    """Show what a start is doing while the block starts a run; it takes what :func:`progress_of` takes.

    Parameters
    ----------
    pipeline : str
        Its name.
    interval_s, now_us, as_json, is_terminal
        As there.
    """
    start = _Beginning(Status(pipeline, started_at_us=now_us(), doing="reading the checkpoint"))
    shown = progress_of(
        start, interval_s=interval_s, now_us=now_us, as_json=as_json, is_terminal=is_terminal, has_end=False
    )
    with lines.heard_by(start.reach), shown:
        yield


class _Beginning:
    """A start, as a run of which only the phase is known."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def reach(self, phase: str) -> None:
        self._status = replace(self._status, doing=phase)

    def status(self) -> Status:
        return self._status


class _News:
    """Lines of which one that says nothing new is left out for a while: nobody reads a log of equal lines."""

    def __init__(self) -> None:
        self._last = ""
        self._left_out = 0

    def write(self, line: str) -> None:
        """Write a line, unless it is the last one again; every twelfth time even so."""
        self._left_out = self._left_out + 1 if line == self._last else 0
        if self._left_out % REPEATED_EVERY == 0:
            self._last = line
            _write(line)


class _LastGood:
    """The run's status, or the last one there was when the run cannot answer."""

    def __init__(self, run: Observable) -> None:
        self._run = run
        self._last = Status("?")

    def __call__(self) -> Status:
        try:
            self._last = self._run.status()
        except Exception:  # of whatever kind: a frame is lost, the run continues
            _log.debug("no status", exc_info=True)
        return self._last


@contextmanager
def _live(picture: Callable[[], Status]) -> Iterator[None]:
    console = Console(stderr=True)
    # Rich's own answer to a terminal that is gone is to exit the program, and to discard stdout.
    console.on_broken_pipe = lambda: None  # type: ignore[method-assign]
    live = Live(
        get_renderable=lambda: as_display(picture()),
        console=console,
        refresh_per_second=REFRESHES_PER_S,
        # What a console sink prints must go where the user sent it, unless that is this terminal.
        redirect_stdout=sys.stdout.isatty(),
        redirect_stderr=True,
    )
    with suppress(OSError):
        live.start(refresh=True)
    try:
        yield
    finally:
        with suppress(OSError):
            live.stop()


@contextmanager
def _every(interval_s: float, show: Callable[[], None]) -> Iterator[None]:
    ended = threading.Event()

    def loop() -> None:
        while not ended.wait(interval_s):
            if not _quietly(show):
                return

    thread = threading.Thread(target=loop, name="holdfast-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=5)


def _quietly(show: Callable[[], None]) -> bool:
    try:
        show()
    except (OSError, ValueError):  # closed pipe, closed file
        return False
    return True


def _write(line: str) -> None:
    sys.stderr.write(masked(line) + "\n")
    sys.stderr.flush()


def _write_json(status: Status) -> None:
    sys.stdout.write(json.dumps(masked_json(status.as_json()), ensure_ascii=False) + "\n")
    sys.stdout.flush()


def _table(grid: Grid) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in grid.columns:
        table.add_column(column, justify="right" if column in NUMBERS else "left")
    for row in grid.rows:
        table.add_row(*row)
    return table
