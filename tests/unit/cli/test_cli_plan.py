"""``holdfast plan``: what becomes of each node of a changed graph, without a JVM."""

import json
import os
import shutil
import socket
import sys
import textwrap
from dataclasses import replace

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from holdfast.checkpoint.directory_header import DirectoryHeader
from holdfast.checkpoint.graph_record import described, state_fingerprint, write_graph
from holdfast.checkpoint.schemas import note_schema
from holdfast.cli.app import app
from holdfast.cli.target import load_target
from holdfast.cli.words import plan_json, plan_lines
from holdfast.config import Settings
from holdfast.ports import Carried, EpochRecord, Held, Publication, RunIdentity
from holdfast.spark.state.plan import state_schemas_of
from holdfast.starts.directory import Directory
from holdfast.starts.plan import Plan, _stages
from holdfast.starts.table import Spark
from holdfast.store import sealed
from holdfast.store.paths import open_store

pytestmark = pytest.mark.slow

SCRIPT = """
    import holdfast as hf
    rides = hf.read.files("in/*.json", schema="city STRING, km BIGINT", name="rides")
    def pipeline(rows, table="trips", **sums):
        totals = rows | hf.accumulate(by="city", name="per_city", **sums)
        return hf.Pipeline("trips", totals | hf.write.sqlite("trips.db", table=table, name=table))
    old = pipeline(rides, n=hf.count())
    narrower = pipeline(rides | hf.filter("km > 3", name="long_rides"), n=hf.count())
    other_sink = pipeline(rides, table="more", n=hf.count())
    walks = hf.read.files("walks/*.json", schema="city STRING, km BIGINT", name="walks")
    more_sources = pipeline(hf.union(rides, walks, name="both"), n=hf.count())
    wider = pipeline(rides, n=hf.count(), sum_km=hf.sum("km"))
    other_sums = pipeline(rides, m=hf.count())
    def named(name, **past):
        totals = rides | hf.accumulate(by="city", n=hf.count(), name=name, **past)
        return hf.Pipeline("trips", totals | hf.write.sqlite("trips.db", table="trips", name="trips"))
    renamed = named("of_city", renamed_from="per_city")
    moved = named("of_city")
    stale = named("per_city", renamed_from="by_city")
    lost = named("of_city", renamed_from="by_city")
    few = hf.read.rows([[{"city": "Ulm"}]] * 7, schema="city STRING", bounded=True, name="few")
    plain = hf.Pipeline("trips", few | hf.write.sqlite("trips.db", table="trips", name="trips"))
    counted = hf.Pipeline("trips", few | hf.accumulate(by="city", n=hf.count(), name="per_city")
                          | hf.write.sqlite("trips.db", table="trips", name="trips"))
    filled = hf.Pipeline("trips", rides | hf.accumulate(by="city", n=hf.count(), name="per_city")
                         | hf.write.sqlite("trips.db", table="trips", name="trips"),
                         rides | hf.write.sqlite("trips.db", table="all", name="everything", backfill=True))
    migrated = pipeline(rides, m=hf.count(), migrate=lambda table: table.rename_columns(["city", "m"]))
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    (tmp_path / "flows.py").write_text(textwrap.dedent(SCRIPT))


def ran(name, finished=()):
    """Leave what a run of a pipeline leaves."""
    pipeline = load_target(f"flows.py:{name}")
    store = open_store("ckpt")
    stages = _stages(pipeline, Settings())
    write_graph(store, "spark/1", described(pipeline, {} if stages is None else state_schemas_of(pipeline, stages), 2))
    if stages is not None:
        store.put("spark/1/state.json", b'{"buckets": 2, "partitions": 2, "kept": "journal"}')
    store.put("spark/1/origin.json", DirectoryHeader(1, graph=state_fingerprint(pipeline)).to_json())
    offsets = ["v2", '{"batchTimestampMs": 5}']
    for source in pipeline.sources:
        segment = "rows" if source.kind == "rows" else "log"
        offset = {"positions": {segment: 7}, "size_bytes": 1, "row_count": None}
        offset |= {"has_ended": True} if source.name in finished else {}
        offsets.append(f"{source.name}:{json.dumps(offset)}")
    store.put("spark/1/offsets/0", "\n".join(offsets).encode())
    store.put("spark/1/metadata", b'{"id": "x"}')


def planned(name, *options, shows_kept=True):
    verbosely = ["-v"] if shows_kept else []
    found = CliRunner().invoke(app, ["plan", f"flows.py:{name}", "--checkpoint", "ckpt", *verbosely, *options])
    return found.exit_code, found.stdout, found.stderr


def test_an_unchanged_graph_goes_on_where_it_was():
    code, said = planned("old")[:2]
    assert (code, said) == (0, "nothing has run in ckpt yet: pipeline 'trips' starts from the beginning.\n")
    ran("old")
    code, text, _ = planned("old")
    assert code == 0
    assert text.startswith("pipeline 'trips' continues in spark/1, with all its state.\n")
    assert "  kept     stateful operator per_city: keeps its state\n" in text


def test_what_is_kept_is_a_number_unless_it_is_asked_for():
    ran("old")
    code, text, _ = planned("narrower", shows_kept=False)
    assert (code, "kept     " in text) == (10, False)
    assert "\n1 changed, 2 kept, 1 new; with -v what is kept is shown, too\n" in text


def test_a_changed_graph_is_told_node_by_node():
    ran("old")
    code, text, _ = planned("narrower")
    assert code == 10
    assert text.splitlines() == [
        "pipeline 'trips' has changed: it continues in spark/2, from the end of the last epoch.",
        "  kept     source rides",
        "+ new      operator long_rides: holds for the rows from here on",
        "~ changed  stateful operator per_city: keeps its state; what it does with it is the new arguments'",
        "             it read rides, and reads long_rides",
        "  kept     sink trips",
        "1 changed, 2 kept, 1 new",
        "start    row M: the pipeline continues with the changed graph, from the end of the last epoch",
        "         state: kept, renamed, migrated, new or dropped, operator by operator",
        "         sources: from the end of the last epoch that the old graph finished",
        "         sinks: each gets what comes from there on",
    ]
    code, text, _ = planned("other_sink")
    assert code == 10
    assert "continues in spark/1, with all its state" in text, "a sink has no part in the state"
    assert "+ new      sink more: begins here: it gets no older rows" in text
    assert "- gone     sink trips: keeps its rows, and gets no more" in text


def test_state_that_does_not_fit_is_refused_with_exit_code_2_unless_forced():
    ran("old")
    code, text, error = planned("other_sums")
    assert code == 2
    assert "! refused  stateful operator per_city: its state does not fit" in text
    assert "the state of stateful operator 'per_city' does not fit the changed graph" in error
    assert "state table 'values' was" in error or "state table" in error
    assert planned("other_sums", "--force")[0] == 10
    code, text, error = planned("lost")
    assert code == 2
    assert "! refused  stateful operator of_city: has no state to take over" in text
    assert "renamed_from='by_city' is no stateful operator of the graph that ran last, which has per_city" in error


def test_state_that_is_brought_over_is_told():
    ran("old")
    code, text, _ = planned("wider")
    assert code == 10
    assert "~ migrated stateful operator per_city: keeps its state; what is new in it begins neutral" in text
    assert "state table 'running' gets columns, neutral where there was something already" in text
    code, text, _ = planned("renamed")
    assert code == 10
    assert "~ renamed  stateful operator of_city: keeps the state of 'per_city'\n" in text
    assert "gone" not in text
    assert planned("stale")[1].startswith("pipeline 'trips' continues in spark/1"), (
        "once it has happened, it is harmless"
    )
    code, text, _ = planned("migrated")
    assert code == 10
    assert "~ migrated stateful operator per_city: keeps its state, migrated" in text
    assert "state table 'running' is what migrate= makes" in text


def test_state_that_nobody_takes_is_not_dropped_without_a_word_of_the_user(monkeypatch):
    """It may be that of an operator that was renamed by a start which died (design/0011, section 5)."""
    ran("old")
    code, text, error = planned("moved")
    assert code == 2
    assert "! state of per_city that no operator takes over, while of_city, of the same kind, begins without" in text
    assert "the state of stateful operator 'per_city' would be lost" in error
    assert "'of_city', of the same kind, is new" in error
    assert "renamed_from='per_city' at 'of_city'" in error
    assert "--drop-state per_city" in error
    assert planned("moved", "--force")[0] == 2, "that is for state which does not fit"
    assert planned("moved", "--drop-state", "by_city")[0] == 2
    assert planned("moved", "--drop-state", "by_city", "--drop-state", "per_city")[0] == 10
    code, _, error = planned("narrower", "--drop-state", "per_city")
    assert code == 2
    assert "'per_city' is to be dropped, and is taken over" in error
    monkeypatch.setenv("HOLDFAST_DROP_STATE", "by_city, per_city")
    assert planned("moved")[0] == 10
    monkeypatch.delenv("HOLDFAST_DROP_STATE")
    assert planned("plain")[0] == 10, "nothing begins without state that could have had it"


def replaying(*ends, **origin):
    """Let the directory be one that has still to replay all but the first of its epochs."""
    store = open_store("ckpt")
    seek = tuple({"rides": {"log": end}} for end in ends)
    graph = state_fingerprint(load_target("flows.py:old"))
    store.put("spark/1/origin.json", DirectoryHeader(8, seek, graph=graph, **origin).to_json())
    store.put("spark/1/commits/0", b'v1\n{"nextBatchWatermarkMs":0}')
    return store


def test_what_is_to_be_evaluated_again_after_a_damage_or_an_interrupted_rewind_belongs_to_the_old_graph():
    ran("old")
    replaying(5, 7, 8, 9)
    for name in ("narrower", "renamed"):
        code, text, error = planned(name)
        assert code == 2
        assert "* 2 epochs the old graph must evaluate again, for their state: sinks hold their rows" in text
        assert "the graph has changed before the old one had caught up with its sinks" in error
        assert "a rewind was interrupted" in error
        assert "start the old graph until it has reached new rows" in error
        assert "holdfast rewind with the old graph" in error
    assert planned("old")[1].startswith("pipeline 'trips' continues in spark/1"), "the same graph just goes on"


@pytest.mark.parametrize("origin", [{"backfilled": ("everything",)}, {"kept": ()}], ids=["of now", "of before"])
def test_what_is_left_of_a_backfill_belongs_to_the_graph_of_now(origin):
    ran("old")
    replaying(0, 7, 9, **origin)
    code, text, _ = planned("narrower")
    assert code == 10
    assert "* 1 epochs this graph evaluates again" in text
    code, _, error = planned("more_sources")
    assert code == 2
    assert "source 'walks' comes or goes before the graph has caught up" in error


def test_operators_at_which_bounds_end_are_named_with_the_reason():
    planned = Plan(Directory("spark/1", Spark.GOOD), None, bounds_end={"mapped": "'at' is computed"})
    said = "* no bound but the end of the stream holds downstream of mapped: 'at' is computed"
    assert said in list(plan_lines("trips", planned))
    assert plan_json(planned)["bounds_end"] == {"mapped": "'at' is computed"}
    assert "bounds_end" not in plan_json(replace(planned, bounds_end={}))


def test_another_division_of_state_is_told(monkeypatch):
    ran("old")
    monkeypatch.setenv("HOLDFAST_PARTITIONS", "5")
    code, text, _ = planned("old")
    assert code == 10
    assert text.splitlines()[:3] == [
        "pipeline 'trips' has changed: it continues in spark/2, from the end of the last epoch.",
        "* state is divided into 5 buckets, and no longer into 2",
        "* 5 tasks work on it at a time, and no longer 2",
    ]


def test_a_finished_source_is_told_and_refused():
    ran("old", finished=["rides"])
    code, text, error = planned("narrower")
    assert code == 2
    assert "! finished source rides: it has ended" in text
    assert "source 'rides' is finished" in error
    assert planned("narrower", "--force")[0] == 10
    assert planned("old")[0] == 0
    assert planned("other_sink")[0] == 2


def test_a_source_that_had_ended_where_a_rewind_goes_back_to_is_finished():
    ran("old")
    store = open_store("ckpt")
    store.delete("spark/1/offsets/0")
    graph = state_fingerprint(load_target("flows.py:old"))
    for mark, code in (({}, 10), ({"@ended": 1}, 2)):
        store.put("spark/1/origin.json", DirectoryHeader(8, ({"rides": {"log": 7, **mark}},), graph=graph).to_json())
        assert planned("narrower")[0] == code
    assert planned("narrower", "--force")[0] == 10


def test_a_bounded_source_that_is_read_to_its_end_is_finished_though_no_state_was_told(tmp_path):
    ran("plain")
    assert planned("counted")[0] == 10, "nothing is known of where its rows end"
    (tmp_path / "ckpt" / "sources" / "few").mkdir(parents=True)
    code, text, _ = planned("counted")
    assert code == 2
    assert "! finished source few: it has ended" in text
    assert planned("counted", "--force")[0] == 10


def test_a_sink_that_gets_everything_is_told_or_refused(tmp_path):
    ran("old")
    code, _, error = planned("filled")
    assert code == 2
    assert "source 'rides' cannot go back: its log of what was read is not in this checkpoint" in error
    (tmp_path / "ckpt" / "sources" / "rides").mkdir(parents=True)
    code, text, _ = planned("filled")
    assert code == 10
    assert text.splitlines() == [
        "pipeline 'trips' has changed: it continues in spark/2, from the end of the last epoch.",
        "* sink 'everything' is new and gets everything from the beginning (backfill=True)",
        "! kept     source rides: is read again from its beginning",
        "~ rebuilt  stateful operator per_city: its state is computed anew, from the beginning",
        "  kept     sink trips",
        "+ new      sink everything: gets everything from the beginning",
        "1 rebuilt, 2 kept, 1 new",
        "start    row N: the pipeline reads everything again for the sink that is new",
        "         state: recomputed by the new graph",
        "         sources: from their beginning",
        "         sinks: the new one gets everything, the others what they do not hold",
    ]
    ran("filled")
    assert planned("filled")[1].startswith("pipeline 'trips' continues in spark/1"), "once it is there, it is harmless"


def test_a_plan_foresees_what_a_start_is_refused_for(tmp_path):
    """The sinks are asked: here one was emptied, then one holds more than anybody can go back to."""
    ran("plain")
    store = open_store("ckpt")
    store.put("sinks/trips.json", sealed.dump({"first_epoch": 3}))
    code, text, error = planned("plain")
    assert code == 4
    assert "start    row R: the pipeline is refused" in text
    assert "'trips' holds nothing, and has taken part since epoch 3" in error
    code, text, _ = planned("plain", "--json")
    found = json.loads(text.splitlines()[0])
    assert (code, found["start"]["row"], found["start"]["way"]) == (4, "R", "refuse")
    assert found["refusal"].startswith("sink 'trips' holds nothing")


def test_a_plan_says_where_a_start_goes_on_whose_spark_directory_is_lost(tmp_path):
    ran("plain")
    pipeline = load_target("flows.py:plain")
    schema = pa.schema([("city", pa.string())])
    sink = pipeline.sinks[0].spec.connect("trips", "trips", schema)
    sink.open(RunIdentity("trips", 1))
    record = EpochRecord("trips", 1, 1, {"few": {"rows": 7}}, None)
    sink.publish([Publication(record, (Carried(pa.table({"city": ["Ulm"] * 7}, schema)),))], Held())
    sink.close()
    note_schema(open_store("ckpt"), "trips", schema)
    open_store("ckpt").put("identity.json", b'{"pipeline": "trips", "format": 1}')
    shutil.rmtree(tmp_path / "ckpt/spark")
    code, text, error = planned("plain")
    assert "start    row E: the pipeline continues where the sinks are" in text, error
    assert (code, error) == (0, "")


def test_a_plan_as_json():
    ran("old")
    code, text, _ = planned("narrower", "--json")
    assert code == 10
    found = json.loads(text)
    assert found["directory"] == {"below": "spark/2", "previous": "spark/1", "is_changed": True, "reasons": []}
    verdicts = {node["name"]: node["verdict"] for node in found["change"]["nodes"]}
    assert verdicts == {"rides": "kept", "long_rides": "new", "per_city": "changed", "trips": "kept"}


def test_a_plan_over_nothing_is_json_too_where_that_is_asked_for(tmp_path):
    code, text, _ = planned("old", "--json")
    told = {"paused": [], "limits": {}, "ends": None}
    nothing = {"directory": None, "change": None, "warnings": [], "new_columns": {}, "controls": told, "drift": []}
    assert (code, json.loads(text)) == (0, nothing)
    assert not (tmp_path / "ckpt").exists()


def test_a_directory_of_an_older_version_says_what_to_do():
    ran("old")
    store = open_store("ckpt")
    store.delete("spark/1/graph.json")
    store.put("spark/1/state.json", b'{"buckets": 2, "partitions": 2}')
    code, _, error = planned("narrower")
    assert code == 2
    assert "start the unchanged graph once with this version" in error


def test_a_plan_warns_of_names_that_nobody_gave():
    with open("flows.py", "a", encoding="utf-8") as script:
        script.write(
            "nameless = hf.Pipeline('trips', rides | hf.accumulate(by='city', n=hf.count())"
            " | hf.write.sqlite('trips.db', table='trips'))\n"
        )
    code, text, _ = planned("nameless")
    assert code == 0
    minded = [line for line in text.replace("\n  ", " ").splitlines() if line.startswith("warning: ")]
    assert [line.split()[1] for line in minded] == ["accumulate", "sink"]
    assert not [line for line in planned("old")[1].splitlines() if line.startswith("warning: ")]


def test_beside_a_run_that_is_alive_no_row_is_told():
    """Its sinks and Spark's log would be of two moments."""
    ran("plain")
    open_store("ckpt").put("sinks/trips.json", sealed.dump({"first_epoch": 3}))
    owner = {"generation": 1, "host": socket.gethostname(), "pid": os.getpid(), "at_us": 1}
    open_store("ckpt").put("generations/00000001.json", json.dumps(owner).encode())
    code, text, error = planned("plain")
    assert (code, error) == (0, ""), text
    assert "start    not known while a run is alive" in text
