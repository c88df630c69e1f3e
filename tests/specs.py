"""Declarations of the SQL sinks from arguments as users write them; a spec has them in one value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.connectors.kit.sql import TableMode
from holdfast.connectors.mysql.spec import MysqlSpec
from holdfast.connectors.postgres.spec import PostgresSpec
from holdfast.connectors.sqlite.spec import SqliteSpec


def sqlite_spec(
    path: str,
    table: str,
    mode: Any = "append",
    key: Sequence[str] = (),
    delete: str | None = None,
    rewindable: bool = False,
    on_new_column: Any = "add",
) -> SqliteSpec:
    """Return what ``write.sqlite`` declares."""
    return SqliteSpec(path, table, TableMode.of(mode, key, delete, rewindable, on_new_column))


def mysql_spec(
    url: str,
    table: str,
    mode: Any = "append",
    key: Sequence[str] = (),
    delete: str | None = None,
    rewindable: bool = False,
    on_new_column: Any = "add",
) -> MysqlSpec:
    """Return what ``write.mysql`` declares."""
    return MysqlSpec(url, table, TableMode.of(mode, key, delete, rewindable, on_new_column))


def postgres_spec(
    dsn: str,
    table: str,
    mode: Any = "append",
    key: Sequence[str] = (),
    delete: str | None = None,
    stage: Any = "auto",
    rewindable: bool = False,
    on_new_column: Any = "add",
) -> PostgresSpec:
    """Return what ``write.postgres`` declares."""
    return PostgresSpec(dsn, table, TableMode.of(mode, key, delete, rewindable, on_new_column), stage)
