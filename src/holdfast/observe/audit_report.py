"""The book of the audit as people read it, beside what the checkpoint's ledger says was published."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.commit.ledger import Standing, survey
from holdfast.commit.records import Done
from holdfast.errors import Corrupt
from holdfast.plan.audit import Book, balances_json
from holdfast.plan.counts import Balance, added
from holdfast.ports import Store
from holdfast.status import STATE_REPORT_KEY


@dataclass(frozen=True)
class SinkRows:
    """Rows of one sink in the epochs that both the book and the ledger have.

    Parameters
    ----------
    epochs : int
        How many these are.
    staged : int
        Rows that were carried or staged, as the audit counted.
    published, dead : int
        Rows that the ledger says are visible; those that the sink refused and that are dead letters.
    differs : tuple of int
        Epochs in which they do not add up.
    """

    epochs: int = 0
    staged: int = 0
    published: int = 0
    dead: int = 0
    differs: tuple[int, ...] = ()

    def plus(self, other: SinkRows) -> SinkRows:
        """Return the rows of both, of epochs of which neither has one of the other's."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return SinkRows(*(one + another for one, another in pairs))


@dataclass(frozen=True)
class AuditReport:
    """What ``holdfast inspect --audit`` shows.

    Parameters
    ----------
    book : Book
        What the audit has counted.
    published : mapping of str to SinkRows
        Sink -> the ledger's word; without those whose epochs need no decision in the checkpoint.
    shards : tuple of AuditReport
        Those of all shards, by their numbers, whose sum it is.  Empty where the pipeline has none: epochs of shards are
        each shard's own, so a sum has the totals alone.
    """

    book: Book
    published: Mapping[str, SinkRows] = field(default_factory=dict)
    shards: tuple[AuditReport, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as ``--json`` shows it."""
        book = self.book
        return {
            "first": book.first,
            "last": book.last,
            "missing": book.missing,
            "totals": balances_json(book.totals),
            "epochs": [{"epoch": epoch, "rows": balances_json(of)} for epoch, of in book.epochs.items()],
            "problems": [{"epoch": epoch, **vars(of)} for epoch, of in book.problems],
            "published": {sink: {**vars(of), "differs": list(of.differs)} for sink, of in self.published.items()},
            **({"shards": [each.to_json() for each in self.shards]} if self.shards else {}),
        }


def audit_report(store: Store) -> AuditReport:
    """Return what the audit has counted in a checkpoint; an empty book where it never looked.  Changes nothing.

    Raises
    ------
    Corrupt
        If it cannot be read.
    """
    try:
        found = json.loads(store.get(STATE_REPORT_KEY) or b"{}").get("audit")
        book = Book() if found is None else Book.from_json(found)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(
            f"{STATE_REPORT_KEY} in the checkpoint cannot be read.",
            why=f"it is not what this version writes: {error!r}.",
            do="run the pipeline: it is written anew. Nothing depends on it.",
            participant=STATE_REPORT_KEY,
        ) from error
    return AuditReport(book, _published(book, store))


def summed_audit(reports: Sequence[AuditReport]) -> AuditReport:
    """Return the report of all shards: what each has counted adds up.

    Parameters
    ----------
    reports : sequence of AuditReport
        By the numbers of the shards; of one alone, the report is its own.
    """
    if len(reports) == 1:
        return reports[0]
    totals, rows = dict[str, Balance](), dict[str, SinkRows]()
    for each in reports:
        totals = added(totals, each.book.totals)
        for sink, of in each.published.items():
            rows[sink] = rows.get(sink, SinkRows()).plus(of)
    books = [each.book for each in reports]
    first = min((book.first for book in books if book.last), default=0)
    last = max(book.last for book in books)
    missing, problems = sum(book.missing for book in books), tuple(of for book in books for of in book.problems)
    return AuditReport(Book(first, last, missing, totals, {}, problems), rows, tuple(reports))


def _published(book: Book, store: Store) -> dict[str, SinkRows]:
    found: dict[str, SinkRows] = {}
    for entry in survey(store):
        of, done = book.epochs.get(entry.key.epoch), entry.content
        if of is None or entry.standing is not Standing.DONE or not isinstance(done, Done):
            continue
        for sink, rows in done.row_counts.items():
            if sink not in of:
                continue
            staged, dead = of[sink].left, len((done.rejected or {}).get(sink, ()))
            differs = () if staged == rows + dead else (entry.key.epoch,)
            found[sink] = found.get(sink, SinkRows()).plus(SinkRows(1, staged, rows, dead, differs))
    return found


def audit_lines(report: AuditReport) -> Iterator[str]:
    """Say it to people.

    Examples
    --------
    >>> from holdfast.plan.counts import Balance
    >>> book = Book().with_epoch(1, {"trips": Balance(5, 4, {"rejected": 1}), "table": Balance(4, 4)})
    >>> print(*audit_lines(AuditReport(book, {"table": SinkRows(1, 4, 3, 1)})), sep=chr(10))
    audit       epoch 1 to 1: all rows add up
                    in  out  rejected
      trips          5    4         1
      table          4    4         .
    published   table: 3 rows, 1 dead letters, of 4 staged in 1 epochs of the ledger
    """
    book = report.book
    if not book.last and not book.problems:
        yield 'audit       nothing is counted: no run had on_audit="warn" or "stop"'
        return
    gap = f" ({book.missing} epochs between them were not counted, or lost by a crash)" if book.missing else ""
    odd = [name for name, of in book.totals.items() if not of.is_even]
    is_well = not book.problems and not odd and not any(of.differs for of in report.published.values())
    verdict = "all rows add up" if is_well else "rows do not add up"
    yield f"audit       {_which(report)}{gap}: {verdict}"
    yield from _table(balances_json(book.totals))
    for sink, of in report.published.items():
        dead = f", {of.dead:,} dead letters" if of.dead else ""
        whole = f"of {of.staged:,} staged in {of.epochs} epochs of the ledger"
        yield f"published   {sink}: {of.published:,} rows{dead}, {whole}"
    for name in odd:
        yield f"! {name}: its rows of all epochs do not add up"
    for where, one in _each(report):
        for epoch, each in one.book.problems:
            rows = f"{each.due:,} rows are due, there are {each.found:,}"
            yield f"! {where}epoch {epoch}, {each.operator}: {each.what}: {rows}"
        for sink, of in one.published.items():
            for epoch in of.differs:
                yield f"! {where}epoch {epoch}, {sink}: what the ledger says is published is not what was staged"


def _which(report: AuditReport) -> str:
    """Return which epochs a report is of."""
    if not report.shards:
        return f"epoch {report.book.first} to {report.book.last}"
    counted = [each.book.last - each.book.first + 1 - each.book.missing for each in report.shards if each.book.last]
    return f"{sum(counted)} epochs of {len(counted)} shards"


def _each(report: AuditReport) -> Iterator[tuple[str, AuditReport]]:
    """Yield what problems are told of: each shard, or the pipeline."""
    if not report.shards:
        yield "", report
    for shard, each in enumerate(report.shards):
        yield f"shard {shard}, ", each


def _table(rows: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    columns = list(dict.fromkeys(["in", "out", *(what for of in rows.values() for what in of)]))
    columns.sort(key=lambda what: ("held", "made").index(what) + 1 if what in ("held", "made") else 0)
    shown = [[name, *(f"{of[what]:,}" if what in of else "." for what in columns)] for name, of in rows.items()]
    name_width = max([12, *(len(line[0]) for line in shown)])
    widths = [max(len(line[place]) for line in [["", *columns], *shown]) for place in range(1, len(columns) + 1)]
    yield _line("", columns, name_width, widths)
    for name, *counts in shown:
        yield _line(name, counts, name_width, widths)


def _line(name: str, cells: Sequence[str], name_width: int, widths: Sequence[int]) -> str:
    told = "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
    return f"  {name:<{name_width}}  {told}"
