"""Which snapshot a directory begins with, and what is replayed behind it (design/0011, section 4)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

import holdfast as hf
from holdfast.checkpoint import progress
from holdfast.checkpoint.manifest import EpochEnd, SnapshotKey
from holdfast.checkpoint.progress import EpochSpan
from holdfast.checkpoint.snapshot import FILES
from holdfast.errors import InternalError
from holdfast.ports import Held
from holdfast.positions import Positions
from holdfast.starts.restore import Restoration, restoration
from holdfast.testing import drive
from holdfast.testing.store import SimulatedStore
from tests.unit.checkpoint.snapshots import ended, snapshot


def at(position: int) -> Positions:
    return {"given": {"log": position}}


def held(*positions: int) -> list[Held]:
    return [Held(epoch, 1, at(epoch), None) for epoch in positions]


def steps(first: int, last: int) -> list[EpochSpan]:
    return [EpochSpan(at(epoch - 1), ended(epoch)) for epoch in range(first, last + 1)]


def restored(store: SimulatedStore, sinks: list[Held], known: list[EpochSpan]) -> Restoration:
    found = restoration(store, "counts", sinks, [*known, *progress.told_by(sinks)])
    assert found is not None
    return found


def test_the_epochs_behind_the_snapshot_are_replayed_as_they_were() -> None:
    store = SimulatedStore()
    snapshot(store, 3)
    found = restored(store, held(6, 6), steps(1, 8))
    assert found.manifest.ended.epoch == 3
    assert [each.epoch for each in found.replayed] == [4, 5, 6], "7 and 8 are in no sink: they are planned anew"
    assert found.stops == ()
    assert found.seek == (at(3), at(4), at(5), at(6))


def test_what_no_record_tells_is_replayed_up_to_each_sink() -> None:
    store = SimulatedStore()
    snapshot(store, 3)
    found = restored(store, held(9, 6), steps(1, 5))
    assert [each.epoch for each in found.replayed] == [4, 5]
    assert found.stops == (at(6), at(9))
    assert restored(store, held(9, 6), []).seek == (at(3), at(6), at(9))
    assert restored(store, held(9), steps(6, 9)).seek == (at(3), at(9)), "a record that does not begin here is no use"


def test_a_sink_that_stands_between_two_recorded_ends_makes_them_useless() -> None:
    store = SimulatedStore()
    snapshot(store, 3)
    odd = [EpochSpan(at(3), EpochEnd(4, 4, at(5), 0)), EpochSpan(at(5), EpochEnd(5, 5, at(9), 0))]
    found = restored(store, held(9, 4), odd)
    assert (found.replayed, found.stops) == ((), (at(4), at(9)))


def test_a_snapshot_beyond_what_a_sink_holds_is_passed_over() -> None:
    store = SimulatedStore()
    for epoch in (2, 5):
        snapshot(store, epoch)
    found = restored(store, held(6, 4), steps(1, 6))
    assert found.manifest.ended.epoch == 2
    assert [key for key, _ in found.refused] == [SnapshotKey(5, 1)]
    assert found.seek == (at(2), at(3), at(4), at(5), at(6))
    assert restoration(store, "counts", held(1), steps(1, 6)) is None
    assert restoration(store, "other", held(6), steps(1, 6)) is None


class Counted(SimulatedStore):
    """Notes which objects are read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    def get(self, key: str) -> bytes | None:
        self.read.append(key)
        return super().get(key)


def test_state_is_read_of_the_snapshot_that_is_taken_and_of_no_other() -> None:
    """Only its files are verified: each is read whole, and there may be gigabytes of them."""
    store = Counted()
    made = {epoch: {file.key for file in snapshot(store, epoch).files} for epoch in (2, 5)}
    assert made[2].isdisjoint(made[5])
    store.read.clear()
    assert restored(store, held(6), steps(1, 6)).manifest.ended.epoch == 5
    assert {key for key in store.read if key.startswith(FILES)} == made[5]
    store.read.clear()
    assert restoration(store, "counts", held(6), [], at(6), graph="0123") is None
    assert not {key for key in store.read if key.startswith(FILES)}


def test_only_one_of_exactly_these_positions_is_taken_where_that_is_asked() -> None:
    store = SimulatedStore()
    for epoch in (2, 5):
        snapshot(store, epoch)
    assert restoration(store, "counts", held(5), [], at(5), graph="0123") is not None
    assert restoration(store, "counts", held(6), [], at(6), graph="0123") is None
    assert restoration(store, "counts", held(5), [], at(5), graph="of another one") is None


def test_ends_of_epochs_are_in_the_order_of_their_numbers_however_many_digits_they_have():
    """As text 1000000000000 stands before 999999999999."""
    store = SimulatedStore()
    for first in (10**12 - 2, 10**12):
        progress.write(store, steps(first, first + 1), generation=1)
    found = [step.ended.epoch for step in progress.read(store)]
    assert found == sorted(found)
    assert len(found) == 4


def test_records_are_written_together_and_followed_by_positions() -> None:
    store = SimulatedStore()
    progress.write(store, steps(1, 3), generation=1)
    # The directory was lost: what came after epoch 1 was replayed under new numbers.
    replayed = [EpochSpan(at(1), EpochEnd(11, 2, at(2), 2000)), EpochSpan(at(2), EpochEnd(12, 3, at(3), 3000))]
    progress.write(store, replayed, generation=2)
    found = list(progress.chain(progress.read(store), at(0)))
    assert [(each.epoch, each.step_epoch) for each in found] == [(1, 1), (11, 2), (12, 3)]
    progress.prune(store, 3)
    assert [step.ended.epoch for step in progress.read(store)] == [11, 12]


def test_a_damaged_record_is_left_out() -> None:
    store = SimulatedStore()
    progress.write(store, steps(1, 2), generation=1)
    progress.write(store, steps(3, 4), generation=1)
    store.damage(store.keys("progress/")[0], keep=20)
    assert [step.ended.epoch for step in progress.read(store)] == [3, 4]
    assert list(progress.chain(progress.read(store), at(0))) == []


def telling(position: int, first: int, last: int, *, apart: int = 0) -> Held:
    """Return a sink that stands somewhere and tells how some epochs ended; ``apart``: as steps numbered them."""
    ends = [
        EpochSpan(step.start, replace(step.ended, step_epoch=step.ended.epoch - apart)) for step in steps(first, last)
    ]
    return Held(position, 1, at(position), recent_ends=progress.to_text(ends))


def test_what_no_record_tells_the_sinks_tell() -> None:
    """Records tell how epochs ended up to some point, and each sink from there on."""
    store = SimulatedStore()
    snapshot(store, 3)
    found = restored(store, [telling(9, 6, 9), telling(7, 4, 7)], steps(1, 4))
    assert [each.step_time for each in found.replayed] == [ended(epoch).step_time for epoch in range(4, 10)]
    assert [each.positions for each in found.replayed] == [at(epoch) for epoch in range(4, 10)]
    assert found.is_exact


def test_sinks_tell_ends_of_epochs_with_all_that_they_are() -> None:
    def spans(*ends: tuple[int, dict[str, dict[str, int | str]]]) -> list[EpochSpan]:
        begins = [{}, *(positions for _, positions in ends)]
        return [
            EpochSpan(start, EpochEnd(epoch, epoch - 1, positions, 7 * epoch, epoch if epoch % 2 else None))
            for start, (epoch, positions) in zip(begins, ends, strict=False)
        ]

    several = spans(
        (1, {"a": {"0": 1, "1": 0}, "b": {"": '{"x": "\u00e4"}'}}),
        (2, {"a": {"0": 1, "1": 4}, "b": {"": '{"x": "\u00e4"}'}}),
        (5, {"a": {"0": 1, "1": 4, "@ticks": 1}, "b": {"": "{}"}, "c": {}}),
    )
    assert list(progress.from_text(progress.to_text(several))) == several
    assert list(progress.from_text("")) == []


def test_sinks_tell_that_a_segment_or_a_source_has_gone() -> None:
    stood: list[Positions] = [
        {"a": {"0": 1, "1": 4}, "b": {"log": 2}},
        {"a": {"0": 3}, "b": {"log": 2}},
        {"a": {"0": 3}},
    ]
    several = [EpochSpan(before, EpochEnd(2, 2, after, 0)) for before, after in pairwise(stood)]
    assert list(progress.from_text(progress.to_text(several))) == several


def test_what_sinks_are_to_tell_follows_each_other() -> None:
    """An end is told by what differs from the one before: another start would be lost without a word."""
    apart = [*steps(1, 2), *steps(4, 4)]
    with pytest.raises(InternalError, match="epoch 4 does not begin where the one before it has ended"):
        progress.to_text(apart)


@pytest.mark.parametrize("text", ["[12, 1700000000000000]", "{", '{"start": {}, "ends": [[1]]}', "3"])
def test_what_a_sink_tells_and_nobody_can_read_is_left_out(text: str, caplog: pytest.LogCaptureFixture) -> None:
    assert list(progress.from_text(text)) == []
    assert "cannot be read" in caplog.text


def test_where_a_part_is_known_by_nobody_it_is_one_epoch_up_to_each_sink_at_the_times_that_these_tell() -> None:
    """At the present time a timer that fell due after the last epoch would fire muted: its row would be lost."""
    store = SimulatedStore()
    snapshot(store, 3)
    found = restored(store, [telling(9, 9, 9), telling(6, 6, 6)], steps(1, 4))
    assert [each.step_time for each in found.replayed] == [ended(epoch).step_time for epoch in (4, 6, 9)]
    assert found.seek == (at(3), at(4), at(6), at(9))
    assert (found.joined_count, found.stops, found.is_exact) == (2, (), False)


def test_behind_a_sink_that_tells_nothing_everything_is_replayed_at_the_present_time() -> None:
    """Times are those of the first epochs of a directory."""
    store = SimulatedStore()
    snapshot(store, 3)
    found = restored(store, [telling(5, 5, 5), *held(7), telling(9, 9, 9)], [])
    assert [each.step_time for each in found.replayed] == [ended(5).step_time]
    assert (found.stops, found.is_exact) == ((at(7), at(9)), False)


def test_numbers_that_steps_have_seen_are_not_seen_again() -> None:
    store = SimulatedStore()
    snapshot(store, 3)
    found = restored(store, [telling(5, 5, 5), telling(9, 9, 9, apart=4)], [])
    assert ([each.step_epoch for each in found.replayed], found.stops) == ([5], (at(9),))
    assert restored(store, [telling(5, 5, 5, apart=2)], []).stops == (at(5),)
    found = restored(store, [telling(5, 5, 5, apart=1)], steps(4, 4))
    assert ([each.step_epoch for each in found.replayed], found.stops) == ([4], (at(5),))


def test_what_records_tell_already_is_not_recorded_again() -> None:
    store = SimulatedStore()
    progress.write(store, steps(1, 3), generation=1)
    progress.add(store, progress.told_by([telling(5, 2, 5), telling(4, 3, 4)]), generation=2)
    assert store.keys("progress/")[1:] == ["progress/000000000004-000000000005-00000002"]
    before = dict(store.objects)
    progress.add(store, steps(1, 5), generation=3)
    progress.add(store, [], generation=3)
    assert store.objects == before


def late(key: int, rows: list[dict[str, int]], state: Any) -> Iterator[dict[str, int]]:
    if rows:
        state.timer(500, clock="batch")
    else:
        yield {"id": key}


@pytest.mark.slow
def test_a_timer_that_falls_due_behind_the_sinks_last_epochs_is_in_each_sink_once() -> None:
    """One sink stands behind epoch 2, the other behind epoch 3; a snapshot of epoch 1 is all that is left."""
    store = SimulatedStore()
    snapshot(store, 1)
    rows = {"given": [[{"id": 0}], [{"id": 1}], [{"id": 2}], [{"id": 3}], []]}
    then, present = [100, 200, 300], 1_000
    before = drive(fired(), rows, batch_times=[*then, present, present])

    found = restored(store, [at_times(3, 3, then[2]), at_times(2, 2, then[1])], [])
    times = [each.batch_us for each in found.replayed] + [present for _ in found.stops]
    after = drive(fired(), rows, batch_times=[then[0], *times, present, present])
    for holds in (2, 3):
        published = [row["id"] for epoch in (*before[:holds], *after[holds:]) for row in epoch]
        assert sorted(published) == [0, 1, 2, 3]

    at_present = drive(fired(), rows, batch_times=[then[0], present, present, present, present])
    assert 0 not in [row["id"] for epoch in (*before[:2], *at_present[3:]) for row in epoch], "what this is about"


@pytest.mark.slow
def test_a_timer_that_one_lost_epoch_set_and_another_fired_fires_no_second_time() -> None:
    """Replayed as one epoch at the last one's time, it was set again relative to that time, and fired again."""
    store = SimulatedStore()
    snapshot(store, 1)
    rows = [[{"id": 0}], [{"id": 1}], [{"id": 2}], [{"id": 3}], [], []]
    times = [100, 200, 750, 900, 5_000, 5_000]
    before = drive(fired(), {"given": rows}, batch_times=times)
    assert [row["id"] for row in before[2]] == [0, 1], "epoch 3 is lost, and its rows are in the sink"

    found = restored(store, [at_times(4, 2, *times[1:4])], [])
    ends = [1, *(int(each.positions["given"]["log"]) for each in found.replayed)]
    again = [[row for epoch in rows[one:next_] for row in epoch] for one, next_ in pairwise(ends)]
    replay = [rows[0], *again, *rows[4:]]
    at_replay = [times[0], *(each.batch_us for each in found.replayed), *times[4:]]
    after = drive(fired(), {"given": replay}, batch_times=at_replay)
    published = [row["id"] for epoch in (*before[:4], *after[1 + len(again) :]) for row in epoch]
    assert sorted(published) == [0, 1, 2, 3]


def fired() -> hf.Stream:
    given = hf.read.rows([], schema="id BIGINT", name="given")
    return given | hf.apply(late, by="id", state="unused BIGINT", timers="batch", schema="id BIGINT", name="fired")


def at_times(position: int, first: int, *times_us: int) -> Held:
    """Return a sink that tells the times of its epochs from ``first`` on."""
    ends = [
        EpochSpan(at(epoch - 1), EpochEnd(epoch, epoch, at(epoch), at_us))
        for epoch, at_us in enumerate(times_us, first)
    ]
    return Held(position, 1, at(position), recent_ends=progress.to_text(ends))
