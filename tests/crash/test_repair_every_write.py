"""A repair of files, or of segments, dies before each of its file operations, once and again during recovery.

Somebody has removed a file, added one, and written one again; then a run repairs, and goes on (design/0024).
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as dataset
import pyarrow.parquet as pq
import pytest

import holdfast as hf
from holdfast.connectors.files.sink.sink import FilesSink
from holdfast.connectors.files.sink.spec import FilesSinkSpec
from holdfast.connectors.segments.policies import Segment
from holdfast.connectors.segments.sink import SegmentsSink
from holdfast.connectors.segments.spec import SegmentsSinkSpec
from tests.contract.comparable_contract import PIPELINE, Opened, digested, repaired
from tests.crash.operations import die_once, die_twice

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])

# A process that dies leaves its files open.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

IDS = [1, 2, 3, 4, 5, 6, 7, 7]
LATER = [100, 101]


def table(ids: list[int]) -> pa.Table:
    return pa.table({"id": ids, "word": [f"w{number % 3}" for number in ids]}, schema=SCHEMA)


def one_grows(segment: Segment) -> str | None:
    return None if segment.partition == "word=w0" else "sealed"


class Life:
    """A directory that was spoilt, and the runs that repair it."""

    def __init__(self, directory: Path, kind: str) -> None:
        self.directory = directory
        self.kind = kind
        self.generation = 1
        out = self._opened()
        out.publish(table(IDS[:5]))
        self._tend(out)
        out.publish(table(IDS[5:]))
        out.close()
        visible = sorted(path for path in directory.rglob("*.parquet") if "_holdfast" not in path.parts)
        visible[0].unlink()
        pq.write_table(pa.table({"id": [1, 50]}), directory / "word=w1" / "by-hand.parquet")
        pq.write_table(pa.table({"id": [-1]}), visible[-1])
        self.spoilt = self.rows()
        assert self.spoilt != Counter(IDS)

    def _connected(self) -> FilesSink | SegmentsSink:
        if self.kind == "files":
            files = FilesSinkSpec(os.fspath(self.directory), partition_by=("word",))
            return files.connected("out", PIPELINE, SCHEMA, is_tended=False)
        segments = SegmentsSinkSpec(os.fspath(self.directory), partition_by=("word",), seal=(one_grows,))
        return segments.connected("out", PIPELINE, SCHEMA, is_tended=False)

    def _opened(self) -> Opened:
        return Opened(self._connected(), self.generation)

    def _tend(self, out: Opened) -> None:
        if self.kind == "segments":
            out.sink.sealing.tend()  # type: ignore[attr-defined]

    def run(self) -> None:
        self.generation += 1
        out = self._opened()
        if out.epoch == 2:
            assert repaired(out, table(IDS)) is not None
            out.publish(table(LATER))
        self._tend(out)
        out.close()

    def look(self) -> None:
        """What a death has left is the one or the other, for who looks without a run."""
        assert self.rows() in (self.spoilt, Counter(IDS), Counter(IDS + LATER))

    def rows(self) -> Counter[int]:
        with self._connected().content() as content:
            return Counter(number for batch in content.rows(0, [0]) for number in batch["id"].to_pylist())

    def recover(self) -> None:
        self.look()
        self.run()

    def check(self) -> None:
        """Every row once, for readers of the directory too, and nothing of a repair is left."""
        self.generation += 1
        out = self._opened()
        assert digested(out, table(IDS + LATER))
        own = self.directory / "_holdfast" / PIPELINE / "out"
        left = [path for name in ("joining", "sealing", "views") for path in own.glob(f"{name}/**/*")]
        assert left == []
        if self.kind == "files":
            listed = dataset.dataset(self.directory, format="parquet", partitioning="hive", schema=SCHEMA).to_table()
        else:
            listed = hf.segments.open(self.directory).to_arrow()
        assert Counter(listed["id"].to_pylist()) == Counter(IDS + LATER)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["files", "segments"])
@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_death_before_any_file_operation_leaves_what_was_or_what_should_be(
    tmp_path: Path, kind: str, step: int
) -> None:
    assert die_once(lambda n: Life(tmp_path / str(n), kind), step) > 40, "the audit hook saw the work"


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["files", "segments"])
def test_a_second_death_during_recovery_changes_nothing_of_that(tmp_path: Path, kind: str) -> None:
    assert die_twice(lambda name: Life(tmp_path / name, kind), 1, 5) > 40
