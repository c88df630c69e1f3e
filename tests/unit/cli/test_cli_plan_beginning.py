"""``holdfast plan`` of a pipeline that has not begun: what a first start would do with state, a time, a checkpoint."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from holdfast.checkpoint import named
from holdfast.checkpoint.directory_header import DirectoryHeader, note_beginning
from holdfast.checkpoint.graph_record import state_fingerprint
from holdfast.checkpoint.manifest import EpochEnd
from holdfast.cli.app import app
from holdfast.cli.target import load_target
from holdfast.config import Settings
from holdfast.spark.state.plan import state_schemas_of
from holdfast.spark.state.transfer import Transfer
from holdfast.starts.plan import _stages
from holdfast.store.paths import open_store
from holdfast.testing.clock import SimulatedClock

SCRIPT = """
    import holdfast as hf
    few = hf.read.rows([[{"city": "Ulm", "t": 1}]] * 7, schema="city STRING, t BIGINT", name="few")
    timed = hf.read.files("in/*.json", schema="city STRING, t TIMESTAMP", timestamp="t", name="timed")
    def counting(rows, **more):
        counts = rows | hf.accumulate(by="city", n=hf.count(), name="counts", **more)
        return hf.Pipeline("trips", counts | hf.write.sqlite("trips.db", table="trips", name="trips"))
    pipeline = counting(few)
    of_files = counting(timed)
    def named(name, **past):
        counts = few | hf.accumulate(by="city", n=hf.count(), name=name, **past)
        return hf.Pipeline("trips", counts | hf.write.sqlite("trips.db", table="trips", name="trips"))
    renamed = named("of_city", renamed_from="counts")
    moved = named("of_city")
    def migrated(migrate):
        highest = few | hf.accumulate(by="city", m=hf.max("t"), name="counts", migrate=migrate)
        return hf.Pipeline("trips", highest | hf.write.sqlite("trips.db", table="trips", name="trips"))
    converted = migrated(lambda table: table.rename_columns(["city", "m"]))
    as_it_was = migrated(lambda table: table)
    broken = migrated(lambda table: table["nowhere"])
    other = hf.Pipeline("trips", few | hf.accumulate(by="city", m=hf.max("t"), name="counts")
                        | hf.write.sqlite("trips.db", table="trips", name="trips"))
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    (tmp_path / "flow.py").write_text(textwrap.dedent(SCRIPT))
    pq.write_table(pa.table({"city": ["Ulm", "Bern"], "n": [3, 4]}), tmp_path / "counts.parquet")


def holdfast(*arguments: str) -> tuple[int, str, str]:
    answer = CliRunner().invoke(app, [*arguments])
    return answer.exit_code, answer.stdout, answer.stderr


def planned(*options: str, name: str = "pipeline", checkpoint: str = "ckpt") -> tuple[int, str, str]:
    return holdfast("plan", f"flow.py:{name}", "--checkpoint", checkpoint, "-v", *options)


def checkpoint_of_three(directory: str) -> None:
    """Leave a named checkpoint of another pipeline: the end of its epoch 3."""
    pipeline, store = load_target("flow.py:pipeline"), open_store(directory)
    stages = _stages(pipeline, Settings())
    assert stages is not None
    schemas = state_schemas_of(pipeline, stages)
    transfer = Transfer(store, "walks", state_fingerprint(pipeline), schemas, {}, 2, 1, SimulatedClock())
    (table,) = schemas["counts"].tables.values()
    rows = pa.table({"city": ["Ulm", "Bern"], table.schema.names[1]: [3, 4]}, schema=table.schema)
    state = {"counts": dict.fromkeys(schemas["counts"].tables, rows)}
    ended = EpochEnd(3, 3, {"few": {"rows": 3}, "timed": {"log": 3}}, 5)
    named.put_named(store, "third", transfer.begun_with(state, ended))


BEGINS = "start    row B: the pipeline begins at the time, the named checkpoint or with the state that was asked for\n"


@pytest.mark.slow
def test_given_state_is_read_and_compared_and_nothing_is_made(tmp_path: Path) -> None:
    code, text, error = planned("--state", "counts=counts.parquet")
    assert (code, error) == (0, "")
    assert text.startswith(
        "pipeline 'trips' has not begun; it would begin with state=(counts: 'counts.parquet').\n"
        "state of counts  running 2 rows\n" + BEGINS
    )
    found = json.loads(planned("--state", "counts=counts.parquet", "--json")[1])
    assert found["begins"]["state"] == {"counts": {"running": 2}}
    assert (found["start"]["row"], found["start"]["way"]) == ("B", "fork")
    assert not (tmp_path / "ckpt").exists()
    assert not (tmp_path / "trips.db").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--state", "counts=wrong.parquet"), "column 'n' is string, and the state has int64"),
        (("--state", "counts=none.parquet"), "the state of operator 'counts' cannot be read from"),
        (("--state", "sums=counts.parquet"), "names the operator 'sums', which keeps no state"),
        (("--state", "counts=counts.parquet", "--from-checkpoint", "third"), "exclude each other"),
        (("--state", "counts.parquet"), "write NAME=PATH"),
        (("--at", "yesterday"), "yesterday"),
        (("--at", "2026-01-01"), "source 'few' cannot begin at a time"),
        (("--from-checkpoint", "third"), "'third'"),
    ],
)
def test_what_a_start_refuses_a_plan_refuses_with_its_words_and_exit_code(
    options: tuple[str, ...], why: str, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"city": ["Ulm"], "n": ["3"]}), tmp_path / "wrong.parquet")
    code, _, error = planned(*options)
    assert (code, why in " ".join(error.split())) == (2, True), error


def test_a_time_is_told(tmp_path: Path) -> None:
    code, text, error = planned("--at", "2026-01-01", name="of_files")
    assert (code, error) == (0, "")
    assert text.startswith("pipeline 'trips' has not begun; it would begin with at=2026-01-01T00:00:00Z.\n" + BEGINS)
    assert not (tmp_path / "ckpt").exists()


@pytest.mark.slow
def test_a_named_checkpoint_is_read_whole_and_its_state_compared_operator_by_operator(tmp_path: Path) -> None:
    checkpoint_of_three("walks")
    where = ("--from-checkpoint", "walks/third")
    code, text, error = planned(*where)
    assert (code, error) == (0, "")
    assert text.startswith(
        "pipeline 'trips' has not begun; it would begin with from_checkpoint='walks/third'.\n"
        "checkpoint walks/third  the end of epoch 3 of walks; every file is whole\n"
        "  kept     stateful operator counts: keeps its state\n1 kept\n" + BEGINS
    )
    code, text, _ = planned(*where, name="renamed")
    assert (code, "~ renamed  stateful operator of_city: keeps the state of 'counts'\n" in text) == (10, True)
    code, text, error = planned(*where, name="moved")
    assert (code, "the state of stateful operator 'counts' would be lost" in error) == (2, True)
    assert planned(*where, "--drop-state", "counts", name="moved")[0] == 10
    code, text, error = planned(*where, name="other")
    assert (code, "! refused  stateful operator counts: its state does not fit" in text) == (2, True)
    assert planned(*where, "--force", name="other")[0] == 10
    code, _, error = planned(*where, name="of_files")
    assert (code, "source 'timed' cannot be read from where checkpoint 'walks/third' is" in error) == (2, True)
    (file, *_) = (tmp_path / "walks" / "snapshots").rglob("*.parquet")
    file.write_bytes(file.read_bytes()[:-1])
    code, _, error = planned(*where)
    assert (code, file.name in error) == (1, True)
    assert not (tmp_path / "ckpt").exists()


@pytest.mark.slow
def test_what_migrate_makes_of_a_named_checkpoint_is_tried_and_thrown_away(tmp_path: Path) -> None:
    """A start calls the function before anything happens, and refuses what it raises or what does not fit."""
    checkpoint_of_three("walks")
    before = {path: path.read_bytes() for path in (tmp_path / "walks").rglob("*") if path.is_file()}
    where = ("--from-checkpoint", "walks/third")
    code, text, error = planned(*where, name="converted")
    assert (code, "state table 'running' of operator 'counts', migrated: 2 rows, then 2\n" in error) == (10, True)
    assert "every file is whole\nstate of counts  running 2 rows\n~ migrated stateful operator counts: " in text
    assert json.loads(planned(*where, "--json", name="converted")[1])["begins"]["state"] == {"counts": {"running": 2}}
    for name, why in (
        ("as_it_was", "migrate= of operator 'counts' returned state table 'running' with another schema"),
        ("broken", "migrate= of operator 'counts' failed"),
    ):
        code, text, error = planned(*where, name=name)
        assert (code, why in error, BEGINS in text) == (2, True, True), error
        answer, _ = planned(*where, "--json", name=name)[1].splitlines()
        assert json.loads(answer)["refusal"].startswith("migrate= of operator")
    assert {path: path.read_bytes() for path in (tmp_path / "walks").rglob("*") if path.is_file()} == before
    assert not (tmp_path / "ckpt").exists()


@pytest.mark.slow
def test_a_pipeline_that_has_begun_goes_on_with_the_same_words_and_is_refused_with_others() -> None:
    store = open_store("ckpt")
    given = ("--state", "counts=counts.parquet")
    header = DirectoryHeader(2, ({"few": {"rows": 0}},))
    note_beginning(store, "state=(counts: 'counts.parquet')", header)
    store.put("identity.json", b'{"pipeline": "trips", "format": 1}')
    code, text, error = planned(*given)
    assert (code, error) == (0, "")
    assert "row C: the pipeline begins where the first start noted" in text, "a start that died"
    code, _, error = planned("--state", "counts=other.parquet")
    assert (code, "it has begun already" in error) == (2, True)


# --- what inspect prints is what is accepted --------------------------------------------------------------------------

KINDS = """
    import pyarrow as pa
    import holdfast as hf
    schema = "k STRING, t TIMESTAMP, n BIGINT"
    one, two = (hf.read.rows([], schema=schema, timestamp="t", name=name) for name in ("one", "two"))
    def touched(key, rows, state):
        state.set(n=1)
        yield {"k": key, "n": 1}
    operators = [
        one | hf.accumulate(by="k", total=hf.sum("n"), name="accumulated"),
        one | hf.aggregate(by="k", window=hf.tumbling("1 min"), mean=hf.mean("n"), name="windows"),
        one | hf.reduce(by="k", newest=hf.max("t"), name="reduced"),
        one | hf.apply(touched, by="k", state="n BIGINT, at TIMESTAMP", schema="k STRING, n BIGINT",
                       timers=["event", "batch"], name="applied"),
        one | hf.distinct(by="k", horizon="1 h", name="once"),
        hf.merge(one, {"two": two}, by="k", tolerance="2 h", name="merged"),
        hf.sync({"one": one, "two": two}, by="k", name="synced"),
        one | hf.stateful(lambda state, rows, at: (state, rows), by="k", schema=schema, name="own",
                          state={"seen": hf.StateTable(pa.schema([("k", pa.string()), ("n", pa.int64())]), ("k",))}),
        one | hf.limit_in_flight(30, by="k", per="1 s", name="limited"),
    ]
    pipeline = hf.Pipeline("kinds", *[each | hf.write.memory(f"rows_{each.name}") for each in operators])
"""


@pytest.mark.slow
def test_the_schema_that_inspect_prints_is_the_one_that_a_start_accepts(tmp_path: Path) -> None:
    """Of every kind of operator: what is printed is read, written as Parquet, and given."""
    (tmp_path / "flow.py").write_text(textwrap.dedent(KINDS))
    code, text, error = holdfast("inspect", "flow.py", "--json")
    assert (code, error) == (0, "")
    kept = json.loads(text)["schemas"]
    assert len(kept) == 9
    options = []
    for of in kept:
        (tmp_path / of["operator"]).mkdir()
        for table in of["tables"]:
            schema = pa.schema(columns_of(table["columns"]))
            rows = pa.table([pa.array([some(column.type)], column.type) for column in schema], schema=schema)
            pq.write_table(rows, tmp_path / of["operator"] / f"{table['name']}.parquet")
        options += ["--state", f"{of['operator']}={of['operator']}"]
    code, text, error = planned(*options, "--json")
    assert (code, error) == (0, "")
    wanted = {of["operator"]: {table["name"]: 1 for table in of["tables"]} for of in kept}
    assert json.loads(text)["begins"]["state"] == wanted


def columns_of(text: str) -> list[tuple[str, pa.DataType]]:
    """Return the columns of a printed schema."""
    return [(name, type_of(kind)) for name, kind in (part.split(" ", 1) for part in re.split(r", (?!tz=)", text))]


def type_of(text: str) -> pa.DataType:
    """Return a printed type."""
    stamp = re.fullmatch(r"timestamp\[(\w+), tz=(\w+)\]", text)
    return pa.timestamp(*stamp.groups()) if stamp else pa.type_for_alias(text)


def some(kind: pa.DataType) -> Any:
    """Return a value of a type."""
    if pa.types.is_string(kind):
        return "a"
    return False if pa.types.is_boolean(kind) else b"a" if pa.types.is_binary(kind) else 1
