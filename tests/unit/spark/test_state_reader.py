"""State in Spark's store, where an older version kept it, and what is missing there (design/0010, section 7)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.checkpoint.manifest import StateSchema
from holdfast.errors import Corrupt
from holdfast.plan.levels.store import Record, StatePart
from holdfast.spark.state.reader import StateReader, WriteTask
from holdfast.state import tables
from holdfast.state.step import StateTable

KEY = pa.schema([("k", pa.string())])
TABLES = {"counts": StateTable(pa.schema([("k", pa.string()), ("n", pa.int64())]), ("k",))}
SCHEMAS = {"counted": StateSchema("stateful", "{}", KEY, TABLES)}
BASE = bytes(tables.encode({"counts": pa.table({"k": ["a"], "n": [1]}, schema=TABLES["counts"].schema)}))
HALF = len(BASE) // 2
RECORD = Record(version=3, token="x", parts=(StatePart(5, 3, len(BASE), 2, is_base=True),), serial=6)
PIECES = [("counted", 2, 5, 0, BASE[:HALF]), ("counted", 2, 5, 1, BASE[HALF:])]
STRAY = ("counted", 2, 4, 0, b"of a part that was replaced")


def batch_of(pieces: list[Any]) -> pa.RecordBatch:
    columns = list(zip(*pieces, strict=True))
    return pa.RecordBatch.from_arrays(
        [pa.array(column) for column in columns], names=["operator", "label", "part", "piece", "data"]
    )


def task(checkpoint: Path) -> WriteTask:
    return WriteTask(str(checkpoint), "spark/1", {"counted": TABLES}, {("counted", 2): RECORD}, 2)


def said(error: Corrupt) -> str:
    assert "restore spark/1 from a copy" in error.do
    assert "by the version that wrote it" in error.do
    return f"{error.what} {error.why}"


@pytest.mark.parametrize("pieces", [PIECES, PIECES[::-1], [STRAY, *PIECES], [*PIECES, STRAY]])
def test_a_bucket_is_written_from_its_pieces_in_whatever_order_they_come(tmp_path: Path, pieces: list[Any]) -> None:
    (found,) = task(tmp_path)(batch_of([piece]) for piece in pieces)
    assert found.select(["operator", "number"]).to_pylist() == [{"operator": "counted", "number": 0}]


@pytest.mark.parametrize("pieces", [PIECES[:1], [PIECES[1], STRAY]])
def test_a_piece_that_is_missing_in_an_older_store_is_corrupt(tmp_path: Path, pieces: list[Any]) -> None:
    with pytest.raises(Corrupt) as raised:
        list(task(tmp_path)(iter([batch_of(pieces)])))
    assert "operator 'counted' in spark/1/state is incomplete" in said(raised.value)
    assert "of bucket 0 there are 1 pieces, and its record names 2" in said(raised.value)
    assert raised.value.participant == "counted"


def test_a_bucket_of_which_no_piece_is_left_is_corrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StateReader, "_view", lambda self, batch_id: nullcontext(tmp_path))
    monkeypatch.setattr(StateReader, "_records", lambda self, view, batch_id, schemas: {("counted", 3): RECORD})
    monkeypatch.setattr(StateReader, "_written", lambda *arguments: [])
    nothing: Any = None
    with pytest.raises(Corrupt) as raised:
        StateReader(nothing, tmp_path, "spark/1").read(nothing, 0, SCHEMAS, 2)
    assert "operator 'counted' in spark/1/state is incomplete" in said(raised.value)
    assert "of bucket 1 there is only the record" in said(raised.value)


def without(name: str) -> Callable[[Path], object]:
    return lambda spark: (spark / name).rename(spark / "elsewhere")


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (without("offsets/7"), "spark/1/offsets/7 is missing"),
        (without("metadata"), "spark/1/metadata is missing"),
        (without("state"), "no operator of Spark's has state there"),
        (without("state/0"), "no operator of Spark's has state there"),
    ],
)
def test_a_file_that_is_missing_beside_an_older_store_is_corrupt(
    tmp_path: Path, damage: Callable[[Path], None], why: str
) -> None:
    spark = tmp_path / "spark/1"
    for directory in ("state/0", "offsets"):
        (spark / directory).mkdir(parents=True)
    (spark / "offsets/7").write_text("v2\n{}")
    (spark / "metadata").write_text("{}")
    damage(spark)
    nothing: Any = None
    with pytest.raises(Corrupt) as raised:
        StateReader(nothing, tmp_path, "spark/1").read(nothing, 7, SCHEMAS, 2)
    assert why in said(raised.value)
    assert not list((tmp_path / ".reading").glob("*")), "the view is gone"
