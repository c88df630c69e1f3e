"""A run ends at a member that is no column, and its schema file has the column then (design/0055)."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from holdfast.errors import BadRow, Unavailable, from_text
from holdfast.shards.ends import is_final
from holdfast.spark.new_columns import add_columns


def bad_row(schema_file: Path, columns: str = "tip BIGINT\n`of day` STRING") -> BadRow:
    error = BadRow("1.json, line 2, cannot be read: it has the member 'tip'.", why="the line is '...'.", pipeline="p")
    error.new_columns, error.schema_file = columns, str(schema_file)
    return error


def test_the_file_has_the_columns_and_the_error_says_so(tmp_path: Path) -> None:
    path = tmp_path / "ride.ddl"
    path.write_text("id BIGINT -- of the day\n")
    path.chmod(0o640)
    found = add_columns(bad_row(path))
    assert path.read_text() == "id BIGINT, -- of the day\ntip BIGINT,\n`of day` STRING\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["ride.ddl"]
    assert "has the columns tip BIGINT, `of day` STRING now" in found.what
    assert "line 2" in found.why
    assert (found.pipeline, is_final(found)) == ("p", False)
    assert not is_final(from_text(found.record()) or Unavailable("")), "a supervisor starts it again"


def test_columns_that_are_there_already_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ride.ddl"
    path.write_text("id BIGINT, Tip DOUBLE, `of day` STRING")
    add_columns(bad_row(path))
    assert path.read_text() == "id BIGINT, Tip DOUBLE, `of day` STRING"


@pytest.mark.parametrize("content", [None, "id", "id BIGINT, "])
def test_a_file_that_cannot_be_longer_is_left_as_it_is(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "ride.ddl"
    if content is not None:
        path.write_text(content)
    found = add_columns(bad_row(path))
    assert "cannot be added" in str(found)
    assert is_final(found)
    assert (path.read_text() if content is not None else None) == content


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real.ddl").write_text("id BIGINT")
    (tmp_path / "ride.ddl").symlink_to("real.ddl")
    add_columns(bad_row(tmp_path / "ride.ddl", "tip BIGINT"))
    assert (tmp_path / "ride.ddl").is_symlink()
    assert (tmp_path / "real.ddl").read_text() == "id BIGINT,\ntip BIGINT\n"


def test_other_errors_stay_as_they_are(tmp_path: Path) -> None:
    for error in (BadRow("x"), Unavailable("x")):
        assert add_columns(error) is error
