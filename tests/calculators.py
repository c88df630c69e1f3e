"""Calculators and flowgraphs that tests of pipelines share."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any, ClassVar

import holdfast as hf
from holdfast.flow import Calculator, Context, Contract, Graph, node
from holdfast.flow.calculators import FlowLimiter


class Total(Calculator):
    """Has state: the total so far."""

    contract: ClassVar[Contract] = Contract(inputs="value", outputs="total", timestamp_offset=0)

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self._total = 0

    def process(self, context: Context) -> None:
        self._total += context["value"]
        context.emit("total", self._total)

    def save(self) -> Mapping[str, Any]:
        return {"total": self._total}

    def restore(self, saved: Mapping[str, Any]) -> None:
        self._total = saved["total"]


class Decoder(Calculator):
    """Like a decoder: each frame is made of the one before, from a key frame on, and nothing of it can be saved.

    A frame is a whole number; each fourth of a key, by its number, is a key frame.
    """

    contract: ClassVar[Contract] = Contract(
        inputs={"frame": dict}, outputs={"image": int}, timestamp_offset=0, replay_from="is_key"
    )

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self._image: int | None = None

    def process(self, context: Context) -> None:
        frame = context["frame"]
        if frame["is_key"]:
            self._image = frame["v"]
        elif self._image is None:
            return
        else:
            self._image = (31 * self._image + frame["v"]) % 1_000_003
        context.emit("image", self._image)


@dataclass
class Track:
    """What a tracker holds of something."""

    number: int
    seen: int
    last: int


class Tracker(Calculator):
    """Gives values that are alike one number, and says how often each was seen."""

    contract: ClassVar[Contract] = Contract(inputs="box", outputs="track", timestamp_offset=0)

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self._tracks: dict[int, Track] = {}

    def process(self, context: Context) -> None:
        box = context["box"]
        track = self._tracks.setdefault(box % 7, Track(len(self._tracks), 0, 0))
        track.seen, track.last = track.seen + 1, context.timestamp
        context.emit("track", 100 * track.number + track.seen)

    def save(self) -> Mapping[str, Any]:
        return {"tracks": {key: astuple(track) for key, track in self._tracks.items()}}

    def restore(self, saved: Mapping[str, Any]) -> None:
        self._tracks = {key: Track(*fields) for key, fields in saved["tracks"].items()}


class Odd(Calculator):
    """Passes odd values; for the others only the bound rises."""

    contract: ClassVar[Contract] = Contract(inputs="value", outputs="odd", timestamp_offset=0, is_pure=True)

    def process(self, context: Context) -> None:
        if context["value"] % 2:
            context.emit("odd", context["value"])


class Later(Calculator):
    """Gives each value some time later."""

    @dataclass(frozen=True)
    class Options:
        """By how much."""

        by: int = 3

    @classmethod
    def contract_of(cls, options: Options) -> Contract:
        return Contract(inputs="value", outputs="later", timestamp_offset=options.by, is_pure=True)

    def process(self, context: Context) -> None:
        context.emit("later", context["value"], context.timestamp + self.options.by)


class Batched(Calculator):
    """Is given three input sets at a time."""

    contract: ClassVar[Contract] = Contract(
        inputs="value", outputs="same", timestamp_offset=0, batch_size=3, is_pure=True
    )

    def process(self, context: Context) -> None:
        context.emit("same", context["value"])


class Both(Calculator):
    """Puts what two inputs have at a time into one number."""

    contract: ClassVar[Contract] = Contract(inputs=("left", "right"), outputs="both", timestamp_offset=0, is_pure=True)

    def process(self, context: Context) -> None:
        context.emit("both", 2 * context.get("left", 0) + 3 * context.get("right", 0) + 1)


class Clock(Calculator):
    """Gives real time."""

    contract: ClassVar[Contract] = Contract(
        inputs="value", outputs="now", timestamp_offset=0, is_pure=True, reads_clock=True
    )

    def process(self, context: Context) -> None:
        context.emit("now", context.now())


class Failing(Calculator):
    """Raises at a value."""

    contract: ClassVar[Contract] = Contract(inputs="value", outputs="same", timestamp_offset=0, is_pure=True)

    def process(self, context: Context) -> None:
        if context["value"] == 13:
            raise ValueError("thirteen")
        context.emit("same", context["value"])


SINGLE = (Total, Tracker, Odd, Later, Batched)
"""What has one input and one output, of whole numbers."""

POLICIES = (None, None, hf.policy.settled(), hf.policy.barrier(), hf.policy.early_close())
"""Under which what leaves does not depend on arrival."""


def random_graph(seed: int, inputs: int) -> Graph:
    """Return a graph of whole numbers whose outputs, one or two, do not depend on arrival."""
    chance = random.Random(f"{seed} graph")
    graph = Graph(f"random{seed}", max_queue_size=chance.choice((1, 2, 100, -1)))
    streams = [graph.input(f"in{number}", int) for number in range(inputs)]
    for number in range(chance.randint(3, 7)):
        if chance.random() < 0.4 and len(streams) > 1:
            left, right = chance.sample(streams, 2)
            made = {"left": left, "right": right} | node(Both, policy=chance.choice(POLICIES), name=f"n{number}")
        else:
            made = chance.choice(streams[-4:]) | node(chance.choice(SINGLE), name=f"n{number}")
        streams.append(made)
    graph.output("main", streams[-1])
    if chance.random() < 0.5:
        graph.output("side", streams[-2])
    return graph


def camera_graph(*, tracker: str = "tracker", has_count: bool = False, has_poses: bool = False) -> Graph:
    """Return a graph of six calculators or seven: frames in, tracks and thumbnails out.

    A decoder that is replayed; a limiter whose loop is in the graph; a detector, a tracker with state, a join and a
    thumbnail maker.  With a stream of poses frames wait in the limiter until theirs is known.
    """
    graph = Graph("camera")
    images = graph.input("frames") | node(Decoder, name="decoder")
    finished = graph.back_edge("finished")
    options = FlowLimiter.Options(max_in_flight=2, max_in_queue=50)
    limited = {"main": images, "finished": finished} | node(FlowLimiter, options, name="limiter")
    boxes = limited["main"] | node(Odd, name="detector")
    tracks = boxes | node(Tracker, name=tracker)
    right = graph.input("poses") if has_poses else tracks
    joined = {"left": limited["main"], "right": right} | node(Both, name="renderer")
    finished.comes_from(joined)
    graph.output("tracks", tracks)
    thumbs = joined | node(Batched, name="thumbnails")
    graph.output("thumbs", thumbs | node(Total, name="numbered") if has_count else thumbs)
    return graph


def frames_of(keys: str, count: int, seed: int) -> list[dict[str, Any]]:
    """Return frames of some cameras, interleaved; times of each ascend."""
    chance = random.Random(f"{seed} frames")
    now = dict.fromkeys(keys, 0)
    number = dict.fromkeys(keys, 0)
    rows = []
    for _ in range(count):
        key = chance.choice(keys)
        now[key] += chance.randint(1, 3)
        is_key = number[key] % 4 == 0 or (number[key] > 20 and chance.random() < 0.1)
        if 8 < number[key] < 20:
            is_key = False  # none in many epochs
        number[key] += 1
        rows.append({"k": key, "t": now[key], "is_key": is_key, "v": chance.randint(0, 999)})
    return rows
