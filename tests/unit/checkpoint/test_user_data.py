"""User data: what ``on_checkpoint`` returns is kept, and the right value is given back (design/0013, section 2)."""

from contextlib import suppress

import pytest

from holdfast.checkpoint.user_data import SIZE_MAX, Recovered, UserData, decoded, encoded, recovered
from holdfast.errors import Corrupt, Fenced, InvalidPipeline
from holdfast.testing.clock import SimulatedClock
from holdfast.testing.store import SimulatedStore
from tests.unit.checkpoint.flips import flipped


class Bench:
    def __init__(self, store=None, generation=1, lineage="spark/1", every_us=10):
        self.store = store or SimulatedStore()
        self.clock = SimulatedClock()
        self.value = 0
        self.is_fenced = False
        self.data = UserData(
            pipeline="trips",
            lineage=lineage,
            generation=generation,
            store=self.store,
            clock=self.clock,
            ask=self.ask,
            every_us=every_us,
            check_fenced=self.check_fenced,
        )

    def ask(self):
        self.value += 1
        return {"value": self.value}

    def check_fenced(self):
        if self.is_fenced:
            raise Fenced("another run has taken over.")


@pytest.mark.parametrize("value", [None, True, 3, 2.5, "é", [1, [None]], {"a": {"b": []}}, b"\x00\xff", b""])
def test_json_and_bytes_come_back_as_they_were(value):
    found = decoded(encoded(value, "trips"))
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"a": [1, {2}]}, "value['a'][1] is a set"),
        ({1: "a"}, "the key 1 at value is not a string"),
        ((1, 2), "value is a tuple"),
        (float("nan"), "value is a float: nan"),
        ("x" * SIZE_MAX, f"at most {SIZE_MAX}"),
        (b"x" * (SIZE_MAX + 1), f"it has {SIZE_MAX + 1} bytes"),
    ],
)
def test_what_would_not_come_back_as_it_was_is_refused_with_its_place(value, said):
    with pytest.raises(InvalidPipeline) as caught:
        encoded(value, "trips")
    assert "on_checkpoint of pipeline 'trips'" in caught.value.what
    assert said in caught.value.why


def test_the_value_is_asked_for_at_the_first_epoch_then_when_it_is_due_and_at_the_end():
    bench = Bench()
    bench.data.note(1)
    bench.data.note(2)
    assert recovered(bench.store, "spark/1", None) == Recovered(True, {"value": 1})
    bench.clock.sleep_s(10e-6)
    bench.data.note(3)
    assert recovered(bench.store, "spark/1", None) == Recovered(True, {"value": 2})
    bench.data.end()
    assert recovered(bench.store, "spark/1", None) == Recovered(True, {"value": 3})
    assert decoded(bench.data.latest or {}) == {"value": 3}


def test_a_value_is_that_of_the_moment_at_which_it_was_asked_for_whatever_becomes_of_it():
    """A hook may return what it goes on counting in: on_checkpoint=lambda: seen."""
    seen = {"files": [1]}
    bench = Bench()
    bench.data._ask = lambda: seen
    bench.data.note(1)
    of_snapshot = bench.data.latest
    seen["files"].append(2)
    assert decoded(of_snapshot or {}) == {"files": [1]}


def test_nothing_is_asked_for_where_checkpoints_are_off():
    bench = Bench(every_us=0)
    bench.data.note(1)
    bench.data.end()
    assert (bench.value, recovered(bench.store, "spark/1", None)) == (0, Recovered())


def test_a_run_that_was_fenced_keeps_nothing_and_spoils_nothing():
    old = Bench()
    old.data.note(1)
    new = Bench(old.store, generation=2)
    new.value = 10
    new.data.note(2)
    old.data.keep()  # it has looked before the other one took over, and writes late
    assert recovered(old.store, "spark/1", None).value == {"value": 11}
    old.is_fenced = True
    with pytest.raises(Fenced):
        old.data.keep()
    assert recovered(old.store, "spark/1", None).value == {"value": 11}


def test_state_restored_from_a_snapshot_goes_with_the_value_of_then_until_a_newer_one_is_kept():
    bench = Bench()
    bench.data.note(1)
    of_seed = encoded("then", "trips")
    assert recovered(bench.store, "spark/1", of_seed).value == {"value": 1}, "the same lineage: a plain restart"
    assert recovered(bench.store, "spark/2", of_seed).value == "then"
    assert recovered(bench.store, "spark/2", None).value == {"value": 1}, "the snapshot knows of none"
    Bench(bench.store, generation=2, lineage="spark/2").data.note(2)
    assert recovered(bench.store, "spark/2", of_seed).value == {"value": 1}
    assert len(bench.store.keys("user-data/")) == 1


def test_the_newest_value_is_that_of_the_highest_generation_however_many_digits_it_has():
    """As text 100000000 stands before 99999999."""
    old = Bench(generation=99_999_999)
    old.data.note(1)
    new = Bench(old.store, generation=100_000_000)
    new.value = 10
    old.data.keep()
    new.data.note(2)
    old.data.keep()  # late, and fenced
    assert recovered(old.store, "spark/1", None).value == {"value": 11}
    new.data.keep()
    assert old.store.keys("user-data/") == ["user-data/100000000.json"]


def test_a_damaged_value_is_named():
    store = SimulatedStore()
    store.put("user-data/00000001.json", b'{"epoch": 1, "dir')
    with pytest.raises(Corrupt, match=r"user-data/00000001\.json"):
        recovered(store, "spark/1", None)


def test_no_bit_of_a_value_changes_unnoticed():
    bench = Bench()
    bench.data.note(1)
    (key,) = bench.store.keys("user-data/")
    for damaged in flipped(bench.store.get(key)):
        bench.store.put(key, damaged)
        with suppress(Corrupt):
            assert recovered(bench.store, "spark/1", None).value == {"value": 1}
