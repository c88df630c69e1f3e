"""Packets of MPEG-TS: written here, because the state must be theirs alone.

What a writer of MPEG-TS remembers from one packet to the next are the continuity counters, four bits for each of three
streams (ISO/IEC 13818-1, 2.4.3).  FFmpeg's muxer does not tell them, and begins at zero.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.video.packets import EncodedPacket

TABLES, PROGRAM, VIDEO = 0, 0x1000, 0x100
"""Numbers (PID) of the streams: PAT, PMT, video."""

STREAM_TYPES = {"h264": 0x1B, "hevc": 0x24}
"""What MPEG-TS carries here."""

_SIZE, _SYNC = 188, 0x47
_WRAP = 1 << 33
_AHEAD = 45_000
"""By how much the clock (PCR) is before the decoding times: half a second, in ticks of 90 kHz."""


class TransportWriter:
    """Makes packets of MPEG-TS.

    Parameters
    ----------
    counters : mapping of int to int
        Stream -> its next continuity counter.
    """

    def __init__(self, counters: Mapping[int, int]) -> None:
        self.counters = {TABLES: 0, PROGRAM: 0, VIDEO: 0, **counters}

    def tables(self, codec: str) -> bytes:
        """Return the tables that say what the streams are: a reader can begin here."""
        program = bytes([0, 1, 0xE0 | PROGRAM >> 8, PROGRAM & 255])
        stream = bytes([STREAM_TYPES[codec], 0xE0 | VIDEO >> 8, VIDEO & 255, 0xF0, 0])
        clock = bytes([0xE0 | VIDEO >> 8, VIDEO & 255, 0xF0, 0])
        return self._section(TABLES, 0, program) + self._section(PROGRAM, 2, clock + stream)

    def packet(self, data: bytes, of: EncodedPacket) -> bytes:
        """Return the data of a packet with its times.

        Parameters
        ----------
        data : bytes
            With start codes.
        of : EncodedPacket
            Its times, and whether it is a key.
        """
        pts, dts = (ticks(each) for each in (of.pts, of.decoding_time))
        times = _time(2, pts) if pts == dts else _time(3, pts) + _time(1, dts)
        head = b"\0\0\1\xe0\0\0\x84" + bytes([0x80 if pts == dts else 0xC0, len(times)]) + times
        whole = head + data
        clock = (dts - _AHEAD) % _WRAP
        flags = 0x50 if of.is_key else 0x10
        field = bytes([flags]) + ((clock << 15) | 0x7E00).to_bytes(6)
        room = _SIZE - 5 - len(field)
        parts = [self._one(VIDEO, whole[:room], field, is_first=True)]
        parts += [self._one(VIDEO, whole[place : place + _SIZE - 4]) for place in range(room, len(whole), _SIZE - 4)]
        return b"".join(parts)

    def _section(self, stream: int, table: int, content: bytes) -> bytes:
        length = 5 + len(content) + 4
        section = bytes([table, 0xB0, length, 0, 1, 0xC1, 0, 0]) + content
        whole = b"\0" + section + checksum(section).to_bytes(4)
        return self._one(stream, whole.ljust(_SIZE - 4, b"\xff"), is_first=True)

    def _one(self, stream: int, payload: bytes, field: bytes = b"", *, is_first: bool = False) -> bytes:
        """Return one packet of 188 bytes; what is missing to that is stuffed into the adaptation field."""
        counter = self.counters[stream]
        self.counters[stream] = (counter + 1) & 15
        missing = _SIZE - 4 - len(payload) - (1 + len(field) if field else 0)
        has_field = bool(field) or missing > 0
        head = bytes(
            [_SYNC, (0x40 if is_first else 0) | stream >> 8, stream & 255, (0x30 if has_field else 0x10) | counter]
        )
        if not has_field:
            return head + payload
        if not field:  # the byte of its length, and of its flags where there is one
            field, missing = (b"\0", missing - 2) if missing > 1 else (b"", missing - 1)
        return head + bytes([len(field) + missing]) + field + b"\xff" * missing + payload


def ticks(at: int) -> int:
    """Return a time in ticks of 90 kHz, as far as MPEG-TS counts them: it begins anew every 26.5 hours.

    Examples
    --------
    >>> ticks(1_000_000_000), ticks(0)
    (90000, 0)
    """
    return (at * 9 + 50_000) // 100_000 % _WRAP


def _time(mark: int, at: int) -> bytes:
    return (
        bytes([mark << 4 | at >> 29 & 14 | 1])
        + ((at >> 15 & 0x7FFF) << 1 | 1).to_bytes(2)
        + ((at & 0x7FFF) << 1 | 1).to_bytes(2)
    )


def checksum(data: bytes) -> int:
    """Return the CRC of a table.

    Examples
    --------
    >>> hex(checksum(b"123456789"))
    '0x376e6e7'
    """
    found = 0xFFFFFFFF
    for byte in data:
        found ^= byte << 24
        for _ in range(8):
            found = (found << 1 ^ (0x04C11DB7 if found & 0x80000000 else 0)) & 0xFFFFFFFF
    return found
