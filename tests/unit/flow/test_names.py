"""``hf.flow`` is a module that can be called, and a type checker sees all of its names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import holdfast as hf
from holdfast import flow

ROOM = Path(flow.__file__).parent


def test_the_module_is_the_operator_too() -> None:
    assert hf.flow is flow
    graph = flow.Graph()
    graph.output("out", graph.input("rows") | flow.node(flow.calculators.PassThrough))
    rows = hf.read.rows([], schema="k STRING, t BIGINT, v BIGINT", timestamp="t", name="rows")
    assert (rows | hf.flow(graph, by="k", schema="v BIGINT")).columns == ("k", "t", "v")


def test_both_stubs_have_the_same_names() -> None:
    exported = re.findall(r"^from \S+ import (\w+) as \1$", (ROOM / "__init__.pyi").read_text(), re.MULTILINE)
    seen = re.findall(r"^    (\w+)(?:: TypeAlias)? = _\1$", (ROOM / "called.pyi").read_text(), re.MULTILINE)
    assert sorted(seen) == sorted({*exported} - {"flow"})


@pytest.mark.parametrize("name", sorted(flow.__all__))
def test_each_name_is_there(name: str) -> None:
    assert getattr(flow, name) is not None
