"""Directories are walked so that nothing is lost in silence: what cannot be listed is said, and so is each link."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from holdfast import read
from holdfast.connectors.files.source.discovery import Discovery, place, settled
from holdfast.errors import InvalidPipeline, Unavailable
from tests.unit.sources.reading import everything, source_over

Unlistable = Callable[[str, OSError], None]


def put(path: Path, text: str = '{"id":1}\n') -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def found(path: Path | str, known: tuple[str, ...] = (), *, follow_links: bool = False) -> list[str]:
    looking = Discovery(settled(place(os.fspath(path))), 0, follow_links=follow_links)
    return sorted(file.name for file in looking.new_files(known))


def ids(path: Path, workspace: Path, **options: Any) -> list[int]:
    return sorted(row["id"] for row in everything(source_over(path, workspace, "id INT", **options)))


@pytest.fixture
def unlistable(monkeypatch: pytest.MonkeyPatch) -> Unlistable:
    """Return what makes the listing of a directory of this name fail, as a lost permission or disk does."""

    def make(name: str, error: OSError) -> None:
        real = os.scandir

        def scandir(path: Any = ".") -> Any:
            if os.path.basename(os.fspath(path).rstrip("/")) == name:
                raise error
            return real(path)

        monkeypatch.setattr(os, "scandir", scandir)

    return make


# --- what cannot be listed ----------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), OSError(5, "Input/output error")])
@pytest.mark.parametrize("pattern", ["*/*.json", "**/*.json", "**", "*/x/*.json"])
def test_a_directory_that_cannot_be_listed_is_not_taken_for_an_empty_one(
    tmp_path: Path, pattern: str, error: OSError, unlistable: Unlistable
) -> None:
    put(tmp_path / "in" / "a" / "1.json")
    put(tmp_path / "in" / "b" / "x" / "2.json")
    unlistable("x" if "/x/" in pattern else "b", error)
    with pytest.raises(Unavailable, match=f"in cannot be listed: .*{error.strerror}"):
        found(tmp_path / "in" / pattern)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_bounded_source_is_not_whole_while_a_directory_cannot_be_listed(
    tmp_path: Path, frozen: bool, unlistable: Unlistable, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "in" / "a" / "1.json", '{"id":1}\n')
    put(tmp_path / "in" / "b" / "2.json", '{"id":2}\n')
    source = source_over(tmp_path / "in" / "**" / "*.json", tmp_path / "w", "id INT", bounded=True)
    unlistable("b", PermissionError(13, "Permission denied"))
    with pytest.raises(Unavailable):
        source.freeze() if frozen else source.latest(source.initial(), bounded=False)
    assert not source.has_ended(source.initial())
    monkeypatch.undo()
    assert [row["id"] for row in everything(source)] == [1, 2]
    assert source.has_ended({"log": 2})


def test_a_run_that_drains_what_is_there_does_not_end_short(tmp_path: Path, unlistable: Unlistable) -> None:
    put(tmp_path / "in" / "a" / "1.json")
    source = source_over(tmp_path / "in" / "*" / "*.json", tmp_path / "w", "id INT")
    unlistable("a", OSError(116, "Stale file handle"))
    with pytest.raises(Unavailable, match="Stale file handle"):
        source.freeze()


def test_the_directory_below_which_a_glob_looks_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    looking = Discovery(settled(place(str(tmp_path / "in" / "*" / "*.json"))), 0)
    (tmp_path / "in").rmdir()
    with pytest.raises(Unavailable, match="cannot be listed"):
        looking.new_files(())


def test_a_directory_that_goes_while_it_is_walked_is_no_error(tmp_path: Path, unlistable: Unlistable) -> None:
    put(tmp_path / "a" / "1.json")
    put(tmp_path / "b" / "2.json")
    unlistable("b", FileNotFoundError(2, "No such file or directory"))
    assert found(tmp_path / "**" / "*.json") == ["a/1.json"]


@pytest.mark.parametrize("pattern", ["", "*/*.json", "**/*.json"])
def test_a_part_of_an_object_store_that_cannot_be_listed_is_not_taken_for_an_empty_one(
    pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = fsspec.filesystem("memory")
    system.pipe("/lake/in/a/1.json", b"x")
    system.pipe("/lake/in/b/2.json", b"x")
    real = type(system).ls

    def ls(self: Any, path: str, *rest: Any, **options: Any) -> Any:
        if path.rstrip("/").endswith("/b" if pattern else "/in"):
            raise PermissionError(13, "Access Denied")
        return real(self, path, *rest, **options)

    monkeypatch.setattr(type(system), "ls", ls)
    try:
        with pytest.raises(Unavailable, match="Access Denied"):
            found(f"memory://lake/in/{pattern}".rstrip("/"))
    finally:
        monkeypatch.undo()
        system.rm("/lake", recursive=True)


# --- the pattern --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("**", ["1.json", "x/2.json", "x/y/3.json"]),
        ("**/**/*.json", ["1.json", "x/2.json", "x/y/3.json"]),
        ("*//*.json", ["x/2.json"]),
        ("*/y/3.json", ["x/y/3.json"]),
        ("**/y/*", ["x/y/3.json"]),
        ("[!x]/*.json", []),
        ("*/", ["1.json"]),
        ("x/**/y/**/3.json", ["x/y/3.json"]),
    ],
)
def test_a_file_is_found_once_by_whatever_ways_a_pattern_reaches_it(
    tmp_path: Path, pattern: str, expected: list[str]
) -> None:
    for name in ("1.json", "x/2.json", "x/y/3.json"):
        put(tmp_path / name)
    where = settled(place(os.path.join(tmp_path, pattern)))
    names = found(os.path.join(tmp_path, pattern))
    assert [os.path.relpath(where.path(name), tmp_path) for name in names] == expected


def test_what_is_named_in_full_is_found_in_a_directory_that_may_be_entered_and_not_listed(
    tmp_path: Path, unlistable: Unlistable
) -> None:
    put(tmp_path / "a" / "x" / "1.json")
    unlistable("a", PermissionError(13, "Permission denied"))
    assert found(tmp_path / "*" / "x" / "*.json") == ["a/x/1.json"]


# --- links --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("follow_links", [False, True])
def test_a_link_to_a_directory_above_does_not_multiply_rows(tmp_path: Path, follow_links: bool) -> None:
    put(tmp_path / "in" / "day" / "1.json")
    (tmp_path / "in" / "day" / "loop").symlink_to(".")
    (tmp_path / "in" / "day" / "up").symlink_to("..")
    assert found(tmp_path / "in" / "**" / "*.json", follow_links=follow_links) == ["day/1.json"]
    assert ids(tmp_path / "in" / "**" / "*.json", tmp_path / "w", follow_links=follow_links) == [1]


@pytest.mark.parametrize("follow_links", [False, True])
def test_a_link_to_what_is_read_under_its_own_name_gives_nothing_twice(tmp_path: Path, follow_links: bool) -> None:
    put(tmp_path / "in" / "2024" / "1.json")
    (tmp_path / "in" / "latest").symlink_to("2024")
    (tmp_path / "in" / "2024" / "again.json").symlink_to("1.json")
    assert found(tmp_path / "in" / "*" / "*.json", follow_links=follow_links) == ["2024/1.json"]


@pytest.mark.parametrize("pattern", ["", "*.json", "**/*.json"])
def test_a_link_to_a_file_outside_is_refused_with_its_target_and_cure(tmp_path: Path, pattern: str) -> None:
    secret = put(tmp_path / "secret" / "keys.json")
    put(tmp_path / "in" / "1.json")
    (tmp_path / "in" / "2.json").symlink_to(secret)
    with pytest.raises(InvalidPipeline, match=r"in/2\.json is a link to .*secret/keys\.json") as error:
        found(tmp_path / "in" / pattern)
    assert "outside" in error.value.why
    assert "follow_links=True" in error.value.do
    assert found(tmp_path / "in" / pattern, known=("2.json",)) == ["1.json"], "it was read by a version before"
    assert found(tmp_path / "in" / pattern, follow_links=True) == ["1.json", "2.json"]


def test_a_link_whose_name_is_no_text_is_refused_with_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    os.symlink(os.fsencode(put(tmp_path / "secret")), os.fsencode(tmp_path / "in") + b"/caf\xe9.json")
    with pytest.raises(InvalidPipeline) as error:
        found(tmp_path / "in")
    assert "caf\\xe9.json" in str(error.value)
    assert str(error.value).encode()


@pytest.mark.parametrize("pattern", ["**/*.json", "*/*.json", "*/keys.json"])
def test_a_link_to_a_directory_outside_is_refused_where_files_are_looked_for_in_it(
    tmp_path: Path, pattern: str
) -> None:
    put(tmp_path / "secret" / "keys.json")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "d").symlink_to(tmp_path / "secret")
    with pytest.raises(InvalidPipeline, match=r"in/d is a link to .*secret"):
        found(tmp_path / "in" / pattern)
    assert found(tmp_path / "in" / pattern, follow_links=True) == ["d/keys.json"]
    assert found(tmp_path / "in") == [], "no file is looked for in it"
    assert found(tmp_path / "in" / "_*" / "*.json") == []


@pytest.mark.parametrize("is_directory", [False, True])
def test_a_link_to_what_is_not_read_under_its_own_name_is_not_passed_over_in_silence(
    tmp_path: Path, is_directory: bool
) -> None:
    put(tmp_path / "in" / ".v3" / "1.json")
    name, target = ("now", ".v3") if is_directory else ("d/1.json", "../.v3/1.json")
    (tmp_path / "in" / "d").mkdir()
    (tmp_path / "in" / name).symlink_to(target)
    with pytest.raises(InvalidPipeline, match="is a link to") as error:
        found(tmp_path / "in" / "*" / "*.json")
    assert "not read under its own name" in error.value.why
    assert found(tmp_path / "in" / "*" / "*.json", follow_links=True) == [name + ("/1.json" if is_directory else "")]


def test_a_link_that_leads_nowhere_is_no_file_yet(tmp_path: Path) -> None:
    put(tmp_path / "in" / "1.json")
    (tmp_path / "in" / "2.json").symlink_to("nowhere")
    (tmp_path / "in" / "3.json").symlink_to("3.json")
    for follow_links in (False, True):
        assert found(tmp_path / "in", follow_links=follow_links) == ["1.json"]
        assert found(tmp_path / "in" / "**", follow_links=follow_links) == ["1.json"]


def test_the_root_and_a_single_file_that_the_user_names_may_be_links(tmp_path: Path) -> None:
    put(tmp_path / "data" / "v3.json")
    (tmp_path / "in").symlink_to("data")
    (tmp_path / "current.json").symlink_to("data/v3.json")
    assert ids(tmp_path / "in", tmp_path / "w1") == [1]
    assert ids(tmp_path / "current.json", tmp_path / "w2") == [1]


def test_links_that_lead_to_one_directory_by_many_ways_give_its_files_once(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        put(tmp_path / "in" / name / f"{name}.json")
        for other in ("a", "b", "c"):
            (tmp_path / "in" / name / f"to_{other}").symlink_to(f"../{other}")
    put(tmp_path / "ext" / "e.json")
    (tmp_path / "in" / "e1").symlink_to(tmp_path / "ext")
    (tmp_path / "in" / "e2").symlink_to(tmp_path / "ext")
    expected = ["a/a.json", "b/b.json", "c/c.json", "e1/e.json"]
    assert found(tmp_path / "in" / "**" / "*.json", follow_links=True) == expected


@pytest.mark.parametrize("is_directory", [False, True])
def test_a_file_that_was_read_by_a_link_is_not_read_again_by_a_later_one(tmp_path: Path, is_directory: bool) -> None:
    put(tmp_path / "ext" / "e.json")
    (tmp_path / "in").mkdir()
    target = tmp_path / "ext" if is_directory else tmp_path / "ext" / "e.json"
    names = ("m", "a", "z") if is_directory else ("m.json", "a.json", "z.json")
    pattern = tmp_path / "in" / "**"
    (tmp_path / "in" / names[0]).symlink_to(target)
    known = tuple(found(pattern, follow_links=True))
    assert known == (("m/e.json",) if is_directory else ("m.json",))
    for name in names[1:]:
        (tmp_path / "in" / name).symlink_to(target)
    assert found(pattern, known, follow_links=True) == []


def test_names_that_are_hard_links_are_files_of_their_own(tmp_path: Path) -> None:
    put(tmp_path / "1.json")
    os.link(tmp_path / "1.json", tmp_path / "2.json")
    for follow_links in (False, True):
        assert found(tmp_path, follow_links=follow_links) == ["1.json", "2.json"]


def test_following_links_is_for_local_files(tmp_path: Path) -> None:
    with pytest.raises(InvalidPipeline, match="follow_links"):
        read.files("s3://bucket/in", schema="id INT", name="source", follow_links=True)


def test_a_link_of_another_file_system_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """SFTP for one tells of links; what they lead to nobody here can hold against the root."""
    system = fsspec.filesystem("memory")
    system.pipe("/lake/in/1.json", b"x")
    real = type(system).ls

    def ls(self: Any, path: str, *rest: Any, **options: Any) -> Any:
        return [*real(self, path, *rest, **options), {"name": f"{path}/2.json", "size": 9, "type": "link"}]

    monkeypatch.setattr(type(system), "ls", ls)
    try:
        with pytest.raises(InvalidPipeline, match=r"lake/in/2\.json is a link"):
            found("memory://lake/in")
    finally:
        monkeypatch.undo()
        system.rm("/lake", recursive=True)
