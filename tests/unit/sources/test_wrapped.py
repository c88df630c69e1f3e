"""What is around a source hides nothing that the source offers."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.capabilities import offers
from holdfast.connectors.reading.bounds import MarkedSpec
from holdfast.connectors.reading.from_time import ClippedSource, from_time
from holdfast.connectors.reading.wrapped import WrappedSource, WrappedSpec, innermost
from holdfast.connectors.rows import RowsSpec
from holdfast.ports import Backlogged, Bounded, Confidential, Exhaustible, ExplainedSpec, Guarantee, Guaranteeing
from holdfast.quarantine.mask import LetteredSource

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
    assert offers(innermost(around), Exhaustible)
    assert offers(innermost(around), Backlogged)


def test_a_declaration_around_another_is_bounded_as_that_is(tmp_path: Path):
    for bounded in (True, False):
        given = hf.read.rows([], schema=SCHEMA, timestamp="t", bounds="is_bound", bounded=bounded, name="s")
        spec = given.node.source_spec
        assert offers(spec, Bounded)
        assert spec.bounded is bounded
    rate = hf.read.rate(1, name="r").node.source_spec
    assert not offers(rate, Bounded)
    assert isinstance(from_time(rate, None), type(rate))


class Inside:
    name = "inside"


class Around(WrappedSource):
    def __init__(self, source: Any, word: str) -> None:
        super().__init__(source)
        self.word = word


def test_what_a_wrapper_does_not_have_the_source_inside_is_asked_for():
    around: Any = Around(Around(Inside(), "inner"), "outer")
    assert (around.name, around.word, around.source.word) == ("inside", "outer", "inner")
    with pytest.raises(AttributeError, match="colour"):
        _ = around.colour
    assert pickle.loads(pickle.dumps(around)).name == "inside"


def test_a_source_that_happens_to_have_a_source_is_no_wrapper():
    class Tool:
        source = Inside()

    tool: Any = Tool()
    assert innermost(tool) is tool
    around: Any = Around(Around(tool, "inner"), "outer")
    assert innermost(around) is tool


@pytest.mark.parametrize("way", ["bound rows", "from a time", "ids"])
def test_what_positions_mean_is_told_and_restored_whatever_is_around_the_declaration(tmp_path: Path, way: str):
    """It was not: with bound rows, or begun at a time, sinks were told nothing, and a lost log stayed lost."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"k": "a", "t": 7}\n')
    bounds = "is_bound" if way == "bound rows" else None
    given = hf.read.files(str(tmp_path / "in"), schema=SCHEMA, timestamp="t", bounds=bounds, name="s")
    spec: Any = (given | hf.row_id() if way == "ids" else given).node.source_spec
    spec = from_time(spec, 5 if way == "from a time" else None)
    assert isinstance(spec, WrappedSpec)  # which asks the one inside for what it does not say itself
    wrapped: Any = spec
    lost, new = str(tmp_path / "lost"), str(tmp_path / "new")
    source = wrapped.open("s", lost)
    start = source.initial()
    end = source.latest(start, bounded=False)
    assert end != start
    assert offers(spec, ExplainedSpec)
    told = spec.explanations("s", lost, 0)
    assert told
    spec.restore("s", new, told)
    assert spec.explanations("s", new, 0) == told
    assert not spec.obstacle("s", new, end)


def test_a_declaration_around_another_promises_and_hides_what_that_does(tmp_path: Path):
    class Promising(RowsSpec):
        guarantee = Guarantee.AT_LEAST_ONCE
        sends_secret = True

    spec = MarkedSpec(
        Promising((), pa.schema({"k": pa.string(), "t": pa.int64(), "is_bound": pa.bool_()}), "t"), "is_bound"
    )
    assert offers(spec, Guaranteeing)
    assert spec.guarantee is Guarantee.AT_LEAST_ONCE
    assert offers(spec, Confidential)
    assert spec.sends_secret
