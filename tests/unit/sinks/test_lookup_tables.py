"""Queries as tables that streams look up in: values arrive as the database has them, and no secret is shown."""

from __future__ import annotations

import datetime
import sqlite3
from decimal import Decimal

import psycopg
import pyarrow as pa
import pytest

import holdfast as hf

UTC = datetime.UTC


@pytest.mark.postgres
def test_the_rows_of_a_query_arrive_with_their_types(postgres_plain):
    dsn = postgres_plain
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS looked_up_in")
        connection.execute(
            "CREATE TABLE looked_up_in (id bigint, small smallint, n integer, price numeric(8,2), plain numeric, "
            "ratio double precision, name text, is_on boolean, day date, at timestamptz, local timestamp, u uuid)"
        )
        connection.execute(
            "INSERT INTO looked_up_in VALUES (1, 2, 3, 4.50, 7, 0.5, E'a \"quoted\"\\nline, ü', true, '2026-01-02', "
            "'2026-01-02 03:04:05.000006+02', '2026-01-02 03:04:05.5', '00000000-0000-0000-0000-000000000001'), "
            "(2, null, null, null, null, 'NaN', '', false, null, null, null, null)"
        )
    table = hf.lookup_table.postgres(dsn, "SELECT * FROM looked_up_in ORDER BY id;")
    schema = table.schema()
    assert schema.field("price").type == pa.decimal128(8, 2)
    assert schema.field("at").type == pa.timestamp("us", "UTC")
    one, two = table.load(schema.names).to_pylist()
    assert one == {
        "id": 1, "small": 2, "n": 3, "price": Decimal("4.50"), "plain": Decimal(7), "ratio": 0.5,
        "name": 'a "quoted"\nline, ü', "is_on": True, "day": datetime.date(2026, 1, 2),
        "at": datetime.datetime(2026, 1, 2, 1, 4, 5, 6, UTC), "local": datetime.datetime(2026, 1, 2, 3, 4, 5, 500000),
        "u": "00000000-0000-0000-0000-000000000001",
    }  # fmt: skip
    assert (two["name"], two["small"], two["is_on"], two["at"]) == ("", None, False, None)
    assert table.load(["name", "id"]).schema.names == ["name", "id"]
    nothing = hf.lookup_table.postgres(dsn, "SELECT id, name FROM looked_up_in WHERE false")
    assert nothing.load(["id"]).num_rows == 0


@pytest.mark.postgres
def test_line_ends_within_a_text_arrive_as_they_are_wherever_arrow_divides_what_is_sent(postgres_plain):
    """A CR as the last byte of a block of Arrow's, a megabyte, took the LF after it away."""
    query = r"SELECT id, repeat(E'\r\n', 500) || repeat('x', id) AS name FROM generate_series(1, 40) AS id"
    query = f"{query}, generate_series(1, 80)"
    rows = hf.lookup_table.postgres(postgres_plain, query).load(["id", "name"]).to_pylist()
    assert len(rows) == 40 * 80
    assert [row for row in rows if row["name"] != "\r\n" * 500 + "x" * row["id"]] == []


@pytest.mark.postgres
@pytest.mark.parametrize("number", ["7e20", "1e30", "'NaN'", "1e-19", "1e-90"])
def test_a_number_of_more_digits_than_its_column_is_an_error_and_no_other_number(postgres_plain, number):
    """Seven times ten to the twentieth was 19435266158123073073.25."""
    query = f"SELECT 1 AS id, {number}::numeric AS n UNION ALL SELECT 2, 99999999999999999999.5"
    with pytest.raises(hf.InvalidPipeline, match="column 'n' of the query has numbers") as raised:
        hf.lookup_table.postgres(postgres_plain, query).load(["id", "n"])
    assert "SELECT CAST(n AS numeric(38, 6)) AS n" in raised.value.do
    fits = hf.lookup_table.postgres(postgres_plain, "SELECT 99999999999999999999.5 AS n")
    assert fits.load(["n"]).to_pylist() == [{"n": Decimal("99999999999999999999.5")}]


@pytest.mark.postgres
@pytest.mark.parametrize(
    "moment",
    [
        "date 'infinity'",
        "date '10000-01-01'",
        "date '0044-03-15 BC'",
        "timestamptz 'infinity'",
        "timestamp '10000-01-01'",
    ],
)
def test_a_day_or_time_of_other_years_than_spark_s_is_refused(postgres_plain, moment):
    """It ended with a trace of Arrow's; tests/spec/test_years.py has the other tables."""
    with pytest.raises(hf.errors.InvalidPipeline, match="cannot be loaded"):
        hf.lookup_table.postgres(postgres_plain, f"SELECT 1 AS id, {moment} AS day").load(["id", "day"])


@pytest.mark.postgres
def test_what_is_wrong_with_a_query_is_said_with_its_cure_and_nothing_is_written(postgres_plain):
    dsn = postgres_plain
    for query, says in (
        ("SELECT nothing FROM nowhere", "nowhere"),
        ("SELECT ARRAY[1] AS many", "is of type"),
        ("INSERT INTO nowhere VALUES (1) RETURNING 1", "syntax"),
    ):
        with pytest.raises(hf.InvalidPipeline, match=says) as raised:
            hf.lookup_table.postgres(dsn, query).schema()
        assert raised.value.do
    with pytest.raises(hf.InvalidPipeline, match="gives no column 'b'"):
        hf.lookup_table.postgres(dsn, "SELECT 1 AS a").load(["b"])


def test_a_server_that_does_not_answer_is_unavailable_and_its_password_stays_secret():
    table = hf.lookup_table.postgres("postgresql://app:hunter2@127.0.0.1:1/shop", "SELECT 1 AS id")
    with pytest.raises(hf.Unavailable) as raised:
        table.schema()
    assert "hunter2" not in str(raised.value)
    assert "hunter2" not in repr(table)


def test_a_sqlite_file_is_read_and_never_made(tmp_path):
    path = tmp_path / "shop.db"
    with pytest.raises(hf.Unavailable):
        hf.lookup_table.sqlite(path, "SELECT 1").schema()
    assert not path.exists()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE c (id INTEGER, name TEXT)")
    connection.commit()
    connection.close()
    with pytest.raises(hf.InvalidPipeline, match="no such column"):
        hf.lookup_table.sqlite(path, "SELECT lacking FROM c").schema()
    with pytest.raises(hf.InvalidPipeline, match="gives no column"):
        hf.lookup_table.sqlite(path, "SELECT id FROM c").load(["name"])
    assert hf.lookup_table.sqlite(path, "SELECT * FROM c").schema().names == ["id", "name"]


@pytest.mark.parametrize("make", [lambda: hf.lookup_table.postgres("", "x"), lambda: hf.lookup_table.sqlite("a", "")])
def test_an_empty_argument_is_refused(make):
    with pytest.raises(hf.InvalidPipeline):
        make()
