"""Does every table hold exactly what it should?  Computed from the files that arrived, in SQL, without Holdfast.

Also a command: ``python -m examples.shop.verify`` looks again at what the last ``make shop`` left in SQLite.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import duckdb
import psycopg
import pyarrow as pa

from demo.closing import Content

ARRIVED = """
    CREATE MACRO lines_of(stream) AS TABLE
        SELECT stream || '/' || parse_filename(filename) || ':' || line AS position, text,
               CASE WHEN NOT json_valid(text) THEN false
                    WHEN json_exists(text, '$.is_bound') THEN true
                    WHEN stream = 'orders' THEN text->>'order_id' IS NOT NULL AND text->>'customer' IS NOT NULL
                    WHEN stream = 'payments' THEN text->>'payment_id' IS NOT NULL
                    ELSE text->>'customer' IS NOT NULL END AS is_good
        FROM (SELECT filename, unnest(string_split(rtrim(content, chr(10)), chr(10))) AS text,
                     generate_subscripts(string_split(rtrim(content, chr(10)), chr(10)), 1) AS line
              FROM read_text(getvariable('arrived') || '/' || stream || '/*.json'));
    CREATE MACRO rows_of(stream) AS TABLE
        SELECT text::JSON AS r FROM lines_of(stream) WHERE is_good AND NOT json_exists(text, '$.is_bound');
    CREATE TABLE orders AS
        SELECT (r->>'order_id')::BIGINT AS order_id, (r->>'customer')::BIGINT AS customer,
               (r->>'cents')::BIGINT AS cents, (r->>'ordered_at')::TIMESTAMPTZ AS ordered_at FROM rows_of('orders');
    CREATE TABLE payments AS
        SELECT (r->>'payment_id')::BIGINT AS payment_id, (r->>'order_id')::BIGINT AS order_id,
               (r->>'paid_cents')::BIGINT AS paid_cents, (r->>'paid_at')::TIMESTAMPTZ AS paid_at
        FROM rows_of('payments');
    CREATE TABLE customers AS
        SELECT (r->>'customer')::BIGINT AS customer, r->>'country' AS country, (r->>'since')::TIMESTAMPTZ AS since
        FROM rows_of('customers');
    CREATE VIEW located AS
        SELECT order_id, coalesce(country, 'unknown') AS country, cents, ordered_at
        FROM (SELECT DISTINCT * FROM orders) o
        ASOF LEFT JOIN (SELECT DISTINCT * FROM customers) c ON o.customer = c.customer AND o.ordered_at >= c.since;
    CREATE VIEW paid AS
        SELECT payment_id, order_id, country, paid_cents, ordered_at, paid_at
        FROM located JOIN (SELECT DISTINCT * FROM payments) USING (order_id)
        WHERE paid_at BETWEEN ordered_at AND ordered_at + INTERVAL 2 HOURS;
"""

EXPECTED = {
    "sales": "FROM paid",
    "open_orders": "FROM located WHERE order_id NOT IN (SELECT order_id FROM paid)",
    "revenue": """
        SELECT country, time_bucket(INTERVAL 1 HOUR, paid_at) AS window_start,
               window_start + INTERVAL 1 HOUR AS window_end, count(*) AS payments, sum(paid_cents)::BIGINT AS cents
        FROM paid GROUP BY country, window_start""",
    "bad_rows": """
        SELECT position, text AS raw
        FROM (FROM lines_of('orders') UNION ALL FROM lines_of('payments') UNION ALL FROM lines_of('customers'))
        WHERE NOT is_good""",
    "archive/orders": "FROM orders",
    "archive/payments": "FROM payments",
}
"""What the shop writes -> what it is to hold."""

KEYS = {
    "sales": "payment_id",
    "open_orders": "order_id",
    "revenue": "country, window_start",
    "bad_rows": "position",
    "archive/orders": "order_id, ordered_at",
    "archive/payments": "payment_id, paid_at",
}


def verify(work: Path, dsn: str | None = None) -> list[Content]:
    """Compare what the shop wrote, into PostgreSQL or else SQLite, with what its input says."""
    with duckdb.connect() as sql:
        sql.execute("SET TimeZone = 'UTC'")
        sql.execute("SET VARIABLE arrived = $1", [str(work / "in")])
        sql.execute(ARRIVED)
        return [_compare(sql, name, work, dsn) for name in EXPECTED]


def _compare(sql: duckdb.DuckDBPyConnection, name: str, work: Path, dsn: str | None) -> Content:
    sql.execute(f"CREATE OR REPLACE TABLE expected AS {EXPECTED[name]}")
    columns = [column for column, *_ in sql.execute("DESCRIBE expected").fetchall()]
    sql.execute("CREATE OR REPLACE TABLE held AS FROM expected LIMIT 0")
    if name.startswith("archive/"):
        files = [str(path) for path in (work / name).glob("*.parquet")]
        sql.execute(f"INSERT INTO held SELECT {', '.join(columns)} FROM read_parquet($1)", [files])
    elif rows := _rows_of_table(name, columns, work, dsn):
        sql.register("rows", pa.table(dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True))))
        sql.execute("INSERT INTO held FROM rows")
    if name == "bad_rows":  # the same wherever the shop lies
        sql.execute("UPDATE held SET position = regexp_extract(position, '[^/]+/[^/]+$')")
    keys = KEYS[name]
    counts = f"""
        SELECT coalesce(sum(greatest(n, 0)), 0), coalesce(sum(greatest(-n, 0)), 0) FROM (
            SELECT sum(n) AS n FROM (SELECT {keys}, 1 AS n FROM held UNION ALL SELECT {keys}, -1 AS n FROM expected)
            GROUP BY {keys})"""
    ((duplicates, lost),) = sql.execute(counts).fetchall()
    ((other,),) = sql.execute("SELECT count(*) FROM (FROM held EXCEPT ALL FROM expected)").fetchall()
    ((held,),) = sql.execute("SELECT count(*) FROM held").fetchall()
    return Content(name, held, int(duplicates), int(lost), other - int(duplicates))


def _rows_of_table(name: str, columns: Sequence[str], work: Path, dsn: str | None) -> list[tuple[object, ...]]:
    query = f"SELECT {', '.join(columns)} FROM {name}"
    if dsn is not None:
        with psycopg.connect(dsn) as postgres:
            return postgres.execute(query.encode()).fetchall()
    with closing(sqlite3.connect(work / "shop.db")) as sqlite:
        return sqlite.execute(query).fetchall()


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what is there; return 0 when it is what should be."""
    parser = argparse.ArgumentParser(prog="python -m examples.shop.verify", description="Is everything there once?")
    parser.add_argument("work", type=Path, nargs="?", default=Path(__file__).parent / "out")
    parser.add_argument("--postgres", metavar="DSN", help="where the tables are, if not in WORK/shop.db")
    options = parser.parse_args(arguments)
    verdicts = verify(options.work, options.postgres)
    for verdict in verdicts:
        print(verdict)
    return 0 if all(verdict.is_exact for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
