"""``hf.flow`` is a module that can be called, and a type checker sees all of its names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import holdfast as hf
from holdfast import flow
from holdfast.operators.flow import spec

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


def test_the_stub_of_the_call_has_the_signature_of_the_operator() -> None:
    """Names, order, kinds and defaults; and the stub says each type, of which the operator may say less."""
    (stub,) = (
        function
        for kind in ast.parse((ROOM / "called.pyi").read_text()).body
        if isinstance(kind, ast.ClassDef) and kind.name == "flow"
        for function in kind.body
        if isinstance(function, ast.FunctionDef) and function.name == "__new__"
    )
    (operator,) = (
        function
        for function in ast.parse(Path(spec.__file__).read_text()).body
        if isinstance(function, ast.FunctionDef) and function.name == "flow"
    )
    assert shape(stub, skip=1) == shape(operator)
    arguments = stub.args.args[1:] + stub.args.kwonlyargs
    assert [each.arg for each in arguments if each.annotation is None] == []


def shape(function: ast.FunctionDef, skip: int = 0) -> list[tuple[str, str, str | None]]:
    """Return name, kind and default of each parameter, but the first few."""
    arguments = function.args
    defaults: list[ast.expr | None] = [None] * (len(arguments.args) - len(arguments.defaults)) + [*arguments.defaults]
    found = [("or by name", each, default) for each, default in zip(arguments.args, defaults, strict=True)][skip:]
    found += [
        ("by name", each, default) for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    more = [(kind, each, None) for kind, each in (("*", arguments.vararg), ("**", arguments.kwarg)) if each is not None]
    more += [("by place", each, None) for each in arguments.posonlyargs]
    return [
        (each.arg, kind, None if default is None else ast.unparse(default)) for kind, each, default in [*found, *more]
    ]


@pytest.mark.parametrize("name", sorted(flow.__all__))
def test_each_name_is_there(name: str) -> None:
    assert getattr(flow, name) is not None
