"""Where sources go on that leave the graph and come back."""

from __future__ import annotations

from contextlib import suppress

import pytest

from holdfast.checkpoint.source_history import KEY, forget_after, last_positions, note_positions
from holdfast.errors import Corrupt
from holdfast.positions import Positions
from holdfast.testing.store import SimulatedStore
from tests.unit.checkpoint.flips import flipped


def at(**sources: int) -> Positions:
    return {name: {"log": position} for name, position in sources.items()}


def test_the_last_word_on_each_source_counts_and_one_that_is_gone_is_not_forgotten() -> None:
    store = SimulatedStore()
    assert last_positions(store) == {}
    note_positions(store, 4, at(a=3, b=2), else_known={})
    note_positions(store, 9, at(a=8), else_known={})
    assert last_positions(store) == at(a=8, b=2)


def test_a_directory_that_is_begun_again_says_it_once() -> None:
    store = SimulatedStore()
    note_positions(store, 4, at(a=3, b=2), else_known={})
    note_positions(store, 9, at(a=8), else_known={})
    written = store.get(KEY)
    note_positions(store, 9, at(a=8), else_known={})
    assert store.get(KEY) == written
    note_positions(store, 9, at(a=7), else_known={})
    assert last_positions(store) == at(a=7, b=2)


def test_a_rewind_goes_back_to_what_was_known_then() -> None:
    store = SimulatedStore()
    forget_after(store, 5)
    note_positions(store, 4, at(a=3, b=2), else_known={})
    note_positions(store, 9, at(a=8, c=1), else_known={})
    forget_after(store, 9)
    assert last_positions(store) == at(a=8, b=2, c=1)
    forget_after(store, 8)
    assert last_positions(store) == at(a=3, b=2)
    forget_after(store, 3)
    assert last_positions(store) == {}


def test_what_an_older_version_knew_counts_until_something_is_noted() -> None:
    store = SimulatedStore()
    note_positions(store, 4, at(a=3), else_known=at(b=2))
    note_positions(store, 9, at(a=8), else_known=at(b=1, c=1))
    assert last_positions(store) == at(a=8, b=2)


def test_a_damaged_record_is_named_and_never_says_something_else() -> None:
    store = SimulatedStore()
    note_positions(store, 4, at(a=3), else_known={})
    for damaged in [b"", b"[]", *flipped(store.get(KEY))]:
        store.put(KEY, damaged)
        with suppress(Corrupt):
            assert last_positions(store) == at(a=3)
    store.put(KEY, b"{")
    with pytest.raises(Corrupt, match=r"sources\.json") as refused:
        last_positions(store)
    assert "remove it" in refused.value.do


def test_the_record_is_read_and_written_as_older_versions_did() -> None:
    text = rb'{"#sha256":"68354f103c3d635e","in":[[3,{"@ended":1,"log":4}]],"k":[[0,{"":"x"}],[3,{"":"{\"0\":1}"}]]}'
    store = SimulatedStore()
    store.put(KEY, text)
    assert last_positions(store) == {"in": {"@ended": 1, "log": 4}, "k": {"": '{"0":1}'}}
    note_positions(store, 3, last_positions(store), else_known={})
    assert store.get(KEY) == text
