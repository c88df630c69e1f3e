"""``lookup``: what is looked up, against what SQL says, and what is refused."""

import datetime as dt
import pickle
import sqlite3
from decimal import Decimal

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import holdfast as hf
from holdfast.operators.lookup import tables
from holdfast.testing import drive
from holdfast.types import partition
from tests.graphs import source

pytestmark = pytest.mark.slow

ORDERS = "order BIGINT, customer STRING"
CUSTOMERS = pa.table({"id": ["ann", "bob", None], "name": ["Ann", "Bob", "Nobody"], "tier": [1, 2, 3]})
ROWS = [{"order": number, "customer": name} for number, name in enumerate(["bob", None, "eve", "ann", "bob"])]


def orders():
    return hf.read.rows([], schema=ORDERS, name="orders")


def looked_up(table=CUSTOMERS, **arguments):
    arguments = {"on": {"customer": "id"}, **arguments}
    return drive(hf.lookup(orders(), table, **arguments), {"orders": [ROWS[:2], ROWS[2:]]})


def flat(epochs):
    return [row for rows in epochs for row in rows]


def test_a_left_look_up_keeps_every_row_and_a_null_key_finds_nothing():
    (one, two) = looked_up(columns=["name"])
    assert [row["name"] for row in one + two] == ["Bob", None, None, "Ann", "Bob"]
    assert [row["order"] for row in one + two] == [0, 1, 2, 3, 4]
    assert list(one[0]) == ["order", "customer", "name"]


@pytest.mark.parametrize(
    ("how", "found"), [("inner", [0, 3, 4]), ("semi", [0, 3, 4]), ("anti", [1, 2]), ("left", [0, 1, 2, 3, 4])]
)
def test_which_rows_stay(how, found):
    rows = flat(looked_up(how=how))
    assert [row["order"] for row in rows] == found
    assert ("tier" in rows[0]) == (how in ("inner", "left"))


@pytest.mark.parametrize("how", ["inner", "left"])
def test_every_match_leaves_where_that_is_asked_for_in_the_order_of_the_table(how):
    twice = pa.concat_tables([CUSTOMERS, pa.table({"id": ["bob"], "name": ["Robert"], "tier": [9]})])
    rows = flat(looked_up(twice, how=how, duplicates="all"))
    bobs = [row["name"] for row in rows if row["customer"] == "bob"]
    assert bobs == ["Bob", "Robert", "Bob", "Robert"]
    assert len(rows) == (5 if how == "inner" else 7)


def test_a_key_that_is_there_twice_is_refused_by_its_value():
    twice = pa.table({"id": ["ann", "ann"], "name": ["a", "b"]})
    with pytest.raises(hf.InvalidPipeline, match="id='ann'") as raised:
        looked_up(twice)
    assert 'duplicates="all"' in raised.value.do
    assert [row["order"] for row in flat(looked_up(twice, how="semi"))] == [3]  # nothing is multiplied


def test_columns_get_other_names():
    rows = flat(looked_up(columns={"customer_name": "name", "key": "id"}, how="inner"))
    assert rows[0] == {"order": 0, "customer": "bob", "customer_name": "Bob", "key": "bob"}


@pytest.mark.parametrize("kind", ["pandas", "file", "directory", "sqlite", "partitions"])
def test_a_table_may_be_a_file_a_frame_or_a_query(kind, tmp_path):
    table = CUSTOMERS.slice(0, 2)
    given = {"pandas": table.to_pandas(), "file": tmp_path / "one.parquet"}.get(kind, str(tmp_path))
    if kind == "sqlite":
        with sqlite3.connect(tmp_path / "shop.db") as connection:
            connection.execute("CREATE TABLE c (id TEXT, name TEXT, tier INTEGER)")
            connection.executemany("INSERT INTO c VALUES (?, ?, ?)", [("ann", "Ann", 1), ("bob", "Bob", 2)])
        connection.close()
        given = hf.lookup_table.sqlite(tmp_path / "shop.db", "SELECT * FROM c")
    elif kind == "partitions":
        (tmp_path / "tier=1").mkdir()
        pq.write_table(table.select(["id", "name"]), tmp_path / "tier=1" / "a.parquet")
        given = hf.lookup_table.parquet(tmp_path, partition_by="tier INT")
    elif kind != "pandas":
        pq.write_table(table.slice(0, 1), tmp_path / "one.parquet")
        pq.write_table(table.slice(1), tmp_path / "two.parquet")
    rows = flat(looked_up(given, how="inner"))
    assert {row["name"] for row in rows} == ({"Ann"} if kind == "file" else {"Ann", "Bob"})
    assert rows[0]["tier"] in (1, 2)


PARTS = pa.table({
    "code": ["007", "07", "7", None, "a/b=%c", "2026-01-02"],
    "day": [dt.date(2026, 1, number) for number in range(1, 6)] + [None],
    "at": pa.array([dt.datetime(2026, 1, 2, 3, 4, 5, number) for number in range(6)], pa.timestamp("us", "UTC")),
    "price": pa.array([Decimal(number) for number in range(6)], pa.decimal128(10, 2)),
    "n": pa.array(range(6), pa.int64()),
})  # fmt: skip


def write_parts(directory, columns):
    for path, rows in partition.split(PARTS.to_batches()[0], columns):
        (directory / path).mkdir(parents=True)
        pq.write_table(pa.Table.from_batches([rows]), directory / path / "part.parquet")


@pytest.mark.parametrize("columns", [["code"], ["code", "day", "at", "price"], ["price", "n"]])
def test_what_is_written_by_partitions_is_the_same_table_in_a_look_up(tmp_path, columns):
    write_parts(tmp_path, columns)
    declared = PARTS.schema.remove(0) if len(columns) > 1 else PARTS.schema
    declared = pa.schema([declared.field(name) for name in columns if name in declared.names])
    found = hf.lookup_table.parquet(tmp_path, partition_by=declared).load(PARTS.schema.names)
    assert found.schema.equals(PARTS.schema)
    assert found.sort_by("n").equals(PARTS)


def test_columns_in_the_names_of_directories_are_texts_unless_declared(tmp_path):
    """Where types were inferred, 007, 07 and 7 were one code."""
    for code in ("007", "07", "7"):
        (tmp_path / f"code={code}").mkdir()
        pq.write_table(pa.table({"n": [1]}), tmp_path / f"code={code}" / "part.parquet")
    table = tables.table_of(tmp_path)
    assert table.load(["code"])["code"].to_pylist() == ["007", "07", "7"]
    assert table.schema().field("code").type == pa.string()


@pytest.mark.parametrize(("declared", "error"), [("x INT", "is in no directory x="), ("code INT", "2026-01-02")])
def test_a_directory_without_a_value_of_a_declared_column_is_said(tmp_path, declared, error):
    write_parts(tmp_path, ["code"])
    with pytest.raises(hf.Corrupt, match="cannot be read") as raised:
        hf.lookup_table.parquet(tmp_path, partition_by=declared).load(["n"])
    assert error in raised.value.why


def test_a_type_that_names_no_directory_is_refused(tmp_path):
    with pytest.raises(hf.InvalidPipeline, match="'x' is double"):
        hf.lookup_table.parquet(tmp_path, partition_by="x DOUBLE")


def test_whole_numbers_of_two_widths_and_several_columns_are_keys():
    stream = hf.read.rows([], schema="a INT, b STRING", name="s")
    table = pa.table({"a": pa.array([1, 1, 2], pa.int64()), "b": ["x", "y", "x"], "c": [10, 20, 30]})
    (rows,) = drive(hf.lookup(stream, table, on=["a", "b"]), {"s": [[{"a": 1, "b": "y"}, {"a": 2, "b": "y"}]]})
    assert [row["c"] for row in rows] == [20, None]


def test_types_are_those_that_spark_has():
    table = pd.DataFrame({"id": pd.Categorical(["ann"]), "at": pd.to_datetime(["2026-01-01"])})
    stream = hf.lookup(orders(), table, on={"customer": "id"}, how="inner")
    (rows, _) = drive(stream, {"orders": [ROWS[3:4], []]})
    assert rows[0]["at"].isoformat() == "2026-01-01T00:00:00"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"on": "nobody"}, "nobody"),
        ({"on": "customer"}, "of the table"),
        ({"on": {"customer": "tier"}}, "is string, and the table's 'tier' is int64"),
        ({"columns": ["nothing"]}, "nothing"),
        ({"columns": {"order": "name"}}, "second column 'order'"),
        ({"columns": ["name", "name"]}, "second column 'name'"),
        ({"how": "right"}, "is not known"),
        ({"duplicates": "maybe"}, "is not known"),
        ({"how": "anti", "columns": ["name"]}, "adds no columns"),
        ({"refresh": "soon"}, "not a number with a unit"),
        ({"on": []}, "does not name columns"),
        ({"on": 7}, "stands for columns"),
        ({"table": 7}, "stands for the table"),
    ],
)
def test_what_cannot_work_is_refused_with_its_cure(arguments, says):
    with pytest.raises(hf.InvalidPipeline, match=says) as raised:
        looked_up(**arguments)
    assert raised.value.do


def test_a_floating_key_is_refused():
    stream = hf.read.rows([], schema="x DOUBLE", name="s")
    with pytest.raises(hf.InvalidPipeline, match="of type double"):
        drive(hf.lookup(stream, pa.table({"x": [1.0], "y": [1]}), on="x"), {"s": [[{"x": 1.0}]]})


def test_what_is_known_while_the_graph_is_built():
    stream = hf.lookup(source(timestamp="time_hour"), pa.table({"origin": ["JFK"], "city": ["NY"]}), on="origin")
    assert stream.columns is not None
    assert stream.columns[-1] == "city"
    assert stream.timestamp == "time_hour"
    with pytest.raises(hf.InvalidPipeline, match="stat"):
        hf.lookup(source(), pa.table({"origin": ["JFK"], "city": ["NY"]}), on="origin", columns=["stat"])
    unknown = hf.lookup(source(), "not-there-yet.parquet", on="origin")
    assert unknown.columns is None
    chosen = hf.lookup(source(), "not-there-yet.parquet", on="origin", columns=["city"]).columns
    assert chosen is not None
    assert chosen[-1] == "city"


def test_secrets_are_in_no_text_of_a_graph():
    table = hf.lookup_table.postgres("postgresql://app:hunter2@db/shop", "SELECT 1 AS origin")
    stream = hf.lookup(source(), table, on="origin", columns=["city"])
    assert "hunter2" not in str(stream.node.arguments()) + repr(stream.node.spec) + repr(stream)
    assert "db/shop" in str(stream.node.arguments())


def test_ids_stay_where_a_row_leaves_once():
    table = pa.table({"customer": ["ann"], "name": ["Ann"]})
    stream = orders() | hf.row_id()
    assert hf.lookup(stream, table, on="customer").shape.ids is not None
    assert hf.lookup(stream, table, on="customer", duplicates="all").shape.ids is None
    assert hf.lookup(stream, table, on="customer", duplicates="all", how="semi").shape.ids is not None


def test_a_look_up_behind_and_before_state():
    timed = hf.read.rows([], schema=ORDERS, timestamp="order", name="orders")
    known = hf.lookup(timed, CUSTOMERS, on={"customer": "id"}, how="inner", columns="tier")
    seen = known | hf.distinct("customer", 100, name="seen")
    stream = hf.lookup(seen, CUSTOMERS, on={"customer": "id"}, columns="name") | hf.filter("tier > 1")
    (rows,) = drive(stream, {"orders": [ROWS]})
    assert rows == [{"order": 0, "customer": "bob", "tier": 2, "name": "Bob"}]


def test_its_function_in_sparks_plan_can_be_pickled():
    from holdfast.plan.lookup_operation import LookUpFunction, look_up_of, pinned_in

    pinned_in("token", "/checkpoint")
    node = hf.lookup(orders(), CUSTOMERS, on={"customer": "id"}).node
    schema = pa.schema([("order", pa.int64()), ("customer", pa.string())])
    function = LookUpFunction(look_up_of(node, schema, "token", lambda schema: schema))
    assert pickle.loads(pickle.dumps(function)) == function


def test_a_parquet_table_has_its_values_whatever_types_its_file_has(tmp_path):
    """A day of 9999 in INT96 was one of 1816; a UUID, a view, or a list of dictionaries no column of Spark's."""
    never = dt.datetime(9999, 12, 31)
    held = {
        "id": pa.array(["ann", "bob"], pa.string_view()),
        "until": pa.array([never, None], pa.timestamp("us")),
        "number": pa.array([bytes(15) + b"\x07", None], pa.uuid()),
        "vector": pa.array([[1, 2], None], pa.list_(pa.int8(), 2)),
        "tags": pa.ListArray.from_arrays([0, 1, 2], pa.array(["x", "y"]).dictionary_encode()),
    }
    pq.write_table(pa.table(held), tmp_path / "customers.parquet", use_deprecated_int96_timestamps=True)
    (ann,) = [row for row in flat(looked_up(str(tmp_path / "customers.parquet"))) if row["customer"] == "ann"]
    assert ann["until"] == never
    assert ann["number"] == "00000000-0000-0000-0000-000000000007"
    assert (ann["vector"], ann["tags"]) == ([1, 2], ["x"])


def test_a_time_of_int96_beyond_the_microseconds_is_refused_and_not_another_one(tmp_path):
    far = pa.array([2**64 // 1_000_000 + 1_700_000_000], pa.timestamp("s"))
    pq.write_table(pa.table({"at": far, "n": [1]}), tmp_path / "far.parquet", use_deprecated_int96_timestamps=True)
    table = tables.table_of(tmp_path)
    with pytest.raises(hf.Corrupt, match="cannot be read") as raised:
        table.load(["at"])
    assert "'at'" in raised.value.why
    assert table.load(["n"]).to_pylist() == [{"n": 1}]


def test_a_damaged_parquet_table_is_corrupt_and_one_that_is_not_there_is_unavailable(tmp_path):
    path = tmp_path / "customers.parquet"
    pq.write_table(CUSTOMERS, path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(hf.Corrupt, match="cannot be read"):
        looked_up(str(path), columns=["name"])
    path.unlink()
    with pytest.raises(hf.Unavailable, match="cannot be read"):
        looked_up(str(path), columns=["name"])
    table = pa.Table.from_arrays([CUSTOMERS["id"], CUSTOMERS["name"], CUSTOMERS["name"]], ["id", "name", "name"])
    pq.write_table(table, path)
    with pytest.raises(hf.Corrupt, match="duplicate field names"):
        looked_up(str(path), columns=["name"])
