"""The unit of event time: microseconds of a TIMESTAMP, the user's ticks of a BIGINT, and nothing where both meet."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

import holdfast as hf
from holdfast.cli import words
from holdfast.connectors.reading.until import ends_at
from holdfast.errors import InvalidPipeline
from holdfast.graph.event_time import TimeUnit, begin_at, commit_every_ticks, common_unit, end_at
from holdfast.ports import Held
from holdfast.testing import drive

TICKS = hf.read.rows([], schema="k STRING, t BIGINT, v INT", timestamp="t", name="ticks").node
TIMED = hf.read.rows([], schema="k STRING, t TIMESTAMP, v INT", timestamp="t", name="timed").node
UNTIMED = hf.read.rows([], schema="k STRING, v INT", name="untimed").node


def test_a_bigint_time_column_stays_the_timestamp_behind_map_batches():
    left = hf.read.rows([], schema="k STRING, t BIGINT, v INT", timestamp="t", name="left")
    right = hf.read.rows([], schema="k STRING, t BIGINT, v INT", timestamp="t", name="right")
    scored = left | hf.map_batches(lambda batch: batch, "k STRING, t BIGINT, v INT", name="scored")
    assert scored.timestamp == "t"
    both = hf.sync({"left": scored, "right": right}, by="k", name="both")
    epochs = drive(
        both,
        {"left": [[{"k": "a", "t": 7, "v": 1}]], "right": [[{"k": "a", "t": 7, "v": 2}]]},
    )
    assert [(row["timestamp"], row["left"], row["right"]) for row in epochs[0]] == [(7, {"v": 1}, {"v": 2})]


def test_a_column_of_another_type_is_no_timestamp_behind_map_batches():
    left = hf.read.rows([], schema="k STRING, t BIGINT", timestamp="t", name="left")
    assert (left | hf.map_batches(lambda batch: batch, "k STRING, t STRING", name="texts")).timestamp is None


def test_commit_every_counts_in_the_unit_of_the_timestamps():
    assert commit_every_ticks("30 s", [TIMED]) == 30_000_000
    assert commit_every_ticks(30, [TICKS, TICKS]) == 30
    assert commit_every_ticks(None, [UNTIMED]) is None


@pytest.mark.parametrize(
    ("commit_every", "sources", "what", "do"),
    [
        ("30 s", [TICKS], "does not fit the timestamps of source 'ticks'", "commit_every=30000"),
        (30, [TIMED], "does not fit the timestamps of source 'timed'", 'commit_every="30 s"'),
        ("30 s", [TICKS, TIMED], "has no unit", "all as BIGINT"),
        ("30 s", [TIMED, UNTIMED], "'untimed' declares none", "timestamp="),
        (0, [TICKS], "too small", "or ticks"),
        ("soon", [TIMED], "commit_every='soon'", "100 ms"),
        (True, [TICKS], "commit_every=True", "100 ms"),
    ],
)
def test_a_commit_every_that_fits_no_unit_is_refused(commit_every, sources, what, do):
    with pytest.raises(InvalidPipeline) as refused:
        commit_every_ticks(commit_every, sources)
    assert what in refused.value.what
    assert do in refused.value.do


def test_sources_of_two_units_have_no_time_in_common():
    assert common_unit([TIMED, TIMED]) is TimeUnit.MICROSECONDS
    assert common_unit([TICKS, UNTIMED]) is TimeUnit.TICKS
    assert common_unit([TICKS, TIMED]) is None
    assert common_unit([UNTIMED]) is None


def test_a_pipeline_of_ticks_begins_at_a_tick_and_not_at_a_date():
    assert begin_at(7, [TICKS]) == begin_at("7", [TICKS]) == 7
    assert begin_at("1970-01-01T00:00:01Z", [TIMED]) == 1_000_000
    with pytest.raises(InvalidPipeline, match="does not fit the timestamps of source 'ticks'"):
        begin_at(datetime(2026, 1, 1, tzinfo=UTC), [TICKS])


def test_sources_of_two_units_cannot_begin_at_one_number():
    with pytest.raises(InvalidPipeline, match="at=7 has no unit: source 'ticks' has BIGINT") as refused:
        begin_at(7, [UNTIMED, TIMED, TICKS])
    assert "all as BIGINT" in refused.value.do
    assert begin_at(None, [TIMED, TICKS]) is None


@pytest.mark.parametrize(
    ("unit", "shown"),
    [
        (TimeUnit.MICROSECONDS, "pts 2023-11-14T22:13:20Z"),
        (TimeUnit.TICKS, "pts 1,700,000,000,000,000 ticks"),
        (None, "pts 1700000000000000"),
    ],
)
def test_inspect_shows_pts_in_the_unit_of_the_timestamps(unit, shown):
    assert shown in words._held(Held(3, 1, {}, 1_700_000_000_000_000), unit)


def test_the_end_of_a_run_is_in_the_unit_of_the_timestamps_and_after_its_beginning():
    nanoseconds = 1_767_225_600_000_000_001
    assert end_at(nanoseconds, [TICKS], at=None) == end_at(str(nanoseconds), [TICKS], at=5) == nanoseconds
    assert end_at("1970-01-01T00:00:01Z", [TIMED], at=0) == 1_000_000
    assert end_at(None, [TIMED, TICKS], at=None) is None
    with pytest.raises(InvalidPipeline, match=r"until='1970-01-01' is not after the time at which"):
        end_at("1970-01-01", [TIMED], at=0)
    with pytest.raises(InvalidPipeline, match="until='tomorrow' does not fit the timestamps of source 'ticks'"):
        end_at("tomorrow", [TICKS], at=None)
    with pytest.raises(InvalidPipeline, match="until=7 has no unit"):
        end_at(7, [TIMED, TICKS], at=None)


def test_a_source_that_cannot_leave_rows_for_later_is_named():
    for node, why in ((UNTIMED, "declares no timestamp"), (hf.read.spark("rate", name="ticker").node, "cannot leave")):
        pipeline = hf.Pipeline("p", hf.Stream(node) | hf.write.memory(name="out"))
        with pytest.raises(InvalidPipeline, match=f"source '{node.name}' cannot be read up to a time") as caught:
            ends_at(pipeline, 7, at=None)
        assert why in str(caught.value)
        assert ends_at(pipeline, None, at=None) is None
