"""The times of a container's packets: from its ticks to nanoseconds of Unix time, and what is repaired of them.

A container counts ticks from wherever it likes.  A *run* of times is a stretch in which they ascend: its first picture
has the time of its origin.  Where times jump back (files that were joined, a camera that was restarted), another run
begins where the last one ended, so that times of a stream ascend whatever the file says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction

from holdfast.video.packets import EncodedPacket

SECOND_NS = 10**9
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

BACK_MAX_NS = SECOND_NS
"""How far a decoding time may be below the last one and still be an error of the muxer, which is repaired."""


def nanoseconds(ticks: int, time_base: Fraction) -> int:
    """Return ticks in nanoseconds, to the nearest.

    Examples
    --------
    >>> nanoseconds(3003, Fraction(1, 90000))
    33366667
    """
    scaled, divisor = ticks * time_base.numerator * SECOND_NS, time_base.denominator
    return (2 * scaled + divisor) // (2 * divisor)


def utc(at: int) -> str:
    """Return a time, nanoseconds of Unix time, as text.

    Examples
    --------
    >>> utc(1767225600_040000000), utc(0)
    ('2026-01-01T00:00:00.040Z', '1970-01-01T00:00:00Z')
    """
    seconds, rest = divmod(at, SECOND_NS)
    digits = 0 if not rest else 3 if rest % 10**6 == 0 else 6 if rest % 1000 == 0 else 9
    fraction = f".{rest:09}"[: digits + 1] if digits else ""
    return f"{EPOCH + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S}{fraction}Z"


@dataclass(frozen=True)
class Ticks:
    """What a container says of a packet: pts, dts and duration in its ticks; None where it says nothing."""

    pts: int | None
    dts: int | None
    duration: int
    is_key: bool


@dataclass(frozen=True)
class PacketTimes:
    """The same in nanoseconds of Unix time."""

    pts: int
    dts: int | None
    duration: int


class RunsOfTimes:
    """Gives the packets of one stream of a container their times, in the order of decoding.

    Parameters
    ----------
    time_base : Fraction
        Seconds of a tick.
    first : int
        The tick of the first picture.
    origin : int
        Its time, nanoseconds of Unix time.
    another_origin : callable, optional
        Returns the time at which another run begins, at least: it does not begin before the last one ended.
    """

    def __init__(
        self, time_base: Fraction, first: int, origin: int, *, another_origin: Callable[[], int] | None = None
    ) -> None:
        self._time_base = time_base
        self._first = first
        self._origin = origin
        self._another_origin = another_origin
        self._last_dts: int | None = None
        self.jump_count = 0
        """How often times jumped back."""
        self.repair_count = 0
        """Packets whose decoding time was not above the last one, and was left out or raised."""
        self.end = origin
        """Where the pictures so far end."""
        self.highest: int | None = None
        """When the last picture so far is shown."""

    def times(self, ticks: Ticks) -> PacketTimes | None:
        """Return the times of the next packet; None where the container says neither pts nor dts."""
        shown = ticks.dts if ticks.pts is None else ticks.pts
        if shown is None:
            return None
        pts, dts = self._time(shown), None if ticks.dts is None else self._time(ticks.dts)
        if self._jumps_back(pts, dts, is_key=ticks.is_key):
            self.jump_count += 1
            self._first = shown
            self._origin = self.end if self._another_origin is None else max(self.end, self._another_origin())
            self._last_dts = None
            pts, dts = self._origin, None if ticks.dts is None else self._time(ticks.dts)
        duration = nanoseconds(ticks.duration, self._time_base)
        self.highest = pts if self.highest is None else max(self.highest, pts)
        self.end = max(self.end, pts + duration)
        return PacketTimes(pts, self._decoding_time(pts, dts), duration)

    def _time(self, ticks: int) -> int:
        return self._origin + nanoseconds(ticks - self._first, self._time_base)

    def _jumps_back(self, pts: int, dts: int | None, *, is_key: bool) -> bool:
        # All that is decoded before a key packet is shown before it, in open groups of pictures, too.
        if is_key and self.highest is not None and pts < self.highest:
            return True
        return dts is not None and self._last_dts is not None and dts < self._last_dts - BACK_MAX_NS

    def _decoding_time(self, pts: int, dts: int | None) -> int | None:
        """Return a decoding time above the last one and not after pts; None where there is none."""
        if dts is None:
            return None
        if dts > pts or (self._last_dts is not None and dts <= self._last_dts):
            self.repair_count += 1
            dts = pts if self._last_dts is None else self._last_dts + 1
            if dts > pts:
                return None
        self._last_dts = dts
        return dts


def with_decoding_times(packets: Iterable[EncodedPacket]) -> Iterator[EncodedPacket]:
    """Give packets the decoding times that they lack, as a muxer needs them: ascending, and none after its pts.

    A group of pictures in which one is missing gets all of them: its presentation times in order, and so much earlier
    that each picture is decoded before it is shown.

    Parameters
    ----------
    packets : iterable of EncodedPacket
        In the order of decoding.
    """
    last: int | None = None
    for group in groups_of_pictures(packets):
        if any(packet.dts is None for packet in group):
            shown = sorted(packet.pts for packet in group)
            early = max(at - packet.pts for at, packet in zip(shown, group, strict=True))
            group = [replace(packet, dts=at - early) for at, packet in zip(shown, group, strict=True)]
        for packet in group:
            dts = packet.decoding_time
            dts = dts if last is None else max(dts, last + 1)
            last = dts
            yield packet if dts == packet.dts else replace(packet, dts=dts)


def groups_of_pictures(packets: Iterable[EncodedPacket]) -> Iterator[list[EncodedPacket]]:
    """Yield packets from a key packet to before the next one; what precedes the first one by itself."""
    group: list[EncodedPacket] = []
    for packet in packets:
        if packet.is_key and group:
            yield group
            group = []
        group.append(packet)
    if group:
        yield group
