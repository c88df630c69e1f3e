"""Frames of other libraries become Arrow tables."""

from __future__ import annotations

from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from holdfast.types.frames import as_arrow, is_frame, is_of_spark

ROWS = pa.table({"k": ["a", "b"], "n": pa.array([1, 2], pa.int64())})


class DataFrame:
    """What a frame of Spark 4.1 gives; a real one stands in for state and for a table in the tests with Spark."""

    def toArrow(self) -> pa.Table:
        return ROWS


DataFrame.__module__ = "pyspark.sql.classic.dataframe"


@pytest.mark.parametrize(
    "frame",
    [ROWS, ROWS.to_pandas().set_index(pd.Index([7, 9])), pl.from_arrow(ROWS), DataFrame()],
    ids=["Arrow", "pandas", "Polars", "Spark 4.1"],
)
def test_a_frame_becomes_its_rows(frame: Any) -> None:
    assert is_frame(frame)
    assert is_of_spark(frame) == isinstance(frame, DataFrame)
    assert as_arrow(frame).cast(ROWS.schema).equals(ROWS)


@pytest.mark.parametrize("given", [[{"k": "a"}], "a.parquet", None, 5])
def test_what_else_may_be_given_is_no_frame(given: Any) -> None:
    assert not is_frame(given)
