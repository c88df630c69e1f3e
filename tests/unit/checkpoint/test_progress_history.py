"""The ends of epochs without state: kept for a time, fine first and coarse later, whatever dies in between."""

import pytest

from holdfast.checkpoint import progress
from holdfast.checkpoint.manifest import EpochEnd
from holdfast.checkpoint.progress import COARSE_US, History, chain
from holdfast.errors import Fenced
from holdfast.testing import SimulatedClock, SimulatedStore

HOUR_US = 3_600_000_000
STEP_US = 6_000_000


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    monkeypatch.setattr(progress, "GATHERED", 5)
    monkeypatch.setattr(progress, "RECENT", 20)


def at(epoch):
    return {"rides": {"log": epoch}}


def ended(epoch):
    return EpochEnd(epoch, epoch, at(epoch), epoch * STEP_US)


def history(store, clock, keep_us=HOUR_US, generation=1):
    return History(store, generation, clock, keep_us, lambda: None)


def ran(store, clock, epochs, **options):
    """Note epochs, one every six seconds: ten a minute."""
    notes = history(store, clock, **options)
    for epoch in epochs:
        clock.now = epoch * STEP_US
        notes.note(at(epoch - 1), ended(epoch))


class Clock(SimulatedClock):
    now = 0

    def now_us(self):
        return self.now


def test_each_of_the_last_epochs_and_one_a_minute_of_older_ones_can_be_gone_back_to():
    store = SimulatedStore()
    ran(store, Clock(), range(1, 301))
    known = [step.ended.epoch for step in progress.read(store)]
    assert known[-20:] == list(range(281, 301)), "the last ones"
    old = [epoch for epoch in known if epoch <= 240]
    minutes = [ended(epoch).batch_us // COARSE_US for epoch in old]
    assert minutes == sorted(set(minutes)) == list(range(minutes[-1] + 1)), "one a minute, and none is missing"


def test_what_is_kept_still_follows_each_other():
    store = SimulatedStore()
    ran(store, Clock(), range(1, 301))
    steps = list(progress.read(store))
    assert [end.epoch for end in chain(steps, at(0))] == [step.ended.epoch for step in steps]


def test_what_is_older_than_its_time_goes():
    store = SimulatedStore()
    ran(store, Clock(), range(1, 301), keep_us=10 * COARSE_US)
    oldest = next(progress.read(store)).ended
    assert 300 * STEP_US - 13 * COARSE_US < oldest.batch_us <= 300 * STEP_US - 9 * COARSE_US


def test_epochs_without_rows_take_no_history_away():
    store, clock = SimulatedStore(), Clock()
    ran(store, clock, range(1, 41))
    notes = history(store, clock)
    for epoch in range(41, 301):
        clock.now = epoch * STEP_US
        notes.note(at(40), EpochEnd(epoch, epoch, at(40), epoch * STEP_US))
    steps = list(progress.read(store))
    with_rows = [step.ended for step in steps if step.ended.epoch <= 40]
    assert {end.batch_us // COARSE_US for end in with_rows} == {0, 1, 2, 3}, "one a minute, as without them"
    followed = [end.positions["rides"]["log"] for end in chain(steps, at(0))]
    assert followed == sorted(followed)
    assert {end.positions["rides"]["log"] for end in with_rows} <= set(followed)


def test_after_a_day_of_epochs_there_are_few_objects():
    store = SimulatedStore()
    ran(store, Clock(), range(1, 1_001), keep_us=24 * HOUR_US)
    assert len(list(store.keys(progress.PREFIX))) <= 10


def test_an_epoch_that_is_repeated_is_noted_once():
    store, clock = SimulatedStore(), Clock()
    notes = history(store, clock)
    for epoch in (1, 2, 2, 3, 3, 4, 5):
        notes.note(at(epoch - 1), ended(epoch))
    assert [step.ended.epoch for step in progress.read(store)] == [1, 2, 3, 4, 5]


def test_a_run_that_is_fenced_writes_nothing():
    store = SimulatedStore()

    def fenced():
        raise Fenced("another one runs.", why="it was started.", do="stop.")

    notes = History(store, 1, Clock(), HOUR_US, fenced)
    for epoch in range(1, 5):
        notes.note(at(epoch - 1), ended(epoch))
    with pytest.raises(Fenced):
        notes.note(at(4), ended(5))
    assert list(progress.read(store)) == []


class Killed(BaseException):
    pass


class Mortal:
    """A store whose process dies right after one of its writes."""

    def __init__(self, store, writes):
        self._store = store
        self.left = writes

    def __getattr__(self, name):
        return getattr(self._store, name)

    def put(self, *arguments):
        self._store.put(*arguments)
        self._die()

    def delete(self, *arguments):
        self._store.delete(*arguments)
        self._die()

    def _die(self):
        self.left -= 1
        if self.left < 0:
            raise Killed


@pytest.mark.slow
def test_whichever_write_is_the_last_one_what_is_read_is_true_and_the_next_run_goes_on():
    deaths = 0
    for writes in range(60):
        store, clock = SimulatedStore(), Clock()
        mortal = Mortal(store, writes)
        try:
            ran(mortal, clock, range(1, 121))
        except Killed:
            deaths += 1
        reached = clock.now // STEP_US
        for step in progress.read(store):
            assert step.ended == ended(step.ended.epoch), "an end that was"
            assert step.start["rides"]["log"] < step.ended.epoch
        # What was not written is in Spark's own log.
        written = max((step.ended.epoch for step in progress.read(store)), default=0)
        assert reached - written < 5
        ran(store, clock, range(written + 1, 201), generation=2)
        steps = list(progress.read(store))
        followed = [end.epoch for end in chain(steps, at(0))]
        assert (followed[0] <= 10, followed[-1]) == (True, 200)
    assert deaths > 30
