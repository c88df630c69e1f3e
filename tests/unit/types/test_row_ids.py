"""Ids of numbers and of columns: their layout, order, odds, and the ids of earlier versions (design/0022)."""

from __future__ import annotations

import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import InvalidPipeline
from holdfast.types.row_ids import ReadId, check_columns, ids_of_columns, ids_of_numbers, key_of
from tests.everyday import examples

KEY = key_of("flights", "2024/a.json@0")
TIME = 1_704_067_200_123_456


def numbers(*values: int) -> Any:
    return np.array(values, np.uint64)


def times(*values: int | None) -> pa.Array:
    return pa.array(values, pa.int64()).cast(pa.timestamp("us", "UTC"))


def columns(*values: Any, kind: pa.DataType | None = None) -> list[str]:
    return ids_of_columns(KEY, [pa.array(values, kind)], None).to_pylist()


def test_ids_of_earlier_versions_come_out_the_same() -> None:
    """The bits are an interface: rows of years ago must find themselves in a sink."""
    assert ids_of_numbers(KEY, numbers(0, 1, 2**63), times(TIME, TIME + 1, None)).to_pylist() == [
        "018cc251-f47b-7c14-8ea7-9285b7565008",
        "018cc251-f47b-7f11-bdf1-9f1fdeb010d7",
        "00000000-0000-738c-a04a-cb5fd96e93b5",
    ]
    assert ids_of_numbers(KEY, numbers(0), None).to_pylist() == ["568a3f68-f5b1-8c14-8ea7-9285b7565008"]
    mixed = [
        pa.array(["JFK", None]),
        pa.array([1, -7]),
        pa.array([0.5, None]),
        pa.array([True, None]),
        pa.array([b"x" * 600, b""]),
        pa.array([Decimal("1.50"), None]),
    ]
    assert ids_of_columns(KEY, mixed, times(TIME, TIME)).to_pylist() == [
        "018cc251-f47b-7029-badd-b888659bc7fd",
        "018cc251-f47b-7097-a782-a83c395dbb36",
    ]


def test_an_id_with_a_time_is_a_uuid_of_version_7_that_begins_with_it() -> None:
    (text,) = ids_of_numbers(KEY, numbers(7), times(TIME)).to_pylist()
    found = uuid.UUID(text)
    assert (str(found), found.version, found.variant) == (text, 7, uuid.RFC_4122)
    assert found.int >> 80 == TIME // 1000


def test_an_id_without_a_time_is_one_of_version_8() -> None:
    found = uuid.UUID(ids_of_numbers(KEY, numbers(7), None)[0].as_py())
    assert (found.version, found.variant) == (8, uuid.RFC_4122)


@pytest.mark.slow
@given(st.lists(st.integers(-(2**62), 2**62), min_size=2, max_size=50))
def test_ids_sort_by_time(ticks: list[int]) -> None:
    """To the millisecond; times without bits of their own are the first, or the last."""
    ids = ids_of_numbers(KEY, np.arange(len(ticks), dtype=np.uint64), times(*ticks)).to_pylist()
    shown = [min(max(tick // 1000, 0), 2**48 - 1) for tick in ticks]
    by_id = [at for _, at in sorted(zip(ids, shown, strict=True))]
    assert by_id == sorted(shown)


def test_ticks_are_taken_as_they_are_and_a_row_without_a_time_comes_first() -> None:
    ids = ids_of_numbers(KEY, numbers(0, 1, 2), pa.array([5, None, 4])).to_pylist()
    assert [uuid.UUID(text).int >> 80 for text in ids] == [5, 0, 4]


@pytest.mark.slow
def test_numbers_of_one_key_never_collide_and_no_bit_of_an_id_is_idle() -> None:
    """One lane is a permutation, and an id holds all of it."""
    count = 50_000
    near = np.arange(count, dtype=np.uint64)
    far = near << np.uint64(40)
    for some in (near, far):
        ids = [uuid.UUID(text).int for text in ids_of_numbers(KEY, some, None).to_pylist()]
        assert len(set(ids)) == count
        for bit in set(range(128)) - {63, 62, 79, 78, 77, 76}:
            share = sum(one >> bit & 1 for one in ids[:20_000]) / 20_000
            assert 0.48 < share < 0.52, bit


@pytest.mark.slow
@pytest.mark.parametrize("shift", [0, 12, 34])
def test_the_odds_of_a_collision_are_those_of_chance(shift: int) -> None:
    """74 bits cannot be made to collide in a test; any 28 of them collide as often as random ones do.

    ``n`` ids of ``b`` bits have ``n² / 2^(b + 1)`` collisions on average, so that of 74 bits 10^6 ids in one
    millisecond have one in 38 billion such milliseconds.
    """
    places, per_place, bits = 200, 500, 28
    found: list[int] = []
    for place in range(places):
        of = ids_of_numbers(key_of("s", f"{place}"), np.arange(per_place, dtype=np.uint64), times(*[0] * per_place))
        found += [uuid.UUID(text).int for text in of.to_pylist()]
    hashes = [(one & (2**62 - 1)) | (one >> 64 & 0xFFF) << 62 for one in found]
    count = len(hashes)
    assert len(set(hashes)) == count
    cut = {value >> shift & (2**bits - 1) for value in hashes}
    expected = count**2 / 2 ** (bits + 1)
    assert abs((count - len(cut)) - expected) < 6 * expected**0.5


@pytest.mark.slow
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**48 - 1) | st.none(), st.text(max_size=9))
def test_the_number_of_a_row_can_be_computed_from_its_id(number: int, ticks: int | None, place: str) -> None:
    key = key_of("position", "s", place)
    at = None if ticks is None else pa.array([ticks])
    read = ReadId.of(ids_of_numbers(key, numbers(number), at)[0].as_py())
    assert (read.ticks, read.number(key)) == (ticks, number)
    others = [read.number(key_of("position", "s", f"{place}{other}")) for other in range(5)]
    assert not [found for found in others if found is not None and found < 2**32]


@pytest.mark.parametrize(
    "text", ["", "7", "018cc251-f47b-4c14-8ea7-9285b7565008", "018cc251-f47b-7c14-0ea7-9285b7565008"]
)
def test_what_is_no_row_id_is_not_read(text: str) -> None:
    with pytest.raises(ValueError, match=r"badly formed|of another version"):
        ReadId.of(text)


VALUES = st.one_of(
    st.tuples(st.just(pa.int64()), st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=30)),
    st.tuples(st.just(pa.string()), st.lists(st.none() | st.text(max_size=40), min_size=1, max_size=30)),
    st.tuples(st.just(pa.binary()), st.lists(st.none() | st.binary(max_size=1100), min_size=1, max_size=10)),
    st.tuples(st.just(pa.bool_()), st.lists(st.none() | st.booleans(), min_size=1, max_size=30)),
)


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(VALUES, st.data())
def test_an_id_depends_on_the_values_of_its_row_alone(values: tuple[pa.DataType, list[Any]], data: Any) -> None:
    """Not on the rows beside it, on slices, or on padding."""
    kind, rows = values
    ids = columns(*rows, kind=kind)
    assert len(set(ids)) == len(set(rows))
    assert dict(zip(rows, ids, strict=True)) == {row: columns(row, kind=kind)[0] for row in rows}
    start = data.draw(st.integers(0, len(rows)))
    part = pa.array(rows, kind).slice(start)
    assert ids_of_columns(KEY, [part], None).to_pylist() == ids[start:]


def test_more_rows_than_are_taken_at_once_have_the_ids_that_each_has_alone() -> None:
    count = 40_000
    texts = pa.array([f"key {number}" if number % 7 else None for number in range(count)])
    ids = ids_of_columns(KEY, [texts], None)
    for number in (0, 16_383, 16_384, 33_333, count - 1):
        assert ids_of_columns(KEY, [texts.slice(number, 1)], None)[0] == ids[number]


def test_equal_values_of_different_widths_and_spellings_are_one_value() -> None:
    assert columns(5, kind=pa.int8()) == columns(5, kind=pa.int64())
    assert columns(0.0) == columns(-0.0)
    assert columns(float("nan")) == columns(-float("nan"))
    assert columns(0.5, kind=pa.float32()) == columns(0.5)
    assert columns(Decimal("1.5")) == columns(Decimal("1.500"))
    assert (
        columns("a", kind=pa.large_string()) == columns("a") == columns("a", kind=pa.dictionary(pa.int32(), "string"))
    )
    assert columns(1000, kind=pa.timestamp("ns")) == columns(1, kind=pa.timestamp("us"))


def test_different_values_have_different_ids_also_where_their_bytes_are_the_same() -> None:
    alike = [columns(None, kind=pa.int64()), columns(0), columns(0.0), columns(False), columns(""), columns(b"")]
    alike += [columns("\0"), columns("\0\0"), columns(None, kind=pa.string()), columns("x" * 511), columns("x" * 512)]
    assert len({ids[0] for ids in alike}) == len(alike)
    split = [
        ids_of_columns(KEY, [pa.array([a]), pa.array([b])], None)[0].as_py() for a, b in [("a", "bc"), ("ab", "c")]
    ]
    assert split[0] != split[1]


def test_a_column_of_another_type_is_refused_with_the_cure() -> None:
    schema = pa.schema({"xs": pa.list_(pa.int64()), "at": pa.date32()})
    with pytest.raises(InvalidPipeline, match=r"made of 'xs', of type list.*(?s:.*)to_json"):
        check_columns(schema, ["xs"], None)
    with pytest.raises(InvalidPipeline, match=r"timestamp='at'.*date32.*(?s:.*)timestamp=False"):
        check_columns(schema, [], "at")
