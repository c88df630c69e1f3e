"""``holdfast run``: one pipeline in the foreground, until it ends, fails or is asked to stop.

``holdfast backfill``: a range of the past beside it, likewise (design/0056).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from holdfast.checkpoint.backfills import BackfillNote
from holdfast.cli import frame
from holdfast.cli.child import StopSignals, is_supervised
from holdfast.cli.failures import StoppedEarly
from holdfast.cli.frame import AsJson, Checkpoint, SparkCheckpoint, Target
from holdfast.cli.steering import rows_per_s
from holdfast.cli.target import load_target
from holdfast.clock import SystemClock
from holdfast.config import Settings
from holdfast.errors import HoldfastError, InternalError, Unavailable
from holdfast.observe.progress import progress_of, start_shown
from holdfast.status import Status

if TYPE_CHECKING:
    from holdfast.controller.backfill import Backfilling
    from holdfast.spark.run import Run

POLL_S = 0.2
"""How soon a signal is acted upon; signals wake the main thread from Python code only, not from a long wait."""


class Runnable(Protocol):
    """What the command line needs of a run."""

    def status(self) -> Status:
        """Return the run's status now."""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; False when the time is up.  Raises the error of a run that failed."""

    def stop(self, timeout_s: float | None = None) -> Any:
        """Stop after the current epoch."""


def run_in_foreground(pipeline: str, start: Callable[[], Runnable], settings: Settings, *, as_json: bool) -> None:
    """Start a run, show its progress, and return when it has ended.

    A signal that arrives during the start is remembered, and stops the run as soon as it has begun: half a start cannot
    be taken back better than by a run that stops.

    Parameters
    ----------
    pipeline : str
        Its name.
    start : callable
        Starts the run and returns it.
    settings : Settings
        For the interval between progress lines.
    as_json : bool
        Progress as JSON lines on stdout.

    Raises
    ------
    HoldfastError
        If the run cannot start or fails.
    StoppedEarly
        If it was asked to stop, and a system that its start or its last epoch needed was gone.
    """
    with StopSignals(is_supervised=is_supervised()) as signals:
        doing, now_us, interval_s = "the start", SystemClock().now_us, settings.progress_interval_s
        try:
            with start_shown(pipeline, interval_s=interval_s, now_us=now_us, as_json=as_json):
                run = start()
            signals.install()  # a session that users' code has made meanwhile may have taken them
            doing = "the current epoch"
            with progress_of(run, interval_s=interval_s, now_us=now_us, as_json=as_json):
                # One that arrived during the start counts as well: stopped before it is waited for.
                while signals.asked_by is None:
                    if run.wait(timeout_s=POLL_S):
                        return
                run.stop()
                run.wait()
        except (Unavailable, InternalError) as failure:
            if signals.asked_by is None:
                raise
            raise _stopped_early(signals.asked_by, doing, failure) from failure


def _stopped_early(signal: str, doing: str, failure: HoldfastError) -> StoppedEarly:
    """Report a stop as a stop: the sender of the signal may also have stopped a system that was needed."""
    return StoppedEarly(
        f"{signal} asked for a stop, and {doing} could not be finished.",
        why=f"{failure.what} {failure.why}".strip(),
        do="start again at any time: the next run asks every sink first; nothing is lost or duplicated.",
        pipeline=failure.pipeline,
        epoch=failure.epoch,
        generation=failure.generation,
    )


def seen_waiting(pipeline: str, options: Mapping[str, Any]) -> AbstractContextManager[object]:
    """Serve for a block that a replica waits, where metrics are asked for: by options of a start, or by settings."""
    if not (address := options.get("metrics") or options["settings"].metrics):
        return nullcontext()
    from holdfast.metrics.exporter import show_replica  # its library may be missing

    return show_replica(pipeline, address)


def backfill(
    target: Target,
    checkpoint: Checkpoint,
    since: Annotated[str, typer.Option("--from", metavar="TIME", help="Begin of the range: ISO 8601, or ticks.")],
    until: Annotated[str, typer.Option("--to", metavar="TIME", help="End of the range, exclusive.")],
    sources: Annotated[
        list[str] | None,
        typer.Option("--source", metavar="NAME", help="Read this source; may be repeated. Default: all of them."),
    ] = None,
    left_out: Annotated[
        list[str] | None, typer.Option("--except", metavar="SINK", help="Leave this sink out; may be repeated.")
    ] = None,
    rate: Annotated[
        str | None, typer.Option(metavar="N/s", help="Rows a second that each source delivers at most: 5000/s.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Write rows that sinks may hold already: twice, or over newer ones.")
    ] = False,
    empty_state: Annotated[
        bool, typer.Option("--empty-state", help="Let operators that keep state begin without any.")
    ] = False,
    master: Annotated[str | None, typer.Option(metavar="URL", help="Spark master. Default: HOLDFAST_MASTER.")] = None,
    spark_checkpoint: SparkCheckpoint = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Read a range of the past through the present graph, beside the run, exactly once.

    The same command again goes on where it was, or says that it is done.
    """
    with frame.settings(as_json) as settings:
        from holdfast.controller.backfill import backfilling
        from holdfast.spark.launch.early import begin

        wanted = None if rate is None else _rate(rate)
        made = backfilling(
            load_target(target),
            checkpoint=checkpoint,
            at=since,
            until=until,
            sources=sources or (),
            leave_out=left_out or (),
            again=again,
            empty_state=empty_state,
            spark_checkpoint=spark_checkpoint,
        )
        answer = {"backfill": made.note.name, "checkpoint": made.checkpoint, "dry_run": dry_run}
        if dry_run or made.is_done:
            frame.answer({**answer, "is_done": made.is_done}, made.lines(), as_json)
            return
        if not as_json:
            frame.print_lines(made.lines())
        begin(made.graph, {"settings": settings, "master": master})
        with frame.log_file(made.directory, settings, as_json):
            frame.note_start(f"backfill {target} --from {since} --to {until}")
            frame.note_settings(settings)
            start = partial(_start_shown, made, rate=wanted, settings=settings, master=master)
            run_in_foreground(made.graph.name, start, settings, as_json=as_json)
        _tell_end(made, answer, as_json)


def _rate(text: str) -> float:
    if (rate := rows_per_s(text)) is None:
        raise typer.BadParameter(f"--rate={text} is no rate: write 5000/s, or leave it out.")
    return rate


def _tell_end(made: Backfilling, answer: Mapping[str, Any], as_json: bool) -> None:
    is_done = made.finish()
    left = "not done: it was stopped, or a source is paused; the same command goes on"
    frame.answer({**answer, "is_done": is_done}, ["done: every sink holds the range" if is_done else left], as_json)
    if not is_done:
        raise typer.Exit(1)


def _start_shown(made: Backfilling, **options: Any) -> _ShownBackfill:
    return _ShownBackfill(made.start(**options), made.note)


@dataclass(frozen=True)
class _ShownBackfill:
    """The run of a backfill, whose status says how far in its range it is.

    Parameters
    ----------
    run : Run
        The run.
    note : BackfillNote
        Its range.
    """

    run: Run
    note: BackfillNote

    def status(self) -> Status:
        """Return the run's status now, with what it has reached."""
        status, reached = self.run.status(), self.run.time_reached()
        said = [status.doing] if status.doing else []
        return replace(status, doing=", ".join([*said, reached_text(self.note, reached)]))

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for its end."""
        return self.run.wait(timeout_s)

    def stop(self, timeout_s: float | None = None) -> Any:
        """Stop it after the current epoch."""
        return self.run.stop(timeout_s)


def reached_text(note: BackfillNote, reached: int | None) -> str:
    """Say how far in its range a backfill is: by the newest rows that every sink holds.

    Examples
    --------
    >>> note = BackfillNote("3f2a91c0", 100, 200, ("rides",), ("table",), (), "100 to 200", 0)
    >>> reached_text(note, None), reached_text(note, 150), reached_text(note, 199)
    ('0% of 100 to 200', '50% of 100 to 200', '99% of 100 to 200')
    """
    part = 0 if reached is None else (min(max(reached, note.at), note.until) - note.at) / (note.until - note.at)
    return f"{int(100 * part)}% of {note.shown}"
