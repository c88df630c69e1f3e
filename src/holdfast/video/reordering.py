"""When pictures are shown, where a container says only when they are decoded: AVI, and streams without a container."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import av
    from av.bitstream import BitStreamFilterContext

FORMATS = ("avi", "h264", "hevc")
CODECS = ("h264", "hevc")

_FOLLOWERS = 32
"""More than pictures may be held back for: 16, by both standards."""


class DisplayOrder:
    """Gives packets their pts, from the order of pictures that they carry themselves.

    Parameters
    ----------
    stream : av.VideoStream
        Of an open container.

    Notes
    -----
    FFmpeg's filter takes the decoding time of a later packet for each pts, and has none for the last packets.  So the
    first key packet follows them some times, and is left out of what comes out.
    """

    def __init__(self, stream: av.VideoStream) -> None:
        from av.bitstream import BitStreamFilterContext

        self._stream = stream
        self._filter: BitStreamFilterContext = BitStreamFilterContext("dts2pts", stream)
        self._first = b""
        self._count = 0
        self._next = 0
        self._duration = 1

    def feed(self, packet: av.Packet[av.stream.Stream]) -> Iterator[av.Packet[av.stream.Stream]]:
        """Take a packet, and yield those whose pts is known."""
        self._first = self._first or bytes(packet)
        packet.pts = None
        packet.dts = self._next if packet.dts is None else packet.dts
        self._duration = packet.duration or self._duration
        self._next = packet.dts + self._duration
        self._count += 1
        yield from self._out(packet)

    def end(self) -> Iterator[av.Packet[av.stream.Stream]]:
        """Yield the last packets."""
        if not self._count:
            return
        import av

        for number in range(_FOLLOWERS):
            follower: av.Packet[av.stream.Stream] = av.Packet(self._first)
            follower.dts, follower.duration, follower.is_keyframe = (
                self._next + number * self._duration,
                self._duration,
                True,
            )
            follower.stream = self._stream
            yield from self._out(follower)
        yield from self._out(None)

    def _out(self, packet: av.Packet[av.stream.Stream] | None) -> Iterator[av.Packet[av.stream.Stream]]:
        for found in self._filter.filter(packet):
            if self._count:
                self._count -= 1
                if found.pts is not None:  # of the last packets it takes the mean of two decoding times
                    found.pts -= (found.pts - self._next) % self._duration
                yield found
