"""Two inputs of unlike pace, in ticks of nanoseconds: a real run seeks to a time, is rewound, and goes on as if nothing
had been (tests/sim/test_timed_inputs.py has the other units, and three inputs)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import holdfast as hf
from holdfast.checkpoint.snapshot import snapshot_keys
from holdfast.cli.app import app
from holdfast.config import Settings
from holdfast.store.local import LocalStore
from tests.spark.running import arrive, sqlite_rows

pytestmark = pytest.mark.spark

FIRST = 1_767_225_600_000_000_001
"""More digits than a double keeps."""

FAST, SLOW = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [0, 4, 5, 9]
AT = 3


def pipeline_of(work: Path) -> hf.Pipeline:
    inputs = {
        name: hf.read.files(
            str(work / name), schema="k STRING, t BIGINT", timestamp="t", max_files_per_epoch=1, name=name
        )
        for name in ("fast", "slow")
    }
    sets = hf.sync(inputs, by="k", name="sets")
    shown = sets | hf.select("timestamp", fast="fast is not null", slow="slow is not null", name="shown")
    alone = sets.unmatched | hf.select("timestamp", "input", name="who")
    return hf.Pipeline(
        "timed",
        shown | hf.write.sqlite(work / "t.db", table="sets", rewindable=True, name="table"),
        alone | hf.write.sqlite(work / "t.db", table="alone", rewindable=True, name="alone"),
    )


def test_two_inputs_seek_to_a_time_and_are_rewound_to_the_nanosecond(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])

    def run(**options: int) -> None:
        settings = Settings(buckets=2, checkpoint_freq=86_400_000)
        pipeline_of(tmp_path).run(
            checkpoint=str(tmp_path / "ckpt"), trigger=hf.available_now(), session=spark, settings=settings, **options
        )

    def check() -> None:
        """Everything from the time on is there, once."""
        times = [t for t in FAST if t >= AT]
        assert sqlite_rows(tmp_path / "t.db", "SELECT timestamp, fast, slow FROM sets ORDER BY 1") == [
            (FIRST + t, 1, int(t in SLOW)) for t in times
        ]
        assert sqlite_rows(tmp_path / "t.db", "SELECT timestamp, input FROM alone ORDER BY 1") == [
            (FIRST + t, "fast") for t in times if t not in SLOW
        ]

    def give(end: int) -> None:
        for name, times, size in (("fast", FAST, 2), ("slow", SLOW, 1)):
            for number in range(0, len(times), size):
                file = f"{number:02}.json"
                if times[number] < end and not (tmp_path / name / file).exists():
                    rows = [{"k": "a", "t": FIRST + t} for t in times[number : number + size]]
                    arrive(tmp_path / name, file, rows)

    give(5)
    run(at=FIRST + AT)
    (snapshot,) = snapshot_keys(LocalStore(str(tmp_path / "ckpt")))  # of its clean stop
    give(10)
    run()
    check()
    flows = tmp_path / "flows.py"
    flows.write_text(f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from pathlib import Path
from tests.spark.test_timed_inputs import pipeline_of
pipeline = pipeline_of(Path({str(tmp_path)!r}))
""")
    words = [
        "rewind",
        f"{flows}:pipeline",
        "--checkpoint",
        str(tmp_path / "ckpt"),
        "--to",
        str(snapshot.epoch),
        "--force",
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert len(sqlite_rows(tmp_path / "t.db", "SELECT timestamp FROM sets")) < 7, "nothing was withdrawn"
    run()
    check()
