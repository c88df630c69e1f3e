"""What waits for sinks with a pace of their own: when they are due, what they get, what may be forgotten."""

import pyarrow as pa
import pytest

from holdfast.commit import paced
from holdfast.commit.group import Underway
from holdfast.commit.ledger import Key
from holdfast.commit.paced import HeldBack
from holdfast.commit.records import Decided
from holdfast.errors import InternalError
from holdfast.graph.trigger import SinkPace
from holdfast.ports import Carried, EpochRecord, Staged
from holdfast.testing import SimulatedClock

SECOND = 1_000_000


def epoch(number, names=("slow", "fast"), rows=1, *, is_staged=False, has_key=True):
    ids = pa.table({"id": pa.array(range(rows), pa.int64())})
    part = Staged(f"epoch {number}", rows) if is_staged else Carried(ids)
    decided = Decided(EpochRecord("trips", number, 1, {}), dict.fromkeys(names, (part,)))
    return Underway(decided, Key(number, 1) if has_key else None)


def numbers(entries):
    return [entry.record.epoch for entry in entries]


def taken(back):
    return {name: numbers(entries) for name, entries in back.take().items()}


def made(limit_bytes=10**9, clock=None, **paces):
    return HeldBack(paces, limit_bytes, (clock or SimulatedClock(0)).now_us)


def test_without_a_pace_every_epoch_passes_through():
    back = made()
    back.add([epoch(1), epoch(2, has_key=False)])
    assert not back.is_due
    assert taken(back) == {}


def test_a_number_of_epochs():
    back = made(slow=SinkPace(every_epochs=2))
    back.add([epoch(1)])
    assert (back.is_due, taken(back)) == (False, {})
    back.add([epoch(2)])
    assert back.is_due
    assert taken(back) == {"slow": [1, 2]}
    assert back.waiting["slow"].epochs == 0


def test_a_duration_counts_from_the_oldest_epoch_that_waits():
    clock = SimulatedClock(5 * SECOND)
    back = made(clock=clock, slow=SinkPace(every_us=10 * SECOND))
    clock.advance_us(100 * SECOND)
    assert not back.is_due, "nothing waits"
    back.add([epoch(1)])
    clock.advance_us(9 * SECOND)
    back.add([epoch(2)])
    assert not back.is_due
    clock.advance_us(SECOND)
    assert taken(back) == {"slow": [1, 2]}
    back.add([epoch(3)])
    assert back.waiting["slow"].since_us == clock.now_us()
    assert not back.is_due


def test_each_sink_has_a_pace_of_its_own():
    back = made(slow=SinkPace(every_epochs=2), slower=SinkPace(every_epochs=3))
    seen = []
    for number in range(1, 7):
        back.add([epoch(number, ("slow", "slower", "fast"))])
        seen.append(taken(back))
    assert seen == [
        {},
        {"slow": [1, 2]},
        {"slower": [1, 2, 3]},
        {"slow": [3, 4]},
        {},
        {"slow": [5, 6], "slower": [4, 5, 6]},
    ]


def test_the_rows_of_sinks_that_have_them_are_let_go_and_stay_counted():
    back = made(slow=SinkPace(every_epochs=2))
    back.add([epoch(1, rows=3), epoch(2, rows=4)])
    entries = back.take()["slow"]
    assert [set(entry.decided.parts) for entry in entries] == [{"slow"}, {"slow"}]
    assert [entry.done.row_counts for entry in entries] == [{"slow": 3, "fast": 3}, {"slow": 4, "fast": 4}]


def test_the_sink_that_most_bytes_wait_for_commits_when_the_driver_holds_too_many():
    back = made(limit_bytes=100, one=SinkPace(every_epochs=100), two=SinkPace(every_epochs=100))
    back.add([epoch(1, ("one",), rows=4)])
    back.add([epoch(2, ("two",), rows=7)])
    assert not back.is_due
    assert back.waiting["two"].size_bytes == 56
    back.add([epoch(3, ("one",), rows=2)])
    assert taken(back) == {"two": [2]}
    assert not back.took_staged
    assert not back.is_due


def test_staged_rows_are_bounded_by_their_number_and_by_that_of_epochs(monkeypatch):
    monkeypatch.setattr(paced, "WAITING_ROWS_MAX", 10)
    monkeypatch.setattr(paced, "WAITING_EPOCHS_MAX", 4)
    back = made(slow=SinkPace(every_us=10**15))
    back.add([epoch(1, rows=9, is_staged=True)])
    assert not back.is_due
    back.add([epoch(2, rows=1, is_staged=True)])
    assert taken(back) == {"slow": [1, 2]}
    assert back.took_staged
    back.add([epoch(number) for number in range(3, 7)])
    assert taken(back) == {"slow": [3, 4, 5, 6]}


def test_what_is_hurried_is_due_once():
    back = made(slow=SinkPace(every_epochs=100))
    back.hurry(["slow"])
    assert not back.is_due, "nothing waits"
    back.add([epoch(1)])
    assert taken(back) == {"slow": [1]}
    back.add([epoch(2)])
    assert taken(back) == {}


def test_the_first_epoch_of_a_sink_that_holds_nothing_passes():
    back = made(slow=SinkPace(every_epochs=2), slower=SinkPace(every_epochs=2))
    back.begin(["slower"])
    assert not back.is_due, "nothing waits"
    back.add([epoch(1, ("slow", "slower"))])
    assert taken(back) == {"slower": [1]}
    back.add([epoch(2, ("slow", "slower"))])
    assert taken(back) == {"slow": [1, 2]}


def test_what_waits_has_a_decision():
    back = made(slow=SinkPace(every_epochs=2))
    with pytest.raises(InternalError, match=r"to wait for \['slow'\] without a decision"):
        back.add([epoch(1, has_key=False)])
    back.add([epoch(1, ("fast",), has_key=False)])
