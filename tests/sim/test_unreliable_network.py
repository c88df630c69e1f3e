"""Sinks that take a row under its id, behind proxies that drop, delay and repeat requests and swallow answers.

The coordinator is the real one, the servers too.  No row is there twice, and none is missing (design/0023).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import redis

from holdfast.connectors.http.bodies import Bodies
from holdfast.connectors.http.posting import Endpoint, Posting
from holdfast.connectors.http.sink import HttpSink
from holdfast.connectors.redis import form as redis_form
from holdfast.connectors.redis import sink as redis_sink
from holdfast.connectors.redis.form import Form
from holdfast.connectors.redis.ledger import COMMIT
from holdfast.connectors.redis.session import RedisSession
from holdfast.connectors.redis.sink import RedisSink
from holdfast.connectors.redis.url import RedisUrl
from holdfast.errors import InDoubt, Unavailable
from holdfast.ports import Sink
from holdfast.testing import SCHEMA, Failures, Load, Process, Setting, SimulatedClock, SinkUnderTest, World
from holdfast.testing.simulation.world import PIPELINE
from tests.crash.test_redis_crash_loop import target as redis_target
from tests.everyday import seeds
from tests.http_servers import KeyedServer, Unreliable, serving, unreliable_proxy
from tests.redis_proxy import unreliable_redis

pytestmark = pytest.mark.slow

LOAD = Load(row_count=60, epoch_rows_min=4, epoch_rows_max=9, carried_share=0.5)
FEWER = replace(LOAD, row_count=24)
"""Where each row is a step."""

EVERYDAY, EVERY_NIGHT = range(2), seeds(60)[2:]
SEEDS = [*EVERYDAY, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in EVERY_NIGHT)]


def lived(world: World, chance: Unreliable) -> World:
    """Run a pipeline to its end, whatever becomes of its runs; and once more in calm, which sweeps."""
    for _ in range(50):
        try:
            with world.life() as life:
                life.run()
            break
        except (InDoubt, Unavailable):
            continue
    chance.is_calm = True
    world.finish()
    return world


@pytest.mark.parametrize("way", ["stream", "stream without ids in steps"])
@pytest.mark.parametrize("seed", SEEDS)
def test_redis_has_each_row_once(redis_url: str, monkeypatch: pytest.MonkeyPatch, way: str, seed: int) -> None:
    if "in steps" in way:
        monkeypatch.setattr(redis_sink, "ATOMIC_ROWS", 0)
        monkeypatch.setattr(redis_form, "CHUNK_ROWS", 1)
    host, _, port = redis_url.removesuffix("/0").rpartition(":")
    chance = Unreliable(seed)
    with unreliable_redis(int(port), chance) as at:

        def connect(process: Process, _: Failures) -> Sink:
            session = RedisSession(RedisUrl(f"{host}:{at}/0"), "sink 'rows'", "test")
            form = Form("rows", "stream", None if "without ids" in way else "id")
            return RedisSink("rows", PIPELINE, session, form, SCHEMA)

        load = FEWER if "in steps" in way else LOAD
        world = World([replace(redis_target(redis_url, way), connect=connect)], seed=seed, setting=Setting(load))
        assert lived(world, chance).audit() == []
    assert min(chance.counts.get(each, 0) for each in ("drop", "swallow", "repeat")) > 0


def _http_world(server: KeyedServer, url: str, batch_rows: int, seed: int) -> World:
    bodies = Bodies("id", batch_rows)

    def connect(process: Process, _: Failures) -> Sink:
        headers = {"Content-Type": bodies.content_type}
        return HttpSink(
            "rows", SCHEMA, bodies, Posting(Endpoint("sink 'rows'", url, url, headers, {}), SimulatedClock())
        )

    def rows() -> list[tuple[Any, ...]]:
        return [tuple(row[name] for name in SCHEMA.names) for row in server.rows]

    return World([SinkUnderTest("rows", connect, rows, list)], seed=seed, setting=Setting(LOAD))


@pytest.mark.parametrize(
    ("batch_rows", "make"),
    [(1, KeyedServer), (3, lambda: KeyedServer("id"))],
    ids=["unique by key", "batches, unique by id"],
)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_server_that_honours_ids_has_each_row_once(
    batch_rows: int, make: Callable[[], KeyedServer], seed: int
) -> None:
    server, chance = make(), Unreliable(seed)
    with serving(server) as url, unreliable_proxy(url, chance) as proxied:
        assert lived(_http_world(server, proxied, batch_rows, seed), chance).audit() == []
    assert min(chance.counts.get(each, 0) for each in ("drop", "swallow", "repeat")) > 0
    assert len(server.received) > len({request.key for request in server.received})


def test_the_key_is_what_does_it() -> None:
    """The same, with a server that forgets its keys at once: rows are there twice."""

    class Forgetful(KeyedServer):
        def take(self, request: Any) -> Any:
            self._keys.clear()
            return super().take(request)

    server, chance = Forgetful(), Unreliable(1)
    with serving(server) as url, unreliable_proxy(url, chance) as proxied:
        problems = lived(_http_world(server, proxied, 1, 1), chance).audit()
    assert any("doubled" in problem for problem in problems)


def test_the_comparison_with_the_ledger_is_what_does_it(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, with a script that does not compare: rows are there twice."""
    blind = COMMIT.replace("if not is_as_read() then return 0 end", "")
    assert blind != COMMIT
    monkeypatch.setattr(redis_sink, "COMMIT", blind)
    host, _, port = redis_url.removesuffix("/0").rpartition(":")
    chance = Unreliable(1)
    with unreliable_redis(int(port), chance) as at:

        def connect(process: Process, _: Failures) -> Sink:
            session = RedisSession(RedisUrl(f"{host}:{at}/0"), "sink 'rows'", "test")
            return RedisSink("rows", PIPELINE, session, Form("rows", "stream"), SCHEMA)

        plain = replace(redis_target(redis_url, "stream without ids"), connect=connect)
        problems = lived(World([plain], seed=1, setting=Setting(replace(LOAD, carried_share=1.0))), chance).audit()
    assert any("doubled" in problem for problem in problems)


def test_redis_client_does_not_send_again_by_itself() -> None:
    """What is unknown is for the coordinator to ask about."""
    client = RedisSession(RedisUrl("redis://127.0.0.1:9"), "sink 'rows'", "test").client
    assert isinstance(client, redis.Redis)
    assert client.get_retry().get_retries() == 0
