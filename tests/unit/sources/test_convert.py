"""Conversion, column by column: one rule for times, at any depth."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.connectors.formats import convert
from holdfast.types.from_text import Unfit, timestamps_from_text

UTC_TYPE = pa.timestamp("us", tz="UTC")
moments = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1))


@pytest.mark.slow
@given(st.lists(st.tuples(moments, st.sampled_from(["", "Z", "+00:00", "+0000", "+00"]), st.sampled_from("T "))))
def test_a_text_is_the_same_time_with_and_without_utc(given_times: list[tuple[datetime, str, str]]) -> None:
    texts = pa.array([moment.isoformat(sep) + zone for moment, zone, sep in given_times], pa.string())
    expected = [moment.replace(tzinfo=UTC) for moment, *_ in given_times]
    assert timestamps_from_text(texts, UTC_TYPE).to_pylist() == expected
    naive = timestamps_from_text(texts, pa.timestamp("us")).to_pylist()
    assert naive == [moment for moment, *_ in given_times]


@pytest.mark.slow
@given(st.lists(st.integers(-2_000_000_000_000_000, 4_000_000_000_000_000)))
def test_a_number_is_seconds_to_the_microsecond(micros: list[int]) -> None:
    seconds = pa.array([one / 1e6 for one in micros], pa.float64())
    assert convert.timestamps_from_seconds(seconds, UTC_TYPE).cast(pa.int64()).to_pylist() == micros


def test_nested_values_keep_their_nulls() -> None:
    wanted = pa.struct([("at", pa.list_(UTC_TYPE)), ("day", pa.date32())])
    held = convert.read_type(wanted, timestamps=pa.string(), dates=pa.string())
    rows = [{"at": ["2024-01-01", None], "day": "2024-01-02"}, None, {"at": None, "day": None}, {"at": [], "day": None}]
    moment = datetime(2024, 1, 1, tzinfo=UTC)
    found = convert.to_declared(pa.array(rows, held), wanted)
    assert found.type == wanted
    assert found.to_pylist() == [{"at": [moment, None], "day": moment.replace(day=2).date()}, *rows[1:]]


@pytest.mark.parametrize("text", ["", "noon", "2024-13-01", "2024-01-01T25:00:00", "1704110400"])
def test_what_is_no_time_is_unfit(text: str) -> None:
    with pytest.raises(Unfit):
        timestamps_from_text(pa.array(["2024-01-01", text]), UTC_TYPE)
