"""Keeping a lease: it is renewed in time, said with its generation, and its loss is noticed (design/0028)."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from holdfast.connectors.sqlite.lease import SqliteLease
from holdfast.errors import Fenced, Unavailable
from holdfast.ports import Lease, LeasePlace, SeenLease
from holdfast.replica.keeper import Keeper, held_by
from holdfast.replica.tenure import Holder, Tenure, Watch, ask, take

LONG_US = 600_000_000
SHORT_US = 30_000


class Place:
    """A lease in a file whose writes are counted, and fail on demand."""

    def __init__(self, path: Path) -> None:
        self._kept = SqliteLease(str(path), "pipe")
        self.written = threading.Semaphore(0)
        self.failures = 0
        self.is_closed = False

    def read(self) -> SeenLease | None:
        return self._kept.read()

    def write(self, seen: SeenLease | None, lease: Lease) -> bool:
        if self.failures:
            self.failures -= 1
            self.written.release()
            raise Unavailable("no answer")
        done = self._kept.write(seen, lease)
        self.written.release()
        return done

    def close(self) -> None:
        self.is_closed = True

    def wait(self, writes: int) -> None:
        for _ in range(writes):
            assert self.written.acquire(timeout=60)


def taken(place: LeasePlace, name: str, ttl_us: int) -> Tenure:
    watch = Watch(place)
    assert watch.is_free()
    tenure = take(place, watch.seen, Holder(name), ttl_us)
    assert tenure is not None
    return tenure


def kept(place: Place, ttl_us: int) -> Keeper:
    keeper = Keeper(place, taken(place, "main", ttl_us))
    place.wait(1)
    keeper.start()
    return keeper


def seen(place: Place) -> SeenLease:
    found = place.read()
    assert found is not None
    return found


def test_it_is_renewed_and_given_back_at_the_end(tmp_path: Path) -> None:
    place = Place(tmp_path / "kept.db")
    keeper = kept(place, SHORT_US)
    place.wait(4)
    keeper.check()
    keeper.end(gives_back=True)
    assert seen(place).beat >= 5
    assert seen(place).lease.token == ""
    assert place.is_closed


def test_a_generation_is_said_at_once(tmp_path: Path) -> None:
    place = Place(tmp_path / "kept.db")
    keeper = kept(place, LONG_US)
    keeper.note_generation(7)
    place.wait(1)
    keeper.end(gives_back=False)
    assert seen(place).lease.generation == 7
    assert seen(place).lease.token, "not given back"


@pytest.mark.slow
def test_a_place_that_does_not_answer_ends_no_tenure(tmp_path: Path) -> None:
    place = Place(tmp_path / "kept.db")
    place.failures = 0
    keeper = kept(place, SHORT_US)
    place.failures = 3
    place.wait(8)
    keeper.check()
    keeper.end(gives_back=True)


def test_a_lease_that_another_process_has_taken_is_lost(tmp_path: Path) -> None:
    place = Place(tmp_path / "kept.db")
    keeper = kept(place, LONG_US)
    assert ask(SqliteLease(str(tmp_path / "kept.db"), "pipe"))
    other = SqliteLease(str(tmp_path / "kept.db"), "pipe")
    new = taken(other, "replica", LONG_US)
    keeper.note_generation(3)  # the next beat finds out
    place.wait(1)
    keeper.end(gives_back=True)
    assert keeper.is_lost
    with pytest.raises(Fenced, match="another process has taken the lease of term 1"):
        keeper.check()
    assert seen(place).lease.token == new.lease.token


def test_who_holds_it_is_said_in_words() -> None:
    given_back = SeenLease(4, Lease(2, "", "main", "db1", 7, LONG_US))
    assert held_by(given_back) == "term 2 was given back"
