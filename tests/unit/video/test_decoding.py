"""``hf.video.decode``: exactly the frames at or after a time, whatever is restored and whatever is damaged."""

from __future__ import annotations

import random
from bisect import bisect_right

import pytest

import holdfast as hf
from holdfast.testing import flow_contract
from tests.videos import BEGIN, FRAME, GOP, STREAMS, messages_of, packets_of, run


@pytest.mark.slow
@pytest.mark.parametrize("stream", STREAMS)
def test_every_frame_leaves_once_at_its_own_time(stream: str) -> None:
    made = run(hf.video.decode(), messages_of(packets_of(stream)))
    assert [t for t, _ in made["frame"]] == [BEGIN + number * FRAME for number in range(5 * GOP)]
    assert made["rejects"] == []


@pytest.mark.slow
@pytest.mark.parametrize("stream", STREAMS)
def test_a_decoder_is_restored_anywhere(stream: str) -> None:
    flow_contract(hf.video.decode(start=BEGIN + 3 * FRAME), messages_of(packets_of(stream, 3 * GOP + 5)), seeds=3)


@pytest.mark.slow
@pytest.mark.parametrize("stream", STREAMS)
def test_from_a_random_access_point_on_exactly_the_frames_at_or_after_a_time_are_decoded(stream: str) -> None:
    """Issue 39, acceptance 2: equal pixel by pixel to decoding from the beginning and cutting."""
    messages = messages_of(packets_of(stream))
    whole = run(hf.video.decode(), messages)["frame"]
    keys = [place for place, (_, payload) in enumerate(messages) if payload["is_key"]]
    chance = random.Random(5)
    for _ in range(200):
        start = chance.randrange(BEGIN, BEGIN + 5 * GOP * FRAME)
        place = keys[bisect_right([messages[key][0] for key in keys], start) - 1]
        made = run(hf.video.decode(start=start), messages[place:])
        assert made["frame"] == [packet for packet in whole if packet[0] >= start], start
        assert made["rejects"] == []


def test_what_can_still_come_follows_the_input_only_before_the_first_packet() -> None:
    """With commit_at="pts" a commit waits for it: for all keys it is that of a graph that nothing has come to."""
    graph = hf.flow.Graph("decode")
    decoded = graph.input("packet", dict) | hf.video.decode()
    graph.output("frame", decoded["frame"])
    graph.output("rejects", decoded["rejects"])
    packets = messages_of(packets_of("h264 B-frames", GOP))
    with graph.start(executor=hf.flow.Sequential()) as run:
        frames = run.collect("frame")
        run.raise_bound("packet", BEGIN - 5)
        assert (run.bound_of("frame"), run.bound_of("rejects")) == (BEGIN - 5, BEGIN - 5)
        for at, payload in packets[:7]:
            run.add("packet", payload, at=at)
        reached = frames[-1][0] + 1
        run.raise_bound("packet", packets[7][0])
        assert (run.bound_of("frame"), run.bound_of("rejects")) == (reached, packets[7][0])
        for at, payload in packets[7:]:
            run.add("packet", payload, at=at)
    assert [at for at, _ in frames] == [BEGIN + number * FRAME for number in range(GOP)]
