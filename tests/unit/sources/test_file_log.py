"""The file log: increments are written once, racing planners agree, merging changes nothing."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast import read
from holdfast.connectors.files.source.discovery import settled
from holdfast.connectors.files.source.log import FileLog, LoggedFile, log_end, whole
from holdfast.errors import Corrupt, InvalidPipeline, Unavailable
from holdfast.positions import SegmentSet
from holdfast.store import durable, increments, sealed
from tests.disks import small_disk


def test_a_log_on_a_full_disk_says_so_and_goes_on_where_it_was(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        log = FileLog(os.fspath(disk / "log"))
        assert add(log, "a")
        filler = disk / "filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass
        if not os.path.ismount(disk):
            filler.unlink()  # there it is a limit of each file: none of ours reaches it
            return
        with pytest.raises(Unavailable) as error:
            add(log, "b" * 5000)
        assert durable.is_full(error.value)
        filler.unlink()
        assert add(log, "c")
        assert names_of(FileLog(log.directory)) == ["a", "c"]


def add(log: FileLog, *names: str) -> bool:
    return log.append([whole(name, 10) for name in names])


def names_of(log: FileLog) -> list[str]:
    return [block.name for block in log.blocks]


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return os.fspath(tmp_path / "log")


def test_what_was_appended_is_read_again(directory: str) -> None:
    log = FileLog(directory)
    assert log.is_new
    assert add(log, "a", "b")
    assert log.append([LoggedFile("skipped", 5, ())])
    assert add(log, "c")
    again = FileLog(directory)
    assert again.blocks == log.blocks
    assert again.names == {"a", "b", "c", "skipped"}
    assert again.end == 3
    assert not again.is_new


def test_its_end_is_known_from_its_newest_object_alone(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(increments, "MERGED_AT_A_TIME", 3)
    assert log_end(directory) == 0
    log = FileLog(directory)
    for number in range(7):
        assert log_end(directory) == log.end
        log.append(
            [whole(f"{number}a", 10), LoggedFile(f"{number}b", 5, ())] if number % 2 else [whole(str(number), 1)]
        )
        log.merge()
    assert log_end(directory) == log.end == 7
    log.append([], is_complete=True)
    assert log_end(directory) == 7
    FileLog(directory)
    log.append([whole("last", 10)])
    log.merge()
    assert log_end(directory) == 8
    newest = max(name for name in os.listdir(directory) if name.endswith(".json"))
    os.truncate(os.path.join(directory, newest), 9)
    with pytest.raises(Corrupt, match=newest):
        log_end(directory)


def test_the_slower_planner_reads_what_the_faster_one_wrote(directory: str) -> None:
    fast, slow = FileLog(directory), FileLog(directory)
    assert add(fast, "a")
    assert not add(slow, "a", "b")
    assert slow.blocks == fast.blocks
    assert add(slow, "b")
    assert names_of(FileLog(directory)) == ["a", "b"]


@pytest.mark.slow
def test_planners_that_append_at_once_make_one_log(directory: str) -> None:
    logs = [FileLog(directory) for _ in range(4)]

    def run(log: FileLog, own: int) -> None:
        for number in range(40):
            while f"{own}-{number}" not in log.names:
                add(log, f"{own}-{number}")
            log.merge()

    threads = [threading.Thread(target=run, args=(log, own)) for own, log in enumerate(logs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    final = FileLog(directory)
    assert sorted(names_of(final)) == sorted(f"{own}-{number}" for own in range(4) for number in range(40))
    for log in logs:
        log.refresh()
        assert log.blocks == final.blocks


@pytest.mark.slow
@pytest.mark.parametrize("count", [99, 100, 101, 250])
def test_merging_changes_nothing_but_the_number_of_objects(directory: str, count: int) -> None:
    log = FileLog(directory)
    for number in range(count):
        add(log, str(number))
    log.merge()
    assert len([name for name in os.listdir(directory) if name.endswith(".json")]) <= 100 + count // 100
    again = FileLog(directory)
    assert names_of(again) == [str(number) for number in range(count)]
    assert add(again, "next")
    log.refresh()
    assert log.blocks == again.blocks


def test_hundreds_of_hundreds_are_merged_again(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(increments, "MERGED_AT_A_TIME", 3)
    log = FileLog(directory)
    for number in range(60):
        add(log, str(number))
        log.merge()
    stored = sorted(name for name in os.listdir(directory) if name.endswith(".json"))
    assert len(stored) <= 8
    assert names_of(FileLog(directory)) == [str(number) for number in range(60)]


def test_a_planner_that_slept_through_a_merge_cannot_write_below_it(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next number is free again, because the increment of that number was merged away."""
    monkeypatch.setattr(increments, "MERGED_AT_A_TIME", 3)
    zombie, log = FileLog(directory), FileLog(directory)
    for number in range(7):
        add(log, str(number))
        log.merge()
    assert not os.path.exists(os.path.join(directory, "000000000001.json"))
    assert not add(zombie, "ghost")
    assert zombie.blocks == log.blocks
    assert names_of(FileLog(directory)) == [str(number) for number in range(7)]


def test_a_stale_object_that_a_zombie_left_counts_for_nobody(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between its write and its look at what is there."""
    monkeypatch.setattr(increments, "MERGED_AT_A_TIME", 3)
    log = FileLog(directory)
    for number in range(7):
        add(log, str(number))
        log.merge()
    sealed.put_if_absent(os.path.join(directory, "000000000002.json"), b'{"first":1,"files":[],"complete":false}')
    assert FileLog(directory).blocks == log.blocks
    for number in range(7, 12):
        add(log, str(number))
        log.merge()
    assert names_of(FileLog(directory)) == [str(number) for number in range(12)]


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_kill_in_the_middle_of_a_merge_loses_nothing(
    directory: str, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    monkeypatch.setattr(increments, "MERGED_AT_A_TIME", 3)
    log = FileLog(directory)
    for number in range(4):
        add(log, str(number))
    unlink, calls = os.unlink, []

    def dies(path: str) -> None:
        if path.endswith(".json"):
            calls.append(path)
            if len(calls) > kept:
                raise KeyboardInterrupt
        unlink(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", dies)
        with pytest.raises(KeyboardInterrupt):
            log.merge()
    again = FileLog(directory)
    assert names_of(again) == ["0", "1", "2", "3"]
    again.merge()
    assert names_of(FileLog(directory)) == ["0", "1", "2", "3"]


@pytest.mark.parametrize("damage", [b"", b"x", b"HOLDFAST"])
def test_a_damaged_increment_is_named(directory: str, damage: bytes) -> None:
    add(FileLog(directory), "a")
    path = os.path.join(directory, "000000000001.json")
    with open(path, "r+b") as file:
        data = file.read()
        file.seek(0)
        file.truncate()
        file.write(damage or data[:-3])
    with pytest.raises(Corrupt, match=r"000000000001\.json is damaged"):
        FileLog(directory)


def test_a_missing_increment_is_not_passed_over(directory: str) -> None:
    log = FileLog(directory)
    for name in "abc":
        add(log, name)
    os.unlink(os.path.join(directory, "000000000002.json"))
    with pytest.raises(Corrupt, match="increment 2 of the file log"):
        FileLog(directory)


def test_a_log_belongs_to_one_root_and_format(tmp_path: Path) -> None:
    workspace = os.fspath(tmp_path)
    FileLog.of_source(workspace, "flights", {"root": "/a", "format": "json"})
    FileLog.of_source(workspace, "flights", {"root": "/a", "format": "json"})
    with pytest.raises(InvalidPipeline, match="source 'flights' reads root '/b'"):
        FileLog.of_source(workspace, "flights", {"root": "/b", "format": "json"})
    with pytest.raises(InvalidPipeline, match="cannot keep its log in s3"):
        FileLog.of_source("s3://bucket/ckpt", "flights", {})


@pytest.mark.nightly
def test_a_log_of_100_000_files_opens_in_a_moment(directory: str) -> None:
    """Written as 1000 increments; the bound is ten times what is needed, for slow machines."""
    log = FileLog(directory)
    for number in range(100):
        log.append([whole(f"day/{number}/{file}.json", 1000) for file in range(1000)])
    log.merge()
    began = time.process_time()
    again = FileLog(directory)
    assert time.process_time() - began < 10
    assert again.end == 100_000


def test_a_log_of_another_place_is_refused_before_anything_is_read_and_none_is_none(tmp_path: Path) -> None:
    """What a plan and a start ask: the position of the source, which would mean other files."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.json").write_text('{"x": 1}\n')
    workspace = str(tmp_path / "workspace")

    def spec(name: str) -> Any:
        return read.files(str(tmp_path / name), schema="x INT", name="given").node.spec

    assert spec("two").reached("given", workspace) == {"log": 0}
    source = spec("one").open("given", workspace)
    source.latest(source.initial(), bounded=False)
    assert spec("one").reached("given", workspace) == {"log": 1}
    with pytest.raises(InvalidPipeline, match=r"reads root .*two', and its log is of .*one'"):
        spec("two").reached("given", workspace)
    (tmp_path / "two" / "a.json").unlink()
    (tmp_path / "two").rmdir()
    assert spec("two").reached("given", workspace) == {"log": 1}, "who reads says what is not there"


def test_where_segments_by_hash_end_is_told_by_the_end_of_the_log_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, workspace = tmp_path / "in", str(tmp_path / "workspace")
    where.mkdir()
    whole_source: Any = read.files(str(where), schema="x INT", name="given").node.spec
    part = whole_source.in_parts(4).of_segments(SegmentSet(frozenset({"1/4", "3/4"})))
    log = FileLog.of_source(workspace, "given", part.identity(settled(part.where)))
    for number in range(30):
        assert add(log, f"{number}.json")
    opened, read_sealed = list[str](), sealed.read_sealed

    def counted(path: str) -> bytes | None:
        opened.append(os.path.basename(path))
        return read_sealed(path)

    monkeypatch.setattr(sealed, "read_sealed", counted)
    assert part.reached("given", workspace) == {"log": 30, "1/4": 30, "3/4": 30}
    assert [name for name in opened if name != "identity"] == [f"{30:012}.json"]
