"""The last transitions of the last epochs, and the first failure, which reports them.

Invariants.  Bounded: a run of a million epochs keeps :data:`EPOCHS_KEPT` stories of at most :data:`LINES_KEPT` lines;
an epoch at work keeps its own.  The first failure of a run stays its failure.  Used by the engine's thread and the
commit thread concurrently; every call is short.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

from holdfast.commit.transaction import Event, State, Transition, step
from holdfast.errors import HoldfastError
from holdfast.ports import Clock
from holdfast.retry import one_line

log = logging.getLogger("holdfast.commit")

EPOCHS_KEPT = 64
LINES_KEPT = 40
_ENDS = (State.PUBLISHED, State.FORGOTTEN)


class Stories:
    """State and story of each recent epoch; the only place that takes steps.

    Parameters
    ----------
    clock : Clock
        For the time of each line.
    on_transition : callable, optional
        Called with every :class:`Transition` after it happened.  Must be quick; may raise to stop the run.
    """

    def __init__(self, clock: Clock, on_transition: Callable[[Transition], None] | None = None) -> None:
        self._clock = clock
        self._on_transition = on_transition
        self._stories: OrderedDict[int, deque[Transition]] = OrderedDict()
        self._decided: set[int] = set()
        """Epochs that are published in the end by being forgotten."""
        self._lock = threading.Lock()
        self.generation = 0

    def take(self, epoch: int, event: Event, participant: str = "", detail: str = "") -> None:
        """Take one step; raises ``InternalError``, changing nothing, when it may not be taken."""
        now_us = self._clock.now_us()
        with self._lock:
            story = self._stories.get(epoch, deque(maxlen=LINES_KEPT))
            before = story[-1].after if story else State.OPEN
            after = step(before, event, story=story)
            line = Transition(now_us, epoch, self.generation, before, event, after, participant, detail)
            story.append(line)
            self._stories[epoch] = story
            if event in (Event.DECIDE, Event.FIND):
                self._decided.add(epoch)
            elif event is Event.FORGET:
                self._decided.discard(epoch)
            self._drop_oldest()
        if self._on_transition is not None:
            self._on_transition(line)

    def story(self, epoch: int) -> list[Transition]:
        """Return the last transitions of an epoch, oldest first."""
        with self._lock:
            return list(self._stories.get(epoch, ()))

    def note(self, epoch: int) -> str:
        """Return the story as the text that goes below an error."""
        lines = self.story(epoch)
        head = f"History of epoch {epoch}, oldest first:"
        return "\n".join([head, *(f"  {line}" for line in lines)]) if lines else ""

    def _drop_oldest(self) -> None:
        # Only finished ones: an epoch at work always has its story, or its next step would start from OPEN.
        surplus = len(self._stories) - EPOCHS_KEPT
        ended = (e for e, story in self._stories.items() if story[-1].after in _ENDS and e not in self._decided)
        for epoch in list(islice(ended, max(surplus, 0))):
            del self._stories[epoch]


class RunFailures:
    """What went wrong in one run: attempts that failed, and the first failure, after which it goes no further.

    Parameters
    ----------
    stories : Stories
        What a failure reports.
    """

    def __init__(self, stories: Stories) -> None:
        self._stories = stories
        self.first: BaseException | None = None
        """Why this run goes no further."""
        self.retry_count = 0
        """Failed attempts that were followed by another one."""
        self.last_error: str | None = None
        """Message of the last failure, whether it was retried or not."""

    def note_retry(self, doing: str, attempt: int, error: HoldfastError) -> None:
        """Record an attempt that failed and is followed by another one."""
        self.retry_count += 1
        self.last_error = error.what
        log.warning("attempt %d to %s failed, trying again: %s", attempt, doing, one_line(error))

    @contextmanager
    def noting(self, epoch: int | None = None) -> Iterator[None]:
        """Record what is raised in here; the first error is reported with the history of its epoch."""
        try:
            yield
        except BaseException as failure:
            if self.first is None:
                self.first = failure
                self.last_error = failure.what if isinstance(failure, HoldfastError) else repr(failure)
                note = self._stories.note(epoch) if epoch is not None else ""
                if note:
                    failure.add_note(note)
            raise

    @contextmanager
    def stopping(self, epoch: int | None = None) -> Iterator[None]:
        """Refuse to continue after a failure, of this thread or the commit thread: what it left is the next run's."""
        if self.first is not None:
            raise self.first
        with self.noting(epoch):
            yield
