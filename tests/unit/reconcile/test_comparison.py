"""Differences of every kind, planted at random, are found exactly, and nothing else (design/0024)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.ports import HASH_COLUMN, PLACE_COLUMN, Held
from holdfast.reconcile.comparison import ContentComparison, bits_for, surplus
from holdfast.reconcile.report import differences
from holdfast.types import canonical
from holdfast.types.canonical import Digests
from holdfast.values import NO_LOSSES, Losses

SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.string())])
Row = tuple[int, str | None]


class Rows:
    """A content in memory: a view like that of a sink, in some batches."""

    held = Held()
    losses: Losses = NO_LOSSES

    def __init__(self, rows: Collection[Row], key: tuple[str, ...] = (), schema: pa.Schema = SCHEMA) -> None:
        self.key, self.schema = key, schema
        self.fetched = 0
        places = [b"%d" % at for at in range(len(rows))]
        self.table = pa.Table.from_arrays(
            [pa.array([row[0] for row in rows], pa.int64()), pa.array([row[1] for row in rows], pa.string()),
             pa.array(places, pa.binary())],
            schema=SCHEMA.append(pa.field(PLACE_COLUMN, pa.binary())),
        )  # fmt: skip
        hashes = [canonical.row_hashes(batch, schema.names) for batch in self.table.to_batches()]
        found = np.concatenate([np.empty(0, np.uint64), *hashes])
        self.table = self.table.append_column(HASH_COLUMN, pa.array(found))

    def row_count(self) -> int:
        return self.table.num_rows

    def digests(self, bits: int, losses: Losses = NO_LOSSES, by: Collection[str] = ()) -> Digests:
        found = Digests.empty(bits)
        for batch in self.table.to_batches(1 + self.table.num_rows // 5):
            hashes, divided = canonical.hashes(batch, self.schema.names, by, losses)
            found.add(canonical.buckets(divided, bits), hashes)
        return found

    def rows(
        self, bits: int, buckets: Collection[int], losses: Losses = NO_LOSSES, by: Collection[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        for batch in self.table.to_batches(1 + self.table.num_rows // 5):
            _, divided = canonical.hashes(batch, self.schema.names, by, losses)
            chosen = batch.filter(pa.array(np.isin(canonical.buckets(divided, bits), list(buckets))))
            self.fetched += chosen.num_rows
            yield chosen


def pairs(table: pa.Table) -> Counter[Any]:
    return Counter(zip(table["id"].to_pylist(), table["value"].to_pylist(), strict=True))


ROWS = st.lists(st.tuples(st.integers(0, 9), st.none() | st.sampled_from("abc")), max_size=40)


@pytest.mark.slow
@given(expected=ROWS, actual=ROWS, rows_max=st.integers(1, 50), by=st.sampled_from([(), ("id",), ("value", "id")]))
def test_rows_without_a_key_are_compared_as_multisets(
    expected: list[Row], actual: list[Row], rows_max: int, by: tuple[str, ...]
) -> None:
    sink = Rows(actual)
    compared = ContentComparison(Rows(expected), sink, by=by, rows_max=rows_max)
    found = list(compared.differences())
    missing: Counter[Any] = sum((pairs(each.missing) for each in found), Counter())
    extra: Counter[Any] = sum((pairs(each.extra) for each in found), Counter())
    assert missing == Counter(expected) - Counter(actual)
    assert extra == Counter(actual) - Counter(expected)
    assert compared.is_equal == (Counter(expected) == Counter(actual))
    assert compared.row_counts == (len(expected), len(actual))
    assert sink.fetched == sum(each.fetched_count for each in found)
    places = [place for each in found for place in each.extra[PLACE_COLUMN].to_pylist()]
    assert len(places) == len(set(places)) == extra.total(), "each extra row has a place of its own"


@pytest.mark.slow
@given(
    expected=st.dictionaries(st.integers(0, 30), st.none() | st.sampled_from("abc")),
    actual=st.dictionaries(st.integers(0, 30), st.none() | st.sampled_from("abc")),
    rows_max=st.integers(1, 50),
)
def test_rows_with_a_key_differ_by_key(
    expected: dict[int, str | None], actual: dict[int, str | None], rows_max: int
) -> None:
    one, other = Rows(expected.items(), ("id",)), Rows(actual.items(), ("id",))
    compared = ContentComparison(one, other, by=("id",), rows_max=rows_max)
    found = list(compared.differences())
    changed = {key for key in expected.keys() & actual.keys() if expected[key] != actual[key]}
    whole = differences(compared, ("id",))
    same = {(whole.missing["id"][at].as_py(), whole.extra["id"][there].as_py()) for at, there in whole.same}
    assert same == {(key, key) for key in changed}
    examples = sorted(kind for kind, _, _ in whole.examples(2))
    counts = {"changed": len(changed), "extra": len(actual.keys() - expected.keys()),
              "missing": len(expected.keys() - actual.keys())}  # fmt: skip
    assert examples == [kind for kind, count in counts.items() for _ in range(min(2, count))]
    assert {
        key for each in found for key in each.missing["id"].to_pylist()
    } == changed | expected.keys() - actual.keys()
    assert {key for each in found for key in each.extra["id"].to_pylist()} == changed | actual.keys() - expected.keys()


@pytest.mark.slow
def test_of_a_large_table_hardly_more_is_fetched_than_what_differs() -> None:
    rows: list[Row] = [(number, str(number % 97)) for number in range(20_000)]
    spoilt = [*rows[:40], *rows[50:], *rows[7:17]]  # ten deleted, ten doubled
    sink = Rows(spoilt)
    (found,) = ContentComparison(Rows(rows), sink).differences()
    assert pairs(found.missing) == Counter(rows[40:50])
    assert pairs(found.extra) == Counter(rows[7:17])
    assert sink.fetched < 20 * 128


def test_where_the_number_of_rows_was_estimated_too_low_both_sides_are_asked_again() -> None:
    rows: list[Row] = [(number, "x") for number in range(5000)]
    one, other = Rows(rows), Rows(rows[1:])
    one.row_count = lambda: 0  # type: ignore[method-assign]
    compared = ContentComparison(one, other)
    assert [found.bits for found in compared.digests] == [bits_for(5000)] * 2
    (found,) = compared.differences()
    assert pairs(found.missing) == Counter(rows[:1])


def test_equal_contents_are_not_read() -> None:
    rows: list[Row] = [(number, "x") for number in range(100)]
    sink = Rows(rows[::-1])
    assert list(ContentComparison(Rows(rows), sink).differences()) == []
    assert sink.fetched == 0


@pytest.mark.slow
def test_rows_are_fetched_some_at_a_time() -> None:
    rows: list[Row] = [(number, "x") for number in range(2000)]
    found = list(ContentComparison(Rows(rows), Rows([]), rows_max=300).differences())
    assert len(found) > 5
    assert max(each.missing.num_rows for each in found) <= 300
    assert sum(each.missing.num_rows for each in found) == 2000


@pytest.mark.parametrize("other", [Rows([], ("id",)), Rows([], schema=pa.schema([("id", pa.int64())]))])
def test_contents_of_other_columns_or_another_key_are_not_compared(other: Rows) -> None:
    with pytest.raises(hf.errors.InvalidPipeline, match="only rows of the same columns can be compared"):
        ContentComparison(Rows([]), other)


def test_the_number_of_buckets_grows_with_the_rows() -> None:
    assert [bits_for(count) for count in (0, 127, 128, 256, 2**40)] == [0, 0, 1, 2, 24]


@pytest.mark.slow
@given(st.lists(st.integers(0, 5)), st.lists(st.integers(0, 5)))
def test_a_surplus_is_what_one_multiset_has_more(ours: list[int], theirs: list[int]) -> None:
    found = surplus(np.array(ours, np.int64), np.array(theirs, np.int64))
    assert Counter(ours[at] for at in found) == Counter(ours) - Counter(theirs)


def test_where_a_row_of_an_upsert_was_refused_the_one_before_it_stays() -> None:
    compared = ContentComparison(Rows([(1, "new"), (2, "b")], ("id",)), Rows([(1, "old"), (3, "c")], ("id",)))
    refused = pa.Table.from_pylist([{"id": 1, "value": "new"}], SCHEMA)
    found = differences(compared, ("id",), [refused], key=("id",))
    assert found.refused_count == 1
    assert found.missing.column("id").to_pylist() == [2]
    assert found.extra.column("id").to_pylist() == [3]


def test_a_row_that_changed_is_removed_only_where_nothing_is_written_over_it() -> None:
    compared = ContentComparison(Rows([(1, "a")], ("id",)), Rows([(1, "x"), (2, "b")], ("id",)))
    found = differences(compared, ("id",), key=("id",))
    assert found.removed(("id",)).column("id").to_pylist() == [2]
    assert sorted(found.removed(()).column("id").to_pylist()) == [1, 2]
