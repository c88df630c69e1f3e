"""Runs the demo on real data, and on more systems than its own machine has.  ``make demo`` calls this.

The demo itself is ``holdfast.demo``.  Ends with ``demo: rows=<n> duplicates=0 lost=0 kills=5 sets=<n> hours=<n>``; exit
code 1 when that is not true.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import psycopg
from rich.console import Console

from demo import data
from demo.cluster import ExecutorKiller, Rerun, read_events, read_rerun, standalone_cluster
from demo.verify import held_in_kafka, held_in_postgres
from demo.watch import kafka_rows, postgres_rows
from demo.wipe import FREQUENT, kept, wipe
from holdfast.demo.driver import (
    KILL_COUNT,
    DemoSetting,
    clear,
    conclude,
    exit_code,
    prepare_java,
    show,
    stop_at_signals,
)
from holdfast.demo.kills import DemoFailed
from holdfast.demo.verify import COLUMNS, FILES
from holdfast.testing.servers.kafka import kafka_server
from holdfast.testing.servers.postgres import postgres_dsn, scratch_schema

HERE = Path(__file__).resolve().parent
TABLES = [stream for stream in COLUMNS if stream not in FILES]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return 0 when every row is in its sink once."""
    options = _options(arguments)
    console = Console(highlight=False)
    stop_at_signals()
    return exit_code(lambda: _demo(options, console), console)


def _demo(options: argparse.Namespace, console: Console) -> int:
    work: Path = options.work
    data.prepare(work / "data")
    prepare_java(console)
    clear(work)
    setting = DemoSetting(work, options.report, options.seed, options.kills, master=options.master)
    with ExitStack() as stack:
        if options.sink == "postgres":
            setting = _on_postgres(setting, stack)
        if options.sink == "kafka":
            setting = _on_kafka(setting, stack)
        if options.wipe:
            setting = _wiped(setting, console)
        if options.master != "cluster":
            return conclude(show(setting, console), console)
        cluster = stack.enter_context(standalone_cluster(work / "cluster"))
        killer, disturb = ExecutorKiller(cluster, options.seed), setting.disturb
        setting = replace(
            setting,
            environment={**setting.environment, **cluster.environment},
            disturb=lambda run, new_rows: disturb(run, new_rows) and killer(run, new_rows),
        )
        showing = show(setting, console)
        rerun = _rerun(killer)
        lost, again = _listed(sorted(rerun.lost)), _listed(sorted(rerun.again))
        note = f"Executor {rerun.executor} was killed while it ran {lost}; ran again: {again}."
        console.print(note)
        return conclude(showing, console, [note]) or int(not rerun.is_exact)


def _on_postgres(setting: DemoSetting, stack: ExitStack) -> DemoSetting:
    dsn = stack.enter_context(scratch_schema(stack.enter_context(postgres_dsn()), "holdfast_demo"))
    watcher = stack.enter_context(psycopg.connect(dsn, autocommit=True))
    return replace(
        setting,
        database="PostgreSQL",
        environment={**setting.environment, "DEMO_POSTGRES": dsn},
        table_rows=lambda table: postgres_rows(watcher, table),
        held_in_table=lambda table: held_in_postgres(dsn, table),
    )


def _on_kafka(setting: DemoSetting, stack: ExitStack) -> DemoSetting:
    from demo.topics import loading

    broker = stack.enter_context(kafka_server()).bootstrap
    loaded = stack.enter_context(loading(broker, setting.work / "data" / "flights", TABLES))

    def is_last(run: int) -> bool:
        return run == setting.kill_count

    def wait_for_rows(run: int) -> None:
        if is_last(run):
            loaded.result()

    return replace(
        setting,
        database="Kafka",
        environment={**setting.environment, "DEMO_KAFKA": broker},
        table_rows=lambda topic: kafka_rows(broker, topic, keyed=topic == "hourly"),
        held_in_table=lambda topic: held_in_kafka(broker, topic, keyed=topic == "hourly"),
        before_run=wait_for_rows,
        ends=is_last,  # a topic has no end: a run that reads one while it grows goes on until it is killed
    )


def _wiped(setting: DemoSetting, console: Console) -> DemoSetting:
    checkpoint, before_run = setting.work / "checkpoint", setting.before_run

    def wipe_first(run: int) -> None:
        if run:
            console.print(f"run {run}: {wipe(checkpoint)}")
        before_run(run)

    def has_snapshot(run: int, new_rows: int) -> bool:
        # A start without any state would be refused: it could not tell what was lost.
        return kept(checkpoint) is not None

    return replace(
        setting, environment={**setting.environment, **FREQUENT}, before_run=wipe_first, disturb=has_snapshot
    )


def _rerun(killer: ExecutorKiller) -> Rerun:
    if killer.rows_at_kill is None:
        raise DemoFailed("no executor was caught at work in the first run")
    return read_rerun(read_events(killer.cluster.event_logs[0]))


def _listed(tasks: Sequence[str]) -> str:
    return f"{len(tasks)} task(s) ({', '.join(tasks)})" if tasks else "no task"


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
