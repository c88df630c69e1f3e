"""A directory of files under a living run: its log, or all of it, is restored from a copy or removed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as dataset
import pytest

from holdfast import faults
from holdfast.connectors.files.sink.spec import FilesSinkSpec
from holdfast.errors import Diverged
from holdfast.ports import Carried, EpochRecord, Held, Outcome, Publication, RunIdentity, Sink, Staged, Task

SCHEMA = pa.schema([("id", pa.int64())])


def positions(epoch: int) -> dict[str, dict[str, int]]:
    return {"rows": {"log": epoch}}


def publication(epoch: int, *parts: Staged) -> Publication:
    rows = Carried(pa.table({"id": [epoch]}, schema=SCHEMA))
    return Publication(EpochRecord("words", epoch, 1, positions(epoch)), parts or (rows,))


def held(epoch: int) -> Held:
    return Held(epoch, 1, positions(epoch) if epoch else {})


def ids(directory: Path) -> list[int]:
    return sorted(dataset.dataset(directory, format="parquet", schema=SCHEMA).to_table()["id"].to_pylist())


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def sink(directory: Path) -> Iterator[Sink]:
    made = FilesSinkSpec(os.fspath(directory)).connect("files", "words", SCHEMA)
    made.open(RunIdentity("words", 1))
    yield made
    made.close()


def put_back(copy: Path, place: Path) -> None:
    shutil.rmtree(place)
    shutil.copytree(copy, place)


@pytest.mark.parametrize("what", [".", "_holdfast"], ids=["all of it", "its log"])
def test_a_directory_that_was_restored_under_the_run_is_not_published_over(
    sink: Sink, directory: Path, tmp_path: Path, what: str
) -> None:
    sink.publish([publication(1)], held(0))
    shutil.copytree(directory / what, tmp_path / "copy")
    sink.publish([publication(2)], held(1))
    put_back(tmp_path / "copy", directory / what)
    before = ids(directory)
    with pytest.raises(Diverged, match="holds epoch 1, and this run had published epoch 2"):
        sink.publish([publication(3)], held(2))
    assert ids(directory) == before
    assert sink.outcome(2) is Outcome.ABSENT


def test_a_log_that_was_removed_is_not_begun_anew(sink: Sink, directory: Path) -> None:
    sink.publish([publication(1)], held(0))
    shutil.rmtree(directory / "_holdfast" / "words" / "files" / "log")
    with pytest.raises(Diverged, match="does not hold generation 1"):
        sink.publish([publication(2)], held(1))
    assert ids(directory) == [1]


def at(point: str, act: Callable[[], object]) -> Callable[[str, int], None]:
    def hook(reached: str, epoch: int) -> None:
        if reached == point:
            act()

    return hook


def test_a_log_that_is_restored_between_the_look_and_the_entry_gets_no_entry_behind_a_gap(
    sink: Sink, directory: Path, tmp_path: Path
) -> None:
    """The number of the entry is what publishes are ordered by: one that follows nothing is taken back."""
    log = directory / "_holdfast" / "words" / "files" / "log"
    sink.publish([publication(1)], held(0))
    shutil.copytree(log, tmp_path / "copy")
    sink.publish([publication(2)], held(1))
    faults.install(at("publish-uncommitted", lambda: put_back(tmp_path / "copy", log)))
    try:
        with pytest.raises(Diverged):
            sink.publish([publication(3)], held(2))
    finally:
        faults.install(None)
    assert ids(directory) == [1, 2]
    assert sorted(os.listdir(log)) == sorted(os.listdir(tmp_path / "copy"))


def test_staged_rows_stay_where_they_are_when_a_publish_is_refused(sink: Sink, directory: Path, tmp_path: Path) -> None:
    sink.publish([publication(1)], held(0))
    writer = sink.writer_factory()(Task("words", 1, 3, 0, 0))
    writer.write(pa.RecordBatch.from_pydict({"id": [3]}, schema=SCHEMA))
    staged = writer.stage()
    with pytest.raises(Diverged):
        sink.publish([publication(3, staged)], held(2))
    assert ids(directory) == [1]
    assert any((directory / "_holdfast" / "words" / "files" / "staging").iterdir())
