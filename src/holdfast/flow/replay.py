"""The input sets since a calculator's last marked packet: what makes its state again, where it cannot save it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

from holdfast.flow.queues import ABSENT, Packet, Payload

REPLAY_MAX = 10_000
"""Input sets that a calculator may want back: without a mark among so many, there is none."""


class ReplayedSets:
    """Input sets as bytes, and which of them are saved.

    Parameters
    ----------
    mark : str
        Attribute or key of a payload that is true for marked packets.
    marks : int
        How many marked sets are kept, with all after the first of them.

    Attributes
    ----------
    encode : callable, optional
        Makes bytes of a time, packets, and the bounds of the outputs; None: the graph is not saved, and they are only
        counted.
    count : int
        How many there are since the last but so many marked ones, that one's the first.
    saved_count : int
        How many of them are saved.
    digest : bytes
        Of those.
    """

    def __init__(self, mark: str = "", marks: int = 1) -> None:
        self._mark = mark
        self._marks = marks
        self._places: list[int] = []
        """Of the marked sets."""

        self._sets: list[bytes] = []
        self.encode: Callable[[Payload], bytes] | None = None
        self.count = 0
        self.saved_count = 0
        self.digest = b""

    def note(self, t: int, packets: Sequence[Packet], bounds: Mapping[str, int]) -> bool:
        """Keep an input set as it is before it is processed; a marked one drops what is no longer needed.

        Parameters
        ----------
        t : int
            Its time.
        packets : sequence of Packet
            One of each input.
        bounds : mapping of str to int
            Output -> its bound now, which the calculator may ask for.

        Returns
        -------
        bool
            Whether there is room for more.
        """
        if _is_marked(self._mark, packets):
            self._places.append(self.count)
            self._drop()
        self.count += 1
        if self.encode is not None:  # now: the calculator may change its payloads
            self._sets.append(self.encode([t, [list(packet) for packet in packets], dict(bounds)]))
        return self.count <= REPLAY_MAX

    def _drop(self) -> None:
        """Drop what is before the marks that are kept: the others get new numbers, and are saved again under these."""
        first = self._places[-self._marks] if len(self._places) >= self._marks else 0
        if first:
            self._sets = self._sets[first:]
            self._places = [place - first for place in self._places if place >= first]
            self.count -= first
            self.saved_count, self.digest = 0, b""

    def take(self) -> tuple[int, list[bytes]]:
        """Return the number of the first set that is not saved, and all from there on: they are now."""
        first = self.saved_count
        sets = self._sets[first:]
        for each in sets:
            self.digest = hashlib.blake2b(self.digest + each, digest_size=16).digest()
        self.saved_count = self.count
        return first, sets

    def go_on(self, sets: Sequence[bytes], packets: Sequence[Sequence[Packet]], digest: bytes | None) -> None:
        """Go on from sets that are replayed.

        Parameters
        ----------
        sets : sequence of bytes
            As they were saved.
        packets : sequence of sequence of Packet
            Those of each.
        digest : bytes or None
            Of what is saved of them; None: nothing is.
        """
        self._sets, self.count = list(sets), len(sets)
        self._places = [number for number, each in enumerate(packets) if _is_marked(self._mark, each)]
        self.saved_count, self.digest = (0, b"") if digest is None else (self.count, digest)
        self._drop()  # where fewer marks are kept than were then


def _is_marked(mark: str, packets: Sequence[Packet]) -> bool:
    values: list[Payload] = [value for _, value in packets if value is not ABSENT]
    return any(value.get(mark) if isinstance(value, Mapping) else getattr(value, mark, None) for value in values)
