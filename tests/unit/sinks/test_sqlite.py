"""SQLite: types, modes, the fit of columns, and errors."""

from __future__ import annotations

import datetime as dt
import errno
import math
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast.connectors.sqlite.file as module
from holdfast.capabilities import offers
from holdfast.connectors.sqlite.spec import sqlite
from holdfast.errors import BadRow, Corrupt, Diverged, HoldfastError, InvalidPipeline, Unavailable
from holdfast.graph.nodes import SinkNode
from holdfast.ports import Carried, EpochRecord, Held, Publication, Rewindable, RunIdentity, Sink, Staged, Task
from tests.specs import sqlite_spec

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "words.db")


@contextmanager
def opened(path: str, schema: pa.Schema = SCHEMA, generation: int = 1, **arguments: Any) -> Iterator[Sink]:
    sink = sqlite_spec(path, "words", **arguments).connect("words_table", "words", schema)
    try:
        sink.open(RunIdentity("words", generation))
        yield sink
    finally:
        sink.close()


def publish(sink: Sink, epoch: int, rows: pa.Table, *, staged: bool = False) -> None:
    part: Staged | Carried = Carried(rows)
    if staged:
        writer = sink.writer_factory()(Task("words", 1, epoch, 0, 0))
        for batch in rows.to_batches(max_chunksize=2):
            writer.write(batch)
        part = writer.stage()
    sink.publish([Publication(EpochRecord("words", epoch, 1, {}), (part,))], Held())


def query(path: str, statement: str) -> list[Any]:
    connection = sqlite3.connect(path)
    try:
        with connection:
            return connection.execute(statement).fetchall()
    finally:
        connection.close()


def test_the_user_function_makes_a_sink_node(path: str) -> None:
    node = sqlite(path, table="words", mode="upsert", key=["id"], name="words_table")
    assert isinstance(node, SinkNode)
    assert (node.kind, node.name) == ("sqlite", "words_table")
    assert node.arguments() == {"path": path, "table": "words", "mode": "upsert", "key": ["id"], "delete": None}
    assert sqlite(path, table="words", mode="upsert", key="id", name="one").arguments()["key"] == ["id"]


@pytest.mark.parametrize(
    ("path", "table"), [(":memory:", "words"), ("", "words"), ("a.db", "holdfast_ledger"), ("a.db", "")]
)
def test_a_place_that_cannot_be_written_is_refused_while_building(path: str, table: str) -> None:
    with pytest.raises(InvalidPipeline):
        sqlite_spec(path, table)


def test_a_negative_zero_loses_its_sign_as_the_page_says() -> None:
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE TABLE words (value REAL)")
        database.execute("INSERT INTO words VALUES (?)", (-0.0,))
        ((value,),) = database.execute("SELECT value FROM words").fetchall()
    assert math.copysign(1, value) == 1


TYPES: list[tuple[pa.Array, str, list[Any]]] = [
    (pa.array([True, None, False]), "BOOLEAN", [1, None, 0]),
    (pa.array([1, None, -(2**63)]), "INTEGER", [1, None, -(2**63)]),
    (pa.array([1, None, 255], pa.uint8()), "INTEGER", [1, None, 255]),
    (pa.array([1, None, 2**63 - 1], pa.uint64()), "INTEGER", [1, None, 2**63 - 1]),
    (pa.array([1.5, None, float("inf")]), "REAL", [1.5, None, float("inf")]),
    (pa.array([float("nan"), None, -0.0]), "REAL", [None, None, -0.0]),  # SQLite has no NaN
    (pa.array(["", None, "ü\x00\n'\""]), "TEXT", ["", None, "ü\x00\n'\""]),
    (pa.array(["a", None, "a"]).dictionary_encode(), "TEXT", ["a", None, "a"]),
    (pa.array([b"", None, b"\x00\xff"]), "BLOB", [b"", None, b"\x00\xff"]),
    (
        pa.array([Decimal("1.10"), None, Decimal("-12345678901234567890.12")], pa.decimal128(38, 2)),
        "TEXT",
        ["1.10", None, "-12345678901234567890.12"],
    ),
    (pa.array([dt.date(2024, 2, 29), None, dt.date(1, 1, 1)]), "TEXT", ["2024-02-29", None, "0001-01-01"]),
    (
        pa.array([dt.datetime(2024, 1, 2, 3, 4, 5, 6), None, dt.datetime(1969, 12, 31)], pa.timestamp("us")),
        "TEXT",
        ["2024-01-02 03:04:05.000006", None, "1969-12-31 00:00:00.000000"],
    ),
    (
        pa.array([dt.datetime(2024, 1, 2, 3), None], pa.timestamp("ms", "Europe/Berlin")),
        "TEXT",
        ["2024-01-02 03:00:00.000000Z", None],
    ),
    (pa.array([1, -1], pa.timestamp("ns")), "TEXT", ["1970-01-01 00:00:00.000000", "1970-01-01 00:00:00.000000"]),
    (pa.array([dt.time(1, 2, 3, 4), None]), "TEXT", ["01:02:03.000004", None]),
    (pa.array([dt.timedelta(seconds=1), None]), "INTEGER", [1_000_000, None]),
    (pa.array([[1, None], None, []]), "TEXT", ["[1, null]", None, "[]"]),
    (pa.nulls(2), "TEXT", [None, None]),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "declared", "stored"), TYPES, ids=lambda value: str(getattr(value, "type", ""))[:30]
)
@pytest.mark.parametrize("staged", [False, True], ids=["carried", "staged"])
def test_every_type_is_kept(path: str, values: pa.Array, declared: str, stored: list[Any], staged: bool) -> None:
    rows = pa.table({"value": values})
    with opened(path, rows.schema) as sink:
        publish(sink, 1, rows, staged=staged)
    assert query(path, "PRAGMA table_info(words)")[0][2] == declared
    assert [value for (value,) in query(path, "SELECT value FROM words ORDER BY rowid")] == stored


def test_names_with_quotes_spaces_and_capitals_are_kept(path: str) -> None:
    rows = pa.table({'Say "hi"': [1], "select": [2], "Ü x": [3]})
    with opened(path, rows.schema, mode="upsert", key=('Say "hi"',)) as sink:
        publish(sink, 1, rows)
        publish(sink, 2, rows)
    assert query(path, 'SELECT "Say ""hi""", "select", "Ü x" FROM words') == [(1, 2, 3)]


def test_two_columns_that_differ_only_in_capitals_are_refused(path: str) -> None:
    with pytest.raises(InvalidPipeline, match="differ only in case"):
        sqlite_spec(path, "words").connect("w", "words", pa.schema([("a", pa.int64()), ("A", pa.int64())]))


@pytest.mark.parametrize(
    "values",
    [
        pa.array([0, 10**18], pa.int64()).cast(pa.timestamp("us")),
        pa.array([0, 2**62], pa.int64()).cast(pa.timestamp("us", "UTC")),
        pa.array([0, -(2**31)], pa.int32()).cast(pa.date32()),
    ],
)
def test_a_time_that_has_no_text_is_refused(path: str, values: pa.Array) -> None:
    rows = pa.table({"at": values})
    with opened(path, rows.schema) as sink, pytest.raises(BadRow, match="'at'"):
        publish(sink, 1, rows)


def test_a_number_beyond_64_signed_bits_is_refused(path: str) -> None:
    rows = pa.table({"id": pa.array([2**63], pa.uint64())})
    with opened(path, rows.schema) as sink, pytest.raises(BadRow, match="'id' is too large"):
        publish(sink, 1, rows)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("staged", [False, True], ids=["carried", "staged"])
def test_a_text_that_is_not_utf8_is_a_bad_row_and_changes_nothing(path: str, staged: bool, nested: bool) -> None:
    """A Parquet file may hold one: Arrow does not look."""
    words = pa.array([b"fine", b"caf\xe9"]).view(pa.string())
    column = pa.StructArray.from_arrays([words], ["word"]) if nested else words
    rows = pa.table({"id": [1, 2], "word": column})
    with opened(path, rows.schema) as sink, pytest.raises(BadRow, match="column 'word' is not UTF-8") as error:
        publish(sink, 1, rows, staged=staged)
    assert "caf\\xe9" in error.value.why
    assert query(path, "SELECT * FROM words") == []


@pytest.mark.parametrize("staged", [False, True], ids=["carried", "staged"])
def test_the_last_row_of_a_key_wins(path: str, staged: bool) -> None:
    with opened(path, mode="upsert", key=("id",)) as sink:
        publish(sink, 1, pa.table({"id": [1, 2, 1], "word": ["a", "b", "c"]}), staged=staged)
        publish(sink, 2, pa.table({"id": [2, 3], "word": ["d", "e"]}), staged=staged)
    assert query(path, "SELECT id, word FROM words ORDER BY id") == [(1, "c"), (2, "d"), (3, "e")]


@pytest.mark.parametrize("staged", [False, True], ids=["carried", "staged"])
def test_a_delete_row_removes_its_key_and_a_later_row_brings_it_back(path: str, staged: bool) -> None:
    schema = pa.schema([*SCHEMA, ("gone", pa.bool_())])
    with opened(path, schema, mode="upsert", key=("id",), delete="gone") as sink:
        publish(
            sink,
            1,
            pa.table(
                {
                    "id": [1, 2, 3, 1, 2, 2, 9],
                    "word": ["a", "b", "c", None, None, "back", None],
                    "gone": [False, None, False, True, True, False, True],
                },
                schema=schema,
            ),
            staged=staged,
        )
    assert query(path, "SELECT id, word FROM words ORDER BY id") == [(2, "back"), (3, "c")]
    assert [row[1] for row in query(path, "PRAGMA table_info(words)")] == ["id", "word"]


def test_a_key_that_would_become_null_is_refused(path: str) -> None:
    """A unique index takes any number of nulls: each version of the row would be one more."""
    query(path, "CREATE TABLE words (id REAL UNIQUE, word TEXT)")
    rows = pa.table({"id": [math.inf, math.nan], "word": ["one", "two"]})
    with opened(path, rows.schema, mode="upsert", key=("id",)) as sink:
        publish(sink, 1, rows.slice(0, 1))
        for is_staged in (False, True):
            with pytest.raises(BadRow, match="key column 'id' holds a number that SQLite has not"):
                publish(sink, 2, rows.slice(1), staged=is_staged)
    assert query(path, "SELECT * FROM words") == [(math.inf, "one")]


def test_keys_alone_can_be_upserted(path: str) -> None:
    rows = pa.table({"id": [1, 1]})
    with opened(path, rows.schema, mode="upsert", key=("id",)) as sink:
        publish(sink, 1, rows)
    assert query(path, "SELECT id FROM words") == [(1,)]


@pytest.mark.parametrize(
    ("ddl", "arguments", "words"),
    [
        ("(id INTEGER)", {"on_new_column": "fail"}, ["column 'word' does not exist", "id"]),
        ("(id TEXT, word TEXT)", {}, ["'id' is int64, but TEXT"]),
        ("(id INTEGER, word INTEGER)", {}, ["'word' is string, but INTEGER"]),
        ("(id REAL, word TEXT)", {}, ["'id' is int64, but REAL"]),
        ("(id INTEGER, word BLOB)", {}, ["'word' is string, but BLOB"]),
        ("(id INTEGER, word TEXT, other TEXT NOT NULL)", {}, ["requires a value for 'other'"]),
        ("(id INTEGER, word TEXT AS (id || '!'))", {}, ["'word' of table words is computed"]),
        ("(id INTEGER, word TEXT)", {"mode": "upsert", "key": ("id",)}, ["no unique index on exactly (id)"]),
        (
            "(id INTEGER, word TEXT, UNIQUE (id, word))",
            {"mode": "upsert", "key": ("id",)},
            ["no unique index", "CREATE UNIQUE INDEX"],
        ),
    ],
)
def test_a_table_that_does_not_fit_is_refused_before_the_run(
    path: str, ddl: str, arguments: dict[str, Any], words: list[str]
) -> None:
    query(path, f"CREATE TABLE words {ddl}")
    with pytest.raises(InvalidPipeline) as caught:
        sqlite_spec(path, "words", **arguments).connect("w", "words", SCHEMA)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("ddl", "arguments"),
    [
        ("(number INTEGER PRIMARY KEY, id BIGINT, word VARCHAR(3))", {}),
        ("(id, word, note TEXT NOT NULL DEFAULT '')", {}),
        ("(word TEXT, id INTEGER PRIMARY KEY)", {"mode": "upsert", "key": ("id",)}),
        ("(word TEXT, ID INTEGER UNIQUE) ", {"mode": "upsert", "key": ("id",)}),
        ("(id INTEGER, word TEXT, PRIMARY KEY (word, id)) WITHOUT ROWID", {"mode": "upsert", "key": ("id", "word")}),
        ("(id INT, word TEXT) STRICT", {}),
    ],
)
def test_a_table_that_fits_is_taken_as_it_is(path: str, ddl: str, arguments: dict[str, Any]) -> None:
    query(path, f"CREATE TABLE words {ddl}")
    with opened(path, **arguments) as sink:
        publish(sink, 1, pa.table({"id": [7], "word": ["x"]}))
    assert query(path, "SELECT id, word FROM words") == [(7, "x")]


def test_a_refused_row_names_the_constraint_and_changes_nothing(path: str) -> None:
    query(path, "CREATE TABLE words (id INTEGER UNIQUE, word TEXT)")
    with opened(path) as sink:
        publish(sink, 1, pa.table({"id": [1], "word": ["a"]}))
        with pytest.raises(BadRow, match=r"UNIQUE constraint failed: words\.id"):
            publish(sink, 2, pa.table({"id": [2, 1], "word": ["b", "c"]}))
    assert query(path, "SELECT id FROM words") == [(1,)]
    assert query(path, "SELECT epoch FROM holdfast_ledger") == [(1,)]


def test_another_writer_that_holds_the_file_makes_it_unavailable(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUSY_TIMEOUT_S", 0.05)
    with opened(path) as sink:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="nothing was changed"):
            publish(sink, 1, pa.table({"id": [1], "word": ["a"]}))
        other.execute("ROLLBACK")
        other.close()
        publish(sink, 1, pa.table({"id": [1], "word": ["a"]}))
    assert query(path, "SELECT count(*) FROM words") == [(1,)]


def test_a_file_that_is_no_database_is_corrupt(path: str) -> None:
    Path(path).write_text("no database at all, but long enough to be read as one" * 10)
    with pytest.raises(Corrupt, match="cannot be read"):
        sqlite_spec(path, "words").connect("w", "words", SCHEMA)


def test_a_place_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidPipeline, match="cannot be created"):
        sqlite_spec(str(tmp_path / "file" / "words.db"), "words").connect("w", "words", SCHEMA)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_without_permission_is_refused(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(InvalidPipeline, match="cannot be created"):
        sqlite_spec(str(tmp_path / "closed" / "words.db"), "words").connect("w", "words", SCHEMA)


def test_a_staged_file_that_was_cut_short_is_never_published_in_part(path: str) -> None:
    with opened(path) as sink:
        writer = sink.writer_factory()(Task("words", 1, 1, 0, 0))
        for number in range(50):
            writer.write(pa.RecordBatch.from_pydict({"id": [number] * 100, "word": ["x"] * 100}, schema=SCHEMA))
        handle = writer.stage()
        staged = Path(f"{path}-holdfast") / handle.reference["file"]
        os.truncate(staged, staged.stat().st_size // 2)
        with pytest.raises(Diverged, match="gone"):
            sink.publish([Publication(EpochRecord("words", 1, 1, {}), (handle,))], Held())
    assert query(path, "SELECT count(*) FROM words") == [(0,)]


def test_a_dropped_table_is_an_error_with_a_cure(path: str) -> None:
    with opened(path) as sink:
        query(path, "DROP TABLE words")
        with pytest.raises(HoldfastError) as caught:
            publish(sink, 1, pa.table({"id": [1], "word": ["a"]}))
        assert "no such table" in caught.value.why


# --- rewindable -----------------------------------------------------------------------------------------------------


def test_an_upsert_is_not_rewindable(path: str) -> None:
    with pytest.raises(InvalidPipeline, match='has no meaning with mode="upsert"'):
        sqlite_spec(path, "words", "upsert", ("id",), rewindable=True)


def test_a_table_that_is_there_is_not_given_a_column_behind_its_owners_back(path: str) -> None:
    query(path, "CREATE TABLE words (id INTEGER, word TEXT)")
    with pytest.raises(InvalidPipeline) as refused:
        sqlite_spec(path, "words", rewindable=True).connect("words_table", "words", SCHEMA)
    query(path, refused.value.do.split(": ")[1].split(";")[0])
    sqlite_spec(path, "words", rewindable=True).connect("words_table", "words", SCHEMA).close()


def test_two_sinks_that_count_epochs_each_for_itself_do_not_share_a_rewindable_table(path: str) -> None:
    first = sqlite_spec(path, "words", rewindable=True).connect("first", "words", SCHEMA)
    first.open(RunIdentity("words", 1))
    record = EpochRecord("words", 1, 1, {"given": {"log": 1}})
    first.publish([Publication(record, ())], Held())
    first.close()
    second = sqlite_spec(path, "Words", rewindable=True).connect("second", "words", SCHEMA)
    with pytest.raises(InvalidPipeline, match="is the rewindable table of sink 'first'"):
        second.open(RunIdentity("words", 2))
    second.close()


def test_a_sink_that_becomes_rewindable_can_go_back_to_where_it_was_then(path: str) -> None:
    plain = sqlite_spec(path, "words").connect("words_table", "words", SCHEMA)
    plain.open(RunIdentity("words", 1))
    plain.publish([Publication(EpochRecord("words", 7, 1, {"given": {"log": 7}}), ())], Held())
    plain.close()
    query(path, 'ALTER TABLE words ADD COLUMN "__holdfast_epoch" INTEGER')
    sink = sqlite_spec(path, "words", rewindable=True).connect("words_table", "words", SCHEMA)
    sink.open(RunIdentity("words", 2))
    assert offers(sink, Rewindable)
    assert sink.withdrawal({"given": {"log": 7}}).epoch == 7
    assert "are between 7 and 7" in sink.withdrawal({"given": {"log": 6}}).obstacle
    sink.close()


def words_sink(path: str, generation: int, *, rewindable: bool, table: str = "words") -> Sink:
    sink = sqlite_spec(path, table, rewindable=rewindable).connect("words_table", "words", SCHEMA)
    sink.open(RunIdentity("words", generation))
    return sink


def publish_epoch(sink: Sink, epoch: int) -> None:
    rows = pa.table({"id": [epoch], "word": ["a"]}, schema=SCHEMA)
    sink.publish([Publication(EpochRecord("words", epoch, 1, {"given": {"log": epoch}}), (Carried(rows),))], Held())


def test_epochs_before_it_was_not_rewindable_for_a_while_are_no_target_any_more(path: str) -> None:
    """The rows of the time between have no epoch: a rewind would leave them, and the next run bring them again."""
    for generation, rewindable in enumerate([True, False, True], start=1):
        sink = words_sink(path, generation, rewindable=rewindable)
        publish_epoch(sink, generation)
        sink.close()
    sink = words_sink(path, 4, rewindable=True)
    assert offers(sink, Rewindable)
    assert "are between 2 and 3" in sink.withdrawal({"given": {"log": 1}}).obstacle
    with pytest.raises(Diverged):
        sink.publish([Publication(EpochRecord("words", 4, 4, {"given": {"log": 1}}, rewound_to=1), ())], Held())
    sink.publish([Publication(EpochRecord("words", 4, 4, {"given": {"log": 2}}, rewound_to=2), ())], Held())
    sink.close()
    assert query(path, "SELECT id FROM words") == [(1,), (2,)]
    sink = words_sink(path, 5, rewindable=True)
    assert sink.withdrawal({"given": {"log": 2}}).epoch == 2  # type: ignore[attr-defined]
    sink.close()


def test_epochs_that_went_to_another_table_are_no_target(path: str) -> None:
    for generation, table in enumerate(["words", "others"], start=1):
        sink = words_sink(path, generation, rewindable=True, table=table)
        publish_epoch(sink, generation)
        assert sink.withdrawal({"given": {"log": generation}}).epoch == generation  # type: ignore[attr-defined]
        sink.close()
    sink = words_sink(path, 3, rewindable=True)
    assert sink.withdrawal({"given": {"log": 1}}).obstacle  # type: ignore[attr-defined]
    sink.close()


def test_what_a_sink_says_before_it_is_opened_is_what_it_says_then(path: str) -> None:
    """``rewind --dry-run`` takes nobody over."""
    for generation, rewindable in enumerate([True, False], start=1):
        sink = words_sink(path, generation, rewindable=rewindable)
        publish_epoch(sink, generation)
        sink.close()
    unopened = sqlite_spec(path, "words", rewindable=True).connect("words_table", "words", SCHEMA)
    assert offers(unopened, Rewindable)
    said = [unopened.withdrawal({"given": {"log": end}}) for end in (1, 2)]
    unopened.close()
    sink = words_sink(path, 3, rewindable=True)
    assert [sink.withdrawal({"given": {"log": end}}) for end in (1, 2)] == said  # type: ignore[attr-defined]
    sink.close()
    assert "are between 2 and 2" in said[0].obstacle
    assert said[1].epoch == 2


def test_staged_files_that_cannot_be_removed_behind_a_commit_are_no_failure(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(name: str) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), name)

    with opened(path) as sink:
        monkeypatch.setattr("holdfast.connectors.kit.files.staged.os.unlink", refused)
        publish(sink, 1, pa.table({"id": [1], "word": ["a"]}, SCHEMA), staged=True)
        monkeypatch.undo()
        assert query(path, "SELECT id FROM words") == [(1,)]
        assert sink.sweep(below_epoch=2) == 1
