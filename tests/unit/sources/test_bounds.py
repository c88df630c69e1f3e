"""Bound rows of sources: they are told apart from rows, and reach nobody as rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast import read
from holdfast.errors import BadRow, HoldfastError, InvalidPipeline
from holdfast.ports import REJECT_COLUMN

SCHEMA = "k STRING, t BIGINT, is_bound BOOLEAN"
ROWS: list[dict[str, Any]] = [
    {"k": "a", "t": 1},
    {"k": "a", "t": 5, "is_bound": True},
    {"k": "b", "t": 7, "is_bound": False},
    {"t": 9, "is_bound": True},
]


def everything(stream: Any, tmp_path: Path, method: str = "read") -> list[dict[str, Any]]:
    source = stream.node.spec.open("given", str(tmp_path / "workspace"))
    start, rows = source.initial(), []
    while (end := source.latest(start, bounded=False)) != start:
        for span in source.spans(start, end, parallelism=2):
            rows += [row for batch in getattr(source, method)(span) for row in batch.to_pylist()]
        start = end
    return rows


def given_by(kind: str, tmp_path: Path) -> Any:
    if kind == "rows":
        return read.rows(ROWS, schema=SCHEMA, timestamp="t", bounds="is_bound", name="given")
    if kind == "callback":
        feed = read.CallbackFeed(tmp_path / "feed", schema=SCHEMA, timestamp="t", bounds="is_bound")
        feed.push(ROWS[:1])
        feed.bound(5, k="a")
        feed.push(ROWS[2:3])
        feed.bound(9)
        return read.callback(feed, name="given")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "one.json").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return read.files(str(tmp_path / "in"), schema=SCHEMA, timestamp="t", bounds="is_bound", name="given")


@pytest.mark.parametrize("kind", ["rows", "files", "callback"])
def test_every_source_with_a_schema_gives_its_rows_without_bounds_and_with_them(kind: str, tmp_path: Path) -> None:
    stream = given_by(kind, tmp_path)
    assert stream.columns == ("k", "t")
    assert everything(stream, tmp_path) == [{"k": "a", "t": 1}, {"k": "b", "t": 7}]
    marked = everything(stream, tmp_path, "read_marked")
    assert [(row["k"], row["t"], bool(row["is_bound"])) for row in marked] == [
        ("a", 1, False),
        ("a", 5, True),
        ("b", 7, False),
        (None, 9, True),
    ]


def test_a_malformed_row_is_no_bound(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "one.json").write_text('{"k": "a", "t": "x", "is_bound": true}\n{"t": 3, "is_bound": true}\n')
    options: Any = {"timestamp": "t", "bounds": "is_bound", "on_bad_row": "reject", "name": "given"}
    stream = read.files(str(tmp_path / "in"), schema=SCHEMA, **options)
    rows = everything(stream, tmp_path)
    assert [row[REJECT_COLUMN] is None for row in rows] == [False]


KEYED = "k STRING NOT NULL, n BIGINT NOT NULL, t BIGINT NOT NULL, is_bound BOOLEAN"
MIXED: list[dict[str, Any]] = [
    {"k": "a", "n": 1, "t": 1},
    {"t": 5, "is_bound": True},
    {"n": 2, "t": 6},
    {"k": "b", "t": 7, "is_bound": False},
    {"k": "b", "t": 8, "is_bound": True},
    {"k": "c", "n": 3, "is_bound": True},
    {"k": "d", "n": 4, "t": 9},
]
"""Two rows lack a value that is declared NOT NULL, and one bound its timestamp."""


def mixed(format: str, tmp_path: Path, rows: list[dict[str, Any]], **options: Any) -> Any:
    directory = tmp_path / "in"
    directory.mkdir()
    names = ("k", "n", "t", "is_bound")
    if format == "json":
        (directory / "one.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif format == "csv":
        lines = [",".join("" if row.get(name) is None else str(row[name]).lower() for name in names) for row in rows]
        (directory / "one.csv").write_text("\n".join([",".join(names), *lines]) + "\n")
    else:
        table = pa.table({name: [row.get(name) for row in rows] for name in names})
        pq.write_table(table, directory / "one.parquet")
    given: dict[str, Any] = {"format": format, "schema": KEYED, "timestamp": "t", "bounds": "is_bound", "name": "given"}
    return read.files(str(directory), **given, **options)


@pytest.mark.parametrize("format", ["json", "csv"])
def test_only_a_bound_row_may_lack_what_is_not_null(format: str, tmp_path: Path) -> None:
    stream = mixed(format, tmp_path, MIXED, on_bad_row="reject")
    marked = everything(stream, tmp_path, "read_marked")
    good = [row for row in marked if row[REJECT_COLUMN] is None]
    assert [(row["k"], row["n"], row["t"]) for row in good if not row["is_bound"]] == [("a", 1, 1), ("d", 4, 9)]
    assert [(row["k"], row["t"]) for row in good if row["is_bound"]] == [(None, 5), ("b", 8)]
    bad = [row[REJECT_COLUMN] for row in marked if row[REJECT_COLUMN] is not None]
    assert [(one["position"][-1], one["reason"].partition(" is ")[0]) for one in bad] == (
        [("3", "'k'"), ("4", "'n'"), ("6", "'t'")] if format == "json" else [("4", "'k'"), ("5", "'n'"), ("7", "'t'")]
    )


@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
def test_a_row_without_a_key_is_an_error_beside_bounds_too(format: str, tmp_path: Path) -> None:
    stream = mixed(format, tmp_path, MIXED[:2])
    assert [row["t"] for row in everything(stream, tmp_path, "read_marked")] == [1, 5]
    (tmp_path / "bad").mkdir()
    with pytest.raises(HoldfastError, match="'k' is declared NOT NULL"):
        everything(mixed(format, tmp_path / "bad", MIXED[:3]), tmp_path / "bad")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"timestamp": "t", "bounds": "bound"}, "not a column"),
        ({"timestamp": "t", "bounds": "k"}, "of type string"),
        ({"bounds": "is_bound"}, "needs timestamp="),
    ],
)
def test_a_column_that_cannot_mark_bounds_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidPipeline, match=said):
        read.rows([], schema=SCHEMA, name="given", **options)


def test_a_feed_that_does_not_know_its_columns_takes_no_bound(tmp_path: Path) -> None:
    with pytest.raises(InvalidPipeline, match="no column for bounds"):
        read.CallbackFeed(tmp_path / "feed", schema=SCHEMA).bound(3)
    feed = read.CallbackFeed(tmp_path / "feed", schema=SCHEMA, timestamp="t", bounds="is_bound")
    with pytest.raises(BadRow, match="'who'"):
        feed.bound(3, who="ann")


def test_rows_end_behind_their_last_list_where_they_are_bounded(tmp_path: Path) -> None:
    for bounded in (True, False):
        stream: Any = read.rows([[{"t": 1}], [{"t": 2}]], schema="t BIGINT", bounded=bounded, name="given")
        source = stream.node.spec.open("given", str(tmp_path / str(bounded)))
        assert [source.has_ended({"rows": index}) for index in range(3)] == [False, False, bounded]


def test_a_closed_feed_has_ended_behind_its_last_entry_and_takes_nothing_more(tmp_path: Path) -> None:
    feed = read.CallbackFeed(tmp_path / "feed", schema="t BIGINT")
    feed.push([{"t": 1}])
    stream: Any = read.callback(feed, name="given")
    source = stream.node.spec.open("given", str(tmp_path / "workspace"))
    assert not source.has_ended({"log": 1})
    feed.close()
    feed.close()
    other = read.CallbackFeed(tmp_path / "feed", schema="t BIGINT")
    with pytest.raises(InvalidPipeline, match="is closed"):
        other.push([{"t": 2}])
    assert [source.has_ended({"log": number}) for number in (0, 1)] == [False, True]
