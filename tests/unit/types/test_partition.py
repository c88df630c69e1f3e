"""Partition directories: Spark's names, and every row in exactly one of them."""

from __future__ import annotations

import datetime
from collections import defaultdict
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadRow
from holdfast.types.partition import is_partition_type, partition_name, partition_names, partition_values, split


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("plain", "c=plain"),
        ("a b", "c=a b"),
        ("a/b", "c=a%2Fb"),
        ("100%", "c=100%25"),
        ("a=b:c", "c=a%3Db%3Ac"),
        ("\x01\n\x7f", "c=%01%0A%7F"),
        ("[{]^}", "c=%5B%7B%5D%5E}"),
        ("ü", "c=ü"),
        ("", "c=__HIVE_DEFAULT_PARTITION__"),
        (None, "c=__HIVE_DEFAULT_PARTITION__"),
        (0, "c=0"),
        (-5, "c=-5"),
        (True, "c=true"),
        (False, "c=false"),
        (datetime.date(2026, 1, 2), "c=2026-01-02"),
        (datetime.datetime(2026, 1, 2, 3, 4, 5), "c=2026-01-02 03%3A04%3A05"),
        (datetime.datetime(2026, 1, 2, 3, 4, 5, 120_000), "c=2026-01-02 03%3A04%3A05.12"),
        (Decimal("1.50"), "c=1.50"),
    ],
)
def test_names_are_those_that_spark_writes(value: Any, name: str) -> None:
    assert partition_name("c", value) == name


def test_the_column_name_is_escaped_too() -> None:
    assert partition_name("a/b=c", 1) == "a%2Fb%3Dc=1"


def test_a_name_longer_than_a_file_system_takes_is_a_bad_row_that_names_the_column() -> None:
    assert partition_name("c", "x" * 253)
    with pytest.raises(BadRow, match="'c'"):
        partition_name("c", "x" * 254)
    with pytest.raises(BadRow):
        partition_name("c", "ü" * 127)


@pytest.mark.parametrize("count", [1, 40])
def test_the_text_that_stands_for_null_is_a_bad_row_and_not_read_back_as_null(count: int) -> None:
    values = [f"v{number}" for number in range(count - 1)]
    assert len(partition_names("c", pa.array([*values, "__HIVE_DEFAULT_PARTITION"]))) == count
    with pytest.raises(BadRow, match="partition column 'c': a row cannot go to the directory"):
        partition_names("c", pa.array([*values, "__HIVE_DEFAULT_PARTITION__"]))


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.string(), ["007", "7", "true", "2026-01-02", "a/b=c%", "é", None]),
        (pa.int8(), [-5, 0, None]),
        (pa.bool_(), [True, False, None]),
        (pa.date32(), [datetime.date(1, 1, 1), datetime.date(9999, 12, 31), None]),
        (pa.timestamp("us"), [datetime.datetime(1, 1, 1), datetime.datetime(2026, 1, 2, 3, 4, 5, 120_000), None]),
        (pa.timestamp("us", "UTC"), [datetime.datetime(1, 1, 1, tzinfo=datetime.UTC), None]),
        (pa.decimal128(38, 10), [Decimal("-1.5000000000"), Decimal(10**27), None]),
    ],
)
def test_a_value_comes_back_from_its_name_with_its_type(kind: pa.DataType, values: list[Any]) -> None:
    schema = pa.schema([("c", kind)])
    found = [partition_values(name, schema)["c"] for name in partition_names("c", pa.array(values, kind))]
    assert [each.type for each in found] == [kind] * len(values)
    assert [each.as_py() for each in found] == values


def test_types_without_one_text_per_value_are_no_partition_types() -> None:
    refused = [pa.float64(), pa.binary(), pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.time64("us")]
    assert not any(map(is_partition_type, refused))
    taken = [pa.int8(), pa.string(), pa.bool_(), pa.date32(), pa.timestamp("us", "UTC"), pa.decimal128(9, 2)]
    assert all(map(is_partition_type, taken))


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.none() | st.integers(-3, 3), st.none() | st.sampled_from(["", "a", "b/c", "="])), max_size=40)
)
def test_every_row_is_in_the_directory_of_its_values_in_order(keys: list[tuple[int | None, str | None]]) -> None:
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(range(len(keys)), pa.int64()),
            pa.array([k[0] for k in keys], pa.int32()),
            pa.array([k[1] for k in keys], pa.string()),
        ],
        names=["id", "n", "s"],
    )
    expected: dict[str, list[int]] = defaultdict(list)
    for number, (n, s) in enumerate(keys):
        expected[f"{partition_name('n', n)}/{partition_name('s', s)}"].append(number)
    found: dict[str, list[int]] = defaultdict(list)
    for directory, rows in split(batch, ["n", "s"]):
        assert rows.schema.names == ["id"]
        found[directory] += rows["id"].to_pylist()
    # null and the empty string share a directory, each with its own rows.
    assert {name: sorted(ids) for name, ids in found.items()} == expected


@pytest.mark.parametrize("odd", [None, "", "a/b", "größe", "x" * 252])
def test_many_values_get_the_names_that_each_gets_alone(odd: str | None) -> None:
    texts = [f"v{number}" for number in range(40)] + [odd]
    assert partition_names("c", pa.array(texts)) == [partition_name("c", text) for text in texts]
    assert partition_names("c/d", pa.array(range(-20, 20))) == [partition_name("c/d", n) for n in range(-20, 20)]


@pytest.mark.parametrize("odd", [b"x" * 254, b"\xff"])
def test_of_many_values_one_that_names_no_directory_is_a_bad_row(odd: bytes) -> None:
    values = pa.array([f"v{number}".encode() for number in range(40)] + [odd]).view(pa.string())
    with pytest.raises(BadRow):
        partition_names("c", values)


def test_without_partition_columns_the_batch_passes_as_it_is() -> None:
    batch = pa.RecordBatch.from_pydict({"id": [1, 2]})
    assert split(batch, []) == [("", batch)]
    assert split(batch.slice(0, 0), []) == []
    assert split(batch.slice(0, 0), ["id"]) == []
