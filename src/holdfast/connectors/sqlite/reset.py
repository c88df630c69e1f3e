"""A SQLite sink begins as if it had never been: what is ours of it and the rows go in one transaction."""

from __future__ import annotations

import os
import sys

from holdfast.connectors.kit.explained import EXPLANATIONS
from holdfast.connectors.kit.files.staged import ArrowStaging, unchecked
from holdfast.connectors.kit.rewinds import EPOCHS, of_table
from holdfast.connectors.kit.sql import CONTROL, LEDGER
from holdfast.connectors.sqlite.ledger import reading
from holdfast.connectors.sqlite.table import quoted
from holdfast.ports import Reset


def reset(path: str, table: str, name: str, pipeline: str, *, rows: bool, is_dry_run: bool) -> Reset:
    """Do it; parameters as of :class:`~holdfast.ports.ResettableSpec`, and the file and its table.

    The durable writes: 1. the transaction; a crash after it leaves staged files, which the same call removes.
    """
    if not os.path.exists(path):
        return Reset()
    staging = ArrowStaging(f"{path}-holdfast", pipeline, name, unchecked)
    staged_count = len(staging.names())
    with reading(path, name) as connection:
        connection.isolation_level = None
        connection.execute("BEGIN IMMEDIATE")
        there = {table_name for (table_name,) in connection.execute("SELECT name FROM sqlite_master")}
        deletions: list[tuple[str, str, tuple[str, ...]]] = [
            (own, f"DELETE FROM {own} WHERE pipeline = ? AND sink = ?", (pipeline, name))
            for own in (LEDGER, EXPLANATIONS, EPOCHS, CONTROL)
            if own in there
        ]
        if rows and table in there:
            deletions.append((table, f"DELETE FROM {quoted(table)}", ()))
        counts = {own: connection.execute(statement, values).rowcount for own, statement, values in deletions}
        connection.execute("ROLLBACK" if is_dry_run else "COMMIT")
    if not is_dry_run:
        staging.sweep(sys.maxsize, 0)
    where = f"in {path}"
    return of_table(counts, {"staged tasks": staged_count}, table, where, rows=rows and table in there)
