"""``holdfast inspect`` and ``resolve``: over a checkpoint that a dead run left, with real sinks and no JVM."""

import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from holdfast import faults
from holdfast.checkpoint import named
from holdfast.checkpoint.directory_header import DirectoryHeader
from holdfast.checkpoint.graph_record import described, write_graph
from holdfast.checkpoint.manifest import EpochEnd, Manifest
from holdfast.checkpoint.participation import Participation
from holdfast.checkpoint.schemas import note_schema
from holdfast.cli.app import app
from holdfast.cli.failures import as_object
from holdfast.cli.reject_rows import Rejected, keeping, rejected_lines
from holdfast.cli.target import load_target
from holdfast.clock import SystemClock
from holdfast.commit.coordinator import Coordinator
from holdfast.controller.layouts.graph import ShardGraphs
from holdfast.errors import BadRow, HoldfastError
from holdfast.graph.graph import Graph
from holdfast.ports import Carried, EpochRecord, Refused
from holdfast.quarantine.dead_letters import DeadLetters, Letter
from holdfast.quarantine.mask import Address, one_row
from holdfast.shards.layout import newest_layout, record_layout
from holdfast.shards.naming import shard_checkpoint
from holdfast.starts.in_doubt import open_decisions
from holdfast.store.paths import open_store
from holdfast.testing.store import SimulatedStore
from tests.starts import start_of

pytestmark = pytest.mark.slow

SCHEMA = pa.schema([("x", pa.int64())])
SCRIPT = """
    import holdfast as hf
    rows = hf.read.files("in/*.json", schema="x BIGINT", name="rides")
    def table(name):
        return rows | hf.write.sqlite(f"{name}.db", table="t", name=f"table_{name}")
    one = hf.Pipeline("one", table("one"))
    two = hf.Pipeline("two", table("two"), rows | hf.write.files("out", name="archive"))
    tables = hf.Pipeline("tables", table("two"), table("three"))
    local = hf.Pipeline("local", rows | hf.write.memory("kept"), table("local"))
    doubt = hf.Pipeline("doubt", rows | hf.write.memory("kept_in_doubt"), table("doubt"))
    more = hf.read.files("more/*.json", schema="x BIGINT", name="walks")
    one_of_both = hf.Pipeline("one", hf.union(rows, more, name="both")
                              | hf.write.sqlite("one.db", table="t", name="table_one"))
    timed = hf.read.files("in/*.json", schema="x BIGINT", timestamp="x", name="rides")
    at_pts = hf.Pipeline(
        "at_pts", timed | hf.write.sqlite("at_pts.db", table="t", name="table_at_pts"), commit_at="pts"
    )
    counted = hf.Pipeline("counted", rows | hf.accumulate(by="x", n=hf.count(), name="per_x")
                          | hf.write.sqlite("counted.db", table="t", name="table_counted"))
"""


class Crash(BaseException):
    """The driver dies here."""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    (tmp_path / "flows.py").write_text(textwrap.dedent(SCRIPT))
    return tmp_path


def run_epochs(name, last_epoch, *, crash_at=None, pts=None, shard=None):
    """Do what the engine does, without an engine: epochs 1 to ``last_epoch``, dying at a point of the last one."""
    pipeline: Graph = load_target(f"flows.py:{name}")
    checkpoint, segment = "ckpt", "log"
    if shard is not None:
        graphs = ShardGraphs(pipeline, Path("ckpt"))
        layout = newest_layout(open_store("ckpt")) or record_layout(open_store("ckpt"), graphs.first(3, ""))
        assert layout is not None
        pipeline, checkpoint, segment = graphs.of(layout, shard), shard_checkpoint("ckpt", shard), f"{shard}/60"
    store = open_store(checkpoint)
    sinks = [node.spec.connect(node.name, pipeline.name, SCHEMA) for node in pipeline.sinks]
    coordinator = Coordinator(
        pipeline=pipeline.name, store=store, sinks=sinks, clock=SystemClock(), commit_thread=False
    )  # fmt: skip
    resumption = coordinator.open()
    for sink in sinks:
        note_schema(store, sink.name, SCHEMA)
    spark = Path(checkpoint, "spark/1")
    for directory in ("offsets", "commits"):
        (spark / directory).mkdir(parents=True, exist_ok=True)
    store.put("spark/1/origin.json", DirectoryHeader(1).to_json())
    try:
        for epoch in range(resumption.last_epoch + 1, last_epoch + 1):
            (spark / "offsets" / str(epoch - 1)).write_text(offset_entry(epoch, segment))
            if crash_at and epoch == last_epoch:
                faults.install(_dying_at(crash_at))
            record = EpochRecord(pipeline.name, epoch, coordinator.generation, {"rides": {segment: epoch}}, pts)
            first = 1000 * (shard or 0) + epoch * 10
            rows = pa.table({"x": [first, first + 1]}, SCHEMA)
            claim = coordinator.missing(epoch)
            coordinator.commit(claim, record, {sink: (Carried(rows),) for sink in claim.sinks})
            (spark / "commits" / str(epoch - 1)).write_text("v1\n")
    except Crash:
        pass
    finally:
        faults.install(None)
        coordinator.close()
        pretend_the_driver_is_gone(checkpoint)


def offset_entry(position, segment="log"):
    offset = json.dumps({"positions": {segment: position}, "size_bytes": 0, "row_count": 0})
    return f'v2\n{{"batchTimestampMs": 0}}\nrides:{offset}\n'


def _dying_at(wanted):
    def hook(point, epoch):
        if point == wanted:
            raise Crash

    return hook


def pretend_the_driver_is_gone(checkpoint="ckpt"):
    """Take over in the name of a process that does not exist: it was this one, which goes on living."""
    for path in Path(checkpoint, "generations").iterdir():
        path.write_text(json.dumps(json.loads(path.read_text()) | {"pid": 2**22 + 1}))


def holdfast(*arguments):
    return CliRunner().invoke(app, [*arguments])


def test_what_is_in_doubt_in_shards_is_resolved_in_each_and_those_that_have_not_begun_are_passed_over():
    run_epochs("tables", 2, crash_at="after-publish", shard=0)
    run_epochs("tables", 3, crash_at="after-decide", shard=1)
    assert rows_in("two.db") == [10, 11, 20, 21, 1010, 1011, 1020, 1021]
    assert rows_in("three.db") == [10, 11, 1010, 1011, 1020, 1021]
    inspected = holdfast("inspect", "--checkpoint", "ckpt").stdout
    assert "! decided, and not known to be published everywhere: epoch 2." in inspected
    assert "! shard 1: 1 epochs are decided, and not known to be published everywhere." in inspected
    assert [
        each["in_doubt"] for each in json.loads(holdfast("inspect", "--checkpoint", "ckpt", "--json").stdout)["shards"]
    ] == [1, 1, 0]
    of_shard = holdfast("inspect", "--checkpoint", "ckpt", "--shard", "1").stdout
    assert "holdfast resolve TARGET --checkpoint ckpt --shard 1\n" in of_shard
    resolve = ("resolve", "flows.py:tables", "--checkpoint", "ckpt")
    unclear = holdfast(*resolve, "--epoch", "2")
    assert unclear.exit_code == 2
    assert "--shard K" in unclear.output
    assert "its shards are 0, 1, 2" in holdfast(*resolve, "--shard", "7").output
    planned = json.loads(holdfast(*resolve, "--dry-run", "--json").stdout)
    assert [of["decisions"][-1]["standing"] for of in planned["shards"].values()] == ["open", "open"]
    alone = holdfast(*resolve, "--shard", "0")
    assert alone.exit_code == 0, alone.output
    assert "shard 0  epoch 2, table_three: " in alone.stdout
    assert rows_in("three.db") == [10, 11, 20, 21, 1010, 1011, 1020, 1021]
    pretend_the_driver_is_gone()
    both = holdfast(*resolve)
    assert both.exit_code == 0, both.output
    assert "shard 0  no epoch was in doubt." in both.stdout
    assert "shard 1  tables-1 is resolved, as generation 2. " in both.stdout
    for database in ("two.db", "three.db"):
        assert rows_in(database) == [10, 11, 20, 21, 1010, 1011, 1020, 1021, 1030, 1031]
    assert not Path("ckpt/shards/2").exists()


def rows_in(database):
    with sqlite3.connect(database) as connection:
        found = [x for (x,) in connection.execute("SELECT x FROM t ORDER BY x")]
    connection.close()
    return found


def everything_below(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(Path(directory).rglob("*"))
        if path.is_file() and not path.name.endswith(("-wal", "-shm"))
    }


# --- inspect ------------------------------------------------------------------------------------------------------


def test_inspect_shows_a_clean_checkpoint_and_what_each_sink_holds():
    run_epochs("two", 3)
    answer = holdfast("inspect", "flows.py:two", "--checkpoint", "ckpt")
    assert answer.exit_code == 0, answer.output
    text = answer.stdout
    assert re.search(r"pipeline +two\n", text)
    assert re.search(r"generation +1, taken 20..-.*Z by .*, process 4194305, gone\n", text)
    assert re.search(r"ledger +last done epoch 3, 3 done\n", text)
    assert re.search(r"spark/1 +planned epoch 3, finished epoch 3\n", text)
    assert "sink table_two  sqlite, exactly-once, stages by: Arrow files\n  holds everything up to epoch 3" in text
    assert "sink archive  files, exactly-once" in text
    assert "    rides  log=3" in text
    assert "!" not in text


def test_inspect_without_a_target_reads_the_checkpoint_only():
    run_epochs("two", 2)
    answer = holdfast("inspect", "--checkpoint", "ckpt")
    assert answer.exit_code == 0
    assert "last done epoch 2" in answer.stdout
    assert "sink" not in answer.stdout.replace("sinks", "")


def test_inspect_names_an_open_decision_the_doubt_and_what_to_type():
    run_epochs("two", 2, crash_at="after-decide")
    text = holdfast("inspect", "flows.py:two", "--checkpoint", "ckpt").stdout
    assert "1 done, " not in text
    assert "last done epoch 1, 1 open, 1 done" in text
    assert "epoch 2 of generation 1: decided, not yet published everywhere; " in text
    assert "table_two 2 rows carried" in text
    assert "epoch 2: ledger commit, sink absent -> it will be published, from the decision." in text
    assert "! decided, and not known to be published everywhere: epoch 2." in text
    assert "holdfast resolve TARGET --checkpoint ckpt" in text


def test_inspect_names_the_sources_that_have_ended():
    run_epochs("two", 1)
    offset = {"positions": {"log": 3}, "size_bytes": 0, "row_count": 0, "has_ended": True}
    log = Path("ckpt/spark/1/offsets")
    (log / "0").write_text(f'v2\n{{"batchTimestampMs": 1}}\nrides:{json.dumps(offset)}')
    assert "finished sources: rides" in holdfast("inspect", "--checkpoint", "ckpt").stdout
    (log / "0").write_text("v2\n")
    assert "finished sources" not in holdfast("inspect", "--checkpoint", "ckpt").stdout, "torn: nothing is known"


def test_inspect_as_json_is_one_object_with_every_answer():
    run_epochs("two", 2, crash_at="after-publish")
    found = json.loads(holdfast("inspect", "flows.py:two", "--checkpoint", "ckpt", "--json").stdout)
    assert found["pipeline"] == "two"
    assert found["last_done"] == 1
    assert [(d["epoch"], d["standing"]) for d in found["decisions"]] == [(1, "done"), (2, "open")]
    assert found["spark"] == [{"directory": "spark/1", "base": 1, "planned": 2, "finished": 1, "ended": []}]
    by_name = {sink["name"]: sink for sink in found["sinks"]}
    assert by_name["table_two"]["held"]["epoch"] == 2
    assert by_name["archive"]["held"]["epoch"] == 1
    assert {"epoch": 2, "decision": "commit", "outcome": "published", "verdict": "skip"} in by_name["table_two"][
        "answers"
    ]
    assert {"epoch": 2, "decision": "commit", "outcome": "absent", "verdict": "publish"} in by_name["archive"][
        "answers"
    ]


def test_inspect_of_one_sink_says_that_the_sink_is_the_ledger():
    run_epochs("one", 2, crash_at="publish-uncommitted")
    text = holdfast("inspect", "flows.py:one", "--checkpoint", "ckpt").stdout
    assert "empty (with one sink, the sink's own ledger row is the decision)" in text
    assert "holds everything up to epoch 1" in text
    assert "epoch 2: ledger none, sink absent -> nothing of it is visible; it is produced again." in text


@pytest.mark.parametrize(
    ("pts", "says"),
    [
        (1_767_225_600_000_000_001, "exactly what lies before 1,767,225,600,000,000,001 ticks, of every input"),
        (2**63 - 1, "everything of every input: all have ended"),
    ],
)
def test_inspect_and_resolve_say_that_a_sink_holds_exactly_what_lies_before_its_pts(pts, says):
    """To the tick: no double keeps this one apart from its neighbours."""
    run_epochs("at_pts", 1, pts=pts)
    text = holdfast("inspect", "flows.py:at_pts", "--checkpoint", "ckpt").stdout
    assert f"  holds {says}, up to epoch 1" in text
    assert (
        f"table_at_pts holds {says}, up to epoch 1"
        in holdfast("resolve", "flows.py:at_pts", "--checkpoint", "ckpt").stdout
    )
    found = json.loads(holdfast("inspect", "flows.py:at_pts", "--checkpoint", "ckpt", "--json").stdout)
    assert [(sink["is_at_pts"], sink["held"]["pts"]) for sink in found["sinks"]] == [(True, pts)]


def test_inspect_changes_nothing_in_the_checkpoint_and_fences_nobody():
    run_epochs("two", 2, crash_at="after-decide")
    before = everything_below("ckpt"), rows_in("two.db"), everything_below("out")
    holdfast("inspect", "flows.py:two", "--checkpoint", "ckpt")
    holdfast("resolve", "flows.py:two", "--checkpoint", "ckpt", "--dry-run")
    assert (everything_below("ckpt"), rows_in("two.db"), everything_below("out")) == before


def test_commands_that_only_look_leave_no_directory_behind():
    run_epochs("one", 1)
    Path("ckpt/.writing").rmdir()
    before = sorted(Path("ckpt").rglob("*"))
    for command in (
        ["inspect", "flows.py:one"],
        ["resolve", "flows.py:one", "--dry-run"],
        ["checkpoint", "list"],
        ["dead-letters", "list"],
    ):
        assert holdfast(*command, "--checkpoint", "ckpt").exit_code == 0
    holdfast("plan", "flows.py:one", "--checkpoint", "ckpt")
    assert sorted(Path("ckpt").rglob("*")) == before


def test_inspect_tells_a_sink_that_lost_what_the_ledger_calls_done():
    run_epochs("two", 2)
    for path in Path().glob("two.db*"):
        if path.is_file():
            path.unlink()
    text = holdfast("inspect", "flows.py:two", "--checkpoint", "ckpt").stdout
    assert "holds everything up to epoch 2" in text  # the other one
    assert "no answer: " in text or "! behind: the ledger says that table_two published epoch 2" in text


def set_back(name, epoch):
    """Let a table be what it was after an epoch."""
    with sqlite3.connect(f"{name}.db") as connection:
        (positions,) = connection.execute("SELECT positions FROM holdfast_ledger").fetchone()
        then = positions.replace(positions[positions.index("log") :], f'log": {epoch}}}}}')
        connection.execute("UPDATE holdfast_ledger SET epoch = ?, positions = ?", (epoch, then))
        connection.execute("DELETE FROM t WHERE x >= ?", ((epoch + 1) * 10,))
    connection.close()


def log_files(name, count):
    """Let the source have so many files, and have logged them."""
    Path("in").mkdir()
    for number in range(1, count + 1):
        Path(f"in/{number}.json").write_text('{"x": 1}\n')
    source = load_target(f"flows.py:{name}").sources[0]
    source.spec.open("rides", str(Path("ckpt/sources/rides").absolute())).latest({"log": 0}, bounded=False)


@pytest.mark.parametrize("name", ["one", "two"])
@pytest.mark.parametrize("can_be_read", [True, False])
def test_a_sink_that_was_set_back_is_told_as_behind_with_what_it_lacks(name, can_be_read):
    run_epochs(name, 3)
    set_back(name, 1)
    log_files(name, 3 if can_be_read else 2)
    text = holdfast("inspect", f"flows.py:{name}", "--checkpoint", "ckpt").stdout
    told = f"! behind: table_{name} holds everything up to epoch 1, and epoch 3 was published: it lacks source 'rides' "
    assert f"{told}from log=1 to log=3." in text
    assert "it is produced again" not in text
    assert ("Do: start the pipeline again: it first reads that range again" in text) is can_be_read
    assert ("source 'rides' from log=1 to log=3 cannot be read again: its log" in text) is not can_be_read
    plan = holdfast("plan", f"flows.py:{name}", "--checkpoint", "ckpt").stdout
    assert told in plan
    answer = holdfast("plan", f"flows.py:{name}", "--checkpoint", "ckpt", "--json")
    planned = json.loads(answer.stdout.splitlines()[0])
    (found,) = planned["behind"]
    assert (found["sink"], found["epoch"], found["published"]) == (f"table_{name}", 1, 3)
    assert (answer.exit_code, planned["start"]["row"]) == ((0, "K") if can_be_read else (4, "L")), "as a start would"
    answer = holdfast("resolve", f"flows.py:{name}", "--checkpoint", "ckpt")
    assert answer.exit_code == (0 if can_be_read else 4), "as a start would"
    assert ("behind: the next start replays what it lacks" in answer.stdout) is (name == "two" and can_be_read)
    assert ("start    row K: the pipeline abandons Spark's directory" in answer.stdout) is can_be_read
    assert rows_in(f"{name}.db") == [10, 11]


def test_a_sink_that_was_emptied_is_told_of_as_refused():
    run_epochs("one", 2)
    Participation("one", open_store("ckpt"), ["table_one"]).note(["table_one"], 1)
    for path in Path().glob("one.db*"):
        if path.is_file():
            path.unlink()
    with sqlite3.connect("one.db") as connection:
        connection.execute("CREATE TABLE t (x INTEGER)")
    connection.close()
    text = holdfast("inspect", "flows.py:one", "--checkpoint", "ckpt").stdout
    assert "! behind: table_one holds everything up to epoch 0, and epoch 2 was published: it lacks everything." in text
    assert "the next start is refused" in text


def test_a_decision_that_is_to_be_published_makes_no_sink_lie_behind():
    run_epochs("two", 2, crash_at="after-publish")
    (open_one,) = Path("ckpt/ledger").glob("000000000002-*")
    Path("ckpt/spark/1/commits/1").write_text("v1\n")  # as the commit thread leaves it
    assert "behind" not in holdfast("inspect", "flows.py:two", "--checkpoint", "ckpt").stdout
    assert open_one.exists()


@pytest.mark.parametrize("can_be_read", [True, False])
def test_a_decision_behind_a_gap_does_not_hide_that_a_sink_was_set_back(can_be_read):
    """Epochs 1 to 3 are of the table alone, and left nothing in the ledger; the fourth is decided for both sinks.

    To resolve publishes it in the other one, and forgets it: what the table lacks has to come from the sources.
    """
    Path("flows.py").write_text(
        Path("flows.py").read_text() + 'grown = hf.Pipeline("one", table("one"), rows | hf.write.files("out"))\n'
    )
    run_epochs("one", 3)
    run_epochs("grown", 4, crash_at="after-decide")
    set_back("one", 1)
    if can_be_read:
        log_files("grown", 4)
    text = holdfast("inspect", "flows.py:grown", "--checkpoint", "ckpt").stdout
    assert "! behind: table_one holds everything up to epoch 1, and epoch 3 was published: it lacks source" in text
    answer = holdfast("resolve", "flows.py:grown", "--checkpoint", "ckpt")
    assert rows_in("one.db") == [10, 11]
    still_open = open_decisions(open_store("ckpt"))
    if can_be_read:
        assert (answer.exit_code, [*still_open]) == (0, [])
        assert "behind: the next start replays what it lacks" in answer.stdout
    else:
        assert (answer.exit_code, [*still_open]) == (4, [4]), "as a start would"
        assert "sink 'table_one' has lost what was published after epoch 1, up to epoch 3" in answer.stderr


def test_a_damaged_decision_is_shown_and_resolve_fails_without_dropping_anything():
    run_epochs("two", 2, crash_at="after-decide")
    (path,) = Path("ckpt/ledger").glob("000000000002-*")
    path.write_bytes(path.read_bytes()[:-20])
    before = everything_below("ckpt/ledger")
    assert "! a decision cannot be read." in holdfast("inspect", "--checkpoint", "ckpt").stdout
    answer = holdfast("resolve", "flows.py:two", "--checkpoint", "ckpt")
    assert answer.exit_code == 1
    assert "Corrupt: " in answer.stderr
    assert everything_below("ckpt/ledger") == before


def test_a_sink_of_the_runs_own_process_is_not_asked():
    run_epochs("local", 1)
    text = holdfast("inspect", "flows.py:local", "--checkpoint", "ckpt").stdout
    assert "not asked: its rows live in the process of the run" in text
    assert "diverged" not in text


# --- resolve ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["after-decide", "publish-uncommitted", "after-publish", "before-forget"])
def test_resolve_publishes_what_was_decided_once_in_every_sink(point):
    run_epochs("two", 2, crash_at=point)
    answer = holdfast("resolve", "flows.py:two", "--checkpoint", "ckpt")
    assert answer.exit_code == 0, answer.output
    assert re.search(r"epoch 2, archive: ledger commit, sink \w+ -> (published|was there already)\n", answer.stdout)
    assert "two is resolved, as generation 2." in answer.stdout
    assert rows_in("two.db") == [10, 11, 20, 21]
    assert sorted(pq.read_table("out").column("x").to_pylist()) == [10, 11, 20, 21]
    again = holdfast("resolve", "flows.py:two", "--checkpoint", "ckpt", "--force")
    assert "no epoch was in doubt." in again.stdout
    assert rows_in("two.db") == [10, 11, 20, 21]
    text = holdfast("inspect", "flows.py:two", "--checkpoint", "ckpt").stdout
    assert "last done epoch 2" in text


def test_the_next_run_goes_on_where_resolve_left_it():
    run_epochs("two", 2, crash_at="after-decide")
    assert holdfast("resolve", "flows.py:two", "--checkpoint", "ckpt").exit_code == 0
    pretend_the_driver_is_gone()
    run_epochs("two", 3)
    assert rows_in("two.db") == [10, 11, 20, 21, 30, 31]


def test_dry_run_says_the_verdicts_that_resolve_then_carries_out():
    run_epochs("two", 2, crash_at="after-publish")
    text = holdfast("resolve", "flows.py:two", "--checkpoint", "ckpt", "--dry-run").stdout
    assert "epoch 2, table_two: ledger commit, sink published -> it is there; nothing to write." in text
    assert "epoch 2, archive: ledger commit, sink absent -> it will be published, from the decision." in text
    done = json.loads(holdfast("resolve", "flows.py:two", "--checkpoint", "ckpt", "--json").stdout)
    assert done["dry_run"] is False
    assert done["generation"] == 2
    acted = {(r["sink"], r["verdict"]) for r in done["resolved"] if r["decision"] == "commit"}
    assert acted == {("table_two", "skip"), ("archive", "publish")}


def test_resolve_of_one_sink_finds_nothing_in_doubt_and_says_what_is_held():
    run_epochs("one", 2, crash_at="publish-uncommitted")
    answer = holdfast("resolve", "flows.py:one", "--checkpoint", "ckpt")
    assert answer.exit_code == 0
    assert "no epoch was in doubt.\ntable_one holds everything up to epoch 1" in answer.stdout
    assert rows_in("one.db") == [10, 11]


def test_an_epoch_that_is_not_in_doubt_is_refused_with_those_that_are():
    run_epochs("two", 2, crash_at="after-decide")
    answer = holdfast("resolve", "flows.py:two", "--checkpoint", "ckpt", "--epoch", "7")
    assert answer.exit_code == 2
    assert "epoch 7 is not in doubt" in answer.stderr
    assert "epochs in doubt: 2; last done: 1" in answer.stderr
    assert holdfast("resolve", "flows.py:two", "--checkpoint", "ckpt", "--epoch", "2").exit_code == 0


def test_resolve_refuses_to_fence_a_process_that_is_alive_unless_forced():
    run_epochs("two", 2, crash_at="after-decide")
    owner = Path("ckpt/generations/00000001.json")
    owner.write_text(json.dumps({"at_us": 1, "host": socket.gethostname(), "pid": os.getpid()}))
    answer = holdfast("resolve", "flows.py:two", "--checkpoint", "ckpt")
    assert answer.exit_code == 2
    assert f"process {os.getpid()} on this host is alive" in answer.stderr
    assert "Nothing to do: a run is alive" in holdfast("inspect", "--checkpoint", "ckpt").stdout
    assert rows_in("two.db") == [10, 11]
    assert holdfast("resolve", "flows.py:two", "--checkpoint", "ckpt", "--force").exit_code == 0
    assert rows_in("two.db") == [10, 11, 20, 21]


def test_resolve_says_how_the_next_start_continues():
    run_epochs("two", 2, crash_at="after-decide")
    text = holdfast("resolve", "flows.py:two", "--checkpoint", "ckpt").stdout
    assert text.endswith(
        "two is resolved, as generation 2. The next run continues from here.\n"
        "start    row J: the pipeline continues\n"
        "         state: as Spark's directory has it\n"
        "         sources: from where Spark's log is; an epoch that was planned and not finished is evaluated again\n"
        "         sinks: each gets what it does not hold\n"
    )
    shutil.rmtree("ckpt/spark")
    answer = holdfast("resolve", "flows.py:two", "--checkpoint", "ckpt", "--force", "--json")
    assert (answer.exit_code, json.loads(answer.stdout)["start"]["row"]) == (0, "E")


def is_set_back(name):
    set_back(name, 1)
    log_files(name, 2)


def is_emptied(name):
    Participation(name, open_store("ckpt"), [f"table_{name}"]).note([f"table_{name}"], 1)
    for path in Path().glob(f"{name}.db*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with sqlite3.connect(f"{name}.db") as connection:
        connection.execute("CREATE TABLE t (x INTEGER)")
    connection.close()


def is_of_another_checkpoint(name):
    with sqlite3.connect("three.db") as connection:
        connection.execute('UPDATE holdfast_ledger SET positions = \'{"walks": {"log": 1}}\'')
    connection.close()
    shutil.rmtree("ckpt/spark")


def has_lost_its_state(name):
    shutil.rmtree("ckpt/spark")


def is_set_back_before_another_graph(name):
    """The graph of another source has taken the place of that which published what is lost."""
    write_graph(open_store("ckpt"), "spark/1", described(load_target("flows.py:one"), {}))
    set_back("one", 1)


def is_set_back_and_can_be_read_before_another_graph(name):
    is_set_back_before_another_graph(name)
    log_files("one", 3)


def is_to_begin_with_state(name):
    pq.write_table(pa.table({"x": [10], "n": [4]}), "per_x.parquet")


def is_to_begin_with_state_of_its_own(name):
    """Its checkpoint knows its sink, and nothing else is left of it."""
    is_to_begin_with_state(name)
    shutil.rmtree("ckpt/spark")


GIVEN = {"state": {"per_x": "per_x.parquet"}}
REFUSALS = [
    ("H", "counted", "counted", has_lost_its_state, {}),
    ("I", "tables", "tables", is_of_another_checkpoint, {}),
    ("L", "one", "one", is_set_back, {}),
    ("L", "two", "two", is_set_back, {}),
    ("O", "one", "one_of_both", is_set_back_before_another_graph, {}),
    ("O", "one", "one_of_both", is_set_back_and_can_be_read_before_another_graph, {}),
    ("P", "counted", "counted", is_to_begin_with_state_of_its_own, GIVEN),
    ("Q", "counted", "counted", is_to_begin_with_state, GIVEN),
    ("R", "one", "one", is_emptied, {}),
]


@pytest.mark.parametrize(
    ("row", "name", "now", "happens", "begins"), REFUSALS, ids=[f"{of[0]} {of[3].__name__}" for of in REFUSALS]
)
def test_what_the_table_of_starts_refuses_plan_resolve_and_start_refuse_alike(
    row, name, now, happens, begins, monkeypatch
):
    """A start up to where its query would begin; resolve is asked where it can be: it begins nothing."""
    run_epochs(name, 3)
    happens(name)
    before = everything_below("ckpt/spark")
    command = [f"flows.py:{now}", "--checkpoint", "ckpt", "--json"]
    options = [f"--state={operator}={path}" for operator, path in begins.get("state", {}).items()]
    answers = [holdfast("plan", *command, *options), *([] if begins else [holdfast("resolve", *command)])]
    lines = [[json.loads(line) for line in answer.stdout.splitlines()] for answer in answers]
    with pytest.raises(HoldfastError) as refused:
        start_of(load_target(f"flows.py:{now}"), "ckpt", SCHEMA, monkeypatch, **begins)
    error = as_object(refused.value)
    for answer, told in zip(answers, lines, strict=True):
        assert (answer.exit_code, told[-1]["error"]) == (error["exit_code"], error), answer.stdout
    # That a sink was set back the ledger of two sinks tells before anything is resolved, and then nothing is.
    starts = [(line[0]["start"]["row"], line[0]["refusal"]) for line in lines if "start" in line[0]]
    assert starts == [(row, error["what"])] * len(starts)
    assert len(starts) == {"Q": 0, "P": 1}.get(row, 1 if (row, name) == ("L", "two") else 2)
    assert everything_below("ckpt/spark") == before if Path("ckpt/spark").exists() else not before


def test_a_decision_for_a_sink_of_the_runs_own_process_is_left_to_the_next_run():
    run_epochs("doubt", 1, crash_at="after-decide")
    answer = holdfast("resolve", "flows.py:doubt", "--checkpoint", "ckpt")
    assert answer.exit_code == 2
    assert "sink 'kept_in_doubt' (memory) cannot be resolved here" in answer.stderr
    assert rows_in("doubt.db") == []


# --- both ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["inspect"], ["plan"], ["plan", "--json"], ["resolve"], ["resolve", "--dry-run"]])
def test_a_checkpoint_of_another_pipeline_is_refused(command):
    run_epochs("two", 1)
    answer = holdfast(*command, "flows.py:one", "--checkpoint", "ckpt")
    assert answer.exit_code == 2
    assert "belongs to pipeline 'two', not to 'one'" in answer.output
    assert not Path("one.db").exists()


@pytest.mark.parametrize("command", ["inspect", "resolve"])
def test_a_checkpoint_that_is_not_there_is_refused_and_not_made(command):
    answer = holdfast(command, "flows.py:one", "--checkpoint", "ckpt")
    assert answer.exit_code == 2
    assert "there is no checkpoint 'ckpt'" in answer.stderr
    assert not Path("ckpt").exists()


@pytest.mark.parametrize("options", [[], ["--dry-run"], ["--force"]])
@pytest.mark.parametrize("command", [["resolve"], ["rewind", "--to", "1"]])
def test_a_directory_on_which_nothing_has_run_is_refused_and_left_as_it_is(command, options):
    Path("in").mkdir()
    Path("in/1.json").touch()
    answer = holdfast(command[0], "flows.py:one", "--checkpoint", "in", *command[1:], *options)
    assert answer.exit_code == 2
    assert "pipeline 'one' has not run on this checkpoint." in answer.stderr
    assert [path.name for path in Path("in").iterdir()] == ["1.json"]
    assert not Path("one.db").exists()


@pytest.mark.parametrize(
    "command",
    [
        ["run", "flows.py:one", "--available-now"],
        ["run", "flows.py:one", "--available-now", "--supervise"],
        ["plan", "flows.py:one"],
        ["inspect"],
        ["inspect", "flows.py:one"],
        ["resolve", "flows.py:one"],
        ["rewind", "flows.py:one", "--to", "1"],
        ["checkpoint", "list"],
        ["checkpoint", "create", "x"],
        ["checkpoint", "import", "exported"],
        ["dead-letters", "list"],
    ],
)
@pytest.mark.parametrize("place", ["a_file", "a_file/below"])
def test_a_checkpoint_that_is_a_file_is_said_to_be_one(command, place):
    Path("a_file").touch()
    answer = holdfast(*command, "--checkpoint", place)
    assert answer.exit_code == 2
    assert f"{Path(place).absolute()} cannot be the directory of a checkpoint" in answer.stderr
    assert "is a file." in answer.stderr


@pytest.mark.parametrize("option", ["--every", "--commit-every", "--at", "--until"])
def test_an_option_of_run_that_cannot_be_read_is_named_as_it_was_typed(option):
    answer = holdfast("run", "flows.py:one", "--checkpoint", "ckpt", option, "-1s")
    assert answer.exit_code == 2
    assert f"InvalidPipeline: {option}='-1s' is no" in answer.stderr
    assert not Path("ckpt").exists()


@pytest.mark.parametrize(("option", "variable"), [("--on-poison", "ON_POISON"), ("--master", "MASTER")])
def test_an_option_that_is_a_setting_too_is_named_by_both_names(option, variable):
    answer = holdfast("run", "flows.py:one", "--checkpoint", "ckpt", option, "foo")
    assert answer.exit_code == 2
    assert f"HOLDFAST_{variable}='foo' ({option}) cannot be used" in answer.stderr
    assert re.search(rf"Do: .*, or {option} '.*'\.", answer.stderr)


def test_inspect_and_resolve_need_no_spark():
    run_epochs("two", 2, crash_at="after-decide")
    code = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from holdfast.cli import main\n"
        "sys.argv = ['holdfast', 'resolve', 'flows.py:two', '--checkpoint', 'ckpt']\n"
        "main()\n"
    )
    src = str(Path(__file__).parents[3] / "src")
    answer = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": src},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert rows_in("two.db") == [10, 11, 20, 21]


def test_explain_describes_draws_and_answers_as_json():
    assert "table_one" in holdfast("explain", "flows.py:one").stdout
    assert holdfast("explain", "flows.py:one", "--diagram").stdout.startswith("flowchart LR")
    found = json.loads(holdfast("explain", "flows.py:one", "--json").stdout)
    assert found["spec"]["pipeline"] == "one"
    assert len(found["fingerprint"]) == 16


# --- rewind, checkpoint -------------------------------------------------------------------------------------------


def test_a_rewind_that_is_out_of_reach_says_how_far_it_reaches_and_changes_nothing():
    run_epochs("two", 2)
    for path in Path("ckpt/spark/1/offsets").iterdir():
        path.write_text("v2\n")
    before = everything_below("ckpt")
    answer = holdfast("rewind", "flows.py:two", "--checkpoint", "ckpt", "--to", "1", "--except", "table_two", "--json")
    assert answer.exit_code == 2, answer.output
    assert "no end of an epoch is known" in json.loads(answer.stdout)["error"]["why"]
    assert {k: v for k, v in everything_below("ckpt").items() if "holdfast.log" not in k} == before


def test_a_decided_rewind_is_shown_as_one():
    run_epochs("two", 2)
    pipeline = load_target("flows.py:two")
    store = open_store("ckpt")
    sinks = [node.spec.connect(node.name, "two", SCHEMA) for node in pipeline.sinks]
    coordinator = Coordinator(pipeline="two", store=store, sinks=sinks, clock=SystemClock(), commit_thread=False)
    coordinator.open()
    faults.install(_dying_at("after-decide"))
    record = EpochRecord("two", 3, coordinator.generation, {"rides": {"log": 1}}, rewound_to=1)
    with pytest.raises(Crash):
        coordinator.rewind(record)
    faults.install(None)
    coordinator.close()
    pretend_the_driver_is_gone()
    text = holdfast("inspect", "flows.py:two", "--checkpoint", "ckpt").stdout
    assert "a rewind to epoch 1 of archive, table_two" in text
    assert "epoch 3: ledger commit, sink absent -> it will be published" in text


def test_named_checkpoints_are_listed_and_one_that_is_not_there_is_told():
    run_epochs("one", 1)
    assert holdfast("checkpoint", "list", "--checkpoint", "ckpt").stdout == "no checkpoint has a name.\n"
    for command in ("show", "delete"):
        answer = holdfast("checkpoint", command, "late", "--checkpoint", "ckpt")
        assert answer.exit_code == 2
        assert "there is no checkpoint named 'late'" in answer.stderr
    answer = holdfast("checkpoint", "create", "../x", "--checkpoint", "ckpt")
    assert (answer.exit_code, "is not a name of a checkpoint" in answer.stderr) == (2, True)


def test_files_of_an_import_that_was_killed_are_listed_and_deleted():
    run_epochs("one", 1)
    open_store("ckpt").put("named/late/snapshots/files/x", b"of state")
    text = holdfast("checkpoint", "list", "--checkpoint", "ckpt").stdout
    assert text.startswith("late  files of one that was not completed")
    assert "holdfast checkpoint delete late" in text
    assert holdfast("checkpoint", "delete", "late", "--checkpoint", "ckpt").stdout == "late is deleted.\n"
    assert open_store("ckpt").keys("named/") == []
    assert holdfast("checkpoint", "list", "--checkpoint", "ckpt").stdout == "no checkpoint has a name.\n"


def test_no_name_is_given_where_nothing_has_run():
    Path("in").mkdir()
    answer = holdfast("checkpoint", "create", "x", "--checkpoint", "in")
    assert answer.exit_code == 2
    assert "no pipeline has run on this checkpoint." in answer.stderr
    assert list(Path("in").iterdir()) == []


def test_an_export_goes_into_a_directory_and_not_over_a_file():
    run_epochs("one", 1)
    named.put_named(open_store("ckpt"), "x", Manifest("one", 1, 5, "", EpochEnd(1, 1, {}, 5), 0, {}))
    Path("a_file").write_text("kept")
    for place in ("a_file", "a_file/below"):
        answer = holdfast("checkpoint", "export", "x", place, "--checkpoint", "ckpt")
        assert answer.exit_code == 2, answer.output
        assert "cannot be the directory of an export" in answer.stderr
    assert Path("a_file").read_text() == "kept"
    assert holdfast("checkpoint", "export", "x", "out", "--checkpoint", "ckpt").exit_code == 0


def test_beside_a_run_that_is_alive_no_name_is_given_from_here():
    run_epochs("one", 1)
    for path in Path("ckpt/generations").iterdir():
        path.write_text(json.dumps(json.loads(path.read_text()) | {"pid": os.getpid()}))
    answer = holdfast("checkpoint", "create", "x", "--checkpoint", "ckpt")
    assert answer.exit_code == 2
    assert 'run.checkpoint_now(name="x")' in answer.stderr


# --- dead letters -------------------------------------------------------------------------------------------------


def isolate_rows(*ids):
    letters = DeadLetters(open_store("ckpt"), 1, isolates=True)
    error = {"kind": "BadRow", "what": "it fails: password=hunter2.", "why": "because."}
    for number, one in enumerate(ids):
        row = one_row(pa.RecordBatch.from_pydict({"x": [one]}, SCHEMA), 0)
        letters.add(Letter("rides", Address("log", number, 0), row, 2, error, 0), lambda: None)


def test_dead_letters_are_listed_with_row_place_and_error_and_no_secret():
    run_epochs("one", 1)
    isolate_rows(7, 8)
    text = holdfast("dead-letters", "list", "--checkpoint", "ckpt").stdout
    assert text.startswith("rides/log/0/0  epoch 2, 1970-01-01T00:00:00Z, left out\n  {'x': 7}\n  BadRow: it fails: ")
    assert text.endswith("2 dead letters, 2 of them not sent again.\n")
    found = json.loads(holdfast("dead-letters", "list", "--checkpoint", "ckpt", "--json").stdout)["dead_letters"]
    assert [(one["row"], one["standing"]) for one in found] == [({"x": 7}, "left out"), ({"x": 8}, "left out")]
    assert "hunter2" not in text + json.dumps(found)


def test_dead_letters_are_sent_again_by_name_or_all_and_a_name_of_none_is_refused():
    run_epochs("one", 1)
    isolate_rows(7, 8, 9)
    answer = holdfast("dead-letters", "replay", "rides/log/1/0", "--checkpoint", "ckpt")
    assert answer.stdout == "rides/log/1/0\n1 dead letters are replayed by the next start.\n"
    answer = holdfast("dead-letters", "replay", "--checkpoint", "ckpt", "--json")
    assert json.loads(answer.stdout) == {"replayed_at_next_start": ["rides/log/0/0", "rides/log/2/0"]}
    text = holdfast("dead-letters", "list", "--checkpoint", "ckpt").stdout
    assert text.count("to be replayed at the next start") == 3
    answer = holdfast("dead-letters", "replay", "rides/log/7/0", "--checkpoint", "ckpt")
    assert (answer.exit_code, "there is no dead letter 'rides/log/7/0'" in answer.stderr) == (2, True)


def test_beside_a_run_that_is_alive_no_letter_is_added_or_sent_again_unless_forced():
    run_epochs("one", 1)
    isolate_rows(7)
    for path in Path("ckpt/generations").iterdir():
        path.write_text(json.dumps(json.loads(path.read_text()) | {"pid": os.getpid()}))
    for command in (["replay"], ["add", "--source", "rides", "late.json"]):
        answer = holdfast("dead-letters", *command, "--checkpoint", "ckpt")
        assert answer.exit_code == 2
        assert "add --force" in answer.stderr
    assert "left out" in holdfast("dead-letters", "list", "--checkpoint", "ckpt").stdout
    assert holdfast("dead-letters", "replay", "--checkpoint", "ckpt", "--force").exit_code == 0
    assert "to be replayed" in holdfast("dead-letters", "list", "--checkpoint", "ckpt").stdout


# --- resolve --reject-rows --------------------------------------------------------------------------------------------


def refuse_x(database, x):
    """Somebody makes a rule of the table between the epoch's decision and its publishing."""
    with sqlite3.connect(database) as connection:
        connection.execute(
            f"CREATE TRIGGER no BEFORE INSERT ON t WHEN new.x = {x} BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
    connection.close()


def archived():
    return sorted(pq.read_table("out").column("x").to_pylist())


def test_rows_that_a_sink_refuses_after_the_decision_become_dead_letters_and_the_others_are_published():
    run_epochs("two", 3, crash_at="after-decide")
    refuse_x("two.db", 31)
    for command in (("resolve",), ("resolve", "--epoch", "3")):
        refused = holdfast(*command, "flows.py:two", "--checkpoint", "ckpt", "--force")
        assert refused.exit_code == 1
        assert "--reject-rows" in refused.stderr
    told = holdfast("resolve", "flows.py:two", "--checkpoint", "ckpt", "--reject-rows", "--dry-run")
    assert told.exit_code == 0, told.stderr
    assert "table_two/rejected/3/1  would be rejected by sink 'table_two'" in told.stdout
    assert rows_in("two.db") == [10, 11, 20, 21]

    done = json.loads(
        holdfast("resolve", "flows.py:two", "--checkpoint", "ckpt", "--reject-rows", "--json", "--force").stdout
    )
    assert [(each["name"], each["row"]) for each in done["rejected"]] == [("table_two/rejected/3/1", {"x": 31})]
    assert done["kept_in"] == {"3": ["archive"]}
    assert rows_in("two.db") == [10, 11, 20, 21, 30]
    assert archived() == [10, 11, 20, 21, 30, 31]

    pretend_the_driver_is_gone()
    listed = holdfast("dead-letters", "list", "--checkpoint", "ckpt").stdout
    assert "table_two/rejected/3/1" in listed
    assert "rejected by its sink" in listed
    again = holdfast("dead-letters", "replay", "--checkpoint", "ckpt", "table_two/rejected/3/1")
    assert again.exit_code == 2
    assert "write it into that sink's table by hand" in again.stderr
    assert json.loads(holdfast("dead-letters", "replay", "--checkpoint", "ckpt", "--json").stdout) == {
        "replayed_at_next_start": []
    }
    run_epochs("two", 4)
    assert rows_in("two.db") == [10, 11, 20, 21, 30, 40, 41]
    nothing = holdfast("resolve", "flows.py:two", "--checkpoint", "ckpt", "--reject-rows")
    assert nothing.exit_code == 0, nothing.stderr
    assert "no sink refuses a row of a decided epoch." in nothing.stdout


def test_where_an_epoch_is_whole_is_said_of_no_sink_that_refused_a_row_of_it_too():
    class Owner:
        generation = 2

        def check_fenced(self):
            pass

        def retry(self, call, *, doing):
            return call()

    rejected = Rejected()
    owner: Any = Owner()
    keep = keeping(SimulatedStore(), owner, (), rejected, {3: ("a", "b", "c")}, rows_max=5)
    error = BadRow("no.")
    for sink in ("a", "b"):
        keep(sink, EpochRecord("two", 3, 1, {}), [Refused(0, pa.table({"x": [1]}), error)])
    assert rejected.kept_in == {3: ("c",)}
    assert list(rejected_lines(rejected, dry_run=False))[-1].startswith("epoch 3 is whole in c:")


def die_while_rejecting(point):
    command = ["resolve", "flows.py:two", "--checkpoint", "ckpt", "--reject-rows", "--force"]
    faults.install(_dying_at(point))
    try:
        with pytest.raises(Crash):
            CliRunner().invoke(app, command, catch_exceptions=False)
    finally:
        faults.install(None)


@pytest.mark.parametrize("point", [*faults.RESOLVE_POINTS, "before-publish", "after-publish", "before-forget"])
def test_a_resolve_that_dies_while_it_rejects_rows_is_done_again(point):
    run_epochs("two", 2, crash_at="after-decide")
    refuse_x("two.db", 20)
    die_while_rejecting(point)
    # From the decision without the rows on, any start publishes it.
    options = ["--reject-rows"] if point == "rejected-kept" else []
    assert holdfast("resolve", "flows.py:two", "--checkpoint", "ckpt", "--force", *options).exit_code == 0
    assert rows_in("two.db") == [10, 11, 21]
    assert archived() == [10, 11, 20, 21]
    letters = json.loads(holdfast("dead-letters", "list", "--checkpoint", "ckpt", "--json").stdout)["dead_letters"]
    assert [each["row"] for each in letters] == [{"x": 20}]


def test_a_row_that_is_published_after_all_is_not_called_rejected():
    """The resolve died before the decision was without the row, and the table takes it by then."""
    run_epochs("two", 2, crash_at="after-decide")
    refuse_x("two.db", 20)
    die_while_rejecting("rejected-kept")
    assert "its epoch is not published yet" in holdfast("dead-letters", "list", "--checkpoint", "ckpt").stdout
    with sqlite3.connect("two.db") as connection:
        connection.execute("DROP TRIGGER no")
    connection.close()
    assert holdfast("resolve", "flows.py:two", "--checkpoint", "ckpt", "--force").exit_code == 0
    assert rows_in("two.db") == [10, 11, 20, 21]
    listed = holdfast("dead-letters", "list", "--checkpoint", "ckpt").stdout
    assert "refused by its sink, and published there after all" in listed


def test_more_refused_rows_than_a_few_are_the_tables_fault(monkeypatch):
    monkeypatch.setenv("HOLDFAST_POISON_ROWS", "1")
    run_epochs("two", 2, crash_at="after-decide")
    with sqlite3.connect("two.db") as connection:
        connection.execute("CREATE TRIGGER no BEFORE INSERT ON t BEGIN SELECT RAISE(ABORT, 'no'); END")
    connection.close()
    refused = holdfast("resolve", "flows.py:two", "--checkpoint", "ckpt", "--reject-rows", "--force")
    assert refused.exit_code == 2
    assert "refuses 2 rows of epoch 2" in refused.stderr
    assert rows_in("two.db") == [10, 11]


def test_where_one_sink_refuses_more_rows_than_a_few_nothing_of_the_epoch_is_rejected_in_another(monkeypatch):
    """Once both tables are mended, the epoch is whole in both."""
    monkeypatch.setenv("HOLDFAST_POISON_ROWS", "1")
    run_epochs("tables", 2, crash_at="after-decide")
    refuse_x("two.db", 20)
    with sqlite3.connect("three.db") as connection:
        connection.execute("CREATE TRIGGER no BEFORE INSERT ON t BEGIN SELECT RAISE(ABORT, 'no'); END")
    connection.close()
    refused = holdfast("resolve", "flows.py:tables", "--checkpoint", "ckpt", "--reject-rows", "--force")
    assert refused.exit_code == 2
    assert "sink 'table_three' refuses 2 rows of epoch 2" in refused.stderr
    assert (rows_in("two.db"), rows_in("three.db")) == ([10, 11], [10, 11])
    assert json.loads(holdfast("dead-letters", "list", "--checkpoint", "ckpt", "--json").stdout)["dead_letters"] == []
    for database in ("two.db", "three.db"):
        with sqlite3.connect(database) as connection:
            connection.execute("DROP TRIGGER no")
        connection.close()
    assert holdfast("resolve", "flows.py:tables", "--checkpoint", "ckpt", "--force").exit_code == 0
    assert (rows_in("two.db"), rows_in("three.db")) == ([10, 11, 20, 21], [10, 11, 20, 21])
