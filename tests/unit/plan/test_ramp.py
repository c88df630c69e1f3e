"""How much an epoch takes after a start (design/0014, section 5)."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.connectors.files.source.log import Block
from holdfast.limits import ROW_SIZE, EpochRoom, ReadLimit
from holdfast.plan.operation import read_limit
from holdfast.plan.pressure import Ramp

FIRST = 16_000_000


class Hands:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.at_s = 100.0

    def __call__(self) -> float:
        return self.at_s


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "limit")


def test_the_first_epoch_is_small_and_each_of_the_next_twice_as_large(path: str) -> None:
    clock, seen = Hands(), []
    ramp = Ramp(path, FIRST, clock)
    for number in range(4):
        limit = read_limit(path, "s")
        assert limit is not None
        assert limit.rows == limit.size_bytes // ROW_SIZE
        seen.append(limit.size_bytes // FIRST)
        clock.at_s += 2**number
        ramp.note(2**number, {})
    assert seen == [1, 2, 4, 8]


def test_an_epoch_may_take_as_long_as_the_run_is_old(path: str) -> None:
    """A trigger of a minute: what came while it waited is not spread over many minutes."""
    clock = Hands()
    ramp = Ramp(path, FIRST, clock)
    clock.at_s += 1
    ramp.note(1, {})
    clock.at_s += 60
    ramp.note(1, {})
    assert read_limit(path, "s") == ReadLimit(2 * 61 * FIRST // ROW_SIZE, 2 * 61 * FIRST)


def test_an_epoch_takes_twice_what_the_one_before_took_also_where_that_was_more_than_its_limit(path: str) -> None:
    """The smallest epoch is a block of a file: of Parquet more than a limit of the first epochs."""
    clock = Hands()
    ramp = Ramp(path, FIRST, clock)
    seen = []
    for taken in ({"large": 5 * FIRST, "small": FIRST // 2}, {"large": 10 * FIRST}, {"large": 4 * FIRST}):
        clock.at_s += 1
        ramp.note(1, taken)
        limits = [read_limit(path, source) for source in ("large", "small", "new")]
        seen.append([limit.size_bytes // FIRST for limit in limits if limit is not None])
    assert seen == [[10, 2, 2], [20, 4, 4], [60, 12, 12]]


@pytest.mark.parametrize(("interval_s", "times"), [(0.1, 1), (10, 10), (60, 60)])
def test_a_trigger_that_waits_leaves_nothing_for_its_next_time_that_it_has_time_for(
    path: str, interval_s: float, times: int
) -> None:
    """With one of an hour a restart would delay what is there by hours."""
    Ramp(path, FIRST, Hands(), interval_s=interval_s)
    limit = read_limit(path, "s")
    assert limit is not None
    assert limit.size_bytes == times * FIRST


def test_with_an_interval_of_a_day_there_is_no_limit(path: str) -> None:
    Ramp(path, FIRST, Hands(), interval_s=86_400)
    assert read_limit(path, "s") is None


def test_beyond_all_sizes_there_is_no_limit(path: str) -> None:
    clock = Hands()
    ramp = Ramp(path, FIRST, clock)
    for _ in range(17):
        clock.at_s += 1
        ramp.note(1, {})
    assert read_limit(path, "s") is None
    ramp.note(1, {})
    assert read_limit(path, "s") is None


def test_nothing_is_limited_if_that_is_wished(path: str) -> None:
    Ramp(path, 0).note(1, {})
    assert read_limit(path, "s") is None


def test_a_clock_that_stands_is_no_obstacle(path: str) -> None:
    Ramp(path, FIRST, Hands()).note(0, {})
    assert read_limit(path, "s") == ReadLimit(2 * FIRST // ROW_SIZE, 2 * FIRST)


def test_a_full_disk_is_no_obstacle(tmp_path: Path) -> None:
    Ramp(str(tmp_path / "gone" / "limit"), FIRST).note(1, {})


def test_room_is_left_for_what_is_smaller_than_any_limit() -> None:
    room, block = EpochRoom(None, None, ReadLimit(1, 0)), Block("a", 9, 0, -1, 5, 9)
    assert room.is_limited
    assert not room.is_full
    assert room.fits(block)
    room.take(block)
    assert room.is_full
    assert not room.fits(block)
