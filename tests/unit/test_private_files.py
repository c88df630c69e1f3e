"""What we make is its user's alone, whatever the umask says; what is published follows the umask."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.checkpoint import manifest, named, progress, replay_floor, source_history, user_data
from holdfast.checkpoint.directory_header import BEGINNING
from holdfast.cli.supervision import RECORD
from holdfast.connectors.files.sink.spec import FilesSinkSpec
from holdfast.observe import logs
from holdfast.ports import EpochRecord, Held, Publication, RunIdentity, Sink, SinkSpec, Task
from holdfast.quarantine import dead_letters
from holdfast.quarantine.search import ATTEMPTS, SEARCH
from holdfast.spark.quarantine.trials import COPY
from holdfast.spark.state.reader import VIEWS
from holdfast.starts.rewind_target import REWINDS
from holdfast.status import STATE_REPORT_KEY
from holdfast.store import durable
from holdfast.store.local import LocalStore
from tests.modes import check_private, mode
from tests.specs import sqlite_spec

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])
ROWS = pa.RecordBatch.from_pydict({"id": [1, 2], "day": ["a", "b"]}, schema=SCHEMA)


def staged(sink: Sink, epoch: int) -> Publication:
    writer = sink.writer_factory()(Task("words", 1, epoch, 0, 0))
    writer.write(ROWS)
    return Publication(EpochRecord("words", epoch, 1, {}), (writer.stage(),))


def opened(spec: SinkSpec) -> Sink:
    sink = spec.connect("sink", "words", SCHEMA)
    sink.open(RunIdentity("words", 1))
    return sink


def test_objects_of_a_checkpoint_are_its_users_alone(tmp_path: Path, umask: int) -> None:
    store = LocalStore(str(tmp_path / "new" / "checkpoint"))
    store.put("ledger/1.json", b"{}")
    store.put_if_absent("snapshots/a/b", b"rows")
    check_private(tmp_path / "new")


def test_the_log_is_too_and_so_are_the_files_that_it_is_set_aside_in(
    tmp_path: Path, umask: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "FILE_BYTES", 100)
    with logs.logging_to(tmp_path / "checkpoint" / logs.FILE_NAME):
        for _ in range(5):
            logging.getLogger("holdfast.test").info("x" * 60)
    assert (tmp_path / "checkpoint" / f"{logs.FILE_NAME}.1").exists()
    check_private(tmp_path / "checkpoint")


def test_files_are_published_as_the_umask_says_and_all_else_beside_them_is_private(tmp_path: Path, umask: int) -> None:
    sink = opened(FilesSinkSpec(str(tmp_path / "out"), partition_by=("day",)))
    sink.publish([staged(sink, 1)], Held())
    waiting = staged(sink, 2)
    sink.close()
    own = tmp_path / "out" / "_holdfast"
    data = [path for path in (tmp_path / "out").rglob("*") if not path.is_relative_to(own)]
    assert {mode(path) for path in data if path.is_file()} == {0o666 & ~umask}
    assert {mode(path) for path in [tmp_path / "out", *data] if path.is_dir()} == {0o777 & ~umask}
    for path in [own, *own.rglob("*")]:
        # A staged file has the mode that it is published with; the directories above it are ours alone.
        assert mode(path) == (0o700 if path.is_dir() else 0o600) or path.suffix == ".staged"
    assert waiting.row_count == 2


def test_a_database_is_the_users_and_what_is_staged_beside_it_is_ours(tmp_path: Path, umask: int) -> None:
    sink = opened(sqlite_spec(str(tmp_path / "new" / "words.db"), "words"))
    staged(sink, 1)
    sink.close()
    assert mode(tmp_path / "new") == 0o777 & ~umask
    check_private(tmp_path / "new" / "words.db-holdfast")


def test_what_an_older_version_made_for_everybody_is_taken_back_and_the_users_own_is_let_be(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    for name in ("ledger", "spark", "mine"):
        (checkpoint / name).mkdir(parents=True)
        (checkpoint / name).chmod(0o755)
    for name in ("identity.json", "holdfast.log.2", "notes"):
        (checkpoint / name).touch()
        (checkpoint / name).chmod(0o644)
    checkpoint.chmod(0o755)
    os.symlink(tmp_path, checkpoint / "sinks")
    LocalStore(str(checkpoint)).prepare()
    found = {path.name: mode(path) for path in checkpoint.iterdir() if not path.is_symlink()}
    assert found == {
        ".writing": 0o700,
        "ledger": 0o700,
        "spark": 0o700,
        "mine": 0o755,
        "identity.json": 0o600,
        "holdfast.log.2": 0o600,
        "notes": 0o644,
    }
    assert mode(checkpoint) == 0o755
    assert mode(tmp_path) == 0o700


DIRECTORIES = ("dead-letters", "fences", "foreach_batch", "generations", "graph", "ledger", "schemas", "sinks")
KEYS = {
    *(f"{name}/1.json" for name in DIRECTORIES),
    *("identity.json", "sources/rows/log", "spark/0/metadata", ".writing/1", f"{COPY}/offsets/0", f"{VIEWS}/1/state"),
    *(ATTEMPTS, SEARCH, BEGINNING, REWINDS, RECORD, STATE_REPORT_KEY),
    *(f"{module.PREFIX}1" for module in (dead_letters, manifest, named, progress, user_data)),
    *(replay_floor.KEY, replay_floor.NAMED_KEY, source_history.KEY),
}


@pytest.mark.parametrize("key", sorted(KEYS))
def test_whatever_an_older_version_left_in_a_checkpoint_is_taken_back(tmp_path: Path, key: str) -> None:
    there = tmp_path / key
    there.parent.mkdir(parents=True, exist_ok=True)
    there.touch()
    top = tmp_path / key.partition("/")[0]
    top.chmod(0o755)
    LocalStore(str(tmp_path)).prepare()
    assert mode(top) & 0o077 == 0


def test_a_directory_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there").chmod(0o750)
    durable.make_directory(str(tmp_path / "there"))
    assert mode(tmp_path / "there") == 0o750
