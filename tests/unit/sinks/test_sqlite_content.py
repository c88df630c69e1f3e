"""What a SQLite table holds, compared: columns hold anything, whatever they declare (design/0024)."""

from __future__ import annotations

import datetime as dt
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.capabilities import offers
from holdfast.errors import InvalidPipeline
from holdfast.ports import HASH_COLUMN, Comparable
from holdfast.types import canonical
from tests.contract.comparable_contract import PIPELINE, Opened, digests_of, repair_of, repaired
from tests.specs import sqlite_spec

KINDS: dict[str, tuple[pa.DataType, Any, list[Any]]] = {
    "flag": (pa.bool_(), True, [2, "true", 0.5]),
    "tiny": (pa.int8(), 1, [128, "x", 1.5, b"1"]),
    "large": (pa.uint64(), 1, [-1]),
    "short": (pa.float32(), 1.5, [0.1, "x"]),
    "value": (pa.float64(), 1.5, ["x", b"x"]),
    "price": (pa.decimal128(5, 2), Decimal("1.50"), ["1.5", "1234.50", "1.505", "x", 1]),
    "word": (pa.string(), "word", [b"word"]),
    "raw": (pa.binary(), b"raw", ["raw", 1]),
    "code": (pa.binary(2), b"ab", [b"abc"]),
    "day": (pa.date32(), dt.date(2026, 1, 2), ["2026-1-2", "2026-01-02 00:00:00", "today"]),
    "at": (
        pa.timestamp("us", "UTC"),
        dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
        ["2026-01-02 00:00:00.000000", "2026-01-02", "2026-01-02T00:00:00.000000Z"],
    ),
    "second": (pa.timestamp("s"), dt.datetime(2026, 1, 2), ["2026-01-02 00:00:00.500000", "2026-01-02 00:00:00"]),
    "time": (pa.time64("us"), dt.time(1, 2), ["01:02", "25:00:00.000000"]),
    "lasting": (pa.duration("ms"), dt.timedelta(seconds=1), [1, "x"]),
    "nested": (pa.list_(pa.int64()), [1], ["{", '{"a": 1}']),
    "nothing": (pa.null(), None, [1]),
}
ROWS = pa.table(
    {name: pa.array([value], kind) for name, (kind, value, _) in KINDS.items()},
    schema=pa.schema([(name, kind) for name, (kind, _, _) in KINDS.items()]),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.db"


@pytest.fixture
def opened(path: Path) -> Iterator[Opened]:
    opened = Opened(sqlite_spec(str(path), "rows").connect("target", PIPELINE, ROWS.schema))
    yield opened
    opened.close()


def changed(path: Path, statement: str, *values: Any) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement, values)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("column", "value"), [(name, value) for name, (_, _, others) in KINDS.items() for value in others]
)
def test_a_value_that_the_sink_did_not_write_is_found_and_repaired(
    opened: Opened, path: Path, column: str, value: Any
) -> None:
    opened.publish(ROWS)
    changed(path, f'UPDATE rows SET "{column}" = ?', value)
    at, ours = ROWS.schema.get_field_index(column), ROWS.schema.field(column)
    null = ROWS.set_column(at, ours, pa.nulls(1, ours.type))
    with opened.content() as content:
        (row,) = content.rows(0, [0])
        assert row.column(column).to_pylist() == [None]
        for other in (ROWS, null):
            assert len(content.digests(0).differing(digests_of(other, 0, content)))
            theirs = canonical.row_hashes(other.to_batches()[0], other.column_names)
            assert row.column(HASH_COLUMN)[0].as_py() != theirs[0]
    assert repaired(opened, ROWS) == 2
    with opened.content() as content:
        assert not len(content.digests(0).differing(digests_of(ROWS, 0, content)))


@pytest.mark.slow
@pytest.mark.parametrize("is_wide", [False, True])
def test_a_text_that_is_none_is_found_and_repaired(opened: Opened, path: Path, is_wide: bool) -> None:
    """Anywhere: what was read before counts once."""
    rows = pa.concat_tables([ROWS] * (1_500 if is_wide else 3)).combine_chunks()
    opened.publish(rows)
    changed(path, "UPDATE rows SET word = CAST(x'ff41' AS TEXT) WHERE rowid = (SELECT max(rowid) FROM rows)")
    with opened.content() as content:
        assert int(content.digests(0).counts[0]) == len(rows)
    assert repaired(opened, rows) == 2
    with opened.content() as content:
        assert not len(content.digests(2).differing(digests_of(rows, 2, content)))


def test_what_a_column_makes_of_numbers_is_what_was_written(path: Path) -> None:
    """As SQLite prefers them: integers as floats, decimals and floats as integers or floats."""
    rows = pa.table({
        "flag": pa.array([True, False, None, True]),
        "small": pa.array([1, -(2**31), 2**31 - 1, None], pa.int32()),
        "value": pa.array([1.0, 2.0**60, -0.5, float("inf")]),
        "price": pa.array([Decimal("1.50"), Decimal("9999999999999.99"), Decimal("-0.01"), Decimal("2.00")],
                          pa.decimal128(15, 2)),
        "thousands": pa.array([Decimal("1E+3"), Decimal("7E+3"), None, Decimal(0)], pa.decimal128(5, -3)),
        "any": pa.array(["1", "x", "", None]),
    })  # fmt: skip
    changed(path, "CREATE TABLE rows (flag REAL, small REAL, value NUMERIC, price NUMERIC, thousands NUMERIC, any)")
    opened = Opened(sqlite_spec(str(path), "rows").connect("target", PIPELINE, rows.schema))
    opened.publish(rows)
    with opened.content() as content:
        assert not len(content.digests(2).differing(digests_of(rows, 2, content)))
        assert pa.Table.from_batches(content.rows(0, [0])).select(rows.column_names).equals(rows)
    changed(path, "UPDATE rows SET flag = 2.0, small = 1e10, price = 1.505, thousands = 1500, value = 9007199254740993")
    assert repaired(opened, rows) == 8
    with opened.content() as content:
        assert not len(content.digests(2).differing(digests_of(rows, 2, content)))
    opened.close()


def test_years_that_have_not_four_digits(path: Path) -> None:
    rows = pa.table({
        "day": pa.array([-800_000, 3_000_000, 0], pa.int32()).cast(pa.date32()),
        "at": pa.array([-(10**17), 5 * 10**17, -1], pa.int64()).cast(pa.timestamp("us", "UTC")),
        "local": pa.array([-(10**17), 5 * 10**17, -1], pa.int64()).cast(pa.timestamp("us")),
    })  # fmt: skip
    opened = Opened(sqlite_spec(str(path), "rows").connect("target", PIPELINE, rows.schema))
    opened.publish(rows)
    with opened.content() as content:
        assert not len(content.digests(2).differing(digests_of(rows, 2, content)))
    opened.close()


def test_a_row_that_was_changed_since_is_not_removed(opened: Opened, path: Path) -> None:
    opened.publish(pa.concat_tables([ROWS, ROWS]))
    repair = repair_of(opened, ROWS)
    changed(path, "UPDATE rows SET word = 'other'")
    assert offers(opened.sink, Comparable)
    assert opened.sink.repair(repair) is None
    with opened.content() as content:
        assert [batch.column("word").to_pylist() for batch in content.rows(0, [0])] == [["other", "other"]]


def test_a_column_that_is_gone_is_no_text(opened: Opened, path: Path) -> None:
    """SQLite takes a quoted name that it does not know for a text."""
    opened.publish(ROWS)
    changed(path, "ALTER TABLE rows DROP COLUMN word")
    with pytest.raises(InvalidPipeline), opened.content() as content:
        content.digests(0)


def test_columns_that_are_named_like_a_rowid(path: Path) -> None:
    rows = pa.table({"rowid": [1, 1], "_rowid_": [2, 2], "oid": [3, 3]})
    opened = Opened(sqlite_spec(str(path), "rows").connect("target", PIPELINE, rows.schema))
    opened.publish(rows)
    with opened.content() as content:
        assert not len(content.digests(2).differing(digests_of(rows, 2, content)))
        with pytest.raises(InvalidPipeline, match="rowid"):
            next(iter(content.rows(0, [0])))
    opened.close()
