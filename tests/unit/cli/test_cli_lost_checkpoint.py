"""``holdfast plan`` and ``inspect`` of a checkpoint that is lost: what a start would do, from the sinks alone."""

import json
import os
import shutil
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from holdfast.checkpoint.explained import workspace
from holdfast.cli.app import app
from holdfast.cli.target import load_target
from holdfast.ports import Carried, EpochRecord, Held, Publication, RunIdentity

SCRIPT = """
    import holdfast as hf
    rides = hf.read.files("in", format="json", schema="city STRING, km BIGINT", max_files_per_epoch=1, name="rides")
    table = hf.write.sqlite("trips.db", table="trips", name="table")
    files = hf.write.files("out", name="files")
    by_city = hf.write.segments("segments", partition_by=["city"], name="by_city")
    pipeline = hf.Pipeline("trips", rides | table, rides | files, rides | by_city)
    timed = hf.read.files("in", schema="city STRING, km BIGINT, at TIMESTAMP", timestamp="at", name="rides")
    started = hf.Pipeline("trips", timed | hf.select("city", "km", name="two") | table)
    counted = hf.Pipeline("trips", rides | hf.accumulate(by="city", n=hf.count(), name="per_city") | table)
    nowhere = hf.Pipeline("trips", rides | table, rides | hf.write.postgres(
        "host=127.0.0.1 port=1 user=u password=hunter2", table="t", name="far"))
    with_function = hf.Pipeline("trips", rides | table, rides | hf.write.foreach_batch(print, name="function"))
"""
SCHEMA = pa.schema([("city", pa.string()), ("km", pa.int64())])
CITIES = ("Ulm", "Bonn")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    (tmp_path / "flows.py").write_text(textwrap.dedent(SCRIPT))
    (tmp_path / "in").mkdir()
    for number in range(9):
        lines = [json.dumps({"city": CITIES[number % 2], "km": number}) + "\n"] * 3
        (tmp_path / "in" / f"{number}.json").write_text("".join(lines))


def ran(**epochs):
    """Let sinks hold so many epochs, of one file each, and lose the checkpoint."""
    pipeline = load_target("flows.py:pipeline")
    (source,) = pipeline.sources
    place = workspace(Path("lost"), "rides")
    opened = source.spec.open("rides", place)
    ends = [opened.initial()]
    for _ in range(max(epochs.values())):
        ends.append(opened.latest(ends[-1], bounded=False))
    told = tuple(source.spec.explanations("rides", place, 0))
    sinks = {node.name: node.spec for node in pipeline.sinks if node.name in epochs}
    for name, spec in sinks.items():
        sink: Any = spec.connect(name, "trips", SCHEMA)
        sink.open(RunIdentity("trips", 1))
        for epoch in range(1, epochs[name] + 1):
            record = EpochRecord("trips", epoch, 1, {"rides": ends[epoch]}, explanations=told)
            rows = pa.table({"city": [CITIES[(epoch - 1) % 2]] * 3, "km": [epoch - 1] * 3}, schema=SCHEMA)
            sink.publish([Publication(record, (Carried(rows),))], Held())
        if name != "by_city":  # what grows there must not be sealed
            sink.close()
        else:
            sink._tending.stop()
    shutil.rmtree("lost")


def asked(command, name="pipeline", *options):
    found = CliRunner().invoke(app, [command, f"flows.py:{name}", "--checkpoint", "ckpt", *options])
    return found.exit_code, found.stdout, found.stderr


def everything(directory):
    return {path: path.is_dir() or path.read_bytes() for path in Path(directory).rglob("*")}


@pytest.mark.slow
@pytest.mark.parametrize("command", ["plan", "inspect"])
def test_the_recovery_is_said_before_it_runs(command):
    ran(table=6, files=4, by_city=5)
    before = everything(".")
    code, said, _ = asked(command)
    assert code == 0
    lines = said.splitlines()
    assert "checkpoint ckpt is lost, or new: nothing has run in it, and sinks of pipeline 'trips' hold epochs." in lines
    assert "start    row E: the pipeline continues where the sinks are" in lines
    assert "source rides  is read from log=4 on; what its positions mean comes from the sinks" in lines
    assert "sink table  holds up to epoch 6: of what is read it skips source 'rides' from log=4 to log=6" in lines
    assert "sink files  holds up to epoch 4: it gets all that is read" in lines
    assert "sink by_city  holds up to epoch 5: of what is read it skips source 'rides' from log=4 to log=5" in lines
    assert everything(".") == before, "nothing is changed"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["plan", "inspect"])
def test_of_a_checkpoint_that_has_lost_what_is_sparks_and_what_is_of_the_sources_too(command):
    ran(table=6, files=4)
    Path("ckpt").mkdir()
    Path("ckpt/identity.json").write_text('{"pipeline": "trips", "format": 1}')
    code, said, _ = asked(command)
    assert code == 0
    lines = said.splitlines()
    head = "Spark's part of checkpoint ckpt is lost, or new: sinks of pipeline 'trips' hold epochs."
    assert (head in lines) == (command == "inspect")
    assert "start    row E: the pipeline continues where the sinks are" in lines
    assert "source rides  is read from log=4 on; what its positions mean comes from the sinks" in lines
    assert "sink table  holds up to epoch 6: of what is read it skips source 'rides' from log=4 to log=6" in lines
    assert "sink by_city  holds nothing: it gets all that is read" in lines
    assert os.listdir("ckpt") == ["identity.json"]


def test_of_a_run_that_died_before_it_had_anything_inspect_says_nothing_of_a_loss():
    Path("ckpt").mkdir()
    Path("ckpt/identity.json").write_text('{"pipeline": "trips", "format": 1}')
    code, said, _ = asked("inspect", "counted")
    assert (code, "lost" in said) == (0, False)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["plan", "inspect"])
def test_programs_are_told_the_same(command):
    ran(table=3, files=2)
    code, said, _ = asked(command, "pipeline", "--json")
    assert code == 0
    found = json.loads(said)
    recovery = (found if command == "plan" else found["recovery"])["recovery"]
    assert recovery["seek"] == {"rides": {"log": 2}}
    assert recovery["restored"] == ["rides"]
    assert recovery["sinks"]["table"] == {"epoch": 3, "skips": {"rides": {"log": [2, 3]}}, "segments": {}}
    assert recovery["sinks"]["files"]["skips"] == {}
    assert recovery["sinks"]["by_city"] == {"epoch": 0, "skips": {}, "segments": {}}


def sealed_ulm(segment):
    return "asked" if segment.partition == "city=Ulm" else None


@pytest.mark.slow
def test_of_a_sink_whose_journal_is_lost_too_each_segment_skips_what_is_sealed():
    ran(table=6, by_city=5)
    declared: Any = load_target("flows.py:pipeline").sinks[2].spec
    spec = replace(declared, seal=(sealed_ulm,))
    sink = spec.connected("by_city", "trips", SCHEMA, is_tended=False)
    sink.open(RunIdentity("trips", 2))
    record = EpochRecord("trips", 6, 2, {"rides": {"log": 6}})
    rows = pa.table({"city": ["Bonn"] * 3, "km": [5] * 3}, schema=SCHEMA)
    sink.publish([Publication(record, (Carried(rows),))], Held())
    sink.sealing.tend()
    for path in Path("segments/_holdfast/trips/by_city/journal").iterdir():
        path.unlink()
    _, said, _ = asked("plan")
    lines = said.splitlines()
    assert "source rides  is read from log=1 on; what its positions mean comes from the sinks" in lines
    assert "sink table  holds up to epoch 6: of what is read it skips source 'rides' from log=1 to log=6" in lines
    at = lines.index("sink by_city  holds up to epoch 1: it gets all that is read")
    assert lines[at + 1 :] == [
        "  each segment  skips source 'rides' from log=1 to log=6, if not one of those below",
        "  segment city=Bonn  gets all that is read",
    ]


@pytest.mark.slow
def test_one_of_which_a_segment_grew_since_the_first_epoch_is_read_again_from_the_beginning():
    ran(table=3, by_city=3)
    for path in Path("segments/_holdfast/trips/by_city/journal").iterdir():
        path.unlink()
    _, said, _ = asked("inspect")
    lines = said.splitlines()
    assert "  holds rows of some segments, and no epoch as a whole" in lines
    assert "source rides  is read from its beginning; what its positions mean comes from the sinks" in lines
    assert "sink table  holds up to epoch 3: of what is read it skips source 'rides' from log=0 to log=3" in lines
    assert "sink by_city  holds no epoch as a whole: it gets all that is read" in lines


@pytest.mark.slow
def test_files_that_the_sinks_still_need_and_that_are_gone_are_named_by_plan():
    ran(table=6, files=2)
    for number in (0, 3, 5):
        Path(f"in/{number}.json").unlink()
    code, said, error = asked("plan")
    assert code == 4
    assert "start    row E" in said
    assert "2 of its 4 files are gone" in error
    assert "position 3, " in error
    assert "position 5, " in error
    assert "position 0, " not in error, "every sink has it"
    assert "checkpoint" in error
    assert "/tmp/holdfast-" not in error, "the plan's own directory is nobody's business"
    code, said, error = asked("inspect")
    assert code == 0, "it only shows"
    assert "! the start is refused: " in said
    assert "2 of its 4 files are gone" in said


@pytest.mark.slow
def test_state_without_a_snapshot_is_refused_as_a_start_would():
    ran(table=2)
    code, said, error = asked("plan", "counted")
    assert code == 4
    assert "start    row H" in said
    assert "no snapshot serves" in error
    assert "--rebuild-state" in error


@pytest.mark.slow
def test_plan_says_whether_state_can_be_computed_again_from_the_sources():
    ran(table=2)
    code, said, error = asked("plan", "counted", "--rebuild-state")
    assert (code, error) == (10, ""), said
    assert "start    row T: the pipeline continues with state that is computed again from the beginning" in said
    assert "source rides  is read from its beginning" in said
    assert not Path("ckpt").exists(), "nothing is changed"
    Path("in/0.json").unlink()
    for options in ([], ["--rebuild-state"]):
        code, _, error = asked("plan", "counted", *options)
        assert code == 4
        assert "1 of its 2 files are gone" in error
        assert "or let it be computed again" not in error


@pytest.mark.slow
def test_a_sink_that_does_not_answer_is_named_and_nothing_is_promised():
    ran(table=2)
    code, said, _ = asked("plan", "nowhere")
    assert code == 0
    assert "sink far was not asked: " in said
    assert "hunter2" not in said
    assert "sink table  holds everything up to epoch 2" in said
    assert "start    checked at the start" in said


@pytest.mark.slow
def test_a_sink_that_only_a_start_can_ask_is_left_to_it():
    ran(table=2)
    code, said, _ = asked("plan", "with_function")
    assert code == 0
    assert "sink function was not asked: its function wants a Spark DataFrame" in said
    assert "sink table  holds everything up to epoch 2, opened last by generation 1\n    rides  log=2\n" in said
    assert "start    checked at the start, when every sink is asked" in said


@pytest.mark.slow
def test_two_sinks_that_disagree_are_refused_with_both_words():
    ran(table=2, files=2)
    shutil.rmtree("out")
    for path in Path("in").iterdir():
        path.rename(path.with_name(f"x{path.name}"))
    ran(files=2)
    code, _, error = asked("plan")
    assert code == 4
    assert "disagree on explanation 2 of source 'rides'" in error
    assert "x0.json" in error


@pytest.mark.slow
def test_a_checkpoint_in_which_nothing_has_run_and_empty_sinks_are_a_first_start():
    code, said, _ = asked("plan")
    assert code == 0
    assert said.startswith("nothing has run in ckpt yet: pipeline 'trips' starts from the beginning")
    code, _, error = asked("inspect")
    assert code == 2
    assert "there is no checkpoint 'ckpt'" in error
    assert {*os.listdir()} - {"__pycache__"} == {"flows.py", "in"}


def test_a_start_option_for_sinks_that_hold_epochs_is_refused_by_plan_too():
    ran(table=2)
    code, said, error = asked("plan", "started", "--at", "2026-01-01T00:00Z")
    assert code == 2
    assert "start    row P" in said
    assert "table" in error
