"""``holdfast reset``: it says what goes, asks, and leaves sinks as if the pipeline had never run (design/0042)."""

import json
import os
import shutil
import sqlite3
import sys
import textwrap
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from holdfast.checkpoint.backfills import BackfillNote, note_backfill
from holdfast.checkpoint.participation import Participation
from holdfast.cli.app import app
from holdfast.cli.target import load_target
from holdfast.commit.ledger import Ledger
from holdfast.commit.owner import this_process
from holdfast.commit.records import Decided, Done
from holdfast.connectors.files.sink.spec import FilesSinkSpec
from holdfast.connectors.sqlite.spec import SqliteSpec
from holdfast.errors import Diverged
from holdfast.ports import Carried, EpochRecord, Held, Publication, Reset, RunIdentity
from holdfast.shards.assignment import Assignment, assign, regroup
from holdfast.shards.layout import ShardLayout, record_layout
from holdfast.store.paths import open_store

pytestmark = pytest.mark.slow

SCRIPT = """
    import holdfast as hf
    rides = hf.read.rows([], schema="city STRING, km BIGINT", name="rides")
    table = hf.write.sqlite("trips.db", table="trips", name="table")
    files = hf.write.files("out", name="files")
    pipeline = hf.Pipeline("trips", rides | table, rides | files, rides | hf.write.console(name="shown"))
"""
ROWS = pa.table({"city": ["Ulm", "Bonn"], "km": [1, 2]}, schema=pa.schema([("city", pa.string()), ("km", pa.int64())]))


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    (tmp_path / "flows.py").write_text(textwrap.dedent(SCRIPT))
    for node in load_target("flows.py:pipeline").sinks:
        if node.name != "shown":
            sink = node.spec.connect(node.name, "trips", ROWS.schema)
            held = sink.open(RunIdentity("trips", 3))
            record = EpochRecord("trips", 1, 3, {"rides": {"": 2}})
            sink.publish([Publication(record, (Carried(ROWS),))], held)
            sink.close()
    Path("ckpt/sinks").mkdir(parents=True)
    Path("ckpt/identity.json").write_text('{"pipeline": "trips"}')
    open_store("ckpt").put("generations/000000000003.json", dead_process())


def dead_process():
    return this_process(0).replace(f'"pid": {os.getpid()}'.encode(), b'"pid": 999999999')


def asked(*options, answer=""):
    found = CliRunner().invoke(app, ["reset", "flows.py:pipeline", "--checkpoint", "ckpt", *options], input=answer)
    return found.exit_code, found.stdout, found.stderr


def held():
    said: dict[str, Any] = {
        node.name: node.spec for node in load_target("flows.py:pipeline").sinks if node.name != "shown"
    }
    return {
        name: spec.ledger(name, "trips").held.epoch if spec.ledger(name, "trips") else 0 for name, spec in said.items()
    }


def rows_of_table():
    with closing(sqlite3.connect("trips.db")) as connection:
        return connection.execute("SELECT count(*) FROM trips").fetchone()[0]


def files():
    return list(Path("out").glob("*.parquet"))


def test_a_dry_run_says_what_goes_and_removes_nothing():
    code, said, _ = asked("--dry-run")
    assert code == 0
    assert "sink table  1 row of holdfast_ledger in " in said
    assert "sink table  all 2 rows of trips in " in said
    assert "sink files  1 file in " in said
    assert "sink shown  keeps nothing of a pipeline" in said
    assert f"checkpoint  {Path('ckpt').absolute()} becomes {Path('ckpt.before-reset-1').absolute()}" in said
    assert (held(), rows_of_table(), len(files())) == ({"table": 1, "files": 1}, 2, 1)
    assert Path("ckpt").exists()


def test_after_a_yes_everything_is_gone_and_the_checkpoint_is_set_aside():
    code, said, _ = asked(answer="y\n")
    assert (code, said.splitlines()[-1]) == (0, "done")
    assert (held(), rows_of_table(), files()) == ({"table": 0, "files": 0}, 0, [])
    assert not Path("ckpt").exists()
    assert Path("ckpt.before-reset-1/identity.json").exists()
    code, said, _ = asked("--yes")
    assert code == 0
    assert "sink table  nothing is there" in said


@pytest.fixture
def sharded():
    """Two shards, and one that was given up; each has published a row of its own."""
    script = Path("flows.py").read_text().replace("hf.read.rows([], ", 'hf.read.files("in", ')
    Path("flows.py").write_text(script)
    store = open_store("ckpt")
    assert record_layout(store, ShardLayout(regroup(assign(Assignment(3), "abc"), 2))) is not None
    for name, place in (("trips-1", "ckpt/shards/1"), ("trips-2", "ckpt/shards/2")):
        for node in load_target("flows.py:pipeline").sinks:
            if node.name != "shown":
                sink = node.spec.connect(node.name, name, ROWS.schema)
                held = sink.open(RunIdentity(name, 3))
                record = EpochRecord(name, 1, 3, {"rides": {"a": 2}})
                sink.publish([Publication(record, (Carried(ROWS.slice(1)),))], held)
                sink.close()
        Path(place).mkdir(parents=True)
        Path(place, "identity.json").write_text(json.dumps({"pipeline": name}))
        open_store(place).put("generations/000000000003.json", dead_process())


def held_by_shards():
    sinks = [node for node in load_target("flows.py:pipeline").sinks if node.name != "shown"]
    specs: list[tuple[str, Any]] = [(node.name, node.spec) for node in sinks]
    return [(name, of) for name, spec in specs for of in ("trips", "trips-1", "trips-2") if spec.ledger(name, of)]


@pytest.mark.usefixtures("sharded")
def test_of_shards_all_goes_and_what_they_share_is_said_once():
    assert (rows_of_table(), len(files()), len(held_by_shards())) == (4, 3, 6)
    code, said, _ = asked("--dry-run")
    assert code == 0
    assert said.count("all 4 rows of trips in") == 1
    for shard in range(3):
        assert f"sink table  shard {shard}  1 row of holdfast_ledger in " in said
        assert f"sink files  shard {shard}  1 file in " in said
    assert (rows_of_table(), len(files()), len(held_by_shards())) == (4, 3, 6)
    assert asked("--yes")[0] == 0
    assert (rows_of_table(), files(), held_by_shards()) == (0, [], [])
    assert Path("ckpt.before-reset-1/shards/1/identity.json").exists()
    assert not Path("ckpt").exists()


@pytest.mark.usefixtures("sharded")
def test_of_shards_of_which_one_runs_nothing_goes():
    open_store("ckpt/shards/1").put("generations/000000000004.json", this_process(0))
    code, _, error = asked("--yes")
    assert code == 2
    assert f"process {os.getpid()} on this host is alive" in error
    assert (rows_of_table(), len(files()), len(held_by_shards())) == (4, 3, 6)


@pytest.mark.usefixtures("sharded")
def test_of_one_sink_of_shards_the_other_keeps_all_and_it_is_filled_again():
    for place in ("ckpt", "ckpt/shards/1"):
        open_store(place).put("sinks/table.json", b"{}")
    code, said, _ = asked("--sink", "table", "--yes")
    assert code == 0
    assert "--sink table --rebuild" in said
    assert (rows_of_table(), len(files())) == (0, 3)
    assert held_by_shards() == [("table", "trips-2"), *[("files", of) for of in ("trips", "trips-1", "trips-2")]]
    for place in ("ckpt", "ckpt/shards/1"):
        assert open_store(place).keys("sinks/") == ["sinks/table.json"]


@pytest.mark.parametrize("answer", ["n\n", "", "perhaps\n"])
def test_without_a_yes_nothing_is_removed(answer):
    code, _, error = asked(answer=answer)
    assert code == 2
    assert "nothing was removed" in error
    assert held() == {"table": 1, "files": 1}


def test_rows_may_be_kept_and_it_is_said_that_a_run_writes_them_again():
    code, said, _ = asked("--keep-rows", "--yes")
    assert code == 0
    assert "sink table  stays: rows of trips in" in said
    assert "writes them again" in said
    assert (held(), rows_of_table(), len(files())) == ({"table": 0, "files": 0}, 2, 1)


def test_of_one_sink_the_others_and_the_checkpoint_keep_all():
    open_store("ckpt").put("sinks/table.json", b"{}")
    open_store("ckpt").put("sinks/files.json", b"{}")
    code, said, _ = asked("--sink", "table", "--yes")
    assert code == 0
    assert "holdfast reconcile TARGET --checkpoint ckpt --sink table --rebuild" in said
    assert (held(), rows_of_table(), len(files())) == ({"table": 0, "files": 1}, 0, 1)
    assert sorted(open_store("ckpt").keys("sinks/")) == ["sinks/files.json", "sinks/table.json"]


def test_one_that_cannot_be_rebuilt_begins_at_the_present():
    Path("flows.py").write_text(Path("flows.py").read_text().replace('"out", name', '"out", format="json", name'))
    for name in ("table", "files"):
        open_store("ckpt").put(f"sinks/{name}.json", b"{}")
    code, said, _ = asked("--sink", "files", "--yes")
    assert code == 0
    assert "sink files  then: it begins at the present" in said
    assert open_store("ckpt").keys("sinks/") == ["sinks/table.json"]


def test_it_is_refused_while_a_process_runs_the_pipeline():
    open_store("ckpt").put("generations/000000000004.json", this_process(0))
    code, _, error = asked("--yes")
    assert code == 2
    assert f"process {os.getpid()} on this host is alive" in error
    assert held() == {"table": 1, "files": 1}
    assert asked("--yes", "--force")[0] == 0
    assert held() == {"table": 0, "files": 0}


def test_what_backfills_have_written_goes_too_and_their_sinks_are_not_reset_alone():
    note = BackfillNote("3f2a91c0", 0, 10, ("rides",), ("files", "table"), ("table",), "0 to 10", 0)
    note_backfill(open_store("ckpt"), note)
    name = "trips-backfill_3f2a91c0"
    nodes = {node.name: node for node in load_target("flows.py:pipeline").sinks if node.name in note.sinks}
    for node in nodes.values():
        sink = node.spec.connect(node.name, name, ROWS.schema)
        before = sink.open(RunIdentity(name, 1))
        sink.publish([Publication(EpochRecord(name, 1, 1, {"rides": {"": 2}}), (Carried(ROWS),))], before)
        sink.close()
    code, _, errors = asked("--sink", "table", "--yes")
    assert code == 2
    assert "backfill 3f2a91c0 has written to it" in errors
    code, said, errors = asked("--yes")
    assert code == 0, errors
    assert "backfill 3f2a91c0" in said
    specs: list[Any] = [node.spec for node in nodes.values()]
    assert [spec.ledger(sink, name) for sink, spec in zip(nodes, specs, strict=True)] == [None, None]
    assert held() == {"table": 0, "files": 0}


def test_of_one_sink_it_is_refused_while_an_epoch_is_not_in_every_sink():
    """The next start would publish that epoch in the empty sink, and none of those before."""
    ledger = Ledger(open_store("ckpt"), "trips")
    generation = ledger.take_generation(3, 0)
    ledger.fence()
    ledger.decide(Decided(EpochRecord("trips", 2, generation, {"rides": {"": 4}}), {"table": (), "files": ()}))
    open_store("ckpt").put(f"generations/{generation:012}.json", dead_process())
    code, _, error = asked("--sink", "table", "--yes")
    assert code == 2
    assert "epoch 2 is decided and not in every sink" in error
    assert held() == {"table": 1, "files": 1}


@pytest.mark.parametrize("is_done", [True, False])
def test_of_one_sink_it_is_refused_while_a_rewind_was_interrupted_and_of_all_it_leaves_nothing_of_that(is_done):
    """Whether the emptied sink is to go back, or has gone back, nobody could tell any more."""
    ledger = Ledger(open_store("ckpt"), "trips")
    generation = ledger.take_generation(3, 0)
    ledger.fence()
    record = EpochRecord("trips", 2, generation, {"rides": {"": 1}}, rewound_to=1)
    key = ledger.decide(Decided(record, {"table": (), "files": ()}))
    if is_done:
        ledger.forget(key, Done(record, {"table": 0, "files": 0}))
    code, _, error = asked("--sink", "table", "--yes")
    assert code == 2
    assert "the rewind to epoch 1 was interrupted" in error
    assert "finish it: holdfast rewind --to 1" in error
    assert held() == {"table": 1, "files": 1}
    assert asked("--yes", "--force")[0] == 0  # this process is the last run
    assert (held(), Path("ckpt").exists()) == ({"table": 0, "files": 0}, False)


def test_a_sink_that_is_not_there_is_named():
    code, _, error = asked("--sink", "tabel", "--yes")
    assert code == 2
    assert "no sink 'tabel'" in error


def test_killed_half_way_without_a_checkpoint_no_start_takes_an_emptied_sink_for_a_new_one(monkeypatch):
    """Without the notes the emptied sink would begin at the present, beside one that holds all."""
    shutil.rmtree("ckpt")
    emptied = []

    def reset(self, name, pipeline, *, rows, is_dry_run):
        if not is_dry_run and emptied:
            raise KeyboardInterrupt
        emptied.extend([] if is_dry_run else [name])
        return Reset(("something",))

    monkeypatch.setattr(SqliteSpec, "reset", reset)
    monkeypatch.setattr(FilesSinkSpec, "reset", reset)
    asked("--yes")
    assert emptied == ["table"]
    participation = Participation("trips", open_store("ckpt"), ["table", "files"])
    with pytest.raises(Diverged, match="'table' holds nothing, and has taken part"):
        participation.check({"table": Held(), "files": Held(epoch=9)})


def test_as_json_it_is_one_value():
    found = json.loads(asked("--yes", "--json")[1])
    assert found["sinks"]["shown"] is None
    assert len(found["sinks"]["table"]["removed"]) == 3
    assert found["checkpoint"]["to"] == str(Path("ckpt.before-reset-1").absolute())
    assert found["dry_run"] is False
