"""What the pages of Redis and HTTP show, run by Spark; carried and staged, and started again (design/0023)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from pyspark.sql import SparkSession

import holdfast as hf
from tests.docs.pages import ROOT, blocks
from tests.http_servers import KeyedServer, serving
from tests.spark.running import MODES, arrive

pytestmark = pytest.mark.spark


def shown(page: str, *replaced: tuple[str, str]) -> str:
    """Return the first block of a page, with other places in it."""
    text = next(iter(blocks(ROOT / f"docs/sinks/{page}.md", "python"))).text
    for ours, theirs in replaced:
        assert ours in text
        text = text.replace(ours, theirs)
    return text


@pytest.fixture
def server() -> KeyedServer:
    return KeyedServer()


@pytest.fixture
def url(server: KeyedServer) -> Iterator[str]:
    with serving(server) as url:
        yield url


@pytest.mark.parametrize("mode", MODES)
def test_what_the_pages_show(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    redis_url: str,
    server: KeyedServer,
    url: str,
    mode: str,
) -> None:
    login, _, place = redis_url.removeprefix("redis://:").partition("@")
    monkeypatch.setenv("REDIS_PASSWORD", login)
    monkeypatch.setenv("API_TOKEN", "t0ken")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(shown("redis", ("redis.example:6379/0", place)), names)
    other: dict[str, Any] = {}
    exec(shown("http", ("https://api.example/v1/rides", url)), other)
    lines = [{"id": n, "city": "ab"[n % 2], "km": n * 3} for n in range(40)]
    for number, part in enumerate((lines[:25], lines[25:])):
        arrive(tmp_path / "rides", f"{number}.json", part)
        for pipeline in (names["pipeline"], other["pipeline"]):
            run = {"session": spark, "settings": MODES[mode], "trigger": hf.available_now()}
            pipeline.run(checkpoint=str(tmp_path / pipeline.name), **run)
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        entries = [entry for _, entry in client.xrange("rides")]
        hashes = {key: client.hgetall(key) for key in client.scan_iter("ride:*")}
        assert client.keys("holdfast:*staged*") == []
    assert sorted(int(entry["km"]) for entry in entries) == [line["km"] for line in lines]
    assert hashes == {
        f"ride:{line['id']}": {**{name: str(value) for name, value in line.items()}, "row_id": ids[str(line["id"])]}
        for ids in [{entry["id"]: entry["row_id"] for entry in entries}]
        for line in lines
    }
    posted = {row["id"]: row for row in server.rows}
    assert len(server.rows) == len(posted) == 40
    assert {row["row_id"] for row in server.rows} == {request.key for request in server.received}
    assert all(request.headers["Authorization"] == "Bearer t0ken" for request in server.received)
    assert json.loads(server.received[0].body).keys() == {"id", "city", "km", "row_id"}
