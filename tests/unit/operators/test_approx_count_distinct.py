"""approx_count_distinct: within its error of the exact count, and the same however rows are cut (design/0061)."""

import hashlib
import itertools
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import InvalidPipeline
from holdfast.operators.aggregate import hyperloglog
from holdfast.testing import close, drive
from tests.everyday import examples

TEXTS = [-2391221147727564555, 5701715085766258214, 6103743195377721179]
REGISTERS = "84c193a0f6999131"
COUNT = 5164


def sketch(values: Any, precision: int, groups: Any = None, size: int = 1) -> pa.Array:
    groups = np.zeros(len(values), np.int64) if groups is None else groups
    return hyperloglog.sketches_of(pa.array(values), groups, size, precision)


def source(schema: str = "k STRING, t BIGINT, v BIGINT, w STRING") -> hf.Stream:
    return hf.read.rows([], schema=schema, timestamp="t", name="s")


@pytest.mark.parametrize("precision", [4, 9, 12])
def test_the_error_is_the_declared_one_for_few_values_and_many(precision: int) -> None:
    """The root of the mean square over forty sets; it is within 1.6 of its expectation nearly always, and seeded."""
    allowed = 1.04 / math.sqrt(1 << precision)
    for count in ((1 << precision) // 8 + 1, 1 << precision, 3 << precision, 20_000):
        numbers = np.random.default_rng(count).integers(-(2**62), 2**62, 40 * count)
        found = hyperloglog.counts(sketch(numbers, precision, np.arange(40 * count) % 40, 40), precision)
        errors = np.asarray(found) / count - 1
        assert math.sqrt(np.mean(errors**2)) < 1.6 * allowed, count
        assert abs(np.mean(errors)) < 0.6 * allowed, count


@pytest.mark.parametrize("precision", [4, 12])
def test_few_values_are_counted_exactly_and_one_more_has_registers(precision: int) -> None:
    most = (1 << precision) // 8
    for count in (0, 1, most):
        assert hyperloglog.counts(sketch([*map(str, range(count))] * 3, precision), precision).to_pylist() == [count]
    (few,), (many,) = (sketch([*range(count)], precision).to_pylist() for count in (most, most + 1))
    assert (len(few["hashes"]), few["registers"]) == (most, b"")
    assert (many["hashes"], len(many["registers"])) == ([], 1 << precision)


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(
    rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60)), max_size=150),
    ends=st.lists(st.integers(0, 150), max_size=5).map(sorted),
    chance=st.randoms(use_true_random=False),
)
def test_parts_merge_to_the_bytes_of_the_whole_in_any_cut_and_order(rows: Any, ends: Any, chance: Any) -> None:
    whole = sketch([value for _, value in rows], 7, np.array([group for group, _ in rows], np.int64), 3)
    chance.shuffle(rows)
    parts = [rows[start:end] for start, end in itertools.pairwise([0, *ends, len(rows)])]
    sketches = [
        sketch(np.array([value for _, value in part], np.int64), 7, np.array([one for one, _ in part], np.int64), 3)
        for part in parts
    ]
    chance.shuffle(sketches)
    groups = np.tile(np.arange(3), len(sketches))
    assert hyperloglog.merge(pa.concat_arrays(sketches), groups, 3, 7).equals(whole)


def test_a_sketch_is_the_same_in_every_process_and_version() -> None:
    """If this fails, state of earlier versions counts equal values twice."""
    texts, many = sketch(["a", "b", "ü" * 600], 9), sketch([f"value {n}" for n in range(5000)], 9)
    assert texts.to_pylist()[0]["hashes"] == TEXTS
    assert hashlib.sha256(many.to_pylist()[0]["registers"]).hexdigest()[:16] == REGISTERS
    assert hyperloglog.counts(many, 9).to_pylist() == [COUNT]


def test_registers_hold_the_highest_value_that_a_hash_can_give() -> None:
    hashes = np.array([0, 1, -1, 1 << 59, 1 << 52], np.int64)
    places, values = hyperloglog._places(hashes, 4)
    assert places.tolist() == [0, 0, 15, 0, 0]
    assert values.tolist() == [53, 53, 1, 1, 8]
    full = np.full((1, 16), 53, np.uint8)
    assert hyperloglog.estimates(full)[0] > 2**50
    assert hyperloglog.estimates(np.zeros((2, 16), np.uint8)).tolist() == [0.0, 0.0]


def test_equal_values_count_once_and_nulls_do_not() -> None:
    for kind, values, count in (
        ("DOUBLE", [0.0, -0.0, math.nan, -math.nan, None, 1.5], 3),
        ("DECIMAL(10, 2)", [Decimal("1.50"), Decimal("1.5"), None, Decimal("-1.50")], 2),
        ("STRING", ["", "a", "a", None], 2),
        ("BOOLEAN", [True, False, None, True], 2),
    ):
        stream = source(f"t BIGINT, v {kind}") | hf.reduce(n=hf.approx_count_distinct("v"))
        ((row,),) = drive(stream, {"s": [[{"t": 1, "v": value} for value in values]]})
        assert row["n"] == count, kind


def test_conditions_windows_and_changes_go_as_with_every_aggregate() -> None:
    rows = [{"k": "ab"[n % 2], "t": n, "v": n % 37, "w": None if n % 5 == 0 else str(n % 11)} for n in range(400)]
    of: dict[str, Any] = {"n": hf.approx_count_distinct("v"), "exact": hf.distinct_count("v")}
    of |= {"few": hf.approx_count_distinct("w", where="v < 9"), "exact_few": hf.distinct_count("w", where="v < 9")}
    windows = source() | hf.aggregate(by="k", window=hf.sliding(100, 50), **of)
    cut = [rows[at : at + 30] for at in range(0, 400, 30)]
    found = [row for epoch in drive(windows, {"s": [*cut, [close()]]}, buckets=2) for row in epoch]
    assert found
    assert all((row["n"], row["few"]) == (row["exact"], row["exact_few"]) for row in found)
    running = source() | hf.reduce(by="k", **of)
    last = {row["k"]: row for epoch in drive(running, {"s": cut}) for row in epoch}.values()
    assert [(row["n"], row["few"]) for row in last] == [(row["exact"], row["exact_few"]) for row in last]


def test_what_does_not_fit_is_refused_where_it_is_built() -> None:
    text: Any = "1%"
    for call, said in (
        (lambda: hf.approx_count_distinct("v", relative_error=0.0), "is not a relative error"),
        (lambda: hf.approx_count_distinct("v", relative_error=text), "is not a relative error"),
        (lambda: hf.approx_count_distinct(""), "hf.approx_count_distinct was given '' and no column"),
        (lambda: hf.approx_count_distinct("v", where=" "), "hf.approx_count_distinct is no condition"),
    ):
        with pytest.raises(InvalidPipeline, match=said):
            call()
    nested = source("k STRING, t BIGINT, a ARRAY<INT>") | hf.reduce(n=hf.approx_count_distinct("a"))
    with pytest.raises(InvalidPipeline, match="whose values cannot be distinguished"):
        drive(nested, {"s": [[]]})
