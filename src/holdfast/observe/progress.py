"""Progress of a run: a live display on a terminal, one plain line per interval elsewhere, JSON lines for programs.

What is shown is a pure function of a :class:`~holdfast.status.Status`; only :func:`progress_of` knows threads and
streams.  A display that fails (terminal gone, pipe closed) stops showing and never stops the run.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from holdfast.masking import masked, masked_json
from holdfast.observe.operators import size_text, wait_text
from holdfast.observe.times import utc
from holdfast.status import STAGES, EpochStatus, SourceStatus, Status

REFRESHES_PER_S = 4
"""Often enough to look alive, seldom enough to cost nothing."""

_STYLES = {"running": "green", "stopping": "yellow", "starting": "cyan", "stopped": "bold", "failed": "bold red"}

_NUMBERS = ("lag", "rows", "rejects", "epoch", "state rows", "size", "waiting", "late", "shed", "filtered")

_log = logging.getLogger(__name__)


class Observable(Protocol):
    """What the display needs of a run."""

    def status(self) -> Status:
        """Return the run's status now; any thread may call it."""


def as_line(status: Status) -> str:
    """Return a status as one plain line.

    Examples
    --------
    >>> as_line(Status("trips", state="running", epoch=41, rows_total=12345, rows_per_s=250.4))
    'trips running: epoch 41, 12,345 rows (250/s)'
    """
    if status.epoch == 0:
        parts = ["waiting for the first epoch"]
    else:
        parts = [f"epoch {status.epoch}", f"{status.rows_total:,} rows ({status.rows_per_s:,.0f}/s)"]
    if status.sources:
        parts.append("lag " + " ".join(f"{source.name}={_lag(source)}" for source in status.sources))
    if rejects := sum(source.rejects for source in status.sources):
        parts.append(f"rejects {rejects:,}")
    if dropped := [each for each in status.filters if each.filtered]:
        parts.append("filtered " + " ".join(f"{each.name}={each.filtered:,}" for each in dropped))
    for what in ("waiting", "late", "shed"):
        if some := _by_operator(status, "waiting_rows" if what == "waiting" else what):
            parts.append(f"{what} {some}")
    if (longest := _longest_wait(status)) is not None:
        parts.append(longest)
    if status.sinks:
        parts.append("sinks " + " ".join(f"{sink.name}@{sink.epoch}" for sink in status.sinks))
    if status.last_epoch is not None:
        parts.append(stages_of(status.last_epoch))
    if status.queue:
        parts.append(f"{status.queue} waiting for the commit thread")
    if status.retries:
        parts.append(f"retries {status.retries}")
    if status.waits_for:
        parts.append(f"tried again soon: {masked(status.waits_for)}")
    return f"{status.pipeline} {status.state}: {', '.join(parts)}"


def as_last_line(status: Status, now_us: int) -> str:
    """Return what a run did, as one plain line for its end.

    Examples
    --------
    >>> as_last_line(Status("trips", state="stopped", epoch=41, rows_total=12345, started_at_us=0), 2_500_000)
    'trips stopped at epoch 41: 12,345 rows in 2.5 s (4,938/s)'
    """
    seconds = max((now_us - status.started_at_us) / 1e6, 1e-6)
    place = f"at epoch {status.epoch}" if status.epoch else "before the first epoch"
    line = f"{status.pipeline} {status.state} {place}: {status.rows_total:,} rows in {seconds:.1f} s"
    line += f" ({status.rows_total / seconds:,.0f}/s)"
    for count, word in (
        (sum(s.rejects for s in status.sources), "rejects"),
        (sum(o.late for o in status.operators), "late"),
        (sum(o.shed for o in status.operators), "shed"),
        (sum(o.waiting_rows for o in status.operators), "still waiting"),
        (status.retries, "retries"),
    ):
        if count:
            line += f", {word} {count:,}"
    return line


def as_display(status: Status) -> RenderableType:
    """Return a status as what the terminal shows: headline, sources, stateful operators, sinks, the last epoch."""
    head = Text.assemble(
        (status.pipeline, "bold"),
        "  ",
        (status.state, _STYLES[status.state]),
        f"  generation {status.generation or '-'}  epoch {status.epoch or '-'}  {status.rows_total:,} rows",
        f"  {status.rows_per_s:,.0f} rows/s  retries {status.retries}",
    )
    if status.queue:
        head.append(f"  waiting for the commit thread {status.queue}")
    parts: list[RenderableType] = [head, _sources(status)]
    if status.filters:
        parts.append(_filters(status))
    if status.operators:
        parts.append(_operators(status))
    parts.append(_sinks(status))
    if status.last_epoch is not None:
        parts.append(Text(f"last epoch: {_rows(status.last_epoch)}, {stages_of(status.last_epoch)}", style="dim"))
    if status.waits_for:
        parts.append(Text(f"tried again soon: {masked(status.waits_for)}", style="yellow"))
    if status.error:
        parts.append(Text(masked(status.error), style="red"))
    return Group(*parts)


def stages_of(epoch: EpochStatus) -> str:
    """Return an epoch's milliseconds, in all and by stage.

    Examples
    --------
    >>> stages_of(EpochStatus(3, duration_ms={"publish": 4.0, "plan": 1.4}))
    '5 ms (plan 1, publish 4)'
    """
    names = [name for name in STAGES if name in epoch.duration_ms]
    names += [name for name in epoch.duration_ms if name not in STAGES]
    each = ", ".join(f"{name} {epoch.duration_ms[name]:.0f}" for name in names)
    return f"{epoch.total_ms:.0f} ms ({each})" if each else "0 ms"


@contextmanager
def progress_of(
    run: Observable,
    *,
    interval_s: float,
    now_us: Callable[[], int],
    as_json: bool = False,
    is_terminal: bool | None = None,
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
    """
    picture = _LastGood(run)
    on_terminal = sys.stderr.isatty() if is_terminal is None else is_terminal
    if as_json:
        shown = _every(interval_s, lambda: _write_json(picture()))
    elif on_terminal:
        shown = _live(picture)
    else:
        shown = _every(interval_s, lambda: _write(as_line(picture())))
    try:
        with shown:
            yield
    finally:
        # After the display has gone, and after a failure too: how far the run got.
        _quietly(lambda: _write_json(picture()) if as_json else _write(as_last_line(picture(), now_us())))


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


def _sources(status: Status) -> Table:
    table = _table("source", "position", "lag", "rows", "rejects")
    for source in status.sources:
        table.add_row(
            source.name, positions_text(source.positions), _lag(source), f"{source.rows:,}", f"{source.rejects:,}"
        )
    return table


def _filters(status: Status) -> Table:
    table = _table("filter", "rows", "filtered")
    for each in status.filters:
        table.add_row(each.name, *("?" if count is None else f"{count:,}" for count in (each.rows, each.filtered)))
    return table


def _operators(status: Status) -> Table:
    table = _table("operator", "state rows", "size", "waiting", "late", "shed", "longest wait")
    for operator in status.operators:
        wait = wait_text(operator.waits[0]) if operator.waits else ""
        counts = (operator.waiting_rows, operator.late, operator.shed)
        table.add_row(
            operator.name,
            f"{operator.state_rows:,}",
            size_text(operator.state_bytes),
            *(f"{count:,}" for count in counts),
            wait,
        )
    return table


def _by_operator(status: Status, count: str) -> str:
    """Return a count of each operator that has any: ``seen=3 sums=1``."""
    return " ".join(f"{o.name}={getattr(o, count):,}" for o in status.operators if getattr(o, count))


def _longest_wait(status: Status) -> str | None:
    waits = [(wait.since_us, operator.name, wait) for operator in status.operators for wait in operator.waits[:1]]
    if not waits:
        return None
    _, name, wait = min(waits, key=lambda one: one[:2])
    who = " ".join(f"{column}={value}" for column, value in wait.key.items())
    return f"{name}{f' ({who})' if who else ''} waits on {wait.input} since {utc(wait.since_us)}"


def _sinks(status: Status) -> Table:
    table = _table("sink", "kind", "guarantee", "epoch", "rows", "last epoch")
    for sink in status.sinks:
        choice = f"staged: {sink.staging}" if sink.last_choice == "staged" and sink.staging else sink.last_choice
        waits = f"{sink.waiting_epochs} epochs, {sink.waiting_rows:,} rows wait" if sink.waiting_epochs else ""
        pace = f"every {sink.pace}" if sink.pace else ""
        shown = ", ".join(filter(None, (choice, pace, waits)))
        table.add_row(sink.name, sink.kind, sink.guarantee, str(sink.epoch), f"{sink.rows:,}", shown)
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column, justify="right" if column in _NUMBERS else "left")
    return table


def positions_text(positions: Mapping[str, int | str]) -> str:
    """Return positions in one line: ``log=7``; many segments are counted instead, and long texts cut.

    Examples
    --------
    >>> positions_text({"log": 7}), positions_text({}), positions_text({str(n): n for n in range(9)})
    ('log=7', '-', '9 segments, 36 in all')
    """
    if len(positions) > 4 and all(isinstance(position, int) for position in positions.values()):
        return f"{len(positions)} segments, {sum(int(p) for p in positions.values()):,} in all"
    text = " ".join(f"{segment}={position}" if segment else str(position) for segment, position in positions.items())
    return (text if len(text) <= 40 else text[:39] + "…") or "-"


def _rows(epoch: EpochStatus) -> str:
    return f"{epoch.rows:,} rows {'carried' if epoch.carried else 'staged'}"


def _lag(source: SourceStatus) -> str:
    return "?" if source.lag is None else f"{source.lag:,}"
