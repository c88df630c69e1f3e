"""The command line of a JVM is the one at which Spark's own scripts arrive; and an archive of classes is verified."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.spark.launch import class_archive, jvm_options
from holdfast.spark.launch.java import require_java
from holdfast.spark.launch.jvm import options_for
from holdfast.spark.launch.jvm_classes import local_files
from holdfast.spark.launch.jvm_options import RowsInJvm
from holdfast.spark.spark_versions import running

pytestmark = pytest.mark.spark

LAUNCHER = "org.apache.spark.launcher.Main"
COMPOSED = pytest.mark.skipif(
    not running().has_our_launcher, reason="Spark's scripts compose the command line of this version (design/0052)"
)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    require_java()
    for name in [name for name in os.environ if name.startswith(("SPARK_", "PYSPARK_"))]:
        monkeypatch.delenv(name)
    return dict(os.environ)


@COMPOSED
@pytest.mark.parametrize("given", ["", "-Dmine=1 -Xlog:gc=off"])
def test_the_command_is_the_one_of_sparks_launcher(environment: dict[str, str], given: str) -> None:
    jvm = options_for("700m", rows=RowsInJvm.NONE, has_archive=False)
    environment |= {"SPARK_SUBMIT_OPTS": given}
    ours = jvm_options.composed(environment, jvm.settings, jvm.for_java)
    settings = [part for part in ours if part.startswith("spark.")]
    home = jvm_options.spark_home()
    asked = [f"{environment['JAVA_HOME']}/bin/java", "-cp", f"{home}/jars/*", LAUNCHER, jvm_options.MAIN]
    for setting in settings:
        asked += ["--conf", setting]
    answer = subprocess.run(
        [*asked, jvm_options.SHELL],
        env=jvm_options.environment_of_scripts(environment),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    theirs = [part for part in answer.lstrip("\0\n").split("\0") if part]
    theirs[2] += f":{local_files.JAR}"
    assert [os.path.normpath(part) if part.startswith("/") else part for part in theirs] == [
        os.path.normpath(part) if part.startswith("/") else part for part in ours
    ]


@COMPOSED
@pytest.mark.parametrize(
    "variable", ["SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS", "HADOOP_CONF_DIR", "SPARK_DIST_CLASSPATH"]
)
def test_what_only_sparks_scripts_understand_is_left_to_them(environment: dict[str, str], variable: str) -> None:
    jvm = options_for("1g", rows=RowsInJvm.ALL, has_archive=False)
    assert jvm_options.composed(environment, jvm.settings, jvm.for_java)
    assert not jvm_options.composed({**environment, variable: "/somewhere"}, jvm.settings, jvm.for_java)
    assert not jvm_options.composed({**environment, "SPARK_SUBMIT_OPTS": '"open'}, jvm.settings, jvm.for_java)


ARCHIVE = re.compile(r"-XX:SharedArchiveFile=(\S+)")


def test_an_archive_of_classes_is_verified_by_its_checksums(
    environment: dict[str, str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The one that these tests start their JVMs with."""
    cache = Path(__file__).parents[2] / "build"
    made = class_archive.path_for({**environment, "XDG_CACHE_HOME": str(cache)})
    if made is None or not made.exists():
        pytest.skip("no archive of classes was made: the tests were started without tools.run_tests")
    assert class_archive._verify(made) == ""
    data = bytearray(made.read_bytes())
    data[len(data) // 2] ^= 0xFF
    damaged = tmp_path / "damaged.jsa"
    damaged.write_bytes(data)
    assert "does not take it" in class_archive._verify(damaged)
    damaged.write_bytes(data[: len(data) // 3])
    assert "does not take it" in class_archive._verify(damaged)


PROGRAM = """
import os, sys
import holdfast as hf
from holdfast.spark.launch import class_archive, jvm
launched = []
by_scripts = jvm._launched_by_scripts
jvm._launched_by_scripts = lambda conf: launched.append("by scripts") or by_scripts(conf)
place = sys.argv[1]
rows = hf.read.rows([{"n": n} for n in range(3)], schema="n BIGINT", name="rows")
pipeline = hf.Pipeline("trips", rows | hf.write.sqlite(place + "/t.db", table="t", name="t"))
pipeline.run(checkpoint=place + "/checkpoint", trigger=hf.available_now(), master="local[1]")
import sqlite3
print("rows", sqlite3.connect(place + "/t.db").execute("SELECT count(*) FROM t").fetchone()[0], *launched)
"""


@pytest.mark.nightly
@pytest.mark.parametrize(
    "is_damaged",
    [
        pytest.param(False, marks=pytest.mark.nightly, id="none"),
        pytest.param(True, marks=pytest.mark.nightly, id="damaged"),
    ],
)
def test_a_start_with_no_archive_or_a_damaged_one_begins_its_jvm_and_runs(
    environment: dict[str, str], tmp_path: Path, is_damaged: bool
) -> None:
    environment |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "HOLDFAST_CLASS_ARCHIVE": "off"}
    path = class_archive.path_for(environment)
    assert path is not None
    if is_damaged:
        path.parent.mkdir(parents=True)
        path.write_bytes(b"no archive" * 1000)
        environment["HOLDFAST_CLASS_ARCHIVE"] = "auto"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["rows", "3"], done.stdout + done.stderr
