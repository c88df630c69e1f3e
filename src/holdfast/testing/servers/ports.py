"""Ports of loopback for servers of tests and development."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST, _BEHIND = 15_000, 32_768


def free_port() -> int:
    """Return a port of loopback that nobody listens on.

    It is none of those that the system gives to outgoing connections, where it says which these are: one of them could
    take the port before the server does, or while the server is away.
    """
    first = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 0
    for _ in range(100):
        with socket.socket() as probe:
            wanted = random.randrange(_LOWEST, min(first, _BEHIND)) if first > _LOWEST + 1000 else 0
            try:
                probe.bind(("127.0.0.1", wanted))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise RuntimeError("a hundred ports of loopback are in use, one after the other")


def is_free(port: int) -> bool:
    """Return whether nobody listens on a port of loopback."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
