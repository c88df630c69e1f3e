"""Checkpoints that earlier versions wrote are gone on with, state and open decisions included."""

from __future__ import annotations

import json
import shutil
import sqlite3
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.spark.spark_versions import running
from tests.spark.earlier import pipeline as earlier

pytestmark = pytest.mark.spark

ARCHIVES = sorted(earlier.HERE.glob("*.tar.gz"))
FILES = 5
"""Three were there when the archive was made; the third was decided and published nowhere."""


def lose_spark(root: Path) -> None:
    shutil.rmtree(root / "checkpoint/spark")


WITH = {"as it was left": lambda root: None, "without Spark's part": lose_spark}


@pytest.mark.parametrize("change", WITH.values(), ids=WITH)
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.gz"))
def test_every_row_has_its_effect_once_over_a_checkpoint_of_an_earlier_version(
    spark: SparkSession, archive: Path, change: Callable[[Path], None]
) -> None:
    if change is WITH["as it was left"] and archive.name.startswith("before-the-house") and not running().names_sources:
        pytest.skip("what Spark 4.3 kept of state in its own store is read by 4.2 and later alone")
    with earlier.place() as root:
        with tarfile.open(archive) as packed:
            packed.extractall(root, filter="data")
        change(root)
        for file in range(3, FILES):
            earlier.arrive(root, file)
            graph = earlier.before_the_house(root)
            graph.run(checkpoint=str(root / "checkpoint"), trigger=hf.available_now(), session=spark)
        sums = table(root, "select k, n, total from sums order by k")
        pairs = table(root, "select * from pairs")
        latest = [
            json.loads(line) for path in (root / "latest").glob("*.json") for line in path.read_text().splitlines()
        ]
    rows = {name: [row for file in range(FILES) for row in earlier.rows_of(name, file)] for name in ("left", "right")}
    left = {key: [row["v"] for row in rows["left"] if row["k"] == key] for key in "abc"}
    assert sums == [(key, len(values), sum(values)) for key, values in left.items()]
    assert sorted(pairs) == sorted(
        (key, v, f'{{"v": {v}}}', f'{{"v": {v + 1000}}}') for key, values in left.items() for v in values
    )
    # The last row of each key waits: the other source may still send one of its time.
    assert sorted((row["k"], row["t"], row["other"]) for row in latest) == [
        (key, v, {"t": v, "v": v + 1000}) for key, values in left.items() for v in values[:-1]
    ]


def table(root: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(root / "out.db")) as connection:
        return connection.execute(query).fetchall()
