"""The search for rows that kill a run: what it finds, in how many trials, and across kills (design/0013, section 4)."""

import random

import pytest

from holdfast.quarantine.search import ATTEMPTS, SEARCH, Bounds, Search, count_attempt, forgive_attempt, isolate
from holdfast.testing.store import SimulatedStore
from tests.unit.checkpoint.flips import flipped


class Killed(BaseException):
    """The process is gone."""


def searched(count, bad):
    trials, found = [], []

    def fails(low, high, bounds):
        trials.append((low, high))
        return any(row < high for row in set(bad) - set(found))

    isolate(count, fails, found.append)
    return found, trials


@pytest.mark.parametrize("seed", range(30))
def test_exactly_the_bad_rows_are_found_whatever_they_are(seed):
    rng = random.Random(seed)
    count = rng.choice([0, 1, 2, 3, 7, 64, 100])
    bad = sorted(rng.sample(range(count), rng.randint(0, min(count, 5))))
    assert searched(count, bad)[0] == bad


def test_three_among_a_million_take_a_few_trials_and_what_passes_takes_one():
    found, trials = searched(1_000_000, [3, 500_000, 999_999])
    assert found == [3, 500_000, 999_999]
    assert len(trials) <= 3 * 21 + 1
    assert searched(1000, []) == ([], [(0, 1000)])


def test_rows_that_fail_only_together_are_not_condemned():
    """As where memory is short: the whole epoch kills the process, and no row does."""
    condemned = []
    isolate(100, lambda low, high, known: high - low > 30, condemned.append)
    assert condemned == []


def test_what_an_earlier_process_found_condemns_no_row_that_passes_now():
    """The function was mended between two starts, while the search was under way."""
    condemned = []
    isolate(100, lambda low, high, known: False, condemned.append, Bounds(50, 51))
    assert condemned == []
    isolate(100, lambda low, high, known: low <= 50 < high, condemned.append, Bounds(50, 51))
    assert condemned == [50]


@pytest.mark.parametrize("seed", range(20))
def test_a_search_goes_on_where_a_kill_left_it_also_when_the_rows_themselves_kill(seed):
    """Every trial that has a bad row kills the process; so do the moments behind a letter, by chance."""
    rng = random.Random(seed)
    bad = set(rng.sample(range(50), 3))
    store, letters = SimulatedStore(), []

    def fails(search, low, high, known):
        if not search.begin(low, high, known):
            return True
        if any(row < high for row in bad - set(letters)):
            raise Killed
        return False

    def condemn(row):
        if row not in letters:
            letters.append(row)
        if rng.random() < 0.3:
            raise Killed

    for _ in range(200):
        search = Search(store, "epoch 7", lambda: len(letters))
        try:
            isolate(50, lambda *trial, search=search: fails(search, *trial), condemn, search.known)
        except Killed:
            continue
        search.end()
        break
    assert letters == sorted(bad)
    assert store.keys("poison/") == []


def test_another_epoch_is_searched_anew_and_so_is_one_whose_note_is_damaged():
    store = SimulatedStore()
    Search(store, "epoch 7").begin(0, 10, Bounds(3, 10))
    assert Search(store, "epoch 7").known == Bounds(3, 10)
    assert not Search(store, "epoch 7").is_new
    assert Search(store, "epoch 8").is_new
    store.put("poison/search.json", b"{")
    assert Search(store, "epoch 7").is_new


def test_only_starts_that_find_the_same_epoch_unfinished_are_counted_together():
    store = SimulatedStore()
    assert [count_attempt(store, name) for name in ("a", "a", "a", "b", "b", None, "b")] == [1, 2, 3, 1, 2, 0, 1]


def test_a_run_that_has_mended_what_it_ended_for_is_not_counted_and_others_are():
    store = SimulatedStore()
    forgive_attempt(store, "a")  # the run that planned it
    assert count_attempt(store, "a") == 0
    assert [count_attempt(store, "a") for _ in range(2)] == [1, 2]
    forgive_attempt(store, "a")
    assert [count_attempt(store, "a") for _ in range(2)] == [2, 3]
    forgive_attempt(store, "b")
    assert [count_attempt(store, name) for name in ("b", "b", None, "b")] == [0, 1, 0, 1]
    forgive_attempt(store, "c")
    assert count_attempt(store, None) == 0
    assert store.keys("poison/") == []


def test_a_note_of_which_a_bit_has_changed_is_believed_as_it_was_or_not_at_all():
    store = SimulatedStore()
    Search(store, "5").begin(0, 50, Bounds(0, 100))
    for damaged in flipped(store.get(SEARCH)):
        store.put(SEARCH, damaged)
        assert Search(store, "5").known in (Bounds(0, 100), Bounds())
    count_attempt(store, "5")
    for damaged in flipped(store.get(ATTEMPTS)):
        store.put(ATTEMPTS, damaged)
        assert count_attempt(store, "5") in (1, 2)
