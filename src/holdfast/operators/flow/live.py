"""Graphs that go on from one epoch to the next in a worker's memory, in place of what is stored of them.

A graph that has run an epoch is kept under a digest of the state that was written then.  The next epoch finds it if it
is given that very state: so what is in memory is never believed, only recognised, and a replay, another worker or a
restart builds the graph from what is stored.  A graph is taken out when it is used, so one that failed is gone.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress

from holdfast.flow.run import Run

LIVE_MAX = 256
"""Graphs that a worker keeps; the one that was used least recently goes first."""

_LIVE: OrderedDict[bytes, Run] = OrderedDict()


def digest(token: str, states: Mapping[str, bytes]) -> bytes:
    """Return what identifies a graph in a state.

    Parameters
    ----------
    token : str
        Which graph it was built of.
    states : mapping of str to bytes
        Node -> its state.
    """
    found = hashlib.blake2b(token.encode(), digest_size=16)
    for name in sorted(states):
        found.update(f"{name}\0{len(states[name])}\0".encode())
        found.update(states[name])
    return found.digest()


def take(key: bytes) -> Run | None:
    """Return the graph that is in a state, and forget it; None where there is none."""
    return _LIVE.pop(key, None)


def keep(key: bytes, run: Run) -> None:
    """Keep a graph that is in a state."""
    replaced = _LIVE.pop(key, None)  # of an attempt that was repeated
    _LIVE[key] = run
    if replaced is not None:
        end(replaced)
    if len(_LIVE) > LIVE_MAX:
        end(_LIVE.popitem(last=False)[1])


def end(run: Run) -> None:
    """Let go of a graph that nobody goes on with: its threads, and what its calculators have opened.

    What they raise in ``close`` is not told: the graph's state is kept, and who happens to take its place is another
    key, or another operator.
    """
    with suppress(Exception):
        run.stop()
