"""A pipeline gets a column while an epoch is in doubt, and is killed around the ALTER TABLE (design/0035)."""

from __future__ import annotations

import signal
import sqlite3
from pathlib import Path

import psycopg
import pytest

from tests.crash.processes import ROWS_PER_FILE, Case

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.postgres]

QUERY = "SELECT id, minute FROM rows ORDER BY id"


def test_what_was_decided_keeps_its_columns_and_the_rest_has_the_new_one(
    tmp_path: Path, postgres_prepared: str
) -> None:
    """Killed between the sinks, one of which holds prepared rows, which lock its table; then within the start."""
    staged = {"HOLDFAST_CARRY_MAX": "0 B", "CRASH_STAGE": "prepared", "CRASH_DRAW": "arrow"}
    case = Case(tmp_path, ("sqlite", "postgres"), postgres_prepared, staged)
    case.write_input()
    deaths = [{"HOLDFAST_FAULT": "after-publish:2"}]
    deaths += [{"HOLDFAST_FAULT": point, "CRASH_COLUMN": "1"} for point in ("columns-uncommitted", "recovery-resolved")]
    for environment in deaths:
        killed = case.run(**environment)
        assert killed.returncode == -signal.SIGKILL, killed.stdout[-3000:]
    survived = case.run(CRASH_COLUMN="1")
    assert survived.returncode == 0, survived.stdout[-3000:]
    case.check_exact()
    assert case.leftovers() == []
    with sqlite3.connect(tmp_path / "out.db") as connection, psycopg.connect(postgres_prepared) as postgres:
        found = connection.execute(QUERY).fetchall()
        assert found == postgres.execute(QUERY).fetchall()
    decided_before = 4 * ROWS_PER_FILE  # two epochs of two files
    assert found == [(n, n // ROWS_PER_FILE if n >= decided_before else None) for n in range(6 * ROWS_PER_FILE)]
