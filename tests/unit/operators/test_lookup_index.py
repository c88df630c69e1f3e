"""Which rows of a table have the keys of other rows, against a loop over all pairs."""

import datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.operators.lookup.spec import Index
from tests.everyday import examples

KINDS = {
    pa.int64(): st.integers(-3, 3) | st.sampled_from([2**63 - 1, -(2**63)]),
    pa.int8(): st.integers(-3, 3),
    pa.int32(): st.integers(5, 12) | st.sampled_from([2**31 - 1]),  # a range of which some are missing; or far from it
    pa.string(): st.text("ab", max_size=2),
    pa.binary(): st.binary(max_size=1),
    pa.date32(): st.dates(datetime.date(2020, 1, 1), datetime.date(2020, 1, 4)),
    pa.timestamp("us", "UTC"): st.datetimes(datetime.datetime(2020, 1, 1), datetime.datetime(2020, 1, 1, 0, 0, 0, 3)),
    pa.bool_(): st.booleans(),
    pa.decimal128(5, 1): st.integers(0, 3).map(lambda number: Decimal(number).scaleb(-1)),
}


def brute_force(table, keys):
    return [
        (row, found)
        for row, wanted in enumerate(keys)
        for found, has in enumerate(table)
        if None not in wanted and wanted == has
    ]


@st.composite
def columns(draw):
    kinds = draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=3))
    rows = [
        draw(st.lists(st.tuples(*[st.none() | KINDS[kind] for kind in kinds]), max_size=12)) for _ in ("table", "keys")
    ]
    return kinds, *rows


def arrays(kinds, rows):
    return [pa.array([row[at] for row in rows], kind) for at, kind in enumerate(kinds)]


@pytest.mark.slow
@given(columns())
@settings(max_examples=examples(150), deadline=None)
def test_every_pair_of_equal_keys_is_found_and_a_null_finds_nothing(given_columns):
    kinds, table, keys = given_columns
    index = Index([pa.chunked_array([array.slice(0, 2), array.slice(2)]) for array in arrays(kinds, table)])
    rows, found = index.pairs(arrays(kinds, keys))
    assert list(zip(rows.tolist(), found.tolist(), strict=True)) == brute_force(table, keys)
    whole = [row for row in table if None not in row]
    again = {at for at, row in enumerate(table) if row in whole and row in table[:at]}
    assert set(index.repeated().tolist()) == again


@pytest.mark.parametrize("width", [1, 2])
def test_keys_of_one_number_are_told_apart(monkeypatch, width):
    """Hashes may agree; what agrees is compared."""
    monkeypatch.setattr("holdfast.operators.lookup.spec.canonical.column_hashes", lambda column, name: _zeros(column))
    names = pa.array(["a", "b", "a", None])
    index = Index([pa.chunked_array([names])] * width)
    rows, found = index.pairs([pa.array(["b", "a", "c"])] * width)
    assert (rows.tolist(), found.tolist()) == ([0, 1, 1], [1, 0, 2])
    assert index.repeated().tolist() == [2]


def _zeros(column):
    return np.zeros(len(column), np.uint64)
