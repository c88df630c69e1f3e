"""What waits in a graph, and what calculators save, as bytes: one form for each value, and never a pickle."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import Corrupt, InvalidPipeline
from holdfast.flow import Calculator, Contract, Graph, node
from holdfast.flow.codec import Codec
from holdfast.flow.queues import ABSENT

pytestmark = pytest.mark.slow

PLAIN = Codec()
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.decimals(allow_nan=False)
    | st.datetimes(timezones=st.none() | st.just(datetime.UTC))
    | st.dates()
    | st.timedeltas()
    | st.uuids()
    | st.just(ABSENT)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=6,
)


@dataclass(frozen=True)
class Frame:
    """An image."""

    pixels: bytes
    at: int = 0


class Opaque:
    """Something that nobody knows how to keep."""

    def __init__(self, name: str) -> None:
        self.name = name


@given(VALUES)
def test_what_is_kept_comes_back_as_it_was(value: Any) -> None:
    found = PLAIN.decode(PLAIN.encode(value, of="test"), of="test")
    assert found == value
    assert type(found) is type(value)
    assert PLAIN.encode(found, of="test") == PLAIN.encode(value, of="test"), "one form each"


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((2, 3), np.uint8),
        np.arange(4.0),
        np.array([True]),
        np.array(7),
        np.array([(1, 2.5)], dtype=[("id", "<i4"), ("at", "<f8")]),
        np.array(["2026-01-01"], "datetime64[us]"),
    ],
    ids=str,
)
def test_arrays_keep_type_and_shape(array: np.ndarray[Any, Any]) -> None:
    found = PLAIN.decode(PLAIN.encode([array], of="test"), of="test")[0]
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert np.array_equal(found, array)


@pytest.mark.parametrize(
    "value", [np.float64(2.5), np.int64(7), np.bool_(True), np.datetime64("2026-01-01", "us")], ids=str
)
def test_a_number_of_numpys_stays_one(value: Any) -> None:
    found = PLAIN.decode(PLAIN.encode(value, of="test"), of="test")
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize("value", [{1, "a", (2, 3)}, frozenset({1.5}), set()], ids=["set", "frozenset", "empty"])
def test_a_set_has_one_form(value: Any) -> None:
    found = PLAIN.decode(PLAIN.encode(value, of="test"), of="test")
    assert (type(found), found) == (type(value), value)
    assert PLAIN.encode({*reversed([*value])}, of="test") == PLAIN.encode({*value}, of="test")


def test_a_dataclass_that_a_port_names_is_kept_by_its_fields() -> None:
    class Grey(Calculator):
        contract = Contract(inputs={"frame": Frame}, outputs={"grey": (Frame, int)}, is_pure=True)

    graph = Graph()
    graph.output("grey", graph.input("frame") | node(Grey))
    value = [Frame(b"x", 3)]
    assert graph.codec.decode(graph.codec.encode(value, of="test"), of="test") == value
    with pytest.raises(InvalidPipeline, match=r"is of class .*Frame, which nothing says how to make"):
        PLAIN.decode(graph.codec.encode(value, of="test"), of="test")


def test_a_graph_says_how_others_are_kept() -> None:
    graph = Graph(keeps={Opaque: (lambda value: value.name, Opaque)})
    found = graph.codec.decode(graph.codec.encode({"one": Opaque("a")}, of="test"), of="test")
    assert found["one"].name == "a"


@pytest.mark.parametrize("value", [Opaque("a"), np.array([object()]), lambda: 0], ids=["class", "objects", "function"])
def test_what_nobody_knows_to_keep_is_refused_with_a_way_out(value: Any) -> None:
    with pytest.raises(InvalidPipeline, match=r"of node 'track' cannot be kept between epochs[\s\S]*keeps="):
        PLAIN.encode([value], of="node 'track'")


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_damaged_bytes_are_no_value(cut: int) -> None:
    data = PLAIN.encode({"a": [1, 2.5, "text"], "b": Decimal("1.5"), "c": UUID(int=1)}, of="test")
    with pytest.raises(Corrupt, match="What is kept of the test cannot be read"):
        PLAIN.decode(data[:-cut], of="the test")
    with pytest.raises(Corrupt):
        PLAIN.decode(data + b"N", of="the test")
    with pytest.raises(Corrupt):
        PLAIN.decode(b"X" + data, of="the test")


@pytest.mark.parametrize(
    "value",
    [
        np.str_(""),
        np.bytes_(b""),
        np.zeros(1, [("x", "<i4")])[0],
        datetime.datetime(2026, 10, 25, 2, 30, fold=1),
        datetime.datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
    ],
    ids=["text", "bytes", "row", "fold", "zone"],
)
def test_a_value_is_the_same_to_the_corners(value: Any) -> None:
    found = PLAIN.decode(PLAIN.encode(value, of="x"), of="x")
    assert type(found) is type(value)
    assert found == value
    if isinstance(value, datetime.datetime):
        assert (found.fold, found.tzinfo) == (value.fold, value.tzinfo)


def test_an_array_whose_type_does_not_say_where_its_fields_are_is_refused() -> None:
    array = np.zeros(2, np.dtype([("a", "i1"), ("b", "i8")], align=True))
    with pytest.raises(InvalidPipeline, match="A ndarray of x cannot be kept"):
        PLAIN.encode(array, of="x")


@dataclass(slots=True)
class Grown:
    """A class that had another field before."""

    a: int
    b: int = 7
    c: list[int] = field(default_factory=list)


def test_a_dataclass_that_has_grown_has_its_defaults_and_one_that_has_shrunk_its_fields() -> None:
    name = f"{Grown.__module__}.{Grown.__qualname__}"
    before = PLAIN.encode([name, {"a": 1, "gone": 2}], of="x")
    assert Codec(dataclasses=[Grown]).decode(b"O" + before, of="x") == Grown(1, 7, [])
