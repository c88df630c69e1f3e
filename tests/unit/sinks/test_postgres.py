"""PostgreSQL: types, modes, the fit of columns, privileges, labels, and errors; each against a real server."""

from __future__ import annotations

import datetime as dt
import gc
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Context, Decimal
from random import Random
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import holdfast.connectors.postgres.sink as sink_module
import holdfast.connectors.postgres.staging as staging_module
from holdfast import faults
from holdfast.capabilities import offers
from holdfast.connectors.postgres.copy import CopyColumn, copy_format
from holdfast.connectors.postgres.ledger import PostgresLedger
from holdfast.connectors.postgres.staging import GID_BYTES, Label
from holdfast.errors import BadRow, Diverged, HoldfastError, InDoubt, InvalidPipeline, Unavailable
from holdfast.ports import (
    Carried,
    EpochRecord,
    Expiring,
    Held,
    Outcome,
    Part,
    Publication,
    Rewindable,
    RunIdentity,
    Sink,
    Staged,
    Task,
)
from tests.servers import MortalPostgres
from tests.specs import postgres_spec

pytestmark = pytest.mark.postgres

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])
GONE_SCHEMA = pa.schema([*SCHEMA, ("gone", pa.bool_())])
WAYS = ["carried", "table", "prepared"]


@contextmanager
def opened(
    dsn: str, schema: pa.Schema = SCHEMA, generation: int = 1, table: str = "words", **arguments: Any
) -> Iterator[Sink]:
    sink = postgres_spec(dsn, table, **arguments).connect("words_table", "words", schema)
    try:
        sink.open(RunIdentity("words", generation))
        yield sink
    finally:
        sink.close()


def publish(sink: Sink, epoch: int, rows: pa.Table, *, way: str = "carried") -> None:
    part: Part = Carried(rows)
    if way != "carried":
        writer = sink.writer_factory()(Task("words", 1, epoch, 0, 0))
        try:
            for batch in rows.to_batches(max_chunksize=2):
                writer.write(batch)
            part = writer.stage()
        except BaseException:
            writer.abort()
            raise
    sink.publish([Publication(EpochRecord("words", epoch, 1, {}), (part,))], Held())


def staged(sink: Sink, epoch: int = 1) -> Staged:
    """Stage the row (1, x), as a task of the epoch does."""
    writer = sink.writer_factory()(Task("words", 1, epoch, 0, 0))
    writer.write(pa.RecordBatch.from_pydict({"id": [1], "word": ["x"]}, schema=SCHEMA))
    return writer.stage()


def query(dsn: str, statement: str) -> list[Any]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def stage_of(way: str) -> str:
    return "auto" if way == "carried" else way


# --- types ----------------------------------------------------------------------------------------------------------

TYPES: list[tuple[pa.Array, str, list[Any]]] = [
    (pa.array([True, None, False]), "boolean", [True, None, False]),
    (pa.array([1, None, -128], pa.int8()), "smallint", [1, None, -128]),
    (pa.array([1, None, -(2**31)], pa.int32()), "integer", [1, None, -(2**31)]),
    (pa.array([1, None, -(2**63)]), "bigint", [1, None, -(2**63)]),
    (pa.array([1, None, 255], pa.uint8()), "smallint", [1, None, 255]),
    (pa.array([1, None, 65535], pa.uint16()), "integer", [1, None, 65535]),
    (pa.array([1, None, 2**32 - 1], pa.uint32()), "bigint", [1, None, 2**32 - 1]),
    (pa.array([1, None, 2**64 - 1], pa.uint64()), "numeric(20,0)", [1, None, 2**64 - 1]),
    (pa.array([1.5, None, 0.1], pa.float32()), "real", [1.5, None, 0.1]),
    (pa.array([0.1, None, float("inf"), 1e300]), "double precision", [0.1, None, float("inf"), 1e300]),
    (pa.array(["", None, "ü\n'\"\\", "\\."]), "text", ["", None, "ü\n'\"\\", "\\."]),
    (pa.array(["ü", None], pa.large_string()), "text", ["ü", None]),
    (pa.array(["ü", None], pa.string_view()), "text", ["ü", None]),
    (pa.array(["a", None, "a"]).dictionary_encode(), "text", ["a", None, "a"]),
    (pa.array([b"", None, b"\x00\xff'"]), "bytea", [b"", None, b"\x00\xff'"]),
    (pa.array([b"ab", None], pa.binary(2)), "bytea", [b"ab", None]),
    (
        pa.array([Decimal("1.10"), None, Decimal("-12345678901234567890.12")], pa.decimal128(38, 2)),
        "numeric(38,2)",
        [Decimal("1.10"), None, Decimal("-12345678901234567890.12")],
    ),
    (
        pa.array([dt.date(2024, 2, 29), None, dt.date(1, 1, 1)]),
        "date",
        [dt.date(2024, 2, 29), None, dt.date(1, 1, 1)],
    ),
    (
        pa.array([dt.datetime(2024, 1, 2, 3, 4, 5, 6), None, dt.datetime(1969, 12, 31)], pa.timestamp("us")),
        "timestamp without time zone",
        [dt.datetime(2024, 1, 2, 3, 4, 5, 6), None, dt.datetime(1969, 12, 31)],
    ),
    (
        pa.array([dt.datetime(2024, 7, 2, 3), None], pa.timestamp("ms", "Europe/Berlin")),
        "timestamp with time zone",
        [dt.datetime(2024, 7, 2, 3, tzinfo=dt.UTC), None],
    ),
    (pa.array([dt.time(1, 2, 3, 4), None]), "time without time zone", [dt.time(1, 2, 3, 4), None]),
    (pa.array([dt.timedelta(seconds=1), None]), "bigint", [1_000_000, None]),
    (pa.array([[1, None], None, []]), "jsonb", [[1, None], None, []]),
    (pa.array([{"a": "ü", "b": None}, None]), "jsonb", [{"a": "ü", "b": None}, None]),
    (pa.nulls(2), "text", [None, None]),
]


def typed(values: pa.Array) -> pa.Table:
    return pa.table({"place": pa.array(range(len(values)), pa.int32()), "value": values})


@pytest.mark.parametrize(("values", "declared", "stored"), TYPES, ids=[str(values.type) for values, _, _ in TYPES])
@pytest.mark.parametrize("way", ["carried", "table"])
def test_every_type_is_kept(postgres_plain: str, values: pa.Array, declared: str, stored: list[Any], way: str) -> None:
    rows = typed(values)
    with opened(postgres_plain, rows.schema) as sink:
        publish(sink, 1, rows, way=way)
    found = query(postgres_plain, "SELECT value FROM words ORDER BY place")
    assert [value for (value,) in found] == [
        pytest.approx(value) if type(value) is float else value for value in stored
    ]
    assert query(
        postgres_plain,
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = 'words'::regclass AND attname = 'value'",
    ) == [(declared,)]


def test_not_a_number_stays_one(postgres_plain: str) -> None:
    rows = typed(pa.array([float("nan"), None]))
    with opened(postgres_plain, rows.schema) as sink:
        publish(sink, 1, rows)
    assert query(postgres_plain, "SELECT value::text FROM words ORDER BY place") == [("NaN",), (None,)]


def test_not_a_number_inside_a_struct_is_the_text_that_postgresql_itself_gives_it(postgres_plain: str) -> None:
    rows = typed(pa.array([{"x": float("nan"), "y": float("-inf")}]))
    with opened(postgres_plain, rows.schema) as sink:
        publish(sink, 1, rows)
    back = "(value->>'x')::float8::text, (value->>'y')::float8::text"
    alike = "value->'x' = to_jsonb('NaN'::float8)"
    assert query(postgres_plain, f"SELECT {back}, {alike} FROM words") == [("NaN", "-Infinity", True)]


CSV_TARGETS: list[tuple[str, pa.Array, list[Any]]] = [
    ("numeric", pa.array([1, None, 2**63 - 1]), ["1", None, str(2**63 - 1)]),
    ("uuid", pa.array([str(uuid.UUID(int=5)), None]), [str(uuid.UUID(int=5)), None]),
    ("inet", pa.array(["10.0.0.0/8", None]), ["10.0.0.0/8", None]),
]
BINARY_TARGETS: list[tuple[str, pa.Array, list[Any]]] = [
    ("varchar(3)", pa.array(["abc", None, ""]), ["abc", None, ""]),
    ("char(3)", pa.array(["ab", None]), ["ab ", None]),
    ("mood", pa.array(["sad", None]), ["sad", None]),
    ("short", pa.array(["ab", None]), ["ab", None]),
    ("json", pa.array(['{"a": 1}', None]), ['{"a": 1}', None]),
    ("jsonb", pa.array(['{"a": 1}', None]), ['{"a": 1}', None]),
    ("text", pa.array([[1], None]), ["[1]", None]),
    ("bigint", pa.array([1, None], pa.int16()), ["1", None]),
    ("double precision", pa.array([7, None], pa.int32()), ["7", None]),
    ("real", pa.array([7, None], pa.int16()), ["7", None]),
]


@pytest.mark.parametrize(
    ("target", "values", "stored"),
    CSV_TARGETS + BINARY_TARGETS,
    ids=[target for target, _, _ in CSV_TARGETS + BINARY_TARGETS],
)
@pytest.mark.parametrize("way", WAYS)
def test_existing_columns_of_other_types_that_fit_are_filled(
    postgres_prepared: str, target: str, values: pa.Array, stored: list[Any], way: str
) -> None:
    query(postgres_prepared, "CREATE TYPE mood AS ENUM ('sad', 'glad')")
    query(postgres_prepared, "CREATE DOMAIN short AS text CHECK (length(VALUE) < 3)")
    query(postgres_prepared, f"CREATE TABLE words (place int, value {target}, other int DEFAULT 4 NOT NULL)")
    rows = typed(values)
    with opened(postgres_prepared, rows.schema, stage=stage_of(way)) as sink:
        publish(sink, 1, rows, way=way)
    found = query(postgres_prepared, "SELECT value::text, other FROM words ORDER BY place")
    expected = [value.rstrip() if value is not None and target == "char(3)" else value for value in stored]
    assert found == [(value, 4) for value in expected]


def test_csv_keeps_what_binary_keeps(postgres_plain: str) -> None:
    """One column without a binary form sends the whole table through CSV."""
    columns = [values for values, declared, _ in TYPES if not declared.startswith("numeric")]
    arrays = {f"c{number}": values.slice(0, 2) for number, values in enumerate(columns)}
    binary = pa.table(arrays)
    csv = binary.append_column("forced", pa.array([2**64 - 1, None], pa.uint64()))
    with opened(postgres_plain, binary.schema, table="by_binary") as sink:
        publish(sink, 1, binary)
    with opened(postgres_plain, csv.schema, generation=2, table="by_csv") as sink:
        publish(sink, 2, csv)
    names = ", ".join(binary.column_names)
    key = next(name for name, v in arrays.items() if v.type == pa.int64())
    by_binary = query(postgres_plain, f"SELECT {names} FROM by_binary ORDER BY {key} NULLS LAST")
    by_csv = query(postgres_plain, f"SELECT {names} FROM by_csv ORDER BY {key} NULLS LAST")
    assert by_binary == by_csv


DECIMALS = ["0", "1", "-1", "0.001", "-0.100", "9999", "10000", "99999999", "-100000000", "0.00010001", "123456.789"]


@pytest.mark.parametrize(
    ("precision", "scale"), [(38, 0), (38, 38), (38, 8), (23, 3), (19, 1), (10, 2), (9, 5), (4, 4)]
)
def test_decimals_are_kept_digit_by_digit(postgres_plain: str, precision: int, scale: int) -> None:
    """In binary form; as texts, so that trailing zeros count, too."""
    random = Random(precision * 100 + scale)
    most = 10**precision - 1
    whole = [random.randrange(10**digits) for digits in range(1, precision + 1) for _ in range(3)]
    unscaled = [0, 1, most, most - 1, *whole, *(10**digits for digits in range(precision))]
    numbers = [Decimal(value * sign).scaleb(-scale, Context(prec=60)) for value in unscaled for sign in (1, -1)]
    numbers += [
        number
        for text in DECIMALS
        if (number := Decimal(text)).adjusted() < precision - scale and -number.as_tuple().exponent <= scale
    ]
    values = pa.array([None, *numbers, None], pa.decimal128(precision, scale)).slice(1)
    rows = typed(values)
    assert copy_format([CopyColumn("value", values.type, "numeric")]) == "binary"
    with opened(postgres_plain, rows.schema) as sink:
        publish(sink, 1, rows)
    found = query(postgres_plain, "SELECT value::text FROM words ORDER BY place")
    assert [text for (text,) in found] == [None if value is None else f"{value:f}" for value in values.to_pylist()]


def test_a_single_null_column_is_not_lost_in_csv(postgres_plain: str) -> None:
    rows = pa.table({"price": pa.array([None, 2**64 - 1, None], pa.uint64())})
    with opened(postgres_plain, rows.schema) as sink:
        publish(sink, 1, rows)
    assert query(postgres_plain, "SELECT count(*), count(price) FROM words") == [(3, 1)]


def test_a_large_batch_is_sent_in_pieces(postgres_plain: str) -> None:
    count = 300_000
    rows = pa.table({"id": pa.array(range(count)), "word": pa.array([f"word {n}" for n in range(count)])})
    with opened(postgres_plain) as sink:
        publish(sink, 1, rows.combine_chunks())
    expected = (count, count, sum(len(f"word {n}") for n in range(count)))
    assert query(postgres_plain, "SELECT count(*), count(DISTINCT id), sum(length(word)) FROM words") == [expected]


@pytest.mark.parametrize("way", WAYS)
def test_a_nul_character_names_its_column_and_changes_nothing(postgres_prepared: str, way: str) -> None:
    with opened(postgres_prepared, stage=stage_of(way)) as sink:
        with pytest.raises(BadRow, match="column 'word' holds a text with the character NUL"):
            publish(sink, 1, pa.table({"id": [1, 2], "word": ["fine", "a\0b"]}), way=way)
        publish(sink, 1, pa.table({"id": [1], "word": ["fine"]}), way=way)
    assert query(postgres_prepared, "SELECT word FROM words") == [("fine",)]


# --- modes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["carried", "table"])
def test_the_last_row_of_a_key_wins(postgres_plain: str, way: str) -> None:
    with opened(postgres_plain, mode="upsert", key=("id",)) as sink:
        publish(sink, 1, pa.table({"id": [1, 2, 1, 1], "word": ["a", "b", "x", "c"]}), way=way)
        publish(sink, 2, pa.table({"id": [2, 3], "word": ["d", "e"]}), way=way)
    assert query(postgres_plain, "SELECT id, word FROM words ORDER BY id") == [(1, "c"), (2, "d"), (3, "e")]


@pytest.mark.parametrize("way", ["carried", "table"])
def test_a_delete_row_removes_its_key_and_a_later_row_brings_it_back(postgres_plain: str, way: str) -> None:
    rows = pa.table(
        {
            "id": [1, 2, 3, 1, 2, 2, 9],
            "word": ["a", "b", "c", None, None, "back", None],
            "gone": [False, None, False, True, True, False, True],
        },
        schema=GONE_SCHEMA,
    )
    with opened(postgres_plain, GONE_SCHEMA, mode="upsert", key=("id",), delete="gone") as sink:
        publish(sink, 1, rows, way=way)
        assert query(postgres_plain, "SELECT * FROM words ORDER BY id") == [(2, "back"), (3, "c")]
        publish(sink, 2, pa.table({"id": [3], "word": [None], "gone": [True]}, schema=GONE_SCHEMA), way=way)
    assert query(postgres_plain, "SELECT * FROM words ORDER BY id") == [(2, "back")]


def test_parts_of_an_upsert_are_applied_in_their_order(postgres_plain: str) -> None:
    with opened(postgres_plain, GONE_SCHEMA, mode="upsert", key=("id",), delete="gone") as sink:

        def staged(task: int, word: str | None, gone: bool) -> Part:
            writer = sink.writer_factory()(Task("words", 1, 1, task, 0))
            rows = {"id": [1, 2], "word": [word, word], "gone": [gone, False]}
            writer.write(pa.RecordBatch.from_pydict(rows, schema=GONE_SCHEMA))
            return writer.stage()

        def carried(word: str, gone: bool) -> Part:
            return Carried(pa.table({"id": [1], "word": [word], "gone": [gone]}, schema=GONE_SCHEMA))

        parts = (staged(0, "first", False), carried("second", False), staged(1, "third", True), carried("last", False))
        sink.publish([Publication(EpochRecord("words", 1, 1, {}), parts)], Held())
    assert query(postgres_plain, "SELECT * FROM words ORDER BY id") == [(1, "last"), (2, "third")]


def test_keys_alone_and_quoted_names_can_be_upserted(postgres_plain: str) -> None:
    rows = pa.table({'Say "hi"': [1, 1], "select %s": ["a", "b"]})
    query(postgres_plain, 'CREATE SCHEMA "My.Mart"')
    with opened(postgres_plain, rows.schema, table='"My.Mart"."Wörter"', mode="upsert", key=('Say "hi"',)) as sink:
        publish(sink, 1, rows)
        publish(sink, 2, rows, way="table")
    assert query(postgres_plain, 'SELECT * FROM "My.Mart"."Wörter"') == [(1, "b")]
    keys = rows.select(['Say "hi"'])
    with opened(postgres_plain, keys.schema, generation=2, table="keys", mode="upsert", key=('Say "hi"',)) as sink:
        publish(sink, 1, keys)
    assert query(postgres_plain, "SELECT * FROM keys") == [(1,)]


@pytest.mark.parametrize("way", ["carried", "table"])
def test_a_key_is_equal_by_the_databases_own_rules(postgres_plain: str, way: str) -> None:
    """To PostgreSQL -0.0 is 0.0, and NaN is equal to itself."""
    rows = pa.table({"key": [0.0, float("nan"), -0.0, float("nan")], "place": [1, 2, 3, 4]})
    with opened(postgres_plain, rows.schema, mode="upsert", key=("key",)) as sink:
        publish(sink, 1, rows, way=way)
    assert query(postgres_plain, "SELECT place FROM words ORDER BY place") == [(3,), (4,)]


# --- the fit of columns -----------------------------------------------------------------------------------------------

UPSERT = {"mode": "upsert", "key": ("id",)}


@pytest.mark.parametrize(
    ("ddl", "arguments", "words"),
    [
        ("TABLE words (id bigint)", {"on_new_column": "fail"}, ["column 'word' does not exist"]),
        (
            "TABLE words (id integer, word text)",
            {},
            ["'id' is int64, but integer in table public.words", "TYPE bigint"],
        ),
        ("TABLE words (id bigint, word date)", {}, ["'word' is string, but date"]),
        ("TABLE words (id double precision, word text)", {}, ["'id' is int64, but double precision"]),
        ("TABLE words (id numeric(5), word text)", {}, ["'id' is int64, but numeric(5,0)"]),
        ("TABLE words (id bigint, word text, a int NOT NULL, b int NOT NULL)", {}, ["requires a value for 'a', 'b'"]),
        (
            "TABLE words (id bigint GENERATED ALWAYS AS IDENTITY, word text)",
            {},
            ["'id' of table public.words is computed"],
        ),
        ("TABLE words (id bigint, word text)", UPSERT, ["no unique index on exactly (id)", "CREATE UNIQUE INDEX ON"]),
        ("TABLE words (id bigint, word text, UNIQUE (id, word))", UPSERT, ["no unique index on exactly (id)"]),
        ("TABLE words (id bigint UNIQUE DEFERRABLE, word text)", UPSERT, ["no unique index on exactly (id)"]),
        ("VIEW words AS SELECT 1::bigint AS id, 'x'::text AS word", {}, ["is not a table"]),
        (
            "TABLE words (id bigint, word text); CREATE RULE none AS ON INSERT TO words DO INSTEAD NOTHING",
            {},
            ["table public.words has the rule 'none'", "COPY passes rules by", "DROP RULE"],
        ),
    ],
)
def test_a_table_that_does_not_fit_is_refused_before_the_run(
    postgres_plain: str, ddl: str, arguments: dict[str, Any], words: list[str]
) -> None:
    query(postgres_plain, f"CREATE {ddl}")
    with pytest.raises(InvalidPipeline) as caught:
        postgres_spec(postgres_plain, "words", **arguments).connect("w", "words", SCHEMA)
    for word in words:
        assert word in str(caught.value)
    before = query(postgres_plain, "SELECT count(*) FROM pg_class")
    with pytest.raises(InvalidPipeline) as examined:
        postgres_spec(postgres_plain, "words", **arguments).examine("w", "words", SCHEMA)
    assert str(examined.value) == str(caught.value)
    assert query(postgres_plain, "SELECT count(*) FROM pg_class") == before


@pytest.mark.parametrize(
    ("field", "target"),
    [
        (pa.field("value", pa.timestamp("us")), "timestamptz"),
        (pa.field("value", pa.timestamp("us", "UTC")), "timestamp"),
        (pa.field("value", pa.timestamp("us")), "timestamp(3)"),
        (pa.field("value", pa.decimal128(10, 2)), "numeric(9,2)"),
        (pa.field("value", pa.decimal128(10, 2)), "numeric(12,1)"),
        (pa.field("value", pa.float64()), "real"),
        (pa.field("value", pa.uint64()), "bigint"),
        (pa.field("value", pa.binary()), "text"),
        (pa.field("value", pa.string()), "bytea"),
        (pa.field("value", pa.list_(pa.int64())), "bigint[]"),
        (pa.field("value", pa.bool_()), "integer"),
    ],
    ids=str,
)
def test_a_type_that_would_lose_values_is_refused(postgres_plain: str, field: pa.Field, target: str) -> None:
    query(postgres_plain, f"CREATE TABLE words (value {target})")
    with pytest.raises(InvalidPipeline, match="column 'value' is"):
        postgres_spec(postgres_plain, "words").connect("w", "words", pa.schema([field]))


def test_a_schema_that_does_not_exist_is_named(postgres_plain: str) -> None:
    with pytest.raises(InvalidPipeline, match="no schema 'mart'"):
        postgres_spec(postgres_plain, "mart.words").connect("w", "words", SCHEMA)


def test_a_name_that_postgres_would_cut_is_refused(postgres_plain: str) -> None:
    with pytest.raises(InvalidPipeline, match="too long"):
        postgres_spec(postgres_plain, "w" * 64).connect("w", "words", SCHEMA)


# --- how tasks stage --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ddl", "obstacle"),
    [
        ("CREATE TABLE words (id bigint PRIMARY KEY, word text)", "unique index"),
        ("CREATE TABLE words (id bigint, word text, EXCLUDE USING gist (int8range(id, id) WITH &&))", "unique index"),
    ],
)
def test_a_unique_index_is_staged_in_tables_because_an_orphan_would_hold_its_keys(
    postgres_prepared: str, ddl: str, obstacle: str
) -> None:
    query(postgres_prepared, ddl)
    with opened(postgres_prepared) as sink:
        assert sink.staging.startswith("staging tables")
        assert obstacle in sink.staging
    with pytest.raises(InvalidPipeline, match="not possible"):
        postgres_spec(postgres_prepared, "words", stage="prepared").connect("w", "words", SCHEMA)


def test_epochs_of_a_group_hold_no_locks_while_they_wait_for_each_other(postgres_prepared: str) -> None:
    """Prepared, the first epoch would hold back the index, the index the second epoch, and that one the group."""
    sink = postgres_spec(postgres_prepared, "words").connect("words_table", "words", SCHEMA)
    try:
        sink.open(RunIdentity("words", 1, is_grouped=True))
        assert sink.staging == "staging tables (epochs wait for their group)"
        publications = []
        for epoch in (1, 2):
            publications.append(Publication(EpochRecord("words", epoch, 1, {}), (staged(sink, epoch),)))
            query(postgres_prepared, "SET lock_timeout = '5s'; CREATE UNIQUE INDEX IF NOT EXISTS one ON words (id)")
        with pytest.raises(BadRow, match="refuses a row"):
            sink.publish(publications, Held())
        query(postgres_prepared, "DROP INDEX one")
        sink.publish(publications, Held())
    finally:
        sink.close()
    assert query(postgres_prepared, "SELECT id FROM words") == [(1,), (1,)]


def test_prepared_staging_of_a_group_can_be_asked_for(postgres_prepared: str) -> None:
    sink = postgres_spec(postgres_prepared, "words", stage="prepared").connect("words_table", "words", SCHEMA)
    try:
        sink.open(RunIdentity("words", 1, is_grouped=True))
        assert sink.staging == "prepared transactions"
    finally:
        sink.close()


def test_a_unique_index_made_during_the_run_is_noticed_by_the_next_task(postgres_prepared: str) -> None:
    with opened(postgres_prepared) as sink:
        kinds = []
        for epoch in (1, 2):
            part = staged(sink, epoch)
            kinds += part.reference
            if epoch == 1:
                sink.publish([Publication(EpochRecord("words", 1, 1, {}), (part,))], Held())
                query(postgres_prepared, "CREATE UNIQUE INDEX ON words (id)")
            else:
                sink.sweep(below_epoch=9)
    assert kinds == ["gid", "table"]


def test_a_task_does_not_wait_for_ever_for_a_lock(postgres_prepared: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging_module, "COPY_LOCK_TIMEOUT", "100ms")
    with opened(postgres_prepared, stage="prepared") as sink, psycopg.connect(postgres_prepared) as other:
        other.execute("LOCK TABLE words IN ACCESS EXCLUSIVE MODE")
        writer = sink.writer_factory()(Task("words", 1, 1, 0, 0))
        with pytest.raises(Unavailable, match="lock"):
            writer.write(pa.RecordBatch.from_pydict({"id": [1], "word": ["x"]}, schema=SCHEMA))
        writer.abort()


def test_prepared_staging_needs_a_server_that_allows_it(postgres_plain: str) -> None:
    with pytest.raises(InvalidPipeline, match="not possible") as caught:
        postgres_spec(postgres_plain, "words", stage="prepared").connect("w", "words", SCHEMA)
    assert "max_prepared_transactions = 0" in caught.value.why


def test_a_task_takes_a_staging_table_when_the_servers_slots_are_nearly_used_up(postgres_prepared: str) -> None:
    batch = pa.RecordBatch.from_pydict({"id": [1], "word": ["x"]}, schema=SCHEMA)
    with opened(postgres_prepared) as sink:
        parts = []
        for task in range(60):
            writer = sink.writer_factory()(Task("words", 1, 1, task, 0))
            writer.write(batch)
            parts.append(writer.stage())
        kinds = [next(iter(part.reference)) for part in parts]
        assert kinds.count("gid") == 48
        assert kinds.count("table") == 12
        sink.publish([Publication(EpochRecord("words", 1, 1, {}), tuple(parts))], Held())
    assert query(postgres_prepared, "SELECT count(*) FROM words") == [(60,)]
    assert query(postgres_prepared, "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()") == []


def test_a_label_is_never_longer_than_the_server_takes() -> None:
    task = Task("p" * 60, 10**6, 10**9, 10**5, 10**5)
    label = Label.new("public", "s" * 60, task)
    assert len(label.text.encode()) <= GID_BYTES
    assert Label.parsed(label.text) == label


@pytest.mark.parametrize(
    "text", [None, "", "holdfast", "a:b:c:d:e", "holdfast:x:s:p/1/2/3:n", "holdfast:x:s:p/a/2/3/4:n"]
)
def test_what_is_not_our_label_is_left_alone(text: str | None) -> None:
    assert Label.parsed(text) is None


@pytest.mark.parametrize("stage", ["prepared", "table"])
def test_pipelines_of_one_name_in_two_schemas_do_not_sweep_each_other(postgres_prepared: str, stage: str) -> None:
    query(postgres_prepared, "CREATE SCHEMA trial")
    with opened(postgres_prepared, stage=stage) as ours:
        writer = ours.writer_factory()(Task("words", 1, 1, 0, 0))
        writer.write(pa.RecordBatch.from_pydict({"id": [1], "word": ["x"]}, schema=SCHEMA))
        part = writer.stage()
        with opened(postgres_prepared, table="trial.words", stage=stage, generation=9) as theirs:
            assert theirs.sweep(below_epoch=100) == 0
        ours.publish([Publication(EpochRecord("words", 1, 1, {}), (part,))], Held())
    assert query(postgres_prepared, "SELECT count(*) FROM words") == [(1,)]


# --- errors -----------------------------------------------------------------------------------------------------------


@contextmanager
def role(dsn: str, *grants: str) -> Iterator[str]:
    name = f"clerk_{uuid.uuid4().hex[:8]}"
    query(dsn, f"CREATE ROLE {name} LOGIN PASSWORD 'hunter2'")
    for grant in grants:
        query(dsn, grant.format(role=name))
    try:
        yield make_conninfo(dsn, user=name, password="hunter2")
    finally:
        query(dsn, f"DROP OWNED BY {name}")
        query(dsn, f"DROP ROLE {name}")


@pytest.mark.parametrize(
    ("grants", "arguments", "cure"),
    [
        ([], {}, 'GRANT INSERT ON "public"."words"'),
        (["GRANT INSERT ON words TO {role}"], UPSERT, 'GRANT SELECT, UPDATE ON "public"."words"'),
        (["GRANT INSERT ON words TO {role}"], {}, 'GRANT USAGE, CREATE ON SCHEMA "public"'),
        (["GRANT INSERT ON words TO {role}"], {"table": "other"}, 'GRANT USAGE, CREATE ON SCHEMA "public"'),
    ],
)
def test_a_missing_privilege_is_named_with_its_grant(
    postgres_plain: str, grants: list[str], arguments: dict[str, Any], cure: str
) -> None:
    query(postgres_plain, "CREATE TABLE words (id bigint PRIMARY KEY, word text)")
    with role(postgres_plain, *grants) as dsn:
        with pytest.raises(InvalidPipeline) as caught:
            postgres_spec(dsn, **{"table": "words", **arguments}).connect("w", "words", SCHEMA)
        assert cure in caught.value.do
        assert "hunter2" not in str(caught.value)


def test_a_table_whose_policies_hold_for_the_role_is_refused_before_the_run(postgres_plain: str) -> None:
    """COPY, by which rows get there, is not done under policies."""
    query(postgres_plain, "CREATE TABLE words (id bigint, word text); ALTER TABLE words ENABLE ROW LEVEL SECURITY")
    query(postgres_plain, "CREATE POLICY few ON words WITH CHECK (word <> 'b')")
    grants = ("GRANT ALL ON words TO {role}", "GRANT ALL ON SCHEMA public TO {role}")
    with role(postgres_plain, *grants) as dsn, pytest.raises(InvalidPipeline, match="row-level security holds") as told:
        postgres_spec(dsn, "words").connect("w", "words", SCHEMA)
    assert "BYPASSRLS" in told.value.do
    postgres_spec(postgres_plain, "words").connect("w", "words", SCHEMA).close()  # not for its owner


def test_a_role_with_just_the_granted_privileges_can_run(
    postgres_prepared: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No superuser: the ledger made by somebody else, INSERT on the target, nothing more."""
    query(postgres_prepared, "CREATE TABLE words (id bigint, word text)")
    with opened(postgres_prepared):
        pass
    grants = ["GRANT INSERT ON words TO {role}", "GRANT SELECT, INSERT, UPDATE ON holdfast_ledger TO {role}"]
    with role(postgres_prepared, *grants) as dsn, opened(dsn, generation=2) as sink:
        assert sink.staging == "prepared transactions"
        rows = pa.table({"id": [1], "word": ["x"]})
        publish(sink, 1, rows)
        publish(sink, 2, rows, way="prepared")
    assert query(postgres_prepared, "SELECT count(*) FROM words") == [(2,)]
    (told,) = [each for each in caplog.messages if "A lost checkpoint could not be restored from this sink." in each]
    assert 'GRANT SELECT, INSERT, DELETE ON "public"."holdfast_positions"' in told


def test_a_privilege_taken_away_during_the_run_is_an_invalid_pipeline(postgres_plain: str) -> None:
    query(postgres_plain, "CREATE TABLE words (id bigint, word text)")
    grants = ["GRANT INSERT ON words TO {role}", "GRANT CREATE ON SCHEMA public TO {role}"]
    with role(postgres_plain, *grants) as dsn, opened(dsn) as sink:
        query(postgres_plain, f"REVOKE INSERT ON words FROM {conninfo_to_dict(dsn)['user']}")
        with pytest.raises(InvalidPipeline, match="a privilege is missing") as caught:
            publish(sink, 1, pa.table({"id": [1], "word": ["x"]}))
        assert "permission denied for table words" in caught.value.why


def test_a_database_that_is_down_is_unavailable_and_says_where() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    with pytest.raises(Unavailable) as caught:
        postgres_spec(f"postgresql://ann:hunter2@127.0.0.1:{port}/trips", "words").connect("w", "words", SCHEMA)
    assert f"postgresql://ann@127.0.0.1:{port}/trips does not answer" in caught.value.what
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "change", [{"dbname": "nowhere"}, {"user": "nobody_of_that_name"}], ids=["no-database", "no-role"]
)
def test_a_server_that_refuses_us_is_an_invalid_pipeline(postgres_plain: str, change: dict[str, str]) -> None:
    with pytest.raises(InvalidPipeline, match="refuses the connection"):
        postgres_spec(make_conninfo(postgres_plain, **change), "words").connect("w", "words", SCHEMA)


def test_a_dsn_that_cannot_be_read_is_not_quoted() -> None:
    with pytest.raises(InvalidPipeline, match="cannot be read") as caught:
        postgres_spec("host=db pasword=hunter2", "words").connect("w", "words", SCHEMA)
    cause: BaseException | None = caught.value
    while cause is not None:
        assert "hunter2" not in str(cause)
        cause = cause.__cause__


@pytest.mark.parametrize("way", WAYS)
def test_a_refused_value_names_table_and_column_and_changes_nothing(postgres_prepared: str, way: str) -> None:
    query(postgres_prepared, "CREATE TABLE words (id bigint, word varchar(3))")
    with opened(postgres_prepared, stage=stage_of(way)) as sink:
        with pytest.raises(BadRow) as caught:
            publish(sink, 1, pa.table({"id": [1, 2], "word": ["abc", "abcd"]}), way=way)
        assert "value too long for type character varying(3)" in caught.value.why
        assert "column word" in caught.value.why
        publish(sink, 1, pa.table({"id": [1], "word": ["abc"]}), way=way)
    assert query(postgres_prepared, "SELECT word FROM words") == [("abc",)]


@pytest.mark.parametrize("way", ["carried", "table"])
def test_a_key_that_exists_already_names_constraint_and_value(postgres_plain: str, way: str) -> None:
    query(postgres_plain, "CREATE TABLE words (id bigint CONSTRAINT one_id UNIQUE, word text)")
    with opened(postgres_plain) as sink:
        publish(sink, 1, pa.table({"id": [1], "word": ["a"]}), way=way)
        with pytest.raises(BadRow, match="constraint 'one_id'") as caught:
            publish(sink, 2, pa.table({"id": [1], "word": ["b"]}), way=way)
        assert "Key (id)=(1) already exists" in caught.value.why
    assert query(postgres_plain, "SELECT epoch FROM holdfast_ledger") == [(1,)]


@pytest.mark.parametrize("way", WAYS)
def test_a_null_in_a_required_column_stops_the_task_that_brings_it(postgres_prepared: str, way: str) -> None:
    query(postgres_prepared, "CREATE TABLE words (id bigint, word text NOT NULL)")
    rows = pa.table({"id": [1], "word": [None]}, schema=SCHEMA)
    with opened(postgres_prepared, stage=stage_of(way)) as sink:
        if way == "carried":
            with pytest.raises(BadRow, match="'word'"):
                publish(sink, 1, rows)
            return
        writer = sink.writer_factory()(Task("words", 1, 1, 0, 0))
        writer.write(rows.to_batches()[0])
        with pytest.raises(BadRow, match="'word'"):
            writer.stage()
        writer.abort()


def test_a_time_beyond_64_bits_of_microseconds_is_refused(postgres_plain: str) -> None:
    rows = pa.table({"at": pa.array([2**62], pa.timestamp("s"))})
    with opened(postgres_plain, rows.schema) as sink, pytest.raises(BadRow, match="column 'at'"):
        publish(sink, 1, rows)


def test_a_connection_that_broke_while_idle_is_replaced_without_a_word(postgres_plain: str) -> None:
    with opened(postgres_plain) as sink:
        publish(sink, 1, pa.table({"id": [1], "word": ["a"]}))
        query(
            postgres_plain,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'holdfast words/words_table'",
        )
        publish(sink, 2, pa.table({"id": [2], "word": ["b"]}))
    assert query(postgres_plain, "SELECT count(*) FROM words") == [(2,)]


@pytest.mark.parametrize("way", ["table", "prepared"])
def test_a_task_whose_connection_breaks_is_unavailable_and_leaves_nothing(postgres_prepared: str, way: str) -> None:
    batch = pa.RecordBatch.from_pydict({"id": [1], "word": ["x"]}, schema=SCHEMA)
    with opened(postgres_prepared, stage=way) as sink:
        writer = sink.writer_factory()(Task("words", 1, 1, 0, 0))
        writer.write(batch)
        query(
            postgres_prepared,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'holdfast writer words/words_table'",
        )
        with pytest.raises(Unavailable):
            writer.stage()
        writer.abort()
        assert sink.sweep(below_epoch=9) == 0
        assert query(postgres_prepared, "SELECT count(*) FROM words") == [(0,)]


def test_a_task_waits_for_a_server_that_is_down(monkeypatch: pytest.MonkeyPatch, postgres_plain: str) -> None:
    monkeypatch.setattr("holdfast.connectors.kit.staging.PATIENCE_S", 0.2)
    with opened(postgres_plain) as sink:
        factory: Any = sink.writer_factory()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nowhere = make_conninfo(postgres_plain, port=str(closed.getsockname()[1]))
    lost = type(factory)(type(factory.dsn)(nowhere), factory.table, factory.sink, factory.prefers_prepared)
    writer = lost(Task("words", 1, 1, 0, 0))
    with pytest.raises(Unavailable, match="does not answer"):
        writer.write(pa.RecordBatch.from_pydict({"id": [1], "word": ["x"]}, schema=SCHEMA))
    writer.abort()


def test_a_ledger_that_was_dropped_under_a_run_is_not_silently_made_anew(postgres_plain: str) -> None:
    with opened(postgres_plain) as sink:
        publish(sink, 1, pa.table({"id": [1], "word": ["a"]}))
        query(postgres_plain, "DELETE FROM holdfast_ledger")
        with pytest.raises(Diverged, match="is gone"):
            publish(sink, 2, pa.table({"id": [2], "word": ["b"]}))
        query(postgres_plain, "DROP TABLE holdfast_ledger")
        with pytest.raises(HoldfastError):
            publish(sink, 2, pa.table({"id": [2], "word": ["b"]}))
    assert query(postgres_plain, "SELECT count(*) FROM words") == [(1,)]


def test_prepared_rows_named_by_the_ledger_are_kept_by_sweep(postgres_prepared: str) -> None:
    """in_progress is a decision: only COMMIT PREPARED may end what it names."""
    with opened(postgres_prepared) as sink:
        part = staged(sink)
        decide(sink, part)
        assert sink.sweep(below_epoch=9) == 0
    with opened(postgres_prepared, generation=2):
        assert query(postgres_prepared, "SELECT count(*) FROM words") == [(1,)]


def staged_by(sink: Sink, count: int, epoch: int = 1) -> list[Staged]:
    """Stage a row with several tasks: (0, x), (1, x), ..."""
    parts = []
    for task in range(count):
        writer = sink.writer_factory()(Task("words", 1, epoch, task, 0))
        writer.write(pa.RecordBatch.from_pydict({"id": [task], "word": ["x"]}, schema=SCHEMA))
        parts.append(writer.stage())
    return parts


@pytest.mark.parametrize("gone", [[0], [1], [2], [0, 1, 2]])
def test_a_decision_of_which_nothing_is_visible_is_taken_back_when_somebody_rolled_rows_back(
    postgres_prepared: str, gone: list[int]
) -> None:
    """design/0003, 4: gone is not committed; and what is left of the decision is no epoch."""
    with opened(postgres_prepared, rewindable=True) as sink:
        publish(sink, 1, pa.table({"id": [7], "word": ["before"]}))
        parts = staged_by(sink, 3, epoch=2)
        decide(sink, *parts, epoch=2)
        for number in gone:
            query(postgres_prepared, f"ROLLBACK PREPARED '{parts[number].reference['gid']}'")
    sink = postgres_spec(postgres_prepared, "words", rewindable=True).connect("words_table", "words", SCHEMA)
    held = sink.open(RunIdentity("words", 2))
    assert (held.epoch, held.generation, sink.outcome(2)) == (1, 1, Outcome.ABSENT)
    assert query(postgres_prepared, "SELECT count(*) FROM pg_prepared_xacts") == [(0,)]
    assert query(postgres_prepared, "SELECT max(epoch) FROM holdfast_epochs") == [(1,)]
    again = Carried(pa.table({"id": [0, 1, 2], "word": ["y"] * 3}))
    sink.publish([Publication(EpochRecord("words", 2, 2, {}), (again,))], held)
    sink.close()
    assert query(postgres_prepared, "SELECT id, word FROM words ORDER BY id") == [
        (0, "y"), (1, "y"), (2, "y"), (7, "before")
    ]  # fmt: skip


def test_a_take_back_that_dies_is_finished_by_the_next_generation(
    postgres_prepared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(postgres_prepared) as sink:
        parts = staged_by(sink, 3)
        decide(sink, *parts)
        query(postgres_prepared, f"ROLLBACK PREPARED '{parts[1].reference['gid']}'")

    def die(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(PostgresLedger, "take_back", die)
    with pytest.raises(KeyboardInterrupt), opened(postgres_prepared, generation=2):
        pass
    monkeypatch.undo()
    with opened(postgres_prepared, generation=3) as sink:
        assert sink.outcome(1) is Outcome.ABSENT
    assert query(postgres_prepared, "SELECT count(*) FROM words") == [(0,)]
    assert query(postgres_prepared, "SELECT count(*) FROM pg_prepared_xacts") == [(0,)]


def test_a_run_that_lives_says_that_its_decision_was_rolled_back(postgres_prepared: str) -> None:
    with opened(postgres_prepared) as sink:
        parts = staged_by(sink, 3)

        def roll_back(point: str, epoch: int) -> None:
            if point == "publish-begun":
                faults.install(None)
                for part in parts:
                    query(postgres_prepared, f"ROLLBACK PREPARED '{part.reference['gid']}'")

        faults.install(roll_back)
        try:
            with pytest.raises(HoldfastError):  # in doubt: it is asked, and publishes again, which says it
                sink.publish([Publication(EpochRecord("words", 1, 1, {}), tuple(parts))], Held())
        finally:
            faults.install(None)
        with pytest.raises(Diverged, match="are gone") as caught:
            sink.publish([Publication(EpochRecord("words", 1, 1, {}), tuple(parts))], Held())
        assert caught.value.is_mended_by_start
        assert sink.outcome(1) is Outcome.ABSENT


@pytest.mark.parametrize("visible", [0, 1])
def test_a_decision_that_is_visible_in_part_is_refused_and_says_which_part(
    postgres_prepared: str, visible: int
) -> None:
    with opened(postgres_prepared) as sink:
        parts = staged_by(sink, 3)
        decide(sink, *parts)
        query(postgres_prepared, f"COMMIT PREPARED '{parts[visible].reference['gid']}'")
        query(postgres_prepared, f"ROLLBACK PREPARED '{parts[2].reference['gid']}'")
    for generation in (2, 3):
        with pytest.raises(Diverged, match="visible") as caught, opened(postgres_prepared, generation=generation):
            pass
        assert "ROLLBACK PREPARED was run for words/1/1/2/0 " in caught.value.why
        assert "visible are words/1/1/0/0, words/1/1/1/0." in caught.value.why
        assert not caught.value.is_mended_by_start
    query(postgres_prepared, "INSERT INTO words VALUES (2, 'x')")
    query(postgres_prepared, "UPDATE holdfast_ledger SET in_progress = NULL")
    with opened(postgres_prepared, generation=4) as sink:
        assert sink.outcome(1) is Outcome.PUBLISHED
    assert query(postgres_prepared, "SELECT id FROM words ORDER BY id") == [(0,), (1,), (2,)]


def test_a_decision_with_rows_of_a_staging_table_is_not_taken_back(postgres_prepared: str) -> None:
    """Those became visible with the ledger row."""
    with opened(postgres_prepared) as sink:
        parts = staged_by(sink, 1)
    with opened(postgres_prepared, generation=2, stage="table") as sink:
        table = staged(sink)
        query(postgres_prepared, "DELETE FROM words")
    with opened(postgres_prepared, generation=3) as sink:
        decide(sink, *parts, table)
        query(postgres_prepared, f"ROLLBACK PREPARED '{parts[0].reference['gid']}'")
    with pytest.raises(Diverged, match="visible") as caught, opened(postgres_prepared, generation=4):
        pass
    assert "Rows of staging tables are visible" in caught.value.why


def test_a_decision_of_an_older_version_is_not_taken_back(postgres_prepared: str) -> None:
    """It did not say what the ledger row said before."""
    with opened(postgres_prepared) as sink:
        part = staged(sink)
        decide(sink, part)
        query(postgres_prepared, f"ROLLBACK PREPARED '{part.reference['gid']}'")
    query(postgres_prepared, "UPDATE holdfast_ledger SET in_progress = (in_progress::jsonb - 'before')::text")
    with pytest.raises(Diverged, match="rolled back"), opened(postgres_prepared, generation=2):
        pass


@pytest.mark.parametrize("moment", ["admit", "publish"])
def test_a_staging_table_that_is_dropped_under_a_run_is_not_taken_for_a_change_of_the_target(
    postgres_plain: str, moment: str
) -> None:
    query(postgres_plain, "CREATE TABLE words (id bigint, word text CHECK (word <> 'y'))")
    with opened(postgres_plain) as sink:
        part = staged(sink)
        query(postgres_plain, f"DROP TABLE {part.reference['table']}")
        publication = Publication(EpochRecord("words", 1, 1, {}), (part,))
        with pytest.raises(Diverged, match="are gone") as caught:
            sink.admit(publication) if moment == "admit" else sink.publish([publication], Held())
        assert caught.value.is_mended_by_start


def test_a_staging_table_that_somebody_has_emptied_has_expired(postgres_plain: str) -> None:
    with opened(postgres_plain) as sink:
        part = staged(sink)
        query(postgres_plain, f"TRUNCATE {part.reference['table']}")
        assert offers(sink, Expiring)
        assert sink.expired([part]) == [part.name]


def test_decided_rows_whose_end_the_server_has_forgotten_are_in_doubt_unless_they_are_seen(
    mortal_postgres: MortalPostgres,
) -> None:
    """pg_xact_status says NULL: too old to tell.  That is no "committed"; rows in the table are."""
    dsn, xids = mortal_postgres.dsn, []
    for name, end in (("kept", "COMMIT"), ("lost", "ROLLBACK")):
        sink = postgres_spec(dsn, name).connect(name, "words", SCHEMA)
        sink.open(RunIdentity("words", 1))
        part = staged(sink)
        decide(sink, part)
        xids += query(dsn, "SELECT transaction::text FROM pg_prepared_xacts")[0]
        query(dsn, f"{end} PREPARED '{part.reference['gid']}'")
        sink.close()
    mortal_postgres.forget_transactions()
    assert [query(dsn, f"SELECT pg_xact_status('{xid}'::xid8)") for xid in xids] == [[(None,)], [(None,)]]
    kept, lost = (postgres_spec(dsn, name).connect(name, "words", SCHEMA) for name in ("kept", "lost"))
    kept.open(RunIdentity("words", 2))
    assert kept.outcome(1) is Outcome.PUBLISHED
    with pytest.raises(InDoubt, match="it is unknown whether rows"):
        lost.open(RunIdentity("words", 2))
    kept.close()
    lost.close()


def test_a_ledger_that_was_restored_from_a_dump_does_not_stand_for_rows_left_behind(postgres_prepared: str) -> None:
    """A dump takes the decision along and leaves the prepared transaction: its id is none of the new server's yet."""
    with opened(postgres_prepared) as sink:
        part = staged(sink)
        decide(sink, part)
        query(postgres_prepared, f"ROLLBACK PREPARED '{part.reference['gid']}'")
    query(
        postgres_prepared,
        r"""UPDATE holdfast_ledger SET in_progress = regexp_replace(in_progress, '": "\d+"', '": "1000000000"')""",
    )
    with pytest.raises(Diverged, match="never reached this server"), opened(postgres_prepared, generation=2):
        pass


def test_transaction_ids_of_several_tasks_are_known_though_none_has_ended(postgres_prepared: str) -> None:
    """A driver dies after COMMIT PREPARED, before it says so in the ledger row; nobody else writes to the server."""
    parts = []
    with opened(postgres_prepared) as sink:
        for task in range(3):
            writer = sink.writer_factory()(Task("words", 1, 1, task, 0))
            writer.write(pa.RecordBatch.from_pydict({"id": [task], "word": ["x"]}, schema=SCHEMA))
            parts.append(writer.stage())
        decide(sink, *parts)
    for part in parts:
        query(postgres_prepared, f"COMMIT PREPARED '{part.reference['gid']}'")
    with opened(postgres_prepared, generation=2) as sink:
        assert sink.outcome(1) is Outcome.PUBLISHED
    assert query(postgres_prepared, "SELECT id FROM words ORDER BY id") == [(0,), (1,), (2,)]


def decide(sink: Sink, *parts: Staged, epoch: int = 1) -> None:
    """Publish up to the decision: the ledger row names the prepared transactions, none is committed."""

    def stop(point: str, epoch: int) -> None:
        if point == "publish-begun":
            raise KeyboardInterrupt

    faults.install(stop)
    try:
        with pytest.raises(KeyboardInterrupt):
            sink.publish([Publication(EpochRecord("words", epoch, 1, {}), parts)], Held())
    finally:
        faults.install(None)
    assert sink.outcome(epoch) is Outcome.STAGED


@pytest.mark.parametrize("way", ["prepared", "table"])
def test_a_writer_that_is_aborted_leaves_no_row_and_says_nothing(
    postgres_prepared: str, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(postgres_prepared, stage=way) as sink:
        writer = sink.writer_factory()(Task("words", 1, 1, 0, 0))
        writer.write(pa.RecordBatch.from_pydict({"id": [1], "word": ["x"]}, schema=SCHEMA))
        writer.abort()
        del writer
        gc.collect()
        assert sink.sweep(below_epoch=2) == 0
    assert caplog.messages == []


def test_a_takeover_that_waits_for_a_table_being_created_says_unavailable(
    postgres_plain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run's machine was lost while it created the ledger: the server holds its lock for up to a minute."""
    monkeypatch.setattr(sink_module, "TAKEOVER_LOCK_TIMEOUT", "20ms")
    sink = postgres_spec(postgres_plain, "words").connect("words_table", "words", SCHEMA)
    with psycopg.connect(postgres_plain) as lost:
        lost.execute("SELECT pg_advisory_xact_lock(hashtext('holdfast'))")
        with pytest.raises(Unavailable):
            sink.open(RunIdentity("words", 1))
    assert sink.open(RunIdentity("words", 1)) == Held()
    sink.close()


def test_a_fenced_run_sweeps_nothing(postgres_prepared: str) -> None:
    batch = pa.RecordBatch.from_pydict({"id": [1], "word": ["x"]}, schema=SCHEMA)
    with opened(postgres_prepared) as stale:
        writer = stale.writer_factory()(Task("words", 1, 1, 0, 0))
        writer.write(batch)
        part = writer.stage()
        with opened(postgres_prepared, generation=2) as owner:
            assert stale.sweep(below_epoch=9) == 0
            owner.publish([Publication(EpochRecord("words", 1, 1, {}), (part,))], Held())
    assert query(postgres_prepared, "SELECT count(*) FROM words") == [(1,)]


def test_epochs_before_it_was_not_rewindable_for_a_while_are_no_target_any_more(postgres_plain: str) -> None:
    """The rows of the time between have no epoch: a rewind would leave them, and the next run bring them again."""
    for generation, rewindable in enumerate([True, False, True], start=1):
        with opened(postgres_plain, generation=generation, rewindable=rewindable) as sink:
            rows = pa.table({"id": [generation], "word": ["a"]}, schema=SCHEMA)
            record = EpochRecord("words", generation, generation, {"given": {"log": generation}})
            sink.publish([Publication(record, (Carried(rows),))], Held())
    with opened(postgres_plain, generation=4, rewindable=True) as sink:
        assert offers(sink, Rewindable)
        assert "are between 2 and 3" in sink.withdrawal({"given": {"log": 1}}).obstacle
        assert sink.withdrawal({"given": {"log": 2}}).row_count == 1


def test_what_a_sink_says_before_it_is_opened_is_what_it_says_then(postgres_plain: str) -> None:
    """``rewind --dry-run`` takes nobody over."""
    for generation, rewindable in enumerate([True, False], start=1):
        with opened(postgres_plain, generation=generation, rewindable=rewindable) as sink:
            rows = pa.table({"id": [generation], "word": ["a"]}, schema=SCHEMA)
            record = EpochRecord("words", generation, generation, {"given": {"log": generation}})
            sink.publish([Publication(record, (Carried(rows),))], Held())
    unopened = postgres_spec(postgres_plain, "words", rewindable=True).connect("words_table", "words", SCHEMA)
    assert offers(unopened, Rewindable)
    said = [unopened.withdrawal({"given": {"log": end}}) for end in (1, 2)]
    unopened.close()
    with opened(postgres_plain, generation=3, rewindable=True) as sink:
        assert offers(sink, Rewindable)
        assert [sink.withdrawal({"given": {"log": end}}) for end in (1, 2)] == said
    assert "are between 2 and 2" in said[0].obstacle
    assert said[1].epoch == 2


def test_an_interrupted_rollback_leaves_no_transaction_open(
    postgres_plain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one to use the connection would find it, aborted, for ever."""
    query(postgres_plain, "CREATE TABLE words (id bigint CHECK (id < 9))")
    good, bad = (
        Publication(EpochRecord("words", 1, 1, {}), (Carried(pa.table({"id": [number]})),)) for number in (1, 9)
    )
    execute = psycopg.Connection.execute

    def interrupted(self: Any, statement: Any, *arguments: Any, **options: Any) -> Any:
        if statement == "ROLLBACK":
            raise KeyboardInterrupt
        return execute(self, statement, *arguments, **options)

    with opened(postgres_plain, pa.schema([("id", pa.int64())])) as sink:
        with monkeypatch.context() as patched:
            patched.setattr(psycopg.Connection, "execute", interrupted)
            with pytest.raises(KeyboardInterrupt):
                sink.admit(bad)
        assert sink.admit(good)
