"""Rows that a later one of their key replaces are not written; the table is the same."""

import random
import sqlite3
from contextlib import closing

import pyarrow as pa
import pytest

from holdfast.commit.group import Underway
from holdfast.commit.ledger import Key
from holdfast.commit.paced import folded
from holdfast.commit.records import Decided
from holdfast.connectors.kit.sql import TableMode
from holdfast.connectors.sqlite.spec import SqliteSpec
from holdfast.ports import Carried, EpochRecord, Publication, RunIdentity, Staged

TYPES = pa.schema([("a", pa.int64()), ("b", pa.string()), ("value", pa.int64())])


def entries_of(*several, schema=TYPES):
    """Return epochs; each is a list of parts, each a list of rows, or a number of staged rows."""
    entries = []
    for number, parts in enumerate(several, start=1):
        made = tuple(
            Staged(f"{number}", part) if isinstance(part, int) else Carried(pa.Table.from_pylist(part, schema))
            for part in parts
        )
        decided = Decided(EpochRecord("trips", number, 1, {}), {"table": made, "other": ()})
        entries.append(Underway(decided, Key(number, 1)))
    return entries


def row(a, b, value):
    return {"a": a, "b": b, "value": value}


def values(entries):
    parts = [part for entry in entries for part in entry.decided.parts["table"]]
    return [part.row_count if isinstance(part, Staged) else part.rows["value"].to_pylist() for part in parts]


def test_of_each_key_the_last_row_stays_where_it_was():
    entries = entries_of(
        [[row(1, "x", 1), row(2, "x", 2), row(1, "x", 3)]], [[row(2, "x", 4), row(2, "y", 5)]], [[row(1, "x", 6)]]
    )
    assert values(folded("table", entries, ("a", "b"))) == [[], [4, 5], [6]]
    assert values(folded("table", entries, ("a",))) == [[], [5], [6]]
    assert [entry.record.epoch for entry in folded("table", entries, ("a",))] == [1, 2, 3]


def test_without_a_key_every_row_stays():
    entries = entries_of([[row(1, "x", 1)]], [[row(1, "x", 2)]])
    assert values(folded("table", entries, ())) == [[1], [2]]


def test_staged_rows_stay_as_they_are_between_carried_ones():
    entries = entries_of([[row(1, "x", 1)]], [2], [[row(1, "x", 3), row(2, "x", 4)]])
    assert values(folded("table", entries, ("a", "b"))) == [[], 2, [3, 4]]


@pytest.mark.parametrize(
    ("schema", "key"),
    [
        (TYPES, ("a", "missing")),
        (pa.schema([("a", pa.float64()), ("b", pa.string()), ("value", pa.int64())]), ("a",)),
    ],
    ids=["no such column", "numbers that are equal in some places alone"],
)
def test_where_it_is_not_for_us_to_say_what_is_equal_every_row_stays(schema, key):
    entries = entries_of([[row(1, "x", 1)]], [[row(1, "x", 2)]], schema=schema)
    assert values(folded("table", entries, key)) == [[1], [2]]


def test_a_key_that_is_null_is_left_to_the_sink_to_refuse():
    entries = entries_of([[row(1, "x", 1)]], [[row(None, "x", 2)]], [[row(1, "x", 3)]])
    assert values(folded("table", entries, ("a",))) == [[1], [2], [3]]


@pytest.mark.parametrize("seed", range(20))
def test_the_table_is_the_same_as_without(seed):
    chance = random.Random(seed)
    parts = [
        [[row(chance.randrange(4), chance.choice("xy"), chance.random().hex()) for _ in range(chance.randrange(6))]]
        for _ in range(5)
    ]
    schema = pa.schema([("a", pa.int32()), ("b", pa.string()), ("value", pa.string())])

    def upserted(entries):
        rows = [one for of in entries for part in of.decided.parts["table"] for one in part.rows.to_pylist()]
        return {(one["a"], one["b"]): one["value"] for one in rows}, len(rows)

    entries = entries_of(*parts, schema=schema)
    (table, count), (wanted, _) = upserted(folded("table", entries, ("a", "b"))), upserted(entries)
    assert table == wanted
    assert count == len(wanted)


def test_a_table_of_sqlite_is_the_same_as_without_deletions_too(tmp_path):
    chance = random.Random(3)
    schema = pa.schema([("id", pa.int64()), ("word", pa.string()), ("gone", pa.bool_())])

    def rows(count):
        return [
            {"id": chance.randrange(9), "word": chance.random().hex(), "gone": chance.random() < 0.3}
            for _ in range(count)
        ]

    entries = entries_of(*([rows(chance.randrange(8))] for _ in range(9)), schema=schema)
    tables = []
    for name, several in (("all", entries), ("folded", folded("table", entries, ("id",)))):
        spec = SqliteSpec(str(tmp_path / f"{name}.db"), "words", TableMode("upsert", ("id",), "gone"))
        sink = spec.connect("table", "trips", schema)
        held = sink.open(RunIdentity("trips", 1))
        sink.publish([Publication(each.record, each.decided.parts["table"]) for each in several], held)
        sink.close()
        with closing(sqlite3.connect(tmp_path / f"{name}.db")) as connection:
            tables.append(connection.execute("SELECT * FROM words ORDER BY id").fetchall())
    assert tables[0] == tables[1]
    assert len(tables[0]) > 3
