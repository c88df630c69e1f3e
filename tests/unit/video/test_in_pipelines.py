"""Video calculators inside ``hf.flow``: what leaves does not depend on epochs, keys or restores."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from typing import Any

import pytest

import holdfast as hf
from holdfast.testing import drive, step_contract
from holdfast.video import EncodedPacket, VideoFrame
from tests.videos import BEGIN, FRAME, GOP, frame_of, messages_of, packets_of, run

SCHEMA = "stream STRING, timestamp BIGINT, is_key BOOLEAN, data BINARY"
STREAMS = {"a": "h264 open", "b": "hevc closed", "c": "h264 B-frames"}
REJECTS = "pts BIGINT, count BIGINT, reason STRING, cure STRING, data BINARY"


def rows_of(names: Sequence[str], count: int) -> list[dict[str, Any]]:
    """Return rows of streams, in the order of their times."""
    found = [
        {"stream": name, "timestamp": t, **payload}
        for name in names
        for t, payload in messages_of(packets_of(STREAMS[name]))[:count]
    ]
    return sorted(found, key=lambda row: row["timestamp"])


def source() -> Any:
    return hf.read.rows([], schema=SCHEMA, timestamp="timestamp", name="packets")


def looked_at(frame: VideoFrame) -> dict[str, Any]:
    return {"width": frame.width, "checksum": zlib.crc32(frame.data)}


def looking() -> Any:
    graph = hf.flow.Graph("look")
    made = graph.input("packet") | hf.video.decode(start=BEGIN + 2 * FRAME)
    graph.output("seen", made["frame"] | hf.flow.node(looked_at))
    graph.output("rejects", made["rejects"])
    outputs = {"seen": "width INT, checksum BIGINT", "rejects": REJECTS}
    return source() | hf.flow(graph, by="stream", outputs=outputs, name="look")


@pytest.mark.slow
def test_frames_do_not_depend_on_epochs_and_restores() -> None:
    def rows(rng: random.Random, count: int, keys: int) -> list[tuple[str, dict[str, Any]]]:
        chosen = rows_of(list(STREAMS)[:keys], min(count, 2 * GOP))
        for row in rng.sample(chosen, min(2, len(chosen))):
            row["data"] = row["data"][:70]
        return [("packets", row) for row in chosen]

    step = step_contract.step_of(looking()["seen"])
    case = step_contract.StepCase("look", step, rows)
    for check in (
        step_contract.check_cuts,
        step_contract.check_serialisation,
        step_contract.check_replay,
        step_contract.check_empty_epochs,
    ):
        check(case)


@pytest.mark.slow
def test_what_is_encoded_in_a_pipeline_begins_anew_with_each_epoch() -> None:
    graph = hf.flow.Graph("recode")
    made = graph.input("packet") | hf.video.decode()
    graph.output("video", made["frame"] | hf.video.encode("1 s"))
    video = source() | hf.flow(graph, by="stream", schema="is_key BOOLEAN, data BINARY", name="recode")
    rows = rows_of("b", 30)
    epochs = [rows[:7], rows[7:8], [], rows[8:21], rows[21:]]
    found = drive(video, {"packets": [*epochs, [hf.testing.close()]]})
    assert [len(epoch) for epoch in found[:5]] == [7, 1, 0, 13, 9]
    assert all(epoch[0]["is_key"] and not any(row["is_key"] for row in epoch[1:]) for epoch in found if epoch)
    flat = [row for epoch in found for row in epoch]
    assert [EncodedPacket.from_bytes(row["data"]).pts for row in flat] == [row["timestamp"] for row in rows]
    frames = run(hf.video.decode(), [(row["timestamp"], row) for row in flat])["frame"]
    assert [t for t, _ in frames] == [frame_of(number).pts for number in range(30)]
