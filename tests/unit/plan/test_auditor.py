"""What the audit counted, as totals of every source, operator and sink, and how long it is kept (design/0026)."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

import holdfast as hf
from holdfast.errors import InternalError
from holdfast.plan.audit import EPOCHS_KEPT, Audit, Auditor, Book, Imbalance, kept_book
from holdfast.plan.counts import Balance, EpochReport, Observed, Totals
from holdfast.plan.report import OperatorReports
from holdfast.state.bucket_report import BucketReport
from holdfast.status import STATE_REPORT_KEY
from holdfast.testing import SimulatedClock, SimulatedStore

NO_EDGES = Audit((), {})


def _graph() -> hf.Pipeline:
    read = hf.read.rows([], schema="k STRING, t BIGINT", name="rows", timestamp="t", bounded=True)
    kept = read | hf.filter("t > 0", name="kept")
    called = kept | hf.map_batches(lambda batch: batch, "k STRING, t BIGINT", timestamp="t", name="called")
    limited = kept | hf.limit_in_flight(1, "k", timeout=3, name="limited")
    return hf.Pipeline("p", called | hf.write.console(name="one"), limited | hf.write.console(name="two"))


def test_every_row_that_came_is_accounted_for_by_the_kind_of_the_operator() -> None:
    tally = {
        "kept": {"in": 8, "due": 6, "out": 6},
        "called": {"in": 6, "due": 9, "out": 9},
        "limited": {"in.rows": 6, "in": 6, "due.rows": 4, "made.rows": 4, "out.rows": 3, "due.late": 1, "made.late": 1,
                    "out.late": 1, "fate.dropped": 2, "held before": 3, "held after": 2, "fates": 7},
    }  # fmt: skip
    report = EpochReport({"rows": Observed(9, 1), "kept": Observed(8, 2)}, tally=tally)
    found = Totals(_graph()).of(report, {"one": 9, "two": 3}, {"one": 9, "two": 3})
    assert {name: of.to_json() for name, of in found.items()} == {
        "rows": {"in": 9, "out": 8, "rejected": 1},
        "kept": {"in": 8, "out": 6, "filtered": 2},
        "called": {"in": 6, "out": 0, "absorbed": 6, "made": 9},
        "limited": {"in": 6, "out": 3, "late": 1, "dropped": 2, "dead": 1, "held": -1},
        "one": {"in": 9, "out": 9},
        "two": {"in": 3, "out": 3},
    }
    assert all(of.is_even for of in found.values())


@pytest.mark.parametrize("what", ["in", "due.rows", "fate.dropped", "held after"])
def test_a_row_that_is_nowhere_makes_a_total_odd(what: str) -> None:
    counted = {"in": 3, "due.rows": 1, "made.rows": 1, "out.rows": 1, "fate.dropped": 1, "held before": 0,
               "held after": 1, "fates": 2}  # fmt: skip
    spoilt = counted | {what: counted[what] + 1} | ({"made.rows": 2, "out.rows": 2} if what == "due.rows" else {})
    totals = Totals(_graph())
    assert totals.of(EpochReport(tally={"limited": counted}), {}, {})["limited"].is_even
    assert not totals.of(EpochReport(tally={"limited": spoilt}), {}, {})["limited"].is_even


def _held(before: int, after: int) -> EpochReport:
    return EpochReport(buckets={"sets/1": BucketReport(held=(before, after)), "other/0": BucketReport()})


def test_rows_that_wait_in_a_bucket_are_there_when_it_is_called_again() -> None:
    auditor = Auditor("p", NO_EDGES, stops=True)
    for epoch, (before, after) in enumerate([(7, 5), (5, 5), (5, 8)], 1):  # the first one is nothing to compare with
        auditor.look(epoch, _held(before, after), {})
        auditor.note(epoch, _held(before, after), {})
    auditor.look(4, _held(8, 0), {})  # an attempt that was not decided
    auditor.look(4, _held(8, 1), {})
    with pytest.raises(InternalError, match=r"epoch 5 .* at 'sets': 1 rows are missing") as error:
        auditor.look(5, _held(7, 7), {})
    assert "bucket 1 held" in str(error.value.why)
    assert [epoch for epoch, _ in auditor.book.problems] == [5]


def test_warn_logs_each_problem_and_keeps_it(caplog: pytest.LogCaptureFixture) -> None:
    auditor = Auditor("p", NO_EDGES, stops=False)
    report = EpochReport(tally={"one": {"in": 2, "due": 2, "out": 1}, "two": {"in": 1, "due": 1, "out": 2}})
    with caplog.at_level(logging.WARNING):
        auditor.look(3, report, {})
    assert ["'one': 1 rows are missing" in caplog.messages[0], "'two': 1 rows are too many" in caplog.messages[1]] == [
        True,
        True,
    ]
    assert [(epoch, of.operator, of.due, of.found) for epoch, of in auditor.book.problems] == [
        (3, "one", 2, 1),
        (3, "two", 1, 2),
    ]


def test_the_book_adds_up_says_what_it_lacks_and_counts_no_epoch_twice() -> None:
    book = Book()
    for epoch in (3, 4, 4, 8):
        book = book.with_epoch(epoch, {"rows": Balance(2, 1, {"late": 1})})
    assert (book.first, book.last, book.missing, list(book.epochs)) == (3, 8, 3, [3, 4, 8])
    assert book.totals == {"rows": Balance(6, 3, {"late": 3})}
    book = Book(*vars(book).values()).with_epoch(9, {"new": Balance(1, 1)})
    assert list(book.totals) == ["rows", "new"]


def test_the_book_keeps_the_last_epochs_alone_and_the_sum_of_all() -> None:
    book = Book()
    for epoch in range(1, EPOCHS_KEPT + 51):
        book = book.with_epoch(epoch, {"rows": Balance(1, 1)})
    assert (len(book.epochs), min(book.epochs), book.totals["rows"].came) == (EPOCHS_KEPT, 51, EPOCHS_KEPT + 50)


def test_the_book_is_kept_with_the_report_and_the_next_run_goes_on_with_it() -> None:
    store = SimulatedStore()
    auditor = Auditor("p", NO_EDGES, stops=False, book=Book(problems=((1, Imbalance("one", "what", 2, 1)),)))
    reports = OperatorReports({}, store, SimulatedClock(), 1, auditor)
    auditor.note(2, EpochReport(), {})
    reports.note(2, {})
    assert list(store.objects) == [STATE_REPORT_KEY]
    assert kept_book(store) == auditor.book
    silent = OperatorReports({"sums": "aggregate"}, store, SimulatedClock(), 2)  # one that does not look leaves it
    silent.note(3, {})
    assert kept_book(store) == auditor.book


@pytest.mark.parametrize("damage", [b"no JSON", b'{"format": 1, "audit": {"first": 1}}', b'{"format": 1, "audit": 7}'])
def test_a_book_that_cannot_be_read_is_begun_anew(damage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    store = SimulatedStore()
    store.put(STATE_REPORT_KEY, damage)
    assert kept_book(store) is None
    assert "cannot be read" in caplog.text


def test_what_is_wrong_in_the_first_epoch_of_a_run_is_kept_although_the_run_ends_there() -> None:
    store = SimulatedStore()
    auditor = Auditor("p", NO_EDGES, stops=True)
    reports = OperatorReports({}, store, SimulatedClock(), 1, auditor)
    with pytest.raises(InternalError):
        auditor.look(1, EpochReport(tally={"one": {"in": 2, "due": 2, "out": 1}}), {})
    reports.keep()
    found: Any = json.loads(store.objects[STATE_REPORT_KEY])
    assert found["audit"]["problems"][0][:2] == [1, "one"]
