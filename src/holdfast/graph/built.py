"""What was built, weakly: every node and sink, the thread that built it, and whether a pipeline has taken it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from typing import Any

_lock = threading.Lock()

_built: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # -> the thread that built it

_adopted: weakref.WeakSet[Any] = weakref.WeakSet()


def register(node: Any) -> None:
    """Record that a node was built."""
    with _lock:
        _built[node] = threading.get_ident()


def adopt(nodes: Iterable[Any]) -> None:
    """Record that nodes belong to a pipeline."""
    with _lock:
        _adopted.update(nodes)


def by_this_thread() -> tuple[list[Any], set[Any]]:
    """Return what this thread has built and nobody has dropped, and all that belongs to a pipeline."""
    with _lock:
        here = threading.get_ident()
        return [node for node, thread in _built.items() if thread == here], set(_adopted)
