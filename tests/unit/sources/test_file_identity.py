"""A file that was replaced is not read as the one that was taken, and a restored one is."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.connectors.files.source.log import FileLog, LoggedFile, log_end, whole
from holdfast.connectors.files.source.spec import FilesSource
from holdfast.connectors.formats.identity import FileIdentity
from holdfast.errors import Corrupt, InvalidPipeline, Unavailable
from holdfast.store import sealed
from tests.unit.sources.reading import everything, source_over

TIME_NS = 1_700_000_000_123_456_789


def arrive(path: Path, number: int, *, at_ns: int = TIME_NS) -> None:
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"id": pa.array([number], pa.int32())}), path)
    else:
        path.write_text(f'{{"id":{number}}}\n')
    os.utime(path, ns=(at_ns, at_ns))


def taken(tmp_path: Path, name: str = "1.json", **options: Any) -> tuple[FilesSource, dict[str, int | str]]:
    """Return a source that has taken a file, and its end."""
    arrive(tmp_path / "in" / name, 1)
    source = source_over(tmp_path / "in", tmp_path / "w", "id INT", format=name.rpartition(".")[2], **options)
    return source, dict(source.latest(source.initial(), bounded=False))


def replayed(source: FilesSource, end: Mapping[str, int | str]) -> list[int]:
    spans = source.spans(source.initial(), end, parallelism=1)
    return [row["id"] for span in spans for batch in source.read(span) for row in batch.to_pylist()]


@pytest.mark.parametrize("name", ["1.json", "1.csv", "1.parquet"])
@pytest.mark.parametrize("on_bad_row", ["fail", "reject"])
def test_a_file_that_was_replaced_by_one_of_its_size_is_an_error_in_a_replay(
    tmp_path: Path, name: str, on_bad_row: str
) -> None:
    options = {"on_bad_row": on_bad_row, **({"header": False} if name.endswith("csv") else {})}
    source, end = taken(tmp_path, name, **options)
    arrive(tmp_path / "in" / name, 2, at_ns=TIME_NS + 1_000_000_007)
    with pytest.raises(Corrupt, match=rf"in/{name} is not the file that was logged: it is a different file") as error:
        replayed(source, end)
    assert ".123456789" in error.value.why
    assert ".123456796" in error.value.what
    assert "inode" in error.value.what
    assert "inode" in error.value.why
    assert 'compare="size"' in error.value.do
    with pytest.raises(Corrupt, match="is not the file that was logged"):
        replayed(source_over(tmp_path / "in", tmp_path / "w", "id INT", format=name[2:], **options), end)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_file_that_is_replaced_by_one_of_its_size_after_it_was_taken_stops_the_run(
    tmp_path: Path, restarts: bool
) -> None:
    """Nobody reads it again, unless a run goes on behind a crash: its new rows would be lost in silence."""
    source, end = taken(tmp_path)
    if restarts:
        source = source_over(tmp_path / "in", tmp_path / "w", "id INT")
    assert source.latest(end, bounded=False) == end
    arrive(tmp_path / "in" / "1.json", 2, at_ns=TIME_NS + 1_000_000_007)
    with pytest.raises(Corrupt, match=r"in/1\.json is not the file that was logged: it is a different file") as error:
        source.latest(end, bounded=False)
    assert "put them into a new file" in error.value.why
    assert 'compare="size"' in error.value.do
    told = source_over(tmp_path / "in", tmp_path / "w", "id INT", compare="size")
    assert told.latest(end, bounded=False) == end


def test_all_files_that_are_not_as_they_were_taken_are_told_at_once(tmp_path: Path) -> None:
    """Each start would name another one; files count that every sink has long held, too."""
    for number in range(9):
        arrive(tmp_path / "in" / f"{number}.json", number)
    source = source_over(tmp_path / "in", tmp_path / "w", "id INT")
    end = source.latest(source.initial(), bounded=False)
    for number in range(1, 8):
        (tmp_path / "in" / f"{number}.json").touch()
    arrive(tmp_path / "in" / "8.json", 88)
    with pytest.raises(Corrupt, match=r"8 of the last 9 files .*in/1\.json, .*in/5\.json and 3 more") as error:
        source.latest(end, bounded=False)
    assert 'compare="size"' in error.value.do
    told = source_over(tmp_path / "in", tmp_path / "w", "id INT", compare="size")
    with pytest.raises(Corrupt, match=r"in/8\.json has 10 bytes, and had 9"):
        told.latest(end, bounded=False)
    arrive(tmp_path / "in" / "7.json", 77)
    with pytest.raises(Corrupt, match=r"2 of the last 9 files .*in/7\.json, .*in/8\.json\.") as error:
        told.latest(end, bounded=False)
    assert 'compare="size"' not in error.value.do


def test_the_command_in_the_error_says_that_a_file_holds_the_same_rows(tmp_path: Path) -> None:
    source, end = taken(tmp_path, "it's 1.json")
    (tmp_path / "in" / "it's 1.json").touch()
    with pytest.raises(Corrupt) as error:
        replayed(source, end)
    command = re.search(r"touch -d \S+ .*json.*?(?=, or )", error.value.do)
    assert command is not None
    subprocess.run(command[0], shell=True, check=True)
    assert replayed(source, end) == [1]


def test_a_source_may_be_told_to_compare_sizes_alone(tmp_path: Path) -> None:
    _, end = taken(tmp_path)
    (tmp_path / "in" / "1.json").touch()
    told = source_over(tmp_path / "in", tmp_path / "w", "id INT", compare="size")
    assert replayed(told, end) == [1]
    (tmp_path / "in" / "1.json").write_text("{}")
    with pytest.raises(Corrupt, match="it has 2 bytes now"):
        replayed(told, end)
    with pytest.raises(InvalidPipeline, match="compare"):
        source_over(tmp_path / "in", tmp_path / "w", "id INT", compare="nothing")


@pytest.fixture
def restless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A file that has another time of change whenever it is looked at."""
    path, real, ticks = os.fspath(tmp_path / "in" / "1.json"), os.stat, count(TIME_NS, 1_000_000_007)
    arrive(Path(path), 1)

    def stat(looked_at: Any, *rest: Any, **options: Any) -> os.stat_result:
        if looked_at == path:
            os.utime(path, ns=(TIME_NS, next(ticks)))
        return real(looked_at, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", stat)
        yield patch


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("options", [{}, {"max_rows_per_epoch": 10}, {"block_size": "1 B"}])
def test_a_file_whose_time_never_rests_is_taken_where_sizes_alone_are_compared(
    tmp_path: Path, restless: pytest.MonkeyPatch, bounded: bool, options: dict[str, Any]
) -> None:
    options = {**options, "bounded": bounded, "compare": "size"}
    source = source_over(tmp_path / "in", tmp_path / "w", "id INT", **options)
    assert everything(source) == [{"id": 1}]
    assert source.has_ended({"log": 1}) == bounded


@pytest.mark.parametrize("frozen", [False, True])
def test_a_bounded_source_is_not_looked_for_without_end_while_a_file_is_written_to(
    tmp_path: Path, restless: pytest.MonkeyPatch, frozen: bool
) -> None:
    source = source_over(tmp_path / "in", tmp_path / "w", "id INT", bounded=True)
    if frozen:
        source.freeze()
    with pytest.raises(Unavailable, match=r"in/1\.json") as error:
        source.latest(source.initial(), bounded=frozen)
    assert "min_age" in error.value.do
    assert 'compare="size"' in error.value.do
    restless.undo()
    again = source_over(tmp_path / "in", tmp_path / "w", "id INT", bounded=True)
    assert everything(again) == [{"id": 1}]
    assert again.has_ended({"log": 1})


@pytest.mark.parametrize("grain_ns", [1, 100, 1_000, 1_000_000, 1_000_000_000, 2_000_000_000])
def test_a_copy_that_keeps_times_as_well_as_its_tools_can_is_the_same_file(tmp_path: Path, grain_ns: int) -> None:
    source, end = taken(tmp_path)
    shutil.copytree(tmp_path / "in", tmp_path / "copy", copy_function=shutil.copy2)
    shutil.rmtree(tmp_path / "in")
    shutil.copytree(tmp_path / "copy", tmp_path / "in", copy_function=shutil.copy2)
    at_ns = TIME_NS // grain_ns * grain_ns
    os.utime(tmp_path / "in" / "1.json", ns=(at_ns, at_ns))
    assert replayed(source, end) == [1]


def test_permissions_and_names_of_directories_may_change(tmp_path: Path) -> None:
    source, end = taken(tmp_path)
    (tmp_path / "in" / "1.json").chmod(0o640)
    os.link(tmp_path / "in" / "1.json", tmp_path / "in" / "_kept")
    assert replayed(source, end) == [1]


def test_a_link_in_the_place_of_a_file_that_was_taken_is_not_followed(tmp_path: Path) -> None:
    source, end = taken(tmp_path)
    (tmp_path / "in" / "1.json").rename(tmp_path / "1.json")
    (tmp_path / "in" / "1.json").symlink_to(tmp_path / "1.json")
    with pytest.raises(Corrupt, match="a symbolic link stands in its place"):
        replayed(source, end)
    assert replayed(source_over(tmp_path / "in", tmp_path / "w", "id INT", follow_links=True), end) == [1]


def test_an_object_that_was_replaced_is_an_error_in_a_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = fsspec.filesystem("memory")
    system.pipe("/lake/in/1.json", b'{"id":1}\n')
    try:
        source = source_over("memory://lake/in", tmp_path / "w", "id INT")
        end = dict(source.latest(source.initial(), bounded=False))
        assert replayed(source, end) == [1]
        system.pipe("/lake/in/1.json", b'{"id":2}\n')
        system.store["/lake/in/1.json"].created += timedelta(hours=1)  # two of one millisecond may pass for equal
        with pytest.raises(Corrupt, match=r"1\.json is not the file that was logged") as error:
            replayed(source, end)
        assert "touch" not in error.value.do
        assert replayed(source_over("memory://lake/in", tmp_path / "w", "id INT", compare="size"), end) == [2]
    finally:
        system.rm("/lake", recursive=True)


@pytest.mark.parametrize(
    ("logged", "now", "same"),
    [
        (FileIdentity(1, None, "a"), FileIdentity(2, None, "a"), True),
        (FileIdentity(1, None, "a"), FileIdentity(1, None, "b"), False),
        (FileIdentity(1_500_000_000), FileIdentity(1_000_000_000), True),
        (FileIdentity(1_000_000_000), FileIdentity(1_500_000_000), True),
        (FileIdentity(1_500_000_000), FileIdentity(2_000_000_000), False),
        (FileIdentity(None, None, "a"), FileIdentity(5), True),
        (FileIdentity(), FileIdentity(5, 6, "a"), True),
    ],
)
def test_what_is_compared_is_what_both_sides_tell(logged: FileIdentity, now: FileIdentity, same: bool) -> None:
    assert logged.is_of(now) is same


def test_a_log_that_was_written_before_identities_is_read_and_compared_by_size(tmp_path: Path) -> None:
    """As the version before wrote it, merged or not; what is added is in the new form."""
    arrive(tmp_path / "in" / "1.json", 1)
    log = tmp_path / "w" / "log"
    sealed.prepare(os.fspath(log))
    sealed.put_if_absent(
        os.fspath(log / "identity"), json.dumps({"root": os.fspath(tmp_path / "in"), "format": "json"}).encode()
    )
    increment = {"first": 0, "files": [["1.json", 9, [[0, -1, None, 9]]]], "complete": False}
    sealed.put_if_absent(os.fspath(log / f"{1:012d}.json"), json.dumps(increment).encode())
    assert log_end(os.fspath(log)) == 1
    source = source_over(tmp_path / "in", tmp_path / "w", "id INT")
    assert replayed(source, {"log": 1}) == [1]
    arrive(tmp_path / "in" / "1.json", 3, at_ns=5)
    assert replayed(source, {"log": 1}) == [3]
    arrive(tmp_path / "in" / "2.json", 2)
    assert [row["id"] for row in everything(source)] == [3, 2]
    arrive(tmp_path / "in" / "2.json", 4, at_ns=5)
    with pytest.raises(Corrupt, match=r"2\.json"):
        replayed(source_over(tmp_path / "in", tmp_path / "w", "id INT"), {"log": 2})


def test_identities_survive_merging(tmp_path: Path) -> None:
    directory = os.fspath(tmp_path / "log")
    log = FileLog(directory)
    for number in range(100):
        assert log.append([whole(str(number), 1)._replace(identity=FileIdentity(number, 1, None))])
    log.merge()
    assert len([name for name in os.listdir(directory) if name.endswith(".json")]) == 1
    again = FileLog(directory)
    assert [block.identity for block in again.blocks] == [FileIdentity(number, 1, None) for number in range(100)]
    assert again.append([LoggedFile("skipped", 5, ())])
    assert log_end(directory) == 100


@pytest.mark.parametrize("limits", [{}, {"max_rows_per_epoch": 10}])
def test_a_file_that_is_replaced_before_it_is_logged_is_found_again(tmp_path: Path, limits: dict[str, int]) -> None:
    arrive(tmp_path / "in" / "1.json", 1)
    source = source_over(tmp_path / "in", tmp_path / "w", "id INT", bounded=True, **limits)
    source.freeze()
    arrive(tmp_path / "in" / "1.json", 2, at_ns=TIME_NS + 7)
    assert [row["id"] for row in everything(source)] == [2]
