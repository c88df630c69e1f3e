"""The canonical form and its hash: what is equal, what is not, and the values that PostgreSQL has (design/0024).

That PostgreSQL has the very same ones is asked of a server in ``tests/contract/comparable_contract.py``.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidPipeline
from holdfast.types import canonical, lookup3
from holdfast.types.canonical import Digests
from holdfast.values import Loss, LossKind

MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5, 678901, dt.UTC)


def hashed(*values: Any, kind: pa.DataType | None = None, lost: Any = (), name: str = "x") -> list[int]:
    return [int(each) for each in canonical.column_hashes(pa.array(values, kind), name, lost)]


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.array([0.0]), pa.array([-0.0])),
        (pa.array([float("nan")]), pa.array(np.array([0xFFF8000000000123], np.uint64).view(np.float64))),
        (pa.array([0.1], pa.float32()), pa.array([float(np.float32(0.1))])),
        (pa.array([1], pa.int8()), pa.array([1], pa.int64())),
        (pa.array([True]), pa.array([1])),
        (pa.array([MOMENT], pa.timestamp("us", "UTC")), pa.array([MOMENT], pa.timestamp("us", "Asia/Tokyo"))),
        (pa.array([7_000_000_999], pa.timestamp("ns")), pa.array([7_000_000], pa.timestamp("us"))),
        (pa.array([-1_500], pa.timestamp("ns")), pa.array([-1], pa.timestamp("us"))),
        (pa.array([3], pa.timestamp("s")), pa.array([3_000], pa.timestamp("ms"))),
        (pa.array([dt.date(2026, 1, 2)], pa.date32()), pa.array([dt.date(2026, 1, 2)], pa.date64())),
        (pa.array([61_000], pa.time32("ms")), pa.array([61_000_000_999], pa.time64("ns"))),
        (pa.array([2], pa.duration("s")), pa.array([2_000_000])),
        (pa.array(["a"]).dictionary_encode(), pa.array(["a"], pa.large_string())),
        (pa.array(["longer than twelve"], pa.string_view()), pa.array(["longer than twelve"])),
        (pa.array([b"\0\xff"]), pa.array([b"\0\xff"], pa.binary(2))),
        (pa.array([Decimal("1.50")], pa.decimal128(5, 2)), pa.array([Decimal("1.50")], pa.decimal256(60, 2))),
        (pa.array([{"b": 1, "aa": [2.0]}]), pa.array([{"aa": [2.0], "b": 1}])),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int32())), pa.array([{"k": 1}])),
    ],
)  # fmt: skip
def test_what_is_one_value(one: pa.Array, other: pa.Array) -> None:
    assert list(canonical.column_hashes(one, "x")) == list(canonical.column_hashes(other, "x"))
    assert canonical.column_hashes(one, "x")[0] != 0


@pytest.mark.parametrize(
    "values",
    [
        pa.array([None, 0, 1, -1, 2**32, -(2**32), 2**63 - 1, -(2**63), 2**32 - 1]),
        pa.array([None, 0, 1, 2**63, 2**64 - 1], pa.uint64()),
        pa.array([None, 0.0, 1.0, float("nan"), float("inf"), -float("inf"), 5e-324]),
        pa.array(
            [None, "", " ", "\0", "a", "a ", "A", "12345678901", "123456789012", "1234567890123", "\u00e4", "a\u0308"]
        ),
        pa.array([None, b"", b"\0", b"\0\0", b"a"]),
        pa.array([None, Decimal("0.00"), Decimal("0.01"), Decimal("1.00"), Decimal("-0.01")], pa.decimal128(38, 2)),
        pa.array([None, 0, 1, 2**62, -(2**62)], pa.timestamp("us")),
        pa.array([None, 0, 1, -1, 2**30], pa.date32()),
        pa.array([None, [], [None], [0], [0, 0]], pa.list_(pa.int64())),
    ],
    ids=lambda values: str(values.type),
)
def test_what_are_distinct_values(values: pa.Array) -> None:
    assert len(set(canonical.column_hashes(values, "x").tolist())) == len(values)


@pytest.mark.slow
def test_integers_whose_halves_fold_to_one_are_distinct() -> None:
    """PostgreSQL's own hash of an integer has one value for all of these."""
    folded = np.array([high << 32 | (high ^ 0x1234) for high in range(100_000)])
    assert len(np.unique(lookup3.of_integers(folded, canonical.seed_of("id")))) == len(folded)


def test_values_that_change_places_change_the_row() -> None:
    rows = batch(a=["x", "y", None, None], b=["y", "x", "x", None])
    assert len(set(canonical.row_hashes(rows, ["a", "b"]).tolist())) == 4


def test_the_order_of_columns_does_not_count_and_one_that_is_null_is_as_none() -> None:
    rows = batch(a=[1], b=["x"], c=pa.nulls(1, pa.int64()))
    assert canonical.row_hashes(rows, ["a", "b"])[0] == canonical.row_hashes(rows, ["c", "b", "a"])[0]


def test_losses_are_left_out() -> None:
    assert hashed(float("nan"), lost=[LossKind.NAN]) == [0]
    assert hashed(float("inf"), -float("inf"), lost=[LossKind.INFINITE]) == [0, 0]
    assert hashed("a  ", "  ", lost=[LossKind.PADDING]) == hashed("a", "")
    spellings = "0F8FAD5B-D9CB-469F-A165-70867728950E", "{0f8fad5bd9cb469fa16570867728950e}"
    one, other = hashed(*spellings, lost=[LossKind.UUID])
    assert one == other
    assert len(set(hashed('{"b":1e2,"a":-0.0}', '{"a": 0.0, "b": 100}', lost=[LossKind.JSON]))) == 1
    assert len(set(hashed("not JSON", "not  JSON", lost=[LossKind.JSON]))) == 2
    assert canonical.losses_of("x", frozenset({Loss("x", LossKind.NAN), Loss("y", LossKind.UUID)})) == {LossKind.NAN}


def test_a_slice_is_hashed_as_its_values() -> None:
    for values in (
        pa.array(["a", None, "long enough for two words", "d"]),
        pa.array([b"a", None, b"long enough for two words", b"d"]),
        pa.array([Decimal(1), None, Decimal(3), Decimal(4)], pa.decimal64(5, 0)),
        pa.array([1.0, None, 3.0, 4.0]),
        pa.array([True, None, False, True]),
    ):
        assert list(canonical.column_hashes(values[1:3], "x")) == list(canonical.column_hashes(values, "x")[1:3])


def test_a_type_without_canonical_form_is_refused() -> None:
    with pytest.raises(InvalidPipeline, match="column 'x' of type month_day_nano_interval"):
        canonical.check(pa.schema([("x", pa.month_day_nano_interval())]))


@pytest.mark.slow
@given(st.lists(st.text(max_size=40), max_size=50), st.integers(1, 20))
def test_hashes_do_not_depend_on_the_blocks_they_are_computed_in(texts: list[str], size: int) -> None:
    whole = hashed(*texts, kind=pa.string())
    parts = [hashed(*texts[first : first + size], kind=pa.string()) for first in range(0, len(texts), size)]
    assert whole == [each for part in parts for each in part]


def test_known_values() -> None:
    """What PostgreSQL 18 answers to the functions that the module names."""
    text = np.frombuffer(b"holdfast keeps its place", np.uint8)
    assert int(lookup3.of_texts(np.array([0, 24]), text, 1)[0]) == KNOWN["text"]
    assert int(lookup3.of_integers(np.array([-5]), 1)[0]) == KNOWN["integer"]
    assert int(lookup3.of_floats(np.array([1.5]), 1)[0]) == KNOWN["float"]
    assert int(lookup3.mixed(np.array([77], np.uint64), 4711)[0]) == KNOWN["mixed"]


KNOWN = {
    "text": 12885424998018045260,
    "integer": 17075799309523060685,
    "float": 3331962287256816647,
    "mixed": 6011572536850391048,
}


def test_digests_count_rows_in_and_name_the_buckets_that_differ() -> None:
    rows = batch(id=list(range(1000)))
    hashes, by = canonical.hashes(rows, ["id"], [])
    one, other = Digests.empty(4), Digests.empty(4)
    one.add(canonical.buckets(by, 4), hashes)
    for part in (rows[:300], rows[300:]):
        hashes, by = canonical.hashes(part, ["id"], [])
        other.add(canonical.buckets(by, 4), hashes)
    assert int(one.counts.sum()) == 1000
    assert not len(one.differing(other))
    other.add(canonical.buckets(by[:1], 4), hashes[:1])
    assert list(one.differing(other)) == list(canonical.buckets(by[:1], 4))
