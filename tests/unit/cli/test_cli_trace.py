"""``holdfast trace``: where a row came from, by its id and the ledgers of the sinks (design/0022)."""

import datetime as dt
import json
import os
import re
import shutil
import sqlite3
import sys
import textwrap
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import holdfast as hf
from holdfast.checkpoint.explained import workspace
from holdfast.cli.app import app
from holdfast.cli.target import load_target
from holdfast.connectors.kit import explained
from holdfast.connectors.reading.until import up_to
from holdfast.controller.layouts.graph import ShardGraphs
from holdfast.observe.trace import read_at
from holdfast.ports import Carried, EpochRecord, Held, Publication, RunIdentity
from holdfast.shards.assignment import Assignment
from holdfast.shards.layout import record_layout
from holdfast.store.paths import open_store
from holdfast.types.row_ids import ReadId

SCRIPT = """
    import holdfast as hf

    def trips(source, extra=()):
        return hf.Pipeline("trips", source | hf.filter("km >= 0", name="kept") | hf.select("*", name="all")
                           | hf.write.sqlite("trips.db", table="trips", name="table"), *extra)

    SCHEMA = "city STRING, km BIGINT"
    lines = trips(hf.read.files("lines", schema=SCHEMA, max_files_per_epoch=1, name="rides") | hf.row_id())
    parquet = trips(hf.read.files("parquet", format="parquet", schema=SCHEMA, block_size="100 B", max_files_per_epoch=1,
                                  name="rides") | hf.row_id())
    rated = hf.Pipeline("trips", hf.read.rate(1000, start="2024-01-01", max_rows_per_epoch=50, name="rides")
                        | hf.row_id() | hf.write.sqlite("trips.db", table="trips", name="table"))
    plain = trips(hf.read.files("lines", schema=SCHEMA, name="rides"))
    feed = hf.read.files("lines", schema=SCHEMA, max_files_per_epoch=1, name="rides") | hf.row_id()
    beside = trips(feed, [feed | hf.write.foreach_batch(print, idempotent=True, name="function")])
    function = hf.Pipeline("trips", feed | hf.write.foreach_batch(print, idempotent=True, name="function"))
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    (tmp_path / "flows.py").write_text(textwrap.dedent(SCRIPT))
    for kind in ("lines", "parquet"):
        (tmp_path / kind).mkdir()
    for number in range(6):
        rows = [{"city": "Ulm", "km": number * 10 + km} for km in range(5)]
        (tmp_path / "lines" / f"{number}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "parquet" / f"{number}.parquet", row_group_size=2)


def ran(name, epochs=4, keeps=False):
    """Let the table hold so many epochs; return the rows that were read, by their ids."""
    pipeline = load_target(f"flows.py:{name}")
    (source,) = pipeline.sources
    place = workspace(Path("checkpoint"), "rides")
    opened = source.spec.open("rides", place)
    at, found = opened.initial(), {}
    table_node = next(node for node in pipeline.sinks if node.name == "table")
    sink = table_node.spec.connect("table", "trips", source.spec.schema)
    sink.open(RunIdentity("trips", 1))
    for epoch in range(1, epochs + 1):
        end = opened.latest(at, bounded=False)
        spans = opened.spans(at, end, parallelism=2)
        table = pa.Table.from_batches([batch for span in spans for batch in opened.read(span)])
        found.update({row["row_id"]: row for row in table.to_pylist()})
        told = tuple(source.spec.explanations("rides", place, 0))
        record = EpochRecord("trips", epoch, 1, {"rides": end}, explanations=told)
        sink.publish([Publication(record, (Carried(table),))], Held())
        at = end
    sink.close()
    if not keeps:
        shutil.rmtree("checkpoint")
    return found


class Sharded:
    """Shards of the pipeline ``lines``, each published into the table under its own ledger, file by file."""

    def __init__(self, shards):
        self.graphs = ShardGraphs(load_target("flows.py:lines"), Path("checkpoint"))
        self.layout = self.graphs.first(shards, "")
        self.at, self.epochs, self.rows = {}, {}, {}

    def record(self):
        store = open_store("checkpoint")
        store.prepare()
        recorded = record_layout(store, self.layout)
        assert recorded is not None
        self.layout = recorded

    def publish(self, shard, end=None):
        """Publish what there is for a shard, as one epoch; or one without rows that ends at some positions."""
        graph = self.graphs.of(self.layout, shard)
        (source,), (sink,) = graph.sources, graph.sinks
        place = workspace(Path("checkpoint"), "rides")
        opened = source.spec.open("rides", place)
        at = self.at.get(shard, opened.initial())
        table = opened.latest(at, bounded=False) if end is None else end
        spans = opened.spans(at, table, parallelism=2) if end is None else []
        batches = [batch for span in spans for batch in opened.read(span)]
        rows = pa.Table.from_batches(batches, source.spec.schema)
        epoch = self.epochs[shard] = self.epochs.get(shard, 0) + 1
        self.rows |= {row["row_id"]: (row, shard, epoch) for row in rows.to_pylist()}
        connected = sink.spec.connect("table", graph.name, source.spec.schema)
        connected.open(RunIdentity(graph.name, epoch))
        told = tuple(source.spec.explanations("rides", place, 0))
        record = EpochRecord(graph.name, epoch, epoch, {"rides": table}, explanations=told)
        connected.publish([Publication(record, (Carried(rows),))], Held())
        connected.close()
        self.at[shard] = table


@pytest.mark.slow
@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_row_is_traced_to_the_shard_that_published_it(has_checkpoint):
    sharded = Sharded(3)
    sharded.record()
    for shard in (0, 1, 2, 0, 1):
        sharded.publish(shard)
    assert len({shard for _, shard, _ in sharded.rows.values()}) > 1
    options = ("--checkpoint", "checkpoint") if has_checkpoint else ()
    if not has_checkpoint:
        shutil.rmtree("checkpoint")
    for row_id, (row, shard, epoch) in [*sharded.rows.items()][::3]:
        found = told("lines", row_id, *options)
        number, line = divmod(row["km"], 10)
        assert (found["place"], found["number"]) == (f"{number}.json, the block that begins at byte 0", line)
        (sink,) = found["sinks"]
        assert (sink["is_published"], sink["shard"], sink["row_count"]) == (True, shard, 1)
        if has_checkpoint:
            assert sink["published"]["epoch"] == epoch
        assert f" of shard {shard} (generation " in asked("lines", row_id, *options)[1]


@pytest.mark.slow
def test_a_row_of_a_segment_that_was_handed_over_is_of_the_shard_that_published_it():
    """The epoch without rows that takes the segment over is behind all of its rows, and published none of them."""
    sharded = Sharded(2)
    sharded.record()
    for shard in (0, 1):  # an epoch before its rows
        units = sharded.graphs.units(sharded.layout, "rides")
        sharded.publish(
            shard, {each: 0 for each, unit in units.items() if sharded.layout.assignment.shards[unit] == shard}
        )
    for shard in (0, 1):
        sharded.publish(shard)
    rows, former = dict(sharded.rows), dict(sharded.at)
    swapped = {unit: 1 - shard for unit, shard in sharded.layout.assignment.shards.items()}
    assignment = Assignment(2, swapped, {3: sharded.layout.assignment.shards})
    sharded.layout = replace(sharded.layout, assignment=assignment)
    sharded.record()
    for shard in (0, 1):
        sharded.publish(shard, {**former[0], **former[1]})
    for shard in (0, 1):
        sharded.publish(shard, former[1 - shard])
    for shard in (0, 1):
        sharded.publish(shard)

    def published():
        sinks = [told("lines", row_id, "--checkpoint", "checkpoint")["sinks"][0] for row_id in rows]
        assert all(sink["is_published"] for sink in sinks)
        return [sink["published"] and (sink["shard"], sink["published"]["epoch"]) for sink in sinks]

    assert published() == [(shard, epoch) for _, shard, epoch in rows.values()]
    with closing(sqlite3.connect("trips.db")) as connection, connection:
        connection.execute("DELETE FROM holdfast_positions WHERE source = ? AND last <= 2", (explained.ENDS,))
    assert published() == [None] * len(rows), "what is left of the lists does not say it"


def asked(name, row_id, *options):
    found = CliRunner().invoke(app, ["trace", f"flows.py:{name}", "--id", row_id, *options])
    return found.exit_code, found.stdout, found.stderr


def asked_where(name, condition, *options):
    found = CliRunner().invoke(app, ["trace", f"flows.py:{name}", "--where", condition, *options])
    return found.exit_code, found.stdout, found.stderr


def told(name, row_id, *options):
    code, said, problem = asked(name, row_id, "--json", *options)
    assert code == 0, problem
    return json.loads(said)


@pytest.mark.slow
def test_a_row_is_traced_to_its_file_and_line_without_a_checkpoint():
    for row_id, row in [*ran("lines").items()][::3]:
        found = told("lines", row_id)
        number, line = divmod(row["km"], 10)
        assert found["place"] == f"{number}.json, the block that begins at byte 0"
        assert (found["number"], found["segment"], found["position"]) == (line, "log", number)
        assert found["operators"] == ["kept", "all"]
        (sink,) = found["sinks"]
        assert (sink["name"], sink["is_published"], sink["epoch"], sink["generation"]) == ("table", True, 4, 1)
    assert not Path("checkpoint").exists()


@pytest.mark.slow
def test_a_row_of_parquet_is_traced_to_its_row_of_the_file():
    for row_id, row in [*ran("parquet").items()][::3]:
        found = told("parquet", row_id)
        number, at = divmod(row["km"], 10)
        assert (found["place"], found["number"]) == (f"{number}.parquet", at)


@pytest.mark.slow
def test_a_generated_row_is_traced_to_its_value_and_time():
    rows = ran("rated")
    for row_id in [*rows][::70]:
        found = told("rated", row_id)
        value = rows[row_id]["value"]
        assert (found["number"], found["position"]) == (value, value)
        assert found["ticks"] == 1_704_067_200_000 + value


@pytest.mark.slow
def test_people_are_told_in_lines():
    row_id = next(iter(ran("lines")))
    _, said, _ = asked("lines", row_id, "--sink", "table")
    source, operators, sink = said.splitlines()
    assert source == "source     rides (files): 0.json, the block that begins at byte 0, row 0; position log=0"
    assert operators == "operators  kept, all"
    said_of_it = r"sink       table \(sqlite\): published, in epoch 1 \(generation 1\), (.*Z); it has the row"
    (at,) = re.fullmatch(said_of_it, sink).groups()
    age = dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(at)
    assert dt.timedelta(0) <= age < dt.timedelta(hours=1)


@pytest.mark.slow
def test_a_sink_is_asked_whether_it_has_the_row():
    rows = [*ran("lines")]
    with closing(sqlite3.connect("trips.db", isolation_level=None)) as connection:
        connection.execute("DELETE FROM trips WHERE row_id = ?", (rows[0],))
        connection.execute("INSERT INTO trips SELECT * FROM trips WHERE row_id = ?", (rows[1],))
    assert [told("lines", row)["sinks"][0]["row_count"] for row in rows[:3]] == [0, 2, 1]


@pytest.mark.slow
def test_each_row_is_of_the_epoch_in_which_it_was_published():
    for row_id, row in ran("lines").items():
        (sink,) = told("lines", row_id)["sinks"]
        assert sink["published"]["epoch"] == row["km"] // 10 + 1


@pytest.mark.slow
def test_an_epoch_that_the_ledger_has_no_more_is_told_as_before(monkeypatch):
    monkeypatch.setattr(explained, "ENDS_KEPT", 2)
    rows = [*ran("lines")]
    _, said, _ = asked("lines", rows[0])
    assert "published, in epoch 4 (generation 1) or before; it has the row" in said
    assert told("lines", rows[-1])["sinks"][0]["published"]["epoch"] == 4


@pytest.mark.slow
def test_rows_are_found_by_what_they_hold():
    by_id = ran("lines")
    code, said, _ = asked_where("lines", "km % 10 = 3 AND km > 5", "--limit", "2", "--json")
    assert code == 0
    found = json.loads(said)
    assert len(found) == 2
    for each in found:
        row = by_id[each["id"]]
        assert (row["km"] % 10, each["number"]) == (3, 3)
    _, said, _ = asked_where("lines", "km = 11")
    assert said.splitlines()[0] == f"id         {next(i for i, row in by_id.items() if row['km'] == 11)}"
    assert asked_where("lines", "km = -1")[:2] == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong", ["km = = 3", "nothing = 1", "1=1); DROP TABLE trips; --", "km IN (DELETE FROM trips)"]
)
def test_a_condition_that_the_system_refuses_is_answered_in_its_words(wrong):
    ran("lines")
    code, _, problem = asked_where("lines", wrong)
    assert code == 2
    assert "SQLite said" in problem
    with closing(sqlite3.connect("trips.db")) as connection:
        assert connection.execute("SELECT count(*) FROM trips").fetchone() == (20,)


@pytest.mark.slow
def test_one_of_both_is_needed():
    assert CliRunner().invoke(app, ["trace", "flows.py:lines"]).exit_code == 2
    assert asked_where("lines", "km = 1", "--id", "018cc251-f47b-7c14-8ea7-9285b7565008")[0] == 2
    code, _, problem = asked_where("plain", "km = 1")
    assert code == 2
    assert "hf.row_id()" in problem


@pytest.mark.slow
def test_a_sink_that_cannot_say_what_it_holds_says_so():
    row_id = [*ran("beside", keeps=True)][-1]
    for options in ([], ["--checkpoint", "checkpoint"]):
        table, function = told("beside", row_id, *options)["sinks"]
        assert table["is_published"]
        assert (function["is_published"], function["problem"]) == (
            None, "keeps no ledger, so it cannot say what it holds",
        )  # fmt: skip
    alone = told("function", row_id, "--checkpoint", "checkpoint")
    assert alone["place"] == "3.json, the block that begins at byte 0"


@pytest.mark.slow
def test_what_cannot_be_traced_is_refused_with_the_cure():
    known = [*ran("lines", 2)]
    for name, row_id, options, said in [
        ("lines", "7", [], "is no row id"),
        ("lines", known[0], ["--sink", "tabel"], "has no sink 'tabel'"),
        ("plain", known[0], [], "gives its rows ids"),
        ("lines", known[0][:-4] + "0000", [], "no place has a row of this id"),
        ("function", known[0], [], "--checkpoint DIR"),
    ]:
        code, _, problem = asked(name, row_id, *options)
        assert code == 2
        assert said in " ".join(problem.split()), problem


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rows", "json", "parquet"])
def test_a_row_that_was_owed_is_traced_to_the_position_at_which_it_was_read(tmp_path, kind):
    """A source that is read up to a time reads the rest of the same place later (design/0021)."""
    lists = [[{"n": 10 * number + n, "at": at} for n, at in enumerate([1, 30, 12, 3])] for number in range(3)]
    schema = "n BIGINT, at BIGINT"
    directory = tmp_path / "timed"
    directory.mkdir()
    for number, rows in enumerate(lists):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        if kind == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), directory / f"{number}")
        else:
            (directory / f"{number}").write_text(text)
    if kind == "rows":
        stream = hf.read.rows(lists, schema=schema, timestamp="at", name="in")
    else:
        stream = hf.read.files(directory, format=kind, schema=schema, timestamp="at", name="in")
    spec: Any = (stream | hf.row_id()).node.spec
    place, seen = str(tmp_path / "work"), 0
    at = spec.open("in", place).initial()
    for ends in (5, 20, None):
        source = up_to(spec, ends).open("in", place)
        while (end := source.latest(at, bounded=False)) != at:
            for span in source.spans(at, end, parallelism=2):
                for row in (row for batch in source.read(span) for row in batch.to_pylist()):
                    known, number, position = read_at(spec, "in", ReadId.of(row["row_id"]), place, end)
                    assert at.get(known.segment, 0) <= position < end[known.segment]
                    assert number == row["n"] % 10
                    seen += 1
            at = end
    assert seen == 12
