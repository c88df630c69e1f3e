"""The directory by which a driver talks to the processes of its sources: removed when its process is dead."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

from holdfast.spark.launch import stop_directory
from holdfast.spark.launch.jvm import plain_options
from holdfast.spark.launch.jvm_options import OPTIONS_OF_JAVA

RUN = """
import sys
from holdfast.spark.launch.stop_directory import create
(create() / "stop").touch()
print("runs", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Temporary files go here, in child processes too."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def running(program: str = RUN) -> subprocess.Popen[str]:
    """Start a process that has a directory, and lives until it is killed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "runs\n"
    return process


@pytest.mark.slow
def test_a_start_removes_what_killed_runs_have_left_and_nothing_of_those_that_live(place: Path) -> None:
    mine = stop_directory.create()
    lives, dies = running(), running()
    assert len(list(place.iterdir())) == 3
    dies.kill()
    dies.communicate()
    second = stop_directory.create()
    left = {path for path in place.iterdir() if path not in (mine, second)}
    assert mine.is_dir(), "two runs of one process"
    assert [(path / "stop").exists() for path in left] == [True]
    lives.kill()
    lives.communicate()
    stop_directory.create()
    assert not [path for path in left if path.exists()]


def test_a_process_with_many_runs_one_after_the_other_holds_one_descriptor() -> None:
    for _ in range(3):
        path = stop_directory.create()
        assert [each for each in stop_directory._locks if each.parent == path.parent] == [path]
        path.rmdir()


def test_what_others_call_alike_stays(place: Path) -> None:
    (place / "holdfast-run-of-another-kind").mkdir()
    (place / f"{stop_directory.PREFIX}file").touch()
    (place / f"{stop_directory.PREFIX}link").symlink_to(place / "holdfast-run-of-another-kind")
    stop_directory.create()
    assert len(list(place.iterdir())) == 4


def test_a_directory_that_another_start_has_swept_before_it_was_locked_is_made_anew(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, swept = fcntl.flock, []

    def sweep_first(fd: int, operation: int) -> None:
        if not swept:
            swept.append(True)
            stop_directory._sweep(place)
        lock(fd, operation)

    monkeypatch.setattr("holdfast.spark.launch.stop_directory.fcntl.flock", sweep_first)
    made = stop_directory.create()
    assert list(place.iterdir()) == [made]
    assert swept


TEMPORARY = """
import sys
from holdfast.spark.launch.stop_directory import temporary
with temporary() as place:
    (place / "file").touch()
    print("runs", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_what_a_block_has_below_it_goes_with_the_block_and_with_a_later_start_where_it_was_killed(place: Path) -> None:
    with stop_directory.temporary() as mine:
        (mine / "file").touch()
    assert not list(place.iterdir())
    killed = running(TEMPORARY)
    assert [path.name for path in place.glob("*/*")] == ["file"]
    killed.kill()
    killed.communicate()
    assert [path.name for path in place.glob("*/*")] == ["file"]
    with stop_directory.temporary():
        assert not list(place.glob("*/*"))


def test_the_jvm_puts_its_temporary_files_where_a_later_start_sweeps(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's blocks, the files of its driver, native libraries: a killed run leaves gigabytes of them."""
    monkeypatch.setattr(stop_directory, "of_process", cache(stop_directory.create))
    for name in OPTIONS_OF_JAVA:
        monkeypatch.delenv(name, raising=False)
    (mine,) = [option for option in plain_options("1g").for_java if "tmpdir" in option]
    said, _, directory = mine.partition("=")
    assert said == "-Djava.io.tmpdir"
    assert Path(directory) in stop_directory._locks
    assert Path(directory).parent == place
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Djava.io.tmpdir=/of/the/user")
    assert not [option for option in plain_options("1g").for_java if "tmpdir" in option]


@pytest.mark.slow
def test_starts_of_several_shards_at_once_have_a_directory_each() -> None:
    """They are started in threads: one that looks for directories of ended runs is not disturbed by the others."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            made = list(threads.map(lambda _: stop_directory.create(), range(200)))
    finally:
        sys.setswitchinterval(before)
    assert len(set(made)) == 200
    assert all(path.is_dir() for path in made)
