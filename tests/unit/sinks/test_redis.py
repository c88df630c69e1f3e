"""Redis beyond the contract: forms of rows, ids, limits, servers that are refused, and what an error means."""

from __future__ import annotations

import datetime as dt
import json
import pickle
import struct
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
import redis

import holdfast as hf
from holdfast.capabilities import offers
from holdfast.connectors.redis import form as redis_form
from holdfast.connectors.redis import sink as redis_sink
from holdfast.connectors.redis.ledger import COMMIT, SHOW
from holdfast.connectors.redis.sink import RedisSink
from holdfast.connectors.redis.spec import RedisSpec
from holdfast.connectors.redis.url import RedisUrl
from holdfast.errors import BadRow, Diverged, InDoubt, InvalidPipeline, Unavailable
from holdfast.ports import (
    Carried,
    EpochRecord,
    Guarantee,
    Held,
    Idempotent,
    Outcome,
    Publication,
    RunIdentity,
    Task,
)
from tools.redis_server import RedisServer, redis_server

pytestmark = pytest.mark.slow

SCHEMA = pa.schema([("id", pa.string()), ("n", pa.int64())])


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


def opened(url: str, kind: Any = "stream", generation: int = 1, schema: pa.Schema = SCHEMA, **arguments: Any) -> Any:
    spec = RedisSpec(url, "t", kind, **{"id": "id", "id_column": "id", **arguments})
    sink = spec.connect("out", "p", schema)
    sink.open(RunIdentity("p", generation))
    return sink


def epoch(number: int, rows: list[Any], schema: pa.Schema = SCHEMA) -> Publication:
    table = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)
    return Publication(EpochRecord("p", number, 1, {"s": {"log": number}}), (Carried(table),))


def entries(client: Any) -> list[tuple[str, str]]:
    return [(entry["id"], entry["n"]) for _, entry in client.xrange("t")]


# --- other sinks of the server --------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["orders", "orders:eu"])
def test_sinks_of_two_pipelines_whose_rows_could_have_one_key_are_refused_when_the_second_is_opened(
    redis_url: str, client: Any, first: str
) -> None:
    """A row "eu:7" of the one was a row "7" of the other; and a reset of the one removed the other's rows."""

    def of(pipeline: str, key: str) -> tuple[RedisSpec, Any]:
        spec = RedisSpec(redis_url, key, "hash", "id", id_column="id")
        return spec, spec.connect("out", pipeline, SCHEMA)

    second = {"orders": "orders:eu", "orders:eu": "orders"}[first]
    spec, sink = of("one", first)
    sink.open(RunIdentity("one", 1))
    sink.open(RunIdentity("one", 2))
    with pytest.raises(InvalidPipeline, match="can name the same rows") as refused:
        of("two", second)[1].open(RunIdentity("two", 1))
    assert "'one/out'" in refused.value.what
    assert "HDEL holdfast:targets one/out" in refused.value.do
    assert client.hkeys("holdfast:targets") == ["one/out"], "a refused one claims nothing"
    for pipeline, key in (("three", "orders-eu"), ("four", first)):
        of(pipeline, key)[1].open(RunIdentity(pipeline, 1))
        client.hdel("holdfast:targets", f"{pipeline}/out")
    spec.reset("out", "one", rows=True, is_dry_run=False)
    of("two", second)[1].open(RunIdentity("two", 1))
    assert client.hkeys("holdfast:targets") == ["two/out"]


def test_shards_of_a_pipeline_write_one_key_and_another_after_it_while_others_are_refused(
    redis_url: str, client: Any
) -> None:
    """Each shard begins on its own: one that has begun under the new key meets what another noted of the old one."""

    def begun(pipeline: str, key: str, generation: int, name: str = "out") -> Any:
        sink = RedisSpec(redis_url, key, "hash", "id", id_column="id").connect(name, pipeline, SCHEMA)
        sink.open(RunIdentity(pipeline, generation))
        return sink

    for generation, key in ((1, "orders"), (2, "orders:eu"), (3, "orders")):
        for pipeline, row in (("p", "a"), ("p-1", "b"), ("p-11", "c")):
            sink = begun(pipeline, key, generation)
            record = EpochRecord(pipeline, generation, generation, {"s": {"log": generation}})
            rows = pa.Table.from_pylist([{"id": row, "n": generation}], SCHEMA)
            sink.publish([Publication(record, (Carried(rows),))], Held())
    assert sorted(client.keys("orders:*")) == [f"orders:{each}" for each in ("a", "b", "c", "eu:a", "eu:b", "eu:c")]
    assert {client.hget(f"orders:{each}", "n") for each in "abc"} == {"3"}
    for pipeline, name in (("q", "out"), ("q-1", "out"), ("p-1", "more")):
        with pytest.raises(InvalidPipeline, match="can name the same rows"):
            begun(pipeline, "orders:eu", 1, name)


# --- forms ----------------------------------------------------------------------------------------------------------

KINDS = pa.schema(
    [
        ("id", pa.string()),
        ("flag", pa.bool_()),
        ("whole", pa.int64()),
        ("real", pa.float64()),
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("exact", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("local", pa.timestamp("us")),
        ("instant", pa.timestamp("us", "UTC")),
        ("wait", pa.duration("ms")),
        ("nested", pa.struct([("a", pa.list_(pa.int64()))])),
        ("nothing", pa.null()),
        ("word", pa.dictionary(pa.int32(), pa.string())),
    ]
)
ROW = [
    "r1", True, -(2**63), 0.1, 'a"b\n\u00e9', b"\x00\xff", Decimal("12.30"), dt.date(2024, 1, 31),
    dt.datetime(2024, 1, 31, 12, 30), dt.datetime(2024, 1, 31, 12, 30, 0, 5, tzinfo=dt.UTC),
    dt.timedelta(milliseconds=1500), {"a": [1, None]}, None, "yes",
]  # fmt: skip
SAID = {
    b"id": b"r1", b"flag": b"true", b"whole": b"-9223372036854775808", b"real": b"0.1",
    b"text": 'a"b\n\u00e9'.encode(), b"raw": b"\x00\xff", b"exact": b"12.30", b"day": b"2024-01-31",
    b"local": b"2024-01-31T12:30:00.000000", b"instant": b"2024-01-31T12:30:00.000005Z", b"wait": b"1500000",
    b"nested": b'{"a": [1, null]}', b"word": b"yes",
}  # fmt: skip


@pytest.mark.parametrize("kind", ["stream", "hash"])
def test_each_column_is_a_field_and_a_null_is_none(redis_url: str, kind: str) -> None:
    sink = opened(redis_url, kind, schema=KINDS)
    nulls = ["r2", *[None] * (len(KINDS) - 1)]
    sink.publish([epoch(1, [ROW, nulls], KINDS)], Held())
    with redis.Redis.from_url(redis_url) as raw:
        found = (
            [entry for _, entry in raw.xrange("t")] if kind == "stream" else [raw.hgetall(f"t:r{n}") for n in (1, 2)]
        )
    assert found == [SAID, {b"id": b"r2"}]
    sink.close()


def test_a_row_is_a_field_of_one_hash_as_json(redis_url: str, client: Any) -> None:
    sink = opened(redis_url, "fields")
    sink.publish([epoch(1, [("a", 1), ("b", None)]), epoch(2, [("a", 3)])], Held())
    assert {name: json.loads(row) for name, row in client.hgetall("t").items()} == {
        "a": {"id": "a", "n": 3},
        "b": {"id": "b", "n": None},
    }
    sink.close()


def test_a_hash_that_is_written_over_keeps_no_field_of_the_row_before(redis_url: str, client: Any) -> None:
    sink = opened(redis_url, "hash")
    sink.publish([epoch(1, [("a", 1)])], Held())
    sink.publish([epoch(2, [("a", None)])], Held())
    assert client.hgetall("t:a") == {"id": "a"}
    sink.close()


def test_an_integer_id_names_a_hash(redis_url: str, client: Any) -> None:
    schema = pa.schema([("id", pa.int64())])
    sink = opened(redis_url, "hash", schema=schema)
    sink.publish([epoch(1, [(7,)], schema)], Held())
    assert client.hgetall("t:7") == {"id": "7"}
    sink.close()


# --- ids ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows_at_once", [1_000, 0], ids=["one step", "several steps"])
def test_a_stream_takes_a_row_once_even_if_the_ledger_was_lost(
    redis_url: str, client: Any, monkeypatch: pytest.MonkeyPatch, rows_at_once: int
) -> None:
    monkeypatch.setattr(redis_sink, "ATOMIC_ROWS", rows_at_once)
    sink = opened(redis_url)
    promise: Any = sink
    assert offers(promise, Idempotent)
    assert promise.is_idempotent
    sink.publish([epoch(1, [("a", 1), ("b", 2)]), epoch(2, [("c", 3)])], Held())
    sink.close()
    client.delete("holdfast:p/out:ledger")
    again = opened(redis_url)  # and its epochs are cut otherwise
    again.publish([epoch(1, [("a", 1)]), epoch(2, [("b", 2), ("c", 3), ("d", 4)])], Held())
    assert entries(client) == [("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")]
    again.close()


def test_another_sink_knows_the_ids_of_a_stream(redis_url: str, client: Any) -> None:
    sink = opened(redis_url)
    sink.publish([epoch(1, [("a", 1)])], Held())
    other = RedisSpec(redis_url, "t", id_column="id").connect("renamed", "p", SCHEMA)
    other.open(RunIdentity("p", 1))
    other.publish([epoch(1, [("a", 1), ("b", 2)])], Held())
    assert entries(client) == [("a", "1"), ("b", "2")]
    sink.close()
    other.close()


def test_without_an_id_the_ledger_alone_sees_to_it(redis_url: str, client: Any) -> None:
    sink = opened(redis_url, id=None, id_column=None)
    assert not sink.is_idempotent
    sink.publish([epoch(1, [("a", 1), ("a", 1)])], Held())
    assert entries(client) == [("a", "1"), ("a", "1")]
    with pytest.raises(BadRow, match="nothing but nulls"):
        sink.admit(epoch(2, [(None, None)]))
    sink.close()


@pytest.mark.parametrize("kind", ["stream", "hash", "fields"])
def test_a_row_without_an_id_is_refused_carried_and_staged(redis_url: str, kind: str) -> None:
    sink = opened(redis_url, kind)
    with pytest.raises(BadRow, match="null in the id column 'id'"):
        sink.admit(epoch(1, [("a", 1), (None, 2)]))
    writer = sink.writer_factory()(Task("p", 1, 1, 0, 0))
    with pytest.raises(BadRow, match="null in the id column 'id'"):
        writer.write(epoch(1, [(None, 2)]).parts[0].rows.to_batches()[0])
    writer.abort()
    sink.close()


def test_the_graph_finds_the_id_or_says_how_rows_get_one(redis_url: str) -> None:
    numbers = hf.read.rows([{"n": 1}], schema="n BIGINT", name="numbers")
    with pytest.raises(InvalidPipeline, match=r"hf\.row_id"):
        _ = numbers | hf.write.redis(redis_url, key="t", name="out")
    sink = numbers | hf.row_id() | hf.write.redis(redis_url, key="t", name="out")
    assert sink.arguments()["id"] == "row_id"
    text = hf.Pipeline("p", sink).explain()
    assert "rows are identified by row_id" in text
    assert "exactly-once" in text
    assert "@127" not in text
    assert numbers | hf.write.redis(redis_url, key="t", id=None, name="out")


# --- limits ---------------------------------------------------------------------------------------------------------


def test_a_stream_keeps_its_last_entries_and_their_ids(redis_url: str, client: Any) -> None:
    sink = opened(redis_url, max_length=3)
    for number in range(1, 9):
        sink.publish([epoch(number, [(f"{number}a", 1), (f"{number}b", 2)])], Held())
    assert [name for name, _ in entries(client)] == ["7b", "8a", "8b"]
    assert client.smembers("holdfast:ids:t") == {"7b", "8a", "8b"}
    sink.close()


def test_a_hash_expires(redis_url: str, client: Any) -> None:
    sink = opened(redis_url, "hash", expire_ms=3_600_000)
    sink.publish([epoch(1, [("a", 1)])], Held())
    assert 3_500_000 < client.pttl("t:a") <= 3_600_000
    assert client.pttl("holdfast:p/out:ledger") == -1
    sink.close()


def test_a_large_epoch_is_written_in_steps_of_bounded_size(
    redis_url: str, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = opened(redis_url, "stream")
    seen: list[int] = []
    run = sink._session.run

    def counting(script: str, keys: Any, arguments: Any) -> int:
        seen.append(client.xlen("t"))
        return run(script, keys, arguments)

    monkeypatch.setattr(sink._session, "run", counting)
    rows = [(f"r{number}", number) for number in range(5_000)]
    sink.publish([epoch(1, rows)], Held())
    assert entries(client) == [(name, str(number)) for name, number in rows]
    assert seen == [0, *range(0, 5_000, 500)]
    assert client.keys("holdfast:*staged*") == []
    assert client.hget("holdfast:p/out:ledger", "in_progress") is None
    sink.close()


def test_rows_of_many_bytes_are_chunks_of_their_own(redis_url: str, client: Any) -> None:
    sink = opened(redis_url, schema=pa.schema([("id", pa.string()), ("n", pa.string())]))
    rows = [(f"r{number}", "x" * 700_000) for number in range(9)]
    sink.publish([epoch(1, rows, pa.schema([("id", pa.string()), ("n", pa.string())]))], Held())
    assert [name for name, _ in entries(client)] == [name for name, _ in rows]
    sink.close()


# --- interruptions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", [COMMIT, SHOW], ids=["commit", "show"])
def test_a_step_that_is_sent_twice_is_done_once(
    redis_url: str, client: Any, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    """A proxy repeats a request, or a client library does: the second one finds that the ledger has moved."""
    monkeypatch.setattr(redis_sink, "ATOMIC_ROWS", 0 if script is SHOW else 1_000)
    sink = opened(redis_url, id=None, id_column=None)
    run = sink._session.run

    def twice(given: str, keys: Any, arguments: Any) -> int:
        answer = run(given, keys, arguments)
        return run(given, keys, arguments) if given is script else answer

    monkeypatch.setattr(sink._session, "run", twice)
    for number in (1, 2):
        for attempt in range(9):
            try:
                sink.publish(
                    [epoch(number, [("a", number), ("b", number)])],
                    Held(number - 1, 0, {"s": {"log": number - 1}} if number > 1 else {}),
                )
                break
            except Unavailable:
                assert attempt < 8
    assert entries(client) == [("a", "1"), ("b", "1"), ("a", "2"), ("b", "2")]
    sink.close()


def test_an_opening_whose_answer_is_lost_may_be_tried_again(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(redis_url, generation=3).close()
    sink = RedisSpec(redis_url, "t", id_column="id").connect("out", "p", SCHEMA)
    assert isinstance(sink, RedisSink)
    run = sink._session.run

    def unheard(*arguments: Any) -> int:
        run(*arguments)
        monkeypatch.setattr(sink._session, "run", run)
        raise InDoubt("no answer")

    monkeypatch.setattr(sink._session, "run", unheard)
    with pytest.raises(Unavailable):
        sink.open(RunIdentity("p", 4))
    assert sink.open(RunIdentity("p", 4)).generation == 3
    sink.close()


def test_a_server_that_is_away_and_back_holds_what_it_answered(mortal_redis: RedisServer) -> None:
    sink = opened(mortal_redis.url)
    sink.publish([epoch(1, [("a", 1)])], Held())
    mortal_redis.stop()
    with pytest.raises(Unavailable):
        sink.publish([epoch(2, [("b", 2)])], Held(1, 0, {"s": {"log": 1}}))
    assert sink.outcome(1) is Outcome.UNKNOWN
    mortal_redis.start()
    assert [sink.outcome(number) for number in (1, 2)] == [Outcome.PUBLISHED, Outcome.ABSENT]
    sink.publish([epoch(2, [("b", 2)])], Held(1, 0, {"s": {"log": 1}}))
    sink.close()
    with redis.Redis.from_url(mortal_redis.url, decode_responses=True) as client:
        assert entries(client) == [("a", "1"), ("b", "2")]


def test_a_replica_that_lagged_and_took_over_gets_what_it_lacks(mortal_redis: RedisServer) -> None:
    with redis_server({"masterauth": mortal_redis.password}) as other:
        sink = opened(mortal_redis.url)
        sink.publish([epoch(1, [("a", 1)])], Held())
        with (
            redis.Redis.from_url(mortal_redis.url) as primary,
            redis.Redis.from_url(other.url, decode_responses=True) as replica,
        ):
            replica.replicaof("127.0.0.1", mortal_redis.port)
            while not (primary.wait(1, 100) and replica.xlen("t")):
                pass
            lagging = RedisSpec(other.url, "t", id_column="id").connect("out", "p", SCHEMA)
            with pytest.raises(Unavailable, match="READONLY"):
                lagging.open(RunIdentity("p", 2))
            lagging.close()
            replica.replicaof("NO", "ONE")
            sink.publish([epoch(2, [("b", 2)])], Held(1, 0, {"s": {"log": 1}}))
            sink._session._url = RedisUrl(other.url)  # a name that leads to the new primary
            sink.close()
            with pytest.raises(Diverged, match="holds epoch 1, and this run had published epoch 2") as caught:
                sink.publish([epoch(3, [("c", 3)])], Held(2, 0, {"s": {"log": 2}}))
            assert caught.value.is_mended_by_start
            assert sink.outcome(2) is Outcome.ABSENT
            sink.publish([epoch(2, [("b", 2)]), epoch(3, [("c", 3)])], Held(1, 0, {"s": {"log": 1}}))
            assert [name for name, _ in entries(replica)] == ["a", "b", "c"]
            sink.close()


def test_staged_rows_that_the_server_has_lost_are_no_epoch(redis_url: str, client: Any) -> None:
    sink = opened(redis_url)
    writer = sink.writer_factory()(Task("p", 1, 1, 0, 0))
    writer.write(epoch(1, [("a", 1)]).parts[0].rows.to_batches()[0])
    staged = writer.stage()
    assert sink.expired([staged]) == []
    client.delete(staged.reference["key"])
    assert sink.expired([staged]) == [staged.name]
    with pytest.raises(Diverged, match="are gone"):
        sink.publish([Publication(EpochRecord("p", 1, 1, {}), (staged,))], Held())
    assert sink.outcome(1) is Outcome.ABSENT
    sink.close()


# --- what is refused ------------------------------------------------------------------------------------------------


def test_a_key_of_another_type_is_refused_before_and_during_a_run(redis_url: str, client: Any) -> None:
    client.set("t", "a text")
    with pytest.raises(InvalidPipeline, match="holds string, not a stream"):
        opened(redis_url)
    client.delete("t")
    sink = opened(redis_url)
    client.set("t", "a text")
    with pytest.raises(InvalidPipeline, match="not a stream"):
        sink.publish([epoch(1, [("a", 1)])], Held())
    assert sink.outcome(1) is Outcome.ABSENT
    sink.close()


def test_two_sinks_whose_hashes_could_have_one_key_are_refused() -> None:
    """A row decides by its id where it goes: "eu:7" of orders is 7 of orders:eu."""
    rows = hf.read.rows([{"id": "eu:7"}], schema="id STRING", name="rows")

    def both(*keys: str, kind: Any = "hash") -> hf.Pipeline:
        sinks = [
            hf.write.redis("redis://localhost", key=key, kind=kind, id="id", name=f"to_{n}")
            for n, key in enumerate(keys)
        ]
        return hf.Pipeline("two", *(rows | sink for sink in sinks))

    for keys in (("orders", "orders:eu"), ("orders:eu", "orders")):
        with pytest.raises(InvalidPipeline, match="may go where sink 'to_"):
            both(*keys)
    both("orders", "orders_eu")
    both("orders", "orders:eu", kind="stream")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"cluster-enabled": "yes"}, "Redis Cluster"),
        ({"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}, "evicts any key"),
    ],
)
def test_a_server_that_cannot_keep_the_promise_is_refused(settings: dict[str, str], said: str) -> None:
    with redis_server(settings) as server, pytest.raises(InvalidPipeline, match=said):
        opened(server.url)


def test_a_server_without_an_append_only_file_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with redis_server({"appendonly": "no"}) as server, caplog.at_level("WARNING"):
        opened(server.url).close()
    assert "no append-only file" in caplog.text


def test_a_full_server_takes_nothing_and_is_tried_again(client: Any, redis_url: str) -> None:
    sink = opened(redis_url)
    client.config_set("maxmemory", "1")
    try:
        with pytest.raises(Unavailable, match="did not take it; nothing was changed"):
            sink.publish([epoch(1, [("a", 1)])], Held())
    finally:
        client.config_set("maxmemory", "0")
    sink.publish([epoch(1, [("a", 1)])], Held())
    assert entries(client) == [("a", "1")]
    sink.close()


def test_a_wrong_password_is_an_error_without_it(redis_of_session: RedisServer) -> None:
    with pytest.raises(InvalidPipeline, match="refuses this user") as caught:
        opened(f"redis://:hunter2@127.0.0.1:{redis_of_session.port}")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"kind": "list"}, "is not known"),
        ({"key": ""}, "cannot be written"),
        ({"key": "holdfast:x"}, "cannot be written"),
        ({"kind": "hash", "id": None}, "without an id"),
        ({"id": 7}, "is no column"),
        ({"kind": "hash", "max_length": 9}, "no meaning"),
        ({"max_length": 0}, "no meaning"),
        ({"expire_after": "1 day"}, "no meaning"),
        ({"url": "http://localhost"}, "no address"),
        ({"url": "redis://"}, "no address"),
        ({"control": "c"}, "control"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(arguments: dict[str, Any], said: str) -> None:
    given = {"url": "redis://localhost", "key": "t", **arguments}
    with pytest.raises(InvalidPipeline, match=said):
        hf.write.redis(given.pop("url"), **given)


def test_the_password_is_in_no_text_and_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "p@ss/word")
    spec = RedisSpec("redis://app:${SECRET}@redis.example:6380/2", "t")
    assert spec.arguments()["url"] == "redis://app@redis.example:6380/2"
    assert spec.sends_secret
    url = RedisUrl(spec.url).expanded()
    assert url.text == "redis://app:p%40ss%2Fword@redis.example:6380/2"
    monkeypatch.setenv("URL", "redis://:hunter2@h")
    whole = RedisUrl("${URL}")
    assert str(whole) == "${URL}"
    for text in (repr(spec), repr(url), str(url), repr(whole.expanded()), str(whole.expanded())):
        assert "p%40ss" not in text
        assert "hunter2" not in text
    monkeypatch.delenv("SECRET")
    with pytest.raises(InvalidPipeline, match="SECRET, which is not set"):
        RedisUrl(spec.url).expanded()


def test_the_declaration_and_the_writers_pickle(redis_url: str) -> None:
    sink = opened(redis_url)
    assert sink.guarantee is Guarantee.EXACTLY_ONCE
    assert pickle.loads(pickle.dumps(sink.writer_factory()))(Task("p", 1, 1, 0, 0)).stage().row_count == 0
    sink.close()


def test_an_attempt_that_failed_while_it_staged_leaves_nothing_to_the_next_one(
    redis_url: str, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one may have fewer rows: some were rejected."""
    monkeypatch.setattr(redis_sink, "ATOMIC_ROWS", 0)
    monkeypatch.setattr("holdfast.connectors.redis.form.CHUNK_ROWS", 1)
    sink = opened(redis_url)
    stage, count = sink._session.stage, 0

    def failing(commands: Any) -> Any:
        nonlocal count
        count += 1
        if count == 4:
            raise Unavailable("away")
        return stage(commands)

    monkeypatch.setattr(sink._session, "stage", failing)
    with pytest.raises(Unavailable):
        sink.publish([epoch(1, [(name, 1) for name in "abcde"])], Held())
    assert client.keys("holdfast:*staged*") == []
    sink.publish([epoch(1, [("a", 1)])], Held())
    assert entries(client) == [("a", "1")]
    sink.close()


# --- what an earlier version has staged -----------------------------------------------------------------------------


@pytest.mark.parametrize("has_names", [False, True], ids=["without names", "with names that no sign tells of"])
@pytest.mark.parametrize("kind", ["stream", "hash", "fields"])
def test_rows_that_an_earlier_version_staged_are_shown(
    redis_url: str, client: Any, kind: str, has_names: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of version 09f82eec have no names of columns; those of some later ones have, and do not say so."""
    sink = opened(redis_url, kind)
    with monkeypatch.context() as earlier:
        earlier.setattr(redis_form, "NAMED", 0)
        if not has_names:
            earlier.setattr(redis_form, "_pack", without_names(redis_form._pack))
        writer = sink.writer_factory()(Task("p", 1, 1, 0, 0))
        writer.write(pa.RecordBatch.from_pylist([{"id": "a", "n": 1}, {"id": "b", "n": None}], SCHEMA))
        handle = writer.stage()
    sink.publish([Publication(EpochRecord("p", 1, 1, {"s": {"log": 1}}), (handle,))], Held())
    found = {
        "stream": lambda: [fields for _, fields in client.xrange("t")],
        "hash": lambda: [client.hgetall("t:a"), client.hgetall("t:b")],
        "fields": lambda: [json.loads(row) for row in client.hvals("t")],
    }[kind]()
    assert found == [{"id": "a", "n": 1 if kind == "fields" else "1"}, {"id": "b", **none_of(kind)}]


def without_names(pack: Any) -> Any:
    """Return how that version packed: as now, and the lengths of names, and these, left out."""

    def packed(columns: list[tuple[str, pa.Array]]) -> bytes:
        parts = [pack([("", values)]) for _, values in columns]
        return struct.pack("<II", len(columns[0][1]), len(columns)) + b"".join(part[12:] for part in parts)

    return packed


def none_of(kind: str) -> dict[str, None]:
    return {"n": None} if kind == "fields" else {}
