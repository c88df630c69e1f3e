"""The JVM alone is killed: its Python workers live on, take their cut input for its end, and stage a part of it.

DESIGN: a worker never has the last word.  Whatever such a worker stages, however late, is an orphan: the rows of the
epoch come from the next run.  Each staging way is killed in the middle of its work again and again, at moments that a
seed chooses among the steps of the writers (:mod:`tests.crash.slow`), and in three ways:

- the JVM dies, and its worker daemon then hangs up on the workers;
- the JVM and the daemon die together (as when memory runs out): the workers work on alone;
- as before, and the workers are asleep meanwhile: they wake up, and stage, when the next run is at work already.

``HOLDFAST_JVM_KILLS`` says how many kills (1 for three of the staging ways, each another of the three; 30 for every way
in ``make nightly``), ``HOLDFAST_SEED`` which.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tests.crash.processes import ROWS_PER_FILE, Case, fork_server_of, jvm_of, kill_tree, parent_of
from tests.everyday import seed_of_kills

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.postgres]

KILLS = int(os.environ.get("HOLDFAST_JVM_KILLS", "1"))
SEED = seed_of_kills(1)

FILES_PER_EPOCH = 2
ENVIRONMENT = {
    "HOLDFAST_CARRY_MAX": "0 B",
    "HOLDFAST_PREFETCH_MAX": "0 B",
    "HOLDFAST_SWEEP_INTERVAL": "1 s",
    # Several batches for each task: a cut between two of them is what looks like the end.
    "PYSPARK_SUBMIT_ARGS": "--conf spark.sql.execution.arrow.maxBytesPerBatch=4096 pyspark-shell",
}
SLOW_S = 0.1
PADDING = 5200
"""Bytes a line: two files of two megabytes are read by two tasks."""
THROUGH_SPARK, IN_ARROW = 22, 14
"""So many steps the writers of one epoch take: two tasks with four batches in halves, or with two; staging, publish."""

STAGING_WAYS: dict[str, tuple[str, dict[str, str]]] = {
    "postgres, prepared transactions": ("postgres", {"CRASH_STAGE": "prepared"}),
    "postgres, staging tables": ("postgres", {"CRASH_STAGE": "table"}),
    "sqlite, Arrow files": ("sqlite", {}),
    "files": ("files", {}),
    "files, rows that never enter the JVM": ("files", {"CRASH_DRAW": "arrow"}),
}
HOW = ("jvm", "jvm and daemon", "jvm and daemon, workers asleep")
END_S = 120


@dataclass
class Lives:
    """One pipeline that is started, killed, and started again.

    Parameters
    ----------
    case : Case
        The pipeline.
    survivors : list of psutil.Process
        Workers of JVMs that are dead.
    asleep : list of psutil.Process
        Those of them that were stopped and have not been woken up.
    files : int
        Input files so far.
    """

    case: Case
    survivors: list[psutil.Process] = field(default_factory=list)
    asleep: list[psutil.Process] = field(default_factory=list)
    files: int = 0
    _life: int = 0
    _killed_at: dict[Path, float] = field(default_factory=dict)

    @property
    def marks(self) -> Path:
        """Marks of the current life."""
        return self.case.work / "marks" / str(self._life)

    def late(self, step: str = "") -> int:
        """Count the steps of workers after their JVM had died; only those of one kind where it is given."""
        return sum(
            mark.stat().st_mtime > killed_at
            for marks, killed_at in self._killed_at.items()
            for mark in marks.glob(f"*-*.{step}*")
        )

    def live(self, marks: int, pause_s: float, how: str) -> bool:
        """Start a run and kill its JVM after so many marks; False when it had ended before."""
        self._begin()
        log = self.case.work / f"life-{self._life}.log"
        with log.open("w") as output:
            run = self.case.start(output=output, CRASH_SLOW_S=str(SLOW_S), CRASH_MARKS=str(self.marks))
        try:
            jvm = jvm_of(run)
            while self._mark_count() < marks:
                if run.poll() is not None:
                    assert run.returncode == 0, log.read_text()[-3000:]
                    return False
                if self._mark_count() > 0:
                    self.wake()
                time.sleep(0.005)
            time.sleep(pause_s)
            self._kill(jvm, fork_server_of(run), how)
            code = run.wait(timeout=END_S)
            assert code in (0, 1), f"exit code {code}:\n{log.read_text()[-3000:]}"
            assert code == 0 or "JVM" in log.read_text(), "the message does not say what died"
        finally:
            kill_tree(run)
        return True

    def finish(self) -> subprocess.CompletedProcess[str]:
        """Run to the end of the input."""
        self._begin()
        return self.case.run(CRASH_SLOW_S="0.001", CRASH_MARKS=str(self.marks))

    def wake(self) -> None:
        """Let the workers that were asleep go on."""
        for worker in self.asleep:
            with suppress(psutil.NoSuchProcess):
                worker.resume()
        self.asleep.clear()

    def await_survivors(self) -> None:
        """Wait until no worker of a dead JVM is left."""
        self.wake()
        _, alive = psutil.wait_procs(self.survivors, timeout=END_S)
        assert not alive, f"workers that do not end: {alive}"
        self.survivors.clear()

    def _begin(self) -> None:
        self._life += 1
        self.marks.mkdir(parents=True)
        self.case.write_input(self.files, self.files + FILES_PER_EPOCH, padding=PADDING)
        self.files += FILES_PER_EPOCH

    def _kill(self, jvm: psutil.Process, forks: psutil.Process, how: str) -> None:
        below = [*_children(jvm), *_children(forks)]
        daemons = [child for child in below if parent_of(child) in (jvm.pid, forks.pid)]
        workers = [child for child in below if child not in daemons]
        self.survivors += below
        if "daemon" in how:
            _signal(daemons, signal.SIGKILL)
        if "asleep" in how:
            # After the daemon's death: stopped members of a group that is orphaned are hung up on by the kernel.
            _signal(workers, signal.SIGSTOP)
            self.asleep += workers
        _signal([jvm], signal.SIGKILL)
        self._killed_at[self.marks] = time.time()

    def _mark_count(self) -> int:
        return len(os.listdir(self.marks))


def _children(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):  # the run has ended meanwhile
        return process.children(recursive=True)
    return []


def _signal(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            os.kill(process.pid, number)


EVERYDAY = ("postgres, prepared transactions",)


@pytest.mark.timeout(300 + 120 * KILLS)
@pytest.mark.parametrize("way", STAGING_WAYS if KILLS > 1 else EVERYDAY)
def test_what_workers_of_a_dead_jvm_stage_never_counts(
    way: str, tmp_path: Path, postgres_prepared: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sink, environment = STAGING_WAYS[way]
    lives = Lives(Case(tmp_path, (sink,), postgres_prepared, {**ENVIRONMENT, **environment}))
    case = lives.case
    chosen = random.Random(f"{SEED} {way}")
    marks_per_epoch = IN_ARROW if "CRASH_DRAW" in environment else THROUGH_SPARK
    kills = orphans = 0
    while kills < KILLS:
        how = HOW[(list(STAGING_WAYS).index(way) + kills) % len(HOW)]
        # Beyond an epoch's marks: some runs get one epoch further before they are killed.
        marks = chosen.randint(1, 3 * marks_per_epoch // 2)
        if not lives.live(marks, chosen.uniform(0, SLOW_S), how):
            continue
        kills += 1
        _check_whole_epochs(case)
        if not lives.asleep:
            lives.await_survivors()
            orphans += len(case.leftovers())
    lives.await_survivors()
    with capsys.disabled():
        late = f"workers took {lives.late()} steps after their JVM's death, {lives.late('staged')} times to the end"
        sys.stdout.write(f"\n{way}: {kills} kills; {late}; {orphans} orphans seen\n")
    is_proof = lives.late() > 0 or len(HOW) > KILLS
    assert is_proof, "no kill fell into the work of a worker that lived on: choose another seed"
    last = lives.finish()
    assert last.returncode == 0, last.stdout[-3000:]
    case.check_exact(range(lives.files * ROWS_PER_FILE))
    assert case.leftovers() == []
    steps = Counter(int(mark.partition(".")[0]) for mark in os.listdir(lives.marks))
    assert steps[max(steps)] == marks_per_epoch, "tasks do not get their input in as many batches as they should"


def _check_whole_epochs(case: Case) -> None:
    """Assert that what is visible is whole epochs from the first one on, each row once."""
    if not (case.work / "out.db").exists() and not (case.work / "files").exists() and "postgres" not in case.sinks:
        return
    for kind, rows in case.rows().items():
        ids = [number for number, _ in rows]
        assert ids == list(range(len(ids))), f"{kind}: rows are doubled or missing"
        assert len(ids) % (FILES_PER_EPOCH * ROWS_PER_FILE) == 0, f"{kind}: {len(ids)} rows are no whole epochs"
