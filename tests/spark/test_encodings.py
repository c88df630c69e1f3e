"""Paths that are not ASCII in a process of the C locale: its JVM, and the workers, name files as it does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast as hf
from tests.spark.running import sqlite_rows

pytestmark = pytest.mark.spark

PIPELINE = """
import holdfast as hf
rows = hf.read.files("caf\u00e9/in", format="json", schema="id BIGINT, city STRING", name="rows")
totals = rows | hf.accumulate(by="city", n=hf.count(), name="totals")
pipeline = hf.Pipeline(
    "coffee",
    rows | hf.write.files("caf\u00e9/out", partition_by="city", name="out"),
    totals | hf.write.sqlite("caf\u00e9/t.db", table="t", name="table"),
)
"""


def test_paths_that_are_not_ascii_work_in_the_c_locale(tmp_path: Path) -> None:
    """The JVM said "unmappable characters": its encoding of names comes from the locale in which it is started."""
    (tmp_path / "caf\u00e9" / "in").mkdir(parents=True)
    (tmp_path / "caf\u00e9" / "in" / "gr\u00f6\u00dfe.json").write_text('{"id": 1, "city": "K\u00f6ln"}\n', "utf-8")
    (tmp_path / "flow.py").write_text(PIPELINE, "utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG"))}
    command = [sys.executable, "-m", "holdfast", "run", "flow.py:pipeline", "--checkpoint", "caf\u00e9/ckpt"]
    run = subprocess.run(
        [*command, "--available-now"],
        cwd=tmp_path,
        env={**environment, "LC_ALL": "C", "PYTHONPATH": str(Path(hf.__file__).parents[1])},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert hf.files.open(str(tmp_path / "caf\u00e9" / "out")).to_arrow().to_pylist() == [{"id": 1, "city": "K\u00f6ln"}]
    assert sqlite_rows(tmp_path / "caf\u00e9" / "t.db", "SELECT city, n FROM t") == [("K\u00f6ln", 1)]
