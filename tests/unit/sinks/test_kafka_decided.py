"""What becomes of transactions that a ledger has decided to commit (design/0036); their coordinator is scripted.

With real brokers: ``tests/crash/test_kafka_crash_loop.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.connectors.kafka.brokers import Brokers
from holdfast.connectors.kafka.sink import transactions
from holdfast.connectors.kafka.sink.form import Limits
from holdfast.connectors.kafka.sink.ledger import KafkaLedger, KafkaNames, Unfinished
from holdfast.connectors.kafka.sink.session import KafkaSession
from holdfast.connectors.kafka.sink.sink import KafkaSink
from holdfast.connectors.kafka.sink.transactions import FORGOTTEN, Producing, Transactions
from holdfast.connectors.kit.sql import LedgerRow
from holdfast.errors import Diverged, InDoubt, Unavailable

NAMES = KafkaNames("words", "target")
FIRST, SECOND, THIRD = (f"{NAMES.staged}1.5.{task}.0.ab" for task in range(3))
BEFORE = {"epoch": 4, "positions": "{}", "pts": None, "recent_ends": ""}


class Coordinator:
    """Transactions in states; ``ends`` says how a request to end one goes, and may change the states.

    As a real one: a commit of what is committed succeeds again, and so does an abort of what is aborted.
    """

    def __init__(self, *states: str, then: Mapping[str, str] | None = None) -> None:
        self.states = dict(zip((FIRST, SECOND, THIRD), states, strict=True))
        self._then = dict(then or {})

    def describe(self, names: Iterable[str]) -> dict[str, Producing]:
        return {name: Producing(self.states[name]) for name in names}

    def end(self, name: str, producer_id: int, epoch: int, *, commit: bool) -> bool:
        self.states.update({other: state for other, state in self._then.items() if self.states[other] == "Ongoing"})
        ended = "CompleteCommit" if commit else "CompleteAbort"
        if self.states[name] == "Ongoing":
            self.states[name] = ended
        return self.states[name] in (ended, ended.replace("Complete", "Prepare"))


def completed(coordinator: Coordinator, before: dict[str, Any] | None = BEFORE) -> tuple[bool, list[KafkaLedger]]:
    """Return what completing says, and what the ledger says from then on."""
    sink = object.__new__(KafkaSink)
    sink.name, sink._node, sink._names, sink._pipeline = "target", "sink 'target'", NAMES, "words"
    left = Unfinished(5, dict.fromkeys(coordinator.states, (7, 0)), before)
    sink._ledger = KafkaLedger(LedgerRow(5, 1, "{}", None), "", "owner", left, {})
    sink._transactions = coordinator  # type: ignore[assignment]
    noted: list[KafkaLedger] = []
    sink._commit = noted.append  # type: ignore[method-assign, assignment]
    return sink._complete(left), noted


def test_what_is_open_is_committed_and_so_is_the_rest_of_what_is():
    for states in (["Ongoing"] * 3, ["CompleteCommit", "Ongoing", "PrepareCommit"], ["CompleteCommit"] * 3):
        coordinator = Coordinator(*states)
        done, noted = completed(coordinator)
        assert (done, [each.unfinished for each in noted]) == (True, [None])
        assert "Ongoing" not in coordinator.states.values()


@pytest.mark.parametrize(
    ("states", "then"),
    [
        (["CompleteAbort"] * 3, {}),
        (["CompleteAbort", "Ongoing", "Ongoing"], {}),
        (["CompleteAbort", "Ongoing", "Ongoing"], {SECOND: "CompleteAbort"}),
        (["Ongoing"] * 3, dict.fromkeys((FIRST, SECOND, THIRD), "CompleteAbort")),
    ],
    ids=["before it is looked", "some", "one more while they are aborted", "all while they are committed"],
)
def test_where_all_have_timed_out_the_decision_is_taken_back(states: list[str], then: dict[str, str]):
    coordinator = Coordinator(*states, then=then)
    done, noted = completed(coordinator)
    assert (done, [each.row.epoch for each in noted]) == (False, [4])
    assert set(coordinator.states.values()) == {"CompleteAbort"}


def test_where_a_part_has_timed_out_the_tasks_are_told():
    for states, then in (
        (["CompleteAbort", "CompleteCommit", "Ongoing"], {}),
        (["CompleteCommit", "Ongoing", "Ongoing"], {THIRD: "CompleteAbort"}),
        (["Ongoing"] * 3, {THIRD: "CompleteAbort"}),
    ):
        coordinator = Coordinator(*states, then=then)
        with pytest.raises(Diverged) as caught:
            completed(coordinator)
        aborted = [name for name, state in coordinator.states.items() if state == "CompleteAbort"]
        assert len(aborted) == 1
        assert f"1/5/{aborted[0].split('.')[-3]}/0 had ended" in caught.value.why
        assert "Ongoing" not in coordinator.states.values()


@pytest.mark.parametrize("before", [BEFORE, None], ids=["all staged", "rows of the driver, too"])
def test_what_the_cluster_has_forgotten_counts_neither_as_aborted_nor_as_committed(before: dict[str, Any] | None):
    """A week after a run died between the last commit and the note that all is done."""
    for states in ([FORGOTTEN] * 3, [FORGOTTEN, "CompleteAbort", FORGOTTEN], ["CompleteCommit", FORGOTTEN, "Ongoing"]):
        coordinator = Coordinator(*states)
        with pytest.raises(Diverged, match="nobody knows whether rows of epoch 5 are visible") as caught:
            completed(coordinator, before)
        assert "words/1/5/0/0" in caught.value.why or "words/1/5/1/0" in caught.value.why
        assert not caught.value.is_mended_by_start
        assert list(coordinator.states.values()) == states


def test_transactions_that_end_while_they_are_looked_at_leave_it_in_doubt(monkeypatch: pytest.MonkeyPatch):
    coordinator = Coordinator(*["Ongoing"] * 3)
    monkeypatch.setattr(coordinator, "end", lambda *_, **__: False)
    with pytest.raises(InDoubt, match="not all of it is visible yet"):
        completed(coordinator)


def read_again(known: KafkaLedger, found: KafkaLedger, monkeypatch: pytest.MonkeyPatch) -> KafkaLedger:
    """Return what a run takes for its ledger when it makes another producer."""
    sink = object.__new__(KafkaSink)
    sink.name, sink._node, sink._names, sink._pipeline = "target", "sink 'target'", NAMES, "words"
    sink._ledger, sink._generation, sink._producer, sink._has_progress = known, 1, None, True
    sink._stages, sink._timeout_ms, sink._limits = False, 60_000, Limits()
    producer = SimpleNamespace(**dict.fromkeys(("begin", "commit", "drop"), lambda: None), send=lambda _: 1)
    sink._session = SimpleNamespace(producer=lambda *_: producer)  # type: ignore[assignment]
    said: Callable[..., Any] = lambda *_, **__: (found, [])  # noqa: E731
    monkeypatch.setattr("holdfast.connectors.kafka.sink.sink.ledger.read", said)
    return sink._current()


def told(epoch: int, unfinished: Unfinished | None = None) -> KafkaLedger:
    return KafkaLedger(LedgerRow(epoch, 1, "{}", None), "", "owner", unfinished, {})


def test_a_ledger_of_this_run_that_went_back_is_not_believed(monkeypatch: pytest.MonkeyPatch):
    decided = Unfinished(5, {FIRST: (7, 0)}, BEFORE)
    assert read_again(told(5), told(6), monkeypatch).row.epoch == 6, "an answer was lost"
    assert read_again(told(5, decided), told(4), monkeypatch).row.epoch == 4, "it was taken back"
    for known, found in ((told(5), told(4)), (told(5), told(4, decided)), (told(5, decided), told(3))):
        with pytest.raises(Unavailable, match="older ledger"):
            read_again(known, found, monkeypatch)


def test_a_client_is_replaced_before_the_names_that_it_remembers_are_many(monkeypatch: pytest.MonkeyPatch):
    made: list[SimpleNamespace] = []

    def client(**_: Any) -> SimpleNamespace:
        names: list[str] = []
        made.append(SimpleNamespace(names=names, describe_transactions=described(names), close=names.clear))
        return made[-1]

    def described(names: list[str]) -> Callable[[list[str]], dict[str, SimpleNamespace]]:
        def describe(asked: list[str]) -> dict[str, SimpleNamespace]:
            names.extend(asked)
            told = {"producer_id": 7, "producer_epoch": 0, "transaction_start_time_ms": 0, "transaction_timeout_ms": 9}
            return {name: SimpleNamespace(state=SimpleNamespace(value="Ongoing"), **told) for name in asked}

        return describe

    monkeypatch.setattr(transactions, "_Admin", client)
    monkeypatch.setattr(transactions, "_USES_AT_MOST", 3)
    asked = Transactions(KafkaSession(Brokers("nowhere:9092"), "sink 'target'", "test"))
    names = [f"{NAMES.staged}1.{epoch}.0.0.ab" for epoch in range(8)]
    assert [found.producer_id for found in asked.describe(names).values()] == [7] * 8
    assert [each.names for each in made] == [[], [], names[6:]]
