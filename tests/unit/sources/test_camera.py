"""read.camera: what is received is journalled, gaps are marked, and the journal goes on after a death (issue 39)."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast import read
from holdfast.connectors.camera.connection import Received
from holdfast.connectors.camera.inbox import Inbox
from holdfast.connectors.camera.receiving import CameraReceiver, entries_of
from holdfast.connectors.camera.source import CameraSource
from holdfast.connectors.camera.spec import CameraSpec
from holdfast.errors import Corrupt, InternalError, InvalidPipeline, Unavailable
from holdfast.video.packets import EncodedPacket
from tests.camera_server import camera_server, rtsp_camera
from tests.unit.video.made_videos import CLOSED_GOPS, OPEN_GOPS, decoded, write_video

pytestmark = pytest.mark.slow

STEP = 40_000_000
DEADLINE_S = 60.0


def _spec(address: object, tmp_path: Path, **options: Any) -> CameraSpec:
    options = {"timeout": "2 s", "gap": "gap", **options}
    spec = read.camera(str(address), journal=tmp_path / "journal", name="front", **options).node.source_spec
    assert isinstance(spec, CameraSpec)
    return spec


def _source(address: object, tmp_path: Path, **options: Any) -> CameraSource:
    source = _spec(address, tmp_path, **options).open("front", str(tmp_path / "w"))
    assert isinstance(source, CameraSource)
    return source


def _rows(source: Any) -> list[dict[str, Any]]:
    """What the journal has, without receiving."""
    source.source.freeze()
    start = source.initial()
    end = source.source.latest(start, bounded=True)
    spans = source.spans(start, end, parallelism=1)
    return [row for span in spans for batch in source.read(span) for row in batch.to_pylist()]


def _until(is_so: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def _shown(rows: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return decoded(EncodedPacket.from_bytes(row["data"]) for row in rows)


def _check_rows(rows: list[dict[str, Any]]) -> None:
    times = [row["timestamp"] for row in rows]
    assert times == sorted(set(times)), "times ascend"
    assert {row["stream"] for row in rows} == {"front"}
    assert rows[0]["is_key"]
    assert all(row["is_key"] for row in rows if row["gap"] is not None), "after a gap comes a key packet"


def test_a_connection_that_breaks_is_made_again_and_the_gap_is_marked(tmp_path: Path) -> None:
    one = write_video(tmp_path / "1.ts", 48, options=OPEN_GOPS)
    two = write_video(tmp_path / "2.ts", 48, options=OPEN_GOPS, first=100)
    before = time.time_ns()
    with camera_server(one, seconds=2.0) as (port, process):
        source = _source(f"tcp://127.0.0.1:{port}", tmp_path)
        receiver = source.receiver
        _until(lambda: len(_rows(source)) > 20, "something is received")
        process.send_signal(signal.SIGKILL)
        process.wait()
    with camera_server(two, port, seconds=4.0):
        count = len(_rows(source))
        _until(lambda: receiver.gap_count > 0 and len(_rows(source)) >= count + 30, "the connection is made again")
        receiver.stop()
    rows = _rows(source)
    _check_rows(rows)
    (gap,) = [row for row in rows if row["gap"] is not None]
    place = rows.index(gap)
    first, second = _shown(rows[:place]), _shown(rows[place:])
    second = second[:-3]  # the last ones were cut among pictures that are shown in another order
    assert [number for _, number in second] == list(range(100, 100 + len(second)))
    assert len(second) >= 24
    numbers = [number for _, number in first]
    assert numbers[:-3] == list(range(len(first)))[:-3]
    assert before <= first[0][0] <= time.time_ns()
    assert 0 < gap["gap"] < second[0][0] - first[0][0]
    assert [at - second[0][0] for at, _ in second] == [STEP * number for number in range(len(second))]


def test_a_camera_that_speaks_rtsp_gives_its_own_time_and_is_waited_for_again(tmp_path: Path) -> None:
    """FFmpeg listens here, and the camera announces itself: the same protocol, and the same reports of RTCP."""
    made = write_video(tmp_path / "1.mp4", 200, options=CLOSED_GOPS)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    listening = {"rtsp_flags": "listen", "listen_timeout": "30"}
    source = _source(f"rtsp://127.0.0.1:{port}/camera", tmp_path, clock="ntp", options=listening)
    receiver, begin = source.receiver, time.time_ns()
    with rtsp_camera(made, port) as process:
        _until(lambda: len(_rows(source)) > 30, "something is received")
        process.send_signal(signal.SIGKILL)
        process.wait()
    with rtsp_camera(made, port):
        count = len(_rows(source))
        _until(lambda: receiver.gap_count > 0 and len(_rows(source)) >= count + 30, "the camera is there again")
        receiver.stop()
    rows = _rows(source)
    _check_rows(rows)
    (place,) = [place for place, row in enumerate(rows) if row["gap"] is not None]
    for part in (rows[:place], rows[place:]):
        shown = _shown(part)
        assert [number - shown[0][1] for _, number in shown] == list(range(len(part)))
        assert [at - shown[0][0] for at, _ in shown] == [STEP * number for number in range(len(part))]
    assert begin - 10**9 < rows[0]["timestamp"] < rows[-1]["timestamp"] < time.time_ns()


@pytest.mark.parametrize("number", [15, 23, 24, 25])
def test_what_follows_packets_that_the_network_lost_is_left_out_up_to_a_key_packet(tmp_path: Path, number: int) -> None:
    """MPEG-TS counts its packets; no wrong picture is shown behind a hole."""
    made = write_video(tmp_path / "1.ts", 60, options=CLOSED_GOPS)
    pieces = [made.read_bytes()[at : at + 188] for at in range(0, made.stat().st_size, 188)]
    begins = [at for at, piece in enumerate(pieces) if piece[1] & 0x5F == 0x41 and piece[2] == 0]
    assert len(begins) == 60
    del pieces[begins[number] : begins[number + 1]]
    (tmp_path / "2.ts").write_bytes(b"".join(pieces))
    with camera_server(tmp_path / "2.ts", seconds=1.0) as (port, _):
        source = _source(f"tcp://127.0.0.1:{port}", tmp_path)
        receiver = source.receiver
        _until(lambda: receiver.gap_count > 0 and len(_rows(source)) > 44, "what is behind the hole is received")
        receiver.stop()
    rows = _rows(source)
    _check_rows(rows)
    shown = _shown([row for row in rows if row["timestamp"] < rows[0]["timestamp"] + 58 * STEP])
    assert [(at - shown[0][0]) // STEP for at, _ in shown] == [each for _, each in shown]
    numbers = [each for _, each in shown]
    assert numbers[:12] == [*range(12)]
    assert numbers[-1] >= 36, "decoding goes on at a key packet"


_RUN = """
import sys, time
from pathlib import Path
from tests.unit.sources.test_camera import _source
source = _source(sys.argv[1], Path(sys.argv[2]))
positions = source.newest()
while True:
    end = source.latest(positions, bounded=False)
    if end != positions:
        print(source.rows_between(positions, end), flush=True)
    positions = end
    time.sleep(0.02)
"""


@pytest.mark.crash
def test_the_journal_goes_on_after_a_run_was_killed(tmp_path: Path) -> None:
    made = write_video(tmp_path / "1.ts", 100, options=CLOSED_GOPS)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with camera_server(made, seconds=3.0) as (port, _):
        command = [sys.executable, "-c", _RUN, f"tcp://127.0.0.1:{port}", str(tmp_path)]
        for _ in range(2):
            run = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
            assert run.stdout is not None
            with run.stdout:
                count = 0
                while count < 30:
                    line = run.stdout.readline()
                    assert line, "the run ended"
                    count += int(line)
                run.send_signal(signal.SIGKILL)
                run.wait()
        rows = _rows(_source(f"tcp://127.0.0.1:{port}", tmp_path))
    _check_rows(rows)
    gaps = [place for place, row in enumerate(rows) if row["gap"] is not None]
    assert len(gaps) == 1
    assert rows[gaps[0]]["gap"] > 0
    for part in (rows[: gaps[0]], rows[gaps[0] :]):
        assert [number for _, number in _shown(part)] == list(range(len(part)))
        assert len(part) >= 12


def test_one_process_at_a_time_receives_into_a_journal(tmp_path: Path) -> None:
    made = write_video(tmp_path / "1.ts", 100, options=CLOSED_GOPS)
    with camera_server(made, seconds=1.0) as (port, _):
        one, two = (_source(f"tcp://127.0.0.1:{port}", tmp_path) for _ in range(2))
        one.receiver  # noqa: B018 - it begins to receive
        _until(lambda: len(_rows(one)) > 20, "something is received")
        second = two.receiver
        _until(lambda: len(_rows(one)) > 80, "the first one goes on")
        rows = _rows(one)
        assert [row["gap"] for row in rows] == [None] * len(rows)
        one.receiver.stop()
        _until(lambda: second.gap_count > 0, "the second one takes over")
        second.stop()
    _check_rows(_rows(one))


def test_entries_are_removed_once_every_sink_holds_them(tmp_path: Path) -> None:
    made = write_video(tmp_path / "1.ts", 100, options=CLOSED_GOPS)
    with camera_server(made, seconds=1.0) as (port, _):
        source = _source(f"tcp://127.0.0.1:{port}", tmp_path)
        source.receiver  # noqa: B018 - it begins to receive
        _until(lambda: len(list((tmp_path / "journal").glob("*.entry"))) > 5, "entries are written")
        source.committed(source.latest(source.initial(), bounded=False))
        source.receiver.stop()
    assert len(list((tmp_path / "journal").glob("*.entry"))) <= len(_rows(source)) + 2


def test_a_file_is_received_once_whoever_is_killed_and_then_the_source_ends(tmp_path: Path) -> None:
    made = write_video(tmp_path / "a.mp4", 60, created="2026-01-01T00:00:00Z")
    receiver = CameraReceiver(_spec(made, tmp_path).of)
    receiver._take_all()  # a death before the journal has anything
    for _ in range(2):
        source = _source(made, tmp_path)
        source.freeze()
        rows = _rows(source)
        assert len(rows) == 60
        assert source.has_ended(source.latest(source.initial(), bounded=True))
    start = 1_767_225_600 * 10**9
    assert _shown(rows) == [(start + STEP * number, number) for number in range(60)]
    assert source.of.address.is_file


def test_a_file_that_cannot_be_read_ends_the_run_after_what_could_be(tmp_path: Path) -> None:
    made = write_video(tmp_path / "a.mp4", 240, size=(640, 480), muxer={"movflags": "faststart"})
    made.write_bytes(made.read_bytes()[: made.stat().st_size * 9 // 10])
    source = _source(made, tmp_path)
    source.receiver.join()
    end = source.latest(source.initial(), bounded=False)
    assert source.rows_between(source.initial(), end) > 100
    with pytest.raises(Corrupt, match=r"a\.mp4 ends early: after \d+ packets"):
        source.latest(end, bounded=False)
    (tmp_path / "other").mkdir()
    (tmp_path / "empty.mp4").touch()
    with pytest.raises(InvalidPipeline, match="is empty"):
        _source(tmp_path / "empty.mp4", tmp_path / "other").freeze()


def test_a_camera_that_is_not_there_is_tried_again_and_its_password_shown_nowhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = _spec("rtsp://admin:hunter2@127.0.0.1:1/x?token=hunter3", tmp_path)
    assert spec.sends_secret
    assert not spec.bounded
    shown = f"{spec!r} {spec.arguments()} {spec.of!r}"
    receiver = CameraReceiver(spec.of)
    receiver.start()
    _until(lambda: caplog.text.count("it is tried again") > 1, "it is tried again")
    receiver.stop()
    assert "rtsp://admin:***@127.0.0.1:1/x?token=***" in caplog.text
    assert "hunter" not in caplog.text + shown


@pytest.mark.parametrize("is_journalled", [False, True])
def test_what_nobody_expected_ends_a_file_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_journalled: bool
) -> None:
    """Else the pipeline would wait for a thread that is gone; and a full inbox for who takes nothing out of it."""
    made = write_video(tmp_path / "1.mp4", 24, options=CLOSED_GOPS)
    receiver = CameraReceiver(_spec(made, tmp_path).of)

    def broken(*_: object) -> object:
        raise ValueError("not thought of")

    if is_journalled:
        monkeypatch.setattr(receiver, "_table", broken)
    else:
        monkeypatch.setattr("holdfast.connectors.camera.receiving.received_from", broken)
    receiver.start()
    receiver.join()
    assert isinstance(receiver.failure, InternalError)
    assert "not thought of" in str(receiver.failure)


def test_a_connection_that_breaks_by_what_nobody_expected_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = CameraReceiver(replace(_spec("tcp://127.0.0.1:1", tmp_path).of, first_pause_s=0.01))
    attempts = threading.Event()
    tried: list[None] = []

    def broken(*_: object) -> object:
        tried.append(None)
        if len(tried) > 2:
            attempts.set()
        raise ValueError("not thought of")

    monkeypatch.setattr("holdfast.connectors.camera.receiving.received_from", broken)
    receiver.start()
    assert attempts.wait(DEADLINE_S)
    receiver.stop()
    assert receiver.failure is None


def test_once_the_journal_has_failed_no_connection_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = CameraReceiver(replace(_spec("tcp://127.0.0.1:1", tmp_path).of, first_pause_s=0.01))
    packet = EncodedPacket(b"x", 1, is_key=True)
    monkeypatch.setattr(
        "holdfast.connectors.camera.receiving.received_from", lambda *_: iter([Received(1, packet, None)])
    )

    def broken(*_: object) -> object:
        raise Corrupt("the journal is damaged.", why="a test says so.", do="nothing.")

    monkeypatch.setattr(receiver, "_table", broken)
    receiver.start()
    receiver.join()
    assert isinstance(receiver.failure, Corrupt)


def test_what_comes_behind_an_entry_that_cannot_be_written_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = CameraReceiver(_spec("tcp://127.0.0.1:1", tmp_path).of)
    pushed: list[object] = []

    def unavailable(_: object, table: object) -> None:
        pushed.append(table)
        receiver._stopping.set()
        raise Unavailable("the disk is full.", why="a test says so.", do="nothing.")

    monkeypatch.setattr("holdfast.connectors.files.callback.CallbackFeed.push", unavailable)
    packet = EncodedPacket(b"x" * 20 * 2**20, 1, is_key=True)
    for at in (1, 2):
        receiver._inbox.put(Received(at, packet, None), 1)
    receiver._inbox.close()
    receiver._journal()
    assert len(pushed) == 1
    assert isinstance(receiver.failure, Unavailable)


def test_arguments_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidPipeline, match="clock='atomic' is not known"):
        _spec("rtsp://x", tmp_path, clock="atomic")
    with pytest.raises(InvalidPipeline, match="max_rows_per_epoch=0"):
        _spec("rtsp://x", tmp_path, max_rows_per_epoch=0)


def test_without_a_column_for_gaps_the_rows_are_those_that_a_byte_stream_stores(tmp_path: Path) -> None:
    assert _spec("rtsp://x", tmp_path, gap=None).schema.names == ["stream", "timestamp", "is_key", "data"]


def test_an_inbox_is_bounded_and_gives_all_that_waits(tmp_path: Path) -> None:
    import threading

    inbox: Inbox[int] = Inbox(10)
    taken: list[list[int]] = []
    thread = threading.Thread(target=lambda: [inbox.put(number, 4) for number in range(6)])
    thread.start()
    _until(lambda: len(inbox._values) == 2, "a third one would be above the limit")
    while sum(map(len, taken)) < 6:
        taken.append(inbox.take())
        assert len(taken[-1]) <= 2
    thread.join()
    assert [number for each in taken for number in each] == list(range(6))
    inbox.close()
    assert inbox.take() == []
    assert not inbox.put(1, 1)


def test_what_waits_is_divided_into_entries_of_a_size() -> None:
    rows = [Received(number, EncodedPacket(b"x" * 40, number)) for number in range(7)]
    assert [len(each) for each in entries_of(rows, 100)] == [3, 3, 1]
