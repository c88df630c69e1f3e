"""The checkpoint's ledger: identity, generations, which decisions count, what is kept (design/0002, "Ledger")."""

import pytest

from holdfast.commit.ledger import Key, Ledger, Standing, survey
from holdfast.commit.records import Decided, Done
from holdfast.errors import Corrupt, Fenced, InternalError, InvalidPipeline
from holdfast.ports import EpochRecord, Staged
from holdfast.testing import SimulatedStore


@pytest.fixture
def store():
    return SimulatedStore()


def taken_over(store, keep=100, pipeline="trips"):
    ledger = Ledger(store, pipeline, keep=keep)
    ledger.identify()
    ledger.take_generation(0, 0)
    return ledger, ledger.fence()


def decision(epoch, generation=1):
    record = EpochRecord("trips", epoch, generation, {"flights": {"log": epoch}}, epoch)
    return Decided(record, {"table": (Staged(f"trips/{generation}/{epoch}/0/0", 1),)})


def done(epoch, generation=1):
    return Done(decision(epoch, generation).record, {"table": 1})


def standings(store):
    return {(entry.key.epoch, entry.key.generation): entry.standing for entry in survey(store)}


def test_a_checkpoint_belongs_to_one_pipeline(store):
    Ledger(store, "trips").identify()
    Ledger(store, "trips").identify()
    with pytest.raises(InvalidPipeline, match="belongs to pipeline 'trips', not to 'taxis'"):
        Ledger(store, "taxis").identify()


def test_a_checkpoint_of_another_format_is_refused(store):
    store.put("identity.json", b'{"pipeline": "trips", "format": 99}')
    with pytest.raises(InvalidPipeline, match="format 99"):
        Ledger(store, "trips").identify()


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff"])
def test_a_damaged_identity_is_corrupt(store, data):
    store.put("identity.json", data)
    with pytest.raises(Corrupt, match=r"identity\.json"):
        Ledger(store, "trips").identify()


def test_generations_only_grow_and_each_is_taken_once(store):
    taken = [Ledger(store, "trips").take_generation(0, 0) for _ in range(3)]
    assert taken == [1, 2, 3]
    assert Ledger(store, "trips").take_generation(17, 0) == 18
    assert Ledger(store, "trips").take_generation(0, 0) == 19


def test_a_race_for_a_generation_has_one_winner(store):
    racing = Ledger(store, "trips")
    listed = store.keys

    def list_and_lose_the_race(prefix):
        found = listed(prefix)
        store.put_if_absent("generations/00000001.json", b"{}")
        return found

    store.keys = list_and_lose_the_race
    assert racing.take_generation(0, 0) == 2


def test_a_higher_generation_fences(store):
    older, _ = taken_over(store)
    older.check_fenced()
    taken_over(store)
    with pytest.raises(Fenced, match="generation 2 has taken over"):
        older.check_fenced()


def test_a_decision_of_a_dead_run_is_found(store):
    older, _ = taken_over(store)
    older.decide(decision(1))
    _, found = taken_over(store)
    assert found.open == (Key(1, 1),)
    assert found.done is None


def test_open_decisions_stay_open_through_any_number_of_takeovers(store):
    ledger, _ = taken_over(store)
    ledger.decide(decision(1))
    ledger.decide(decision(2))
    for _ in range(5):
        ledger, found = taken_over(store)
        assert found.open == (Key(1, 1), Key(2, 1))
    assert standings(store) == {(1, 1): Standing.OPEN, (2, 1): Standing.OPEN}
    assert ledger.read(found.open[0]) == decision(1)


def test_done_decisions_of_older_generations_stay_done(store):
    ledger, _ = taken_over(store)
    key = ledger.decide(decision(1))
    ledger.forget(key, done(1))
    for _ in range(3):
        _, found = taken_over(store)
        assert found.open == ()
        assert found.done == done(1)
    assert standings(store) == {(1, 1): Standing.DONE}


def test_a_decision_that_a_stale_driver_makes_after_the_takeover_is_void(store):
    """Its driver learns it in the same call; the takeover may sweep its staged rows."""
    stale, _ = taken_over(store)
    owner, _ = taken_over(store)
    with pytest.raises(Fenced):
        stale.decide(decision(1, 1))
    assert standings(store) == {(1, 1): Standing.VOID}
    owner.decide(decision(1, 2))
    assert standings(store) == {(1, 1): Standing.VOID, (1, 2): Standing.OPEN}
    _, found = taken_over(store)
    assert found.open == (Key(1, 2),)
    assert standings(store) == {(1, 2): Standing.OPEN}


def test_a_decision_before_the_takeovers_look_counts_though_its_driver_was_told_to_stop(store):
    stale, _ = taken_over(store)
    owner = Ledger(store, "trips")
    owner.take_generation(0, 0)
    with pytest.raises(Fenced):
        stale.decide(decision(1, 1))
    assert owner.fence().open == (Key(1, 1),)


def test_a_takeover_that_was_overtaken_does_not_act(store):
    slow = Ledger(store, "trips")
    slow.take_generation(0, 0)
    taken_over(store)
    with pytest.raises(Fenced):
        slow.fence()


def test_a_late_fence_of_an_overtaken_run_voids_nothing_that_was_accepted(store):
    first, _ = taken_over(store)
    slow = Ledger(store, "trips")
    slow.take_generation(0, 0)
    first_key = Key(1, 1)
    with pytest.raises(Fenced):
        first.decide(decision(1, 1))
    _, found = taken_over(store)
    assert found.open == (first_key,)
    with pytest.raises(Fenced):
        slow.fence()
    _, found = taken_over(store)
    assert found.open == (first_key,)


def test_a_generation_decides_an_epoch_once(store):
    ledger, _ = taken_over(store)
    ledger.decide(decision(1))
    with pytest.raises(InternalError, match="has decided epoch 1 already"):
        ledger.decide(decision(1))


def test_only_the_last_finished_decisions_are_kept_and_no_open_one_is_dropped(store):
    ledger, _ = taken_over(store, keep=3)
    keys = [ledger.decide(decision(epoch)) for epoch in range(1, 10)]
    for key in keys[:8]:
        ledger.forget(key, done(key.epoch))
    assert sorted(standings(store)) == [(6, 1), (7, 1), (8, 1), (9, 1)]
    ledger.forget(keys[8], done(9))
    _, found = taken_over(store, keep=2)
    assert sorted(standings(store)) == [(8, 1), (9, 1)]
    assert found.done == ledger.newest_done == done(9)


def test_epochs_are_forgotten_in_ascending_order(store):
    """A takeover takes whatever is older than the newest that is done for done."""
    ledger, _ = taken_over(store)
    first, second = ledger.decide(decision(1)), ledger.decide(decision(2))
    ledger.forget(second, done(2))
    with pytest.raises(InternalError, match="forgotten in ascending order"):
        ledger.forget(first, done(1))
    assert sorted(standings(store).values(), key=str) == [Standing.DONE, Standing.OPEN]
    ledger, found = taken_over(store)
    assert found.done == done(2)
    with pytest.raises(InternalError, match="forgotten in ascending order"):
        ledger.forget(first, done(1))


def test_a_decision_is_written_by_its_own_generation_behind_its_fence(store):
    ledger = Ledger(store, "trips")
    ledger.identify()
    generation = ledger.take_generation(0, 0)
    with pytest.raises(InternalError, match="after its fence"):
        ledger.decide(decision(1, generation))
    ledger.fence()
    with pytest.raises(InternalError, match="by its own generation"):
        ledger.decide(decision(1, generation + 1))
    assert store.keys("ledger/") == []
    key = ledger.decide(decision(1, generation))
    with pytest.raises(InternalError, match="is to take its place"):
        ledger.amend(key, decision(2, generation))


@pytest.mark.slow
def test_generations_and_fences_are_bounded(store):
    for _ in range(130):
        taken_over(store)
    assert len(store.keys("generations/")) == 100
    assert len(store.keys("fences/")) <= 101


def test_generations_are_ordered_by_number_however_many_digits_they_have(store):
    """As text 100000000 stands before 99999999."""
    for floor in (99_999_997, 99_999_998, 99_999_999, 1_000_000_000_000):
        ledger = Ledger(store, "trips")
        ledger.identify()
        assert ledger.take_generation(floor, 0) == floor + 1
        ledger.fence()
        key = ledger.decide(decision(floor, floor + 1))
        assert ledger.highest_generation() == floor + 1
        ledger.forget(key, done(floor, floor + 1))
    key = ledger.decide(decision(floor + 1, floor + 1))
    _, found = taken_over(store)
    assert found.open == (key,)


def test_a_damaged_decision_counts_as_open_until_the_sinks_are_asked(store):
    ledger, _ = taken_over(store)
    key = ledger.decide(decision(1))
    store.damage(key.path, keep=20)
    _, found = taken_over(store)
    assert found.open == (key,)
    assert standings(store) == {(1, 1): Standing.DAMAGED}


def test_a_damaged_fence_is_corrupt(store):
    taken_over(store)
    store.damage("fences/00000001.json", keep=3)
    with pytest.raises(Corrupt, match=r"fences/00000001\.json"):
        taken_over(store)


def test_decisions_without_the_fence_of_their_generation_are_corrupt(store):
    """A checkpoint restored in part must not make decisions vanish."""
    ledger, _ = taken_over(store)
    ledger.decide(decision(1))
    del store.objects["fences/00000001.json"]
    with pytest.raises(Corrupt, match=r"fences/00000001\.json.* is missing"):
        taken_over(store)


def test_foreign_files_in_the_checkpoint_are_left_alone(store):
    store.put("ledger/.DS_Store", b"")
    store.put("ledger/notes-mine", b"")
    _, found = taken_over(store)
    assert found.open == ()
    assert survey(store) == []


def test_a_generation_is_taken_before_its_fence_which_is_written_once(store):
    ledger = Ledger(store, "trips")
    ledger.identify()
    for _ in range(2):
        with pytest.raises(InternalError, match="takes its generation first, and fences once"):
            ledger.fence()
        assert store.keys("fences/") == []
    ledger.take_generation(0, 0)
    ledger.fence()
    with pytest.raises(InternalError, match="takes its generation first, and fences once"):
        ledger.fence()
