"""Which checkpoint led, and setting one aside that has been overtaken (design/0028)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.replica.tenure import ASIDE, note_term, noted_term, set_aside
from holdfast.store.paths import open_store

PARTS = ("generations", "ledger", "sources", "spark", "identity.json")
KEPT = ("holdfast.log",)


def filled(directory: Path, of: str) -> None:
    directory.mkdir(exist_ok=True)
    for name in PARTS:
        (directory / name).write_text(of)
    for name in ("holdfast.log", "holdfast.log.1"):
        (directory / name).write_text("said")


def aside(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (directory / ASIDE).iterdir()}


def test_a_term_is_noted(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    assert noted_term(store) == 0
    note_term(store, 4)
    assert noted_term(open_store(str(tmp_path))) == 4


def test_everything_but_logs_and_the_term_is_set_aside_once(tmp_path: Path) -> None:
    filled(tmp_path, "first")
    note_term(open_store(str(tmp_path)), 1)
    assert set_aside(tmp_path, KEPT)
    assert aside(tmp_path) == dict.fromkeys(PARTS, "first")
    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == [
        "holdfast.log",
        "holdfast.log.1",
        "lease.json",
        ASIDE,
    ]
    assert not set_aside(tmp_path, KEPT)
    assert aside(tmp_path) == dict.fromkeys(PARTS, "first"), "nothing came: what is there stays"
    filled(tmp_path, "second")
    assert set_aside(tmp_path, KEPT)
    assert aside(tmp_path) == dict.fromkeys(PARTS, "second")


@pytest.mark.parametrize("moved", range(len(PARTS)))
def test_a_crash_between_two_moves_is_followed_by_the_rest(
    tmp_path: Path, moved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Died(Exception):
        """The process ends here."""

    left = [moved]

    def replace(source: Path, target: Path) -> None:
        if not left[0]:
            raise Died
        left[0] -= 1
        os.rename(source, target)

    filled(tmp_path, "first")
    with monkeypatch.context() as patched:
        patched.setattr("holdfast.replica.tenure.os.replace", replace)
        with pytest.raises(Died):
            set_aside(tmp_path, KEPT)
    has_spark, has_sources = ((tmp_path / name).exists() for name in ("spark", "sources"))
    assert has_spark, "without it a start would go on with files of a source that were overtaken"
    assert has_sources == (moved == 0)
    assert set_aside(tmp_path, KEPT)
    assert aside(tmp_path) == dict.fromkeys(PARTS, "first")
