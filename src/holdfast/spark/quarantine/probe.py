"""A probe finds the rows of an epoch which end or hang the process that evaluates them, or raise.

A trial only shows whether a part of an epoch fails, and costs a job, and several dead workers where a row ends them.
A probe evaluates each part in a process of its own, which reports the rows that it begins; so one death narrows the
search to a few rows, and the next process evaluates those in smaller groups.  On a cluster these processes are beside
workers, in the tasks of one job; where tasks run on this machine, beside the driver, since a row that hangs would hold
a task slot, which other queries need.  It precedes the trials where an Arrow program computes what is upstream of state
and sinks; what it leaves (rows that fail only together, or in the state, or in a sink) is found by trials.

No row is blamed for others: the last evaluation is of that row alone, twice where the process died of it.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession

from holdfast.errors import KINDS, BadRow, HoldfastError, Unavailable, crossing, invariant
from holdfast.plan.program import Program
from holdfast.quarantine.search import Failing, locate
from holdfast.spark import private
from holdfast.spark.evaluation import Reader
from holdfast.spark.launch import forking
from holdfast.spark.quarantine.probe_process import ProbePart, Word

log = logging.getLogger("holdfast.poison")

IMPATIENT_S = 1.0
"""A part of many rows may take this long, however quick others were."""

BEGIN_S = 60.0
"""A process may take this long, or the limit of its rows where that is longer, to begin the first row."""

FOUND = "number BIGINT, kind STRING, what STRING, why STRING"
"""What a task yields: a row that fails; or, without a number, why no row of its part could be begun."""


Found = tuple[int | None, tuple[str, str, str]]
"""As :data:`FOUND`: the number, and what is said of the row."""


class NotBegunError(Exception):
    """There is no process, or it ended, or hung, before it began a row."""


class ProbeProcess:
    """The process beside a worker; begun anew when it has died.

    Parameters
    ----------
    part : ProbePart
        What it evaluates.
    limit_s : float, optional
        How long it may take for the rows of one ``begin``, and to reach the first one; None: no limit.
    """

    def __init__(self, part: ProbePart, limit_s: float | None) -> None:
        self._pickled = private.pickled(part)
        self._limit_s = limit_s
        self._limit_to_begin_s = None if limit_s is None else max(limit_s, BEGIN_S)
        self._process: subprocess.Popen[bytes] | None = None
        self._number: int | None = None
        """Of the process that evaluates: what was started may only stand for it."""
        self._read = b""
        self._is_late = False
        self._longest_s = 0.0

    def scan(self, low: int, high: int, size: int) -> list[Failing]:
        """Evaluate rows, ``size`` at a time; return those that fail."""
        found: list[Failing] = []
        while low < high:
            for word, number, count, *said in self._asked(low, high, size):
                if word == Word.GIVE_UP:
                    raise KINDS.get(said[0], Unavailable)(said[1], why=said[2])
                found.append(Failing(number, number + count, (said[0], said[1], said[2])))
                low = number + count
                if word == Word.BEGIN:
                    break  # it has died there: the next process continues after these rows
            else:
                return found
        return found

    def end(self) -> None:
        """End the process."""
        process, self._process, self._read = self._process, None, b""
        number, self._number = self._number, None
        if process is None:
            return
        if number is None:
            process.kill()
        elif process.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)  # a function may hold Python's lock, and never see its input end
        process.communicate()

    def _asked(self, low: int, high: int, size: int) -> Iterator[list]:  # type: ignore[type-arg]
        """Yield what failed, as the process reports; last, if it died, what it had begun, with how it ended."""
        process = self._running()
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.write(f"{json.dumps([low, high, size])}\n".encode())
            process.stdin.flush()
        begun: list[int] | None = None
        while True:
            since = time.monotonic()
            line = self._line(self._limit_to_begin_s if begun is None else self._limit_of(size))
            if line is None:
                break
            if begun is not None:
                self._longest_s = max(self._longest_s, time.monotonic() - since)
            word, number, count, *said = json.loads(line)
            if word == Word.END:
                return
            if word == Word.HERE:
                self._number = number
                continue
            begun = [number, count] if word == Word.BEGIN else begun
            if word != Word.BEGIN:
                yield [word, number, count, *said]
        how = self._how_it_ended(self._limit_to_begin_s if begun is None else self._limit_s)
        if begun is None:
            raise NotBegunError(f"the process ended before it began a row: {how}")
        yield [Word.BEGIN, *begun, BadRow.__name__, "the process that evaluated it has ended.", how]

    def _limit_of(self, size: int) -> float | None:
        """Return how long ``size`` rows may take: the whole limit for one row, which is condemned by it.

        Among many, one that hangs is noticed by how long others took.  If that is wrong, no row is blamed for it.
        """
        if self._limit_s is None or size == 1 or not self._longest_s:
            return self._limit_s
        return min(self._limit_s, max(IMPATIENT_S, 20 * self._longest_s))

    def _line(self, limit_s: float | None) -> bytes | None:
        """Return the next line; None when the process has ended, or exceeds its time."""
        assert self._process is not None
        assert self._process.stdout is not None
        number = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(number, select.POLLIN)
        until = None if limit_s is None else time.monotonic() + limit_s
        while b"\n" not in self._read:
            left_ms = None if until is None else max(0, int((until - time.monotonic()) * 1000))
            if not poll.poll(left_ms):
                self._is_late = True
                return None
            data = os.read(number, 1 << 16)
            if not data:
                return None
            self._read += data
        line, _, self._read = self._read.partition(b"\n")
        return line

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = _begin()
            assert self._process.stdin is not None
            with suppress(BrokenPipeError):
                self._process.stdin.write(f"{json.dumps(sys.path)}\n{len(self._pickled)}\n".encode() + self._pickled)
                self._process.stdin.flush()
        return self._process

    def _how_it_ended(self, limit_s: float | None) -> str:
        assert self._process is not None
        is_late, self._is_late = self._is_late, False
        code = 0 if is_late else self._process.wait()
        self.end()
        if is_late:
            return f"it was not done within {limit_s:g} s."
        return f"signal {signal.Signals(-code).name}." if code < 0 else f"exit code {code}."


def _begin() -> subprocess.Popen[bytes]:
    """Begin a process: a fork, where this one has a fork server, since imports take half a second of processor time."""
    python = forking.python()
    paths = os.pathsep.join(path for path in sys.path if path)
    try:
        return subprocess.Popen(
            [python, "-m", "holdfast.spark.quarantine.probe_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths} if python == sys.executable else forking.environment(),
            start_new_session=True,  # who interrupts the run must not end it: a row would be blamed
        )
    except OSError as error:
        raise NotBegunError(f"a process cannot be started: {error}") from error


@dataclass(frozen=True)
class ProbeTask:
    """The tasks of a probe: task ``n`` looks at part ``n``.  Picklable; called by ``mapInArrow``."""

    parts: tuple[ProbePart, ...]
    highs: tuple[int, ...]
    limit_s: float | None
    most: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows that fail, as far as they can be found: the trials that follow find the others."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with crossing():
                    found = self.found(number)
                columns = [[row for row, _ in found], *([said[i] for _, said in found] for i in range(3))]
                kinds = [pa.int64(), pa.string(), pa.string(), pa.string()]
                arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, names=["number", "kind", "what", "why"])

    def found(self, number: int) -> Sequence[Found]:
        """Return the rows of a part that fail."""
        part, process = self.parts[number], ProbeProcess(self.parts[number], self.limit_s)
        try:
            return locate(part.low, self.highs[number], process.scan, most=self.most)
        except NotBegunError as failure:
            return [(None, ("", str(failure), ""))]
        finally:
            process.end()


@dataclass(frozen=True)
class Probe:
    """Makes probes.  Lives on the driver.

    Parameters
    ----------
    session : SparkSession, optional
        For its jobs; None where the driver's machine has all that a part needs: then there are none.
    program : Program
        What evaluates rows.
    readers : mapping of str to Reader
        The sources.
    parallelism : int
        Tasks that can run at a time.
    limit_s : float, optional
        How long some rows may take.
    """

    session: SparkSession | None
    program: Program
    readers: Mapping[str, Reader]
    parallelism: int
    limit_s: float | None

    def rows(self, parts: Sequence[tuple[ProbePart, int]], most: int) -> list[tuple[int, HoldfastError]]:
        """Return the numbers of the rows that fail, ascending, with the errors; if more than ``most``, not all.

        Parameters
        ----------
        parts : sequence of (ProbePart, int)
            Each with the number after that of its last row.
        most : int
            How many are looked for in one part.
        """
        task = ProbeTask(tuple(part for part, _ in parts), tuple(high for _, high in parts), self.limit_s, most)
        rows = self._look_for(task)
        for number, (_, what, _) in rows:
            if number is None:
                log.warning("a probe has not evaluated all rows, which are searched by trials: %s", what)
        found = [(number, KINDS[kind](what, why=why)) for number, (kind, what, why) in rows if number is not None]
        low, high = min(part.low for part, _ in parts), max(high for _, high in parts)
        strays = [number for number, _ in found if not low <= number < high]
        invariant(not strays, f"a probe of the rows {low} to {high - 1} names {strays}.")
        return sorted(found, key=lambda one: one[0])

    def _look_for(self, task: ProbeTask) -> list[Found]:
        count = len(task.parts)
        if self.session is None:
            with ThreadPoolExecutor(count, "holdfast-probe") as threads:
                return [each for found in threads.map(task.found, range(count)) for each in found]
        rows = private.rows_of(self.session.range(0, count, 1, count).mapInArrow(task, FOUND))
        return [(row["number"], (row["kind"], row["what"], row["why"])) for row in rows]
