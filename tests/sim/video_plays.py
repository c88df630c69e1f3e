"""The pipelines of examples/video with a codec that is none, and what their sinks must hold (design/0015, 0045)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import holdfast as hf
from holdfast.testing import World, simulated_sink
from holdfast.testing.simulation.world import PIPELINE, SinkUnderTest
from tests.fake_codec import MODULUS, STEP, filmed, graph_of, picture_of, viewed
from tests.sim.pts_plays import CLOSED, NANOSECOND, Auditor, Play, Rows, Shown, View, Wanted, simulated_view

CAMERAS = "ab"


@dataclass
class VideoPlay(Play):
    """A play whose video is judged by what a player shows: where groups begin depends on the epochs."""

    def world(
        self, seed: int, *, commit_every: int | None = None, max_rows_per_epoch: int = 5
    ) -> tuple[World, Auditor]:
        sinks = [simulated_sink("events"), simulated_sink("videos")]
        views = {sink.name: played(sink) for sink in sinks}
        return self.world_of(sinks, views, seed, commit_every=commit_every, max_rows_per_epoch=max_rows_per_epoch)

    def _judge(self, visible: Mapping[str, Rows]) -> list[str]:
        return super()._judge({**visible, "videos": viewed(visible["videos"])})


def played(sink: SinkUnderTest) -> View:
    """Return how a sink is looked at; that of videos by a player."""
    look = simulated_view(sink)

    def looked() -> Shown:
        shown = look()
        return Shown(shown.pts, viewed(shown.rows), shown.is_whole) if sink.name == "videos" else shown

    return looked


def play(count: int = 14, start: int | None = None) -> VideoPlay:
    """Return cameras, one decode each, events and video in one epoch, committed at pts."""

    def pipeline() -> hf.Pipeline:
        packets = hf.read.rows(
            [], schema="k STRING, t BIGINT, is_key BOOLEAN, data STRING", timestamp="t", name="packets"
        )
        made: Any = hf.flow(
            {"packet": packets},
            graph_of(start),
            by="k",
            outputs={
                "event": "seen BIGINT, total BIGINT",
                "video": "is_key BOOLEAN, data BIGINT, continuity BIGINT",
            },
            name="seen",
        )
        return hf.Pipeline(
            PIPELINE,
            made["event"] | hf.write.memory(name="events"),
            made["video"] | hf.write.memory(name="videos"),
            commit_at="pts",
        )

    lines = [list(filmed(camera, count, NANOSECOND)) for camera in CAMERAS]
    events: list[Any] = [("packets", row) for rows in zip(*lines, strict=True) for row in rows]
    return VideoPlay(pipeline, [*events, ("packets", None)], wanted_from(count, start))


def wanted_from(count: int, start: int | None) -> dict[str, Wanted]:
    """Return what each sink must hold before a pts."""
    seen: list[tuple[Any, ...]] = []
    shown: list[tuple[Any, ...]] = []
    for camera in CAMERAS:
        frames = [(NANOSECOND + number * STEP, picture_of(camera, number)) for number in range(count)]
        total = 0
        for continuity, (pts, picture) in enumerate(frame for frame in frames if start is None or frame[0] >= start):
            total = (total + picture) % MODULUS
            seen.append((camera, pts, picture, total))
            shown.append((camera, pts, (picture + 1) % MODULUS, continuity))
    return {
        "events": lambda pts: Counter(row for row in seen if row[1] < pts or pts == CLOSED),
        "videos": lambda pts: Counter(row for row in shown if row[1] < pts or pts == CLOSED),
    }
