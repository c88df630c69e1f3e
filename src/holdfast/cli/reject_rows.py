"""``holdfast resolve --reject-rows``: the way out where a sink refuses rows of an epoch that is decided.

The rows become dead letters and are removed from the decision, only for the sink that refuses them; then it is
published.  Sinks that have the epoch keep what they have, those that do not get all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from holdfast.capabilities import offers
from holdfast.clock import SystemClock
from holdfast.commit.coordinator import Coordinator
from holdfast.commit.ledger import Standing, survey
from holdfast.commit.records import Decided
from holdfast.errors import InvalidPipeline
from holdfast.masking import masked
from holdfast.ports import EpochRecord, Outcome, Publication, Refused, Rejecting, Sink, Store
from holdfast.quarantine.dead_letters import REJECTED, DeadLetters, Letter
from holdfast.quarantine.mask import Address, one_row


@dataclass
class Rejected:
    """The rows that sinks refuse, and the sinks that keep rows of the same epoch.

    Parameters
    ----------
    letters : list of Letter
        One for each row.
    kept_in : mapping of int to tuple of str
        Epoch -> the other sinks that have it, or get it, whole.
    """

    letters: list[Letter] = field(default_factory=list)
    kept_in: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def add(self, sink: str, epoch: int, letters: Sequence[Letter], decided_for: Iterable[str]) -> None:
        """Add what a sink refuses of an epoch that is decided for several."""
        self.letters += letters
        self.kept_in[epoch] = tuple(name for name in self.kept_in.get(epoch, decided_for) if name != sink)


def letters_of(sink: str, record: EpochRecord, refused: Sequence[Refused], rows_max: int) -> list[Letter]:
    """Return the dead letters of rows that a sink refuses.

    Raises
    ------
    InvalidPipeline
        If they are more than a few: then it is the table that is wrong.
    """
    if len(refused) > rows_max:
        raise InvalidPipeline(
            f"sink {sink!r} refuses {len(refused)} rows of epoch {record.epoch}.",
            why=f"that many suggest a fault in its table, not in the rows; the last one: {refused[-1].error.what} "
            f"{refused[-1].error.why}",
            do="fix the table, and start again; or raise HOLDFAST_POISON_ROWS, and resolve again.",
            participant=sink,
            epoch=record.epoch,
        )
    now_us = SystemClock().now_us()
    letters = []
    for one in refused:
        error = {
            "kind": type(one.error).__name__,
            "what": masked(one.error.what),
            "why": masked(one.error.why),
        }
        row = one_row(_whole(one.row), 0)
        letters.append(Letter(sink, Address(REJECTED, record.epoch, one.number), row, record.epoch, error, now_us))
    return letters


def keeping(
    store: Store,
    coordinator: Coordinator,
    sinks: Sequence[Sink],
    rejected: Rejected,
    decided_for: Mapping[int, Iterable[str]],
    rows_max: int,
) -> Callable[[str, EpochRecord, Sequence[Refused]], None]:
    """Return what keeps refused rows as dead letters; durable when it returns.

    ``decided_for`` says for which sinks each epoch is decided.  Before the first row of an epoch is kept, all ``sinks``
    are asked: where one refuses more than a few, no other must publish the epoch without rows.
    """

    def keep(sink: str, record: EpochRecord, refused: Sequence[Refused]) -> None:
        if record.epoch not in rejected.kept_in:
            coordinator.retry(
                lambda: would_reject(store, sinks, rows_max, epochs=[record.epoch]),
                doing=f"find what the sinks refuse of epoch {record.epoch}",
            )
        letters = letters_of(sink, record, refused, rows_max)
        kept = DeadLetters(store, coordinator.generation, isolates=True)
        for letter in letters:
            kept.add(letter, coordinator.check_fenced)
        rejected.add(sink, record.epoch, letters, decided_for.get(record.epoch, ()))

    return keep


def would_reject(store: Store, sinks: Sequence[Sink], rows_max: int, epochs: Collection[int] | None = None) -> Rejected:
    """Say which rows would be rejected, of some epochs or all.  Changes nothing, fences no run.

    Later epochs are checked as if the ones before them were not there: with them, further rows may be refused.
    """
    rejected = Rejected()
    for entry in survey(store, epochs):
        content = entry.content
        if entry.standing is not Standing.OPEN or not isinstance(content, Decided):
            continue
        earlier: list[tuple[Sink, Publication]] = []
        for sink in sinks:
            parts = content.parts.get(sink.name, ())
            if not parts or not offers(sink, Rejecting) or sink.outcome(entry.key.epoch) is not Outcome.ABSENT:
                continue
            publication, found = sink.reject(Publication(content.record, parts), earlier)
            earlier.append((sink, publication))
            if found:
                letters = letters_of(sink.name, content.record, content.as_decided(sink.name, found), rows_max)
                rejected.add(sink.name, entry.key.epoch, letters, content.parts)
    return rejected


def rejected_json(rejected: Rejected | None) -> dict[str, Any]:
    """Return it as a part of a JSON answer; nothing where it was not asked for."""
    if rejected is None:
        return {}
    kept_in = {str(epoch): list(sinks) for epoch, sinks in rejected.kept_in.items()}
    return {"rejected": [letter.described() for letter in rejected.letters], "kept_in": kept_in}


def rejected_lines(rejected: Rejected | None, *, dry_run: bool) -> Iterator[str]:
    """Say which rows became dead letters, and what stays elsewhere; nothing where it was not asked for."""
    if rejected is None:
        return
    for letter in rejected.letters:
        yield f"{letter.name}  {'would be rejected' if dry_run else 'rejected'} by sink {letter.source!r}"
        yield f"  {letter.described()['row']}"
        yield f"  {letter.error['what']} {letter.error['why']}"
    for epoch, sinks in rejected.kept_in.items():
        if sinks:
            yield f"epoch {epoch} is whole in {', '.join(sinks)}: rows computed from the same input stay there."
    if not rejected.letters:
        yield "no sink refuses a row of a decided epoch."


def _whole(row: pa.Table) -> pa.RecordBatch:
    return row.combine_chunks().to_batches()[0]
