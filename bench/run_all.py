"""Runs every benchmark, one after the other: ``make bench``.  ``--scale smoke`` is quick and proves nothing."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence

from bench.sides import MARK

COMMANDS = {
    "full": (
        ("bench.exactly_once",),
        ("bench.epoch_latency",),
        ("bench.kafka",),
        ("bench.state_latency",),
        ("bench.memory",),
        ("bench.sync",),
        ("bench.join",),
        ("bench.levels",),
        ("bench.state",),
        ("bench.upsert",),
        ("bench.state_growth",),
        ("bench.checkpoint",),
        ("bench.restart",),
        ("bench.apply",),
        ("bench.footprint",),
        ("bench.plan",),
        ("bench.segments",),
        ("bench.bad_input",),
        ("bench.byte_stream",),
        ("bench.row_ids",),
        ("bench.early",),
        ("bench.reconcile",),
        ("bench.failover",),
        ("bench.object_store",),
        ("bench.flow",),
        ("bench.video",),
        ("bench.shards_on_paper",),
        ("bench.shard_keys",),
        ("bench.shards",),
        ("bench.observing",),
        ("bench.call",),
    ),
    "smoke": (
        ("bench.exactly_once", "--rows", "200000", "--files", "8", "--rounds", "2"),
        ("bench.epoch_latency", "--seconds", "5", "--warm-seconds", "2", "--rounds", "2"),
        ("bench.kafka", "--rows", "200000", "--rounds=2", "--warm-rounds=0", "--seconds", "5", "--warm-seconds", "2"),
        ("bench.state_latency", "--seconds", "5", "--warm-seconds", "2", "--rounds", "2"),
        ("bench.memory", "--epochs", "100", "--rows", "200000"),
        ("bench.sync", "--rows", "200000", "--rounds", "2"),
        ("bench.join", "--rows", "100000", "--rounds", "2"),
        ("bench.levels", "--rows", "200000", "--keys", "2000", "--epochs", "4", "--rounds", "2"),
        ("bench.state", "--rows", "100000", "--keys", "10000", "--rounds", "2"),
        ("bench.upsert", "--rows", "200000", "--files", "8", "--rounds", "2"),
        ("bench.state_growth", "--epochs", "5", "--sizes", "10000", "100000"),
        ("bench.checkpoint", "--keys", "20000", "--rows", "5000", "--epochs", "6", "--rounds", "2"),
        ("bench.restart", "--keys", "20000", "--rounds", "2"),
        ("bench.apply", "--epochs", "6", "--rows", "20000", "--rounds", "2"),
        ("bench.footprint", "--seconds", "10", "--rows", "20000", "--rounds", "2"),
        ("bench.plan", "--rounds", "2"),
        ("bench.segments", "--rows", "100000", "--files", "8", "--rounds", "2", "--epochs", "6"),
        ("bench.bad_input", "--rows", "20000", "--fields", "20000", "--gzip-mb", "100", "--rounds", "2"),
        ("bench.byte_stream", "--seconds", "3", "--rounds", "2"),
        ("bench.row_ids",),
        ("bench.early", "--keys", "1000", "--seconds", "4", "--warm-seconds", "5", "--rounds", "2"),
        ("bench.reconcile", "--rows", "100000", "--files", "4", "--rounds", "2"),
        ("bench.failover", "--times", "1", "--rows", "200000", "--rounds", "2"),
        ("bench.object_store", "--epochs", "30", "--warm", "5", "--rounds", "2"),
        ("bench.flow", "--sets", "20000", "--rows", "40000", "--rounds", "2"),
        ("bench.video", "--frames", "100", "--rounds", "2", "--store-seconds", "2"),
        ("bench.shards_on_paper", "--segments", "1000", "--shards", "10"),
        ("bench.shard_keys", "--rows", "50000"),
        ("bench.shards", "--seconds", "5", "--rounds", "1", "--rows", "100000", "--files", "8", "--many", "8"),
        ("bench.observing", "--rows", "200000", "--files", "8", "--rounds", "2"),
        ("bench.call", "--rows", "400", "--concurrency", "8", "--kills", "1"),
    ),
}


def failure_of(command: Sequence[str]) -> str:
    """Run a benchmark, its output going to ours line by line; return what is wrong with how it ended, or nothing."""
    has_result = False
    with subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            has_result |= line.startswith(MARK) and is_result(line.removeprefix(MARK))
    if process.returncode != 0:
        return f"exit code {process.returncode}"
    return "" if has_result else "no RESULT"


def is_result(text: str) -> bool:
    """Tell whether a text is figures: a JSON object, all of whose numbers are numbers."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)  # NaN, Infinity: a division by what took no time, or by nothing

    try:
        return bool(json.loads(text, parse_constant=refuse)) and text.startswith("{")
    except ValueError:
        return False


def run(commands: Iterable[Sequence[str]]) -> int:
    """Run benchmarks, each whatever became of those before it; return 1 when one failed, which is named."""
    failed = []
    for command in commands:
        print(f"--- {' '.join(command)}", flush=True)
        if failure := failure_of(command):
            failed.append(f"{command[0]} ({failure})")
    if failed:
        print(f"bench: failed: {', '.join(failed)}")
    return 1 if failed else 0


def main() -> int:
    """Run them all."""
    parser = argparse.ArgumentParser(prog="python -m bench.run_all", description=__doc__)
    parser.add_argument("--scale", choices=sorted(COMMANDS), default="full")
    return run(COMMANDS[parser.parse_args().scale])


if __name__ == "__main__":
    sys.exit(main())
