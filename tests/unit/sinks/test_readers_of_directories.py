"""Whoever reads what sinks keep in a directory refuses an address where nothing of theirs can be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import holdfast as hf
from holdfast.errors import InvalidPipeline

READERS: dict[str, Callable[[str], Any]] = {
    "segments.open": hf.segments.open,
    "read.segments": hf.read.segments,
    "segments.flush": lambda path: hf.segments.flush(path, pipeline="p", sink="s"),
}


@pytest.mark.parametrize("reader", READERS)
def test_an_object_store_is_refused_and_not_taken_for_the_working_directory(reader: str) -> None:
    with pytest.raises(InvalidPipeline, match=rf"{reader} cannot read s3:// addresses") as raised:
        READERS[reader]("s3://bucket/secret-key")
    assert "secret-key" not in str(raised.value)
