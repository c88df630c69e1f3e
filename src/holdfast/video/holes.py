"""Packets that are missing: seen by the places of those behind them, and what cannot be decoded then.

A decoder mostly does not say that a packet is missing: it shows wrong pictures up to the next key packet.
"""

from __future__ import annotations

from holdfast.flow.contract import Saved
from holdfast.video.packets import EncodedPacket, GroupPlace


def hole_before(packet: EncodedPacket, expected: GroupPlace | None) -> str:
    """Return what is missing before a packet, as a reason; empty where nothing is, or nobody knows.

    Parameters
    ----------
    packet : EncodedPacket
        The next one in the order of decoding.
    expected : GroupPlace or None
        ``next_place`` of the packet before it.
    """
    place = packet.place
    if place is None or expected is None or place == expected:
        return ""
    if place.key_pts != expected.key_pts:
        return f"packet {place.number} of a group whose key packet is missing"
    missing = place.number - expected.number
    why = "" if missing < 1 else f": {missing} {'is' if missing == 1 else 'are'} missing"
    return f"packet {place.number} of the group follows {expected.number - 1}{why}"


class WholeGroups:
    """Tells packets that can be decoded from those that cannot.

    These are: packets before the first key packet; those behind a missing one, up to the next key packet; and those
    that are shown before the key packet of their group, where the group before is not whole.

    Parameters
    ----------
    saved : mapping, optional
        What :meth:`save` returned.
    """

    def __init__(self, saved: Saved | None = None) -> None:
        state = saved or {"place": None, "key_pts": 0, "is_whole": False, "has_before": False}
        self._place = None if state["place"] is None else GroupPlace(*state["place"])
        """That of the next packet, if none is missing."""

        self._key_pts: int = state["key_pts"]
        self._is_whole: bool = state["is_whole"]
        """Whether none is missing since the key packet."""

        self._has_before: bool = state["has_before"]
        """Whether the group before is whole."""

    def take(self, packet: EncodedPacket) -> bool:
        """Take the next packet in the order of decoding; return whether it can be decoded."""
        hole, self._place = hole_before(packet, self._place), packet.next_place
        if packet.is_key:
            self._has_before = self._is_whole and not hole
            self._key_pts, self._is_whole = packet.pts, True
            return True
        self._is_whole = self._is_whole and not hole
        return self._is_whole and (self._has_before or packet.pts >= self._key_pts)

    def save(self) -> Saved:
        """Return the state, for a snapshot."""
        place = None if self._place is None else list(self._place)
        return {
            "place": place,
            "key_pts": self._key_pts,
            "is_whole": self._is_whole,
            "has_before": self._has_before,
        }
