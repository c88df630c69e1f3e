"""PostgreSQL: ROLLBACK PREPARED and DROP TABLE by hand, between any two statements of a driver that lives or is killed.

design/0002, "Expiry", and design/0003, 4.  What is not visible yet is produced again; what is visible in part is
refused each time, with what is missing, and not one row is there twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from holdfast.errors import Diverged
from holdfast.graph.trigger import SinkPace
from holdfast.testing import CrashAt, Load, Setting, World, simulated_sink
from tests.crash.mortal import Database
from tests.sim.forgetting import live, partly, problems

pytestmark = [pytest.mark.postgres, pytest.mark.crash]

NIGHTLY = pytest.mark.nightly


@pytest.fixture
def database(postgres_prepared: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    database = Database(postgres_prepared)
    monkeypatch.setattr(psycopg, "connect", database.connect)
    yield database
    database.close()


def by_hand(dsn: str, *, only_one: bool) -> list[str]:
    """End what is staged, as somebody does who finds locks, or tables that he does not know."""
    gone = []
    with psycopg.Connection.connect(dsn, autocommit=True) as connection:
        connection.execute("SET lock_timeout = '50ms'")
        gids = connection.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY gid")
        statements = [sql.SQL("ROLLBACK PREPARED {}").format(gid) for (gid,) in gids.fetchall()]
        tables = connection.execute(
            "SELECT relname FROM pg_class WHERE relname LIKE 'holdfast\\_stage%' AND relkind = 'r'"
        )
        statements += [sql.SQL("DROP TABLE {}").format(sql.Identifier(name)) for (name,) in tables.fetchall()]
        for statement in statements[:1] if only_one else statements:
            try:
                connection.execute(statement)
            except (psycopg.errors.LockNotAvailable, psycopg.errors.ObjectNotInPrerequisiteState):
                continue  # the driver is at it: nobody gets between these two statements
            gone.append(statement.as_string(connection))
    return gone


LOAD = Load(row_count=8, epoch_rows_min=4, epoch_rows_max=4, carried_share=0.0)
WAYS: dict[str, tuple[dict[str, Any], bool, dict[str, Any]]] = {
    "prepared": ({"stage": "prepared"}, False, {}),
    "prepared beside another": ({"stage": "prepared"}, True, {}),
    "table": ({"stage": "table"}, False, {}),
    "table beside another": ({"stage": "table"}, True, {}),
    "upsert": ({"mode": "upsert", "key": ("id",)}, True, {"commit_thread": True}),
    "table that waits": ({"stage": "table"}, True, {"paces": {"rows": SinkPace(every_epochs=2)}}),
}


@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=NIGHTLY)])
@pytest.mark.parametrize("dies", [pytest.param(False, marks=NIGHTLY), True], ids=["lives", "killed"])
@pytest.mark.parametrize("way", WAYS)
def test_what_is_ended_by_hand_between_any_two_statements_is_produced_again_or_refused(
    database: Database, way: str, dies: bool, stride: int
) -> None:
    arguments, has_another, setting = WAYS[way]
    gone_count = 0
    for at in range(3, 52, stride):
        database.reset()
        sinks = [database.sink("rows", **arguments)] + ([simulated_sink("system")] if has_another else [])
        world = World(sinks, seed=at % 4, setting=Setting(LOAD, replays=True, **setting))
        crash = CrashAt(at, "before") if dies else None
        told = live(world, at, lambda at=at: by_hand(database.dsn, only_one=at % 2 == 0), crash=crash)
        gone_count += bool(told.gone)
        if told.final is None:
            assert not problems(world), f"{at}: {problems(world)}\n" + "\n".join(world.trace)
            continue
        assert "ROLLBACK PREPARED was run for" in told.final.why, told.final
        assert not partly(world)
        with pytest.raises(Diverged, match="were rolled back by somebody") as again, world.life() as life:
            life.open()
        assert not again.value.is_mended_by_start
    assert gone_count, "nothing was ever staged"
