"""A live run does what it is told by its socket, and what it was told holds for the next one (design/0049, 5)."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import holdfast as hf
from holdfast.cli.app import app
from holdfast.errors import InvalidPipeline, Unavailable
from holdfast.pipeline import Pipeline
from holdfast.spark.run import Run
from holdfast.steer.place import read_place
from holdfast.steer.protocol import SteerRequest, read_answers, request_line
from tests.spark.running import arrive, eventually, sqlite_rows

pytestmark = pytest.mark.spark


def pipeline(work: Path) -> Pipeline:
    left, right = (hf.read.files(str(work / name), schema="id BIGINT", name=name) for name in ("left", "right"))
    both = hf.union(left, right, name="both")
    return hf.Pipeline("numbers", both | hf.write.sqlite(str(work / "table.db"), table="rows", name="table"))


def started(work: Path, shards: int | None = None) -> Run:
    for name in ("left", "right"):
        (work / name).mkdir(exist_ok=True)
    given = {} if shards is None else {"shards": shards}
    return pipeline(work).start(checkpoint=work / "checkpoint", trigger=hf.every("20 ms"), **given)


def held(work: Path) -> list[int]:
    return sqlite_rows(work / "table.db", "SELECT id FROM rows ORDER BY id")


def test_a_paused_source_delivers_nothing_also_in_the_next_run_until_it_is_resumed(tmp_path: Path) -> None:
    run = started(tmp_path)
    attached = hf.attach(tmp_path / "checkpoint")
    arrive(tmp_path / "left", "a.json", [{"id": 1}])
    assert attached.wait_until_held()["token"]
    assert held(tmp_path) == [1]
    assert attached.pause("left") == {"paused": ["left"], "limits": {}, "ends": None}
    arrive(tmp_path / "left", "b.json", [{"id": 2}])
    arrive(tmp_path / "right", "c.json", [{"id": 3}])
    eventually(lambda: held(tmp_path) == [1, 3], what="the rows of the other source")
    sources = {source["name"]: source for source in attached.status()["sources"]}
    assert [sources[name]["is_paused"] for name in ("left", "right")] == [True, False]
    run.stop()
    run.wait()
    with pytest.raises(Unavailable, match="is alive on this machine"):
        attached.status()

    run = started(tmp_path)
    arrive(tmp_path / "right", "d.json", [{"id": 4}])
    eventually(lambda: held(tmp_path) == [1, 3, 4], what="the rows of the other source")
    attached.pause()
    eventually(lambda: attached.status()["doing"] == "paused", what="a run that waits for nothing else")
    attached.resume()
    attached.wait_until_held()
    assert held(tmp_path) == [1, 2, 3, 4]
    run.stop()
    run.wait()


def test_a_limited_source_delivers_no_more_than_its_rate(tmp_path: Path) -> None:
    run = started(tmp_path)
    attached = hf.attach(tmp_path / "checkpoint")
    assert attached.limit("left", 0.001)["limits"] == {"left": 0.001}
    for number in range(4):
        arrive(tmp_path / "left", f"{number}.json", [{"id": 10 * number + row} for row in range(10)])
    arrive(tmp_path / "right", "c.json", [{"id": 99}])
    eventually(lambda: 99 in held(tmp_path), what="the rows of the other source")
    eventually(lambda: len(held(tmp_path)) == 11, what="one file, the least that it can take")
    assert attached.status()["sources"][0]["limit_rows_per_s"] == 0.001
    assert attached.limit("left", None)["limits"] == {}
    attached.wait_until_held()
    assert held(tmp_path) == [*range(40), 99]
    with pytest.raises(InvalidPipeline, match="has no source 'middle'"):
        attached.limit("middle", 1)
    with pytest.raises(InvalidPipeline, match="0 rows a second"):
        attached.limit("left", 0)
    run.stop()
    run.wait()


@pytest.mark.parametrize("shards", [None, 2])
def test_a_run_that_is_drained_ends_where_its_sources_ended(tmp_path: Path, shards: int | None) -> None:
    run = started(tmp_path, shards)
    attached = hf.attach(tmp_path / "checkpoint")
    expected = []
    for number in range(6):
        arrive(tmp_path / "left", f"{number}.json", [{"id": number}])
        expected.append(number)
    is_over = threading.Event()

    def arriving() -> None:
        number = 100
        while not is_over.wait(0.005):
            arrive(tmp_path / "left", f"{number}.json", [{"id": number}])
            number += 1

    thread = threading.Thread(target=arriving)
    thread.start()
    try:
        attached.drain()
        assert run.wait(60)
        first = held(tmp_path)
        assert first[:6] == expected
        assert len(set(first)) == len(first)
    finally:
        is_over.set()
        thread.join()
    there = sum(1 for _ in (tmp_path / "left").glob("*.json"))
    assert len(first) < there  # it did not go on with what came later
    run = started(tmp_path, shards)  # what was drained is over
    attached.wait_until_held()
    assert len(held(tmp_path)) == there
    assert len(set(held(tmp_path))) == there
    run.stop()
    run.wait()


def test_a_drain_goes_on_when_its_caller_has_gone(tmp_path: Path) -> None:
    run = started(tmp_path)
    attached = hf.attach(tmp_path / "checkpoint")
    attached.pause("left")
    with pytest.raises(InvalidPipeline, match="cannot be drained: left is paused"):
        attached.drain()
    attached.resume()
    arrive(tmp_path / "left", "a.json", [{"id": 1}])
    place = read_place(tmp_path / "checkpoint")
    assert place is not None
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(place.socket)
        caller.sendall(request_line(SteerRequest("a", "drain")))
        with caller.makefile("rb") as answers:
            assert b"accepted" in answers.readline()
            assert b"token" in answers.readline()
    assert run.wait(60)
    assert held(tmp_path) == [1]


def said(work: Path, request: SteerRequest) -> Mapping[str, Any]:
    """Tell the run something under an id that the test has made."""
    place = read_place(work / "checkpoint")
    assert place is not None
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(place.socket)
        connection.sendall(request_line(request))
        with connection.makefile("rb") as file:
            return read_answers(file, lambda told: None)


def test_a_command_finds_the_checkpoint_that_it_has_made_and_no_others(tmp_path: Path) -> None:
    """Also in the next run, where the one before died before it had noted that it was made."""

    def run() -> Run:
        rows = hf.read.files(str(tmp_path / "in"), schema="id BIGINT", name="rides", timestamp="id")
        once = rows | hf.distinct(by="id", horizon=100, disorder=100, name="once")
        table = once | hf.write.sqlite(str(tmp_path / "table.db"), table="rows", name="table")
        return hf.Pipeline("rides", table).start(checkpoint=tmp_path / "checkpoint", trigger=hf.every("20 ms"))

    arrive(tmp_path / "in", "a.json", [{"id": 1}])
    mine = SteerRequest("mine", "checkpoint", {"name": "friday"})
    first = run()
    try:
        eventually(lambda: held(tmp_path) == [1], what="the first row")
        made = said(tmp_path, mine)
        assert said(tmp_path, mine) == made == {"epoch": 1}
        with pytest.raises(InvalidPipeline, match="named 'friday' already"):
            said(tmp_path, replace(mine, id="other"))
    finally:
        first.stop()
        first.wait()
    newest = max((tmp_path / "checkpoint" / "control").glob("*.json"))
    newest.unlink()
    second = run()
    try:
        eventually(lambda: second.status().state == "running", what="the next run")
        assert said(tmp_path, mine) == made
        with pytest.raises(InvalidPipeline, match="named 'friday' already"):
            said(tmp_path, replace(mine, id="another"))
    finally:
        second.stop()
        second.wait()


def test_a_plan_says_what_the_run_was_told(tmp_path: Path) -> None:
    run = started(tmp_path)
    try:
        hf.attach(tmp_path / "checkpoint").limit("left", 5)
        hf.attach(tmp_path / "checkpoint").pause("right")
    finally:
        run.stop()
        run.wait()
    (tmp_path / "numbers.py").write_text(
        "from pathlib import Path\nfrom tests.spark.test_steering import pipeline as made\n"
        f"pipeline = made(Path({str(tmp_path)!r}))\n"
    )
    asked = ["plan", str(tmp_path / "numbers.py"), "--checkpoint", str(tmp_path / "checkpoint")]
    shown = CliRunner().invoke(app, asked).stdout
    assert "told: paused: right" in shown
    assert "told: limited: left to 5 rows/s" in shown
    assert json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)["controls"]["limits"] == {"left": 5.0}
