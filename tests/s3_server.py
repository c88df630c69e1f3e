"""An S3 server on loopback: moto's, in a process of its own; one for the session, with a bucket for each test."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.error import URLError

import pytest

from tools.postgres_server import free_port

_BUCKETS = itertools.count(1)
_VARIABLES = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}


@dataclass(frozen=True)
class S3Bucket:
    """A bucket of a server.

    Parameters
    ----------
    endpoint : str
        Where the server is.
    name : str
        Of the bucket.
    """

    endpoint: str
    name: str

    @property
    def address(self) -> str:
        """Of a place in it."""
        return f"s3://{self.name}/some/place"

    @property
    def variables(self) -> dict[str, str]:
        """The environment in which it is found."""
        return {**_VARIABLES, "AWS_ENDPOINT_URL": self.endpoint}


@contextmanager
def s3_server(bucket: str = "checkpoints") -> Iterator[dict[str, str]]:
    """Start a server with a bucket; yield the variables by which it is found."""
    endpoint = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 60
        while True:
            try:
                create_bucket(endpoint, bucket)
                break
            except (URLError, OSError):
                if process.poll() is not None or time.monotonic() > end:
                    raise
                time.sleep(0.02)
        yield S3Bucket(endpoint, bucket).variables
    finally:
        process.kill()
        process.wait(timeout=60)


def create_bucket(endpoint: str, name: str) -> None:
    """Create a bucket; it may be there."""
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{name}", method="PUT"), timeout=10).close()


@pytest.fixture(scope="session")
def s3_of_session() -> Iterator[str]:
    """A server for the whole session; its endpoint."""
    with s3_server() as variables:
        yield variables["AWS_ENDPOINT_URL"]


@pytest.fixture
def s3_bucket(s3_of_session: str, monkeypatch: pytest.MonkeyPatch) -> S3Bucket:
    """A new bucket, which the environment leads to."""
    bucket = S3Bucket(s3_of_session, f"bucket-{next(_BUCKETS)}")
    create_bucket(bucket.endpoint, bucket.name)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in bucket.variables.items():
        monkeypatch.setenv(name, value)
    return bucket
