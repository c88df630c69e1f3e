"""The last transitions of the last epochs: what an error tells, and what a test looks at.

Bounded: a run of a million epochs keeps :data:`EPOCHS_KEPT` stories of at most :data:`LINES_KEPT` lines.  Used by the
engine's thread and the commit thread at once; every call is short.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable

from holdfast.commit.transaction import Event, State, Transition, step
from holdfast.ports import Clock

EPOCHS_KEPT = 64
LINES_KEPT = 40
_ENDS = (State.PUBLISHED, State.FORGOTTEN, State.ABORTED)


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
        self._lock = threading.Lock()
        self.generation = 0

    def state(self, epoch: int) -> State:
        """Return where the epoch stands; OPEN when nothing is known of it."""
        with self._lock:
            story = self._stories.get(epoch)
            return story[-1].after if story else State.OPEN

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
        return "\n".join([f"Story of epoch {epoch}, oldest first:", *(f"  {line}" for line in lines)]) if lines else ""

    def _drop_oldest(self) -> None:
        # Only finished ones: an epoch at work always has its story, or its next step would start from OPEN.
        surplus = len(self._stories) - EPOCHS_KEPT
        for epoch in [e for e, story in self._stories.items() if story[-1].after in _ENDS][: max(surplus, 0)]:
            del self._stories[epoch]
