"""A probe finds the rows that end, hang or refuse, each by itself, in a process beside the worker (design/0013)."""

import atexit
import logging
import os
import re
import signal
import sys
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from pyspark import cloudpickle

import holdfast as hf
from holdfast.errors import BadRow, Unavailable
from holdfast.quarantine.mask import Mask, one_row
from holdfast.quarantine.search import locate
from holdfast.spark.evaluation import Reader
from holdfast.spark.launch import forking
from holdfast.spark.quarantine import probe as probes
from holdfast.spark.quarantine.probe import Probe, ProbeProcess
from holdfast.spark.quarantine.probe_process import ProbePart

pytestmark = pytest.mark.slow  # each test starts processes

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the process cannot import the tests


@dataclass(frozen=True)
class Program:
    """What evaluates rows: some of them in a way of their own."""

    bad: dict[int, str] = field(default_factory=dict)

    def run(self, source, batch):
        sys.stdout.write("a function prints what it likes\n")
        sys.stdout.flush()
        values = batch.column("v").to_pylist()
        for one in values:
            how = self.bad.get(one)
            if how == "exit":
                os._exit(7)
            if how == "hang":
                threading.Event().wait()
            if how == "hold":  # and nothing else of the process runs
                re.match("(a+)+$", "a" * 64 + "b")
            if how == "raise":
                raise ValueError(f"{one} is poison")
            if how == "refuse":
                raise BadRow("refused.", why=f"{one} is poison.")
            if how == "away":
                raise Unavailable("a service is away.")
        if "together" in self.bad.values() and len(values) > 3:
            raise ValueError("too many")
        yield "sink", batch


@dataclass(frozen=True)
class Unloadable:
    """What evaluates rows, and ends every process that unpickles it."""

    def __reduce__(self):
        return os._exit, (9,)


@dataclass(frozen=True)
class Endless:
    """What evaluates rows, and whose unpickling never ends."""

    def __reduce__(self):
        return signal.pause, ()


class Session:
    """Runs the tasks of a job in this process."""

    def range(self, start, end, step, partitions):
        self.numbers = [pa.RecordBatch.from_pydict({"id": [number]}) for number in range(start, end)]
        return self

    def mapInArrow(self, task, schema):
        self.found = list(task(iter(self.numbers)))
        return self

    def toArrow(self):
        return pa.Table.from_batches(self.found)


def part_of(work, lists, bad, **mask):
    rows = hf.read.rows(lists, schema="v BIGINT", name="in")
    source = hf.Pipeline("p", rows | hf.write.sqlite(work / "out.db", table="t", name="t")).sources[0].spec
    positions = dict(source.open("in", str(work)).latest({"rows": 0}, bounded=False))
    end = {**positions, **({"letters": len(mask["again"])} if "again" in mask else {})}
    return ProbePart(Program(bad), {"in": Reader(source, "in", str(work))}, {"in": Mask(**mask)}, {}, {"in": end}, 0)


def found(work: Path, bad, *, count=1000, limit_s=None):
    process = ProbeProcess(part_of(work, [[{"v": v} for v in range(count)]], bad), limit_s)
    scans = []

    def scan(low, high, size):
        scans.append((low, high, size))
        return process.scan(low, high, size)

    try:
        return locate(0, count, scan), scans
    finally:
        process.end()


def test_rows_that_raise_refuse_or_end_the_process_are_named_with_what_they_did(tmp_path):
    rows, scans = found(tmp_path, {0: "exit", 499: "raise", 500: "refuse", 999: "exit"})
    assert [row for row, _ in rows] == [0, 499, 500, 999]
    assert [said[2] for _, said in rows] == ["exit code 7.", "499 is poison", "500 is poison.", "exit code 7."]
    assert len(scans) <= 1 + 3 * 4


def test_a_row_that_hangs_is_named_when_its_time_is_over(tmp_path):
    rows, _ = found(tmp_path, {77: "hang"}, limit_s=1.5)
    assert [(row, said[2]) for row, said in rows] == [(77, "it was not done within 1.5 s.")]


@pytest.fixture
def server(tmp_path_factory, monkeypatch):
    """Start what processes are forked from, as a driver has it."""
    place, ends = tmp_path_factory.mktemp("f"), []
    monkeypatch.setattr(atexit, "register", lambda _, *given: ends.extend(given))
    environment = forking.environment()  # pytest changes its own for each phase of a test
    monkeypatch.setattr(forking, "environment", lambda: environment)
    python = forking.start(place)
    monkeypatch.setattr(forking, "python", lambda: python)
    (process,) = ends
    while not (place / "forks").exists():
        assert process.poll() is None, "the server has ended"
    yield psutil.Process(process.pid)
    forking._end(process)


def test_in_the_driver_processes_are_forked_and_end_whatever_they_do(tmp_path, server):
    process = ProbeProcess(part_of(tmp_path, [[{"v": v} for v in range(4)]], {1: "hold", 2: "exit"}), 1.0)
    try:
        assert process.scan(3, 4, 1) == []
        (fork,) = server.children()
        rows = locate(0, 4, process.scan)
    finally:
        process.end()
    assert [(row, said[2]) for row, said in rows] == [(1, "it was not done within 1 s."), (2, "exit code 7.")]
    psutil.wait_procs([fork], timeout=60)
    assert not server.children()


def test_rows_that_fail_only_together_are_not_named(tmp_path):
    assert found(tmp_path, {-1: "together"})[0] == []


def test_a_system_that_is_away_names_no_row(tmp_path):
    with pytest.raises(Unavailable, match="a service is away"):
        found(tmp_path, {5: "away"})


def test_rows_that_are_sent_again_have_numbers_too_and_a_part_begins_at_its_own(tmp_path):
    again = tuple(one_row(pa.RecordBatch.from_pydict({"v": [v]}), 0) for v in (100, 101))
    part = part_of(tmp_path, [[{"v": 0}, {"v": 1}, {"v": 2}]], {101: "exit", 1: "raise"}, again=again)
    process = ProbeProcess(part, None)
    try:
        assert [row for row, _ in locate(0, 5, process.scan)] == [1, 4]
        assert [row for row, _ in locate(2, 5, process.scan)] == [4]
    finally:
        process.end()


def probed(*parts, limit_s=None):
    """Return the numbers of the rows that a probe of some parts finds, in a job and without one."""
    pairs = [(part, part.low + 3) for part in parts]
    in_job, here = (
        [number for number, _ in Probe(session, None, {}, len(parts), limit_s).rows(pairs, 10)]
        for session in (Session(), None)
    )
    assert in_job == here
    return here


def test_a_part_whose_process_ends_before_it_begins_with_a_row_is_left_to_trials(tmp_path, caplog):
    part = part_of(tmp_path, [[{"v": 0}, {"v": 1}, {"v": 2}]], {1: "exit"})
    with caplog.at_level(logging.WARNING, "holdfast"):
        assert probed(replace(part, program=Unloadable()), replace(part, low=3)) == [4]
    assert "before it began a row: exit code 9." in caplog.text


def test_a_part_whose_process_hangs_before_it_begins_with_a_row_is_left_to_trials(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(probes, "BEGIN_S", 0.0)
    part = replace(part_of(tmp_path, [[{"v": 0}, {"v": 1}, {"v": 2}]], {1: "exit"}), program=Endless())
    with caplog.at_level(logging.WARNING, "holdfast"):
        assert probed(part, limit_s=0.1) == []
    assert "before it began a row: it was not done within 0.1 s." in caplog.text


def test_a_part_for_which_no_process_can_be_started_is_left_to_trials(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(forking, "python", lambda: str(tmp_path / "gone"))
    with caplog.at_level(logging.WARNING, "holdfast"):
        assert probed(part_of(tmp_path, [[{"v": 0}, {"v": 1}, {"v": 2}]], {1: "exit"})) == []
    assert "a process cannot be started" in caplog.text
