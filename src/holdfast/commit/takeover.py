"""The start of a run: take a generation that fences all others, and look at what dead runs left.

The order matters: generation, then fences in the sinks, then the look at the ledger.  After the fences no older run can
publish, so what the sinks answer stays true; the ledger's own fence (``ledger.py``) stops older decisions.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from holdfast.commit.delivery import Delivery, Resolution
from holdfast.commit.ledger import Key, Ledger, Takeover
from holdfast.commit.records import Decided, Done
from holdfast.commit.recovery import Decision
from holdfast.commit.retry import Patience
from holdfast.errors import Corrupt, Fenced, InDoubt
from holdfast.ports import Clock, Held, RunIdentity

log = logging.getLogger("holdfast.commit")

_TRIES_MAX = 40
"""Tries to find a generation above a sink's.  The step doubles each time: 40 of them pass any number in use."""


@dataclass(frozen=True)
class Resumption:
    """Where the pipeline stands after ``Coordinator.open``.

    Parameters
    ----------
    generation : int
        The new one.
    held : mapping of str to Held
        Sink name -> what it holds now, after recovery.
    resolved : tuple of Resolution
        In the order in which it was done.
    last_epoch : int
        Highest epoch that any sink or the ledger knows; 0 when none.
    """

    generation: int
    held: Mapping[str, Held]
    resolved: tuple[Resolution, ...]
    last_epoch: int


def take_over(ledger: Ledger, delivery: Delivery, patience: Patience, clock: Clock, run: RunIdentity) -> int:
    """Take a generation above the checkpoint's and every sink's, open every sink with it, and return it.

    A sink that refuses knows a higher one.  If the checkpoint knows that one too, another run has just taken over.  If
    not, the checkpoint is younger than the sink (it was lost, or restored): go above.

    A sink in doubt (the reply was lost, or it cannot finish what it had begun) may or may not have taken the number:
    after a wait the next one settles it.

    Raises
    ------
    Fenced
        If another run has taken over meanwhile.
    InDoubt
        The sink's own, after the last attempt: it says what to do.
    """
    floor = refusals = doubts = 0
    while refusals < _TRIES_MAX:
        generation = ledger.take_generation(floor, clock.now_us())
        try:
            delivery.open(generation)
        except Fenced as refusal:
            ledger.check_fenced()
            log.info("generation %d is refused: %s", generation, refusal.what)
            floor = max(refusal.generation or 0, generation + 2**refusals - 1)
            refusals += 1
        except InDoubt as doubt:
            ledger.check_fenced()
            doubts += 1
            if not patience.wait_after(doubts, f"open the sinks with generation {generation}", doubt):
                raise
        else:
            return generation
    raise Fenced(
        f"no generation of pipeline {run.pipeline!r} is high enough for its sinks.",
        why=f"{_TRIES_MAX} were refused: a run with another checkpoint keeps taking over.",
        do="stop other runs of this pipeline, then start again.",
        pipeline=run.pipeline,
    )


def confirm_done(ledger: Ledger, delivery: Delivery, takeover: Takeover) -> Iterator[Resolution]:
    """Ask every sink whether it still holds the newest epoch that the ledger knows to be done in it; older ones follow.

    Before anything is published: a later epoch would move the sink's ledger over the gap and hide it.
    """
    before = _before_open(ledger, delivery, takeover)
    for name, held in delivery.held.items():
        done = takeover.done
        if takeover.open and done is not None and name not in done.sinks:
            done = ledger.newest_done_of(name)  # it was ahead of the others, and they were brought up to it alone
        of_done = done.record.epoch if done and name in done.sinks else 0
        epoch = max(of_done, before.get(name, 0))
        if held.epoch < epoch:
            yield delivery.judge(name, epoch, Decision.DONE)


def _before_open(ledger: Ledger, delivery: Delivery, takeover: Takeover) -> dict[str, int]:
    """Return, for each sink that lacks an open epoch, the one before the first of them: it was done in that sink.

    An epoch that one sink got alone has no "done".  It was published before the next one was decided; an epoch of a
    group is open itself, and is met here first.
    """
    found: dict[str, int] = {}
    for key in takeover.open:
        lack_it = {name for name, held in delivery.held.items() if held.epoch < key.epoch}
        if lack_it <= found.keys():
            continue
        try:
            content = ledger.read(key)
        except Corrupt:
            break  # nothing from here on is published
        if isinstance(content, Decided):
            for name in lack_it.intersection(content.parts) - found.keys():
                found[name] = content.before.get(name, 0) if delivery.remembers(name) else 0
    return found


def ledgers_word(newest_done: Done | None, sink: str, epoch: int) -> Decision:
    """Return the ledger's word on an epoch that is not open (any more)."""
    is_done = newest_done is not None and sink in newest_done.sinks and epoch <= newest_done.record.epoch
    return Decision.DONE if is_done else Decision.NONE


def open_decisions(ledger: Ledger, delivery: Delivery, takeover: Takeover) -> Iterator[tuple[Key, Decided]]:
    """Yield what dead runs had decided, oldest first, one at a time: each may hold many rows.

    Raises
    ------
    Corrupt
        If a decision cannot be read and some sink lacks its epoch.
    """
    for key in takeover.open:
        try:
            content = ledger.read(key)
        except Corrupt:
            if any(held.epoch < key.epoch for held in delivery.held.values()):
                raise
            ledger.settle_damaged(key)
            continue
        if isinstance(content, Decided):
            yield key, content
