"""Real runs into Redis and to an HTTP server, killed at one point after the other; then each row is there once."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.crash.processes import Case
from tests.http_servers import KeyedServer, serving

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.nightly]

STAGED = {"HOLDFAST_CARRY_MAX": "0 B"}

CHAINS: dict[str, tuple[tuple[str, ...], dict[str, str], list[str]]] = {
    "redis alone, staged": (
        ("redis",),
        STAGED,
        ["after-stage:1", "publish-uncommitted:1", "after-publish:2", "recovery-resolved", "before-publish:3"],
    ),
    "redis alone, carried": (("redis",), {}, ["publish-uncommitted:1", "after-publish:1", "publish-uncommitted:3"]),
    "http alone": (("http",), {}, ["before-publish:1", "publish-uncommitted:1", "after-publish:2"]),
    "redis and http, staged": (
        ("redis", "http"),
        STAGED,
        ["after-decide:1", "after-publish:1", "publish-uncommitted:2", "before-forget:2", "after-forget:3"],
    ),
}


@pytest.mark.parametrize("chain", CHAINS)
def test_every_row_is_in_every_sink_once_after_a_chain_of_kills(chain: str, tmp_path: Path, redis_url: str) -> None:
    sinks, environment, points = CHAINS[chain]
    server = KeyedServer()
    with serving(server) as url:
        case = Case(tmp_path, sinks, "", {**environment, "CRASH_REDIS": redis_url, "CRASH_HTTP": url}, server)
        case.write_input()
        for point in points:
            killed = case.run(HOLDFAST_FAULT=point)
            assert killed.returncode == -signal.SIGKILL, f"{point} was not reached:\n{killed.stdout[-3000:]}"
        survived = case.run()
        assert survived.returncode == 0, survived.stdout[-3000:]
        case.check_exact()
        assert case.leftovers() == []
