"""A codec for simulations: whole numbers as pictures, groups of pictures, frames out of order, a clip, and its inverse.

It is as awkward as a real one.  A picture is made of others, so it is lost without them; packets stand in the order of
decoding, and the decoder holds a frame until the next one is known; what stands behind a key packet and is shown before
it (an *open* group) needs the group before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import holdfast as hf
from holdfast.flow import Calculator, Context, Contract

MODULUS = 10_007
STEP = 10
"""Ticks from frame to frame."""

GROUP = 4
Packet = dict[str, Any]


def filmed(camera: str, count: int, first: int = 0) -> Iterator[Packet]:
    """Yield the rows of a camera's packets, in the order of decoding: one picture of two needs its neighbours."""
    newest = first - 1
    for number in _order_of_decoding(count):
        refs = _refs(number, count)
        value = (picture_of(camera, number) - sum(picture_of(camera, ref) for ref in refs)) % MODULUS
        pts = first + number * STEP
        newest = pts if pts > newest else newest + 1
        said = {"pts": pts, "value": value, "refs": [first + ref * STEP for ref in refs]}
        yield {"k": camera, "t": newest, "is_key": not refs, "data": json.dumps(said)}


def picture_of(camera: str, number: int) -> int:
    """Return a picture."""
    return (ord(camera) * 7919 + number * number * 31 + number * 613) % MODULUS


def _order_of_decoding(count: int) -> Iterator[int]:
    """0, 2, 1, 4, 3, ...: every other frame before the one that it is shown after."""
    yield from range(min(count, 1))
    for number in range(1, count, 2):
        if number + 1 < count:
            yield number + 1
        yield number


def _refs(number: int, count: int) -> Sequence[int]:
    if number % GROUP == 0:
        return ()
    if number % 2 == 0:
        return (number - 2,)
    return (number - 1, number + 1) if number + 1 < count else (number - 1,)


class FakeDecode(Calculator):
    """Makes pictures of packets, from a key packet on; gives those at or after ``start``, at their pts."""

    @dataclass(frozen=True)
    class Options:
        """Where to begin."""

        start: int | None = None

    contract: ClassVar[Contract] = Contract(
        inputs={"packet": dict},
        outputs={"frame": int},
        process_timestamp_bounds=True,
        replay_from="is_key",
        replay_marks=2,
    )

    def open(self, context: Context) -> None:
        self._pictures: dict[int, int] = {}
        self._held: list[tuple[int, int]] = []

    def process(self, context: Context) -> None:
        if "packet" not in context:
            if not self._pictures:  # the first packet has a key's time, and so has what is shown first
                context.raise_bound("frame", context.timestamp + 1)
            return
        said = json.loads(context["packet"]["data"])
        if not all(ref in self._pictures for ref in said["refs"]):
            return  # behind the key packet at which reading began, shown before it
        picture = (said["value"] + sum(self._pictures[ref] for ref in said["refs"])) % MODULUS
        self._pictures = dict([*self._pictures.items(), (said["pts"], picture)][-4:])
        self._held = sorted([*self._held, (said["pts"], picture)])
        while len(self._held) > 1:
            self._give(context, *self._held.pop(0))

    def close(self, context: Context) -> None:
        for held in self._held:
            self._give(context, *held)

    def _give(self, context: Context, pts: int, picture: int) -> None:
        if self.options.start is None or pts >= self.options.start:
            context.emit("frame", picture, at=pts)
        context.raise_bound("frame", pts + 1)


class FakeEncode(Calculator):
    """Makes packets of pictures: each is the difference to the one before, but for the first of a group.

    It is inexact, and how depends on the group: what was encoded for one cannot be played in another.  It holds nothing
    over a commit: after ``save`` a new group begins.
    """

    contract: ClassVar[Contract] = Contract(inputs={"frame": int}, outputs={"packet": dict}, timestamp_offset=0)

    def open(self, context: Context) -> None:
        self._before: int | None = None
        self._began = 0
        self._left = 0

    def process(self, context: Context) -> None:
        picture, is_key = context["frame"], self._before is None or self._left == 0
        self._left = GROUP - 1 if is_key else self._left - 1
        self._began = context.timestamp if is_key else self._began
        data = picture if is_key else picture - (self._before or 0) + error_of(self._began)
        self._before = picture
        context.emit("packet", {"is_key": is_key, "data": data % MODULUS})

    def save(self) -> Mapping[str, Any]:
        self._before = None
        return {}


class FakeMux(Calculator):
    """Numbers packets, as a container does: its count is state."""

    contract: ClassVar[Contract] = Contract(inputs={"packet": dict}, outputs={"muxed": dict}, timestamp_offset=0)

    def open(self, context: Context) -> None:
        self._count = 0

    def process(self, context: Context) -> None:
        context.emit("muxed", {**context["packet"], "continuity": self._count})
        self._count += 1

    def save(self) -> Mapping[str, Any]:
        return {"count": self._count}

    def restore(self, saved: Mapping[str, Any]) -> None:
        self._count = saved["count"]


class FakeTrack(Calculator):
    """Sums what it has seen."""

    contract: ClassVar[Contract] = Contract(inputs={"frame": int}, outputs={"event": dict}, timestamp_offset=0)

    def open(self, context: Context) -> None:
        self._sum = 0

    def process(self, context: Context) -> None:
        self._sum = (self._sum + context["frame"]) % MODULUS
        context.emit("event", {"seen": context["frame"], "total": self._sum})

    def save(self) -> Mapping[str, Any]:
        return {"sum": self._sum}

    def restore(self, saved: Mapping[str, Any]) -> None:
        self._sum = saved["sum"]


def drawn(frame: int) -> int:
    """Draw on a picture."""
    return (frame + 1) % MODULUS


def graph_of(start: int | None = None) -> hf.flow.Graph:
    """Return one decode, an event for each frame, and a video of what was drawn."""
    graph = hf.flow.Graph("seen")
    frame = graph.input("packet", dict) | hf.flow.node(FakeDecode, FakeDecode.Options(start))
    graph.output("event", frame | hf.flow.node(FakeTrack))
    encoded = {"frame": {"frame": frame} | hf.flow.node(drawn)} | hf.flow.node(FakeEncode)
    graph.output("video", encoded | hf.flow.node(FakeMux))
    return graph


def viewed(rows: Iterable[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Play a video, as any player does, as it stands: camera, time, picture and number of each frame.

    A picture that cannot be decoded is None.
    """
    found: list[tuple[Any, ...]] = []
    began: dict[str, int] = {}
    before: dict[str, int] = {}
    for camera, time, is_key, data, continuity in rows:
        if is_key:
            began[camera], before[camera] = time, data
        elif camera in before:
            before[camera] = (before[camera] + data - error_of(began[camera])) % MODULUS
        found.append((camera, time, before.get(camera), continuity))
    return found


def error_of(began: int) -> int:
    """Return what an encoder adds to each difference of the group that began at a time."""
    return began % 997
