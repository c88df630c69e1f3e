"""No secret and no row leaves by a support bundle, and no secret by metrics, inspect and logs (design/0049, 7)."""

from __future__ import annotations

import json
import logging
import zipfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.cli.app import app
from holdfast.config import Settings
from holdfast.json_values import as_json
from holdfast.metrics.families import exposition
from holdfast.observe.bundle import Evidence, bundle_files
from holdfast.observe.logs import logging_to
from holdfast.observe.scrubbing import Scrubber
from holdfast.status import STATE_REPORT_KEY, OperatorStatus, SourceStatus, Status, Wait
from holdfast.store.local import LocalStore

PASSWORD, ROW, REASON, PATH, KEY, SETTING = (
    *("pw7Qx1vulpine", "row8Zk2marzipan", "why4Tt3obelisk", "dir5Pp4quokka", "key6Gg5zeppelin", "set9Mm6kumquat"),
)
NUMBER = "4929123412341234"
PLANTED = (PASSWORD, ROW, REASON, PATH, KEY, SETTING, NUMBER)
DSN = f"postgresql://app:{PASSWORD}@127.0.0.1:9/{PATH}"

PIPELINE = f"""
import holdfast as hf
from holdfast.errors import Unavailable

rides = hf.read.files("{{base}}/{PATH}/in", schema="city STRING, fare DOUBLE", name="rides", on_bad_row="reject")
some = rides | hf.filter("city <> '{ROW}' AND fare > {NUMBER}", name="some")
pipeline = hf.Pipeline("trips", some | hf.write.postgres("{DSN}", table="rows", name="table"))
"""

LOG = f"""2026-01-02T03:04:05.000001Z INFO    71 MainThread holdfast.run: epoch 41: 7 rows published in 12 ms
2026-01-02T03:04:05.000002Z WARNING 71 commit holdfast.commit: epoch 42 of pipeline 'trips': sink 'table' failed
Traceback (most recent call last):
  File "/home/{PATH}/venv/lib/python3.11/site-packages/pyspark/worker.py", line 12, in main
    process("{ROW}")
  File "/home/{PATH}/trips.py", line 7, in speed
    raise ValueError("{ROW}")
psycopg.errors.UniqueViolation: duplicate key value violates unique constraint "{KEY}"
DETAIL:  Key (city)=({ROW}) already exists: {NUMBER}, connect to {DSN}
2026-01-02T03:04:06.000001Z ERROR   71 MainThread someones.module: {ROW} has {NUMBER} at /srv/{PATH}: {REASON}
{{"at": "2026-01-02T03:04:07Z", "level": "INFO", "logger": "holdfast.run", "message": "in JSON: {ROW}"}}
"""

REPORT = {
    "epoch": 41,
    "generation": 3,
    "at_us": 5,
    "operators": [
        as_json(
            OperatorStatus(
                "sums",
                "accumulate",
                state_rows=30,
                state_bytes=4_000,
                waits=(Wait({"city": KEY}, "rides", 5, waiting_rows=2), Wait({"city": NUMBER}, "rides", 6)),
                reasons={"late": {f"no number: {REASON}": 2}},
                counts={ROW: 4},
            )
        )
    ],
    "rejects": {"rides": {REASON: 3}},
}


def plant(base: Path) -> tuple[Path, Path]:
    """Leave what a run has left that is dead; return its checkpoint and the file of its pipeline."""
    checkpoint = base / PATH / "checkpoint"
    checkpoint.mkdir(parents=True)
    (base / PATH / "in").mkdir()
    store = LocalStore(str(checkpoint))
    store.put("identity.json", json.dumps({"pipeline": "trips", "format": 1}).encode())
    store.put(STATE_REPORT_KEY, json.dumps(REPORT).encode())
    store.put("supervisor.json", json.dumps({"restarts": 4, "why": f"the child ended: {ROW} at {DSN}"}).encode())
    (checkpoint / "holdfast.log").write_text(LOG)
    (checkpoint / ROW).mkdir()
    target = base / PATH / "trips.py"
    target.write_text(PIPELINE.replace("{base}", str(base)))
    return checkpoint, target


def planted_in(files: dict[str, bytes]) -> list[tuple[str, str]]:
    return [(name, word) for name, data in files.items() for word in PLANTED if word.encode() in name.encode() + data]


def command(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_MASTER", f"spark://{SETTING}:7077")
    monkeypatch.setenv("HOLDFAST_SECRET_KEY", f"{SETTING}{SETTING}{SETTING}")
    monkeypatch.setenv("HOLDFAST_DROP_STATE", SETTING)


def test_a_bundle_of_a_dead_run_has_what_helps_and_nothing_that_is_planted(tmp_path: Path) -> None:
    checkpoint, target = plant(tmp_path)
    out = tmp_path / "bundle.zip"
    done = command("support-bundle", str(target), "--checkpoint", str(checkpoint), "--out", str(out), "--json")
    assert done.exit_code == 0
    assert out.stat().st_mode & 0o777 == 0o600
    with zipfile.ZipFile(out) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    assert json.loads(done.stdout) == {
        "files": {name: len(data) for name, data in files.items()},
        "written": str(out),
    }
    assert planted_in(files) == []
    kept = json.loads(files["checkpoint.json"])
    assert kept["operators"][0]["state_rows"] == 30
    assert kept["operators"][0]["longest_waits_by_input"] == {"rides": 2}
    assert kept["restarts"] == 4
    log = files["holdfast.log"].decode()
    assert "INFO    71 MainThread holdfast.run: epoch 41: 7 rows published in 12 ms" in log
    assert "epoch 42 of pipeline 'trips': sink 'table' failed" in log
    assert 'File "pyspark/worker.py", line 12, in main' in log
    assert 'File "…", line 7, in …' in log
    assert "…: duplicate key value violates …" in log or "duplicate key" in log
    nodes = json.loads(files["pipeline.json"])["nodes"]
    assert {node["name"] for node in nodes} == {"rides", "some"}
    settings = {each["variable"]: each["value"] for each in json.loads(files["settings.json"])}
    assert settings["HOLDFAST_MASTER"] == "…"
    assert settings["HOLDFAST_CARRY_MAX"] == "16 MB"
    assert json.loads(files["sizes.json"])["…"] == {"files": 0, "bytes": 0}


def test_a_bundle_is_listed_before_it_is_written_and_never_over_another(tmp_path: Path) -> None:
    checkpoint, _ = plant(tmp_path)
    out = tmp_path / "bundle.zip"
    listed = command("support-bundle", "--checkpoint", str(checkpoint), "--out", str(out), "--dry-run")
    assert "checkpoint.json" in listed.stdout
    assert "nothing was written" in listed.stdout
    assert not out.exists()
    out.write_text("mine")
    refused = command("support-bundle", "--checkpoint", str(checkpoint), "--out", str(out))
    assert refused.exit_code == 2
    assert out.read_text() == "mine"


def test_a_bundle_is_made_of_what_can_be_had(tmp_path: Path) -> None:
    """The pipeline's module cannot be loaded, and says a row of data in its error."""
    checkpoint, target = plant(tmp_path)
    target.write_text(f"raise ValueError('{ROW}')")
    out = tmp_path / "bundle.zip"
    assert command("support-bundle", str(target), "--checkpoint", str(checkpoint), "--out", str(out)).exit_code == 0
    with zipfile.ZipFile(out) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    assert planted_in(files) == []
    assert files["problems.txt"].startswith(b"pipeline: ")
    assert "pipeline.json" not in files


def test_what_a_live_run_tells_is_kept_by_the_list_alone(tmp_path: Path) -> None:
    status = Status(
        "trips",
        state="running",
        epoch=7,
        sources=(SourceStatus("rides", {f"{PATH}/0": 7}, {f"{PATH}/0": 9}, reasons={"rejects": {REASON: 3}}),),
        operators=(OperatorStatus("sums", waits=(Wait({"city": KEY}, "rides", 5),)),),
        error=f"BadRow: {ROW} is no number",
        waits_for=f"sink 'table': {DSN}",
    )
    step = {"at_us": 1, "epoch": 7, "generation": 1, "before": "OPEN", "event": "STAGE", "after": "STAGED"}
    live = {
        "status": status.as_json() | {"of_a_later_version": ROW},
        "metrics": exposition([status]),
        "stories": {"trips": [step | {"sink": "table", "detail": f"12 rows of {ROW}"}]},
        "stacks": {
            "driver": f'Thread 0x00007f (most recent call first):\n  File "/home/{PATH}/a.py", line 3 in {ROW}\n',
            "worker 71": 'Thread 0x00007f (most recent call first):\n  File "/x/site-packages/a.py", line 3 in b\n',
        },
    }
    live["jvm"] = {
        "jvm": f'"stream execution thread for {ROW} [id = {PASSWORD}]" WAITING\n    at {ROW}.B.run({ROW}.java:3)\n'
        f'    at app//org.apache.spark.A.b(A.scala:7)\n    {ROW}\n\n"{PATH}" RUNNABLE\n    at java.base/{PATH}\n'
        f'"Executor task launch worker for task 3.0 in stage 12.0 (TID 4)" RUNNABLE\n'
        f'"stdout reader for /tmp/driver/python" RUNNABLE\n'
    }
    files = bundle_files(Evidence(tmp_path, {}, Settings(), live=live))
    assert planted_in(files) == []
    of_jvm = files["stacks/jvm.txt"].decode()
    assert "    at org.apache.spark.A.b(A.scala:7)\n" in of_jvm
    assert '"Executor task launch worker for task 3.0 in stage 12.0 (TID 4)" RUNNABLE' in of_jvm
    assert '"stream execution thread for … [id = …]" WAITING' in of_jvm
    assert '"stdout reader for …" RUNNABLE' in of_jvm
    assert json.loads(files["status.json"])["epoch"] == 7
    assert b"of_a_later_version" not in files["status.json"]
    assert b'shard="0",state="running"} 1.0' in files["metrics.txt"]
    assert b'File "a.py", line 3, in b' in files["stacks/worker-71.txt"]
    (told,) = json.loads(files["stories.json"]).popitem()[1]
    assert (told["event"], told["detail"]) == ("STAGE", "12 rows of …")


@pytest.mark.parametrize(
    "signs", ["{}", "'{}'", '"{}"', "({})", "x={}", "[{}]", "{},", "{}.", "/{}", "{}@b", "ä{}ß", "it's {}'s"]
)
def test_no_sign_beside_a_value_lets_it_through(signs: str) -> None:
    for word in PLANTED:
        assert word not in Scrubber(["trips"]).text(f"epoch 4 has {signs.format(word)} here")


def test_metrics_inspect_and_logs_have_no_password(tmp_path: Path) -> None:
    """Rows, keys and reasons are shown there: to who may read the sinks."""
    checkpoint, target = plant(tmp_path)
    log = tmp_path / "log"
    with logging_to(log):
        logging.getLogger("someones").error("cannot connect to %s", DSN, exc_info=ValueError(DSN))
    said = [log.read_text()]
    said.append(command("inspect", str(target), "--checkpoint", str(checkpoint)).output)
    said.append(command("inspect", str(target), "--checkpoint", str(checkpoint), "--json").output)
    said.append(command("inspect", "--config").output)
    reasons = {"rejects": {f"no row: {DSN}": 3}}
    said.append(exposition([Status("trips", sources=(SourceStatus("rides", rejects=3, reasons=reasons),))]))
    segment = f"s3://k:{PASSWORD}@b/0"
    said.append(exposition([Status("trips", sources=(SourceStatus("rides", {segment: 1}, {segment: 4}),))]))
    assert [PASSWORD in each for each in said] == [False] * len(said)
    assert all("***" in each for each in (said[0], *said[-2:]))
