"""The thread of a sink that does what is due beside the epochs: it seals segments, or joins small files."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from typing import Protocol

from holdfast.errors import Fenced

log = logging.getLogger("holdfast.connectors.maintenance")

PAUSE_S = 0.25
"""Between two rounds at least."""

SHARE = 20
"""A pause is at least this many times as long as the round before took to find nothing: policies get 5 % of a core."""

PAUSE_MAX_S = 15.0


class Tended(Protocol):
    """What has rounds."""

    @property
    def what(self) -> str:
        """What it does, for the log: ``sealing segments``."""

    def tend(self) -> int:
        """Do what is due; return how much it was."""


class Tending:
    """Rounds, one after the other, until it is stopped.  Does not keep the sink alive."""

    def __init__(self, tended: Tended) -> None:
        self._tended = weakref.ref(tended)
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, if it does not run."""
        if self._thread is None and not self._stopped.is_set():
            self._thread = threading.Thread(
                target=_rounds, args=(self._tended, self._stopped), name="holdfast-tending", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """End it after the round at work."""
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._thread = None


def _rounds(found: weakref.ref[Tended], stopped: threading.Event) -> None:
    pause_s = PAUSE_S
    failures = 0
    while not stopped.wait(pause_s):
        tended = found()
        if tended is None:
            return
        started = time.monotonic()
        try:
            count = tended.tend()
        except Fenced:
            return  # another run has taken over: the next epoch of this one will say so
        except Exception as error:
            failures += 1
            if failures == 1:
                log.warning("%s failed, and is tried again: %s", tended.what, error)
            pause_s = min(PAUSE_MAX_S, 0.5 * 2 ** min(failures, 10))
        else:
            failures = 0
            taken_s = time.monotonic() - started
            pause_s = PAUSE_S if count else min(PAUSE_MAX_S, max(PAUSE_S, SHARE * taken_s))
        del tended
