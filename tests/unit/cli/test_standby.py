"""Who may run a pipeline that keeps a lease, on the command line; without Spark (design/0028)."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import holdfast as hf
from holdfast.cli.app import app
from holdfast.cli.standing_by import Invocation, Standby
from holdfast.cli.target import load_target
from holdfast.commit.owner import this_process
from holdfast.config import Settings
from holdfast.connectors.sqlite.lease import SqliteLease
from holdfast.errors import BadRow, Fenced, InvalidPipeline
from holdfast.observe.ledgers import lease_lines, lease_report
from holdfast.ports import RunIdentity, SeenLease
from holdfast.replica.tenure import Holder, Tenure, Watch, ask, note_term, noted_term, take
from holdfast.shards.assignment import Assignment
from holdfast.shards.layout import ShardLayout, newest_layout, record_layout
from holdfast.store import sealed
from holdfast.store.paths import open_store
from tests.specs import sqlite_spec

pytestmark = pytest.mark.slow

PROGRAM = """
import holdfast as hf
rows = hf.read.rate(rows_per_second=10, name="rows")
pipeline = hf.Pipeline("trips", rows | hf.write.sqlite({file!r}, table="trips", name="table"))
"""
LONG_US = 600_000_000


@pytest.fixture
def program(tmp_path: Path) -> str:
    (tmp_path / "program.py").write_text(PROGRAM.format(file=str(tmp_path / "out.db")))
    return f"{tmp_path}/program.py:pipeline"


def place(tmp_path: Path) -> SqliteLease:
    return SqliteLease(str(tmp_path / "out.db"), "trips")


def seen(tmp_path: Path) -> SeenLease:
    found = place(tmp_path).read()
    assert found is not None
    return found


def taken(tmp_path: Path, name: str = "main", ttl_us: int = LONG_US) -> Tenure:
    at = place(tmp_path)
    watch = Watch(at)
    assert watch.is_free()
    tenure = take(at, watch.seen, Holder(name), ttl_us)
    assert tenure is not None
    return tenure


def told(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.output


# --- promote ----------------------------------------------------------------------------------------------------------


def test_without_a_lease_there_is_nobody_to_promote(program: str) -> None:
    code, said = told("promote", program)
    assert code == 2
    assert "has no lease" in said


def test_a_dry_run_says_who_holds_it_and_asks_nobody(program: str, tmp_path: Path) -> None:
    taken(tmp_path).renew(5)
    code, said = told("promote", program, "--dry-run", "--json")
    assert code == 0
    assert (json.loads(said)["before"]["term"], json.loads(said)["before"]["generation"]) == (1, 5)
    assert seen(tmp_path).lease.asked_term == 0


def test_a_comparison_is_asked_for_with_the_promotion(program: str, tmp_path: Path) -> None:
    taken(tmp_path)
    code, said = told("promote", program, "--compare", "--wait", "0s", "--json")
    assert code == 0, said
    assert json.loads(said)["not_compared"] == {}
    lease = seen(tmp_path).lease
    assert (lease.asked_term, lease.compares) == (1, True)


def test_a_comparison_of_sinks_that_nobody_can_compare_is_refused_and_nobody_is_asked(
    tmp_path: Path,
) -> None:
    written = PROGRAM.format(file=str(tmp_path / "out.db")).replace('table="trips"', 'table="trips", control="told"')
    written = written.replace(
        'name="rows")', 'name="rows") | hf.select("value", told="cast(null AS STRING)", name="s")'
    )
    (tmp_path / "program.py").write_text(written)
    taken(tmp_path)
    code, said = told("promote", f"{tmp_path}/program.py:pipeline", "--compare")
    assert code == 2
    assert "no sink of pipeline 'trips' can be compared" in said
    assert "table: commands among its rows" in said
    assert seen(tmp_path).lease.asked_term == 0


def test_a_comparison_behind_an_operator_that_goes_by_the_clock_is_refused_and_nobody_is_asked(tmp_path: Path) -> None:
    written = PROGRAM.format(file=str(tmp_path / "out.db")).replace(
        'name="rows")',
        'name="rows") | hf.aggregate(window=hf.tumbling("1 s"), n=hf.count(), idle_after="1 s", name="sums")',
    )
    (tmp_path / "program.py").write_text(written)
    taken(tmp_path)
    code, said = told("promote", f"{tmp_path}/program.py:pipeline", "--compare")
    assert code == 2
    assert "table: sums decides by the time at which epochs were planned" in said
    assert seen(tmp_path).lease.asked_term == 0


def test_a_comparison_that_was_asked_for_is_taken_back_by_a_promotion_without_it(program: str, tmp_path: Path) -> None:
    taken(tmp_path)
    for more, compares in ((("--compare",), True), ((), False)):
        code, said = told("promote", program, *more, "--wait", "0s")
        assert code == 0, said
        assert seen(tmp_path).lease.compares is compares


# --- inspect ----------------------------------------------------------------------------------------------------------


def inspected_lease(program: str, tmp_path: Path) -> dict[str, Any] | None:
    (tmp_path / "ckpt").mkdir(exist_ok=True)
    code, said = told("inspect", program, "--checkpoint", str(tmp_path / "ckpt"), "--json")
    assert code == 0, said
    lease: dict[str, Any] | None = json.loads(said)["lease"]
    return lease


def test_inspect_says_who_holds_the_lease_and_not_by_which_token(program: str, tmp_path: Path) -> None:
    assert inspected_lease(program, tmp_path) is None
    taken(tmp_path, "db1").renew(5)
    found = inspected_lease(program, tmp_path)
    assert found is not None
    assert (found["lease"]["term"], found["lease"]["generation"], found["problem"]) == (1, 5, "")
    assert "token" not in found["lease"]
    assert seen(tmp_path).lease.token not in json.dumps(found)
    _, said = told("inspect", program, "--checkpoint", str(tmp_path / "ckpt"))
    assert "lease       db1 (process " in said
    assert "holds term 1 with generation 5, for 600 s at a time" in said


def test_inspect_says_that_a_promotion_is_asked_for(program: str, tmp_path: Path) -> None:
    taken(tmp_path)
    ask(place(tmp_path))
    (tmp_path / "ckpt").mkdir()
    _, said = told("inspect", program, "--checkpoint", str(tmp_path / "ckpt"))
    assert "a promotion is asked for" in said


def test_a_lease_that_cannot_be_read_is_no_reason_not_to_inspect(program: str, tmp_path: Path) -> None:
    (tmp_path / "out.db").write_text("no database, and longer than the head of one: " + "x" * 200)
    report = lease_report(load_target(program))
    assert report is not None
    assert list(lease_lines(report)) == [f"lease       no answer: {report.problem}"]
    assert "cannot be reached" in report.problem


def test_where_nobody_watches_it_says_so_and_stays_asked_for(program: str, tmp_path: Path) -> None:
    taken(tmp_path)
    code, said = told("promote", program, "--wait", "50ms")
    assert code == 1
    assert "nobody has taken over" in said
    assert seen(tmp_path).lease.asked_term == 1


def test_it_waits_until_the_run_of_the_one_that_took_it_has_begun(program: str, tmp_path: Path) -> None:
    taken(tmp_path)

    def replica() -> None:
        while not Watch(place(tmp_path)).is_free():
            time.sleep(0.01)
        taken(tmp_path, "replica").renew(9)

    thread = threading.Thread(target=replica)
    thread.start()
    code, said = told("promote", program)
    thread.join()
    assert code == 0, said
    assert "now: replica" in said
    assert "holds term 2 with generation 9" in said


# --- run --------------------------------------------------------------------------------------------------------------


class Remembered(Invocation):
    """Does not replace the process of the tests."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def begin_again_as_replica(self) -> None:
        self.count += 1


def pipeline(tmp_path: Path, *, keeps_state: bool = False) -> hf.Pipeline:
    rows = hf.read.rate(rows_per_second=10, name="rows")
    if keeps_state:
        rows = rows | hf.distinct("value", "1 s", name="once")
    return hf.Pipeline("trips", rows | hf.write.sqlite(tmp_path / "out.db", table="trips", name="table"))


@contextmanager
def standby(
    tmp_path: Path, invocation: Invocation, *, keeps_state: bool = False, only_shard: int | None = None
) -> Iterator[Standby]:
    directory = tmp_path / "checkpoint"
    directory.mkdir(exist_ok=True)
    of = pipeline(tmp_path, keeps_state=keeps_state)
    settings = Settings(lease="10 min")
    made = Standby(of, directory, settings, invocation, is_replica=False, as_json=False, only_shard=only_shard)
    yield made


def had_run(tmp_path: Path, term: int) -> Path:
    spark = tmp_path / "checkpoint" / "spark"
    spark.mkdir(parents=True)
    note_term(open_store(str(tmp_path / "checkpoint")), term)
    return spark


def test_the_first_one_takes_the_lease_and_gives_it_back_at_its_end(tmp_path: Path) -> None:
    with standby(tmp_path, Remembered()) as made:
        made.take({})
        assert noted_term(open_store(str(tmp_path / "checkpoint"))) == 1
        assert seen(tmp_path).lease.token
        with made:
            pass
    assert seen(tmp_path).lease.token == ""


@pytest.mark.parametrize(("noted", "is_kept"), [(1, True), (0, False)])
def test_a_checkpoint_that_another_one_has_overtaken_is_set_aside(tmp_path: Path, noted: int, is_kept: bool) -> None:
    taken(tmp_path).give_back()
    spark = had_run(tmp_path, noted)
    with standby(tmp_path, Remembered()) as made:
        made.take({})
        with made:
            pass
    assert spark.exists() is is_kept
    assert (tmp_path / "checkpoint" / "set-aside" / "spark").exists() is not is_kept


def test_a_checkpoint_of_another_pipeline_is_left_alone(tmp_path: Path) -> None:
    taken(tmp_path).give_back()
    spark = had_run(tmp_path, 0)
    open_store(str(tmp_path / "checkpoint")).put("identity.json", sealed.dump({"pipeline": "rides", "format": 1}))
    with standby(tmp_path, Remembered()) as made, pytest.raises(InvalidPipeline, match="belongs to pipeline 'rides'"):
        made.take({})
    assert spark.exists()
    assert seen(tmp_path).lease.token == "", "given back"


def test_a_checkpoint_of_a_run_that_is_alive_is_left_alone(tmp_path: Path) -> None:
    taken(tmp_path).give_back()
    spark = had_run(tmp_path, 0)
    alive = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        who = json.loads(this_process(1)) | {"pid": alive.pid, "began": ""}
        open_store(str(tmp_path / "checkpoint")).put("generations/000001", json.dumps(who).encode())
        with standby(tmp_path, Remembered()) as made, pytest.raises(InvalidPipeline, match="seems to run"):
            made.take({})
    finally:
        alive.kill()
        alive.wait()
    assert spark.exists()


def test_state_is_not_set_aside_for_a_holder_that_may_not_have_noted_its_term(tmp_path: Path) -> None:
    taken(tmp_path).give_back()
    spark = had_run(tmp_path, 0)
    with standby(tmp_path, Remembered(), keeps_state=True) as made:
        made.take({})
        with made:
            pass
    assert spark.exists()


def test_a_fenced_one_begins_again_as_the_replica_and_gives_nothing_back(tmp_path: Path) -> None:
    invocation = Remembered()
    with standby(tmp_path, invocation) as made:
        made.take({})
        with pytest.raises(Fenced), made:
            raise Fenced("a newer one")
    assert invocation.count == 1
    assert seen(tmp_path).lease.token


def test_a_main_that_is_started_again_waits_for_the_lease_of_the_one_that_died(tmp_path: Path) -> None:
    taken(tmp_path, ttl_us=200_000)
    with standby(tmp_path, Remembered()) as made:
        made.take({})  # without Spark: not as a replica
        with made:
            assert seen(tmp_path).lease.term == 2


def test_who_takes_a_lease_with_which_a_comparison_was_asked_for_compares(tmp_path: Path) -> None:
    taken(tmp_path)
    ask(place(tmp_path), compares=True)
    options: dict[str, Any] = {}
    with standby(tmp_path, Remembered()) as made:
        made.take(options)
        with made:
            assert options == {"compare_on_start": True}
    taken(tmp_path).renew(7)
    seen_before = seen(tmp_path)
    assert not seen_before.lease.compares, "its run has begun"


def test_who_takes_a_lease_with_a_comparison_and_has_no_sink_that_can_be_compared_goes_on(tmp_path: Path) -> None:
    """Refused, it would give the lease back with the request in it, for the next one to be refused."""
    taken(tmp_path)
    ask(place(tmp_path), compares=True)
    directory, options = tmp_path / "checkpoint", dict[str, Any]()
    directory.mkdir()
    rows = hf.read.rate(rows_per_second=10, name="rows") | hf.select("value", told="cast(null AS STRING)", name="s")
    table = rows | hf.write.sqlite(tmp_path / "out.db", table="trips", control="told", name="table")
    made = Standby(
        hf.Pipeline("trips", table), directory, Settings(lease="10 min"), Remembered(), is_replica=False, as_json=False
    )
    made.take(options)
    with made:
        assert options == {}


@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize(
    ("keeps_state", "wanted", "is_refused"), [(False, True, False), (False, ["table"], True), (True, True, True)]
)
def test_a_replica_that_cannot_compute_what_sinks_should_hold_waits_without_unless_it_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps_state: bool, wanted: Any, is_refused: bool, begins: bool
) -> None:
    """A row that became a dead letter of the main ends the shadow of a replica that does not know it."""
    failed, count = BadRow("a row that the main has left out"), 0

    class FailingShadow:
        def __init__(self, *told: object) -> None:
            nonlocal count
            count += 1
            if not begins:
                raise failed

        def check(self) -> None:
            raise failed

        def stop(self) -> None:
            pass

    monkeypatch.setattr("holdfast.cli.standing_by.Shadowing", FailingShadow)
    taken(tmp_path).renew(5)
    with standby(tmp_path, Remembered(), keeps_state=keeps_state) as made:
        made._options = {"compare_on_start": wanted}
        with pytest.raises(BadRow) if is_refused else nullcontext():
            for _ in range(3):
                made._shadow(seen(tmp_path))
            assert count == 1, "it is not tried at every look"


def test_sinks_that_are_to_be_compared_and_cannot_be_are_refused_before_the_lease_is_taken(tmp_path: Path) -> None:
    with standby(tmp_path, Remembered()) as made, pytest.raises(InvalidPipeline, match="has no sink 'tabel'"):
        made.take({"compare_on_start": ["tabel"]})
    assert place(tmp_path).read() is None


def test_one_that_was_told_where_to_begin_becomes_no_replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.cli.standing_by.SOON_S", 0.0)
    invocation = Remembered()
    with standby(tmp_path, invocation) as made:
        made.take({"at": "2026-01-01"})
        with pytest.raises(Fenced), made:
            raise Fenced("a newer one")
    assert invocation.count == 0
    with standby(tmp_path, invocation) as other, pytest.raises(InvalidPipeline, match="another process runs"):
        other.take({"at": "2026-01-01"})


def test_where_no_sink_can_keep_a_lease_it_is_refused(tmp_path: Path) -> None:
    rows = hf.read.rate(rows_per_second=10, name="rows")
    console = hf.Pipeline("trips", rows | hf.write.console(name="shown"))
    made = Standby(console, tmp_path, Settings(), Remembered(), is_replica=False, as_json=False)
    with pytest.raises(InvalidPipeline, match="no sink of pipeline 'trips' can keep a lease"):
        made.take({})


# --- shards -----------------------------------------------------------------------------------------------------------

AT: dict[str, Any] = {"at": "2026-01-01"}
"""Whoever says where it begins is refused where it would have to wait."""


def in_shards(tmp_path: Path, count: int = 2) -> Path:
    """Record a layout in the checkpoint."""
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    assert record_layout(open_store(str(directory)), ShardLayout(Assignment(count)))
    return directory


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.cli.standing_by.SOON_S", 0.0)


@pytest.mark.parametrize(
    ("first", "second", "waits"),
    [
        (0, 1, False),
        (1, 1, True),
        (0, 0, True),
        (1, None, True),
        (0, None, True),
        (None, 1, True),
        (None, 0, True),
        (None, None, True),
    ],
)
def test_who_runs_other_shards_runs_beside_and_who_runs_the_same_waits(
    tmp_path: Path, impatient: None, first: int | None, second: int | None, waits: bool
) -> None:
    """None is who runs all of them (design/0048, section 8)."""
    in_shards(tmp_path)
    refusal = pytest.raises(InvalidPipeline, match="another process runs") if waits else nullcontext()
    with (
        standby(tmp_path, Remembered(), only_shard=first) as one,
        one_taken(one),
        standby(tmp_path, Remembered(), only_shard=second) as other,
        refusal,
        one_taken(other),
    ):
        pass
    with standby(tmp_path, Remembered(), only_shard=second) as other, one_taken(other):
        pass


@contextmanager
def one_taken(made: Standby) -> Iterator[None]:
    made.take(dict(AT))
    with made:
        yield


def test_of_one_that_runs_all_and_one_that_runs_a_shard_none_goes_on_that_sees_the_other(
    tmp_path: Path, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both find the other's lease free, and then take their own: each looks again."""
    in_shards(tmp_path)

    def take_late(*told: Any) -> Tenure | None:
        taken(tmp_path)
        return take(*told)

    monkeypatch.setattr("holdfast.cli.standing_by.take", take_late)
    with standby(tmp_path, Remembered(), only_shard=1) as late, pytest.raises(InvalidPipeline, match="another process"):
        late.take(dict(AT))
    found = SqliteLease(str(tmp_path / "out.db"), "trips-1").read()
    assert found is not None
    assert found.lease.token == "", "given back"


@pytest.mark.parametrize("only_shard", [None, 1])
def test_a_checkpoint_with_shards_that_another_one_has_overtaken_is_refused_and_stays(
    tmp_path: Path, only_shard: int | None
) -> None:
    """Set aside, its shards would begin without the layout by which the main's sinks were written."""
    directory = in_shards(tmp_path)
    at = place(tmp_path) if only_shard is None else SqliteLease(str(tmp_path / "out.db"), f"trips-{only_shard}")
    tenure = take(at, None, Holder("main"), LONG_US)
    assert tenure is not None
    tenure.renew(3)
    tenure.give_back()
    refusal = pytest.raises(InvalidPipeline, match="not the checkpoint that the main of pipeline 'trips' ran with")
    with standby(tmp_path, Remembered(), only_shard=only_shard) as made, refusal:
        made.take({})
    assert newest_layout(open_store(str(directory))) is not None
    found = at.read()
    assert found is not None
    assert found.lease.token == "", "given back"


def test_a_checkpoint_without_shards_is_refused_where_sinks_hold_those_of_another(tmp_path: Path) -> None:
    taken(tmp_path).renew(3)
    for name in ("trips", "trips-1"):
        sink = sqlite_spec(str(tmp_path / "out.db"), "trips").connect("table", name, pa.schema([("value", pa.int64())]))
        sink.open(RunIdentity(name, 1))
        sink.close()
    with standby(tmp_path, Remembered()) as made, pytest.raises(InvalidPipeline, match="pipeline has shards"):
        made._check_checkpoint(seen(tmp_path))
