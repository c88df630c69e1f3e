"""``hf.video.mux`` and ``hf.video.demux``: encoded packets into the bytes of a container, message by message, and back.

The messages of a stream, one after the other from a key message on, are a file that players open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.errors import InvalidPipeline
from holdfast.flow.building import NodeSpec, node
from holdfast.flow.calculators.packets import promise
from holdfast.flow.contract import Calculator, Contract, Saved
from holdfast.video.bitstream import UnitForm, form_and_sets, with_start_codes
from holdfast.video.fragments import NotMuxed, fragment, packets_in
from holdfast.video.holes import WholeGroups
from holdfast.video.packets import EncodedPacket, UnreadablePacket, message_times
from holdfast.video.payloads import Message, message_of, packet_of, payload_of
from holdfast.video.transport import STREAM_TYPES, TransportWriter

if TYPE_CHECKING:
    from holdfast.flow.context import Context

CONTAINERS = ("mpegts", "mp4")


@dataclass(frozen=True)
class ContainerOptions:
    """Which container: ``"mpegts"`` or ``"mp4"``."""

    container: str = "mpegts"

    def __post_init__(self) -> None:
        if self.container not in CONTAINERS:
            raise InvalidPipeline(
                f"container={self.container!r} is none that is written or read here.",
                why=f"they are {', '.join(CONTAINERS)}.",
                do='write hf.video.mux(container="mp4").',
            )


class MuxTransport(Calculator):
    """Puts packets into MPEG-TS: a message for each; see :func:`mux`.

    Its state are the continuity counters, how the open group has its units, and whether it is whole.
    """

    contract = Contract(inputs="packet", outputs={"message": dict}, timestamp_offset=0)

    def __init__(self, options: object = None) -> None:
        super().__init__(options)
        self._writer = TransportWriter({})
        self._form: UnitForm | None = None
        self._groups = WholeGroups()

    def process(self, context: Context) -> None:
        """Send a packet."""
        packet = packet_of(context["packet"])
        if not self._groups.take(packet):
            return
        sets, tables = b"", b""
        if packet.is_key:
            self._form, sets = _form_of(packet)
            tables = self._writer.tables(self._form.codec)
        assert self._form is not None
        data = tables + self._writer.packet(with_start_codes(packet.data, self._form, sets), packet)
        context.emit("message", Message(is_key=packet.is_key, data=data))

    def save(self) -> Saved:
        """Return them."""
        form = None if self._form is None else [self._form.codec, self._form.length_size]
        return {"counters": dict(self._writer.counters), "form": form, "groups": self._groups.save()}

    def restore(self, saved: Saved) -> None:
        """Take them."""
        self._writer = TransportWriter(saved["counters"])
        self._form = None if saved["form"] is None else UnitForm(*saved["form"])
        self._groups = WholeGroups(saved["groups"])


def _form_of(packet: EncodedPacket) -> tuple[UnitForm, bytes]:
    parameters = packet.parameters
    if parameters is None or parameters.codec not in STREAM_TYPES:
        raise InvalidPipeline(
            f"MPEG-TS has no {'unknown codec' if parameters is None else parameters.codec} here.",
            why=f"it carries {', '.join(STREAM_TYPES)}, as the parameters of a key packet say.",
            do='write hf.video.mux(container="mp4"), or encode to one of these.',
        )
    return form_and_sets(parameters)


class MuxFragments(Calculator):
    """Puts groups of pictures into fragments of MP4, a message for each; see :func:`mux`.

    Its state are the packets of the open group, the number of its fragment, and whether it is whole.
    """

    contract = Contract(inputs="packet", outputs={"message": dict})

    def __init__(self, options: object = None) -> None:
        super().__init__(options)
        self._open: list[bytes] = []
        self._begin = 0
        self._number = 1
        self._groups = WholeGroups()

    def process(self, context: Context) -> None:
        """Keep a packet; at a key packet send the group before."""
        packet = packet_of(context["packet"])
        can_decode = self._groups.take(packet)
        if packet.is_key:
            self._send(context, packet.decoding_time)
            self._open, self._begin = [packet.to_bytes()], context.timestamp
        elif can_decode:
            self._open.append(packet.to_bytes())
        promise(context, "message", self._begin if self._open else context.timestamp + 1)

    def close(self, context: Context) -> None:
        """Send the last group."""
        self._send(context, None)

    def _send(self, context: Context, end: int | None) -> None:
        if not self._open:
            return
        packets = [EncodedPacket.from_bytes(each) for each in self._open]
        parameters = packets[0].parameters
        if parameters is None:
            raise InvalidPipeline(
                "A key packet has no parameters of its codec.",
                why="an MP4 begins with them.",
                do="give each key packet its parameters, as hf.video.encode does.",
            )
        data = fragment(packets, parameters, self._number, end)
        context.emit("message", Message(is_key=True, data=data), at=self._begin)
        self._number += 1
        self._open = []

    def save(self) -> Saved:
        """Return the open group."""
        groups = self._groups.save()
        return {"open": list(self._open), "begin": self._begin, "number": self._number, "groups": groups}

    def restore(self, saved: Saved) -> None:
        """Take it."""
        self._open, self._begin, self._number = saved["open"], saved["begin"], saved["number"]
        self._groups = WholeGroups(saved["groups"])


class DemuxVideo(Calculator):
    """Gives the packets of a container; see :func:`demux`.

    Its state are the messages since the last key message.
    """

    contract = Contract(inputs="message", outputs={"packet": dict, "rejects": dict})

    Options = ContainerOptions

    def __init__(self, options: ContainerOptions) -> None:
        super().__init__(options)
        self._open: list[bytes] = []
        self._begin = 0
        self._last: int | None = None

    def process(self, context: Context) -> None:
        """Keep a message; at a key message send the packets of those before."""
        t = context.timestamp
        reason, data = "", b""
        try:
            is_key, data = message_of(context["message"])
        except UnreadablePacket as error:
            reason = str(error)
        else:
            if is_key:
                self._send(context, t)
                self._begin = t
            if is_key or self._open:
                self._open.append(data)
            else:
                reason = "no key message came before it"
        if reason:
            context.emit("rejects", _reject(t, reason, data))
        promise(context, "packet", self._begin if self._open else t + 1)
        promise(context, "rejects", t + 1)

    def close(self, context: Context) -> None:
        """Send the packets of the last messages."""
        self._send(context, context.output_bound("rejects"))

    def _send(self, context: Context, t: int) -> None:
        data, self._open = b"".join(self._open), []
        if not data:
            return
        try:
            packets = packets_in(data, self.options.container, self._begin)
        except NotMuxed as error:
            context.emit("rejects", _reject(self._begin, str(error), data), at=t)
            return
        for at, packet in message_times(packets, self._last):
            context.emit("packet", payload_of(packet), at=at)
            self._last = at

    def save(self) -> Saved:
        """Return the messages."""
        return {"open": list(self._open), "begin": self._begin, "last": self._last}

    def restore(self, saved: Saved) -> None:
        """Take them."""
        self._open, self._begin, self._last = saved["open"], saved["begin"], saved["last"]


def _reject(pts: int, reason: str, data: bytes) -> Mapping[str, object]:
    cure = "begin at a key message; if many are damaged, look at what wrote them"
    return {"pts": pts, "count": 1, "reason": reason, "cure": cure, "data": data}


def mux(container: str = "mpegts", *, name: str | None = None) -> NodeSpec:
    """Return a node that puts packets into a container: ``packets | hf.video.mux()``.

    Its input is ``packet``, its output ``message``: a mapping of ``is_key`` and ``data``, bytes of the container.  The
    messages of a stream, one after the other from a key message on, are a file.  Packets that cannot be decoded are
    left out: those before the first key packet, and those of a group behind a missing one.

    Parameters
    ----------
    container : {"mpegts", "mp4"}
        MPEG-TS: a message for each packet, at its time; each key message has the tables.  MP4: a message for each
        group of pictures, at the time of its key packet, when the next one comes; each has the head of the file.
    name : str, optional
        The node's name.

    Raises
    ------
    InvalidPipeline
        If there is no such container.  While packets come: if their codec does not go into it.
    """
    options = ContainerOptions(container)
    return node(MuxTransport if options.container == "mpegts" else MuxFragments, name=name)


def demux(container: str = "mpegts", *, name: str | None = None) -> NodeSpec:
    """Return a node that gives the packets of a container: ``messages | hf.video.demux()``.

    Its input is ``message``: a row with ``is_key`` and ``data``.  What is between two key messages is read as a file
    when the second one comes.  Its outputs are ``packet``, at the times of :func:`message_times`, and ``rejects``:
    messages that cannot be read, as those of :func:`decode`.

    Parameters
    ----------
    container : {"mpegts", "mp4"}
        Which it is.
    name : str, optional
        The node's name.

    Raises
    ------
    InvalidPipeline
        If there is no such container.
    """
    return node(DemuxVideo, ContainerOptions(container), name=name)
