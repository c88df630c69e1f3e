"""The page of a real run in shards, and of what is left of it: each shard, and the whole (design/0049, section 6)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pytest
from starlette.testclient import TestClient

import holdfast as hf
from holdfast.cli.page import WORDS
from holdfast.config import Settings
from holdfast.page.guard import Guard
from holdfast.page.reading import CheckpointReader
from holdfast.page.server import Dashboard
from holdfast.pipeline import Pipeline
from tests.crash.processes import ROOT
from tests.page.test_live import TOKEN, VIEWS, form_token, text_of, told
from tests.spark.running import arrive, eventually, sqlite_rows

pytestmark = pytest.mark.spark

DIRECTORIES = "abcdefgh"
"""Parts of the input by their names, so that each shard has some."""


def refuse(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Fail at two rows, as long as they are refused."""
    refused = {int(each) for each in os.environ.get("PAGE_REFUSED", "").split(",") if each}
    if found := refused.intersection(batch.column("id").to_pylist()):
        raise ValueError(f"{min(found)} is refused")
    return batch


def pipeline(work: Path) -> Pipeline:
    rides = hf.read.files(str(work / "in"), schema="id BIGINT", name="rides")
    met = rides | hf.map_batches(refuse, "id BIGINT", name="met")
    tables = [met | hf.write.sqlite(work / f"{name}.db", table="rows", name=name, rewindable=True) for name in NAMES]
    return hf.Pipeline("trips", *tables)


NAMES = ("left", "right")


def page_of(work: Path) -> TestClient:
    reader = CheckpointReader(str(work / "checkpoint"), WORDS, Settings(), pipeline(work))
    app = Dashboard(Guard("127.0.0.1", TOKEN), reader).app()
    return TestClient(app, base_url="http://localhost", follow_redirects=True)


def check_all_views(page: TestClient) -> None:
    for view in VIEWS:
        for shard in ("", "?shard=0", "?shard=1"):
            assert page.get(f"/{view}{shard}").status_code == 200, (view, shard)


def test_each_shard_and_the_whole_are_shown_and_steered_and_what_is_left_of_them(tmp_path: Path) -> None:
    for number, name in enumerate(DIRECTORIES):
        arrive(tmp_path / "in", f"{name}.json", [{"id": number}])
    run = pipeline(tmp_path).start(checkpoint=tmp_path / "checkpoint", trigger=hf.every("50 ms"), shards=2)
    try:
        eventually(lambda: sqlite_rows(tmp_path / "right.db") == [*range(8)], what="the rows of both shards")
        page = page_of(tmp_path)
        check_all_views(page)
        assert "2 shards" in text_of_all(page, "/")
        assert 'href="/?shard=1"' in page.get("/").text
        assert 'href="/epochs?shard=1"' in page.get("/epochs").text
        rows = [
            int(re.findall(r"rows ([0-9,]+) rows a second", text_of(page.get(f"/?shard={k}").text))[0]) for k in (0, 1)
        ]
        assert sum(rows) == 16, "in two tables"
        assert all(rows)
        for shard in (0, 1):
            epoch = page.get(f"/epochs.json?shard={shard}").json()["epoch"][-1]
            of_epoch = page.get(f"/epochs/{epoch}?shard={shard}").text
            assert ">publish</span>" in of_epoch
            assert "part-read-rides" in of_epoch
            assert f"holds everything up to epoch {epoch}" in text_of(page.get(f"/sinks?shard={shard}").text)
        assert "8 rows" in text_of(page.get("/sinks").text), "the audit is of all shards"
        assert "Paused: rides." in told(page, "pause", source="rides")
        for shard in (0, 1):
            assert "Source rides is paused" in page.get(f"/?shard={shard}").text
        assert "Paused: none." in told(page, "resume")
        before = datetime.now(UTC).isoformat()
        arrive(tmp_path / "in", "i.json", [{"id": 8}])
        assert "and the run has ended" in told(page, "drain")
        assert run.wait(60)
    finally:
        run.stop()
    assert sqlite_rows(tmp_path / "left.db") == [*range(9)]
    page = page_of(tmp_path)
    check_all_views(page)
    assert "No run is alive; nothing is in doubt" in page.get("/").text
    assert 'href="/?shard=1"' in page.get("/").text
    rewound = text_of(page.get(f"/starts/{quote(before)}").text)
    assert "shard 0 left" in rewound
    assert "shard 1 left" in rewound
    assert rewound.count("1 rows of 1 epochs") == 2, rewound  # the ninth row, of one shard, in two tables
    assert "each of them counts its own epochs" in page.get("/starts/1").text
    assert "would be withdrawn" in text_of(page.get("/starts/1?shard=1").text)


def text_of_all(page: TestClient, path: str) -> str:
    return re.sub(r"<[^>]*>", " ", page.get(path).text)


@pytest.mark.crash
def test_dead_letters_of_all_shards_are_replayed_from_the_page(tmp_path: Path) -> None:
    for number, name in enumerate(DIRECTORIES):
        arrive(tmp_path / "in", f"{name}.json", [{"id": number}, {"id": 100 + number}])
    of = f"pipeline(Path({str(tmp_path)!r}))"
    code = f"from pathlib import Path\nfrom tests.page.test_shards import pipeline\nflow = {of}\n"
    (tmp_path / "trips.py").write_text(code)
    command = [sys.executable, "-m", "holdfast", "run", f"{tmp_path}/trips.py:flow", "--available-now", "--shards", "2"]
    command += ["--checkpoint", str(tmp_path / "checkpoint"), "--on-poison", "isolate", "--master", "local[1]"]
    refused = [0, 1]  # of unlike shards
    variables = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "HOLDFAST_POISON_ATTEMPTS": "1"}
    variables |= {"PAGE_REFUSED": ",".join(map(str, refused)), "HOLDFAST_RESTART_FIRST": "1 ms"}
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout + done.stderr
    others = [each for number in range(8) for each in (number, 100 + number) if each not in refused]
    assert sqlite_rows(tmp_path / "left.db") == sorted(others)

    page = page_of(tmp_path)
    form_token(page)
    of_shards = [letters_of(page, shard) for shard in (0, 1)]
    assert [*map(len, of_shards)] == [1, 1]
    assert "2 dead letters, 2 of them not sent again" in text_of(page.get("/letters").text)
    one = of_shards[1][0]
    assert "1 dead letters are replayed by the next start" in told(page, "replay", letter=one, shard="1")
    shown = text_of(page.get("/letters?shard=1").text)
    assert shown.count("to be replayed at the next start") == 1
    assert "1 dead letters are replayed by the next start" in told(page, "replay")

    pipeline(tmp_path).run(checkpoint=tmp_path / "checkpoint", trigger=hf.available_now())
    for name in NAMES:
        assert sqlite_rows(tmp_path / f"{name}.db") == sorted([*others, *refused])
    assert text_of(page_of(tmp_path).get("/letters").text).count("replayed") == 2


def letters_of(page: TestClient, shard: int) -> list[str]:
    return re.findall(r'name="letter" value="([^"]+)"', page.get(f"/letters?shard={shard}").text)
