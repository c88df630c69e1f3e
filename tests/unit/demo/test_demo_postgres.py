"""The demo's own PostgreSQL: it starts whoever we are, and what it holds is read like any other sink."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest

from demo.verify import held_in_postgres
from demo.watch import postgres_rows
from holdfast.demo import verify
from holdfast.testing.servers.postgres import PostgresServer, postgres_server, scratch_schema

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server of the module's own."""
    with postgres_server() as running:
        yield running


@pytest.fixture
def dsn(server: PostgresServer) -> Iterator[str]:
    """A DSN whose tables lie in an empty schema."""
    with scratch_schema(server.dsn, "holdfast_demo") as dsn:
        yield dsn


def test_prepared_transactions_are_allowed(server: PostgresServer) -> None:
    with psycopg.connect(server.dsn) as connection:
        row = connection.execute("SELECT current_setting('max_prepared_transactions')::int").fetchone()
    assert row is not None
    assert row[0] > 0


def test_rows_are_counted_from_before_the_table_exists(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as watcher, psycopg.connect(dsn) as writer:
        count = postgres_rows(watcher, "flights")
        assert count() == 0
        writer.execute("CREATE TABLE flights (number int)")
        writer.execute("INSERT INTO flights SELECT generate_series(1, 10)")
        assert count() == 0
        writer.commit()
        assert count() == 10


def test_the_flights_in_postgres_equal_the_flights_computed(dsn: str, tmp_path: Path) -> None:
    (tmp_path / "part-0000.json").write_text(
        '{"time_hour": "2013-01-01T10:00:00Z", "carrier": "UA", "flight": 1545, "tailnum": null, "origin": "EWR", '
        '"dest": "IAH", "dep_time": 517, "dep_delay": 2, "arr_delay": 11, "air_time": 227, "distance": 1400}\n'
    )
    expected = verify.expected_flights(tmp_path)
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "CREATE TABLE flights (time_hour timestamptz, carrier text, flight int, tailnum text, origin text, "
            "dest text, distance int, dep_delay int, arr_delay int, speed_mph double precision, is_late bool, "
            "is_cancelled bool)"
        )
        ((hour, *rest),) = expected
        values = (datetime.fromtimestamp(hour / 1e6, UTC), *rest)
        placeholders = ", ".join(["%s"] * 12)
        columns = ", ".join(verify.COLUMNS["flights"])
        connection.execute(f"INSERT INTO flights ({columns}) VALUES ({placeholders})".encode(), values)
    assert verify.compare("flights", expected, held_in_postgres(dsn, "flights")).is_exact


def test_a_schema_is_made_anew_and_nothing_else_is_touched(server: PostgresServer) -> None:
    with psycopg.connect(server.dsn) as connection:
        connection.execute("CREATE TABLE flights (theirs int)")
    for _ in range(2):
        with scratch_schema(server.dsn, "holdfast_demo") as dsn, psycopg.connect(dsn) as connection:
            connection.execute("CREATE TABLE flights (ours int)")
    with psycopg.connect(server.dsn) as connection:
        assert connection.execute("SELECT theirs FROM public.flights").fetchall() == []
