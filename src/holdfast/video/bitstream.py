"""H.264 and H.265 in two forms: units behind their lengths, as in MP4, and behind start codes, as in MPEG-TS."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.video.packets import CodecParameters

START = b"\0\0\0\1"

_SETS = {"h264": (7, 8), "hevc": (32, 33, 34)}
"""Types of the units that a decoder needs first."""

_DELIMITERS = {"h264": (9, START + b"\x09\xf0"), "hevc": (35, START + b"\x46\x01\x50")}
"""Type of the unit that begins a picture in MPEG-TS, and one of it."""


@dataclass(frozen=True)
class UnitForm:
    """How the packets of a group have their units.

    Parameters
    ----------
    codec : str
        ``"h264"`` or ``"hevc"``.
    length_size : int
        Bytes of a unit's length; 0: they stand behind start codes.
    """

    codec: str
    length_size: int


def form_and_sets(parameters: CodecParameters) -> tuple[UnitForm, bytes]:
    """Return the form of a group's packets, and its parameter sets behind start codes.

    Raises
    ------
    ValueError
        If the header of the codec ends early.
    """
    extradata = parameters.extradata
    if extradata[:1] != b"\x01":
        return UnitForm(parameters.codec, 0), extradata
    try:
        if parameters.codec == "h264":
            return UnitForm("h264", (extradata[4] & 3) + 1), _sets_of_avcc(extradata)
        return UnitForm("hevc", (extradata[21] & 3) + 1), _sets_of_hvcc(extradata)
    except IndexError:
        raise ValueError(f"a header of {parameters.codec} that ends early: {len(extradata)} bytes") from None


def _sets_of_avcc(header: bytes) -> bytes:
    found, place = b"", 5
    for mask in (31, 255):
        count, place = header[place] & mask, place + 1
        for _ in range(count):
            unit, place = _unit(header, place, 2)
            found += START + unit
    return found


def _sets_of_hvcc(header: bytes) -> bytes:
    found, place = b"", 23
    for _ in range(header[22]):
        count, place = int.from_bytes(header[place + 1 : place + 3]), place + 3
        for _ in range(count):
            unit, place = _unit(header, place, 2)
            found += START + unit
    return found


def _unit(data: bytes, place: int, length_size: int) -> tuple[bytes, int]:
    begin = place + length_size
    end = begin + int.from_bytes(data[place:begin])
    if end > len(data):
        raise IndexError(end)
    return data[begin:end], end


def with_start_codes(data: bytes, form: UnitForm, sets: bytes) -> bytes:
    """Return a packet as MPEG-TS has it: units behind start codes, a delimiter first, and sets where they are missing.

    Parameters
    ----------
    data : bytes
        Of the packet.
    form : UnitForm
        How it has its units.
    sets : bytes
        The parameter sets, for a key packet that has none of its own; else empty.

    Raises
    ------
    ValueError
        If a unit ends behind the packet.
    """
    if form.length_size:
        data = _from_lengths(data, form.length_size)
    of_delimiter, delimiter = _DELIMITERS[form.codec]
    first = next(_types(data, form.codec), None)
    if sets and not any(each in _SETS[form.codec] for each in _types(data, form.codec)):
        data = sets + data
    return data if first == of_delimiter else delimiter + data


def _from_lengths(data: bytes, length_size: int) -> bytes:
    parts: list[bytes] = []
    place = 0
    while place < len(data):
        try:
            unit, place = _unit(data, place, length_size)
        except IndexError:
            raise ValueError("a unit of the packet ends behind it") from None
        parts += (START, unit)
    return b"".join(parts)


def sets_in(data: bytes, codec: str) -> bytes:
    """Return the parameter sets of a key packet that has them behind start codes; empty where it has none."""
    found = b""
    for kind, begin, end in _units(data, codec):
        if kind in _SETS[codec]:
            found += START + data[begin:end].rstrip(b"\0")
    return found


def _types(data: bytes, codec: str) -> Iterator[int]:
    return (kind for kind, _, _ in _units(data, codec))


def _units(data: bytes, codec: str) -> Iterator[tuple[int, int, int]]:
    """Yield type, begin and end of units up to the first that is a picture's, whose end is not looked for."""
    place = data.find(b"\0\0\1")
    while 0 <= place < len(data) - 3:
        begin, head = place + 3, data[place + 3]
        kind = head & 31 if codec == "h264" else head >> 1 & 63
        if kind in (1, 5) if codec == "h264" else kind < 32:
            yield kind, begin, len(data)
            return
        place = data.find(b"\0\0\1", begin)
        yield kind, begin, place if place >= 0 else len(data)
