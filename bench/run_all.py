"""Runs every benchmark, one after the other: ``make bench``.  ``--scale smoke`` is quick and proves nothing."""

from __future__ import annotations

import argparse
import subprocess
import sys

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
        ("bench.plan",),
        ("bench.segments",),
        ("bench.bad_input",),
        ("bench.byte_stream",),
        ("bench.row_ids",),
        ("bench.early",),
        ("bench.reconcile",),
        ("bench.failover",),
        ("bench.object_store",),
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
        ("bench.plan", "--rounds", "2"),
        ("bench.segments", "--rows", "100000", "--files", "8", "--rounds", "2", "--epochs", "6"),
        ("bench.bad_input", "--rows", "20000", "--fields", "20000", "--gzip-mb", "100", "--rounds", "2"),
        ("bench.byte_stream", "--seconds", "3", "--rounds", "2"),
        ("bench.row_ids",),
        ("bench.early", "--keys", "1000", "--seconds", "4", "--warm-seconds", "5", "--rounds", "2"),
        ("bench.reconcile", "--rows", "100000", "--files", "4", "--rounds", "2"),
        ("bench.failover", "--times", "1", "--rows", "200000", "--rounds", "2"),
        ("bench.object_store", "--epochs", "30", "--warm", "5", "--rounds", "2"),
    ),
}


def main() -> int:
    """Run them; return 1 when one failed."""
    parser = argparse.ArgumentParser(prog="python -m bench.run_all", description=__doc__)
    parser.add_argument("--scale", choices=sorted(COMMANDS), default="full")
    failed = []
    for command in COMMANDS[parser.parse_args().scale]:
        print(f"--- {' '.join(command)}", flush=True)
        if subprocess.run([sys.executable, "-m", *command], check=False).returncode != 0:
            failed.append(command[0])
    if failed:
        print(f"bench: failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
