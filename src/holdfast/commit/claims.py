"""Which sinks an epoch still has to be produced for, and the claim that lets it be committed for these, once.

Invariants.  An epoch is committed by the claim that was made for it last, and a claim is used once: what the sinks hold
was checked before the rows were computed, and nothing was committed in between.  In one run each sink gets every epoch
from the first that it took part in; before that one it lacks nothing.

What only grows: the number of claims, and the last epoch.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from holdfast.commit.checks import check_commit, check_no_gap, check_parts, check_same_positions, demand, needs
from holdfast.commit.delivery import Delivery
from holdfast.commit.ledger import Ledger
from holdfast.commit.records import Decided
from holdfast.commit.recovery import Decision, Verdict
from holdfast.ports import RunIdentity
from holdfast.positions import Positions, covers_all


@dataclass(frozen=True)
class Claim:
    """The right to commit one epoch, once: ``Coordinator.missing`` gives it, ``Coordinator.commit`` takes it.

    Parameters
    ----------
    epoch : int
        The epoch.
    sinks : frozenset of str
        Those that lack it; empty when every sink holds it, and then there is nothing to commit.
    generation : int
        Of the run.
    number : int
        Which claim of the run it is; the first is 1.
    end : Positions, optional
        Where the epoch ends, if that was said.
    """

    epoch: int
    sinks: frozenset[str]
    generation: int
    number: int
    end: Positions | None = None


class Claims:
    """What each sink lacks, during one run.

    Parameters
    ----------
    pipeline : str
        Its name.
    delivery : Delivery
        The sinks.
    ledger : Ledger
        Says what is done.
    backfilled : collection of str
        Sinks that, while they hold nothing, get what others already hold.
    """

    def __init__(self, pipeline: str, delivery: Delivery, ledger: Ledger, backfilled: Collection[str]) -> None:
        self._delivery = delivery
        self._ledger = ledger
        self._backfilled = frozenset(backfilled)
        self._run = RunIdentity(pipeline, 0)
        self._number = 0
        self._open: Claim | None = None
        self._continued: set[str] = set()
        self._start: Positions | None = None
        """Where the epoch of the open claim begins, if that was said."""
        self._before: dict[str, int] = {}
        """Per sink that remembers, the last epoch decided for it; until there is one, what it held."""
        self.last_epoch = 0
        """The highest epoch that a sink or the ledger knows, or that was committed."""

    def begin(self, run: RunIdentity, last_epoch: int) -> None:
        """Start from what sinks and ledger know, once everything is resolved."""
        held = self._delivery.held
        self._run, self.last_epoch = run, last_epoch
        self._before = {name: held[name].epoch for name in held if self._delivery.remembers(name)}

    def is_known(self, epoch: int) -> bool:
        """Return whether a sink may hold an epoch, or the ledger."""
        # Only what Spark replays after a crash or a failure gets here, one epoch whenever its query begins, in a start
        # or again within a run: every other one is new to everybody.
        return epoch <= self.last_epoch

    def make(self, epoch: int, end: Positions | None, start: Positions | None) -> Claim:
        """Return a claim for an epoch, in place of the last one; see ``Coordinator.missing``."""
        names = self._lacking(epoch, end) if self.is_known(epoch) else frozenset(self._delivery.names)
        if end is not None and start is not None:
            names = frozenset(name for name in names if self._joins(name, epoch, start, end))
        self._number += 1
        self._start = start
        self._open = Claim(epoch, names, self._run.generation, self._number, end)
        return self._open

    def _lacking(self, epoch: int, end: Positions | None) -> frozenset[str]:
        """Ask every sink about an epoch that a run before this one, or this one before a failure, may have ended."""
        names = self._delivery.names
        judged = [self._delivery.judge(name, epoch, self._ledgers_word(name, epoch)) for name in names]
        lacking = frozenset(each.sink for each in judged if each.verdict in (Verdict.ABORT, Verdict.REPLAY))
        if end is not None:
            holders = {
                name: self._delivery.held[name]
                for name in names
                if name not in lacking and self._delivery.remembers(name)
            }
            check_same_positions(epoch, holders, end, self._run)
        return lacking

    def _ledgers_word(self, sink: str, epoch: int) -> Decision:
        """Return the ledger's word on an epoch that is not open (any more)."""
        done = self._ledger.newest_done
        is_done = done is not None and sink in done.sinks and epoch <= done.record.epoch
        return Decision.DONE if is_done else Decision.NONE

    def _joins(self, name: str, epoch: int, start: Positions, end: Positions) -> bool:
        """Return whether a sink needs an epoch, by the positions that its own ledger holds."""
        held = self._delivery.held[name]
        if name in self._continued:
            return True  # this run's own epochs follow each other
        if held.is_empty:  # it is new, and begins where the others continue: what they hold is older
            return name in self._backfilled or not self._is_held_elsewhere(name, end)
        # With rows of some epochs, and none as a whole (its journal was lost), it gets everything from the beginning.
        if held.epoch and not needs(name, epoch, held, start, end, self._run):
            return False
        self._continued.add(name)
        return True

    def _is_held_elsewhere(self, name: str, end: Positions) -> bool:
        """Return whether another sink holds an epoch, and this one would remember it too."""
        others = [other for other in self._delivery.names if other != name and self._delivery.remembers(other)]
        return self._delivery.remembers(name) and any(
            self._delivery.held[other].epoch > 0 and covers_all(self._delivery.held[other].positions, end)
            for other in others
        )

    def before(self, sinks: Collection[str]) -> dict[str, int]:
        """Return, per sink that remembers, the last epoch that was decided for it, or that it held."""
        return {name: epoch for name, epoch in self._before.items() if name in sinks}

    def start(self, sinks: Collection[str]) -> Positions | None:
        """Return where the epoch of the claim begins, if one of some sinks holds nothing yet."""
        is_first = any(held.is_empty for name, held in self._delivery.held.items() if name in sinks)
        return self._start if is_first else None

    def check(self, claim: Claim, decided: Decided) -> None:
        """Raise unless an epoch may be committed by a claim.

        Raises
        ------
        InternalError
            If the claim is not the one that was made last, was used, or is none for this epoch.
        Diverged
            If a sink that takes part for the first time in this run lacks an epoch before it.
        """
        record = decided.record
        check_commit(decided, self._delivery.names, self.last_epoch, self._run)
        for condition, why in (
            (claim.generation == self._run.generation, f"its claim is of generation {claim.generation}"),
            (claim.epoch == record.epoch, f"its claim is for epoch {claim.epoch}"),
            (claim.end is None or claim.end == record.positions, "its claim is for other positions"),
            (claim == self._open, f"its claim, number {claim.number}, was used or replaced: {self._number} were made"),
        ):
            demand(condition, record, self._run, why)
        check_parts(decided, claim.sinks, self._run)
        new = {name: self._delivery.held[name] for name in decided.parts if name not in self._continued}
        check_no_gap(record.epoch, new, self._run)

    def note_rewind(self, epoch: int) -> None:
        """Let no claim outlive a rewind: it changes what the sinks hold."""
        self._open = None
        self.last_epoch = epoch

    def use(self, decided: Decided) -> None:
        """Use the claim up: the epoch is committed from here on."""
        self._open = None
        self.last_epoch = decided.record.epoch
        self._continued.update(decided.parts)
        self._before.update((name, decided.record.epoch) for name in decided.parts if name in self._before)
