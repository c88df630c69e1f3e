"""Bad input and bad times for a real run: one clear error, nothing lost, and the next start goes on.

Each test runs ``holdfast run`` as users do, makes the world bad, reads what the command says (what, why, what to do;
its exit code), mends the world, runs again, and compares every row.  The acceptance list, and where each is tested:

=================================================  ====================================================================
malformed JSON                                     :func:`test_a_malformed_line_...`
a schema that does not fit the table               :func:`test_a_table_that_does_not_fit_...`
no such table privilege                            :func:`test_a_missing_privilege_...`
disk full in the checkpoint                        :func:`test_a_disk_that_fills_up_...`
... and room again                                 :func:`test_a_disk_that_is_full_...`
database down at start                             :func:`test_a_database_that_is_down_at_the_start_...`
... in mid-epoch, and back                         :func:`test_a_database_that_goes_away_in_mid_epoch_...`
... for 60 s, and back                             :func:`test_a_minute_without_the_database_...` (slow)
... for longer than anyone waits                   :func:`test_a_database_that_stays_away_...`
a checkpoint of another pipeline                   :func:`test_the_checkpoint_of_another_pipeline_...`
a truncated ledger file                            :func:`test_a_truncated_decision_...`
an unwritable directory, no Java                   ``tests/spec/test_bad_input.py``: they are found before a JVM starts
=================================================  ====================================================================

The same faults are tried against each part alone, without a JVM, in ``tests/spec/test_bad_input.py``.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast.commit.records import Done, decode
from tests.crash.drivers import Driver
from tests.crash.processes import Case
from tests.disks import small_disk
from tests.servers import MortalPostgres

pytestmark = [pytest.mark.spark, pytest.mark.crash]

STAGED = {"HOLDFAST_CARRY_MAX": "0 B"}
QUICK = {"HOLDFAST_RETRY_FIRST": "200 ms", "HOLDFAST_RETRY_CAP": "2 s"}
"""Ten attempts in about 13 seconds."""
TWICE = {**QUICK, "HOLDFAST_RETRY_ATTEMPTS": "2"}

FAILED, INVALID = 1, 2


def case_of(work: Path, *sinks: str, dsn: str = "", **environment: str) -> Case:
    """Return a case with its input."""
    case = Case(work, sinks, dsn, environment)
    case.write_input()
    return case


def check_error(said: str, kind: str, *words: str) -> None:
    """Assert that an error was said once, with its cause and its cure, and without a trace."""
    _, _, message = said.partition(f"\n{kind}: ")
    assert message, f"no {kind} in:\n{said[-3000:]}"
    assert said.count(f"\n{kind}: ") == 1, said[-3000:]
    assert "\n  Why: " in message, message
    assert "\n  Do:  " in message, message
    assert "Traceback" not in said
    for word in words:
        assert word in message, f"{word!r} is not in:\n{message}"


def check_failed(run: CompletedProcess[str], code: int, kind: str, *words: str) -> None:
    """Assert how a run ended."""
    assert run.returncode == code, f"exit code {run.returncode}:\n{run.stdout[-3000:]}"
    check_error(run.stdout, kind, *words)


def check_goes_on(case: Case, **environment: str) -> None:
    """Assert that the next start brings every row into every sink once."""
    run = case.run(**environment)
    assert run.returncode == 0, run.stdout[-3000:]
    case.check_exact()
    assert case.leftovers() == []


# --- input --------------------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize("environment", [pytest.param({}, id="carried"), pytest.param(STAGED, id="staged")])
def test_a_malformed_line_is_named_and_after_mending_it_the_run_goes_on(
    environment: dict[str, str], tmp_path: Path
) -> None:
    case = case_of(tmp_path, "sqlite", "files", **environment)
    third = tmp_path / "in" / "002.json"
    lines = third.read_text().splitlines(keepends=True)
    good, lines[6] = lines[6], lines[6].replace('"id"', "id  ", 1)
    _rewrite(third, lines)
    failed = case.run()
    check_failed(failed, FAILED, "BadRow", "002.json, line 7, cannot be read", "on_bad_row")
    ids = [number for number, _ in case.rows()["sqlite"]]
    assert ids == list(range(800)), "the first epoch, and nothing of the second"
    assert case.rows()["files"] == case.rows()["sqlite"]
    check_failed(case.run(), FAILED, "BadRow", "002.json, line 7")
    lines[6] = good
    _rewrite(third, lines)
    check_goes_on(case)


def _rewrite(file: Path, lines: list[str]) -> None:
    """Write a file anew without a change of its time or size: it is taken, or has been taken, as what it was."""
    before = file.stat()
    file.write_text("".join(lines))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_size == before.st_size, "a logged file may be mended, but not change its size"


def test_a_table_that_does_not_fit_is_refused_before_the_first_epoch(tmp_path: Path) -> None:
    case = case_of(tmp_path, "sqlite")
    with sqlite3.connect(tmp_path / "out.db") as connection:
        connection.execute("CREATE TABLE rows (id INTEGER, at TEXT, value BLOB, draw REAL)")
    failed = case.run()
    check_failed(failed, INVALID, "InvalidPipeline", "'value'", "BLOB", "double")
    assert case.rows()["sqlite"] == []
    with sqlite3.connect(tmp_path / "out.db") as connection:
        connection.execute("DROP TABLE rows")
    check_goes_on(case)


# --- PostgreSQL ---------------------------------------------------------------------------------------------


@contextmanager
def clerk(dsn: str) -> Iterator[str]:
    """Yield the DSN of a role that may do nothing yet."""
    name = f"clerk_{os.getpid()}"
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'hunter2'").format(sql.Identifier(name)))
        try:
            yield make_conninfo(dsn, user=name, password="hunter2")
        finally:
            admin.execute(sql.SQL("DROP OWNED BY {0}").format(sql.Identifier(name)))
            admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


@pytest.mark.postgres
def test_a_missing_privilege_is_named_with_its_grant(tmp_path: Path, postgres_prepared: str) -> None:
    with psycopg.connect(postgres_prepared, autocommit=True) as admin, clerk(postgres_prepared) as dsn:
        admin.execute("CREATE TABLE rows (id bigint, at timestamptz, value double precision, draw double precision)")
        case = case_of(tmp_path, "postgres", dsn=dsn)
        failed = case.run()
        check_failed(failed, INVALID, "InvalidPipeline", 'GRANT INSERT ON "public"."rows"')
        assert "hunter2" not in failed.stdout
        user = sql.Identifier(str(conninfo_to_dict(dsn)["user"]))
        admin.execute(sql.SQL("GRANT SELECT, INSERT ON rows TO {}").format(user))
        admin.execute(sql.SQL("GRANT USAGE, CREATE ON SCHEMA public TO {}").format(user))
        check_goes_on(case)


@pytest.mark.nightly
@pytest.mark.postgres
def test_a_database_that_is_down_at_the_start_is_waited_for_a_while(
    tmp_path: Path, mortal_postgres: MortalPostgres
) -> None:
    case = case_of(tmp_path, "postgres", dsn=mortal_postgres.dsn)
    mortal_postgres.stop()
    failed = case.run(**TWICE)
    parts = conninfo_to_dict(mortal_postgres.dsn)
    check_failed(failed, FAILED, "Unavailable", str(parts["port"]))
    assert str(parts["password"]) not in failed.stdout
    mortal_postgres.start()
    check_goes_on(case)


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("environment", "step"),
    [
        pytest.param({}, "*.publishing", id="carried", marks=pytest.mark.nightly),
        pytest.param(
            {**STAGED, "CRASH_STAGE": "prepared"},
            "*.publishing",
            id="prepared, before publishing",
            marks=pytest.mark.nightly,
        ),
        pytest.param({**STAGED, "CRASH_STAGE": "prepared"}, "*.write1", id="prepared, while writing"),
        pytest.param(
            {**STAGED, "CRASH_STAGE": "table"}, "*.staging", id="tables, before staging", marks=pytest.mark.nightly
        ),
    ],
)
def test_a_database_that_goes_away_in_mid_epoch_and_comes_back_costs_time_only(
    environment: dict[str, str], step: str, tmp_path: Path, mortal_postgres: MortalPostgres
) -> None:
    case = case_of(tmp_path, "postgres", dsn=mortal_postgres.dsn, **environment, **QUICK)
    driver = Driver(case, "run")
    try:
        driver.await_marks(step, 1)
        mortal_postgres.stop()
        if step == "*.publishing":
            driver.await_that(lambda: "attempt 3 to publish" in driver.log(), "three attempts")
        mortal_postgres.start()
        assert driver.exit_code() == 0, driver.log()[-3000:]
    finally:
        driver.end()
    case.check_exact()
    check_goes_on(case)  # what a worker had prepared when the server went is swept, at the latest by the next start


@pytest.mark.postgres
def test_a_database_that_stays_away_ends_the_run_and_the_next_one_goes_on(
    tmp_path: Path, mortal_postgres: MortalPostgres
) -> None:
    case = case_of(tmp_path, "postgres", "files", dsn=mortal_postgres.dsn, **TWICE)
    driver = Driver(case, "run")
    try:
        driver.await_marks("*.publishing", 1)
        mortal_postgres.stop()
        assert driver.exit_code() == FAILED, driver.log()[-3000:]
    finally:
        driver.end()
    words = ("epoch 1", "could not be published in sink 'postgres_rows': 2 attempts failed", "Connection refused")
    check_error(driver.log(), "Unavailable", *words)
    mortal_postgres.start()
    check_goes_on(case)


@pytest.mark.postgres
@pytest.mark.nightly
def test_a_minute_without_the_database_is_outlasted_with_the_default_settings(
    tmp_path: Path, mortal_postgres: MortalPostgres
) -> None:
    case = case_of(tmp_path, "postgres", "sqlite", dsn=mortal_postgres.dsn)
    driver = Driver(case, "run")
    try:
        driver.await_marks("*.publishing", 3)  # the second epoch's
        mortal_postgres.stop()
        time.sleep(60)  # the minute itself is what is tested
        mortal_postgres.start()
        assert driver.exit_code() == 0, driver.log()[-3000:]
    finally:
        driver.end()
    check_goes_on(case)


# --- the checkpoint -----------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize(
    "sinks",
    [
        pytest.param(("sqlite",), id="one sink", marks=pytest.mark.nightly),
        pytest.param(("sqlite", "files"), id="two sinks"),
    ],
)
def test_a_disk_that_fills_up_under_the_checkpoint_ends_the_run_and_loses_nothing(
    sinks: tuple[str, ...], tmp_path: Path
) -> None:
    with small_disk(tmp_path / "checkpoint") as disk:
        if not os.path.ismount(disk):
            pytest.skip("needs a file system of its own, which only root may mount")
        case = case_of(tmp_path, *sinks, **TWICE)
        driver = Driver(case, "run")
        try:
            driver.await_marks("*.publishing", len(sinks) + 1)
            filler = _fill(disk)
            code = driver.exit_code()
        finally:
            driver.end()
        assert code == FAILED, driver.log()[-3000:]
        check_error(driver.log(), "Unavailable", "No space left on device")
        filler.unlink()
        check_goes_on(case)


@pytest.mark.parametrize(
    "sinks",
    [
        pytest.param(("sqlite",), id="one sink"),
        pytest.param(("sqlite", "files"), id="two sinks", marks=pytest.mark.nightly),
    ],
)
def test_a_disk_that_is_full_under_the_checkpoint_for_a_while_costs_time_only(
    sinks: tuple[str, ...], tmp_path: Path
) -> None:
    """With one sink it is Spark's own log that meets it, with two our ledger: both wait, in the same run."""
    with small_disk(tmp_path / "checkpoint") as disk:
        if not os.path.ismount(disk):
            pytest.skip("needs a file system of its own, which only root may mount")
        case = case_of(tmp_path, *sinks, **QUICK)
        driver = Driver(case, "run")
        try:
            driver.await_marks("*.publishing", len(sinks) + 1)
            filler = _fill(disk)
            driver.await_that(lambda: "attempt 2 to" in driver.log(), "two attempts")
            filler.unlink()
            assert driver.exit_code() == 0, driver.log()[-3000:]
        finally:
            driver.end()
        assert "No space left on device" in driver.log()
        case.check_exact()
        assert len(_generations(case)) == 1, "it was one run"
        check_goes_on(case)


def test_a_checkpoint_on_a_full_disk_is_said_so_at_the_start(tmp_path: Path) -> None:
    with small_disk(tmp_path / "checkpoint") as disk:
        if not os.path.ismount(disk):
            pytest.skip("needs a file system of its own, which only root may mount")
        case = case_of(tmp_path, "sqlite", **TWICE)
        filler = _fill(disk)
        check_failed(case.run(), FAILED, "Unavailable", "No space left on device")
        filler.unlink()
        check_goes_on(case)


def _fill(disk: Path) -> Path:
    """Fill a disk to its last byte."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (2**16, 2**12, 1):
            try:
                while file.write(b"\0" * size):
                    pass
            except OSError:
                continue
    return filler


@pytest.mark.nightly
def test_the_checkpoint_of_another_pipeline_is_refused_and_left_alone(tmp_path: Path) -> None:
    case = case_of(tmp_path, "sqlite")
    check_goes_on(case)
    before = _generations(case)
    failed = case.run(CRASH_NAME="another")
    check_failed(failed, INVALID, "InvalidPipeline", "belongs to pipeline 'crashed', not to 'another'", "of its own")
    assert _generations(case) == before, "nobody was fenced"
    check_goes_on(case)


def _generations(case: Case) -> list[str]:
    return sorted(path.name for path in (case.checkpoint / "generations").iterdir())


@pytest.mark.nightly
def test_a_truncated_decision_is_named_and_nothing_of_its_epoch_is_dropped(tmp_path: Path) -> None:
    """Two sinks, one of them published: whether the other one gets the epoch is written in that file alone."""
    case = case_of(tmp_path, "sqlite", "files", **STAGED)
    killed = case.run(HOLDFAST_FAULT="after-publish:2")
    assert killed.returncode < 0, killed.stdout[-3000:]
    decision = max((case.checkpoint / "ledger").iterdir())
    shutil.copy(decision, tmp_path / "copy")
    whole = decision.read_bytes()
    decision.write_bytes(whole[: len(whole) // 2])
    staged = case.leftovers()
    failed = case.run()
    check_failed(failed, FAILED, "Corrupt", decision.name, "restore")
    assert case.leftovers() == staged, "the staged rows are still needed"
    shutil.copy(tmp_path / "copy", decision)
    check_goes_on(case)


@pytest.mark.nightly
def test_a_truncated_decision_that_every_sink_has_carried_out_is_passed_over(tmp_path: Path) -> None:
    case = case_of(tmp_path, "sqlite", "files")
    check_goes_on(case)
    newest = max((case.checkpoint / "ledger").iterdir())
    assert isinstance(decode(newest.read_bytes(), newest.name), Done)
    newest.write_bytes(newest.read_bytes()[:10])
    check_goes_on(case)
