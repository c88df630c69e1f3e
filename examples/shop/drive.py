"""Runs the shop, kills it again and again, and compares what it wrote with what arrived.  ``make shop`` calls this.

Ends with ``shop: rows=<n> duplicates=0 lost=0 differences=0 kills=<n> seconds=<s>``; exit code 1 when that is not true.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from demo import closing
from demo.wipe import FREQUENT, kept, wipe
from examples.shop.generate import deliveries, is_row
from examples.shop.verify import verify
from holdfast.demo.driver import exit_code, prepare_java
from holdfast.demo.kills import DemoFailed, carry_out
from holdfast.demo.processes import Running, kill_tree, start
from holdfast.demo.watch import SinkWatch, parquet_rows
from holdfast.testing.servers.postgres import postgres_dsn, scratch_schema

HERE = Path(__file__).resolve().parent


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the shop for a day; return 0 when every table holds exactly what it should."""
    options = _options(arguments)
    console = Console(highlight=False)
    return exit_code(lambda: _shop(options, console), console, "shop could not be run")


def _shop(options: argparse.Namespace, console: Console) -> int:
    began = time.monotonic()
    work: Path = options.work
    shutil.rmtree(work, ignore_errors=True)
    prepare_java(console)
    console.print(f"sink={options.sink} seed={options.seed} kills={options.kills}: {options.orders:,} orders of a day")
    environment = {"SHOP_WORK": str(work), "PYTHONUNBUFFERED": "1", **(FREQUENT if options.wipe else {})}
    checkpoint = work / "checkpoint"
    with ExitStack() as stack:
        dsn = None
        if options.sink == "postgres":
            dsn = stack.enter_context(scratch_schema(stack.enter_context(postgres_dsn()), "holdfast_shop"))
            environment["SHOP_DSN"] = dsn
        generator = _generate(options)
        stack.callback(kill_tree, generator)

        def start_run(run: int) -> Running:
            if options.wipe and run:
                console.print(f"run {run}: {wipe(checkpoint)}")
            is_last = run == options.kills
            if is_last and generator.process.wait():
                raise DemoFailed(f"the generator failed:\n{generator.log_tail()}")
            command = [sys.executable, "-m", "holdfast", "run", str(HERE / "pipeline.py")]
            arguments = ["--checkpoint", str(checkpoint), *(["--available-now"] if is_last else ["--every", "200ms"])]
            return start([*command, *arguments], work / "logs" / f"run-{run}.log", environment)

        def may_be_killed(run: int, new_rows: int) -> bool:
            # A start without any state would be refused: it could not tell what was lost.
            return not options.wipe or kept(checkpoint) is not None

        archives = ("archive/orders", "archive/payments")
        experiment = carry_out(
            start_run,
            SinkWatch({name: parquet_rows(work / name) for name in archives}),
            rows_expected=_archived(options),
            kill_count=options.kills,
            seed=options.seed,
            say=console.print,
            disturb=may_be_killed,
        )
        contents = verify(work, dsn)
    closing.say(contents, console, "rows")
    kills, seconds = len(experiment.kills), time.monotonic() - began
    print(closing.closing_line("shop", contents, unit="rows", kills=kills, seconds=seconds), flush=True)
    return 0 if all(each.is_exact for each in contents) and kills == options.kills else 1


def _generate(options: argparse.Namespace) -> Running:
    command = [sys.executable, str(HERE / "generate.py"), str(options.work / "in"), "--pause", str(options.pause)]
    numbers = ["--seed", str(options.seed), "--orders", str(options.orders)]
    return start([*command, *numbers], options.work / "logs" / "generator.log")


def _archived(options: argparse.Namespace) -> int:
    """Return how many rows the archives will hold: kills are spread over them."""
    day = deliveries(options.seed, options.orders)
    lines = (line for stream in ("orders", "payments") for tick in day[stream] for line in tick)
    return sum(is_row(line) for line in lines)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.shop.drive", description="Kill a shop, lose nothing.")
    parser.add_argument("--sink", choices=("postgres", "sqlite"), default="postgres", help="where the tables are")
    parser.add_argument("--seed", type=int, help="seed of the day and of the kills; random and printed when absent")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--wipe", action="store_true", help="remove the checkpoint after every kill, but one snapshot")
    parser.add_argument("--orders", type=int, default=20_000)
    parser.add_argument("--pause", type=float, default=0.4, metavar="S", help="seconds between two deliveries")
    parser.add_argument("--work", type=Path, default=HERE / "out", help="everything goes here; emptied first")
    options = parser.parse_args(arguments)
    options.work = options.work.absolute()
    if options.seed is None:
        options.seed = int(os.environ.get("HOLDFAST_SEED") or random.SystemRandom().randrange(10_000))
    return options


if __name__ == "__main__":
    sys.exit(main())
