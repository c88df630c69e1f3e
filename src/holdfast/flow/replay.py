"""The input sets since a calculator's last marked packet: what makes its state again, where it cannot save it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.flow.queues import ABSENT, Packet, Payload

REPLAY_MAX = 10_000
"""Input sets that a calculator may want back: without a mark among so many, there is none."""


class ReplayedSets:
    """Input sets, and which of them are saved.

    Attributes
    ----------
    sets : list of (int, list of Packet)
        Since the last marked packet, that one's first.
    saved_count : int
        How many of them are saved.
    digest : bytes
        Of those.
    """

    def __init__(self) -> None:
        self.sets: list[tuple[int, list[Packet]]] = []
        self.saved_count = 0
        self.digest = b""

    def note(self, t: int, packets: Sequence[Packet], mark: str) -> bool:
        """Keep an input set; a marked one begins anew.  Return whether there is room for more."""
        if _is_marked(mark, packets):
            self.sets, self.saved_count, self.digest = [], 0, b""
        self.sets.append((t, list(packets)))
        return len(self.sets) <= REPLAY_MAX

    def take(self) -> tuple[int, list[tuple[int, list[Packet]]]]:
        """Return the number of the first set that is not saved, and all from there on: they are now."""
        first = self.saved_count
        self.saved_count = len(self.sets)
        return first, self.sets[first:]


def _is_marked(mark: str, packets: Sequence[Packet]) -> bool:
    values: list[Payload] = [value for _, value in packets if value is not ABSENT]
    return any(value.get(mark) if isinstance(value, Mapping) else getattr(value, mark, None) for value in values)
