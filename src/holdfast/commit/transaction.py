"""The states of one epoch's transaction, as one literal table and a pure ``step``.

Rules.  Everything that changes an epoch's state goes through :func:`step`.  This file knows neither sinks nor the
ledger nor threads: it says what may follow what.  An event that may not happen raises, names state, event and
story, and changes nothing.  The diagram in ``docs/how-recovery-works.md`` is drawn from :data:`TRANSITIONS`.

The idea of the protocol as data is h11's (``h11/_state.py``); that of the story dask/distributed's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from holdfast.errors import REPORT, InternalError


class State(Enum):
    """The state of an epoch's transaction.  The value is the definition."""

    OPEN = "the epoch's positions are fixed; its rows are being evaluated"
    STAGED = "every part is with the driver: a handle of durable, invisible rows, or carried rows"
    DECIDED = "the decision is durable: the epoch will become visible, whichever process survives"
    PUBLISHING = "sinks are being asked to make it visible, one after the other"
    IN_DOUBT = "a sink's answer was lost during its commit; the sink is being asked"
    PUBLISHED = "every sink holds it; with one sink this is the end"
    FORGOTTEN = "the decision has shrunk to 'done'"


class Event(Enum):
    """What can happen to it.  The value is the definition."""

    STAGE = "the driver has received every part"
    DECIDE = "the decision is written"
    FIND = "recovery finds the decision of a run that died"
    PUBLISH = "publishing begins"
    HOLD = "one sink holds the epoch"
    DOUBT = "the answer to a commit is lost"
    ANSWER = "the sink has answered what it holds"
    COMPLETE = "the last sink holds the epoch"
    FORGET = "the decision is replaced by 'done'"
    REVOKE = "recovery takes the decision back for sinks whose staged rows are gone"


_OPEN, _STAGED, _DECIDED, _PUBLISHING = State.OPEN, State.STAGED, State.DECIDED, State.PUBLISHING
_IN_DOUBT, _PUBLISHED, _FORGOTTEN = State.IN_DOUBT, State.PUBLISHED, State.FORGOTTEN
___ = None  # may not happen

# fmt: off
_GRID: Mapping[Event, tuple[State | None, ...]] = {
    #                OPEN       STAGED       DECIDED      PUBLISHING   IN_DOUBT     PUBLISHED   FORGOTTEN
    Event.STAGE:    (_STAGED,   ___,         ___,         ___,         ___,         ___,        ___),
    Event.DECIDE:   (___,       _DECIDED,    ___,         ___,         ___,         ___,        ___),
    Event.FIND:     (_DECIDED,  ___,         ___,         ___,         ___,         ___,        ___),
    Event.PUBLISH:  (___,       _PUBLISHING, _PUBLISHING, ___,         ___,         ___,        ___),
    Event.HOLD:     (___,       ___,         ___,         _PUBLISHING, ___,         ___,        ___),
    Event.DOUBT:    (___,       ___,         ___,         _IN_DOUBT,   ___,         ___,        ___),
    Event.ANSWER:   (___,       ___,         ___,         ___,         _PUBLISHING, ___,        ___),
    Event.COMPLETE: (___,       ___,         ___,         _PUBLISHED,  ___,         ___,        ___),
    Event.FORGET:   (___,       ___,         ___,         ___,         ___,         _FORGOTTEN, ___),
    Event.REVOKE: (___,       ___,         ___,         ___,         ___,         ___,        _OPEN),
}
# fmt: on

TRANSITIONS: Mapping[tuple[State, Event], State | None] = {
    (state, event): following for event, row in _GRID.items() for state, following in zip(State, row, strict=True)
}
"""(state, event) -> next state; None where the event may not happen.  Every combination has exactly one entry."""

NOTABLE: Mapping[tuple[State, Event], str] = {
    (State.STAGED, Event.PUBLISH): "one sink: its own transaction is the decision",
    (State.DECIDED, Event.PUBLISH): "several sinks, the commit thread, or commit grouping",
    (State.FORGOTTEN, Event.REVOKE): "for those sinks the epoch is produced again",
}
"""Remarks on single entries, for the diagram."""


@dataclass(frozen=True)
class Transition:
    """One line of an epoch's story.

    Parameters
    ----------
    at_us : int
        Clock time, microseconds of Unix time.
    epoch, generation : int
        Whose.
    before, after : State
        The states.
    event : Event
        What happened.
    participant : str
        The sink concerned; empty when all are.
    detail : str
        In words: rows, attempts, what was asked and answered.
    """

    at_us: int
    epoch: int
    generation: int
    before: State
    event: Event
    after: State
    participant: str = ""
    detail: str = ""

    def __str__(self) -> str:
        words = (
            f"{self.at_us / 1e6:.3f} epoch {self.epoch}: {self.before.name} --{self.event.name}--> {self.after.name}"
        )
        if self.participant:
            words += f" sink {self.participant!r}"
        return f"{words} ({self.detail})" if self.detail else words


def step(state: State, event: Event, *, story: Sequence[Transition] = ()) -> State:
    """Return the state that follows.

    Parameters
    ----------
    state, event
        The state of the transaction, and what happened.
    story : sequence of Transition
        The last transitions, oldest first: for the error.

    Raises
    ------
    InternalError
        If the event may not happen in this state.

    Examples
    --------
    >>> step(State.STAGED, Event.DECIDE).name
    'DECIDED'
    """
    following = TRANSITIONS[state, event]
    if following is None:
        raise InternalError(
            f"event {event.name} ({event.value}) may not happen in state {state.name} ({state.value}).",
            why=f"the history so far: {'; '.join(map(str, story)) or 'none'}.",
            do=REPORT,
            epoch=story[-1].epoch if story else None,
        )
    return following
