"""Compares what the pipelines wrote with the cameras, and with an undisturbed run: the same graphs without Spark.

Works without Holdfast's sinks: it reads the tables with their own clients, and plays the videos.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

from demo.closing import Content
from examples.video import both, cameras, events
from examples.video.detector import shared
from examples.video.play import frames, messages
from examples.video.scene import FRAMES_PER_S, GATE, LEFT, RIGHT, Camera, Picture, strip_of

Event = tuple[int, int, str]
"""Time, number of the frame, things in it."""


def pair_frames(seconds: float) -> list[int]:
    """Return the numbers of the frames that both of the pair have."""
    return [number for number in LEFT.frames(seconds) if number in set(RIGHT.frames(seconds))]


def undisturbed(work: Path) -> dict[str, list[Event]]:
    """Return the events of each table, by graphs that nobody kills."""
    sent = {camera.name: packets(work, camera) for camera in (GATE, LEFT, RIGHT)}
    made = {
        "events": events.graph.run({"packet": sent["gate"]}),
        "both_events": both.graph.run({"packet": sent["gate"]}),
        "gate_events": cameras.one_camera().run({"packet": sent["gate"]}),
        "left_events": cameras.one_camera().run({"packet": sent["left"]}),
        "pair_events": cameras.two_cameras().run({side: sent[side] for side in ("left", "right")}),
    }
    shared.stop()
    return {name: rows_of(each["events"]) for name, each in made.items()}


def rows_of(events: Sequence[tuple[int, Any]]) -> list[Event]:
    """Return what a graph gives as rows."""
    return [(t, event["frame"], event["objects"]) for t, event in events]


def packets(work: Path, camera: Camera) -> list[tuple[int, Mapping[str, Any]]]:
    """Return what a camera has sent, as a graph takes it."""
    stored = messages(work / "cameras", stream=camera.name)
    return [(time, {"is_key": is_key, "data": data}) for time, is_key, data in stored]


def held(work: Path, table: str, dsn: str | None = None, broker: str | None = None) -> list[Event]:
    """Return the rows of a table, or the records of a topic."""
    columns = ("timestamp", "frame", "objects")
    if broker:
        from demo.watch import KafkaRecords

        records = [json.loads(value or b"{}") for _, value in KafkaRecords(broker, table).new(timeout_s=5)]
        return [(record["timestamp"], record["frame"], record["objects"]) for record in records]
    query = f"SELECT {', '.join(columns)} FROM {table}"
    if dsn:
        with psycopg.connect(dsn) as connection:
            return [(row[0], row[1], row[2]) for row in connection.execute(query.encode())]
    with closing(sqlite3.connect(work / f"{table}.db")) as database:
        return list(database.execute(query))


def of_events(name: str, found: Sequence[Event], wanted: Sequence[Event], numbers: Sequence[int]) -> Content:
    """Compare events with those of the undisturbed run, and both with the frames that the cameras have."""
    rows = Counter(found)
    times = {row[0]: row for row in found}
    differences = sum(row != times.get(row[0], row) for row in wanted) + len(times.keys() - {row[0] for row in wanted})
    differences += [row[1] for row in wanted] != list(numbers)
    lost = len({row[0] for row in wanted} - times.keys())
    return Content(name, len(found), len(found) - len(rows), lost, differences)


def of_video(name: str, container: bytes, numbers: Sequence[int], views: int = 1) -> Content:
    """Play a video, and read each frame's strip: each number once, in order, at its time."""
    shown: list[int] = []
    differences, before, first = 0, -1.0, 0.0
    for seconds, frame in frames(container):
        said = _numbers(frame.to_ndarray(format="gray"), views)
        number = said[0] if len(set(said)) == 1 else -1
        first = seconds - (number - numbers[0]) / FRAMES_PER_S if not shown else first
        late_s = abs(seconds - first - (number - numbers[0]) / FRAMES_PER_S)
        differences += number < 0 or seconds <= before or late_s > 0.001
        differences += bool(shown) and number <= shown[-1]
        shown.append(number)
        before = seconds
    lost, more = Counter(numbers) - Counter(shown), Counter(shown) - Counter(numbers)
    return Content(name, len(shown), more.total(), lost.total(), differences)


def _numbers(grey: Picture, views: int) -> list[int]:
    width = grey.shape[1] // views
    strips = [strip_of(grey[:, view * width : (view + 1) * width]) for view in range(views)]
    return [-1 if strip is None else strip[1] for strip in strips]


def verify(work: Path, seconds: float, dsn: str | None = None, broker: str | None = None) -> list[Content]:
    """Return a verdict for each sink."""
    numbers = {"gate": GATE.frames(seconds), "left": LEFT.frames(seconds), "pair": pair_frames(seconds)}
    of = {"events": "gate", "both_events": "gate", "gate_events": "gate", "left_events": "left", "pair_events": "pair"}
    wanted = undisturbed(work)
    verdicts = [
        of_events(name, held(work, name, dsn, broker), wanted[name], numbers[camera]) for name, camera in of.items()
    ]
    played = {"annotated": "gate", "both_video": "gate", "gate_video": "gate", "left_video": "left"}
    for sink, camera in {**played, "pair_video": "pair"}.items():
        verdicts.append(of_video(sink, video_of(work, sink), numbers[camera], 2 if camera == "pair" else 1))
    return verdicts


def video_of(work: Path, sink: str) -> bytes:
    """Return a video that a sink has written: a file of MPEG-TS."""
    return b"".join(data for _, _, data in messages(work / "videos", sink=sink))
