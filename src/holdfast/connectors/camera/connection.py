"""One connection to a camera: its packets, with times that follow those that were received before.

Times of a connection go by the camera's own clock, from the time of its first packet on: when it arrived here, or what
the camera says (RTCP).  So they are as even as the camera makes them, and not as the network delivers them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from holdfast.ports import Clock
from holdfast.video.containers import ContainerReader, is_address
from holdfast.video.holes import WholeGroups
from holdfast.video.packets import EncodedPacket, message_times
from holdfast.video.timing import utc

log = logging.getLogger("holdfast.connectors.camera")

ClockKind = Literal["arrival", "ntp"]

PROBED_US = 1_000_000
"""For so long, at most, FFmpeg looks at what arrives before it hands out the first packet."""

SENDER_WAIT_US = 10_000_000
"""So long a connection waits for the camera to say its time: RTCP says it about every five seconds."""


@dataclass(frozen=True)
class CameraAddress:
    """Where a camera is, and how it is read.

    Parameters
    ----------
    address : str
        An address, a device or a file.
    options : mapping of str to str
        Options of FFmpeg.
    timeout_s : float
        How long it may take to answer, and to send something.
    clock : {"arrival", "ntp"}
        Where times come from.
    """

    address: str
    options: dict[str, str] = field(default_factory=dict)
    timeout_s: float = 10.0
    clock: ClockKind = "arrival"

    def __repr__(self) -> str:
        return f"CameraAddress({self.masked_address!r})"

    @property
    def masked_address(self) -> str:
        """The address without secrets."""
        from holdfast.masking import masked

        return masked(self.address)

    @property
    def is_file(self) -> bool:
        """Whether it is a file, which ends, and can be read again."""
        return not is_address(self.address)

    @property
    def _container(self) -> str | None:
        return "v4l2" if self.address.startswith("/dev/") else None

    @property
    def _all_options(self) -> dict[str, str]:
        found = {"analyzeduration": str(PROBED_US)}
        if self.address.startswith(("rtsp://", "rtsps://")):
            found["rtsp_transport"] = "tcp"
        elif self._container:
            found["input_format"] = "mjpeg"
        return {**found, **self.options}

    def open(self, clock: Callable[[int | None], int | None] | None) -> ContainerReader:
        """Open a connection, or the file."""
        if self.is_file:
            return ContainerReader(self.address)
        return ContainerReader(
            self.address,
            options=self._all_options,
            container=self._container,
            timeout_s=self.timeout_s,
            clock=clock,
        )


@dataclass(frozen=True)
class Received:
    """A packet as it goes into the journal.

    Parameters
    ----------
    at : int
        Its time in the stream, nanoseconds of Unix time.
    packet : EncodedPacket
        The packet.
    gap : int or None
        Of the first packet after a gap: for how long nothing was received before it, nanoseconds.
    """

    at: int
    packet: EncodedPacket
    gap: int | None = None


@dataclass(frozen=True)
class Reached:
    """How far a stream is: the time of its last packet, and where that one's picture ends."""

    at: int
    end: int


def received_from(address: CameraAddress, after: Reached | None, clock: Clock) -> Iterator[Received]:
    """Yield what comes over one connection: from a key packet on, and later than what came before.

    Parameters
    ----------
    address : CameraAddress
        The camera.
    after : Reached or None
        How far the stream is.
    clock : Clock
        When packets arrive.

    Raises
    ------
    Unavailable
        If it does not answer, or breaks off.
    """
    if address.is_file:
        yield from _of_file(address, after)
        return
    opened_us = clock.now_us()

    def beginning(sender: int | None) -> int | None:
        now_us = clock.now_us()
        if address.clock == "arrival":
            found = max(opened_us, now_us - PROBED_US) * 1000
        elif sender is None and now_us - opened_us < SENDER_WAIT_US:
            return None
        else:
            found = now_us * 1000 if sender is None else sender
        return found if after is None else max(found, after.end, after.at + 1)

    with address.open(beginning) as reader:
        is_first, break_count, last = True, 0, after
        for at, packet in message_times(_decodable(reader, address), None if after is None else after.at):
            is_first, break_count = is_first or _breaks(reader) > break_count, _breaks(reader)
            gap = max(0, at - last.end) if is_first and last is not None else None
            is_first, last = False, Reached(at, max(at, packet.pts + packet.duration))
            yield Received(at, packet, gap)


def _decodable(reader: ContainerReader, address: CameraAddress) -> Iterator[EncodedPacket]:
    """Yield packets without those that cannot be decoded after a gap."""
    groups, jump_count, break_count = WholeGroups(), 0, 0
    for packet in reader.packets():
        if _breaks(reader) > break_count:
            what = "times jump back" if reader.jump_count > jump_count else "packets are missing"
            log.warning("%s: %s at %s; a gap follows.", address.masked_address, what, utc(packet.pts))
            groups, jump_count, break_count = WholeGroups(), reader.jump_count, _breaks(reader)
        if groups.take(packet):
            yield packet


def _breaks(reader: ContainerReader) -> int:
    return reader.jump_count + reader.loss_count


def _of_file(address: CameraAddress, after: Reached | None) -> Iterator[Received]:
    """Yield what of a file is not in the journal yet: its times are the same whenever it is read."""
    with address.open(None) as reader:
        for at, packet in message_times(reader.packets()):
            if after is None or at > after.at:
                yield Received(at, packet)
