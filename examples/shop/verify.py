"""Does every table hold exactly what it should?  Computed from the files that arrived, in SQL; nothing of Holdfast is used.

Also a command: ``python -m examples.shop.verify`` looks again at what the last ``make shop`` left in SQLite.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb

LINES = """
    CREATE MACRO lines_of(stream) AS TABLE
        SELECT parse_filename(filename) AS file, line, trim(line) AS text, json_valid(line) AS is_good
        FROM (SELECT filename, unnest(string_split(rtrim(content, chr(10)), chr(10))) AS line
              FROM read_text(getvariable('arrived') || '/' || stream || '/*.json'))
"""
"""Each line of a stream's files; a bad one is no JSON."""

ARRIVED = """
    CREATE TABLE orders AS
        SELECT (text->>'order_id')::BIGINT AS order_id, (text->>'customer')::BIGINT AS customer,
               (text->>'cents')::BIGINT AS cents, (text->>'ordered_at')::TIMESTAMPTZ AS ordered_at
        FROM lines_of('orders') WHERE is_good AND NOT json_exists(text, '$.is_bound');
    CREATE TABLE payments AS
        SELECT (text->>'payment_id')::BIGINT AS payment_id, (text->>'order_id')::BIGINT AS order_id,
               (text->>'paid_cents')::BIGINT AS paid_cents, (text->>'paid_at')::TIMESTAMPTZ AS paid_at
        FROM lines_of('payments') WHERE is_good AND NOT json_exists(text, '$.is_bound');
    CREATE TABLE customers AS
        SELECT DISTINCT (text->>'customer')::BIGINT AS customer, text->>'country' AS country,
               (text->>'since')::TIMESTAMPTZ AS since
        FROM lines_of('customers') WHERE is_good AND NOT json_exists(text, '$.is_bound');
    CREATE VIEW located AS
        SELECT order_id, coalesce(country, 'unknown') AS country, cents, ordered_at
        FROM (SELECT DISTINCT * FROM orders) o
        ASOF LEFT JOIN customers c ON o.customer = c.customer AND o.ordered_at >= c.since;
    CREATE VIEW paid AS
        SELECT * FROM located LEFT JOIN (SELECT DISTINCT * FROM payments) p USING (order_id)
        WHERE paid_at BETWEEN ordered_at AND ordered_at + INTERVAL 2 HOURS;
"""

EXPECTED = {
    "sales": "SELECT payment_id, order_id, country, paid_cents, ordered_at, paid_at FROM paid",
    "open_orders": """
        SELECT order_id, country, cents, ordered_at FROM located WHERE order_id NOT IN (SELECT order_id FROM paid)""",
    "revenue": """
        SELECT country, time_bucket(INTERVAL 1 HOUR, paid_at) AS window_start, window_start + INTERVAL 1 HOUR AS window_end,
               count(*)::BIGINT AS payments, sum(paid_cents)::BIGINT AS cents
        FROM paid GROUP BY ALL""",
    "bad_rows": """
        SELECT stream, file, text AS raw FROM (VALUES ('orders'), ('payments'), ('customers')) s(stream),
        LATERAL (SELECT * FROM lines_of(stream)) WHERE NOT is_good""",
    "orders": "FROM orders",
    "payments": "FROM payments",
}
