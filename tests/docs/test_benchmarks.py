"""Every benchmark runs to its RESULT on a small scale, and its second round meets what the first one left."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.run_all import COMMANDS

ROOT = Path(__file__).resolve().parents[2]


def test_the_small_scale_has_every_benchmark_of_the_full_one() -> None:
    assert [command[0] for command in COMMANDS["smoke"]] == [command[0] for command in COMMANDS["full"]]


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("command", COMMANDS["smoke"], ids=lambda command: command[0])
def test_a_benchmark_runs_to_its_result(command: tuple[str, ...]) -> None:
    ran = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]
    results = [line.removeprefix("RESULT ") for line in ran.stdout.splitlines() if line.startswith("RESULT ")]
    assert results, ran.stdout[-2000:]
    assert all(isinstance(json.loads(result), dict) for result in results)
