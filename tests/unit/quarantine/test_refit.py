"""A dead letter is read as its source gives rows now, or refused; never another row (design/0013, section 4)."""

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.connectors.rows import to_ipc
from holdfast.ports import REJECT_COLUMN, REJECT_TYPE
from holdfast.quarantine.refit import refitted
from holdfast.types.from_text import Unfit

OLD = pa.schema([("k", pa.string()), ("v", pa.int64())])
REJECT = {"reason": "no JSON", "raw": "{", "position": "0.json:1"}


def row(schema=OLD, **values):
    return to_ipc(pa.RecordBatch.from_pylist([values or {"k": "a", "v": 13}], schema))


def read(schema, **options):
    return hf.read.files("in", schema=schema, name="given", **options).node.spec


def fitted(given, spec):
    table = pa.ipc.open_stream(refitted(given, spec)).read_all()
    declared = spec.given.schema if hasattr(spec, "given") else spec.schema
    assert table.schema.names[: len(declared)] == declared.names
    return table.to_pylist()


def test_a_row_of_the_same_schema_stays_as_it_is():
    given = row()
    assert refitted(given, read("k STRING, v BIGINT")) is given


def test_columns_go_by_name_new_ones_are_null_and_gone_ones_left_out():
    assert fitted(row(), read("v BIGINT, x STRING, k STRING")) == [{"v": 13, "x": None, "k": "a"}]
    assert fitted(row(), read("v SMALLINT")) == [{"v": 13}]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("k STRING, v TINYINT", "column 'v' was int64 and is int8 now: its value cannot be one of that type"),
        ("k STRING, v BIGINT, x STRING NOT NULL", "column 'x' is NOT NULL now"),
        ("key STRING, value BIGINT", "it has none of the columns 'key', 'value'"),
    ],
)
def test_a_row_that_would_be_another_one_is_refused(schema, said):
    with pytest.raises(Unfit, match=said):
        refitted(row(v=1300, k="a"), read(schema))


def test_a_source_that_rejects_rows_now_gives_them_with_a_place_for_the_reason():
    spec = read("k STRING NOT NULL, v BIGINT", on_bad_row="reject")
    assert fitted(row(), spec) == [{"k": "a", "v": 13, REJECT_COLUMN: None}]
    with pytest.raises(Unfit, match="column 'k' is NOT NULL now"):
        refitted(row(v=13, k=None), spec)


def test_a_rejected_row_is_none_of_a_source_that_rejects_none():
    old = OLD.append(pa.field(REJECT_COLUMN, REJECT_TYPE))
    rejected, good = (row(old, k=None, v=None, **{REJECT_COLUMN: REJECT}), row(old, k="a", v=13))
    assert fitted(rejected, read("x INT NOT NULL", on_bad_row="reject")) == [{"x": None, REJECT_COLUMN: REJECT}]
    assert fitted(good, read("k STRING, v BIGINT")) == [{"k": "a", "v": 13}]
    with pytest.raises(Unfit, match="rejects no rows now"):
        refitted(rejected, read("k STRING, v BIGINT"))


def test_the_mark_of_bound_rows_is_a_column_like_others():
    spec = hf.read.rows([], schema="k STRING, v BIGINT, b BOOLEAN", timestamp="v", bounds="b", name="given").node.spec
    assert fitted(row(), spec) == [{"k": "a", "v": 13, "b": None}]
