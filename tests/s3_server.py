"""Buckets of an S3 server for tests: one server for the session, a bucket for each test."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tools.s3_server import CREDENTIALS, create_bucket, s3_server

__all__ = ["S3Bucket", "create_bucket", "s3_bucket", "s3_of_session", "s3_server"]

_BUCKETS = itertools.count(1)


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
        return {**CREDENTIALS, "AWS_ENDPOINT_URL": self.endpoint}


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
