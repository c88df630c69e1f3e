"""A support bundle of a live run says where its threads are, in the driver and in workers (design/0049, section 7)."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.spark.launch import stacks
from tests.spark.running import arrive, eventually, sqlite_rows

pytestmark = pytest.mark.spark

TARGET = """
import os
import time

import holdfast as hf

work = {work!r}


def slow(rows):
    while rows["city"][0].as_py() == "vulpine8Xq" and not os.path.exists(work + "/go"):
        time.sleep(0.05)
    return rows


rides = hf.read.files(work + "/in", schema="id BIGINT, city STRING", name="rides")
held = rides | hf.map_batches(slow, schema="id BIGINT, city STRING", name="held")
pipeline = hf.Pipeline("trips", held | hf.write.sqlite(work + "/table.db", table="rows", name="table"))
"""


def bundled(work: Path) -> dict[str, str]:
    out = work / "bundle.zip"
    out.unlink(missing_ok=True)
    command = [sys.executable, "-m", "holdfast", "support-bundle", str(work / "trips.py"), "--checkpoint"]
    subprocess.run([*command, str(work / "checkpoint"), "--out", str(out)], check=True, timeout=300)
    with zipfile.ZipFile(out) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_the_stacks_of_a_run_that_hangs_in_a_function_are_in_the_bundle(tmp_path: Path) -> None:
    (tmp_path / "trips.py").write_text(TARGET.format(work=str(tmp_path)))
    namespace: dict[str, hf.Pipeline] = {}
    exec(compile((tmp_path / "trips.py").read_text(), str(tmp_path / "trips.py"), "exec"), namespace)
    arrive(tmp_path / "in", "a.json", [{"id": 1, "city": "x"}])
    run = namespace["pipeline"].start(checkpoint=tmp_path / "checkpoint", trigger=hf.every("20 ms"))
    try:
        eventually(lambda: run.status().rows_total == 1, what="the first row")
        arrive(tmp_path / "in", "b.json", [{"id": 2, "city": "vulpine8Xq"}])

        def hangs() -> bool:
            return any("trips.py" in text for text in stacks.stacks_of_workers(stacks.directory()).values())

        eventually(hangs, what="a worker in the function")
        files = bundled(tmp_path)
        assert not any("vulpine8Xq" in text or str(tmp_path) in text for text in files.values())
        workers = [text for name, text in files.items() if name.startswith("stacks/worker-")]
        assert any('File "…", line 12, in …' in text and 'File "holdfast/' in text for text in workers)
        of_jvm = files["stacks/jvm.txt"]
        assert "    at org.apache.spark.sql.execution.streaming." in of_jvm
        assert "    at java.lang.Thread.run(Thread.java:" in of_jvm
        assert '"stream execution thread for ' in of_jvm
        assert "holdfast-steer" in files["stacks/driver.txt"] or "socketserver.py" in files["stacks/driver.txt"]
        assert json.loads(files["status.json"])["epoch"] == 1
        assert 'holdfast_epoch{pipeline="trips",shard="0"} 1.0' in files["metrics.txt"]
        assert "PUBLISHED" in files["stories.json"]
        assert json.loads(files["checkpoint.json"])["sinks"][0]["held"] == 1
        assert sqlite_rows(tmp_path / "table.db") == [1]
        assert run.is_active
    finally:
        (tmp_path / "go").touch()
        run.stop()
        run.wait()
