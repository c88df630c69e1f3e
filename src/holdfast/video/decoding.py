"""``hf.video.decode``: the frames of encoded packets, from a time on, and the packets that give none.

A group of pictures begins at a packet that its row marks as a key.  It has a decoder of its own
(:mod:`holdfast.video.groups`).  In an *open* group packets follow the key packet that are shown before it and refer to
the group before: *leading* ones.  These are decoded by the decoder of that group, which therefore stays until no more
of them can come, and is given the key packet only if there are any.  So all that the calculator holds follows from the
packets of two groups, and it is restored by these.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, TypedDict

from holdfast.errors import InvalidPipeline
from holdfast.flow.building import NodeSpec, node
from holdfast.flow.calculators.packets import promise
from holdfast.flow.contract import Calculator, Contract
from holdfast.types.units import time_us
from holdfast.video.frames import VideoFrame
from holdfast.video.groups import Damaged, GroupDecoder
from holdfast.video.holes import hole_before
from holdfast.video.packets import EncodedPacket, GroupPlace, UnreadablePacket
from holdfast.video.payloads import message_of, packet_of

if TYPE_CHECKING:
    from holdfast.flow.context import Context

LEADING_MAX = 32
"""Packets among which the leading ones of a group are: twice of what H.264 and H.265 can reorder."""

_NO_GROUP = "no key packet came before it"
_FOLLOWS = "it follows a damaged or missing packet of its group"
_NO_FRAME = "the decoder gives no frame for it"
_LEADING = "it refers to the group before its key packet, which cannot be decoded"
_LATE = "its time is not above that of a frame before it"

CURES = {
    _NO_GROUP: "begin at a key packet: hf.read.byte_stream(start=...) does; nothing else is lost",
    _LEADING: "begin a group earlier, to have it; nothing else is lost",
    _LATE: "give the stream times that ascend: holdfast video import does",
    "": "nothing is to be done for what follows: decoding goes on at the next key packet; if many are damaged, look "
    "at the camera or the file",
}


class Reject(TypedDict):
    """Packets that gave no frame: a row of the output ``rejects``."""

    pts: int
    count: int
    reason: str
    cure: str
    data: bytes


@dataclass
class _Rejects:
    """What one input set has rejected: it leaves as one packet, since a stream has one of each time."""

    start: int | None
    pts: int = 0
    count: int = 0
    data: bytes = b""
    reasons: dict[str, None] = field(default_factory=dict)

    def add(self, pts: int, reason: str, data: bytes, count: int = 1) -> None:
        if self.start is not None and pts < self.start:
            return  # an earlier run has had it
        if not self.count:
            self.pts, self.data = pts, data
        self.count += count
        self.reasons[reason] = None

    def row(self) -> Reject:
        cures = dict.fromkeys(CURES.get(reason, CURES[""]) for reason in self.reasons)
        return Reject(
            pts=self.pts, count=self.count, reason="; ".join(self.reasons), cure="; ".join(cures), data=self.data
        )


@dataclass(frozen=True)
class DecodeOptions:
    """From when on (nanoseconds), and on how many threads."""

    start: int | None = None
    threads: int = 1


class DecodeVideo(Calculator):
    """Decodes packets; see :func:`decode`."""

    contract = Contract(
        inputs="packet",
        outputs={"frame": VideoFrame, "rejects": dict},
        process_timestamp_bounds=True,
        replay_from="is_key",
        replay_marks=2,
    )

    Options = DecodeOptions

    def __init__(self, options: DecodeOptions) -> None:
        super().__init__(options)
        self._group: GroupDecoder | None = None
        """Of the last key packet; None before the first one, and behind a damaged packet."""

        self._key: EncodedPacket | None = None
        """The last key packet that could be read."""

        self._why = _NO_GROUP
        """Why there is no group."""

        self._before: GroupDecoder | None = None
        """Of the group before, while packets may come that refer to it."""

        self._kept: list[EncodedPacket] = []
        """The packets that it would be given first: from the key packet on."""

        self._place: GroupPlace | None = None
        """That of the next packet, if none is missing; None: it is not known."""

        self._since = 0
        """Packets since the key packet, and that one."""

        self._ready: list[VideoFrame] = []
        """Frames of the group that wait for those of the group before."""

        self._end = 0
        """A time behind all that came, for what is rejected at the end."""

    def process(self, context: Context) -> None:
        """Decode a packet; where a time is known to have none, say what can still come."""
        t = context.timestamp
        if "packet" not in context:  # nothing may change: such a call is not repeated on restore
            self._promise(context, t + 1)
            return
        self._end = t + 1
        rejects = _Rejects(self.options.start)
        frames: list[VideoFrame] = []
        payload = context["packet"]
        is_key = False
        try:
            is_key, _ = message_of(payload)
            packet = packet_of(payload, t)
        except UnreadablePacket as error:
            frames = self._unreadable(t, str(error), payload, is_key, rejects)
        else:
            hole, self._place = hole_before(packet, self._place), packet.next_place
            frames = self._begin(packet, hole, rejects) if is_key else self._next(packet, hole, rejects)
        self._send(context, frames, rejects, t)
        if self.options.start is not None:
            promise(context, "frame", self.options.start)
        self._promise(context, t + 1)

    def close(self, context: Context) -> None:
        """Send what the decoders hold."""
        rejects = _Rejects(self.options.start)
        frames = self._end_before(rejects) + self._end_group(rejects)
        self._send(context, frames, rejects, max(self._end, context.output_bound("rejects")))

    def _promise(self, context: Context, bound: int) -> None:
        """Say what the input says, as far as it holds for frames: within a group they come later than packets."""
        if self._group is None and self._before is None:  # the next frame is that of a later key packet
            promise(context, "frame", bound)
        promise(context, "rejects", bound)

    def _send(self, context: Context, frames: list[VideoFrame], rejects: _Rejects, t: int) -> None:
        bound, start = context.output_bound("frame"), self.options.start
        for frame in frames:
            if start is not None and frame.pts < start:
                continue
            if frame.pts < bound:
                rejects.add(frame.pts, _LATE, b"")
                continue
            context.emit("frame", frame, at=frame.pts)
            bound = frame.pts + 1
        if rejects.reasons:
            context.emit("rejects", rejects.row(), at=t)

    # --- a group ----------------------------------------------------------------------------------

    def _begin(self, packet: EncodedPacket, hole: str, rejects: _Rejects) -> list[VideoFrame]:
        """Begin a group at its key packet."""
        frames = self._break_off(packet.pts, hole, b"", rejects, 0) if hole else self._end_before(rejects)
        self._before, self._kept = self._group, []
        self._key, self._group, self._why, self._since = packet, None, _FOLLOWS, 0
        try:
            group = GroupDecoder(packet.parameters, self.options.threads)
        except Damaged as error:
            rejects.add(packet.pts, str(error), packet.data)
            return frames + self._end_before(rejects)
        self._group = group
        return frames + self._go_on(packet, rejects)

    def _next(self, packet: EncodedPacket, hole: str, rejects: _Rejects) -> list[VideoFrame]:
        """Decode the next packet of a group, unless one is missing before it."""
        if hole and (self._group is not None or self._before is not None):
            return self._break_off(packet.pts, hole, packet.data, rejects)
        return self._go_on(packet, rejects)

    def _go_on(self, packet: EncodedPacket, rejects: _Rejects) -> list[VideoFrame]:
        """Decode the next packet of a group."""
        frames: list[VideoFrame] = []
        key = self._key
        is_leading = key is not None and packet.pts < key.pts
        if self._before is not None and is_leading:
            frames += self._lead(packet, rejects)
        elif self._before is not None:
            self._kept.append(packet)
        elif is_leading:
            rejects.add(packet.pts, _LEADING if self._group else self._why, packet.data)
        self._since += 1
        if key is not None and (_is_behind(packet, key) or self._since > LEADING_MAX):
            frames += self._end_before(rejects)
        if self._group is not None:
            self._decode(self._group, packet, rejects, is_expected=not is_leading)
        elif not is_leading:
            rejects.add(packet.pts, self._why, packet.data)
        if self._before is None:
            frames += self._ready
            self._ready = []
        return frames

    def _decode(self, group: GroupDecoder, packet: EncodedPacket, rejects: _Rejects, *, is_expected: bool) -> None:
        try:
            self._ready += group.feed(packet, is_expected=is_expected)
        except Damaged as error:
            if not is_expected:  # a leading packet, whose group before it has not seen
                return
            group.expected.pop(packet.pts, None)
            rejects.add(packet.pts, str(error), packet.data)
            self._ready += self._end_group(rejects)
            return
        if group.is_damaged:
            self._ready += self._end_group(rejects)

    def _lead(self, packet: EncodedPacket, rejects: _Rejects) -> list[VideoFrame]:
        """Decode a packet that refers to the group before."""
        before = self._before
        assert before is not None
        kept, self._kept = self._kept, []
        try:
            frames = [frame for each in kept for frame in before.feed(each, is_expected=False)]
            return frames + before.feed(packet)
        except Damaged as error:
            before.expected.pop(packet.pts, None)
            rejects.add(packet.pts, str(error), packet.data)
            return self._end_before(rejects)

    # --- its end ----------------------------------------------------------------------------------

    def _end_before(self, rejects: _Rejects) -> list[VideoFrame]:
        before, self._before, self._kept = self._before, None, []
        frames = _rest(before, rejects)
        ready, self._ready = self._ready, []
        return frames + ready

    def _end_group(self, rejects: _Rejects) -> list[VideoFrame]:
        group, self._group = self._group, None
        return _rest(group, rejects)

    def _unreadable(self, t: int, reason: str, payload: object, is_key: bool, rejects: _Rejects) -> list[VideoFrame]:
        """Reject what is no packet: of a group it is one that is missing."""
        data = payload.get("data") if isinstance(payload, dict) else None
        self._why = _FOLLOWS if is_key or self._key is not None else _NO_GROUP
        self._key, self._place = None if is_key else self._key, None
        return self._break_off(t, reason, data if isinstance(data, bytes) else b"", rejects)

    def _break_off(self, pts: int, reason: str, data: bytes, rejects: _Rejects, count: int = 1) -> list[VideoFrame]:
        """End all groups at a packet that cannot be decoded, or before one that is missing."""
        rejects.add(pts, reason, data, count)
        return self._end_before(rejects) + self._end_group(rejects)


def _is_behind(packet: EncodedPacket, key: EncodedPacket) -> bool:
    """Return whether nothing that is shown before the key packet comes behind a packet: no pts is below its dts."""
    return packet.pts > key.pts if packet.dts is None else packet.dts >= key.pts


def _rest(group: GroupDecoder | None, rejects: _Rejects) -> list[VideoFrame]:
    """End a decoder: return what it holds, and reject what it gives no frame for."""
    if group is None:
        return []
    frames = group.end()
    for pts, expected in sorted(group.expected.items()):
        rejects.add(pts, _NO_FRAME, expected.data, expected.count)
    return frames


def decode(start: int | str | datetime | None = None, *, threads: int = 1, name: str | None = None) -> NodeSpec:
    """Return a node that decodes packets: ``packets | hf.video.decode()``.

    Its input is ``packet``: a row with ``is_key`` and ``data`` (:class:`EncodedPacket` as bytes), at the time of
    :func:`message_times`.  It has two outputs:

    - ``frame``: :class:`VideoFrame`, each at its pts, in ascending order;
    - ``rejects``: packets that give no frame, at the time of the packet that shows it: a mapping of ``pts`` (of the
      first one), ``count``, ``reason``, ``cure`` and ``data`` (of the first one).

    Parameters
    ----------
    start : int, str or datetime, optional
        Frames before this time are left out, exactly: nanoseconds of Unix time, ISO 8601, or a datetime.
    threads : int
        Threads that decode the slices of a frame, where a stream has several; what leaves does not depend on it.
    name : str, optional
        The node's name.

    Raises
    ------
    InvalidPipeline
        If ``start`` is no time, or ``threads`` no number of threads.
    """
    if isinstance(start, bool) or not isinstance(threads, int) or threads < 1:
        raise InvalidPipeline(
            f"hf.video.decode(start={start!r}, threads={threads!r}) is not possible.",
            why="start is a time, and threads a number from 1.",
            do="write for instance hf.video.decode(start=1_767_225_600_000_000_000, threads=2).",
        )
    begin = start if start is None or isinstance(start, int) else time_us(start, argument="start") * 1000
    return node(DecodeVideo, DecodeOptions(begin, threads), name=name)
