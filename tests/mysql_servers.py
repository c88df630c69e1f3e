"""Real MariaDB servers for tests: one for the session, and one of a test's own that can be killed.

``HOLDFAST_MYSQL=<url>`` uses a server of yours instead, MariaDB or MySQL.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pymysql
import pytest

from holdfast.testing.servers.mysql import MysqlServer, NoMysql, mysql_address, mysql_server

_FAST = {"innodb_flush_log_at_trx_commit": "2", "innodb_flush_method": "nosync", "innodb_buffer_pool_size": "32M"}
"""Tests kill the server, never the machine."""
_BELOW = os.environ.get("PYTEST_DEBUG_TEMPROOT")
"""Memory, where there is enough."""


def executed(url: str, statement: str, values: Any = None) -> list[tuple[Any, ...]]:
    """Run a statement; return its rows."""
    parts = urlsplit(url)
    assert parts.hostname
    with (
        pymysql.connect(
            host=parts.hostname, port=parts.port or 3306, user=parts.username, password=parts.password or "",
            database=parts.path[1:] or None, autocommit=True, charset="utf8mb4",
        ) as connection,
        connection.cursor() as cursor,
    ):  # fmt: skip
        cursor.execute(statement, values)
        return list(cursor.fetchall())


@contextmanager
def database_of(server: str) -> Iterator[str]:
    """Create an empty database, yield its address, drop it."""
    name = f"holdfast_{uuid.uuid4().hex[:12]}"
    executed(server, f"CREATE DATABASE {name}")
    try:
        yield f"{server}/{name}"
    finally:
        executed(server, f"DROP DATABASE {name}")


@pytest.fixture(scope="session")
def mysql_of_session() -> Iterator[str]:
    """The address of a server, without a database, for the whole session."""
    try:
        with mysql_address(_FAST, _BELOW) as url:
            yield url
    except NoMysql as error:
        pytest.skip(str(error))


@pytest.fixture
def mysql_url(mysql_of_session: str) -> Iterator[str]:
    """The address of an empty database."""
    with database_of(mysql_of_session) as url:
        yield url


@pytest.fixture
def mortal_mysql() -> Iterator[MysqlServer]:
    """A server of its own for one test."""
    try:
        with mysql_server(_FAST, _BELOW) as server:
            yield server
    except NoMysql as error:
        pytest.skip(str(error))
