"""A process writes its stacks when it is asked, and one that has not registered is never signalled (design/0049, 7)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.spark.launch import stacks

pytestmark = pytest.mark.slow

REGISTERS = """
import sys
from holdfast.spark.launch import stacks

def waits_for_the_end():
    stacks.register()
    print("ready", flush=True)
    sys.stdin.read()

waits_for_the_end()
"""
FORGETS = REGISTERS.replace("stacks.register()", "stacks.register(); import signal; signal.signal(10, signal.SIG_DFL)")


@contextmanager
def process(place: Path, program: str) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, stacks.VARIABLE: str(place)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert started.stdout is not None
        assert started.stdout.readline() == "ready\n"
        yield started
    finally:
        started.communicate(timeout=60)


def test_a_process_says_where_it_is_each_time_it_is_asked(tmp_path: Path) -> None:
    with process(tmp_path, REGISTERS) as one:
        for _ in range(3):
            found = stacks.stacks_of_workers(tmp_path)
            assert list(found) == [one.pid]
            assert found[one.pid].count("in waits_for_the_end") == 1
        assert one.poll() is None
    assert one.returncode == 0
    assert stacks.stacks_of_workers(tmp_path) == {}
    assert list(tmp_path.glob("*.stacks")) == []


def test_a_process_that_does_not_catch_the_signal_lives_on(tmp_path: Path) -> None:
    with process(tmp_path, FORGETS) as one:
        assert stacks.stacks_of_workers(tmp_path) == {}
        assert one.poll() is None
    assert one.returncode == 0


def test_a_process_that_has_the_number_of_another_is_not_asked(tmp_path: Path) -> None:
    """One has registered and gone; its number is another's by now, which would even catch the signal."""
    with process(tmp_path, REGISTERS) as one:
        (file,) = tmp_path.glob("*.stacks")
        file.rename(tmp_path / f"{one.pid}-1.stacks")
        assert stacks.stacks_of_workers(tmp_path) == {}
        assert one.poll() is None


def test_a_process_without_a_place_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(stacks.VARIABLE, raising=False)
    stacks.register()
    monkeypatch.setenv(stacks.VARIABLE, str(tmp_path / "no" / "such"))
    stacks.register()


def test_the_stacks_of_this_process_name_its_functions(tmp_path: Path) -> None:
    assert "test_the_stacks_of_this_process_name_its_functions" in stacks.own_stacks(tmp_path)
