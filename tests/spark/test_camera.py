"""A camera recorded by a run of Spark: into a byte stream, each packet of the journal once, over a restart."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.connectors.byte_stream.branch import branches
from holdfast.video.packets import EncodedPacket
from tests.camera_server import camera_server
from tests.unit.video.made_videos import CLOSED_GOPS, decoded, write_video

pytestmark = pytest.mark.spark

STEP = 40_000_000


def _pipeline(address: object, tmp_path: Path) -> hf.Pipeline:
    packets = hf.read.camera(str(address), journal=tmp_path / "journal", name="front", timeout="3 s")
    recorder = hf.write.byte_stream(tmp_path / "store", stream="stream", key="is_key", name="recorder")
    return hf.Pipeline("cameras", packets | recorder)


def _messages(tmp_path: Path) -> list[tuple[int, bool, EncodedPacket]]:
    views = [each.view().streams.get("front") for each in branches(str(tmp_path / "store")).values()]
    return [
        (at, is_key, EncodedPacket.from_bytes(bytes(payload)))
        for view in views
        if view is not None
        for chunk in view.read(0, view.end)
        for at, is_key, payload in zip(chunk.timestamps, chunk.keys, chunk.payloads, strict=True)
    ]


def _until(is_so: Callable[[], Any]) -> None:
    end = time.monotonic() + 90
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_camera_is_recorded_and_after_a_restart_a_key_packet_follows(tmp_path: Path) -> None:
    made = write_video(tmp_path / "a.ts", 200, options=CLOSED_GOPS)
    with camera_server(made, seconds=8.0) as (port, _):
        for _ in range(2):
            before = len(_messages(tmp_path))
            run = _pipeline(f"tcp://127.0.0.1:{port}", tmp_path).start(checkpoint=str(tmp_path / "checkpoint"))
            try:
                _until(lambda before=before: len(_messages(tmp_path)) >= before + 40)
            finally:
                run.stop()
    found = _messages(tmp_path)
    times = [at for at, _, _ in found]
    assert times == sorted(set(times))
    # The camera begins anew with each connection; on a slow machine there are more than one of a run.
    begins = [p for p in range(1, len(found)) if times[p] - times[p - 1] > 2 * STEP]
    assert begins
    for first, last in pairwise((0, *begins, len(found))):
        assert found[first][1], "after a gap comes a key packet"
        assert [number for _, number in decoded(row[2] for row in found[first:last])] == list(range(last - first))


def test_a_file_is_taken_whole_by_a_run_that_ends(tmp_path: Path) -> None:
    made = write_video(tmp_path / "a.mp4", 60, created="2026-01-01T00:00:00Z")
    for _ in range(2):
        _pipeline(made, tmp_path).run(checkpoint=str(tmp_path / "checkpoint"), trigger=hf.available_now())
    start = 1_767_225_600 * 10**9
    shown = decoded(packet for _, _, packet in _messages(tmp_path))
    assert shown == [(start + STEP * number, number) for number in range(60)]
