"""A rest for Python's garbage collector, while thousands of objects are made of which none is garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_rests() -> Iterator[None]:
    """Let the collector rest: a client's messages are such as it looks through, again and again while they are made.

    Consuming a message took 0.8 µs with it and takes 0.35 µs without.  What is no longer used goes at once all the
    same: it is counted.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
