"""The input sets since a calculator's last marked packet: what makes its state again, where it cannot save it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.flow.queues import ABSENT, Packet, Payload

REPLAY_MAX = 10_000
"""Input sets that a calculator may want back: without a mark among so many, there is none."""


class ReplayedSets:
    """Input sets, and which of them are saved.

    Parameters
    ----------
    mark : str
        Attribute or key of a payload that is true for marked packets.
    marks : int
        How many marked sets are kept, with all after the first of them.

    Attributes
    ----------
    sets : list of (int, list of Packet)
        Those since the last but so many marked ones, that one's first.
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

        self.sets: list[tuple[int, list[Packet]]] = []
        self.saved_count = 0
        self.digest = b""

    def note(self, t: int, packets: Sequence[Packet]) -> bool:
        """Keep an input set; a marked one drops what is no longer needed.  Return whether there is room for more."""
        if _is_marked(self._mark, packets):
            self._places.append(len(self.sets))
            first = self._places[-self._marks] if len(self._places) >= self._marks else 0
            if first:  # those that stay get other numbers, and are saved again under these
                self.sets, self.saved_count, self.digest = self.sets[first:], 0, b""
                self._places = [place - first for place in self._places if place >= first]
        self.sets.append((t, list(packets)))
        return len(self.sets) <= REPLAY_MAX

    def restore(self, sets: Sequence[tuple[int, list[Packet]]], saved_count: int, digest: bytes) -> None:
        """Take sets that were saved, in their order."""
        for t, packets in sets:
            self.note(t, packets)
        if len(self.sets) == len(sets):  # else fewer marks are kept than were then
            self.saved_count, self.digest = saved_count, digest

    def take(self) -> tuple[int, list[tuple[int, list[Packet]]]]:
        """Return the number of the first set that is not saved, and all from there on: they are now."""
        first = self.saved_count
        self.saved_count = len(self.sets)
        return first, self.sets[first:]


def _is_marked(mark: str, packets: Sequence[Packet]) -> bool:
    values: list[Payload] = [value for _, value in packets if value is not ABSENT]
    return any(value.get(mark) if isinstance(value, Mapping) else getattr(value, mark, None) for value in values)
