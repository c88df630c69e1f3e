"""Which files are taken, and when."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from holdfast.connectors.files.source.discovery import Discovery, Place, place, settled
from holdfast.connectors.formats.identity import changed_us_of
from holdfast.errors import InvalidPipeline, Unavailable


def put(path: Path, text: str = "x", age_s: float = 0.0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    moment = time.time() - age_s
    os.utime(path, (moment, moment))


def found(where: Place, known: tuple[str, ...] = (), min_age_us: int = 0) -> list[str]:
    return [file.name for file in Discovery(settled(where), min_age_us).new_files(known)]


def test_files_come_by_time_of_change_and_then_by_name(tmp_path: Path) -> None:
    put(tmp_path / "a", age_s=5)
    for name in ("d", "c", "b"):
        put(tmp_path / name)
        os.utime(tmp_path / name, (1_700_000_000, 1_700_000_000))
    assert found(place(str(tmp_path))) == ["b", "c", "d", "a"]
    assert found(place(str(tmp_path)), known=("b", "d")) == ["c", "a"]


@pytest.mark.parametrize(
    "name", ["_x.json", ".x.json", "x.tmp", "x.inprogress", "x._COPYING_", "_holdfast/x", ".git/x"]
)
@pytest.mark.parametrize("pattern", ["", "*", "**"])
def test_hidden_and_unfinished_names_are_left_alone(tmp_path: Path, name: str, pattern: str) -> None:
    put(tmp_path / name)
    put(tmp_path / "x.json")
    assert found(place(str(tmp_path / pattern))) == ["x.json"]


def test_an_empty_file_waits_until_it_is_not(tmp_path: Path) -> None:
    looking = Discovery(settled(place(str(tmp_path))), 0)
    put(tmp_path / "a", "", age_s=100)
    os.utime(tmp_path, (1, 1))
    assert looking.new_files(()) == []
    put(tmp_path / "a", "x", age_s=100)
    assert [file.name for file in looking.new_files(())] == ["a"]


def test_a_young_file_waits_for_its_age(tmp_path: Path) -> None:
    put(tmp_path / "old", age_s=100)
    put(tmp_path / "young", age_s=1)
    os.utime(tmp_path, (1, 1))
    looking = Discovery(settled(place(str(tmp_path))), 50_000_000)
    assert [file.name for file in looking.new_files(())] == ["old"]
    os.utime(tmp_path / "young", (1, 1))
    os.utime(tmp_path, (1, 1))
    assert [file.name for file in looking.new_files(("old",))] == ["young"]


def test_a_directory_that_has_not_changed_is_not_listed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "a", age_s=100)
    os.utime(tmp_path, (1_700_000_000, 1_700_000_000))
    looking = Discovery(settled(place(str(tmp_path))), 0)
    assert len(looking.new_files(())) == 1
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", lambda _: pytest.fail("listed again"))
        assert looking.new_files(("a",)) == []
    put(tmp_path / "b")
    assert [file.name for file in looking.new_files(("a",))] == ["b"]


def test_a_directory_that_changed_a_moment_ago_is_listed_again(tmp_path: Path) -> None:
    """Its time of change has the grain of the file system's clock: a second change may not show."""
    looking = Discovery(settled(place(str(tmp_path))), 0)
    put(tmp_path / "a")
    assert len(looking.new_files(())) == 1
    status = os.stat(tmp_path)
    put(tmp_path / "b")
    os.utime(tmp_path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert [file.name for file in looking.new_files(("a",))] == ["b"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.json", ["a.json"]),
        ("*/*.json", ["x/b.json"]),
        ("**/*.json", ["a.json", "x/b.json", "x/y/c.json"]),
        ("x/[a-c].json", ["x/b.json"]),
        ("a.json", ["a.json"]),
        ("", ["a.json", "c.txt"]),
    ],
)
def test_a_path_is_a_directory_a_glob_or_a_file(tmp_path: Path, pattern: str, expected: list[str]) -> None:
    for name in ("a.json", "c.txt", "x/b.json", "x/y/c.json"):
        put(tmp_path / name)
    names = found(place(os.path.join(tmp_path, pattern)))
    where = settled(place(os.path.join(tmp_path, pattern)))
    assert sorted(os.path.relpath(where.path(name), tmp_path) for name in names) == expected


def test_a_file_whose_name_looks_like_a_pattern_is_found_by_its_directory(tmp_path: Path) -> None:
    put(tmp_path / "a[1].json")
    assert found(place(str(tmp_path))) == ["a[1].json"]


def test_relative_paths_and_file_urls_are_places_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "in" / "a")
    monkeypatch.chdir(tmp_path)
    assert found(place("in")) == found(place(f"file://{tmp_path}/in")) == ["a"]


def test_a_place_that_does_not_exist_is_an_error_and_not_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidPipeline, match="does not exist"):
        settled(place(str(tmp_path / "nowhere")))
    with pytest.raises(InvalidPipeline, match="does not exist"):
        settled(place(str(tmp_path / "nowhere" / "*.json")))


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("pattern", ["", "*.json"])
def test_a_root_that_cannot_be_looked_up_may_be_there_and_is_tried_again(
    tmp_path: Path, pattern: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "in" / "a.json")
    real, root = os.stat, os.fspath(tmp_path / "in")

    def stat(path: Any, *rest: Any, **options: Any) -> os.stat_result:
        if isinstance(path, str) and path.startswith(root):
            raise OSError(number, os.strerror(number), path)
        return real(path, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", stat)
        with pytest.raises(Unavailable, match=re.escape(os.strerror(number))):
            settled(place(os.path.join(root, pattern)))
    assert found(place(os.path.join(root, pattern))) == ["a.json"]


def test_a_directory_that_went_away_can_be_tried_again(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    looking = Discovery(settled(place(str(tmp_path / "in"))), 0)
    (tmp_path / "in").rmdir()
    with pytest.raises(Unavailable, match="cannot be listed"):
        looking.new_files(())


def test_an_object_store_is_looked_through_as_well() -> None:
    system = fsspec.filesystem("memory")
    for name in ("a.json", "b.json", "_c.json", "empty.json", "x/d.json"):
        system.pipe(f"/bucket/in/{name}", b"" if name == "empty.json" else b"x")
    try:
        assert found(place("memory://bucket/in")) == ["a.json", "b.json"]
        assert found(place("memory://bucket/in/**/*.json"), known=("b.json",)) == ["a.json", "x/d.json"]
        assert found(place("memory://bucket/in/a.json")) == ["a.json"]
    finally:
        system.rm("/bucket", recursive=True)


@pytest.fixture
def bucket() -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    system.pipe("/bucket/in/a.json", b"x")
    yield system
    system.rm("/bucket", recursive=True)


@pytest.mark.parametrize("error", [TimeoutError("timed out"), PermissionError(13, "Access Denied")])
def test_an_object_that_cannot_be_looked_up_is_not_taken_for_a_directory(
    bucket: Any, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its listing holds itself alone: a bounded source was complete without a row."""
    with monkeypatch.context() as patch:
        patch.setattr(type(bucket), "info", failing(error))
        with pytest.raises(Unavailable, match=r"a\.json cannot be looked up"):
            settled(place("memory://bucket/in/a.json"))
    assert found(place("memory://bucket/in/a.json")) == ["a.json"]


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*arguments: Any, **named: Any) -> Any:
        raise error

    return fail


def test_a_prefix_that_may_be_listed_and_not_be_looked_up_is_a_directory(
    bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a policy of S3 that permits to list what lies below it, and nothing else."""
    monkeypatch.setattr(type(bucket), "info", failing(PermissionError(13, "Access Denied")))
    assert settled(place("memory://bucket/in")) == Place("memory://bucket/in", "")


def test_an_empty_prefix_that_may_be_listed_and_not_be_looked_up_is_waited_for(
    bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 refuses to look up what is not there to whom it does not list the bucket."""
    monkeypatch.setattr(type(bucket), "info", failing(PermissionError(13, "Access Denied")))
    where = settled(place("memory://bucket/later"))
    assert Discovery(where, 0).new_files(()) == []
    bucket.pipe("/bucket/later/b.json", b"x")
    assert found(place("memory://bucket/later")) == ["b.json"]


@pytest.mark.parametrize(
    ("looked_up", "listed"),
    [
        (TimeoutError("timed out"), FileNotFoundError(2, "not there")),
        (PermissionError(13, "Access Denied"), PermissionError(13, "Access Denied")),
        (PermissionError(13, "Access Denied"), TimeoutError("timed out")),
    ],
)
def test_a_prefix_of_which_nobody_says_that_it_is_empty_is_tried_again(
    bucket: Any, looked_up: Exception, listed: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look that fails now may fail within the listing as well, which then says that nothing is there."""
    monkeypatch.setattr(type(bucket), "info", failing(looked_up))
    monkeypatch.setattr(type(bucket), "ls", failing(listed))
    with pytest.raises(Unavailable, match="cannot be looked up"):
        settled(place("memory://bucket/in"))


def test_a_directory_in_whose_place_an_object_lies_is_not_taken_for_an_empty_one(bucket: Any) -> None:
    looking = Discovery(Place("memory://bucket/in/a.json", ""), 0)
    with pytest.raises(Unavailable, match="is an object itself"):
        looking.new_files(())
    bucket.pipe("/bucket/later/mark", b"")
    assert Discovery(Place("memory://bucket/later/mark", ""), 0).new_files(()) == []


def test_a_scheme_that_nobody_knows_is_an_error() -> None:
    with pytest.raises(InvalidPipeline, match="nosuch://"):
        settled(place("nosuch://bucket/in"))


def test_the_time_of_change_is_found_under_every_name() -> None:
    assert changed_us_of({"mtime": 1.5}) == 1_500_000
    assert changed_us_of({"updated": "1970-01-01T00:00:02Z"}) == 2_000_000
    assert changed_us_of({}) == 0
