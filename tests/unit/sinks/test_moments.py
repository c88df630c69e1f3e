"""Dates and times that are read digit by digit are those that Arrow reads; any other text is left to it."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.connectors.kit import moments
from holdfast.connectors.kit.sql_values import converted
from tests.everyday import examples

_TEXTS = pa.large_string()


@pytest.mark.slow
@settings(max_examples=examples(50))
@given(st.lists(st.none() | st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31)), min_size=1, max_size=20))
def test_what_was_written_is_read(values: list[Any]) -> None:
    local = pa.array(values, pa.timestamp("us"))
    times = pa.array([None if value is None else value.time() for value in values], pa.time64("us"))
    for column, form, kind in (
        (local, moments.LOCAL, pa.int64()),
        (pc.assume_timezone(local, "UTC"), moments.INSTANT, pa.int64()),
        (local.cast(pa.date32(), safe=False), moments.DATE, pa.int32()),
        (times, moments.TIME, pa.int64()),
    ):
        found = moments.read(converted(column).cast(_TEXTS), form)
        assert found is not None
        assert [None if value is None else number for value, number in zip(values, found.tolist(), strict=True)] == (
            column.cast(kind).to_pylist()
        )


@pytest.mark.slow
@settings(max_examples=examples(200))
@given(st.text("0123456789-:. Zx/é", min_size=8, max_size=28), st.sampled_from([moments.DATE, moments.LOCAL]))
def test_what_is_no_date_is_not_read(text: str, form: str) -> None:
    found = moments.read(pa.array([text], _TEXTS), form)
    if found is not None:
        kind, number = (pa.date32(), pa.int32()) if form == moments.DATE else (pa.timestamp("us"), pa.int64())
        assert found.tolist() == pa.array([text]).cast(kind).cast(number).to_pylist()


@pytest.mark.parametrize(
    "text",
    ["2023-02-29", "1900-02-29", "2024-13-01", "2024-00-01", "2024-01-00", "2024-04-31", "2024/01/01", "x024-01-01"],
)
def test_a_day_that_there_is_not_is_not_read(text: str) -> None:
    assert moments.read(pa.array(["2024-01-01", text], _TEXTS), moments.DATE) is None


def test_a_slice_is_read() -> None:
    texts = pa.array(["x", "1970-01-02", "1970-01-03", "y"], _TEXTS)
    assert moments.read(texts.slice(1, 2), moments.DATE).tolist() == [1, 2]
