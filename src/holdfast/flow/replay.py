"""The input sets since a calculator's last marked packet: what makes its state again, where it cannot save it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

from holdfast.flow.queues import ABSENT, Packet, Payload

REPLAY_MAX = 10_000
"""Input sets that a calculator may want back: without a mark among so many, there is none."""


class ReplayedSets:
    """Input sets as bytes, and which of them are saved.

    Attributes
    ----------
    encode : callable, optional
        Makes bytes of a time, packets, and the bounds of the outputs; None: the graph is not saved, and they are only
        counted.
    count : int
        How many there are since the last marked packet, that one's the first.
    saved_count : int
        How many of them are saved.
    digest : bytes
        Of those.
    """

    def __init__(self) -> None:
        self.encode: Callable[[Payload], bytes] | None = None
        self.count = 0
        self.saved_count = 0
        self.digest = b""
        self._unsaved: list[bytes] = []

    def note(self, t: int, packets: Sequence[Packet], bounds: Mapping[str, int], mark: str) -> bool:
        """Keep an input set as it is before it is processed; a marked one begins anew.

        Parameters
        ----------
        t : int
            Its time.
        packets : sequence of Packet
            One of each input.
        bounds : mapping of str to int
            Output -> its bound now, which the calculator may ask for.
        mark : str
            Key or attribute of a payload that marks it.

        Returns
        -------
        bool
            Whether there is room for more.
        """
        if _is_marked(mark, packets):
            self.count, self.saved_count, self.digest = 0, 0, b""
            self._unsaved.clear()
        self.count += 1
        if self.encode is not None:  # now: the calculator may change its payloads
            self._unsaved.append(self.encode([t, [list(packet) for packet in packets], dict(bounds)]))
        return self.count <= REPLAY_MAX

    def take(self) -> tuple[int, list[bytes]]:
        """Return the number of the first set that is not saved, and all from there on: they are now."""
        first, sets = self.saved_count, self._unsaved
        for each in sets:
            self.digest = hashlib.blake2b(self.digest + each, digest_size=16).digest()
        self.saved_count, self._unsaved = self.count, []
        return first, sets

    def go_on(self, sets: Sequence[bytes], digest: bytes | None) -> None:
        """Go on from sets that were replayed, with the digest of what is saved of them; None: nothing is."""
        self.count = len(sets)
        if digest is None:
            self.saved_count, self.digest, self._unsaved = 0, b"", list(sets)
        else:
            self.saved_count, self.digest, self._unsaved = self.count, digest, []


def _is_marked(mark: str, packets: Sequence[Packet]) -> bool:
    values: list[Payload] = [value for _, value in packets if value is not ABSENT]
    return any(value.get(mark) if isinstance(value, Mapping) else getattr(value, mark, None) for value in values)
