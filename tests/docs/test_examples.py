"""The examples run and say what their readers are told; run again, they double nothing."""

import runpy
import subprocess
import sys

import pytest

from tests.docs.pages import EXAMPLES, ROOT, environment

SAY = {
    "align_streams": [
        "set:  ('EWR', '08:00', 12, 17.5)",
        "set:  ('EWR', '09:00', None, 20.0)",
        "set:  ('EWR', '10:00', -4, 21.5)",
        "set:  ('JFK', '08:00', 3, None)",
        "late: ('EWR', 'flight', 55)",
    ],
    "as_of_merge": ["('B6', None)", "('UA1', 17.5)", "('UA2', 20.0)", "('UA3', None)"],
    "batch_inference": ["10000 frames, 10000 different, 5026 hits"],
    "callback_feed": ["pushed 6 rows in this run of the example; the table holds [('ann', 2), ('bob', 3), ('eve', 1)]"],
    "drop_duplicates": ["('a', '08:00')", "('b', '08:01')", "('c', '08:31')", "('a', '10:00')"],
    "foreach_batch": [
        "guarantee: at-least-once",
        "epoch=000001 ['1,1', '2,4']",
        "epoch=000003 ['4,16', '5,25', '6,36']",
    ],
    "hourly_delays": [
        "final: ('EWR', '08:00', 3, 15.0)",
        "final: ('EWR', '09:00', 2, 3.5)",
        "live:  ('EWR', '08:00', 3)",
        "live:  ('EWR', '09:00', 2)",
    ],
    "join_orders": ["(1, 'Rome', 2.5)", "(1, 'Rome', 9.5)", "(2, 'Oslo', None)", "(3, 'Rome', None)"],
    "kill_and_resume": [
        "first run:  exit code -9; table 3000 (3000 different), archive 2000 (2000 different)",
        "second run: exit code 0; table 5000 (5000 different), archive 5000 (5000 different)",
    ],
    "own_step": ["('Berta', 'Emden', 'Kiel', 2)"],
    "running_balance": [
        "booking: ('ann', 1, 500, 500)",
        "booking: ('ann', 2, -120, 380)",
        "booking: ('ann', 3, 20, 400)",
        "booking: ('bob', 1, 70, 70)",
        "account: ('ann', 400, -120)",
        "account: ('bob', 70, 70)",
    ],
    "several_sinks": [
        "rides_table: [(1, 3.5, 7.25), (4, 42.0, 65.0), (5, 9.9, 16.85)]",
        "by_city: [('Bonn', 1), ('Bonn', 5), ('Ulm', 4), ('Ulm', 4)]",
        'short: {"ride":2,',
        "rejects: {",
    ],
    "shed_frames": ["admitted [0, 33, 200, 233]", "shed [66, 100, 133, 166, 266]"],
    "times_two": [
        "main:    [(1, 2), (2, 4), (3, 6)]",
        "replica: [(1, 2), (2, 4), (3, 6), (4, 8), (5, 10), (6, 12)]",
        "stopped with code 0",
    ],
    "state_per_key": ["('boiler', 'hot', 75.0)", "('boiler', 'cooled down', 62.0)"],
}


RUN_AGAIN = ("align_streams", "several_sinks")
ALONE = ("kill_and_resume", "times_two")
"""Run as their readers do, in processes of their own; those of ``RUN_AGAIN`` too, with ``make nightly``."""


def said(example, directory):
    result = subprocess.run(
        [sys.executable, example],
        env=environment() | {"EXAMPLE_WORK": str(directory)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


def missing(example, text):
    return [line for line in SAY[example.stem] if line not in text]


@pytest.mark.spark
@pytest.mark.parametrize("example", [pytest.param(path, id=path.stem) for path in EXAMPLES if path.stem not in ALONE])
def test_an_example_shows_what_it_promises(example, tmp_path, spark, monkeypatch, capsys):
    """In this process: a JVM for each would take longer than all they do."""
    monkeypatch.setenv("EXAMPLE_WORK", str(tmp_path))
    runpy.run_path(str(example), run_name="__main__")
    text = capsys.readouterr().out
    assert missing(example, text) == [], text


@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.parametrize("name", RUN_AGAIN)
def test_an_example_that_is_run_again_doubles_nothing(name, tmp_path):
    example = ROOT / "examples" / f"{name}.py"
    first = said(example, tmp_path)
    assert missing(example, first) == [], first
    assert said(example, tmp_path) == first


@pytest.mark.spark
@pytest.mark.crash
@pytest.mark.parametrize("name", [ALONE[0], pytest.param(ALONE[1], marks=pytest.mark.nightly)])
def test_an_example_of_several_processes_shows_what_it_promises(name, tmp_path):
    example = ROOT / "examples" / f"{name}.py"
    text = said(example, tmp_path)
    assert missing(example, text) == [], text


def test_every_example_is_run():
    assert {path.stem for path in EXAMPLES} == set(SAY)
    assert set(ALONE) <= set(SAY)
