"""ClockConversion between UTC, TAI and NTP, and the table of leap seconds."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest

from holdfast.errors import InvalidPipeline
from holdfast.flow import ABSENT, MIN, POST_STREAM, PRE_STREAM
from holdfast.flow.calculators import ClockConversion, LeapSeconds
from holdfast.flow.calculators.leap_seconds import LEAP_SECONDS, NTP
from tests.unit.flow.histories import packets, seen

Options = ClockConversion.Options
SECOND = 1_000_000
OF_THE_SYSTEM = Path("/usr/share/zoneinfo/leap-seconds.list")


def us(text: str) -> int:
    """Return a time in UTC as microseconds."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND


def converted(options: Options, *times: int) -> list[int]:
    """Return the times at which packets leave."""
    return [t for t, _ in packets(seen(ClockConversion, options, *(("data", t, "p") for t in times)), "data")]


LEAP = us("2017-01-01")
FILE = f"""#	a comment
#@	{(us("2030-06-28") + NTP) // SECOND}
{(us("1972-01-01") + NTP) // SECOND}	10	# 1 Jan 1972
{(LEAP + NTP) // SECOND}	37	# 1 Jan 2017
"""


@pytest.mark.parametrize(
    ("utc", "ahead"),
    [
        ("1972-01-01", 10),
        ("1972-06-30T23:59:59", 10),
        ("1972-07-01", 11),
        ("1999-01-01", 32),
        ("2016-12-31T23:59:59", 36),
        ("2017-01-01", 37),
        ("2026-11-28", 37),
    ],
)
def test_tai_is_ahead_of_utc_by_the_leap_seconds(utc: str, ahead: int) -> None:
    t = us(utc)
    assert converted(Options("UTC", "TAI"), t) == [t + ahead * SECOND]
    assert converted(Options("TAI", "UTC"), t + ahead * SECOND) == [t]
    assert converted(Options("NTP", "TAI"), t + NTP) == [t + ahead * SECOND]


def test_ntp_counts_from_1900_and_needs_no_table() -> None:
    times = [-(10**17), 0, us("2100-01-01")]
    assert (datetime(1970, 1, 1) - datetime(1900, 1, 1)).days * 86400 * SECOND == NTP
    assert converted(Options("UTC", "NTP"), *times) == [t + NTP for t in times]
    assert converted(Options("NTP", "UTC"), *times) == [t - NTP for t in times]


def test_times_ascend_through_a_leap_second_which_shares_one_second_with_the_one_before() -> None:
    begin = LEAP + 35 * SECOND  # in TAI: a second before the leap second
    found = converted(Options("TAI", "UTC"), *range(begin, begin + 3 * SECOND, 10_000))
    assert all(earlier < later for earlier, later in pairwise(found))
    assert found[::50] == [LEAP - SECOND + 250_000 * n for n in range(4)] + [LEAP, LEAP + SECOND // 2]


def test_there_and_back_is_the_same_apart_from_leap_seconds() -> None:
    chance = random.Random(5)
    for t in (chance.randrange(us("1972-01-01"), LEAP_SECONDS.expires) for _ in range(200)):
        if t % (86400 * SECOND) < 86399 * SECOND:
            assert LEAP_SECONDS.utc(LEAP_SECONDS.tai(t)) == t


def test_bounds_are_converted_and_end_where_the_table_ends() -> None:
    t = us("2020-01-01")
    end = LEAP_SECONDS.expires
    found = seen(ClockConversion, Options("UTC", "TAI"), ("data", t), ("data", t, "p"), ("data", end + 5 * SECOND))
    assert found == [
        [("data", t + 37 * SECOND - 1, ABSENT)],
        [("data", t + 37 * SECOND, "p")],
        [("data", end + 37 * SECOND - 1, ABSENT)],
    ]


def test_a_leap_second_raises_the_bound_by_more_than_the_packet() -> None:
    found = seen(ClockConversion, Options("UTC", "TAI"), ("data", LEAP - 1, "p"))
    assert found == [[("data", LEAP + 36 * SECOND - 1, "p"), ("data", LEAP + 37 * SECOND - 1, ABSENT)]]


@pytest.mark.parametrize("t", [PRE_STREAM, POST_STREAM])
def test_a_packet_outside_of_time_keeps_its_place(t: int) -> None:
    assert converted(Options("UTC", "TAI"), t) == [t]


def test_times_beyond_the_table_are_refused_until_there_is_a_newer_one(tmp_path: Path) -> None:
    t = us("2029-01-01")
    with pytest.raises(InvalidPipeline, match="UTC from TAI at 2029-01-01T00:00:00Z is not known") as raised:
        converted(Options("UTC", "TAI"), t)
    assert "LeapSeconds.read(" in raised.value.do
    file = tmp_path / "leap-seconds.list"
    file.write_text(FILE)
    assert converted(Options("UTC", "TAI", LeapSeconds.read(file)), t) == [t + 37 * SECOND]


@pytest.mark.parametrize("t", [us("1971-12-31T23:59:59"), 0, MIN])
def test_times_before_the_table_are_refused(t: int) -> None:
    with pytest.raises(InvalidPipeline, match="is not known") as raised:
        converted(Options("UTC", "TAI"), t)
    assert "since 1972-01-01T00:00:00Z only" in raised.value.why


@pytest.mark.skipif(not OF_THE_SYSTEM.exists(), reason="this system has no table of leap seconds to compare with")
def test_the_table_is_what_that_of_the_system_says_as_far_as_both_go() -> None:
    read = LeapSeconds.read(OF_THE_SYSTEM)
    until = min(read.expires, LEAP_SECONDS.expires)
    assert [step for step in read.steps if step[0] < until] == [step for step in LEAP_SECONDS.steps if step[0] < until]


@pytest.mark.parametrize(
    "text", ["", "no table", "#@ 3991593600\n", "2272060800 10\n", "#@ 12\n2272060800 10\n", FILE + "2272060800 10\n"]
)
def test_what_is_no_table_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "leap-seconds.list"
    file.write_text(text)
    with pytest.raises(InvalidPipeline, match="no table of leap seconds"):
        LeapSeconds.read(file)
    with pytest.raises(InvalidPipeline, match="no table of leap seconds"):
        LeapSeconds.read(tmp_path / "missing")


@pytest.mark.parametrize("clocks", [("UTC", "GPS"), ("utc", "TAI"), ("TAI", "TAI"), (None, "UTC")])
def test_clocks_that_it_does_not_know_are_refused(clocks: tuple[str, str]) -> None:
    with pytest.raises(InvalidPipeline, match="cannot go from"):
        Options(*clocks)


def test_a_table_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidPipeline, match="no table of leap seconds"):
        Options("UTC", "TAI", "/usr/share/zoneinfo/leap-seconds.list")  # type: ignore[arg-type]
