"""What publishing promises, broken on purpose: each time the run stops with an error of ours."""

import pyarrow as pa
import pytest

from holdfast.commit.delivery import Delivery
from holdfast.commit.group import CommitGroup, Underway
from holdfast.commit.ledger import Ledger
from holdfast.commit.publishing import Publisher
from holdfast.commit.records import Decided
from holdfast.commit.story import RunFailures, Stories
from holdfast.commit.transaction import Event
from holdfast.errors import Diverged, InternalError, Unavailable
from holdfast.ports import Carried, EpochRecord
from holdfast.retry import Retrier, RetryPolicy
from holdfast.testing import SimulatedClock, SimulatedSink, SimulatedStore, SimulatedTarget


class Room:
    """The parts of a coordinator, without one."""

    def __init__(self, *names):
        self.target = SimulatedTarget()
        clock = SimulatedClock()
        self.stories = Stories(clock)
        self.failures = RunFailures(self.stories)
        retrier = Retrier(RetryPolicy(attempts=1), clock, on_retry=self.failures.note_retry)
        self.ledger = Ledger(SimulatedStore(), "trips")
        sinks = {name: SimulatedSink(name, self.target) for name in names}
        self.delivery = Delivery("trips", sinks, retrier, self.stories)
        group = CommitGroup(None, 0)
        self.publisher = Publisher(self.delivery, self.ledger, self.stories, self.failures, group, None)
        self.ledger.identify()
        self.ledger.take_generation(0, 0)
        self.delivery.open(1)
        self.ledger.fence()

    def decided(self, epoch):
        decided = Decided(EpochRecord("trips", epoch, 1, {}), dict.fromkeys(self.delivery.names, carried(epoch)))
        self.stories.take(epoch, Event.STAGE)
        key = self.ledger.decide(decided)
        self.stories.take(epoch, Event.DECIDE)
        return Underway(decided, key)


def carried(epoch):
    return (Carried(pa.table({"id": [epoch]})),)


def test_a_sink_is_never_asked_to_publish_what_it_holds():
    room = Room("table")
    room.publisher.carry_out([room.decided(2)])
    for epoch in (1, 2):
        again = Underway(Decided(EpochRecord("trips", epoch, 1, {}), {"table": carried(epoch)}), None)
        with pytest.raises(Diverged, match=f"holds epoch 2, and then that it lacks epoch {epoch}"):
            room.publisher.publish("table", [again])
    assert [row[0] for row in room.target.rows()] == [2]


def test_epochs_of_one_transaction_ascend():
    room = Room("table")
    with pytest.raises(InternalError, match=r"is to publish \[2, 1\]") as caught:
        room.publisher.carry_out([room.decided(2), room.decided(1)])
    assert "History of epoch 1, oldest first" in caught.value.__notes__[0]
    assert room.target.rows() == []


def test_an_epoch_that_a_sink_lacks_is_not_forgotten():
    room = Room("table", "files")
    entry = room.decided(1)
    room.publisher.begin([entry])
    room.publisher.publish("table", [entry])
    with pytest.raises(InternalError, match=r"is to be forgotten, and \['files'\] lack it"):
        room.publisher.complete(entry)
    assert room.ledger.read(entry.key) == entry.decided
    room.publisher.complete(entry, left_out=["files"])
    assert room.ledger.newest_done.sinks == ("table", "files")


def test_who_follows_is_told_what_each_sink_holds_now_and_after_each_publish():
    room, told = Room("table", "files"), []
    room.delivery.follow(lambda held: told.append({name: each.epoch for name, each in held.items()}))
    room.publisher.carry_out([room.decided(1), room.decided(2)])
    assert told == [{"table": 0, "files": 0}, {"table": 2, "files": 0}, {"table": 2, "files": 2}]


def test_a_lower_generation_opens_no_sink():
    room = Room("table")
    with pytest.raises(InternalError, match="generation 1 is to open the sinks after generation 1"):
        room.delivery.open(1)


def test_the_first_failure_of_a_run_stays_its_failure():
    failures = Room("table").failures
    for what in ("away.", "away again."):
        with pytest.raises(Unavailable), failures.noting():
            raise Unavailable(what)
    assert (failures.first.what, failures.last_error) == ("away.", "away.")
    with pytest.raises(Unavailable, match="away") as caught, failures.stopping():
        pytest.fail("nothing is done after a failure")
    assert caught.value is failures.first
