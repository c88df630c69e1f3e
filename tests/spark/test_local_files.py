"""Files that the JVM creates: as Hadoop's own, permissions and checksums too, and without a process for each."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from holdfast.spark.launch.jvm_classes import local_files
from holdfast.spark.spark_versions import running
from tools.local_files import SOURCE

PROGRAM = """
import sys
import holdfast as hf
from pyspark.sql import SparkSession
place = sys.argv[1]
rows = hf.read.rows([{"n": n} for n in range(3)], schema="n BIGINT", name="rows")
pipeline = hf.Pipeline("trips", rows | hf.write.sqlite(place + "/t.db", table="t", name="t"))
pipeline.run(checkpoint=place + "/checkpoint", trigger=hf.available_now(), master="local[1]")
session = SparkSession.active()
jvm, conf = session._jvm, session._jsparkSession.sessionState().newHadoopConf()
path = jvm.org.apache.hadoop.fs.Path(f"file:{place}/made")
files = path.getFileSystem(conf)
files.create(path, True).close()
files.setPermission(path, jvm.org.apache.hadoop.fs.permission.FsPermission("1740"))
print(files.getClass().getName())
"""


def test_the_jar_is_made_of_the_source_beside_it() -> None:
    with zipfile.ZipFile(local_files.JAR) as jar:
        assert jar.read(SOURCE.name) == SOURCE.read_bytes(), "python -m tools.local_files makes it anew"
        assert "holdfast/LocalFiles.class" in jar.namelist()


@pytest.mark.spark
@pytest.mark.parametrize(
    ("variables", "is_ours"),
    [({}, True), pytest.param({"SPARK_CONF_DIR": "/nowhere"}, False, marks=pytest.mark.nightly)],
    ids=["composed", "by Spark's scripts"],
)
def test_files_are_created_without_a_process_for_each(
    variables: dict[str, str], is_ours: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "chmod").write_text(f'#!/bin/sh\necho called >> {tmp_path}/called\nexec /bin/chmod "$@"\n')
    (tools / "chmod").chmod(0o755)
    for name in [name for name in os.environ if name.startswith(("SPARK_", "PYSPARK_"))]:
        monkeypatch.delenv(name)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        env={**os.environ, **variables, "PATH": f"{tools}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    is_ours = is_ours and running().has_our_launcher
    assert (done.stdout.strip() == local_files.CLASS) == is_ours, done.stdout + done.stderr
    assert (tmp_path / "called").exists() == (not is_ours)
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o1740
    assert (tmp_path / ".made.crc").exists()
    (logged,) = (tmp_path / "checkpoint").rglob("offsets/0")
    assert logged.with_name(f".{logged.name}.crc").exists()
    assert stat.S_IMODE(logged.stat().st_mode) == stat.S_IMODE((tmp_path / "t.db").stat().st_mode)
