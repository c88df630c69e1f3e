"""Where an argument takes names, a text is one name, and not its letters."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.connectors.segments.control import flush

SPECS: dict[str, Callable[[Any], Any]] = {
    "partition_by": lambda names: hf.write.segments("out", partition_by=names).spec,
    "sort_by": lambda names: hf.write.segments("out", sort_by=names).spec,
    "partition_by, files": lambda names: hf.write.files("out", partition_by=names).spec,
    "key": lambda names: hf.write.sqlite("db", table="t", mode="upsert", key=names).spec,
    "streams": lambda names: hf.read.byte_stream("store", streams=names).node.spec,
    "topics": lambda names: hf.write.kafka("localhost:9", topic_by="kind", topics=names).spec,
}


@pytest.mark.parametrize("argument", SPECS)
def test_a_text_is_one_name(argument: str) -> None:
    found = [SPECS[argument](names).arguments() for names in ("place", ["place"])]
    assert found[0] == found[1]
    assert found[0][argument.split(",")[0]] == ["place"]


def test_a_text_is_one_partition_that_is_to_be_sealed(tmp_path: Path) -> None:
    own = tmp_path / "_holdfast" / "rides" / "store"
    for part in ("manifest", "writing"):
        (own / part).mkdir(parents=True)
    flush(tmp_path, "place=a", pipeline="rides", sink="store")
    (request,) = (own / "flush").glob("*.json")
    assert json.loads(request.read_text()) == ["place=a"]
