"""The lease in files and databases; and that no clock of another machine counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.connectors.files.sink.spec import FilesSinkSpec
from holdfast.connectors.mysql.spec import MysqlSpec
from holdfast.connectors.postgres.spec import PostgresSpec
from holdfast.connectors.sqlite.spec import SqliteSpec
from holdfast.ports import Lease, LeasedSpec, SeenLease
from holdfast.replica.tenure import Watch
from tests.contract.lease_contract import LeaseContract, Opened


@pytest.fixture(
    params=[
        "files",
        "sqlite",
        pytest.param("mysql", marks=pytest.mark.slow),
        pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.slow]),
    ]
)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    spec: LeasedSpec
    if request.param == "files":
        spec = FilesSinkSpec(str(tmp_path / "out"))
    elif request.param == "sqlite":
        spec = SqliteSpec(str(tmp_path / "out.db"), "words")
    elif request.param == "mysql":
        spec = MysqlSpec(request.getfixturevalue("mysql_url"), "words")
    else:
        spec = PostgresSpec(request.getfixturevalue("postgres_plain"), "words")

    def place() -> object:
        found = spec.lease("target", "pipe")
        request.addfinalizer(found.close)
        return found

    return place  # type: ignore[return-value]


class TestLease(LeaseContract):
    """Each place."""


class _Shown:
    def __init__(self) -> None:
        self.seen = SeenLease(1, Lease(1, "t", "main", "host", 1, 1_000_000))

    def read(self) -> SeenLease:
        return self.seen

    def write(self, seen: SeenLease | None, lease: Lease) -> bool:
        return False

    def close(self) -> None:
        """Nothing to close."""


def test_where_there_is_no_common_clock_only_the_watchers_own_counts() -> None:
    place, now = _Shown(), [5]
    watch = Watch(place, lambda: now[0])
    assert not watch.is_free()  # however old it is: this watcher has seen it just now
    now[0] += 999_999
    assert not watch.is_free()
    place.seen = SeenLease(2, place.seen.lease)
    now[0] += 1
    assert not watch.is_free()  # a beat came
    now[0] += 1_000_000
    assert watch.is_free()


def test_a_database_expires_it_by_its_own_clock() -> None:
    place = _Shown()
    watch = Watch(place, lambda: 10**18)
    for left_us, is_free in ((1, False), (0, True), (-5, True)):
        place.seen = SeenLease(1, place.seen.lease, left_us)
        assert watch.is_free() is is_free
