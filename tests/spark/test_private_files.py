"""Whatever a run leaves below its checkpoint and beside its sinks, nobody but its user reads; published data apart."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from holdfast.store.local import LocalStore
from tests.modes import check_private, mode
from tests.spark.running import CARRIED, STAGED, Settings

pytestmark = pytest.mark.spark

LINES = "".join(f'{{"id": {n}, "at": "2026-01-01T00:00:{n:02}Z"}}\n' for n in range(20)) + "no row\n"


def ignored(frame: DataFrame, epoch: int) -> None:
    frame.collect()


def pipeline(work: Path) -> hf.Pipeline:
    rows = hf.read.files(
        str(work / "in"),
        schema="id BIGINT, at TIMESTAMP",
        timestamp="at",
        on_bad_row="reject",
        bounded=True,
        name="rows",
    )
    counted = rows | hf.aggregate(window=hf.tumbling("10 s"), n=hf.count(), name="counted")
    return hf.Pipeline(
        "private",
        rows | hf.write.files(str(work / "out" / "files"), partition_by=["id"], name="files"),
        rows | hf.write.sqlite(str(work / "out" / "rows.db"), table="rows", name="table"),
        rows | hf.write.foreach_batch(ignored, name="called"),
        counted | hf.write.sqlite(str(work / "out" / "rows.db"), table="counted", name="counts"),
        rows.rejects | hf.write.sqlite(str(work / "out" / "rows.db"), table="rejects", name="bad"),
    )


def umask_of_workers(spark: SparkSession) -> int:
    """Return the umask of Spark's workers: that of the process that began the session, whenever that was."""

    def of_worker(number: int) -> int:
        mine = os.umask(0o077)
        os.umask(mine)
        return mine

    found = spark.sparkContext.parallelize([0], 1).map(of_worker).collect()
    return int(found[0])


@pytest.mark.parametrize(
    ("umask", "settings"),
    [pytest.param(0o022, CARRIED, id="umask022, carried"), pytest.param(0o000, STAGED, id="umask000, staged")],
    indirect=["umask"],
)
def test_a_run_leaves_nothing_that_others_can_read_but_what_it_published(
    spark: SparkSession, tmp_path: Path, umask: int, settings: Settings
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "rows.jsonl").write_text(LINES)
    checkpoint = tmp_path / "checkpoint"
    pipeline(tmp_path).run(checkpoint=str(checkpoint), trigger=hf.available_now(), session=spark, settings=settings)
    check_private(checkpoint, but=checkpoint / "spark")
    assert mode(checkpoint / "spark") == 0o700
    files = tmp_path / "out" / "files"
    check_private(files / "_holdfast")
    assert (tmp_path / "out" / "rows.db-holdfast").exists() == (settings is STAGED)
    if settings is STAGED:
        assert mode(tmp_path / "out" / "rows.db-holdfast") == 0o700, "what was staged is gone, once published"
    published = [path for path in files.rglob("*") if (files / "_holdfast") not in [path, *path.parents]]
    assert len(published) == 40
    of_writers = umask_of_workers(spark) if settings is STAGED else umask
    assert {mode(path) for path in published} == {0o666 & ~of_writers, 0o777 & ~umask}
    assert mode(tmp_path / "out" / "rows.db") == 0o644 & ~umask
    for path in checkpoint.iterdir():
        path.chmod(0o755 if path.is_dir() else 0o644)
    LocalStore(str(checkpoint)).prepare()
    check_private(checkpoint, but=checkpoint / "spark")
    assert mode(checkpoint / "spark") == 0o700, "what an older version left is taken back"


def test_sparks_sockets_lie_where_nobody_else_comes(spark: SparkSession) -> None:
    """Who connects to one is not asked for a password: he would be taken for Spark, or for its worker."""
    place = Path(spark.sparkContext.getConf().get("spark.python.unix.domain.socket.dir"))
    assert mode(place) == 0o700
    assert any(path.is_socket() for path in place.iterdir())
