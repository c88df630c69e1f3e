"""Runs the demo: starts the pipeline, kills it five times, verifies, draws the report.

Ends with ``demo: rows=<n> duplicates=0 lost=0 kills=5 sets=<n> hours=<n>``.  Where and on what it runs is a
:class:`DemoSetting`: ``holdfast demo`` makes one of SQLite and generated data, ``demo/driver.py`` of a clone others.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from holdfast.demo import data, report
from holdfast.demo.kills import DemoFailed, Disturbance, Experiment, carry_out, no_disturbance
from holdfast.demo.processes import Running, start
from holdfast.demo.verify import COLUMNS, FILES, Row, SinkVerdict, expectation, verify
from holdfast.demo.watch import Counter, SinkWatch, parquet_rows, sqlite_rows
from holdfast.errors import InvalidPipeline
from holdfast.spark.launch import class_archive
from holdfast.spark.launch.java import require_java

KILL_COUNT = 5
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PIPELINE = "holdfast.demo.pipeline:pipeline"
STAMP = ".holdfast-demo"
"""In a directory that is the demo's, and may be cleared."""


def nothing_before(run: int) -> None:
    """Start the run at once."""


@dataclass(frozen=True)
class DemoSetting:
    """What one demo runs on: its directory has ``data/`` already."""

    work: Path
    report: Path
    seed: int
    kill_count: int = KILL_COUNT
    master: str = "local"
    database: str = "SQLite"
    environment: Mapping[str, str] = field(default_factory=dict)
    """For the runs."""
    table_rows: Callable[[str], Counter] | None = None
    """How the rows of a table are counted; None: in ``flights.db``."""
    held_in_table: Callable[[str], list[Row]] | None = None
    """What a table holds in the end."""
    before_run: Callable[[int], None] = nothing_before
    ends: Callable[[int], bool] = lambda run: True
    """Whether a run ends where its input does."""
    disturb: Disturbance = no_disturbance

    def counter(self, stream: str) -> Counter:
        """Return what counts the rows of a sink."""
        if stream in FILES:
            return parquet_rows(self.work / stream)
        return self.table_rows(stream) if self.table_rows else sqlite_rows(self.work / "flights.db", stream)

    def start(self, run: int) -> Running:
        """Start run number 0, 1, ..."""
        self.before_run(run)
        command = [sys.executable, "-m", "holdfast", "run", PIPELINE, "--checkpoint", str(self.work / "checkpoint")]
        command += ["--available-now"] if self.ends(run) else []
        environment = {"DEMO_WORK": str(self.work), "PYTHONUNBUFFERED": "1", **self.environment}
        return start(command, self.work / "logs" / f"run-{run}.log", environment)


@dataclass(frozen=True)
class Showing:
    """What a demo has shown."""

    setting: DemoSetting
    experiment: Experiment
    watch: SinkWatch
    verdicts: Sequence[SinkVerdict]

    @property
    def is_exact(self) -> bool:
        """Whether every row is in its sink once, after all kills."""
        is_complete = len(self.experiment.kills) == self.setting.kill_count
        return is_complete and all(verdict.is_exact for verdict in self.verdicts)


def demonstrate(directory: Path, console: Console, *, seed: int | None, kill_count: int = KILL_COUNT) -> int:
    """Run the demo on generated data and SQLite; return 0 when every row is in its sink once.

    Parameters
    ----------
    directory : Path
        Gets data, sinks, checkpoint, logs and ``report.html``.
    console : Console
        Gets what is said meanwhile.
    seed : int, optional
        Of the kills; drawn where it is None.
    kill_count : int
        How often it is killed.

    Raises
    ------
    InvalidPipeline
        If the directory holds anything that is not an earlier demo's, or there is no Java.
    """
    work = directory.absolute()
    if work.exists() and not (work / STAMP).exists() and (not work.is_dir() or any(work.iterdir())):
        raise InvalidPipeline(
            f"{directory} is not an earlier demo's.",
            why="the demo clears its directory, and must not remove what is there.",
            do="name another one: holdfast demo --directory DIR",
        )
    prepare_java(console)
    work.mkdir(parents=True, exist_ok=True)
    (work / STAMP).touch()
    data.generate(work / "data")
    seed = random.SystemRandom().randrange(10_000) if seed is None else seed
    clear(work)
    return exit_code(
        lambda: conclude(show(DemoSetting(work, work / "report.html", seed, kill_count), console), console), console
    )


def stop_at_signals() -> None:
    """Let the first signal that asks for a stop end the demo, and later ones not disturb its ending.

    ``make`` passes a signal on that its children got already.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        for each in STOPS:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    for each in STOPS:
        signal.signal(each, stop)


def exit_code(demo: Callable[[], int], console: Console, what: str = "demo could not be carried out") -> int:
    """Run a demo; return its exit code, or that of one that could not be carried out or was stopped."""
    try:
        return demo()
    except DemoFailed as error:
        console.print(f"[red]The {what}:[/] {error}", markup=True, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("stopped; everything that was started is ended")
        return 130


def prepare_java(console: Console) -> None:
    """Make the archive of Spark's classes now: a run makes it in the background, later than the demo's runs live."""
    require_java()
    archive = class_archive.path_for(os.environ)
    if archive is not None and not archive.exists():
        console.print(f"making an archive of Spark's classes for quicker starts, once: {archive}", soft_wrap=True)
        class_archive.make(archive)


def clear(work: Path) -> None:
    """Remove what the last demo left, its input apart."""
    for path in work.iterdir():
        if path.name in ("data", STAMP):
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def show(setting: DemoSetting, console: Console) -> Showing:
    """Run, kill and verify."""
    rows = {stream: len(table) for stream, table in expectation(setting.work / "data").items()}
    counts = ", ".join(f"{count:,} {name}" for name, count in rows.items())
    console.print(f"{setting.database}, master {setting.master}, seed {setting.seed}; to be written: {counts}")
    counters = {stream: setting.counter(stream) for stream in COLUMNS}
    flights_in_sets = parquet_rows(setting.work / "sets", in_lists_of="flights")
    watch = SinkWatch(counters)
    with _progress(console, rows) as progress:

        def look() -> None:
            for task, count in zip(progress.task_ids, watch.samples[-1].rows, strict=True):
                progress.update(task, completed=count)

        experiment = carry_out(
            setting.start,
            watch,
            rows_expected=sum(rows.values()),
            kill_count=setting.kill_count,
            seed=setting.seed,
            say=console.print,
            show=look,
            waiting=lambda: counters["flights"]() - flights_in_sets(),
            disturb=setting.disturb,
        )
    return Showing(setting, experiment, watch, verify(setting.work, setting.held_in_table))


def conclude(showing: Showing, console: Console, notes: Sequence[str] = ()) -> int:
    """Say what was found, write the report, and return the exit code."""
    setting, verdicts, kills = showing.setting, showing.verdicts, showing.experiment.kills
    sinks = [f"{v.stream} ({'Parquet files' if v.stream in FILES else setting.database})" for v in verdicts]
    settings = f"Master {setting.master}, seed {setting.seed}."
    page = report.page(showing.experiment, showing.watch.samples, verdicts, sinks=sinks, settings=settings, notes=notes)
    setting.report.write_text(page, encoding="utf-8")
    console.print(_table(showing))
    for verdict in verdicts:
        for each in verdict.sums:
            if each.expected != each.held:
                console.print(f"sum of {verdict.stream}.{each.column}: expected {each.expected!r}, held {each.held!r}")
    here = setting.report.is_relative_to(Path.cwd())
    console.print(f"report: {os.path.relpath(setting.report) if here else setting.report}", soft_wrap=True)
    held, duplicates, lost = (sum(getattr(v, name) for v in verdicts) for name in ("held", "duplicates", "lost"))
    stateful = {v.stream: v.held for v in verdicts}
    console.print(
        f"demo: rows={held} duplicates={duplicates} lost={lost} kills={len(kills)} "
        f"sets={stateful['sets']} hours={stateful['hourly']}",
        soft_wrap=True,
    )
    return 0 if showing.is_exact else 1


@contextmanager
def _progress(console: Console, rows: Mapping[str, int]) -> Iterator[Progress]:
    columns = (TextColumn("{task.description:10}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        for name, count in rows.items():
            progress.add_task(name, total=count)
        yield progress


def _table(showing: Showing) -> Table:
    kills = showing.experiment.kills
    table = Table("sink", "rows", "kills", "duplicates", "lost", "sums", title="Every row once?", title_justify="left")
    for verdict in showing.verdicts:
        sums = "equal" if all(each.expected == each.held for each in verdict.sums) else "differ"
        numbers = (verdict.held, len(kills), verdict.duplicates, verdict.lost)
        table.add_row(verdict.stream, *(f"{number:,}" for number in numbers), sums)
    table.add_section()
    for number, kill in enumerate(kills, start=1):
        seconds = kill.first_row_s or 0.0
        table.add_row(
            f"kill {number} at {kill.at_s:.1f} s", f"{kill.rows:,}", "", "", "", f"{seconds:.1f} s to new row"
        )
    return table
