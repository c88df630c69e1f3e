"""Who has taken part is noted once, and one that did and holds nothing is refused."""

from __future__ import annotations

from contextlib import suppress

import pytest

from holdfast.checkpoint.participation import Participation
from holdfast.errors import Corrupt, Diverged
from holdfast.ports import Held
from holdfast.testing.store import SimulatedStore
from tests.unit.checkpoint.flips import flipped

NOTHING = Held(0, 0, {}, None)
KEY = "sinks/table.json"


def start(store: SimulatedStore, epoch: int) -> Participation:
    participation = Participation("trips", store, ["table"])
    held = {"table": Held(epoch, 1, {}, None), "console": NOTHING}
    participation.check(held)
    participation.note_holding(held)
    return participation


def test_a_sink_that_took_part_and_holds_nothing_was_emptied():
    store = SimulatedStore()
    start(store, 0).note(["table"], 7)
    with pytest.raises(Diverged, match="holds nothing, and has taken part since epoch 7"):
        start(store, 0)
    store.delete(KEY)  # the cure that it names
    start(store, 0)


def test_a_sink_that_was_given_nothing_yet_may_hold_nothing_for_as_long_as_it_likes():
    store = SimulatedStore()
    for _ in range(3):
        start(store, 0).note(["another"], 9)
    assert not [*store.keys("sinks/")]


def test_a_crash_between_the_first_epoch_and_its_note_is_made_up_for_by_the_next_start():
    store = SimulatedStore()
    start(store, 0)
    start(store, 5)
    with pytest.raises(Diverged, match="since epoch 5"):
        start(store, 0)


def test_the_first_epoch_counts_and_is_written_once():
    store = SimulatedStore()
    participation = start(store, 0)
    participation.note(["table", "console"], 3)
    written = store.get(KEY)
    participation.note(["table"], 4)
    start(store, 4)
    assert store.get(KEY) == written
    assert [*store.keys("sinks/")] == [KEY]


def test_a_damaged_note_is_written_anew_where_the_sink_holds_something_and_named_where_it_does_not():
    store = SimulatedStore()
    start(store, 5)
    written = store.get(KEY)
    for damaged in [b"", *flipped(written)]:
        store.put(KEY, damaged)
        with suppress(Corrupt, Diverged):
            start(store, 0)
            pytest.fail(f"{damaged!r} says that the sink never took part")
        start(store, 5)
        with pytest.raises(Diverged):
            start(store, 0)
    store.put(KEY, b"{")
    with pytest.raises(Corrupt, match=r"sinks/table\.json") as refused:
        start(store, 0)
    assert "remove it" in refused.value.do


def test_a_note_of_an_older_version_counts_as_none():
    store = SimulatedStore()
    store.put(KEY, b'{"after_batch": 4}')
    start(store, 0)
    start(store, 6)
    with pytest.raises(Diverged, match="since epoch 6"):
        start(store, 0)


def test_a_sink_that_was_emptied_is_refused_by_itself_before_anything_is_resolved():
    """The others may have a part in a decision that is open, and hold nothing yet."""
    store = SimulatedStore()
    Participation("trips", store, ["table", "files"]).note(["table", "files"], 7)
    participation = Participation("trips", store, ["table", "files"])
    participation.check({"table": Held(7, 1, {}, None)})
    with pytest.raises(Diverged, match="'files' holds nothing"):
        participation.check({"files": NOTHING})


FIRST = {"rows": {"log": 1}}


@pytest.mark.parametrize(
    ("held", "lacking"),
    [
        ({"table": Held(1, 1, FIRST), "files": NOTHING}, ["files"]),
        ({"table": Held(2, 1, {"rows": {"log": 2}}), "files": NOTHING}, []),
        ({"table": NOTHING, "files": NOTHING}, []),
        ({"table": Held(1, 1, FIRST), "files": Held(1, 1, FIRST)}, []),
    ],
)
def test_without_a_checkpoint_a_sink_without_the_first_epoch_of_all_lacks_it(held: dict[str, Held], lacking: list[str]):
    """The run died between two sinks.  Beyond the first epoch a sink that holds nothing can only be a new one."""
    found = Participation("trips", SimulatedStore(), held).begun_together(held)
    assert [name for name, each in found.items() if each.stops] == lacking
    assert all(each == held[name] for name, each in found.items()), "apart from where it stops"
    assert all(found[name].stops == (FIRST,) for name in lacking)


def test_with_a_checkpoint_that_knows_a_holder_a_sink_that_holds_nothing_is_new():
    store = SimulatedStore()
    held = {"table": Held(1, 1, FIRST), "files": NOTHING, "console": NOTHING}
    Participation("trips", store, ["table"]).note(["table"], 1)
    assert Participation("trips", store, ["table", "files"]).begun_together(held)["files"].is_empty
    without = Participation("trips", SimulatedStore(), ["table", "files"]).begun_together(held)
    assert (without["files"].is_empty, without["console"].is_empty) == (False, True), "a console remembers nothing"
