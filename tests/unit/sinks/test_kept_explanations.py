"""Copies of what log entries explain: merged by whoever, and never believed by a listing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.connectors.kit import kept_explanations
from holdfast.connectors.kit.files.explanations import explanations_in
from holdfast.connectors.kit.kept_explanations import KeptExplanations
from holdfast.errors import Corrupt, Diverged, Unavailable
from holdfast.ports import Explanation, Held
from holdfast.store import increments

pytestmark = pytest.mark.slow


class Objects:
    """A store of objects; what is listed may lag, and what is removed may fail."""

    address = "s3://bucket/positions"

    def __init__(self) -> None:
        self.there: dict[str, bytes] = {}
        self.listed: list[str] | None = None
        self.removes = True

    def get(self, key: str) -> bytes | None:
        return self.there.get(key)

    def put(self, key: str, data: bytes) -> None:
        self.there[key] = data

    def keys(self, _: str) -> list[str]:
        return sorted(self.there) if self.listed is None else self.listed

    def delete_several(self, keys: Sequence[str]) -> None:
        if not self.removes:
            raise Unavailable("nobody answers.", why="so it is.", do="wait.")
        for key in keys:
            self.there.pop(key, None)


def told(*numbers: int) -> list[Explanation]:
    return [Explanation("lines", number, f"log {number}") for number in numbers]


def kept(objects: Objects, *, may_lag: bool = True) -> KeptExplanations:
    return KeptExplanations(objects, "sink 'out'", may_lag=may_lag)


def whole(objects: Objects, count: int) -> bool:
    return kept(objects).all({"lines": count}, ()) == told(*range(1, count + 1))


def test_neighbours_are_merged_and_everything_is_found() -> None:
    objects = Objects()
    explanations = kept(objects)
    for number in range(1, 251):
        explanations.keep(told(number))
        assert len(objects.there) <= 101
        assert number % 50 or whole(objects, number)
    assert kept(objects).all({}, ()) == []


def test_hundreds_that_earlier_runs_left_single_are_merged_with_the_next_one() -> None:
    objects = Objects()
    objects.there = {f"lines/{number:012}-{number:012}": b"log %d" % number for number in range(1, 1501)}
    kept(objects).keep(told(1501))
    assert len(objects.there) == 16
    assert whole(objects, 1501)


def test_what_lies_behind_the_newest_copy_is_not_merged_and_gives_way() -> None:
    objects = Objects()
    objects.there = {f"lines/{number:012}-{number:012}": b"left behind" for number in range(2, 151)}
    kept(objects).keep(told(1))
    for number in range(2, 151):
        kept(objects).keep(told(number))
    assert whole(objects, 150)


def test_what_lies_beside_a_log_without_an_epoch_is_forgotten() -> None:
    objects = Objects()
    kept(objects).keep(told(1, 2))
    kept(objects).forget()
    assert whole(objects, 2), "no version copied to an object store before its entry"
    asked = kept(objects, may_lag=False)
    assert asked.count(Held()) == {}
    asked.forget()
    assert (objects.there, asked.count(Held(1))) == ({}, {}), "it does not count what it has removed"
    kept(objects, may_lag=False).forget()


@pytest.mark.parametrize("slept_at", [1, 50, 99])
def test_a_run_that_slept_while_another_one_merged_loses_nothing(slept_at: int) -> None:
    """What it copies is committed, so it may; and what it merges is all there, or it does not."""
    objects = Objects()
    sleeper, other = kept(objects), kept(objects)
    for number in range(1, slept_at + 1):
        sleeper.keep(told(number))
    for number in range(slept_at + 1, 202):
        other.keep(told(number))
    for number in range(slept_at + 1, 102):
        sleeper.keep(told(number))
        assert whole(objects, 201)
    sleeper.keep(told(202))
    other.keep(told(203))
    assert whole(objects, 203)


def test_objects_that_cannot_be_removed_stop_no_epoch_and_are_merged_later() -> None:
    objects = Objects()
    explanations = kept(objects)
    objects.removes = False
    for number in range(1, 131):
        explanations.keep(told(number))
        assert whole(objects, number)
    objects.removes = True
    for number in range(131, 331):
        explanations.keep(told(number))
        assert whole(objects, number)


def test_what_is_not_listed_is_not_taken_for_absent() -> None:
    objects = Objects()
    explanations = kept(objects)
    explanations.keep(told(1, 2))
    objects.listed = sorted(objects.there)
    explanations.keep(told(3))
    with pytest.raises(Unavailable, match="explanation 3 of 3 of source 'lines'"):
        kept(objects).all({"lines": 3}, ())
    assert kept(objects).all({"lines": 3}, told(3)) == told(1, 2, 3), "the last entry says it itself"
    lagging = kept(objects)
    for number in range(4, 120):
        lagging.keep(told(number))
    objects.listed = None
    assert whole(objects, 119)
    assert kept(objects).all({"lines": 2}, ()) == told(1, 2), "more is of nobody who has committed"


@pytest.mark.parametrize("left", [(1, 2, 3), (2, 3), (3, 4, 5, 6)])
def test_what_a_run_left_that_never_committed_gives_way_to_what_entries_say(left: Sequence[int]) -> None:
    """Earlier versions wrote before their entry: a run that was replaced, with another log, has left its own."""
    objects = Objects()
    for number in left:
        kept(objects).keep([Explanation("lines", number, f"another log {number}")])
    explanations = kept(objects)
    explanations.keep(told(1, 2))
    assert whole(objects, 2)
    for number in range(3, 205):
        explanations.keep(told(number))
        assert number % 50 or whole(objects, number)
    assert len(objects.there) < 100, "nothing of it stays"


def test_merged_objects_that_say_something_else_are_not_taken_for_copies() -> None:
    objects = Objects()
    objects.put("lines/000000000001-000000000100", b"\n".join(b"another log %d" % each for each in range(1, 101)))
    with pytest.raises(Diverged, match="'another log 2'; its log says 'log 2'"):
        kept(objects).keep(told(2))


def test_runs_of_one_epoch_each_merge_what_they_copy_together() -> None:
    objects = Objects()
    for number in range(1, 306):
        kept(objects).keep(told(number))
        assert len(objects.there) <= 104
    assert whole(objects, 305)
    assert len(objects.there) == 8


def test_an_object_that_another_run_merges_while_it_is_read_is_looked_for_again() -> None:
    objects = Objects()
    for number in range(1, 100):
        kept(objects).keep(told(number))
    listed = sorted(objects.there)
    kept(objects).keep(told(100))
    listings = iter([listed])
    objects.keys = lambda _: next(listings, sorted(objects.there))  # type: ignore[method-assign]
    assert whole(objects, 100)


def test_in_a_directory_runs_of_one_epoch_each_merge_what_they_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_explanations, "MERGED_AT_A_TIME", 3)
    for number in range(1, 12):
        explanations_in(os.fspath(tmp_path), "sink 'out'").keep(told(number))
    assert files(tmp_path) == ["000000000001-000000000009.json", "000000000010.json", "000000000011.json"]
    assert explanations_in(os.fspath(tmp_path), "sink 'out'").all({"lines": 11}, ()) == told(*range(1, 12))


def test_a_directory_of_an_earlier_version_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (increments, kept_explanations):
        monkeypatch.setattr(module, "MERGED_AT_A_TIME", 3)
    earlier = increments.Increments(os.fspath(tmp_path / "lines"), "what positions mean,")
    for one in told(1, 2, 3, 4):
        earlier.put(one.text.encode())
        earlier.merge()
    assert files(tmp_path) == ["000000000001-000000000003.json", "000000000004.json"]
    explanations = explanations_in(os.fspath(tmp_path), "sink 'out'")
    assert explanations.all({"lines": 4}, ()) == told(1, 2, 3, 4)
    explanations.keep(told(4))
    explanations.keep(told(5, 6))
    assert files(tmp_path) == ["000000000001-000000000003.json", "000000000004.json", "000000000005-000000000006.json"]
    assert explanations.all({"lines": 6}, ()) == told(*range(1, 7))


def test_an_object_in_a_directory_that_is_damaged_is_an_error(tmp_path: Path) -> None:
    explanations_in(os.fspath(tmp_path), "sink 'out'").keep(told(1))
    path = tmp_path / "lines" / "000000000001.json"
    path.write_bytes(path.read_bytes().replace(b"log 1", b"log 2"))
    with pytest.raises(Corrupt, match="is damaged"):
        explanations_in(os.fspath(tmp_path), "sink 'out'").all({"lines": 1}, ())


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "lines").iterdir() if path.is_file())


def test_a_copy_that_is_gone_from_a_directory_is_not_waited_for(tmp_path: Path) -> None:
    there = explanations_in(str(tmp_path / "positions"), "sink 'out'")
    there.keep(told(1, 2))
    with pytest.raises(Corrupt, match="explanation 3 of 3 of source 'lines' is missing in"):
        there.all({"lines": 3}, ())
