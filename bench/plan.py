"""How long a look ahead takes: ``holdfast plan`` and ``holdfast check`` on the pipeline of ``examples/shop``.

It has run once, and then an aggregate was added: ``plan`` has a change to show.  Each command is a process of its own,
as on a command line; medians of the rounds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.sides import WORK, median, print_result
from examples.shop.generate import deliveries, write

SHOP = Path(__file__).parents[1] / "examples/shop"
CHANGE = ("located = placed |", 'located = placed | hf.filter("cents >= 0", name="plausible") |')
"""One operator more: what ``plan`` has to show."""


def prepared(work: Path) -> Path:
    """Let a few files arrive and run the shop once to its end; return the program with the change."""
    work.mkdir(parents=True)
    day = deliveries(seed=0, order_count=200)
    for tick in range(12):
        write(day, work / "in", tick)
    program = work / "pipeline.py"
    text = (SHOP / "pipeline.py").read_text()
    program.write_text(text)
    ran = _command(work, "run", str(program), "--checkpoint", str(work / "ckpt"), "--available-now")
    if ran.returncode != 0:
        raise SystemExit(f"the shop did not run:\n{ran.stderr}")
    changed = text.replace(*CHANGE)
    if changed == text:
        raise SystemExit("the shop has other lines now: change CHANGE")
    program.write_text(changed)
    return program


def _command(work: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast", *words]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, env={**os.environ, "SHOP_WORK": str(work)}
    )


def seconds(work: Path, expected: frozenset[int], *words: str) -> float:
    """Return how long a command takes; end where it says something that it should not."""
    begun = time.perf_counter()
    ended = _command(work, *words)
    took = time.perf_counter() - begun
    if ended.returncode not in expected:
        raise SystemExit(f"{words[0]} ended with {ended.returncode}:\n{ended.stdout}\n{ended.stderr}")
    return took


def main() -> None:
    """Measure, and print ``RESULT``."""
    parser = argparse.ArgumentParser(prog="python -m bench.plan", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    work = WORK / "plan"
    shutil.rmtree(work, ignore_errors=True)
    program = prepared(work)
    with_checkpoint = (str(program), "--checkpoint", str(work / "ckpt"))
    plans, checks = [], []
    for _ in range(rounds):
        plans.append(seconds(work, frozenset({10}), "plan", *with_checkpoint))
        checks.append(seconds(work, frozenset({0}), "check", *with_checkpoint))
    result: dict[str, Any] = {"plan_s": round(median(plans), 2), "check_s": round(median(checks), 2)}
    shutil.rmtree(work)
    print_result(result)


if __name__ == "__main__":
    main()
