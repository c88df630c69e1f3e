"""Tables of state: rows by key, changes, bytes, and the check of what a step returns."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadRow, Corrupt, InternalError, InvalidPipeline
from holdfast.state import joins, tables
from holdfast.state.checks import check_result, first_rows, require_values
from holdfast.state.joins import anti_join, distinct_keys, index_in, key_codes, semi_join
from holdfast.state.step import Change, Result, StateTable
from holdfast.state.tables import apply_change, decode, decode_changes, encode, encode_changes, merged_change

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64()), ("v", pa.float64())])
COUNT = StateTable(SCHEMA, ("k", "n"))
KEYS = st.tuples(st.sampled_from(["a", "b", None, ""]), st.sampled_from([0, 1, None, -(2**63), 2**63 - 1]))


def rows(*values: tuple[object, ...]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=False)) for row in values], schema=SCHEMA)


def keys(values: Sequence[tuple[object, ...]]) -> pa.Table:
    schema = pa.schema([SCHEMA.field("k"), SCHEMA.field("n")])
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in values], schema=schema)


def as_map(table: pa.Table) -> dict[tuple[object, object], object]:
    return {(row["k"], row["n"]): row["v"] for row in table.to_pylist()}


WIDE = pa.schema([("a", pa.int64()), ("k", pa.string()), ("b", pa.int64()), ("c", pa.int64()), ("d", pa.int32())])
LONG = st.sampled_from([0, 1, 7, 2**40, -(2**63), 2**63 - 1, None])
WIDE_KEYS = st.tuples(LONG, st.sampled_from(["x", "y", None]), LONG, LONG, st.sampled_from([0, 1, -(2**31)]))


@pytest.mark.slow
@given(st.lists(WIDE_KEYS, max_size=12), st.lists(WIDE_KEYS, max_size=12), st.booleans())
def test_keys_of_columns_that_do_not_fit_one_number_are_told_apart(ours, theirs, with_nulls):
    ours, theirs = (
        [key for key in given if with_nulls or None not in key] for given in (ours, [*theirs, *ours[: len(ours) // 2]])
    )
    table, wanted = (
        pa.Table.from_arrays(
            [pa.array(column, field.type) for column, field in zip(zip(*given, strict=True), WIDE, strict=True)]
            if given
            else WIDE.empty_table().columns,
            schema=WIDE,
        )
        for given in (ours, theirs)
    )
    assert index_in(table, wanted, WIDE.names).tolist() == [theirs.index(key) if key in theirs else -1 for key in ours]
    seen: dict[object, int] = {}
    assert key_codes(table, WIDE.names).tolist() == [seen.setdefault(key, len(seen)) for key in ours]


@pytest.mark.slow
@given(st.lists(KEYS, max_size=20), st.lists(KEYS, max_size=20))
def test_a_row_is_found_by_all_its_key_columns_and_null_equals_null(ours, theirs):
    found = index_in(keys(ours), keys(theirs), ["k", "n"])
    assert found.tolist() == [theirs.index(key) if key in theirs else -1 for key in ours]


@pytest.mark.slow
@given(st.lists(KEYS, max_size=20), st.lists(KEYS, max_size=20))
def test_semi_and_anti_join_divide_the_rows_and_keep_their_order(ours, theirs):
    table = keys(ours)
    for on, at in ((["k", "n"], slice(None)), (["k"], slice(0, 1)), (["n"], slice(1, 2)), ([], slice(0, 0))):
        wanted = {key[at] for key in theirs}
        inside = semi_join(table, keys(theirs), on)
        outside = anti_join(table, keys(theirs), on)
        assert inside.to_pylist() == [
            row for row, key in zip(table.to_pylist(), ours, strict=True) if key[at] in wanted
        ]
        assert outside.to_pylist() == [
            row for row, key in zip(table.to_pylist(), ours, strict=True) if key[at] not in wanted
        ]


@pytest.mark.slow
@given(st.lists(KEYS, max_size=20))
def test_codes_number_the_keys_in_the_order_of_their_first_appearance(ours):
    order: list[tuple[object, ...]] = list(dict.fromkeys(ours))
    assert key_codes(keys(ours), ["k", "n"]).tolist() == [order.index(key) for key in ours]
    assert distinct_keys(keys(ours), ["k", "n"]).to_pylist() == keys(order).to_pylist()


@pytest.mark.slow
@given(st.lists(st.lists(st.integers(-3, 12), max_size=6), max_size=6), st.lists(st.integers(-3, 12), max_size=4))
def test_rows_are_found_in_those_chunks_alone_that_may_have_them(chunks, wanted):
    texts = [["x"] * len(chunk) for chunk in chunks]
    table = pa.table({"n": pa.chunked_array(chunks, pa.int64()), "k": pa.chunked_array(texts, pa.string())})
    looked_for = pa.table({"n": pa.array(wanted, pa.int64()), "k": pa.array(["x"] * len(wanted), pa.string())})
    flat = [value for chunk in chunks for value in chunk]
    for on in (["n"], ["n", "k"], ["k", "n"]):
        assert joins.members(table, looked_for, on).tolist() == [
            place for place, value in enumerate(flat) if value in wanted
        ]


def test_many_key_columns_do_not_overflow():
    names = [f"c{number}" for number in range(8)]
    table = pa.table({name: list(range(5000)) for name in names})
    shifted = table.set_column(7, "c7", pa.array([*range(1, 5000), 0]))
    assert index_in(table, table, names).tolist() == list(range(5000))
    assert index_in(table, shifted, names).max() == -1
    assert key_codes(table, names).tolist() == list(range(5000))


def test_the_chunks_of_a_table_do_not_matter():
    whole = keys([("a", 1), ("b", None), ("a", 1), (None, 0)])
    cut = pa.concat_tables([whole.slice(0, 1), whole.slice(1, 0), whole.slice(1)])
    assert index_in(cut, cut, ["k", "n"]).tolist() == [0, 1, 0, 3]
    assert key_codes(cut, ["k", "n"]).tolist() == [0, 1, 0, 2]
    assert encode({"t": whole}) == encode({"t": cut})


def test_a_change_deletes_first_and_then_upserts():
    table = rows(("a", 1, 1.0), ("a", 2, 2.0), (None, 1, 3.0))
    change = Change(rows(("a", 1, 9.0), ("c", 1, 4.0)), keys([("a", 2), (None, 1), ("x", 0), ("c", 1)]))
    assert as_map(apply_change(table, COUNT, change)) == {("a", 1): 9.0, ("c", 1): 4.0}


CHANGES = st.tuples(
    st.dictionaries(KEYS, st.floats(allow_nan=False), max_size=6), st.lists(KEYS, max_size=6, unique=True)
).map(lambda parts: Change(rows(*((*key, value) for key, value in parts[0].items())), keys(parts[1])))


@pytest.mark.slow
@given(st.lists(CHANGES, max_size=6))
def test_changes_merged_do_what_they_do_in_turn(changes):
    one_by_one: dict[tuple[object, object], object] = {}
    table = tables.empty(SCHEMA)
    merged = tables.no_change(COUNT)
    for change in changes:
        for row in change.deletes.to_pylist():
            one_by_one.pop((row["k"], row["n"]), None)
        one_by_one.update(as_map(change.upserts))
        table = apply_change(table, COUNT, change)
        merged = merged_change(merged, change, COUNT)
    assert as_map(table) == one_by_one
    assert table.num_rows == len(one_by_one)
    base = rows(("a", 0, 0.5), ("", None, 0.25))
    after = base
    for change in changes:
        after = apply_change(after, COUNT, change)
    assert as_map(apply_change(base, COUNT, merged)) == as_map(after)


def test_tables_and_changes_come_back_from_bytes():
    nested = pa.table({"s": [{"x": 1, "l": ["a"]}, None], "b": [b"\0", None]})
    stored = {"rows": rows(("a", 1, 1.0)), "empty": tables.empty(SCHEMA), "nested": nested}
    assert decode(encode(stored)) == stored
    changes = {"count": Change(rows(("a", 1, 1.0)), keys([("b", None)])), "-odd+": tables.no_change(COUNT)}
    back = decode_changes(encode_changes(changes))
    assert back == changes
    assert decode(encode({})) == {}


def test_decoding_copies_nothing():
    data = pa.py_buffer(encode({"rows": rows(*(("k", number, 0.0) for number in range(1000)))}))
    before = pa.total_allocated_bytes()
    table = decode(data)["rows"]
    assert pa.total_allocated_bytes() == before
    assert table.num_rows == 1000


@pytest.mark.parametrize("damage", [lambda d: b"", lambda d: d[:-1], lambda d: b"X" + d[1:], lambda d: d[:64] + d[80:]])
def test_damaged_bytes_are_corrupt(damage):
    data = encode({"rows": rows(("a", 1, 1.0))})
    with pytest.raises(Corrupt, match="cannot be read"):
        decode(damage(bytes(data)))


class Counting:
    """A step that only declares."""

    key = pa.schema([("k", pa.string())])
    inputs = {"main": SCHEMA}  # noqa: RUF012
    tables = {"count": COUNT}  # noqa: RUF012
    outputs = {"rows": SCHEMA, "late": keys([]).schema}  # noqa: RUF012

    def apply(self, state, arrivals, at):
        raise NotImplementedError


def test_what_a_step_returns_is_completed():
    result = check_result("totals", Counting(), Result(changes={"count": Change(rows(("a", 1, 1.0)), keys([]))}))
    assert result.outputs == {"rows": tables.empty(SCHEMA), "late": keys([])}


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (None, "returned a NoneType"),
        (Result(outputs={"rows": keys([])}), r"declared: k string, n int64, v double; returned: k string, n int64\."),
        (Result(outputs={"rows": [1]}), "is a list"),
        (Result(outputs={"other": rows()}), "the output 'other', which it does not declare"),
        (Result(changes={"other": Change(rows(), keys([]))}), "the state table 'other', which it does not declare"),
        (Result(changes={"count": Change(keys([]), keys([]))}), "the upserts of state table 'count'"),
        (Result(changes={"count": Change(rows(), rows())}), "the deletes of state table 'count'"),
        (Result(bounds=rows()), r"the bounds .*\n.*declared: k string, __all_keys__ bool, __bound__ int64"),
    ],
)
def test_a_wrong_schema_names_the_operator_and_both_schemas(result, says):
    with pytest.raises(InvalidPipeline, match=says) as failure:
        check_result("totals", Counting(), result)
    assert "'totals'" in str(failure.value)
    assert pickle.loads(pickle.dumps(failure.value)).participant == "totals"


def test_nullability_and_metadata_do_not_make_another_schema():
    strict = pa.schema([field.with_nullable(False) for field in SCHEMA], metadata={"by": "somebody"})
    result = check_result("totals", Counting(), Result(outputs={"rows": rows(("a", 1, 1.0)).cast(strict)}))
    assert result.outputs["rows"].schema.equals(SCHEMA, check_metadata=True)


def test_columns_and_members_are_found_by_names_and_what_may_be_null_does_not_matter():
    part = pa.struct([("a", pa.int64()), pa.field("b", pa.int64(), nullable=False)])
    schema = pa.schema([pa.field("k", pa.string(), nullable=False), ("x", pa.int64()), ("part", part)])
    turned = pa.table({"part": [{"b": 2, "a": 1}, None], "x": [3, 4], "k": ["r", "s"]})
    found = tables.fitted(turned, schema)
    assert found.schema == schema
    assert found.to_pylist() == turned.select(schema.names).to_pylist()
    both = tables.united([found, turned])
    assert both.schema.field("k").nullable
    assert both.to_pylist() == [*found.to_pylist(), *found.to_pylist()]
    declared = StateTable(schema, ("k",))
    assert declared.is_like(StateTable(pa.schema([*reversed(schema)]), ("k",)))
    assert not declared.is_like(StateTable(schema, ("x",)))
    changed = apply_change(
        found, declared, Change(turned.slice(0, 1).set_column(1, "x", pa.array([5])), found.select(["k"]).slice(1))
    )
    assert changed.to_pylist() == [{"k": "r", "x": 5, "part": {"a": 1, "b": 2}}]
    with pytest.raises(InternalError, match=r"\['part', 'x', 'k'\].*\['k'\]"):
        tables.fitted(turned, pa.schema([("k", pa.string())]))


def test_a_null_in_a_key_column_shows_the_first_rows():
    with pytest.raises(BadRow, match=r"2 row\(s\) of input 'main' have no value in 'k'.*\n.*k=None, n=1, v=1.0"):
        require_values(rows((None, 1, 1.0), ("a", 1, 1.0), (None, 3, 1.0)), ["n", "k"], "main")
    require_values(rows(("a", 1, None)), ["k", "n"], "main")


def test_rows_in_error_texts_are_short():
    text = first_rows(rows(*(("x" * 500, number, 0.0) for number in range(10))))
    assert len(text) < 300
    assert first_rows(rows()) == "no rows"


def test_a_table_without_a_key_holds_one_row():
    one = StateTable(pa.schema([("n", pa.int64())]), ())
    nothing = pa.schema([]).empty_table()
    table = apply_change(one.schema.empty_table(), one, Change(pa.table({"n": [1]}), nothing))
    table = apply_change(table, one, Change(pa.table({"n": [2]}), nothing))
    assert apply_change(table, one, tables.no_change(one)).to_pylist() == [{"n": 2}]


@pytest.mark.slow
@given(st.lists(KEYS, max_size=20), st.lists(KEYS, max_size=20))
def test_the_mask_says_the_same_as_the_join(ours, theirs):
    mask = joins.member_mask(keys(ours), keys(theirs), ["k", "n"])
    assert mask.to_pylist() == [key in theirs for key in ours]


NUMBERS = st.tuples(
    st.one_of(st.integers(-3, 3), st.sampled_from([-(2**31), 2**31 - 1])),
    st.one_of(st.integers(-2, 2), st.sampled_from([-(2**63), 2**63 - 1, 2**40])),
    st.sampled_from([0, 1, 10**15]),
)


@pytest.mark.slow
@given(st.lists(NUMBERS, max_size=30), st.lists(NUMBERS, max_size=30), st.integers(1, 3))
def test_keys_of_numbers_and_times_are_found_like_any_others(ours, theirs, columns):
    """Such keys are packed into one number where their ranges allow it."""
    kinds = [pa.int32(), pa.int64(), pa.timestamp("us", "UTC")]
    schema = pa.schema(list(zip("abc", kinds, strict=True)))

    def table(keys: list[tuple[int, int, int]]) -> pa.Table:
        arrays = [pa.array([key[place] for key in keys], pa.int64()) for place in range(3)]
        return pa.Table.from_arrays(
            [array.cast(kind) for array, kind in zip(arrays, kinds, strict=True)], schema=schema
        )

    first = {}
    for place, key in enumerate(theirs):
        first.setdefault(key[:columns], place)
    wanted = [first.get(key[:columns], -1) for key in ours]
    on = list("abc")[:columns]
    assert index_in(table(ours), table(theirs), on).tolist() == wanted
    halves = pa.concat_tables([table(ours[:7]), table(ours[7:])])
    assert semi_join(halves, table(theirs), on).num_rows == sum(place >= 0 for place in wanted)


@pytest.mark.slow
@given(st.lists(st.sampled_from([-5, -4, 0, 3, 7, 2**62]), min_size=1, max_size=40))
def test_numbers_close_together_are_coded_like_any_others(values):
    order = list(dict.fromkeys(values))
    assert key_codes(pa.table({"k": values}), ["k"]).tolist() == [order.index(value) for value in values]
    near = [value for value in values if value < 2**62] or [0]
    order = list(dict.fromkeys(near))
    assert key_codes(pa.table({"k": near}), ["k"]).tolist() == [order.index(value) for value in near]
