"""A killed run leaves nothing below the directory for temporary files that the next start does not remove.

design/0014, section 3: what a JVM removes only when it ends in order is in a locked directory of the process.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import pytest

from holdfast.spark.launch import stop_directory
from tests.crash.processes import Case, jvm_of, kill_tree

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.crash, pytest.mark.spark]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="what a process has open is seen on Linux alone")
def test_what_spark_leaves_when_a_run_is_killed_is_removed_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    case = Case(tmp_path, ("sqlite",), environment={"TMPDIR": str(place), "HOLDFAST_CARRY_MAX": "0 B"})
    case.write_input()
    with (tmp_path / "output").open("w") as output:
        run = case.start("--every", "0 s", output=output)
        try:
            end = time.monotonic() + 120
            while not (case.checkpoint / "spark/1/commits/0").exists():
                assert time.monotonic() < end, (tmp_path / "output").read_text()
                time.sleep(0.02)
            jvm = jvm_of(run)
            opened = {file.path for file in jvm.open_files()} | {each.path for each in jvm.memory_maps()}
        finally:
            kill_tree(run)
    elsewhere = (f"{tempfile.gettempdir()}/", "/tmp/")
    ours = (f"{tmp_path}/", f"{ROOT}/", f"{sys.prefix}/")  # this tree and what is installed may be below /tmp, too
    beside = {path for path in opened if path.startswith(elsewhere) and not path.startswith(ours)}
    assert {path for path in beside if "/hsperfdata_" not in path} == set(), "Java's own, which Java sweeps"
    left = {path.name.partition("-")[0] for path in place.glob(f"{stop_directory.PREFIX}*/*")}
    assert {"blockmgr", "spark"} <= left
    assert [path.name for path in place.iterdir() if not path.name.startswith(stop_directory.PREFIX)] == []
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    with stop_directory.temporary():  # as every start has one
        pass
    assert list(place.iterdir()) == []
