"""Runs a pipeline as users do, in a process of its own, and kills it where a test wants it: two functions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping

from holdfast.faults import POINTS

LINES_SHOWN = 30


def kill_run(
    target: str | os.PathLike[str],
    *,
    checkpoint: str | os.PathLike[str],
    at: str,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 300.0,
) -> None:
    """Run a pipeline on what its sources have, and let it die by SIGKILL at a named point.

    Parameters
    ----------
    target : str or os.PathLike
        The pipeline, as for ``holdfast run``: ``file.py``, ``file.py:name`` or ``module:name``.
    checkpoint : str or os.PathLike
        Its directory.
    at : str
        Where it dies: ``point`` or ``point:epoch``, for instance ``"after-publish:2"`` (docs/testing-your-pipeline.md
        has all points).
    environment : mapping of str to str, optional
        Variables, besides those of this process.
    timeout_s : float
        How long it may take, in seconds.

    Raises
    ------
    AssertionError
        If there is no such point, or the run ends otherwise: it does not reach the point, or fails before.
    """
    point = at.partition(":")[0]
    if point not in POINTS:
        raise AssertionError(f"there is no point {point!r}; there are: {', '.join(POINTS)}")
    ended, output = _run(target, checkpoint, {**(environment or {}), "HOLDFAST_FAULT": at}, timeout_s)
    if ended != -signal.SIGKILL:
        how = "did not reach it" if ended == 0 else f"failed before, with exit code {ended}"
        raise AssertionError(f"the run was to die at {at}, and {how}:\n{output}")


def finish_run(
    target: str | os.PathLike[str],
    *,
    checkpoint: str | os.PathLike[str],
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 300.0,
) -> None:
    """Run a pipeline on what its sources have, to the end; the arguments are those of :func:`kill_run`.

    Raises
    ------
    AssertionError
        If it fails.
    """
    ended, output = _run(target, checkpoint, environment or {}, timeout_s)
    if ended != 0:
        raise AssertionError(f"the run ended with exit code {ended}:\n{output}")


def _run(
    target: str | os.PathLike[str],
    checkpoint: str | os.PathLike[str],
    environment: Mapping[str, str],
    timeout_s: float,
) -> tuple[int, str]:
    """Return how it ended, negative for a signal, and its last lines."""
    command = [sys.executable, "-m", "holdfast", "run", os.fspath(target), "--checkpoint", os.fspath(checkpoint)]
    done = subprocess.run(
        [*command, "--available-now"],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
    )
    return done.returncode, "\n".join(done.stdout.splitlines()[-LINES_SHOWN:])
