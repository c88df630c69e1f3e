"""``write.mysql`` where MySQL is otherwise than other systems: engines, indexes, collations, strictness, locks."""

from __future__ import annotations

import datetime as dt
import logging
import math
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pymysql import err

import holdfast as hf
from holdfast.connectors.kit.sql_content import TableReader
from holdfast.connectors.mysql import session as mysql_session
from holdfast.connectors.mysql.lookup_table import mysql as lookup
from holdfast.connectors.mysql.spec import MysqlSpec
from holdfast.connectors.mysql.url import MysqlUrl
from holdfast.errors import BadRow, InDoubt, InvalidPipeline, Unavailable
from holdfast.ports import Carried, EpochRecord, Held, Publication, RunIdentity, Sink, Staged, Task
from holdfast.values import NO_LOSSES
from tests.mysql_servers import executed
from tests.specs import mysql_spec

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])


def publish(sink: Sink, rows: pa.Table, epoch: int = 1) -> None:
    publication = Publication(EpochRecord("p", epoch, 1, {"s": {"log": epoch}}), (Carried(rows),))
    sink.admit(publication)
    sink.publish([publication], Held())


def opened(spec: MysqlSpec, schema: pa.Schema = SCHEMA, generation: int = 1) -> Sink:
    sink = spec.connect("target", "p", schema)
    sink.open(RunIdentity("p", generation))
    return sink


# --- what is said without a server ----------------------------------------------------------------------------------


def test_a_password_is_shown_nowhere() -> None:
    node = hf.write.mysql("mysql://app:s3cret@db.example:3307/shop?ssl_ca=/ca.pem", table="t")
    assert "s3cret" not in repr(node) + repr(node.spec) + str(node.spec.arguments())
    assert node.spec.arguments()["url"] == "mysql://app@db.example:3307/shop"
    with pytest.raises(InvalidPipeline) as caught:
        hf.write.mysql("mysql://app:s3c/ret@db.example/shop", table="t")
    assert "s3c" not in str(caught.value)


def test_a_variable_is_filled_in_and_encoded() -> None:
    url = MysqlUrl("mysql://app:${PASSWORD}@db/shop").expanded({"PASSWORD": "a/b@c"})
    assert url.parameters() == {
        "host": "db", "port": 3306, "user": "app", "password": "a/b@c", "database": "shop"
    }  # fmt: skip


@pytest.mark.parametrize(
    "url", ["postgresql://a@b/c", "mysql://db", "mysql://db/a/b", "mysql://db:0/a", "mysql://db/a?charset=latin1", "x"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidPipeline, match="is no address"):
        hf.write.mysql(url, table="t")


def test_control_rows_are_refused() -> None:
    with pytest.raises(InvalidPipeline, match="control"):
        hf.write.mysql("mysql://db/shop", table="t", control="c")  # type: ignore[arg-type]


def test_a_server_that_is_away_is_unavailable_and_its_password_not_shown() -> None:
    with pytest.raises(Unavailable, match="does not answer") as caught:
        mysql_spec("mysql://app:s3cret@127.0.0.1:1/shop", "t").connect("target", "p", SCHEMA)
    assert "s3cret" not in str(caught.value)


# --- tables that cannot be written ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ddl", "arguments", "message"),
    [
        ("CREATE TABLE t (id BIGINT, word LONGTEXT) ENGINE=MyISAM", {}, "of the engine MyISAM"),
        ("CREATE TABLE t (id BIGINT, word LONGTEXT CHARACTER SET latin1)", {}, "'word' is string"),
        ("CREATE TABLE t (id INT, word LONGTEXT)", {}, "'id' is int64, but int in"),
        ("CREATE TABLE t (id BIGINT, word LONGTEXT, n INT NOT NULL)", {}, "requires a value for 'n'"),
        ("CREATE TABLE t (id BIGINT AS (1), word LONGTEXT)", {}, "computed by the database"),
        ("CREATE TABLE t (id BIGINT, word LONGTEXT)", {"mode": "upsert", "key": ("id",)}, "no unique index"),
        (
            "CREATE TABLE t (id BIGINT PRIMARY KEY, word VARCHAR(9) UNIQUE)",
            {"mode": "upsert", "key": ("id",)},
            "unique index 'word' besides its key",
        ),
    ],
)
def test_a_table_that_cannot_keep_the_promise_is_refused(
    mysql_url: str, ddl: str, arguments: dict[str, Any], message: str
) -> None:
    executed(mysql_url, ddl)
    with pytest.raises(InvalidPipeline, match=message):
        mysql_spec(mysql_url, "t", **arguments).connect("target", "p", SCHEMA)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ddl", "message"),
    [("CREATE UNIQUE INDEX w ON t (word(9))", "unique index 'w'"), ("ALTER TABLE t ENGINE=MyISAM", "engine MyISAM")],
)
def test_a_table_that_is_changed_during_a_run_is_not_written(
    mysql_url: str, monkeypatch: pytest.MonkeyPatch, ddl: str, message: str
) -> None:
    monkeypatch.setattr(mysql_session, "LOCK_TIMEOUT_S", 1)
    sink: Any = opened(mysql_spec(mysql_url, "t", mode="upsert", key=("id",)))
    publish(sink, pa.table({"id": [1], "word": ["one"]}, SCHEMA))
    other = sink._session.beside()
    with sink._session.rolled_back() as connection:
        sink._table.dialect.hold(connection, sink._table)
        with pytest.raises(err.OperationalError, match="Lock wait timeout"):
            other.connection().execute(ddl)
    other.close()
    executed(mysql_url, ddl)
    with pytest.raises(InvalidPipeline, match=message):
        publish(sink, pa.table({"id": [2], "word": ["one"]}, SCHEMA), epoch=2)
    assert executed(mysql_url, "SELECT * FROM t") == [(1, "one")]
    sink.close()


# --- rows -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_values_come_back_as_they_went(mysql_url: str) -> None:
    at = dt.datetime(9999, 12, 31, 23, 59, 59, 999_999)
    values: dict[str, pa.Array] = {
        "a`b?%s": pa.array(["it's \\ 100% \" ? \0 ä \U0001f600", ""]),
        "raw": pa.array([b"\0'\\\xff\n\x1a", None]),
        "big": pa.array([2**64 - 1, 0], pa.uint64()),
        "low": pa.array([-(2**63), None], pa.int64()),
        "float": pa.array([1.7976931348623157e308, -5e-324]),
        "price": pa.array([Decimal("-12345678901234567890123456.0000000001"), Decimal("0.0000000001")]),
        "at": pa.array([at, dt.datetime(1, 1, 1)], pa.timestamp("us")),
        "day": pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
        "is": pa.array([True, None]),
    }
    rows = pa.table(values)
    sink = opened(mysql_spec(mysql_url, "odd `name`"), rows.schema)
    publish(sink, rows)
    found = executed(mysql_url, "SELECT * FROM `odd ``name```")
    wanted = [tuple(row) for row in zip(*(column.to_pylist() for column in values.values()), strict=True)]
    assert [tuple(row) for row in found] == wanted
    sink.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (10**18, pa.timestamp("us")),
        ("x" * (8 * 2**20 + 1), pa.string()),
    ],
)
def test_a_value_that_it_cannot_keep_is_a_bad_row(mysql_url: str, value: Any, kind: pa.DataType) -> None:
    rows = pa.table({"v": pa.array([value], kind)})
    sink = opened(mysql_spec(mysql_url, "t"), rows.schema)
    with pytest.raises(BadRow, match="MySQL cannot keep"):
        publish(sink, rows)
    assert executed(mysql_url, "SELECT count(*) FROM t") == [(0,)]
    sink.close()


@pytest.mark.slow
def test_a_row_that_no_statement_can_hold_is_a_bad_row(mysql_url: str) -> None:
    """The server hangs up on it, which would be tried again forever."""
    rows = pa.table({name: [b"\\" * 8 * 2**20] for name in "abcdefgh"})
    sink = opened(mysql_spec(mysql_url, "t"), rows.schema)
    with pytest.raises(BadRow, match="max_allowed_packet"):
        publish(sink, rows)
    sink.close()


@pytest.mark.slow
def test_what_a_column_would_cut_is_refused_and_nothing_is_written(mysql_url: str) -> None:
    executed(mysql_url, "CREATE TABLE t (id BIGINT, word VARCHAR(3) CHARACTER SET utf8mb4)")
    sink = opened(mysql_spec(mysql_url, "t"))
    for words in (["abc", "abcd"], ["abcd"]):
        with pytest.raises(BadRow, match="Data too long"):
            publish(sink, pa.table({"id": range(len(words)), "word": words}))
    assert executed(mysql_url, "SELECT count(*) FROM t") == [(0,)]
    sink.close()


@pytest.mark.slow
def test_spaces_that_a_column_would_cut_are_refused(mysql_url: str) -> None:
    """To MySQL that is a note, in strict mode too: two keys would be one row."""
    sink = opened(mysql_spec(mysql_url, "t", mode="upsert", key=("word",)))
    with pytest.raises(BadRow, match="truncated for column 'word' at row 2"):
        publish(sink, pa.table({"id": [1, 2], "word": ["k" * 255, "k" * 255 + " "]}, SCHEMA))
    assert executed(mysql_url, "SELECT count(*) FROM t") == [(0,)]
    sink.close()


@pytest.mark.slow
@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_a_key_that_would_become_null_is_refused(mysql_url: str, value: float) -> None:
    executed(mysql_url, "CREATE TABLE t (id DOUBLE UNIQUE, word LONGTEXT CHARACTER SET utf8mb4)")
    rows = pa.table({"id": [value], "word": ["one"]})
    sink = opened(mysql_spec(mysql_url, "t", mode="upsert", key=("id",)), rows.schema)
    with pytest.raises(BadRow, match="key column 'id' holds a number that MySQL has not"):
        publish(sink, rows)
    sink.close()


@pytest.mark.slow
def test_rows_that_a_repair_has_compared_stay_so(mysql_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mysql_session, "LOCK_TIMEOUT_S", 1)
    sink: Any = opened(mysql_spec(mysql_url, "t", mode="upsert", key=("id",)))
    publish(sink, pa.table({"id": [1], "word": ["one"]}, SCHEMA))
    other = sink._session.beside()
    with sink._session.rolled_back() as connection:
        TableReader(connection, sink._table, NO_LOSSES).at([(1,)])
        with pytest.raises(err.OperationalError, match="Lock wait timeout"):
            other.connection().execute("UPDATE t SET word = 'uno'")
    other.close()
    sink.close()


@pytest.mark.slow
def test_keys_of_a_table_of_ours_are_compared_byte_by_byte(mysql_url: str) -> None:
    spec = mysql_spec(mysql_url, "t", mode="upsert", key=("word",), delete="gone")
    schema = SCHEMA.append(pa.field("gone", pa.bool_()))
    sink = opened(spec, schema)
    words = ["a", "A", "a ", "ä", "a", "A", "a ", "b"]
    gone = [False, False, None, False, True, False, False, True]
    publish(sink, pa.table({"id": range(8), "word": words, "gone": gone}, schema))
    assert sorted(executed(mysql_url, "SELECT word, id FROM t")) == [("A", 5), ("a ", 6), ("ä", 3)]
    sink.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["DECIMAL(30,2)", "VARCHAR(99) CHARACTER SET utf8mb4"])
def test_a_decimal_key_is_deleted_without_its_neighbours(mysql_url: str, kind: str) -> None:
    executed(mysql_url, f"CREATE TABLE t (id BIGINT, k {kind}, word LONGTEXT CHARACTER SET utf8mb4, UNIQUE (k, id))")
    keys = [Decimal(f"12345678901234567890.{n:02}") for n in range(20)]
    schema = pa.schema([("id", pa.int64()), ("k", pa.decimal128(30, 2)), ("gone", pa.bool_())])
    sink = opened(mysql_spec(mysql_url, "t", mode="upsert", key=("k", "id"), delete="gone"), schema)
    rows = pa.table({"id": [0] * 20, "k": keys, "gone": [False] * 20}, schema)
    publish(sink, rows)
    gone = pa.table({"id": [0, 1], "k": keys[:2], "gone": [True, True]}, schema)
    publish(sink, gone, epoch=2)
    assert {Decimal(str(k)) for (k,) in executed(mysql_url, "SELECT k FROM t")} == set(keys[1:])
    sink.close()


@pytest.mark.slow
def test_a_large_epoch_is_written_in_several_statements(mysql_url: str) -> None:
    schema = SCHEMA.append(pa.field("gone", pa.bool_()))
    sink = opened(mysql_spec(mysql_url, "t", mode="upsert", key=("id", "word"), delete="gone"), schema)
    rows = pa.table({"id": range(30_000), "word": ["w" * 100] * 30_000, "gone": [False] * 30_000}, schema)
    publish(sink, rows)
    publish(sink, rows.slice(0, 25_000).set_column(2, "gone", pa.array([True] * 25_000)), epoch=2)
    assert executed(mysql_url, "SELECT count(*), min(id) FROM t") == [(5_000, 25_000)]
    sink.close()


# --- sessions ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_connection_that_broke_while_it_was_idle_is_replaced(mysql_url: str) -> None:
    sink: Any = opened(mysql_spec(mysql_url, "t"))
    executed(mysql_url, f"KILL {sink._session.connection().number}")
    publish(sink, pa.table({"id": [1], "word": ["one"]}, SCHEMA))
    assert executed(mysql_url, "SELECT id FROM t") == [(1,)]
    sink.close()


@pytest.mark.parametrize(
    ("error", "is_doubt"),
    [
        (err.OperationalError(1213, "Deadlock found"), False),
        (err.OperationalError(2013, "Lost connection"), True),
        (err.OperationalError(1180, "Got error 5 during COMMIT"), True),
        (err.InternalError("Packet sequence number wrong - got 2 expected 1"), True),
    ],
)
def test_an_answer_to_commit_is_doubted_unless_it_undid_it(error: err.Error, is_doubt: bool) -> None:
    class Answering:
        def execute(self, statement: str) -> None:
            raise error

    session = mysql_session.MysqlSession("sink 'target'", MysqlUrl("mysql://db/shop"), "t", "p", "target")
    with pytest.raises(InDoubt if is_doubt else Unavailable):
        session.commit(Answering())


@pytest.mark.slow
def test_a_rollback_that_failed_leaves_nothing_for_the_next_transaction(mysql_url: str) -> None:
    """START TRANSACTION commits what is open."""
    sink: Any = opened(mysql_spec(mysql_url, "t"))
    session = sink._session
    connection = session.connection()
    execute = connection.execute

    def interrupted(statement: str, *values: Any) -> Any:
        if statement == "ROLLBACK":
            raise err.OperationalError(1317, "Query execution was interrupted")
        return execute(statement, *values)

    connection.execute = interrupted
    half = pa.record_batch({"id": [1], "word": ["half"]}, SCHEMA)
    with pytest.raises(InvalidPipeline), session.transaction() as writing:  # noqa: PT012
        sink._table.write(writing, half, 1)
        execute("nonsense")
    publish(sink, pa.table({"id": [2], "word": ["whole"]}, SCHEMA))
    assert executed(mysql_url, "SELECT id FROM t") == [(2,)]
    sink.close()


@pytest.mark.slow
def test_a_takeover_ends_the_transaction_of_a_frozen_run(
    mysql_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mysql_session, "LOCK_TIMEOUT_S", 1)
    frozen: Any = opened(mysql_spec(mysql_url, "t"))
    connection = frozen._session.connection()
    frozen._session.begin(connection, "write")
    frozen._book.own_row(connection, 1)
    frozen._table.write(connection, pa.record_batch({"id": [1], "word": ["frozen"]}), 1)
    with caplog.at_level(logging.INFO, logger="holdfast.connectors.mysql"):
        opened(mysql_spec(mysql_url, "t"), generation=2).close()
    with pytest.raises(InDoubt):
        frozen._session.commit(connection)
    assert "which still held the ledger row" in caplog.text
    assert executed(mysql_url, "SELECT id FROM t") == []
    frozen.close()


@pytest.mark.slow
def test_a_question_about_a_commit_waits_for_it(mysql_url: str) -> None:
    """The connection of a publish broke: as long as its transaction is open, nobody knows, and nobody guesses."""
    sink: Any = opened(mysql_spec(mysql_url, "t"))
    lost = sink._session.beside()
    connection = lost.connection()
    lost.begin(connection, "write")
    sink._book.own_row(connection, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mysql_session, "LOCK_TIMEOUT_S", 1)
        assert sink.outcome(1).value == "unknown"
    sink._book.move(connection, EpochRecord("p", 1, 1, {"s": {"log": 1}}))
    lost.commit(connection)
    assert sink.outcome(1).value == "published"
    lost.close()
    sink.close()


@pytest.mark.slow
def test_an_epoch_that_is_tried_while_another_is_published_reads_its_own_rows(mysql_url: str) -> None:
    """Two threads on one connection get each other's answers: 500 rows of one epoch were published with another."""
    sink: Any = opened(mysql_spec(mysql_url, "t"))

    def staged(epoch: int) -> Staged:
        writer = sink.writer_factory()(Task("p", 1, epoch, 0, 0))
        for _ in range(8):
            writer.write(pa.record_batch({"id": [epoch] * 500, "word": ["w" * 40] * 500}, SCHEMA))
        return writer.stage()

    def read(epoch: int) -> set[int]:
        part = parts[epoch]
        return {value for _ in range(30) for batch in sink._batches(part) for value in batch.column(0).to_pylist()}

    parts = {epoch: staged(epoch) for epoch in (1, 2)}
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(read, parts)) == [{1}, {2}]
    sink.close()


# --- look-up ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_query_is_a_table_to_look_up_in(mysql_url: str) -> None:
    executed(mysql_url, "CREATE TABLE c (id INT, name VARCHAR(9), at DATETIME(6), p DECIMAL(9,2), d DATE, n BIGINT)")
    executed(mysql_url, "INSERT INTO c VALUES (1, 'Bob', '2026-01-02 03:04:05', 1.50, '2026-01-02', NULL)")
    table = lookup(mysql_url, "SELECT * FROM c")
    assert table.schema().names == ["id", "name", "at", "p", "d", "n"]
    assert table.load(["id", "p", "at", "d"]).to_pylist() == [
        {"id": 1, "p": Decimal("1.50"), "at": dt.datetime(2026, 1, 2, 3, 4, 5), "d": dt.date(2026, 1, 2)}
    ]
    assert "password" not in str(table.described())
    with pytest.raises(InvalidPipeline, match="cannot be loaded"):
        lookup(mysql_url, "DELETE FROM c").schema()
    with pytest.raises(InvalidPipeline, match="gives no column 'nix'"):
        table.load(["nix"])
