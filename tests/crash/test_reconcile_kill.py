"""``holdfast reconcile`` is killed at any moment: nothing is changed, or everything is; the next one finishes.

The command dies in the run of its shadow, in the repair, and in a rebuild; what it left is found by the next command
and by the next run of the pipeline.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest

PER_FILE = 200
FILES = 4
PROGRAM = """
import holdfast as hf

rows = hf.read.files({given!r}, format="json", schema="id BIGINT, v DOUBLE", max_files_per_epoch=1, name="given")
pipeline = hf.Pipeline("killed", rows | hf.write.postgres({dsn!r}, table="killed", name="table"))
"""

pytestmark = [pytest.mark.crash, pytest.mark.postgres, pytest.mark.spark]


def command(work: Path, *words: str, fault: str = "") -> int:
    """Run a command in a process of its own; return its exit code, -9 where it was killed."""
    env = {**os.environ, "HOLDFAST_CARRY_MAX_BYTES": "0"}  # rows are staged: more can die
    if fault:
        env["HOLDFAST_FAULT"] = fault
    arguments = [sys.executable, "-m", "holdfast", *words, "--checkpoint", str(work / "checkpoint")]
    done = subprocess.run(arguments, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    assert done.returncode in (0, 1, -signal.SIGKILL), done.stdout
    return done.returncode


def reconcile(work: Path, *more: str, fault: str = "") -> int:
    program = f"{work / 'program.py'}:pipeline"
    return command(work, "reconcile", program, "--shadow", str(work / "shadow"), *more, fault=fault)


def held(dsn: str) -> Counter[Any]:
    with psycopg.connect(dsn) as connection:
        return Counter(connection.execute("SELECT id, v FROM killed").fetchall())


def filled(work: Path, dsn: str) -> Counter[Any]:
    """Let the pipeline fill its table; return the rows."""
    (work / "in").mkdir()
    expected: Counter[Any] = Counter()
    for number in range(FILES):
        rows = [{"id": number * PER_FILE + i, "v": float(i)} for i in range(PER_FILE)]
        (work / "in" / f"{number}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
        expected.update((row["id"], row["v"]) for row in rows)
    (work / "program.py").write_text(PROGRAM.format(given=str(work / "in"), dsn=dsn))
    run(work)
    assert held(dsn) == expected
    return expected


def run(work: Path) -> None:
    assert command(work, "run", f"{work / 'program.py'}:pipeline", "--available-now") == 0


def test_a_repair_that_is_killed_loses_and_doubles_nothing(tmp_path: Path, postgres_plain: str) -> None:
    expected = filled(tmp_path, postgres_plain)
    with psycopg.connect(postgres_plain, autocommit=True) as connection:
        connection.execute("DELETE FROM killed WHERE id % 40 = 1")
        connection.execute("UPDATE killed SET v = -1 WHERE id % 40 = 2")
        connection.execute("INSERT INTO killed SELECT * FROM killed WHERE id % 40 = 3")
    spoilt = held(postgres_plain)
    for fault in ("after-stage", "repair-uncommitted"):
        assert reconcile(tmp_path, "--repair", fault=fault) == -signal.SIGKILL, fault
        assert held(postgres_plain) == spoilt, fault
    assert reconcile(tmp_path, "--repair") == 0
    assert held(postgres_plain) == expected


def test_a_start_that_is_killed_while_it_compares_loses_and_doubles_nothing(
    tmp_path: Path, postgres_plain: str
) -> None:
    """In the repair, and between the repair and the first epoch; then there is a row that the table never had."""
    expected = filled(tmp_path, postgres_plain)
    with psycopg.connect(postgres_plain, autocommit=True) as connection:
        connection.execute("DELETE FROM killed WHERE id % 40 = 1")
        connection.execute("INSERT INTO killed SELECT * FROM killed WHERE id % 40 = 3")
    spoilt = held(postgres_plain)
    (tmp_path / "in" / f"{FILES}.json").write_text(json.dumps({"id": -1, "v": 1.0}) + "\n")
    words = ("run", f"{tmp_path / 'program.py'}:pipeline", "--available-now", "--compare-on-start")
    for fault, then in (("repair-uncommitted", spoilt), ("repaired", expected)):
        assert command(tmp_path, *words, fault=fault) == -signal.SIGKILL, fault
        assert held(postgres_plain) == then, fault
    assert command(tmp_path, *words) == 0
    assert held(postgres_plain) == expected + Counter([(-1, 1.0)])


def test_digests_that_were_killed_while_they_were_counted_count_each_row_once(
    tmp_path: Path, postgres_plain: str
) -> None:
    filled(tmp_path, postgres_plain)
    for fault in ("after-stage", "publish-uncommitted", "after-publish"):
        assert reconcile(tmp_path, "--digests-only", fault=fault) == -signal.SIGKILL, fault
    assert reconcile(tmp_path, "--digests-only") == 0


@pytest.mark.nightly
def test_a_rebuild_that_is_killed_loses_and_doubles_nothing(tmp_path: Path, postgres_plain: str) -> None:
    expected = filled(tmp_path, postgres_plain)
    with psycopg.connect(postgres_plain, autocommit=True) as connection:
        connection.execute("DROP TABLE killed, holdfast_ledger")
    assert reconcile(tmp_path, "--rebuild", fault="publish-uncommitted") == -signal.SIGKILL
    with psycopg.connect(postgres_plain) as connection:
        (table,) = connection.execute("SELECT to_regclass('killed')").fetchone() or (None,)
    assert table is None, "the table is created with its first rows, in one transaction"
    assert reconcile(tmp_path, "--rebuild") == 0
    assert held(postgres_plain) == expected
    run(tmp_path)
    assert held(postgres_plain) == expected
