"""Modes of files, for tests: what is private, and under which umasks that is to be so."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(params=[0o022, 0o000], ids=["umask022", "umask000"])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """Set the umask of this process for one test."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    """Return the permissions of a file, a directory or a link."""
    return stat.S_IMODE(path.lstat().st_mode)


def check_private(top: Path, *, but: Path | None = None) -> None:
    """Assert that nobody but its user reads what is below a directory, links apart, and what is below ``but``."""
    found = [path for path in top.rglob("*") if not path.is_symlink() and (but is None or but not in path.parents)]
    assert found, f"there is nothing below {top}"
    wrong = {str(path): oct(mode(path)) for path in [top, *found] if mode(path) != (0o700 if path.is_dir() else 0o600)}
    assert wrong == {}
