"""The page of a real run, and of what is left of it (design/0049, section 6; issue 41, acceptance 1 and 5)."""

from __future__ import annotations

import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from html import unescape
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import psutil
import pytest
from starlette.testclient import TestClient

import holdfast as hf
from holdfast.cli.page import WORDS
from holdfast.config import Settings
from holdfast.page import layout
from holdfast.page.fleet import key_of
from holdfast.page.guard import Guard
from holdfast.page.reading import CheckpointReader
from holdfast.page.server import Dashboard
from holdfast.pipeline import Pipeline
from tests.spark.running import arrive, eventually, sqlite_rows

pytestmark = pytest.mark.spark

TOKEN = "correct horse battery"
VIEWS = ["", *[view for view in layout.VIEWS if view != "now"]]


def pipeline(work: Path) -> Pipeline:
    rows = hf.read.files(str(work / "in"), schema="id BIGINT, at TIMESTAMP", name="rides", on_bad_row="reject")
    rows = rows | hf.distinct("id", "1 h", disorder="1 h", timestamp="at", name="once")
    tables = [
        hf.write.sqlite(str(work / f"{name}.db"), table="rows", name=name, rewindable=True)
        for name in ("left", "right")
    ]
    return hf.Pipeline("trips", *(rows | table for table in tables))


def row(number: int) -> dict[str, object]:
    return {"id": number, "at": "2026-01-01T00:00:00Z"}


def page_of(work: Path) -> TestClient:
    reader = CheckpointReader(str(work / "checkpoint"), WORDS, Settings(), pipeline(work))
    return TestClient(
        Dashboard(Guard("127.0.0.1", TOKEN), reader).app(), base_url="http://localhost", follow_redirects=True
    )


def form_token(page: TestClient) -> str:
    page.post("/login", data={"token": TOKEN})
    shown = page.get("/").text + page.get("/letters").text  # a run that is gone can be told of its letters alone
    found = re.search(r'name="form_token" value="([0-9a-f]+)"', shown)
    assert found is not None
    return found[1]


def test_the_page_shows_and_steers_a_run_and_shows_what_is_left_of_it(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    run = pipeline(tmp_path).start(checkpoint=tmp_path / "checkpoint", trigger=hf.every("20 ms"))
    arrive(tmp_path / "in", "a.json", [row(1), "no JSON"])
    hf.attach(tmp_path / "checkpoint").wait_until_held()
    page = page_of(tmp_path)
    assert form_token(page)
    for view in VIEWS:
        assert page.get(f"/{view}").status_code == 200, view
    assert "Source rides has rejected 1 rows" in page.get("/").text
    assert "holds everything up to epoch" in page.get("/sinks").text
    assert "all rows add up" in page.get("/sinks").text
    epoch = page.get("/epochs.json").json()["epoch"][-1]
    of_epoch = page.get(f"/epochs/{epoch}").text
    assert "a.json" in of_epoch
    for event in ("stage", "decide", "publish", "forget"):
        assert f">{event}</span>" in of_epoch
    assert "<td>A</td>" in page.get("/starts").text

    assert "Paused: rides." in told(page, "pause", source="rides")
    assert "Source rides is paused" in page.get("/").text
    assert "Paused: none." in told(page, "resume")
    assert "rides is limited to 500 rows/s" in told(page, "limit", source="rides", rate="500/s")
    assert "is no number of rows a second" in told(page, "limit", source="rides", rate="x")
    assert "has no source" in told(page, "pause", source="none")
    assert "has no sink that can be flushed" in told(page, "flush")
    assert '<option value="once">' in page.get("/").text
    assert "pipeline 'trips' has no node 'nowhere'" in told(page, "sample", node="nowhere")
    numbers, is_over = itertools.count(100), threading.Event()

    def feed() -> None:
        while not is_over.wait(0.05):
            arrive(tmp_path / "in", f"{(number := next(numbers)):08d}.json", [row(number)])

    feeding = threading.Thread(target=feed)
    feeding.start()
    try:
        shown = told(page, "sample", node="once")
    finally:
        is_over.set()
        feeding.join()
    assert re.search(r"20 rows have passed once in \d+ epochs\. id at 1\d\d 2026-01-01T00:00:00", shown), shown
    hf.attach(tmp_path / "checkpoint").wait_until_held()
    assert "Checkpoint monday is made" in told(page, "checkpoint", name="monday")
    assert "seems to run" in told(page, "replay")
    arrive(tmp_path / "in", "b.json", [row(2)])
    assert "and the run has ended" in told(page, "drain")
    run.wait(60)

    page = page_of(tmp_path)
    for view in VIEWS:
        assert page.get(f"/{view}").status_code == 200, view
    now = page.get("/").text
    assert "No run is alive" in now
    assert "what a rewind to it would withdraw" in page.get("/starts").text
    rewound = text_of(page.get("/starts/monday").text)
    assert re.search(r"left\s+1 rows of 1 epochs after epoch \d+: would be withdrawn", rewound), rewound
    assert "InvalidPipeline" in page.get("/starts/no_such_name").text
    fleet = Dashboard(Guard("127.0.0.1"), None, [str(tmp_path)], lambda at: CheckpointReader(at, WORDS, Settings()))
    listed = TestClient(fleet.app(), base_url="http://localhost")
    assert "trips" in listed.get("/").text
    base = f"/at/{key_of(str(tmp_path / 'checkpoint'))}"
    for view in VIEWS:
        found = listed.get(f"{base}/{view}")
        assert found.status_code == 200, view
        assert f'href="{base}/sinks"' in found.text
    assert listed.get("/at/0123456789abcdef/").status_code == 404


def text_of(shown: str) -> str:
    """Return the text of a view."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", shown.partition("<main")[2])).split())


def told(page: TestClient, command: str, **values: str) -> str:
    """Tell the run something by a form, and return what became of it."""
    answer = page.post(f"/commands/{command}", data={"form_token": form_token(page), **values})
    found: list[str] = []

    def is_over() -> bool:
        shown = page.get(answer.url.path).text
        found[:] = [text_of(shown)]
        return "being done" not in found[0]

    eventually(is_over, what=f"the end of {command}")
    return found[0]


@pytest.mark.crash
def test_a_run_whose_page_is_killed_goes_on_and_has_a_page_again(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    code = f"""
from pathlib import Path
from tests.page.test_live import pipeline
flow = pipeline(Path({str(tmp_path)!r}))
"""
    (tmp_path / "trips.py").write_text(code)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with running(tmp_path, address) as run:

        def answers() -> bool:
            try:
                with urlopen(f"http://{address}/", timeout=30) as answer:
                    return b"running" in answer.read()
            except (URLError, OSError):
                return False

        eventually(answers, what="the page of the run")
        page = pages(run)[0]
        page.send_signal(signal.SIGKILL)
        arrive(tmp_path / "in", "a.json", [row(7)])
        eventually(lambda: sqlite_rows(tmp_path / "left.db", "SELECT id FROM rows") == [7], what="the row of a run")
        eventually(answers, what="another page")
        again = pages(run)[0]
        assert again.pid != page.pid
        others = [each for each in children_of(run) if each.pid != again.pid]
        run.kill()
        for each in others:  # a JVM notices the end of its driver only after a while
            with suppress(psutil.NoSuchProcess):
                each.kill()
        eventually(lambda: not is_page(again), what="the end of the page")


def pages(run: psutil.Process) -> list[psutil.Process]:
    return [each for each in children_of(run) if is_page(each)]


def is_page(process: psutil.Process) -> bool:
    """Return whether a process is a page that lives; others come and go while they are looked at."""
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE and "dashboard" in process.cmdline()
    return False


@contextmanager
def running(work: Path, address: str) -> Iterator[psutil.Process]:
    """Give the process of a run from the command line, with a page; end it, and whatever it has started."""
    command = [
        sys.executable,
        "-m",
        "holdfast",
        "run",
        str(work / "trips.py"),
        "--checkpoint",
        str(work / "checkpoint"),
    ]
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    with open(work / "run.log", "wb") as log:
        process = subprocess.Popen(
            [*command, "--every", "50ms", "--page", address],
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": path, "HOLDFAST_MASTER": "local[2]"},
            start_new_session=True,
        )
    of = psutil.Process(process.pid)
    try:
        yield of
    finally:
        for each in [*children_of(of), of]:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait()


def children_of(run: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return run.children(recursive=True)
    return []
