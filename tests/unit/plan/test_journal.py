"""The journal of state: what was written is what is read, after any death, by whoever reads it."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from holdfast.errors import STATE, Corrupt, InternalError, Unavailable
from holdfast.plan.levels import journal as module
from holdfast.plan.levels.host import JournalCells
from holdfast.plan.levels.journal import (
    NOTHING,
    At,
    BucketChange,
    JournalReader,
    StateJournal,
    StateVersion,
    StoredPiece,
    change_from_json,
    change_to_json,
    write_part,
)
from holdfast.testing.simulation.process import CrashAt, Process, SimulatedCrash
from holdfast.testing.store import FaultyStore, SimulatedStore

BELOW = "spark/1"
Content = dict[At, tuple[str, dict[tuple[int, int], bytes]]]
"""Bucket -> its record, and its pieces."""


def content_of(version: StateVersion, store: SimulatedStore) -> Content:
    """Return everything that a version says, read piece by piece."""
    read = JournalReader(store, BELOW).piece
    return {
        at: (bucket.record, {number: read(piece) for number, piece in bucket.pieces.items()})
        for at, bucket in version.buckets.items()
    }


@dataclass
class Model:
    """What buckets hold, in plain Python, and random changes of them."""

    chance: random.Random
    content: Content = field(default_factory=dict)

    def changed(self, version: StateVersion, read: JournalReader, epoch: int) -> tuple[Content, list[BucketChange]]:
        """Return the content after an epoch that changes some buckets, with what it changes."""
        content = {at: (record, dict(pieces)) for at, (record, pieces) in self.content.items()}
        changes = []
        for at in self.chance.sample([("counts", 0), ("counts", 1), ("sums", 0)], self.chance.randint(0, 3)):
            cells = JournalCells(version.buckets.get(at), read.piece)
            record, pieces = content.get(at, (None, {}))
            assert cells.record() == record
            for number in list(pieces):
                assert cells.piece(*number) == pieces[number]
                if self.chance.random() < 0.4:
                    cells.drop_piece(*number)
                    del pieces[number]
            for _ in range(self.chance.randint(0, 2)):
                number = (self.chance.randrange(1000), self.chance.randrange(2))
                pieces[number] = self.chance.randbytes(self.chance.randint(0, 40))
                cells.put_piece(*number, pieces[number])
            record = f"record of {at} after {epoch}"
            cells.put_record(record)
            content[at] = (record, pieces)
            change = cells.change(at)
            assert change is not None
            changes.append(change)
        return content, changes


def run(model: Model, journal: StateJournal, store: SimulatedStore, epochs: range) -> None:
    """Run epochs, each by tasks or by the driver; what is read before each is what was written."""
    for epoch in epochs:
        before = journal.begin(epoch)
        assert content_of(before, store) == model.content
        content, changes = model.changed(before, journal.reader, epoch)
        if model.chance.random() < 0.5:
            told = [change_to_json(write_part(store, BELOW, epoch, change)) for change in changes]
            changes = [change_from_json(value) for value in told]
        journal.write(epoch, changes)
        model.content = content


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_every_run_finds_what_the_one_before_it_wrote(seed: int) -> None:
    model, store = Model(random.Random(seed)), SimulatedStore()
    epoch = 0
    for generation in range(1, 6):
        count = model.chance.randint(1, 60)
        run(model, StateJournal(store, BELOW, generation), store, range(epoch, epoch + count))
        epoch += count
    assert content_of(JournalReader(store, BELOW).version(epoch - 1), store) == model.content


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_death_at_any_write_leaves_what_the_next_run_needs(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WHOLE_EVERY", 3)
    for n in range(1, 40):
        model, store = Model(random.Random(n)), SimulatedStore()
        epoch, kept = 0, {-1: dict(model.content)}
        process = Process(CrashAt(n, "before" if when == "before" else "after"))
        mortal = FaultyStore(store, process)
        journal = StateJournal(mortal, BELOW, 1)
        try:
            while epoch < 20:
                before = journal.begin(epoch)
                content, changes = model.changed(before, journal.reader, epoch)
                kept[epoch] = content
                journal.write(epoch, [write_part(mortal, BELOW, epoch, change) for change in changes])
                model.content = content
                epoch += 1
        except SimulatedCrash:
            back = frozenset(key for key in store._deleted if model.chance.random() < 0.5)
            store.lose_power(back.__contains__)
        again = StateJournal(store, BELOW, 2)
        assert content_of(again.begin(epoch), store) == kept[epoch - 1]
        if again.adopted(epoch):  # it died after the entry was there
            assert content_of(again.begin(epoch + 1), store) == kept[epoch]


def test_an_epoch_that_is_repeated_begins_where_it_began_and_the_last_attempt_counts() -> None:
    store = SimulatedStore()
    journal = StateJournal(store, BELOW, 1)
    journal.write(0, [changed("first")])
    for attempt in ("lost", "kept"):
        assert content_of(journal.begin(1), store) == {("counts", 0): ("first", {(0, 0): b"first"})}
        journal.write(1, [changed(attempt)])
    assert content_of(journal.begin(2), store) == {("counts", 0): ("kept", {(0, 0): b"kept"})}


def test_of_two_runs_the_younger_one_counts_whichever_writes_last() -> None:
    store = SimulatedStore()
    StateJournal(store, BELOW, 1).write(0, [changed("before")])
    old, new = StateJournal(store, BELOW, 9), StateJournal(store, BELOW, 10)
    new.write(1, [changed("new")])
    old.write(1, [changed("old")])
    version = StateJournal(store, BELOW, 11).begin(2)
    assert content_of(version, store)["counts", 0] == ("new", {(0, 0): b"new"})


class Hours:
    """A clock on which an hour passes whenever somebody looks."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 3600
        return self.now_s


def test_what_nobody_needs_is_removed() -> None:
    store, epoch = SimulatedStore(), 0
    journal = StateJournal(store, BELOW, 1, clock_s=Hours())
    for epoch in range(5 * module.WHOLE_EVERY):
        journal.begin(epoch)
        journal.write(epoch, [write_part(store, BELOW, epoch, changed(f"of {epoch}"))])
        write_part(store, BELOW, epoch, changed("of an attempt that failed"))
    assert len(store.objects) <= 3 * 3 * module.WHOLE_EVERY
    earliest = epoch - module.WHOLE_EVERY
    assert content_of(journal.reader.version(earliest), store)["counts", 0][0] == f"of {earliest}"


def written(journal: StateJournal, store: SimulatedStore, epochs: range) -> None:
    """Write epochs, each with a part of its own."""
    for epoch in epochs:
        journal.begin(epoch)
        journal.write(epoch, [write_part(store, BELOW, epoch, changed(f"of {epoch}"))])


def test_what_a_snapshot_reads_stays_however_slow_it_is_and_what_only_older_versions_need_goes() -> None:
    """Each whole entry is hours younger than the one before it."""
    store, span = SimulatedStore(), module.WHOLE_EVERY
    journal = StateJournal(store, BELOW, 1, clock_s=Hours())
    written(journal, store, range(3 * span))
    read = 3 * span - 2
    let_go = journal.hold(read)
    later = journal.hold(read + 1)
    written(journal, store, range(3 * span, 9 * span))
    assert content_of(journal.reader.version(read), store)["counts", 0][0] == f"of {read}"
    assert not journal.reader.entries(read - span), "it is needed by nobody"
    let_go()
    let_go()
    written(journal, store, range(9 * span, 10 * span))
    assert content_of(journal.reader.version(read + 1), store)["counts", 0][0] == f"of {read + 1}"
    later()
    written(journal, store, range(10 * span, 11 * span))
    assert not journal.reader.entries(read + 1)
    assert len(store.objects) <= 2 * 3 * span


@pytest.mark.slow
def test_slow_snapshots_one_upon_the_other_do_not_keep_everything() -> None:
    """Each is of an epoch that ended while the one before it was made: something is held at every moment."""
    store, span = SimulatedStore(), module.WHOLE_EVERY
    journal = StateJournal(store, BELOW, 1, clock_s=Hours())
    let_go = journal.hold(-1)
    for snapshot in range(1, 20):
        ended = 2 * span * snapshot
        written(journal, store, range(ended - 2 * span, ended))
        let_go, before = journal.hold(ended - 5), let_go
        before()
        assert len(store.objects) <= 2 * 5 * span


def test_what_a_dead_run_held_is_removed_by_the_next() -> None:
    store, span = SimulatedStore(), module.WHOLE_EVERY
    journal = StateJournal(store, BELOW, 1, clock_s=Hours())
    journal.hold(5)
    written(journal, store, range(6 * span))
    assert journal.reader.entries(5)
    written(StateJournal(store, BELOW, 2, clock_s=Hours()), store, range(6 * span, 8 * span))
    assert not journal.reader.entries(5)


def test_what_a_snapshot_may_be_about_to_read_stays_for_a_while() -> None:
    store, now = SimulatedStore(), [0.0]
    journal = StateJournal(store, BELOW, 1, clock_s=lambda: now[0])
    for epoch in range(4 * module.WHOLE_EVERY):
        journal.begin(epoch)
        journal.write(epoch, [write_part(store, BELOW, epoch, changed(f"of {epoch}"))])
    assert content_of(journal.reader.version(1), store)["counts", 0][0] == "of 1"
    now[0] = 2 * module.HELD_S
    for later in range(epoch + 1, epoch + 1 + module.WHOLE_EVERY):
        journal.begin(later)
        journal.write(later, [])
    assert not journal.reader.entries(1)


def test_runs_that_are_shorter_than_a_whole_span_remove_what_nobody_needs() -> None:
    store = SimulatedStore()
    for generation in range(30):
        journal = StateJournal(store, BELOW, generation)
        for epoch in range(10 * generation, 10 * generation + 10):
            journal.begin(epoch)
            journal.write(epoch, [write_part(store, BELOW, epoch, changed(f"of {epoch}"))])
    assert len(store.objects) <= 3 * 2 * module.WHOLE_EVERY
    assert content_of(journal.reader.version(299), store)["counts", 0][0] == "of 299"


class Reluctant(SimulatedStore):
    """Deletes nothing at its first attempt: the disk does not answer."""

    failures = 0

    def delete(self, key: str) -> None:
        self.failures += 1
        if self.failures == 1:
            raise Unavailable(f"{key} cannot be removed.", why="the disk does not answer.", do="wait.")
        super().delete(key)


def test_a_whole_epoch_may_be_repeated_and_old_state_that_cannot_be_removed_fails_nothing() -> None:
    """What the epoch begins with stays, however often it is written: it is not decided."""
    store, whole = Reluctant(), 2 * module.WHOLE_EVERY
    journal = StateJournal(store, BELOW, 1, clock_s=Hours())
    for epoch in range(whole):
        journal.begin(epoch)
        journal.write(epoch, [write_part(store, BELOW, epoch, changed(f"of {epoch}"))])
    for attempt in range(3):
        before = journal.begin(whole)
        assert content_of(before, store)["counts", 0][0] == f"of {whole - 1}"
        journal.write(whole, [write_part(store, BELOW, whole, changed(f"attempt {attempt}"))])
    assert store.failures > 1
    again = StateJournal(store, BELOW, 2)
    assert content_of(again.begin(whole), store)["counts", 0][0] == f"of {whole - 1}"
    assert content_of(again.reader.version(whole), store)["counts", 0][0] == "attempt 2"


def test_a_trial_keeps_nothing() -> None:
    store = SimulatedStore()
    StateJournal(store, BELOW, 1).write(0, [changed("kept")])
    before = dict(store.objects)
    trial = StateJournal(store, BELOW, 1, is_trial=True)
    trial.begin(1)
    trial.write(1, [changed("tried")])
    assert store.objects == before


@pytest.mark.parametrize("how", ["truncated", "flipped at the start", "flipped at the end", "removed"])
@pytest.mark.parametrize("what", ["entry", "part"])
def test_damage_is_noticed_and_says_that_it_is_the_state(what: str, how: str) -> None:
    store = SimulatedStore()
    journal = StateJournal(store, BELOW, 1)
    journal.write(0, [changed("carried")])
    journal.write(1, [write_part(store, BELOW, 1, changed("staged", "sums"))])
    key = next(key for key in store.objects if key.endswith(what))
    damage: Mapping[str, dict[str, int]] = {
        "truncated": {"keep": len(store.objects[key]) - 1},
        "flipped at the start": {"flip": 0},
        "flipped at the end": {"flip": len(store.objects[key]) - 1},
    }
    if how == "removed":
        store.delete(key)
    else:
        store.damage(key, **damage[how])
    with pytest.raises(Corrupt) as caught:
        content_of(StateJournal(store, BELOW, 2).begin(2), store)
    assert caught.value.participant == STATE
    assert "restore the checkpoint" in caught.value.do


def test_state_of_version_0_2_goes_on_and_its_pieces_are_checked_as_it_wrote_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, model = SimulatedStore(), Model(random.Random(3))
    with monkeypatch.context() as then:
        then.setattr(module, "_FORMAT", 1)
        then.setattr(module, "_checksum", lambda data: hashlib.blake2b(data, digest_size=8).hexdigest())
        run(model, StateJournal(store, BELOW, 1), store, range(10))
    journal = StateJournal(store, BELOW, 2)
    run(model, journal, store, range(10, 20))
    before = journal.begin(20)
    assert content_of(before, store) == model.content
    (piece, *_) = [
        piece
        for bucket in before.buckets.values()
        for piece in bucket.pieces.values()
        if len(piece.checksum) == 16 and piece.size
    ]
    store.damage(piece.key, flip=piece.offset)
    with pytest.raises(Corrupt, match="checksum does not match"):
        JournalReader(store, BELOW).piece(piece)


def test_an_entry_is_put_after_no_other_than_its_own_predecessor() -> None:
    store = SimulatedStore()
    journal = StateJournal(store, BELOW, 1)
    for epoch in range(3):
        journal.write(epoch, [changed(str(epoch))])
    last = journal.begin(3)
    other = StateVersion(1, "another", {}, 1)
    entry = module._Entry.parsed(last.key, store.objects[last.key])
    with pytest.raises(InternalError, match="is put after 'another'"):
        entry.after(other)


def test_a_reader_that_knows_a_version_reads_only_what_came_after_it() -> None:
    store = Counted()
    journal = StateJournal(store, BELOW, 1)
    for epoch in range(10):
        journal.write(epoch, [changed(str(epoch))])
    reader = JournalReader(store, BELOW)
    known = reader.version(7)
    store.gets = 0
    assert reader.version_of(journal.begin(10).key, known) == journal.begin(10)
    assert store.gets == 2
    assert reader.version_of("", known) == NOTHING


class Counted(SimulatedStore):
    """Counts what is read."""

    gets = 0

    def get(self, key: str) -> bytes | None:
        self.gets += 1
        return super().get(key)


def changed(record: str, operator: str = "counts") -> BucketChange:
    """Return a change whose record and only piece say the same."""
    kept: dict[tuple[int, int], StoredPiece] = {}
    return BucketChange((operator, 0), record, kept, {(0, 0): record.encode()})
