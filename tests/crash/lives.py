"""One pipeline in one directory, started again and again, and killed at points and at moments."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from holdfast import faults
from tests.crash.processes import ROOT, jvm_of, kill_tree, wait_for_session
from tests.everyday import seed_of_kills

LIFE_MAX_S = 300
"""A life takes about ten seconds alone on two cores, and ten times as long where ten others share them."""

MODES = {"carried": {}, "staged": {"HOLDFAST_CARRY_MAX": "0 B", "HOLDFAST_PREFETCH_MAX": "0 B"}}


@dataclass
class Lives:
    """Lives of one pipeline.

    Parameters
    ----------
    work : Path
        Its directory, with its input.
    pipeline : str
        Module of ``tests.crash`` that declares it.
    environment : dict of str to str
        Further variables of its processes.
    arguments : tuple of str
        Further arguments of ``holdfast run``.
    checkpoint : str
        Where the checkpoint is, if it is not the directory of that name.
    command : tuple of str
        The command of ``holdfast``, with what goes before TARGET.
    trigger : tuple of str
        How often it runs an epoch.
    python : str
        The interpreter of the next life.
    """

    work: Path
    pipeline: str
    environment: dict[str, str]
    last_session: int = 0
    arguments: tuple[str, ...] = ()
    checkpoint: str = ""
    command: tuple[str, ...] = ("run",)
    trigger: tuple[str, ...] = ("--available-now",)
    python: str = sys.executable
    chance: random.Random = field(default_factory=lambda: random.Random(str(seed_of_kills(7))))
    missed: list[str] = field(default_factory=list)
    """Deaths that came when the run was over: what they were to do was done."""

    def start(self, **more: str) -> subprocess.Popen[str]:
        """Start a life."""
        target = f"{ROOT}/tests/crash/{self.pipeline}.py:pipeline"
        command = [self.python, "-m", "holdfast", *self.command, target]
        command += [
            "--checkpoint",
            self.checkpoint or str(self.work / "checkpoint"),
            "--master",
            "local[2]",
            *self.trigger,
        ]
        command += self.arguments
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        temporary = self.work / "tmp"
        temporary.mkdir(exist_ok=True)
        variables = {"PYTHONPATH": paths, "CRASH_WORK": str(self.work), "HOLDFAST_DRIVER_MEMORY": "1 GiB"}
        variables |= {"PYSPARK_PYTHON": self.python, "PYSPARK_DRIVER_PYTHON": self.python}
        variables["PYTHONFAULTHANDLER"] = "1"  # SIGABRT prints the stacks of all threads
        with (self.work / "log").open("a") as output:
            return subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **variables, "TMPDIR": str(temporary), **self.environment, **more},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

    def end(self, **more: str) -> int:
        """Run to whatever end."""
        process = self.start(**more)
        try:
            return process.wait(timeout=LIFE_MAX_S)
        except subprocess.TimeoutExpired:
            self._ask_where_it_stands(process)
            raise AssertionError(f"not within {LIFE_MAX_S} s:\n{self.said(20_000)}") from None
        finally:
            kill_tree(process)
            self.last_session = process.pid

    def wait_for_survivors(self) -> None:
        """Wait until nothing is left of the last life: its JVM may go on with Spark's logs for a moment."""
        wait_for_session(self.last_session)

    def _ask_where_it_stands(self, process: subprocess.Popen[str]) -> None:
        """Let a process that does not end print the stacks of all its threads, and those of its JVM, to the log."""
        with suppress(Exception):
            jvm_of(process).send_signal(signal.SIGQUIT)
            time.sleep(2)
        with suppress(Exception):
            process.send_signal(signal.SIGABRT)
            process.wait(timeout=10)

    def die(self, where: str) -> None:
        """Run, and die there: at a named point (``after-decide:3``), or a moment after so many epochs.

        ``moment:n`` and ``jvm:n``: a moment after Spark has committed n epochs more, the driver or the JVM alone.
        """
        name, _, number = where.partition(":")
        if name in faults.POINTS:
            assert self.end(HOLDFAST_FAULT=where) == -signal.SIGKILL, f"{where} was not reached:\n{self.said()}"
            return
        before = self.commits()
        pause_s = self.chance.uniform(0, 0.3)
        self.die_when(lambda: len(self.commits() - before) >= int(number), where, is_jvm=name == "jvm", pause_s=pause_s)

    def die_when(self, holds: Callable[[], bool], what: str, *, is_jvm: bool = False, pause_s: float = 0) -> None:
        """Run, and die as soon as something holds; on a busy machine the run may be over before (``missed``)."""
        process = self.start()
        try:
            while not holds():
                assert process.poll() is None, f"{what} was not reached:\n{self.said()}"
                time.sleep(0.005)
            time.sleep(pause_s)
            # NB not before: a JVM that ends at once is replaced, and to kill the dead one changes nothing.
            victim = jvm_of(process).pid if is_jvm else process.pid
            os.kill(victim, signal.SIGKILL)
            if process.wait(timeout=120) == 0:
                self.missed.append(what)
        finally:
            kill_tree(process)
            self.last_session = process.pid

    def committed(self) -> int:
        """Return how many epochs Spark has committed of a graph that never changed."""
        return sum(path.parts[-3] == "1" for path in self.commits())

    def commits(self) -> set[Path]:
        """Return Spark's records of the epochs that it has committed: a changed graph begins a directory of its own."""
        return {path for path in self.work.glob("checkpoint/spark/*/commits/*") if path.name.isdigit()}

    def said(self, length: int = 3000) -> str:
        """Return the end of what its processes have said."""
        return (self.work / "log").read_text()[-length:]

    def logged(self) -> str:
        """Return what the logs in the checkpoint say."""
        return "".join(path.read_text() for path in (self.work / "checkpoint").rglob("*.log"))
