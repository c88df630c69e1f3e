"""The sinks of the matrix: where each is, and what a reader finds in it.

A target opens its server once; each cell gets a place of its own in it, and reads that with the system's own client.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Place:
    """Where one cell writes.

    Parameters
    ----------
    address : str
        A path, an address, a DSN.
    ids : callable
        What a reader finds there now.
    variables : mapping of str to str
        What a process needs to find it.
    """

    address: str
    ids: Callable[[], Sequence[int]]
    variables: Mapping[str, str] = field(default_factory=dict)


Opener = Callable[[Path], Place]
"""Makes a new place, given the cell's directory."""


@contextmanager
def files() -> Iterator[Opener]:
    """A directory of Parquet, as a reader of the directory sees it."""

    def ids(directory: Path) -> list[int]:
        import pyarrow.dataset

        found = pyarrow.dataset.dataset(directory, format="parquet")
        return found.to_table(["id"])["id"].to_pylist() if found.files else []

    yield lambda work: Place(str(work / "out"), lambda: ids(work / "out") if (work / "out").exists() else [])


@contextmanager
def s3() -> Iterator[Opener]:
    """Parquet in a bucket of moto's server, by what the bucket lists."""
    from tools.s3_server import create_bucket, s3_server

    with s3_server() as variables:

        def place(work: Path) -> Place:
            bucket = f"matrix-{next(_numbers)}"
            create_bucket(variables["AWS_ENDPOINT_URL"], bucket)
            return Place(f"s3://{bucket}/out", lambda: ids(bucket), variables)

        def ids(bucket: str) -> list[int]:
            import obstore
            import pyarrow as pa
            import pyarrow.parquet
            from obstore.store import S3Store

            store = S3Store(
                bucket,
                endpoint=variables["AWS_ENDPOINT_URL"],
                access_key_id=variables["AWS_ACCESS_KEY_ID"],
                secret_access_key=variables["AWS_SECRET_ACCESS_KEY"],
                region=variables.get("AWS_REGION", "us-east-1"),
                client_options={"allow_http": True},
            )
            found: list[int] = []
            for listed in obstore.list(store, prefix="out").collect():
                if listed["path"].endswith(".parquet") and "/_" not in listed["path"]:
                    data = pa.py_buffer(bytes(obstore.get(store, listed["path"]).bytes()))
                    found += pyarrow.parquet.read_table(pa.BufferReader(data))["id"].to_pylist()
            return found

        yield place


@contextmanager
def segments() -> Iterator[Opener]:
    """A segments store, sealed and growing rows."""

    def ids(directory: Path) -> list[int]:
        from holdfast import segments as stores

        return stores.open(directory).to_arrow(columns=["id"])["id"].to_pylist() if directory.exists() else []

    yield lambda work: Place(str(work / "out"), lambda: ids(work / "out"))


@contextmanager
def sqlite() -> Iterator[Opener]:
    """A table of a file."""

    def ids(path: Path) -> list[int]:
        if not path.exists():
            return []
        with sqlite3.connect(path, timeout=30) as connection:
            is_there = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'rows'").fetchone()[0]
            return [number for (number,) in connection.execute("SELECT id FROM rows")] if is_there else []

    yield lambda work: Place(str(work / "out.db"), lambda: ids(work / "out.db"))


@contextmanager
def postgres() -> Iterator[Opener]:
    """A table of PostgreSQL, with prepared transactions."""
    import psycopg
    from psycopg.conninfo import make_conninfo

    from holdfast.testing.servers.postgres import postgres_server

    with postgres_server({"max_prepared_transactions": "64"}) as server:

        def place(work: Path) -> Place:
            name = f"matrix_{next(_numbers)}"
            with psycopg.connect(server.dsn, autocommit=True) as admin:
                admin.execute(f"CREATE DATABASE {name}".encode())
            dsn = make_conninfo(server.dsn, dbname=name)
            with psycopg.connect(dsn) as connection:
                connection.execute("CREATE TABLE rows (id bigint, at timestamptz, value double precision)")
            return Place(dsn, lambda: ids(dsn))

        def ids(dsn: str) -> list[int]:
            with psycopg.connect(dsn) as connection:
                return [number for (number,) in connection.execute("SELECT id FROM rows")]

        yield place


@contextmanager
def mysql() -> Iterator[Opener]:
    """A table of MariaDB."""
    from holdfast.testing.servers.mysql import mysql_server

    with mysql_server() as server:

        def place(work: Path) -> Place:
            name = f"matrix_{next(_numbers)}"
            executed(server.url, f"CREATE DATABASE {name}")
            url = f"{server.url}/{name}"
            executed(url, "CREATE TABLE `rows` (id BIGINT, at DATETIME(6), value DOUBLE) ENGINE=InnoDB")
            return Place(url, lambda: [number for (number,) in executed(url, "SELECT id FROM `rows`")])

        def executed(url: str, statement: str) -> list[tuple[Any, ...]]:
            import pymysql

            at = urlsplit(url)
            account = {"user": at.username, "password": at.password or "", "database": at.path[1:] or None}
            with (
                pymysql.connect(host=at.hostname, port=at.port or 3306, autocommit=True, **account) as connection,
                connection.cursor() as cursor,
            ):
                cursor.execute(statement)
                return list(cursor.fetchall())

        yield place


@contextmanager
def redis() -> Iterator[Opener]:
    """A stream of a Redis server."""
    from redis import Redis

    from tools.redis_server import redis_server

    with redis_server() as server:

        def place(work: Path) -> Place:
            with Redis.from_url(server.url) as client:
                client.flushall()
            return Place(server.url, ids)

        def ids() -> list[int]:
            with Redis.from_url(server.url, decode_responses=True) as client:
                return [int(entry["id"]) for _, entry in client.xrange("rows")]

        yield place


@contextmanager
def kafka() -> Iterator[Opener]:
    """A topic of one partition, as ``read_committed`` shows it."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic

    from holdfast.testing.servers.kafka import kafka_server

    with kafka_server() as server:

        def place(work: Path) -> Place:
            topic = f"matrix-{next(_numbers)}"
            admin = AdminClient({"bootstrap.servers": server.bootstrap})  # NB a variable: its answers end with it
            admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
            return Place(f"{server.bootstrap}/{topic}", lambda: ids(topic))

        def ids(topic: str) -> list[int]:
            consumer = Consumer(
                {
                    "bootstrap.servers": server.bootstrap,
                    "group.id": "matrix",
                    "enable.auto.commit": False,
                    "enable.partition.eof": True,
                    "fetch.wait.max.ms": 5,
                    "isolation.level": "read_committed",
                }
            )
            consumer.assign([TopicPartition(topic, 0, 0)])
            found: list[int] = []
            try:
                while (message := consumer.poll(30)) is not None:
                    error = message.error()
                    if error is None:
                        found.append(json.loads(message.value())["id"])
                    elif error.code() == KafkaError._PARTITION_EOF:
                        return found
                raise TimeoutError("the broker did not answer")
            finally:
                consumer.close()

        yield place


TARGETS: Mapping[str, Callable[[], Any]] = {
    "files": files,
    "files in S3": s3,
    "segments": segments,
    "sqlite": sqlite,
    "postgres": postgres,
    "mysql": mysql,
    "kafka": kafka,
    "redis": redis,
}
