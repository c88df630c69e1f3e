"""Runs each side of a benchmark in a process of its own and hands its figures back.

A side is a function of a benchmark's module, ``side_<name>(**arguments) -> dict``; arguments and figures are JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

WORK = Path(__file__).resolve().parent / "out"
MARK = "RESULT "
"""What the line begins with that has the figures of a benchmark."""

_MARK = "SIDE "


def run_side(module: str, side: str, arguments: Mapping[str, Any], *, timeout_s: float = 3600) -> dict[str, Any]:
    """Run a side to its end and return its figures.

    Raises
    ------
    RuntimeError
        If it fails; the text holds the end of what it said.
    """
    with tempfile.TemporaryFile("w+") as output:
        process = start_side(module, side, arguments, output=output)
        try:
            process.wait(timeout_s)
        finally:  # a JVM may hang at its end, when its Python has ended
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return figures_in(output.read(), process.returncode, side)


def start_side(
    module: str, side: str, arguments: Mapping[str, Any], *, output: IO[str] | None = None
) -> subprocess.Popen[str]:
    """Start a side; its standard input and output are pipes, or it has no input and a session of its own."""
    command = [sys.executable, "-m", "bench.sides", module, side, json.dumps(arguments)]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE if output is None else subprocess.DEVNULL,
        stdout=subprocess.PIPE if output is None else output,
        stderr=subprocess.STDOUT,
        text=True,
        env={"HOLDFAST_CLASS_ARCHIVE": "off", **os.environ},  # none is made beside what is measured
        cwd=WORK.parent.parent,
        start_new_session=output is not None,
    )


def figures_in(output: str, exit_code: int, side: str) -> dict[str, Any]:
    """Return the figures that a side printed last."""
    lines = [line for line in output.splitlines() if line.startswith(_MARK)]
    if exit_code != 0 or not lines:
        raise RuntimeError(f"side {side!r} failed with exit code {exit_code}:\n{output[-4000:]}")
    figures: dict[str, Any] = json.loads(lines[-1].removeprefix(_MARK))
    return figures


def print_result(result: Mapping[str, Any]) -> None:
    """Print the one line that says what came out."""
    print(MARK + json.dumps(result), flush=True)


def median(numbers: list[float]) -> float:
    """Return the middle number; of an even count, the mean of the two in the middle."""
    ordered = sorted(numbers)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def percentile(numbers: list[float], share: float) -> float:
    """Return the number below which ``share`` of all lie (nearest rank)."""
    ordered = sorted(numbers)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _main(module: str, side: str, arguments: str) -> None:
    figures = getattr(importlib.import_module(module), f"side_{side}")(**json.loads(arguments))
    print(_MARK + json.dumps(figures), flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
