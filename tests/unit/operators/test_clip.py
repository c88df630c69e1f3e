"""clip as a declaration."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

import holdfast as hf
from holdfast.operators.clip import Clip
from tests.graphs import source

MARCH = 1_362_096_000_000_000


@pytest.mark.parametrize(
    "start",
    [
        "2013-03-01",
        "2013-03-01T00:00Z",
        "2013-03-01T02:00+02:00",
        MARCH,
        datetime(2013, 3, 1),
        datetime(2013, 3, 1, tzinfo=UTC),
        datetime(2013, 3, 1, 2, tzinfo=timezone(timedelta(hours=2))),
    ],
)
def test_a_time_can_be_written_in_several_ways_and_is_utc_without_a_zone(start):
    clipped = source(timestamp="time_hour") | hf.clip(start)
    assert clipped.node.spec == Clip("time_hour", MARCH, None)


def test_the_borders_are_kept_to_the_microsecond():
    clipped = source(timestamp="time_hour") | hf.clip("1969-12-31T23:59:59.999999", "1970-01-01T00:00:00.000001")
    assert clipped.node.spec == Clip("time_hour", -1, 1)


def test_another_column_can_be_named_and_is_the_timestamp_from_there_on():
    mapped = source() | hf.map(lambda df: df)
    assert (mapped | hf.clip(end=0, timestamp="at")).timestamp == "at"
    clipped = source() | hf.clip(0, timestamp="TIME_HOUR")
    assert clipped.node.spec.column == "time_hour"


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: hf.clip(), "neither start nor end"),
        (lambda: hf.clip("2013-04-01", "2013-03-01"), "is not before"),
        (lambda: hf.clip(5, 5), "is not before"),
        (lambda: hf.clip("March"), "start='March' is not a time"),
        (lambda: hf.clip(end=1.5), "end=1.5 is not a time"),
        (lambda: hf.clip(True), "start=True is not a time"),
        (lambda: hf.clip(0), "no known timestamp"),
        (lambda: hf.clip(0, timestamp="tiem_hour"), "did you mean 'time_hour'"),
    ],
)
def test_what_cannot_be_clipped_is_refused(build, text):
    with pytest.raises(hf.InvalidPipeline, match=text):
        source() | build()
