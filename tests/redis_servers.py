"""Real Redis servers for tests: one for the session, and one of a test's own that can be killed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tools.redis_server import NoRedis, RedisServer, redis_server

_FAST = {"appendfsync": "no"}
"""Tests kill the server, never the machine."""


@pytest.fixture(scope="session")
def redis_of_session() -> Iterator[RedisServer]:
    """A server for the whole session."""
    try:
        with redis_server(_FAST) as server:
            yield server
    except NoRedis as error:
        pytest.skip(str(error))


@pytest.fixture
def redis_url(redis_of_session: RedisServer) -> str:
    """The address of an empty server."""
    import redis

    with redis.Redis.from_url(redis_of_session.url) as client:
        client.flushall()
    return redis_of_session.url


@pytest.fixture
def mortal_redis() -> Iterator[RedisServer]:
    """A server of its own for one test."""
    try:
        with redis_server() as server:
            yield server
    except NoRedis as error:
        pytest.skip(str(error))
