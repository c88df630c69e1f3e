"""Which version of a table an epoch sees: logged before it is used, and the same in every replay (design/0030)."""

import contextlib
import logging

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.operators.lookup.spec import TableLookup
from holdfast.plan.lookup_operation import Pinned, pins_key, version_key
from holdfast.plan.lookup_versions import LookupVersions
from holdfast.store import sealed
from holdfast.store.paths import open_store
from holdfast.testing.store import SimulatedStore

MINUTE = 60_000_000


class Changing:
    """A table whose rows are what the test says."""

    def __init__(self):
        self.price = 1
        self.loads = 0
        self.broken: hf.HoldfastError | None = None

    def described(self):
        return {}

    def known_columns(self):
        return None

    def schema(self):
        return pa.schema([("id", pa.int64()), ("price", pa.int64())])

    def load(self, columns):
        self.loads += 1
        if self.broken is not None:
            raise self.broken
        return pa.table({"id": [1], "price": [self.price]}).select(list(columns))


class Runs:
    """A pipeline with one look-up that is started again and again with one checkpoint."""

    def __init__(self, store=None, refresh_us=None):
        self.store = SimulatedStore() if store is None else store
        self.table = Changing()
        self.spec = TableLookup(self.table, (("id", "id"),), "left", None, "fail", refresh_us)
        self.generation = 0
        self.oldest = 0

    def start(self, planned=-1):
        self.generation += 1
        return LookupVersions(
            {"priced": self.spec},
            self.store,
            token=f"run{self.generation}",
            generation=self.generation,
            planned=planned,
            replayed_to=planned + 1,
            oldest=lambda: self.oldest,
        )

    def seen(self, run, epoch, batch_us=0, batch_id=None):
        """Return the price that an epoch sees."""
        run.begin(epoch, epoch - 1 if batch_id is None else batch_id, batch_us)
        token = run._token
        pinned = self.store.get(pins_key(token))
        assert pinned is not None
        version = sealed.load(pinned)["priced"]
        data = self.store.get(version_key("priced", version))
        return pa.ipc.open_file(data).read_all().column("price")[0].as_py()

    def versions(self):
        return [key for key in self.store.keys("lookups/priced/") if key.endswith(".arrow")]


def test_a_replayed_epoch_sees_what_it_saw_and_the_next_one_what_is_there():
    runs = Runs()
    assert runs.seen(runs.start(), 1) == 1
    runs.table.price = 2
    again = runs.start(planned=0)
    assert [runs.seen(again, 1), runs.seen(again, 2), runs.seen(again, 3)] == [1, 2, 2]
    assert runs.table.loads == 2


def test_a_table_is_loaded_once_in_a_run_without_refresh():
    runs = Runs()
    run = runs.start()
    for epoch in range(1, 5):
        assert runs.seen(run, epoch, epoch * MINUTE) == 1
        runs.table.price += 1
    assert runs.table.loads == 1


def test_with_refresh_a_new_version_counts_from_an_epoch_on():
    runs = Runs(refresh_us=10 * MINUTE)
    run = runs.start()
    assert runs.seen(run, 1, 0) == 1
    runs.table.price = 2
    assert runs.seen(run, 2, 9 * MINUTE) == 1
    assert runs.seen(run, 3, 10 * MINUTE) == 2
    runs.table.price = 3
    after = runs.start(planned=2)
    assert [runs.seen(after, epoch, epoch * MINUTE) for epoch in (2, 3)] == [1, 2]
    assert runs.seen(after, 4, 30 * MINUTE) == 3


def test_a_changed_refresh_changes_nothing_of_an_epoch_that_was_planned():
    runs = Runs()
    run = runs.start()
    assert [runs.seen(run, epoch, epoch * MINUTE) for epoch in (1, 2, 3)] == [1, 1, 1]
    runs.spec = TableLookup(runs.table, (("id", "id"),), "left", None, "fail", MINUTE)
    runs.table.price = 2
    after = runs.start(planned=2)
    assert [runs.seen(after, epoch, epoch * MINUTE) for epoch in (3, 4)] == [1, 2]


def test_rows_that_have_not_changed_are_no_new_version():
    runs = Runs(refresh_us=MINUTE)
    run = runs.start()
    for epoch in range(1, 5):
        runs.seen(run, epoch, epoch * MINUTE)
    assert runs.table.loads == 4
    assert len(runs.store.keys("lookups/priced/")) == 2


@pytest.mark.parametrize("kind", [hf.Unavailable, hf.Corrupt])
def test_a_table_that_does_not_answer_or_is_damaged_leaves_the_version_that_counts(caplog, kind):
    runs = Runs(refresh_us=MINUTE)
    run = runs.start()
    assert runs.seen(run, 1, 0) == 1
    runs.table.price, runs.table.broken = 2, kind("the table cannot be read.")
    with caplog.at_level(logging.WARNING):
        assert runs.seen(run, 2, MINUTE) == 1
    assert "keeps the version" in caplog.text
    runs.table.broken = None
    assert runs.seen(run, 3, 2 * MINUTE) == 2
    none = Runs()
    none.table.broken = kind("the table cannot be read.")
    with pytest.raises(kind):
        none.seen(none.start(), 1, 0)


def test_what_an_overtaken_driver_writes_says_nothing_of_its_successors_epochs():
    runs = Runs(refresh_us=MINUTE)
    first = runs.start()
    assert runs.seen(first, 1, 0) == 1
    second = runs.start(planned=1)
    assert runs.seen(second, 2, MINUTE) == 1  # planned by the first, which did not load anything for it
    runs.table.price = 9
    runs.seen(first, 2, MINUTE)  # it wakes up, and is fenced before it publishes anything
    assert runs.seen(runs.start(planned=1), 2, MINUTE) == 1


def test_a_directory_that_replays_older_epochs_replays_their_versions():
    runs = Runs(refresh_us=MINUTE)
    run = runs.start()
    for epoch in (1, 2, 3):
        runs.table.price = epoch
        assert runs.seen(run, epoch, epoch * MINUTE) == epoch
    runs.table.price = 9
    anew = runs.start(planned=2)
    assert [runs.seen(anew, epoch, epoch * MINUTE, batch_id=epoch - 1) for epoch in (1, 2, 3)] == [1, 2, 3]
    assert runs.seen(anew, 4, 9 * MINUTE) == 9


def test_a_replay_that_dies_and_is_replayed_sees_each_version_again():
    """What the second run records hid what the first had recorded for the epochs that the third still replays."""
    runs = Runs(refresh_us=MINUTE)
    run = runs.start()
    for epoch in (1, 2, 3, 4):
        runs.table.price = epoch
        assert runs.seen(run, epoch, epoch * MINUTE) == epoch
    runs.table.price = 9
    for dies_after in (1, 3, 4):
        again = runs.start(planned=3)
        for epoch in range(1, dies_after + 1):
            assert runs.seen(again, epoch, epoch * MINUTE, batch_id=epoch - 1) == epoch
    assert runs.seen(again, 5, 9 * MINUTE) == 9


def test_versions_are_removed_when_no_epoch_needs_them():
    runs = Runs(refresh_us=MINUTE)
    run = runs.start()
    for epoch in range(1, 6):
        runs.table.price = epoch
        runs.oldest = epoch - 1
        runs.seen(run, epoch, epoch * MINUTE)
    assert len(runs.versions()) == 2
    assert runs.seen(runs.start(planned=4), 4, 4 * MINUTE) == 4
    pins = list(runs.store.keys("lookups/now-"))
    assert pins == [pins_key("run2")]  # that of the dead run is gone


def test_a_crash_at_any_write_leaves_an_epoch_with_one_version():
    """Crash at the n-th write, of one that adds a version; the table changes before the next start."""
    for number in range(1, 12):
        runs = Runs(Dying(), refresh_us=MINUTE)
        run = runs.start()
        runs.seen(run, 1, 0)
        runs.table.price, runs.store.left = 2, number
        before = None
        with contextlib.suppress(Died):
            before = runs.seen(run, 2, MINUTE)
        finished = runs.store.left > 0
        runs.store.left, runs.table.price = 10**9, 3
        again = runs.seen(runs.start(planned=1), 2, MINUTE)
        assert again in (1, 2)
        assert before is None or again == before
        assert runs.seen(runs.start(planned=1), 2, MINUTE) == again
        if finished:
            return
    raise AssertionError("there are fewer writes")


class Died(Exception):
    pass


class Dying(SimulatedStore):
    """A store that is killed after some calls."""

    left = 10**9

    def _count(self):
        self.left -= 1
        if self.left <= 0:
            raise Died

    def put(self, key, data):
        super().put(key, data)
        self._count()

    def delete(self, key):
        super().delete(key)
        self._count()


def test_a_damaged_record_or_version_is_refused(tmp_path):
    store = open_store(str(tmp_path))
    store.prepare()
    runs = Runs(store)
    run = runs.start()
    runs.seen(run, 1)
    pinned = Pinned(str(tmp_path), "run1")
    version = pinned.current("priced")
    assert pinned.rows("priced", version).to_pylist() == [{"id": 1, "price": 1}]
    path = tmp_path / version_key("priced", version)
    path.write_bytes(path.read_bytes()[:-20] + bytes(20))
    with pytest.raises(hf.Corrupt, match="checksum"):
        pinned.rows("priced", version)
    (record,) = tmp_path.glob("lookups/priced/*.json")
    record.write_bytes(b"{}")
    with pytest.raises(hf.Corrupt, match="which rows lookup 'priced' saw"):
        runs.start()
