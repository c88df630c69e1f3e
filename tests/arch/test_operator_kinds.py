"""What each kind of operator is to those who run it is said once, and all of them go by it."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import SimpleNamespace
from typing import Any

import pytest

import holdfast.operators
from holdfast.errors import InternalError
from holdfast.graph.side_outputs import SIDE_OUTPUTS, Rejects
from holdfast.operators.lowering import (
    LOWERINGS,
    SOURCE,
    BoundsDownstream,
    InArrow,
    InSpark,
    entry_of,
    lowering_of,
)
from holdfast.plan import feeds, program_build
from holdfast.spark import compile as spark_compile

DISPATCHES: dict[Any, Any] = {InSpark: spark_compile.WAYS, InArrow: program_build.WAYS, BoundsDownstream: feeds.WAYS}


def declarations():
    """Return every declaration of an operator: a class with a kind, and the shape of what it gives."""
    found: list[type] = [Rejects]
    for module in pkgutil.walk_packages(holdfast.operators.__path__, "holdfast.operators."):
        for _, value in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if value.__module__ == module.name and hasattr(value, "kind") and hasattr(value, "shape"):
                found.append(value)
    return found


def kind_of(declaration):
    return "rejects" if declaration is Rejects else declaration.kind


def test_every_kind_has_exactly_one_row_and_every_row_a_kind():
    named_by_users = "output"  # of a flowgraph
    kinds = [kind_of(declaration) for declaration in declarations()] + [*SIDE_OUTPUTS, named_by_users]
    assert sorted(kinds) == sorted(LOWERINGS)


@pytest.mark.parametrize("ways", DISPATCHES, ids=lambda ways: ways.__name__)
def test_whoever_runs_operators_has_an_entry_for_every_way(ways):
    assert set(DISPATCHES[ways]) == set(ways)


@pytest.mark.parametrize("ways", DISPATCHES, ids=lambda ways: ways.__name__)
def test_no_way_is_left_that_no_kind_goes(ways):
    rows = [SOURCE, *LOWERINGS.values()]
    gone = {way for row in rows for way in (row.in_spark, row.in_arrow, row.bounds) if type(way) is ways}
    of_source = {InSpark.READABLE, InSpark.BOUND_ROWS}  # further parts of READ
    assert gone | of_source >= set(ways)


@pytest.mark.parametrize("declaration", declarations(), ids=kind_of)
def test_the_table_says_of_state_what_the_declaration_does(declaration):
    row = LOWERINGS[kind_of(declaration)]
    has = {name: hasattr(declaration, name) for name in ("step", "input_names", "side_outputs", "time_columns")}
    assert set(has.values()) == {row.keeps_state}, has  # a StatefulSpec, or nothing of it
    assert row.keeps_state == (row.in_arrow is InArrow.STEP)
    assert hasattr(declaration, "wakes") == hasattr(declaration, "watches_clock")  # a ClockDriven


def test_what_arrow_does_spark_can_do_too_and_what_keeps_state_neither_plans():
    for kind, row in LOWERINGS.items():
        is_elsewhere = row.in_arrow in (InArrow.STEP, InArrow.SIDE_OUTPUT)
        assert (row.in_spark is InSpark.HOSTED) == is_elsewhere, kind


def test_a_kind_without_a_row_is_an_error_that_says_where_it_goes():
    node: Any = SimpleNamespace(is_source=False, kind="twist", name="twisted", origin="flows.py:3")
    with pytest.raises(InternalError, match=r"twist 'twisted'.*\n.*\n.*'twist' to LOWERINGS in .*lowering\.py"):
        lowering_of(node)


def test_a_way_without_an_entry_is_an_error_that_says_where_it_goes():
    with pytest.raises(InternalError, match=r"InSpark\.SQL to WAYS in here\.py"):
        entry_of({InSpark.UNION: 1}, InSpark.SQL, "here.py")
