"""Runs the demo: starts the pipeline, kills it five times, verifies, draws.  ``make demo`` calls this.

Ends with ``demo: rows=<n> duplicates=0 lost=0 kills=5 sets=<n> hours=<n>``; exit code 1 when that is not true.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

import psycopg
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from demo import closing, data, report
from demo.cluster import ExecutorKiller, Rerun, read_events, read_rerun, standalone_cluster
from demo.kills import DemoFailed, Experiment, carry_out, undisturbed
from demo.processes import Running, start
from demo.verify import FILES, Verdict, expected, verify
from demo.watch import Counter, Watch, kafka_rows, parquet_rows, postgres_rows, sqlite_rows
from demo.wipe import FREQUENT, kept, wipe
from holdfast.spark.launch import class_archive
from holdfast.spark.launch.java import require_java
from holdfast.testing.servers.kafka import kafka_server
from holdfast.testing.servers.postgres import postgres_dsn, scratch_schema

HERE = Path(__file__).resolve().parent
KILL_COUNT = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return 0 when every row is in its sink once."""
    options = _options(arguments)
    console = Console(highlight=False)
    signal.signal(signal.SIGTERM, _interrupt)
    return closing.exit_code(lambda: _demo(options, console), console, "demo could not be carried out")


def prepare_java(console: Console) -> None:
    """Make the archive of Spark's classes now: a run makes it in the background, later than the demo's runs live."""
    require_java()
    archive = class_archive.path_for(os.environ)
    if archive is not None and not archive.exists():
        console.print(f"making an archive of Spark's classes for quicker starts, once: {archive}", soft_wrap=True)
        class_archive.make(archive)


def _demo(options: argparse.Namespace, console: Console) -> int:
    work: Path = options.work
    data.prepare(work / "data")
    prepare_java(console)
    _clear(work)
    rows = {stream: table.height for stream, table in expected(work / "data").items()}
    console.print(f"sink={options.sink} master={options.master} seed={options.seed}; to be written: {_words(rows)}")
    environment = {"DEMO_WORK": str(work), "PYTHONUNBUFFERED": "1"}
    with ExitStack() as stack:
        dsn = None
        if options.sink == "postgres":
            dsn = stack.enter_context(scratch_schema(stack.enter_context(postgres_dsn()), "holdfast_demo"))
        broker = loaded = None
        if options.sink == "kafka":
            from demo.topics import loading

            broker = stack.enter_context(kafka_server()).bootstrap
            sinks = [stream for stream in rows if stream not in FILES]
            loaded = stack.enter_context(loading(broker, work / "data" / "flights", sinks))
            environment["DEMO_KAFKA"] = broker
        watcher = stack.enter_context(psycopg.connect(dsn, autocommit=True)) if dsn else None

        def counter(stream: str) -> Counter:
            if stream in FILES:
                return parquet_rows(work / stream)
            if broker:
                return kafka_rows(broker, stream, keyed=stream == "hourly")
            return postgres_rows(watcher, stream) if watcher else sqlite_rows(work / "flights.db", stream)

        counters = {stream: counter(stream) for stream in rows}
        if dsn:
            environment["DEMO_POSTGRES"] = dsn
        if options.wipe:
            environment |= FREQUENT
        checkpoint = work / "checkpoint"
        killer = None
        if options.master == "cluster":
            cluster = stack.enter_context(standalone_cluster(work / "cluster"))
            environment |= cluster.environment
            killer = ExecutorKiller(cluster, options.seed)
        watch = Watch(counters)
        flights_in_sets = parquet_rows(work / "sets", in_lists_of="flights")
        with _progress(console, rows) as progress:

            def waiting() -> int:
                return counters["flights"]() - flights_in_sets()

            def show() -> None:
                for task, count in zip(progress.task_ids, watch.samples[-1].rows, strict=True):
                    progress.update(task, completed=count)

            def start_run(run: int) -> Running:
                if options.wipe and run:
                    console.print(f"run {run}: {wipe(checkpoint)}")
                is_last = run == options.kills
                if loaded is not None and is_last:
                    loaded.result()
                # A topic has no end: a run that reads one while it grows goes on until it is killed.
                return _start(run, work, environment, ends=loaded is None or is_last)

            def may_be_killed(run: int, new_rows: int) -> bool:
                # A start without any state would be refused: it could not tell what was lost.
                return (not options.wipe or kept(checkpoint) is not None) and disturb(run, new_rows)

            disturb = killer or undisturbed
            experiment = carry_out(
                start_run,
                watch,
                rows_expected=sum(rows.values()),
                kill_count=options.kills,
                seed=options.seed,
                say=console.print,
                show=show,
                waiting=waiting,
                disturb=may_be_killed,
            )
        verdicts = verify(work, dsn, broker)
        rerun = _rerun(killer) if killer else None
    return _conclude(options, console, watch, experiment, verdicts, rerun)


def _conclude(
    options: argparse.Namespace,
    console: Console,
    watch: Watch,
    experiment: Experiment,
    verdicts: Sequence[Verdict],
    rerun: Rerun | None,
) -> int:
    notes = []
    if rerun is not None:
        lost, again = sorted(rerun.lost), sorted(rerun.again)
        notes.append(f"Executor {rerun.executor} was killed while it ran {_listed(lost)}; ran again: {_listed(again)}.")
        console.print(notes[-1])
    database = {"postgres": "PostgreSQL", "kafka": "Kafka", "sqlite": "SQLite"}[options.sink]
    sinks = [f"{v.stream} ({'Parquet files' if v.stream in FILES else database})" for v in verdicts]
    settings = f"Master {options.master}, seed {options.seed}."
    page = report.page(experiment, watch.samples, verdicts, sinks=sinks, settings=settings, notes=notes)
    options.report.write_text(page, encoding="utf-8")
    console.print(_table(experiment, verdicts))
    for verdict in verdicts:
        for each in verdict.sums:
            if each.expected != each.held:
                console.print(f"sum of {verdict.stream}.{each.column}: expected {each.expected!r}, held {each.held!r}")
    console.print(f"report: {_relative(options.report)}", soft_wrap=True)
    held, duplicates, lost_count = (sum(getattr(v, name) for v in verdicts) for name in ("held", "duplicates", "lost"))
    kill_count = len(experiment.kills)
    stateful = {v.stream: v.held for v in verdicts}
    print(
        f"demo: rows={held} duplicates={duplicates} lost={lost_count} kills={kill_count} "
        f"sets={stateful['sets']} hours={stateful['hourly']}",
        flush=True,
    )
    is_good = all(verdict.is_exact for verdict in verdicts) and kill_count == options.kills
    return 0 if is_good and (rerun is None or rerun.is_exact) else 1


def _start(run: int, work: Path, environment: dict[str, str], *, ends: bool) -> Running:
    target = f"{HERE / 'pipeline.py'}:pipeline"
    command = [sys.executable, "-m", "holdfast", "run", target, "--checkpoint", str(work / "checkpoint")]
    return start([*command, *(["--available-now"] if ends else [])], work / "logs" / f"run-{run}.log", environment)


def _rerun(killer: ExecutorKiller) -> Rerun:
    if killer.rows_at_kill is None:
        raise DemoFailed("no executor was caught at work in the first run")
    return read_rerun(read_events(killer.cluster.event_logs[0]))


def _clear(work: Path) -> None:
    """Remove what the last demo left, its input apart."""
    for path in work.iterdir():
        if path.name == "data":
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


@contextmanager
def _progress(console: Console, rows: dict[str, int]) -> Iterator[Progress]:
    columns = (TextColumn("{task.description:10}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        for name, count in rows.items():
            progress.add_task(name, total=count)
        yield progress


def _table(experiment: Experiment, verdicts: Sequence[Verdict]) -> Table:
    table = Table("sink", "rows", "kills", "duplicates", "lost", "sums", title="Every row once?", title_justify="left")
    for verdict in verdicts:
        sums = "equal" if all(each.expected == each.held for each in verdict.sums) else "differ"
        numbers = (verdict.held, len(experiment.kills), verdict.duplicates, verdict.lost)
        table.add_row(verdict.stream, *(f"{number:,}" for number in numbers), sums)
    table.add_section()
    for number, kill in enumerate(experiment.kills, start=1):
        seconds = kill.first_row_s or 0.0
        table.add_row(
            f"kill {number} at {kill.at_s:.1f} s", f"{kill.rows:,}", "", "", "", f"{seconds:.1f} s to new row"
        )
    return table


def _words(rows: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in rows.items())


def _listed(tasks: Sequence[str]) -> str:
    return f"{len(tasks)} task(s) ({', '.join(tasks)})" if tasks else "no task"


def _relative(path: Path) -> str:
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def _interrupt(signal_number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m demo.driver", description="Kill a pipeline, lose nothing.")
    parser.add_argument(
        "--sink", choices=("sqlite", "postgres", "kafka"), default="sqlite", help="where the flights go"
    )
    parser.add_argument("--master", choices=("local", "cluster"), default="local", help="threads, or real processes")
    parser.add_argument("--seed", type=int, help="seed of the kills; random and printed when absent")
    parser.add_argument("--wipe", action="store_true", help="remove the checkpoint after every kill, but one snapshot")
    parser.add_argument("--kills", type=int, default=KILL_COUNT)
    parser.add_argument("--work", type=Path, default=HERE / "out", help="everything but the report goes here")
    parser.add_argument("--report", type=Path, default=HERE / "report.html")
    options = parser.parse_args(arguments)
    if options.seed is None:
        options.seed = int(os.environ.get("HOLDFAST_SEED") or random.SystemRandom().randrange(10_000))
    options.work = options.work.absolute()
    return options


if __name__ == "__main__":
    sys.exit(main())
