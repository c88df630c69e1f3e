"""What a user reads where a function of his own fails within Spark, and that its cure leads out (design/0032)."""

import inspect
import os
import sqlite3
import subprocess
import sys
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import holdfast as hf
from holdfast.connectors import memory
from holdfast.errors import BadRow, Corrupt, HoldfastError, InvalidPipeline

pytestmark = pytest.mark.spark


def kept() -> str:
    """Return the name of a memory table that no other test uses."""
    return f"kept_{uuid.uuid4().hex[:8]}"


def ends(pipeline: hf.Pipeline, work: Path, spark: SparkSession) -> HoldfastError | None:
    """Run to the end of what is there; return the error that ends the run."""
    run = pipeline.start(checkpoint=str(work / "c"), trigger=hf.available_now(), session=spark)
    try:
        run.wait(120)
    except HoldfastError as error:
        return error
    return None


def inverse(n):  # without hints: PySpark would have something to say about them
    return 1.0 / n


def inverses(n: pd.Series) -> pd.Series:
    raise LookupError(f"no price for {n.iloc[0]}")


def of_arrays(n: pa.Array) -> pa.Array:
    raise LookupError(f"no price for {n[0]}")


NIGHTLY = pytest.mark.nightly

WAYS: dict[str, tuple[Any, Any, str]] = {
    "row by row": (lambda: F.udf(inverse, "double"), inverse, "ZeroDivisionError"),
    "Series": (lambda: F.pandas_udf(inverses, "double"), inverses, "LookupError"),
    "Arrow": (lambda: F.arrow_udf(of_arrays, "double"), of_arrays, "LookupError"),
}


@pytest.mark.parametrize(
    ("way", "is_shared"),
    [
        ("row by row", False),
        ("row by row", True),
        ("Series", False),
        pytest.param("Series", True, marks=NIGHTLY),
        pytest.param("Arrow", False, marks=NIGHTLY),
        pytest.param("Arrow", True, marks=NIGHTLY),
    ],
)
def test_a_udf_that_fails_is_named_with_operator_function_line_and_first_row(way, is_shared, tmp_path, spark):
    made, function, exception = WAYS[way]
    rows = hf.read.rows([[{"id": 0}]], schema="id BIGINT", name="rows")
    mapped = rows | hf.map(lambda df: df.withColumn("x", made()("id")), name="priced")
    others = [rows | hf.map(lambda df: df.select("id"), name="ids") | hf.write.memory(kept())] if is_shared else []
    error = ends(hf.Pipeline("prices", mapped | hf.write.memory(kept()), *others), tmp_path, spark)
    assert isinstance(error, InvalidPipeline)
    line = inspect.getsourcelines(function)[1] + 1
    assert f"the Python UDF {function.__name__} of map 'priced'" in error.what
    assert exception in error.what
    assert f"{__file__}:{line}" in error.why
    assert "the first row: 0" in error.why
    assert error.participant == "priced"


def test_a_udf_in_a_filter_is_named_too_and_filtering_such_rows_before_leads_out(tmp_path, spark):
    table = kept()

    def pipeline(*before: Any) -> hf.Pipeline:
        stream = hf.read.rows([[{"id": 0}, {"id": 2}]], schema="id BIGINT", name="rows")
        for each in before:
            stream = stream | each
        high = stream | hf.filter(lambda df: F.udf(inverse, "double")("id") > 0.1, name="high")
        return hf.Pipeline("filtered", high | hf.write.memory(table))

    error = ends(pipeline(), tmp_path, spark)
    assert "the Python UDF inverse of filter 'high'" in error.what
    assert "leave such rows out by a filter before it" in error.do
    assert ends(pipeline(hf.filter("id > 0", name="positive")), tmp_path, spark) is None
    assert memory.rows(table).column("id").to_pylist() == [2]


MODULE = """
import holdfast as hf
from pyspark.sql import functions as F


@F.udf("double")
def inverse(n):
    return 1.0 / n


rows = hf.read.rows([[{"id": 4}]], schema="id BIGINT", name="rows")
inverted = rows | hf.map(lambda df: df.withColumn("x", inverse("id")), name="inverted")
pipeline = hf.Pipeline("typed", inverted | hf.write.sqlite(path="out.db", table="inverted"))
"""


@pytest.mark.nightly
def test_a_udf_declared_at_module_level_works_from_the_command_line(tmp_path):
    (tmp_path / "flow.py").write_text(MODULE)
    told = subprocess.run(
        [sys.executable, "-m", "holdfast", "run", "flow.py", "--checkpoint", "c", "--available-now"],
        cwd=tmp_path, env={**os.environ, "HOLDFAST_PROGRESS_INTERVAL": "1 s"}, capture_output=True, text=True,
        timeout=180,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    with closing(sqlite3.connect(tmp_path / "out.db")) as database:
        assert database.execute("select id, x from inverted").fetchall() == [(4, 0.25)]


def lines(directory: Path, **options: Any) -> hf.Stream:
    return hf.read.files(str(directory / "in"), format="json", schema="id BIGINT", name="lines", **options)


def test_a_line_that_cannot_be_read_is_left_out_and_comes_in_again_in_a_new_file(tmp_path, spark):
    table = kept()
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.json").write_text('{"id": 1}\n{"id": "x"}\n')
    sink = hf.write.memory(table)
    error = ends(hf.Pipeline("lines", lines(tmp_path) | sink), tmp_path, spark)
    assert isinstance(error, BadRow)
    assert 'on_bad_row="reject"' in error.do
    assert "in a new file" in error.do
    (tmp_path / "in/b.json").write_text('{"id": 2}\n')
    good = lines(tmp_path, on_bad_row="reject") | hf.write.memory(table)
    assert ends(hf.Pipeline("lines", good), tmp_path, spark) is None
    assert sorted(memory.rows(table).column("id").to_pylist()) == [1, 2]


def test_a_line_that_is_mended_in_its_file_leads_to_corrupt_so_no_message_advises_it(tmp_path, spark):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.json").write_text('{"id": 1}\n{"id": "x"}\n')
    pipeline = hf.Pipeline("lines", lines(tmp_path) | hf.write.memory(kept()))
    error = ends(pipeline, tmp_path, spark)
    assert "leave the file as it is" in error.do
    (tmp_path / "in/a.json").write_text('{"id": 1}\n{"id": 2}\n')
    assert isinstance(ends(pipeline, tmp_path, spark), Corrupt)


def test_a_corrected_schema_reads_the_line(tmp_path, spark):
    table = kept()
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.json").write_text('{"id": "y"}\n{"id": "x"}\n')
    error = ends(hf.Pipeline("lines", lines(tmp_path) | hf.write.memory(kept())), tmp_path, spark)
    assert "correct schema=" in error.do
    texts = hf.read.files(str(tmp_path / "in"), format="json", schema="id STRING", name="lines")
    assert ends(hf.Pipeline("lines", texts | hf.write.memory(table)), tmp_path, spark) is None
    assert sorted(memory.rows(table).column("id").to_pylist()) == ["x", "y"]
