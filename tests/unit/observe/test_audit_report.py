"""The book of the audit beside the ledger, as ``holdfast inspect --audit`` shows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.cli.app import app
from holdfast.commit.records import Done, encode
from holdfast.errors import Corrupt
from holdfast.observe.audit_report import audit_lines, audit_report, summed_audit
from holdfast.plan.audit import Book, Imbalance
from holdfast.plan.counts import Balance
from holdfast.ports import EpochRecord, Store
from holdfast.shards.assignment import Assignment, assign, regroup
from holdfast.shards.layout import ShardLayout, record_layout
from holdfast.status import STATE_REPORT_KEY
from holdfast.store import sealed
from holdfast.store.paths import open_store
from holdfast.testing import SimulatedStore


def keep(store: Store, book: Book) -> None:
    store.put(STATE_REPORT_KEY, json.dumps({"format": 1, "audit": book.to_json()}).encode())


def publish(store: Store, epoch: int, rows: int, *refused: int) -> None:
    done = Done(EpochRecord("trips", epoch, 1, {}), {"table": rows}, {"table": refused} if refused else {})
    store.put("fences/00000001.json", sealed.dump({"accepts": []}))
    store.put(f"ledger/{epoch:012d}-{1:08d}", encode(done))


BOOK = Book().with_epoch(1, {"trips": Balance(5, 4, {"rejected": 1}), "table": Balance(4, 4)})


def test_what_was_staged_is_published_or_a_dead_letter() -> None:
    store = SimulatedStore()
    keep(store, BOOK.with_epoch(2, {"trips": Balance(3, 3), "table": Balance(3, 3)}))
    publish(store, 1, 3, 2)
    publish(store, 2, 3)
    publish(store, 9, 3)  # the book does not have it
    report = audit_report(store)
    assert vars(report.published["table"]) == {"epochs": 2, "staged": 7, "published": 6, "dead": 1, "differs": ()}
    text = list(audit_lines(report))
    assert text[0] == "audit       epoch 1 to 2: all rows add up"
    assert text[-1] == "published   table: 6 rows, 1 dead letters, of 7 staged in 2 epochs of the ledger"


def test_an_epoch_of_which_less_was_published_than_staged_is_named() -> None:
    store = SimulatedStore()
    keep(store, BOOK)
    publish(store, 1, 3)
    text = list(audit_lines(audit_report(store)))
    assert text[0].endswith("rows do not add up")
    assert text[-1] == "! epoch 1, table: what the ledger says is published is not what was staged"


def test_problems_and_gaps_are_shown() -> None:
    book = Book(problems=((1, Imbalance("kept", "what came leaves it", 5, 4)),))
    book = book.with_epoch(1, {"kept": Balance(5, 4)}).with_epoch(4, {"kept": Balance(1, 1)})
    store = SimulatedStore()
    keep(store, book)
    text = list(audit_lines(audit_report(store)))
    assert "(2 epochs between them were not counted, or lost by a crash): rows do not add up" in text[0]
    assert "! epoch 1, kept: what came leaves it: 5 rows are due, there are 4" in text
    assert "! kept: its rows of all epochs do not add up" in text


def test_the_books_of_shards_add_up_and_problems_are_told_of_their_shard() -> None:
    stores = [SimulatedStore() for _ in range(4)]
    keep(stores[0], BOOK.with_epoch(2, {"trips": Balance(3, 3), "table": Balance(3, 3)}))
    publish(stores[0], 1, 4)
    book = Book(problems=((7, Imbalance("kept", "what came leaves it", 5, 4)),)).with_epoch(7, {"table": Balance(2, 2)})
    keep(stores[2], book.with_epoch(9, {"table": Balance(6, 6), "more": Balance(1, 1)}))
    publish(stores[2], 9, 5)
    report = summed_audit([audit_report(store) for store in stores])
    assert report.book.totals == {
        "trips": Balance(8, 7, {"rejected": 1}), "table": Balance(15, 15), "more": Balance(1, 1)
    }  # fmt: skip
    assert vars(report.published["table"]) == {"epochs": 2, "staged": 10, "published": 9, "dead": 0, "differs": (9,)}
    text = list(audit_lines(report))
    assert text[0].startswith("audit       4 epochs of 2 shards (1 epochs between them")
    assert text[0].endswith("rows do not add up")
    assert text[-2:] == [
        "! shard 2, epoch 7, kept: what came leaves it: 5 rows are due, there are 4",
        "! shard 2, epoch 9, table: what the ledger says is published is not what was staged",
    ]
    shown = report.to_json()
    assert [each["last"] for each in shown["shards"]] == [2, 0, 9, 0]
    assert (shown["totals"]["table"], shown["epochs"]) == ({"in": 15, "out": 15}, [])
    alone = audit_report(stores[0])
    assert summed_audit([alone]) == alone
    assert "nothing is counted" in next(audit_lines(summed_audit([audit_report(SimulatedStore())] * 2)))


def test_where_nothing_was_counted_it_says_so() -> None:
    store = SimulatedStore()
    (line,) = audit_lines(audit_report(store))
    assert "nothing is counted" in line
    store.put(STATE_REPORT_KEY, json.dumps({"format": 1, "epoch": 3}).encode())  # of an earlier version
    assert audit_report(store).book == Book()


@pytest.mark.parametrize("damage", [b"{", b"[]", b'{"audit": 3}', b'{"audit": {"first": 1}}'])
def test_a_damaged_book_is_an_error_that_says_that_nothing_depends_on_it(damage: bytes) -> None:
    store = SimulatedStore()
    store.put(STATE_REPORT_KEY, damage)
    with pytest.raises(Corrupt) as error:
        audit_report(store)
    assert "Nothing depends on it" in error.value.do


@pytest.mark.slow
def test_the_command_shows_a_table_or_an_object(tmp_path: object) -> None:
    keep(open_store(str(tmp_path)), BOOK)
    shown = CliRunner().invoke(app, ["inspect", "--checkpoint", str(tmp_path), "--audit"])
    assert shown.exit_code == 0
    assert "  trips          5    4         1" in shown.output
    found = json.loads(CliRunner().invoke(app, ["inspect", "--checkpoint", str(tmp_path), "--audit", "--json"]).output)
    assert found["audit"]["totals"]["trips"] == {"in": 5, "out": 4, "rejected": 1}
    assert found["audit"]["epochs"] == [{"epoch": 1, "rows": found["audit"]["totals"]}]


@pytest.mark.slow
def test_the_command_adds_up_what_all_shards_have_counted(tmp_path: Path) -> None:
    """Those that were given up, too."""
    two = regroup(assign(Assignment(3), "abc"), 2)
    for place in (tmp_path, *(tmp_path / "shards" / str(shard) for shard in (1, 2))):
        store = open_store(str(place))
        store.prepare()
        keep(store, BOOK)
    assert record_layout(open_store(str(tmp_path)), ShardLayout(two)) is not None
    found = json.loads(CliRunner().invoke(app, ["inspect", "--checkpoint", str(tmp_path), "--audit", "--json"]).output)
    assert found["audit"]["totals"]["trips"] == {"in": 15, "out": 12, "rejected": 3}
    assert len(found["audit"]["shards"]) == 3
