"""Python processes of a session import PySpark from where it is installed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

import holdfast.spark.launch

STARTUP = Path(holdfast.spark.launch.__file__).parent / "startup"
LIB = Path(pyspark.__file__).parent / "python" / "lib"
ZIPS = [str(path) for path in sorted(LIB.glob("*.zip"))]

_spec = importlib.util.spec_from_file_location("startup_under_test", STARTUP / "sitecustomize.py")
assert _spec is not None
assert _spec.loader is not None
startup = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(startup)


def test_the_zips_of_the_installed_package_are_left_out() -> None:
    assert len(ZIPS) == 2, "PySpark and Py4J"
    assert startup.without_own_zips([*ZIPS, "/elsewhere/job.zip", *sys.path]) == ["/elsewhere/job.zip", *sys.path]


def test_the_zips_of_another_spark_stay() -> None:
    others = ["/opt/spark/python/lib/pyspark.zip", "/opt/spark/python/lib/py4j-src.zip"]
    assert startup.without_own_zips([*others, *sys.path]) == [*others, *sys.path]


def test_the_zips_stay_where_nothing_is_installed(tmp_path: Path) -> None:
    assert startup.without_own_zips([*ZIPS, str(tmp_path)]) == [*ZIPS, str(tmp_path)]


@pytest.mark.slow
def test_a_new_process_finds_the_installed_package_and_still_runs_the_users_own_start(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.of_the_user = __name__")
    said = subprocess.run(
        [sys.executable, "-c", "import sys, pyspark; print(pyspark.__file__, sys.of_the_user)"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*ZIPS, str(STARTUP), str(tmp_path)])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.split() == [pyspark.__file__, "sitecustomize"], said
    assert said.stderr == ""
