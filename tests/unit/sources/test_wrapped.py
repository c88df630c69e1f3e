"""What is around a source hides nothing that the source offers."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast as hf
from holdfast.ports import Backlogged, Bounded, Exhaustible
from holdfast.quarantine.mask import LetteredSource
from holdfast.sources.from_time import ClippedSource, from_time
from holdfast.sources.wrapped import innermost

SCHEMA = "k STRING, t BIGINT, is_bound BOOLEAN"


@pytest.fixture
def plain(tmp_path: Path):
    (tmp_path / "in").mkdir()
    node = hf.read.files(f"{tmp_path}/in/*.json", schema=SCHEMA, timestamp="t", bounded=True, name="s").node
    return node.source_spec, str(tmp_path / "workspace")


def test_a_source_is_its_own_innermost_one(plain):
    spec, workspace = plain
    source = spec.open("s", workspace)
    assert innermost(source) is source


def test_whatever_is_around_it_the_source_tells_its_end_and_its_backlog(plain):
    spec, workspace = plain
    source = spec.open("s", workspace)
    around = ClippedSource(LetteredSource(source), "t", 5)
    assert innermost(around) is source
    assert isinstance(innermost(around), Exhaustible)
    assert isinstance(innermost(around), Backlogged)


def test_a_declaration_around_another_is_bounded_as_that_is(tmp_path: Path):
    for bounded in (True, False):
        given = hf.read.rows([], schema=SCHEMA, timestamp="t", bounds="is_bound", bounded=bounded, name="s")
        spec = given.node.source_spec
        assert isinstance(spec, Bounded)
        assert spec.bounded is bounded
    rate = hf.read.rate(1, name="r").node.source_spec
    assert not isinstance(rate, Bounded)
    assert isinstance(from_time(rate, None), type(rate))
