"""``hf.video.encode``: each epoch's video follows from its frames alone, and begins with a key frame."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any

import pytest

import holdfast as hf
from holdfast.flow import Graph, saving
from holdfast.flow.executors import Application
from holdfast.flow.run import Run
from holdfast.video import EncodedPacket, VideoFrame, message_times
from tests.videos import BEGIN, FRAME, frame_of, run

Made = list[tuple[int, EncodedPacket]]


def epochs(frames: list[VideoFrame], cuts: Collection[int], *, restores: bool, codec: str = "h264") -> Made:
    """Return the packets of frames, where an epoch ends before those of some places."""
    graph = Graph("trial")
    graph.output("packet", graph.input("frame", VideoFrame) | hf.video.encode("400 ms", codec=codec))
    made: Made = []

    def begin(saved: dict[str, bytes]) -> Run:
        found = Run(graph, executor=Application(), clock=lambda: 0, starts=False)
        found.observe("packet", lambda t, value: made.append((t, EncodedPacket.from_bytes(value["data"]))))
        saving.restore(found, saved, {}, {}, "the test")
        return found

    going = begin({})
    for place, frame in enumerate(frames):
        if place in cuts:
            saved = {name: each.state for name, each in saving.save(going, "the test").items()}
            going = begin(saved) if restores else going
        going.add("frame", frame, frame.pts)
        going.wait_until_idle()
    going.finish()
    return made


def decoded(packets: Made) -> list[tuple[int, Any]]:
    messages = [(t, {"is_key": packet.is_key, "data": packet.to_bytes()}) for t, packet in packets]
    made = run(hf.video.decode(), messages)
    assert made["rejects"] == []
    return made["frame"]


FRAMES = [frame_of(number) for number in range(40)]


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["h264", "hevc", "mjpeg"])
def test_each_epoch_begins_with_a_key_frame_and_no_frame_is_lost(codec: str) -> None:
    chance = random.Random(11)
    for _ in range(4):
        cuts = sorted(chance.sample(range(1, 40), 4))
        live, again = (epochs(FRAMES, cuts, restores=restores, codec=codec) for restores in (False, True))
        assert live == again
        assert [t for t, _ in live] == [packet.pts for _, packet in live] == [frame.pts for frame in FRAMES]
        assert all(live[cut][1].is_key and live[cut][1].parameters for cut in cuts)
        assert [t for t, _ in decoded(live)] == [frame.pts for frame in FRAMES]
        for first, end in zip([0, *cuts], [*cuts, 40], strict=True):  # an epoch by itself gives the same bytes
            assert epochs(FRAMES[first:end], (), restores=False, codec=codec) == live[first:end]


@pytest.mark.slow
def test_groups_have_the_declared_length_and_are_closed() -> None:
    made = epochs(FRAMES, (), restores=False)
    keys = [place for place, (_, packet) in enumerate(made) if packet.is_key]
    assert keys == [0, 10, 20, 30]
    whole = decoded(made)
    for key in keys:
        assert decoded(made[key:]) == whole[key:]


@pytest.mark.slow
def test_what_is_decoded_looks_like_what_was_encoded() -> None:
    for (_, found), frame in zip(decoded(epochs(FRAMES, (7,), restores=True)), FRAMES, strict=True):
        differences = abs(found.to_array("gray").astype(int) - frame.to_array("gray").astype(int))
        assert differences.mean() < 6


@pytest.mark.slow
def test_frames_of_another_size_begin_a_group_with_its_parameters() -> None:
    frames = [frame_of(number, *((160, 96) if number < 15 else (96, 64))) for number in range(25)]
    made = epochs(frames, (), restores=False)
    assert [place for place, (_, packet) in enumerate(made) if packet.is_key] == [0, 10, 15]
    parameters = made[15][1].parameters
    assert parameters is not None
    assert (parameters.width, parameters.height) == (96, 64)
    assert [(frame.width, frame.height) for _, frame in decoded(made)] == [(f.width, f.height) for f in frames]


@pytest.mark.slow
def test_packets_are_rows_of_the_byte_stream() -> None:
    made = epochs(FRAMES, (13,), restores=False)
    packets = [packet for _, packet in made]
    assert [t for t, _ in message_times(packets)] == [t for t, _ in made]


@pytest.mark.slow
def test_a_frame_that_waits_at_a_commit_is_stored_and_encoded_to_the_same_bytes() -> None:
    whole = epochs(FRAMES[:12], (), restores=False)
    graph = Graph("stored")
    graph.input("frame", VideoFrame)
    graph.input("other")
    codec = graph.codec
    stored = [codec.decode(codec.encode(frame, of="the test"), of="the test") for frame in FRAMES[:12]]
    assert stored == FRAMES[:12]
    assert epochs(stored, (), restores=False) == whole


@pytest.mark.slow
def test_a_moved_frame_has_the_time_of_its_input_set() -> None:
    made = run(hf.video.encode(), [(frame.pts + 5, frame) for frame in FRAMES[:3]])["packet"]
    packets = [EncodedPacket.from_bytes(payload["data"]) for _, payload in made]
    assert [packet.pts for packet in packets] == [BEGIN + number * FRAME + 5 for number in range(3)]


@pytest.mark.slow
def test_an_option_that_holds_frames_back_is_refused() -> None:
    with pytest.raises(hf.InvalidPipeline, match="gave 0 packets for a frame"):
        run(hf.video.encode(options={"tune": "film", "bf": "3"}), [(frame.pts, frame) for frame in FRAMES])


@pytest.mark.slow
def test_a_size_that_the_encoder_does_not_take_is_refused() -> None:
    frames = [replace_size(frame) for frame in FRAMES[:1]]
    with pytest.raises(hf.InvalidPipeline, match="does not take frames of 161 x 96"):
        run(hf.video.encode(), [(frame.pts, frame) for frame in frames])


def replace_size(frame: VideoFrame) -> VideoFrame:
    return VideoFrame.from_array(frame.to_array(width=161, height=96), frame.pts)


@pytest.mark.parametrize("arguments", [{"gop": "soon"}, {"gop": 0}, {"codec": "vp9"}, {"threads": 0}])
def test_wrong_arguments_are_refused_where_they_are_written(arguments: dict[str, object]) -> None:
    with pytest.raises(hf.InvalidPipeline):
        hf.video.encode(**arguments)  # type: ignore[arg-type]
