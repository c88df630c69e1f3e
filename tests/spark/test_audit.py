"""An operator that loses a row in a worker is named with its epoch, before the epoch is visible (design/0026)."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.config import Settings
from holdfast.errors import InternalError, InvalidPipeline
from holdfast.graph.naming import origin
from holdfast.graph.nodes import Stream, apply
from holdfast.graph.shape import Shape
from holdfast.observe.audit_report import audit_lines, audit_report
from holdfast.ports import SideRows
from holdfast.state.step import Arrivals, Result, StateTable, StepTime
from holdfast.store.paths import open_store
from tests.spark.running import sqlite_rows

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import the tests
pytestmark = pytest.mark.spark

ROWS = pa.schema([("k", pa.string()), ("id", pa.int64())])
STAGED = {"carry_max": "0 B", "prefetch_max": "0 B"}


@dataclass(frozen=True)
class Lossy:
    """Pass rows on, and lose one of the second epoch."""

    input_names: tuple[str, ...] = ("rows",)
    kind: str = field(default="stateful", init=False)
    side_outputs: ClassVar[Mapping[str, SideRows]] = {}
    time_columns: ClassVar[tuple[str | None, ...]] = (None,)
    watches_clock: ClassVar[bool] = False

    def arguments(self) -> Mapping[str, Any]:
        return {}

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        return Shape(tuple(ROWS.names))

    def step(self, inputs: Mapping[str, pa.Schema]) -> LossyStep:
        return LossyStep(dict(inputs))


@dataclass(frozen=True)
class LossyStep:
    inputs: Mapping[str, pa.Schema]
    for_all_keys: ClassVar[Mapping[str, str]] = {}
    key: ClassVar[pa.Schema] = pa.schema([("k", pa.string())])
    tables: ClassVar[Mapping[str, StateTable]] = {}
    outputs: ClassVar[Mapping[str, pa.Schema]] = {"rows": ROWS}

    def apply(self, state: Mapping[str, pa.Table], arrivals: Mapping[str, Arrivals], at: StepTime) -> Result:
        rows = arrivals["rows"].rows.select(ROWS.names).cast(ROWS)
        return Result({"rows": rows.slice(1 if at.epoch == 2 else 0)}, fates={"rows": rows.num_rows})


def _lossy(stream: Stream) -> Stream:
    return apply(Lossy(), (stream,), name="lossy", built_at=origin())


def _run(work: Path, spark: SparkSession, on_audit: str | None, **settings: Any) -> list[Any]:
    given = hf.read.rows([[{"k": "a", "id": 2 * n}, {"k": "a", "id": 2 * n + 1}] for n in range(3)],
                         schema="k STRING, id BIGINT", name="given")  # fmt: skip
    kept = _lossy(given | hf.filter("id >= 0", name="some")) | hf.filter("id < 99", name="all")
    pipeline = hf.Pipeline("losing", kept | hf.write.sqlite(work / "out.db", table="rows", name="table"))
    pipeline.run(
        checkpoint=str(work / "checkpoint"),
        trigger=hf.available_now(),
        session=spark,
        settings=Settings(buckets=1, **settings),
        on_audit=on_audit,
    )
    return sqlite_rows(work / "out.db")


@pytest.mark.parametrize("mode", [{}, STAGED], ids=["carried", "staged"])
def test_stop_names_operator_and_epoch_and_publishes_nothing_of_it(
    spark: SparkSession, tmp_path: Path, mode: Mapping[str, Any]
) -> None:
    with pytest.raises(InternalError, match=r"epoch 2 of pipeline 'losing' .* at 'lossy': 1 rows are missing") as error:
        _run(tmp_path, spark, "stop", **mode)
    assert (error.value.participant, error.value.epoch) == ("lossy", 2)
    assert sqlite_rows(tmp_path / "out.db") == [0, 1]


def test_warn_names_them_in_the_log_and_goes_on(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "holdfast.spark"):
        assert _run(tmp_path, spark, "warn") == [0, 1, 3, 4, 5]
    said = [each.getMessage() for each in caplog.records if "audit" in each.getMessage()]
    assert len(said) == 1
    assert "epoch 2" in said[0]
    assert "'lossy': 1 rows are missing" in said[0]


@pytest.mark.parametrize("mode", [{}, STAGED], ids=["carried", "staged"])
def test_totals_of_every_operator_and_sink_are_kept_and_compared_with_the_ledger(
    spark: SparkSession, tmp_path: Path, mode: Mapping[str, Any]
) -> None:
    rows = [[{"k": "ab"[n % 2], "t": 10 * epoch + n} for n in range(6)] for epoch in range(3)]
    rows[2].append({"k": "a", "t": 1})  # late
    given = hf.read.rows(rows, schema="k STRING, t BIGINT", name="given", timestamp="t", bounded=True)
    kept = given | hf.filter("t % 10 <> 5", name="kept")
    windows = kept | hf.aggregate(by="k", window=hf.tumbling(10), n=hf.count(), name="windows")
    one = windows | hf.write.sqlite(tmp_path / "one.db", table="rows", name="one")
    two = kept | hf.write.sqlite(tmp_path / "two.db", table="rows", name="two")
    pipeline = hf.Pipeline("adding", one, two, windows.late | hf.write.sqlite(tmp_path / "late.db", table="rows",
                                                                             name="late"))  # fmt: skip
    for _ in range(2):  # the second run has nothing to do, and leaves the book as it is
        pipeline.run(
            checkpoint=str(tmp_path / "checkpoint"),
            trigger=hf.available_now(),
            session=spark,
            settings=Settings(buckets=2, **mode),
            on_audit="stop",
        )
    report = audit_report(open_store(str(tmp_path / "checkpoint")))
    assert {name: of.to_json() for name, of in report.book.totals.items()} == {
        "given": {"in": 19, "out": 19},
        "kept": {"in": 19, "out": 16, "filtered": 3},
        "windows": {"in": 16, "out": 0, "late": 1, "absorbed": 15, "made": 6},
        "one": {"in": 6, "out": 6},
        "two": {"in": 16, "out": 16},
        "late": {"in": 1, "out": 1},
    }
    assert {sink: (of.staged, of.published, of.differs) for sink, of in report.published.items()} == {
        "one": (6, 6, ()),
        "two": (16, 16, ()),
        "late": (1, 1, ()),
    }
    assert report.book.missing == 0
    assert next(audit_lines(report)).endswith("all rows add up")


@pytest.mark.parametrize("mode", [{}, STAGED], ids=["carried", "staged"])
def test_control_rows_are_rows_and_a_sink_with_a_pace_is_compared_once_it_has_committed(
    spark: SparkSession, tmp_path: Path, mode: Mapping[str, Any]
) -> None:
    command = '{"do": "add_column", "column": "gust", "type": "double"}'
    rows: list[Any] = [[{"id": 3 * n}, {"control": command if n == 1 else None, "id": None if n == 1 else 3 * n + 1},
             {"id": 3 * n + 2}] for n in range(3)]  # fmt: skip
    given = hf.read.rows(rows, schema="id BIGINT, control STRING, extra STRING", name="given")
    options: dict[str, Any] = {"table": "rows", "control": "control", "extra": "extra"}
    one = given | hf.write.sqlite(tmp_path / "one.db", name="one", **options)
    two = given | hf.select("id", name="chosen") | hf.write.sqlite(tmp_path / "two.db", table="rows", commit_every=2,
                                                                   name="two")  # fmt: skip
    hf.Pipeline("commanded", one, two).run(
        checkpoint=str(tmp_path / "checkpoint"),
        trigger=hf.available_now(),
        session=spark,
        settings=Settings(**mode),
        on_audit="stop",
    )
    report = audit_report(open_store(str(tmp_path / "checkpoint")))
    assert {name: (of.came, of.left) for name, of in report.book.totals.items()} == dict.fromkeys(
        ("given", "chosen", "one", "two"), (9, 9)
    )
    assert {sink: (of.staged, of.published, of.differs) for sink, of in report.published.items()} == {
        "one": (9, 9, ()),
        "two": (9, 9, ()),
    }


def test_off_says_nothing(spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "holdfast.spark"):
        assert _run(tmp_path, spark, "off") == [0, 1, 3, 4, 5]
    assert "audit" not in caplog.text


def test_another_word_is_refused_with_the_words_that_there_are(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InvalidPipeline, match="--on-audit"):
        _run(tmp_path, spark, "perhaps")
