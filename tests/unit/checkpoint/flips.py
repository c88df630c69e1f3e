"""Every damage of one bit."""

from __future__ import annotations

from collections.abc import Iterator


def flipped(data: bytes | None) -> Iterator[bytes]:
    """Yield the bytes with each bit of them flipped in turn."""
    assert data
    for position in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            yield bytes(damaged)
