"""Video: frames a second through decode, detect, draw and encode, beside a bare loop of PyAV that does the same.

The video is H.264 of 1080p with a key frame every two seconds.  Each frame is decoded, compared with the one before on
a reduced picture (a quarter of the width, gray) in which contours are looked for, gets a box and a label for each, and
is encoded by x264, "veryfast", on two threads.  Both sides run in one process each, from packets in memory to packets
in memory:

- ``graph``: a flowgraph of ``hf.video.decode``, a function, ``hf.video.draw`` and ``hf.video.encode``, without Spark;
  ``graph_threads`` runs its calculators on two threads, side by side;
- ``bare``: a loop over one decoder and one encoder of PyAV, with a forced key frame every two seconds.

Figures: ``fps_1080p`` is that of ``graph``, ``overhead`` its share of the speed of ``bare``,
``overhead_cpu`` the same of processor time, which other programs disturb less; ``recovery_s`` is what the
restore of the graph takes at the worst place, right before the end of a group, when the decoder is given two groups
again.  ``store_vs_file``: messages as cameras make them into a byte stream, exactly once, as a share of the speed of a
plain file (``bench/byte_stream.py``, load ``frames``).  Sides take turns, each in a process of its own; medians.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
from numpy.typing import NDArray

from bench.sides import WORK, median, print_result, run_side
from holdfast import flow, video
from holdfast.flow import saving
from holdfast.flow.run import Run

WIDTH, HEIGHT, FPS, GOP_S = 1920, 1080, 25, 2
FRAME_NS = 10**9 // FPS
REDUCED = 480
CODEC = {
    "preset": "veryfast",
    "tune": "zerolatency",
    "crf": "23",
    "g": "1000000",
    "sc_threshold": "0",
    "forced-idr": "1",
}
THREADS = 2

Boxes = list[dict[str, Any]]


def picture(number: int, ground: NDArray[Any]) -> NDArray[Any]:
    """Return a picture of objects that move over a ground."""
    made = ground.copy()
    for each in range(6):
        left, top = (97 * each + 9 * number) % (WIDTH - 120), (160 * each + 3 * number) % (HEIGHT - 80)
        cv2.rectangle(made, (left, top), (left + 110, top + 70), (40 * each, 255 - 30 * each, 90), -1)
    return made


def write_video(path: Path, frames: int) -> None:
    """Write the packets of the input, one after the other."""
    ground = cv2.GaussianBlur(np.random.default_rng(3).integers(0, 255, (HEIGHT, WIDTH, 3), np.uint8), (0, 0), 9)
    graph = flow.Graph("input")
    graph.output("packet", graph.input("frame") | video.encode(f"{GOP_S} s", threads=THREADS))
    given = (
        (t, video.VideoFrame.from_array(picture(t // FRAME_NS, ground), t))
        for t in range(0, frames * FRAME_NS, FRAME_NS)
    )
    moved = ((t, frame.to_format("yuv420p")) for t, frame in given)
    packets = graph.run({"frame": moved}, executor=flow.Application())["packet"]
    path.write_bytes(b"".join(len(each["data"]).to_bytes(4) + each["data"] for _, each in packets))


def read_video(path: str) -> Iterator[video.EncodedPacket]:
    """Yield the packets of a file."""
    data, place = Path(path).read_bytes(), 0
    while place < len(data):
        end = place + 4 + int.from_bytes(data[place : place + 4])
        yield video.EncodedPacket.from_bytes(data[place + 4 : end])
        place = end


class MovingObjects:
    """What has moved since the frame before, on a reduced picture: the same for both sides."""

    def __init__(self) -> None:
        self._before: NDArray[Any] | None = None

    def boxes(self, luma: NDArray[Any]) -> Boxes:
        """Return boxes, in pixels of the frame."""
        scale = WIDTH / REDUCED
        reduced = cv2.resize(luma, (REDUCED, round(HEIGHT / scale)), interpolation=cv2.INTER_AREA)
        before, self._before = self._before, reduced
        if before is None:
            return []
        _, moved = cv2.threshold(cv2.absdiff(reduced, before), 24, 255, cv2.THRESH_BINARY)
        contours, _ = cv2.findContours(
            cv2.dilate(moved, np.ones((7, 7), np.uint8)), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE
        )
        found = [cv2.boundingRect(each) for each in contours]
        return [
            dict(zip(("x", "y", "width", "height"), (side * scale for side in box), strict=True), label=f"object {n}")
            for n, box in enumerate(found)
            if box[2] * box[3] > 60
        ]


class Detect(flow.Calculator):
    """The same as a calculator; it is not restored here."""

    contract = flow.Contract(inputs={"frame": video.VideoFrame}, outputs="boxes", timestamp_offset=0)

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self._objects = MovingObjects()

    def process(self, context: flow.Context) -> None:
        context.emit("boxes", self._objects.boxes(context["frame"].planes()[0]))

    def save(self) -> dict[str, Any]:
        return {}


def pipeline_graph() -> flow.Graph:
    """Return decode, detect, draw and encode."""
    graph = flow.Graph("video")
    frames = graph.input("packet") | video.decode()
    boxes = frames["frame"] | flow.node(Detect)
    drawn = {"frame": frames["frame"], "boxes": boxes} | video.draw()
    graph.output("packet", drawn | video.encode(f"{GOP_S} s", threads=THREADS))
    return graph


def side_graph(path: str, threads: int) -> dict[str, float]:
    """Measure the graph."""
    packets = [(t, {"is_key": p.is_key, "data": p.to_bytes()}) for t, p in video.message_times(read_video(path))]
    graph = pipeline_graph()
    executor = flow.Threads(threads) if threads else flow.Application()
    run = graph.start(executor=executor)
    found = run.collect("packet")
    begin, cpu = time.perf_counter(), time.process_time()
    for t, payload in packets:
        run.add("packet", payload, t)
    run.finish()
    took, cpu = time.perf_counter() - begin, time.process_time() - cpu
    assert len(found) == len(packets), (len(found), len(packets))
    return {"fps": len(packets) / took, "cpu_ms": 1000 * cpu / len(packets)}


def side_bare(path: str) -> dict[str, float]:
    """Measure PyAV alone."""
    packets = list(read_video(path))
    decoder = av.VideoCodecContext.create("h264", "r")
    encoder = av.VideoCodecContext.create("libx264", "w")
    assert isinstance(decoder, av.VideoCodecContext)
    assert isinstance(encoder, av.VideoCodecContext)
    encoder.width, encoder.height, encoder.pix_fmt = WIDTH, HEIGHT, "yuv420p"
    encoder.time_base, encoder.framerate, encoder.options = Fraction(1, 10**9), Fraction(30), CODEC
    encoder.thread_count, encoder.thread_type = THREADS, "SLICE"
    objects, sizes, number = MovingObjects(), [], 0
    begin, cpu = time.perf_counter(), time.process_time()
    for packet in [*packets, None]:
        given = None
        if packet is not None:
            given = av.Packet(packet.data)
            given.pts, given.dts, given.time_base = packet.pts, packet.dts, Fraction(1, 10**9)
        for frame in decoder.decode(given):
            frame.make_writable()  # the decoder refers to it
            planes = planes_of(frame)
            draw(planes, objects.boxes(planes[0]))
            frame.pict_type = 1 if number % (FPS * GOP_S) == 0 else 0
            sizes += [each.size for each in encoder.encode(frame)]
            number += 1
    sizes += [each.size for each in encoder.encode(None)]
    took, cpu = time.perf_counter() - begin, time.process_time() - cpu
    assert len(sizes) == len(packets), (len(sizes), len(packets))
    return {"fps": len(packets) / took, "cpu_ms": 1000 * cpu / len(packets)}


def planes_of(frame: av.VideoFrame) -> Sequence[NDArray[Any]]:
    """Return the planes of a frame, to be drawn on."""
    return [
        np.frombuffer(memoryview(each), np.uint8).reshape(each.height, each.line_size)[:, : each.width]
        for each in frame.planes
    ]


def draw(planes: Sequence[NDArray[Any]], boxes: Boxes) -> None:
    """Draw boxes and labels as ``hf.video.draw`` does; on a frame of the loop's own."""
    for plane, value, part in zip(planes, (145, 54, 34), (1, 2, 2), strict=True):
        for box in boxes:
            left, top, right, low = (
                round(side / part) for side in (box["x"], box["y"], box["x"] + box["width"], box["y"] + box["height"])
            )
            cv2.rectangle(plane, (left, top), (right, low), value, 2 // part)
            place = (left, max(16 // part, top - 4 // part))
            cv2.putText(plane, box["label"], place, cv2.FONT_HERSHEY_SIMPLEX, 0.7 / part, value, 2 // part)


def side_recovery(path: str) -> dict[str, float]:
    """Measure the restore of a graph that is saved before the last packet of its second group."""
    packets = [(t, {"is_key": p.is_key, "data": p.to_bytes()}) for t, p in video.message_times(read_video(path))]
    graph = pipeline_graph()

    def fresh() -> Run:
        return Run(graph, executor=flow.Application(), clock=lambda: 0, starts=False)

    run = fresh()
    saving.restore(run, {}, {}, {}, "the benchmark")
    for t, payload in packets[: 2 * FPS * GOP_S - 1]:
        run.add("packet", payload, t)
        run.wait_until_idle()
    saved = saving.save(run, "the benchmark")
    size = sum(len(each.state) + sum(map(len, each.replay)) for each in saved.values())
    begin = time.perf_counter()
    again = fresh()
    states = {name: each.state for name, each in saved.items()}
    saving.restore(again, states, {name: each.replay for name, each in saved.items()}, {}, "the benchmark")
    return {"seconds": time.perf_counter() - begin, "bytes": size}


def store_rate(side: str, seconds: int) -> float:
    """Return the rate of a side of ``bench.byte_stream``, MB/s."""
    directory = WORK / f"video-store-{os.getpid()}"
    try:
        ran = run_side("bench.byte_stream", side, {"load": "frames", "seconds": seconds, "directory": str(directory)})
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return float(ran["bytes"] / ran["seconds"] / 1e6)


def measured(side: str, path: Path, store_seconds: int) -> dict[str, float]:
    """Return the figures of a side."""
    if side in ("stream", "file"):
        return {side: store_rate("carried" if side == "stream" else "plain", store_seconds)}
    if side == "recovery":
        return {side: run_side("bench.video", side, {"path": str(path)})["seconds"]}
    if side == "bare":
        ran = run_side("bench.video", side, {"path": str(path)})
    else:
        ran = run_side("bench.video", "graph", {"path": str(path), "threads": 2 if side == "graph_threads" else 0})
    return {side: ran["fps"], f"{side}_cpu": ran["cpu_ms"]}


def main() -> None:
    """Measure and print ``RESULT``."""
    parser = argparse.ArgumentParser(prog="python -m bench.video", description=__doc__)
    parser.add_argument("--frames", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--store-seconds", type=int, default=10)
    options = parser.parse_args()
    WORK.mkdir(exist_ok=True)
    path = WORK / f"video-{os.getpid()}.packets"
    write_video(path, max(options.frames, 2 * FPS * GOP_S))
    found: dict[str, list[float]] = {}
    try:
        for number in range(options.rounds):
            order = ("graph", "bare", "graph_threads", "recovery", "stream", "file")
            for side in order if number % 2 == 0 else order[::-1]:
                for figure, value in measured(side, path, options.store_seconds).items():
                    found.setdefault(figure, []).append(value)
                    print(f"round {number + 1} {figure}: {value:,.3f}", flush=True)
    finally:
        path.unlink(missing_ok=True)
    middle = {name: median(values) for name, values in found.items()}
    print_result(
        {
            "bench": "video",
            "fps_1080p": round(middle["graph"], 1),
            "bare_fps": round(middle["bare"], 1),
            "overhead": round(middle["graph"] / middle["bare"], 3),
            "overhead_cpu": round(middle["bare_cpu"] / middle["graph_cpu"], 3),
            "fps_1080p_threads": round(middle["graph_threads"], 1),
            "recovery_s": round(middle["recovery"], 3),
            "store_vs_file": round(middle["stream"] / middle["file"], 3),
            "store_mb_per_s": round(middle["stream"]),
            "load": round(os.getloadavg()[0], 1),
        }
    )


if __name__ == "__main__":
    main()
