"""Where a start takes a path object, it is a place on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import InvalidPipeline
from holdfast.starts import start


def test_an_export_that_is_given_as_a_path_object_is_a_place_and_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert start._export(Path("./export")) == str(tmp_path / "export")
    assert start._export("export") == "export"
    assert start._export(None) is None


def test_an_address_is_no_path_object() -> None:
    with pytest.raises(InvalidPipeline, match=r"'s3:/bucket/cp' is a path object and begins like an address"):
        start._location(Path("s3://bucket/cp"))
    assert start._location("s3://bucket/cp") == "s3://bucket/cp"
    assert start._location(Path("/data/cp")) == "/data/cp"
