"""PacketResampler: the nearest packet at each of its times."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

import pytest

from holdfast.errors import InvalidPipeline
from holdfast.flow import ABSENT, MAX, POST_STREAM, PRE_STREAM
from holdfast.flow.calculators import PacketResampler
from tests.unit.flow.histories import Event, history, packets, seen

Options = PacketResampler.Options


def resampled(options: Any, *times: int) -> list[tuple[int, int]]:
    """Return time and original time of each packet that leaves."""
    return packets(seen(PacketResampler, options, *(("data", t, t) for t in times), ("data",)), "data")


def test_each_of_its_times_gets_the_nearest_packet_and_of_two_the_later() -> None:
    assert resampled(Options(period=10), 0, 4, 8, 13, 15, 25, 34) == [(0, 0), (10, 8), (20, 25), (30, 34)]


def test_a_packet_is_sent_as_often_as_it_is_the_nearest() -> None:
    assert resampled(Options(period=10), 0, 33) == [(0, 0), (10, 0), (20, 33), (30, 33)]


def test_the_last_packet_is_sent_where_its_time_has_had_none() -> None:
    assert resampled(Options(period=10), 0, 16) == [(0, 0), (10, 16), (20, 16)]
    assert resampled(Options(period=10), 0, 14) == [(0, 0), (10, 14)]
    assert resampled(Options(period=10)) == []


def test_times_go_through_the_base_and_begin_and_end_next_to_the_packets() -> None:
    assert resampled(Options(period=10, base_timestamp=3), 5, 14) == [(3, 5), (13, 14)]
    assert resampled(Options(period=10, base_timestamp=3), 9, 17) == [(13, 17)]
    assert resampled(Options(period=10, base_timestamp=1003), -19) == [(-17, -19)]


def test_the_frame_rate_is_in_packets_a_second_and_exact() -> None:
    found = resampled(Options(frame_rate=29.97), *range(0, 1_100_000, 9_000))
    assert [t for t, _ in found[:4]] == [0, 33367, 66733, 100100]
    assert found[30][0] == 1_001_001
    assert resampled(Options(frame_rate=Fraction(30_000, 1001)), 0, 1_001_000)[30][0] == 1_001_000


def test_what_is_decided_leaves_at_once_and_the_bound_is_its_next_time() -> None:
    found = seen(PacketResampler, Options(period=10), ("data", 0, "a"), ("data", 9, "b"), ("data", 12, "c"), ("data",))
    assert found == [
        [("data", 0, "a"), ("data", 9, ABSENT)],
        [],
        [("data", 10, "b"), ("data", 19, ABSENT)],
        [],
    ]


def test_a_bound_decides_where_no_packet_that_may_come_is_as_near() -> None:
    events: list[Event] = [
        ("data", 0, "a"),
        ("data", 7, "b"),
        ("data", 13),
        ("data", 14),
        ("data", 40),
        ("data", 41, "c"),
    ]
    assert seen(PacketResampler, Options(period=10), *events) == [
        [("data", 0, "a"), ("data", 9, ABSENT)],
        [],
        [],
        [("data", 10, "b"), ("data", 19, ABSENT)],
        [],
        [("data", 20, "b"), ("data", 30, "c"), ("data", 40, "c"), ("data", 49, ABSENT)],
    ]


@pytest.mark.parametrize(
    ("options", "promised"),
    [
        (Options(period=10), 99),
        (Options(period=10, base_timestamp=7), 96),
        (Options(period=10, jitter=1), 94),
    ],
)
def test_before_its_first_packet_it_promises_the_lowest_time_that_one_can_have(options: Any, promised: int) -> None:
    assert seen(PacketResampler, options, ("data", 100)) == [[("data", promised, ABSENT)]]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("jitter", [0, 0.8])
def test_bounds_change_nothing_of_what_is_sent(seed: int, jitter: float) -> None:
    options = Options(period=4, base_timestamp=seed, jitter=jitter)
    events = history(seed, ["data"], lambda chance, _: chance.random())
    only_packets = [event for event in events if len(event) != 2]
    assert packets(seen(PacketResampler, options, *events), "data") == packets(
        seen(PacketResampler, options, *only_packets), "data"
    )


@pytest.mark.parametrize("jitter", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("frame_rate", [90_000, 29.97, 1_000_000])
def test_a_plain_search_for_the_nearest_finds_the_same(frame_rate: float, jitter: float) -> None:
    chance = random.Random(f"{frame_rate} {jitter}")
    period = 1_000_000 / frame_rate
    times = sorted(chance.sample(range(int(40 * period) + 60), 25))
    found = resampled(Options(frame_rate=frame_rate, jitter=jitter, seed=4, base_timestamp=0), *times)
    sent = [t for t, _ in found]
    assert sent == sorted(set(sent))
    assert found == [(t, min(times, key=lambda each: (abs(each - t), -each))) for t in sent]
    first, last = round(times[0] / period), round(times[-1] / period)
    assert abs(len(sent) - (last - first + 1)) <= 1
    assert all(abs(t - (first + n) * period) <= jitter * period / 2 + 1 for n, t in enumerate(sent))


@pytest.mark.parametrize("jitter", [0, 0.5])
def test_a_stream_that_is_read_from_another_place_on_gives_the_same(jitter: float) -> None:
    times = sorted(random.Random(1).sample(range(1000), 200))
    options = Options(period=20, base_timestamp=7, jitter=jitter, seed=9)
    whole, later = resampled(options, *times), resampled(options, *times[80:])
    assert later[2:] == [packet for packet in whole if packet[0] >= later[2][0]]
    assert len(later) > 20


def test_another_seed_gives_other_times() -> None:
    first, second = (
        [t for t, _ in resampled(Options(period=1000, jitter=1, seed=seed), *range(0, 9000, 50))] for seed in (1, 2)
    )
    assert first != second
    assert first == [t for t, _ in resampled(Options(period=1000, jitter=1, seed=1), *range(0, 9000, 50))]


@pytest.mark.parametrize("t", [PRE_STREAM, POST_STREAM])
def test_a_packet_outside_of_time_passes(t: int) -> None:
    assert resampled(Options(period=10), t) == [(t, t)]


def test_beyond_the_last_time_the_output_ends() -> None:
    assert resampled(Options(period=10), MAX - 3) == [(MAX - 3, MAX - 3)]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({}, "no period, or two"),
        ({"period": 5, "frame_rate": 3}, "no period, or two"),
        ({"period": 0}, "period=0"),
        ({"period": 0.5}, "period=0.5"),
        ({"frame_rate": 0}, "frame_rate=0"),
        ({"frame_rate": float("nan")}, "frame_rate=nan"),
        ({"frame_rate": 1_000_001}, "frame_rate=1000001"),
        ({"frame_rate": "30"}, "frame_rate='30'"),
        ({"period": 5, "jitter": 1.1}, "jitter=1.1"),
        ({"period": 5, "jitter": -0.1}, "jitter=-0.1"),
        ({"period": 5, "seed": "x"}, "seed='x'"),
        ({"period": 5, "base_timestamp": 0.5}, "base_timestamp=0.5"),
    ],
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidPipeline, match=says):
        Options(**wrong)
