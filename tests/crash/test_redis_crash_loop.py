"""Redis under the real coordinator: killed before and after each command that changes the server.

In one step and in several, carried and staged, alone and beside a database file; and the server killed in the middle
(design/0023).  A dead driver sends nothing more; its workers live on.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis

from holdfast.connectors.redis import form as redis_form
from holdfast.connectors.redis import sink as redis_sink
from holdfast.connectors.redis.form import Form, Kind
from holdfast.connectors.redis.ledger import COMMIT
from holdfast.connectors.redis.session import RedisSession
from holdfast.connectors.redis.sink import RedisSink
from holdfast.connectors.redis.url import RedisUrl
from holdfast.errors import InDoubt, Unavailable
from holdfast.ports import Carried, EpochRecord, Held, Outcome, Publication, RunIdentity, Sink
from holdfast.store.local import LocalStore
from holdfast.testing import SCHEMA, Failures, Load, Process, Setting, SimulatedCrash, SinkUnderTest, World
from holdfast.testing.simulation.rows import rows_between
from holdfast.testing.simulation.world import PIPELINE
from tests.crash.mortal import as_killed
from tests.crash.surviving import survive, survive_pairs
from tests.sim.test_unlike_sinks import sqlite
from tools.redis_server import RedisServer

pytestmark = pytest.mark.slow

NewPath = Callable[[], Path]

SHORT: dict[str, Any] = {"row_count": 3, "epoch_rows_min": 1, "epoch_rows_max": 2}
WAYS = ["stream", "stream in steps", "hash", "hash in steps", "stream without ids in steps"]
EVERYDAY = {"stream", "stream in steps"}
SEED = 361


class MortalSession(RedisSession):
    """A driver's session: each command that changes something is a place to die, before and after it."""

    process = Process()
    label = ""

    def ask(self, question: Callable[[redis.Redis], Any]) -> Any:
        self.process.check()
        return super().ask(question)

    def stage(self, commands: Callable[[redis.Redis], Any]) -> Any:
        return self.process.write(f"sink {self.label} staged", lambda: RedisSession.stage(self, commands))

    def run(self, script: str, keys: Sequence[str], arguments: Sequence[Any]) -> int:
        name = "COMMIT" if script == COMMIT else "SHOW"
        return self.process.write(f"sink {self.label} {name}", lambda: RedisSession.run(self, script, keys, arguments))


def target(url: str, way: str, name: str = "rows") -> SinkUnderTest:
    """Return a stream, or hashes, as a sink of a world."""
    kind: Kind = "hash" if way.startswith("hash") else "stream"
    form = Form(name, kind, None if "without ids" in way else "id")
    outside: Any = redis.Redis.from_url(url, decode_responses=True)

    def connect(process: Process, _: Failures) -> Sink:
        session = MortalSession(RedisUrl(url), f"sink {name!r}", "test")
        session.process, session.label = process, name
        sink = RedisSink(name, PIPELINE, session, form, SCHEMA)
        sink.prepare()
        return sink

    def rows() -> list[tuple[Any, ...]]:
        found = [entry for _, entry in outside.xrange(name)] if kind == "stream" else []
        found += [outside.hgetall(key) for key in outside.keys(f"{name}:*")]
        return [(int(row["id"]), row["segment"], int(row["seq"]), float(row["value"])) for row in found]

    def leftovers() -> list[str]:
        progress = [key for key in outside.keys("*:ledger") if outside.hget(key, "in_progress")]
        return [*outside.keys("holdfast:*staged*"), *progress]

    return SinkUnderTest(name, connect, rows, leftovers, is_ordered=kind == "stream")


@pytest.fixture
def in_steps(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def choose(way: str) -> None:
        if "in steps" in way:
            monkeypatch.setattr(redis_sink, "ATOMIC_ROWS", 0)
            monkeypatch.setattr(redis_form, "CHUNK_ROWS", 1)

    return choose


@pytest.fixture
def reset(redis_url: str) -> Iterator[Callable[[], str]]:
    with redis.Redis.from_url(redis_url) as client:

        def empty() -> str:
            client.flushall()
            return redis_url

        yield empty


def made(url: str, way: str, new_path: NewPath, *, beside: bool = False, **setting: Any) -> World:
    """A new world with one target, or with a database file that publishes before it."""
    load = Load(**{**SHORT, "carried_share": 0.5, "task_failure_rate": 0.2})
    several = [as_killed(sqlite, "embedded", new_path())] if beside else []
    store = LocalStore(os.fspath(new_path())) if beside else None
    return World([*several, target(url, way)], seed=SEED, setting=Setting(load, **setting), store=store)


@pytest.mark.parametrize("way", [pytest.param(w, marks=[] if w in EVERYDAY else [pytest.mark.nightly]) for w in WAYS])
def test_one_target_survives_a_crash_at_every_write(
    reset: Callable[[], str], new_path: NewPath, in_steps: Callable[[str], None], way: str
) -> None:
    in_steps(way)
    dies_at = ["COMMIT", *(["SHOW", "staged"] if "in steps" in way else [])]
    survive(lambda: made(reset(), way, new_path), *dies_at, pairs=False)


@pytest.mark.parametrize("way", ["stream", pytest.param("stream without ids in steps", marks=pytest.mark.nightly)])
def test_beside_another_sink_it_survives_a_crash_at_every_other_write(
    reset: Callable[[], str], new_path: NewPath, in_steps: Callable[[str], None], way: str
) -> None:
    in_steps(way)
    survive(lambda: made(reset(), way, new_path, beside=True), pairs=False, stride=2)


@pytest.mark.nightly
@pytest.mark.parametrize("setting", [{"commit_thread": True}, {"commit_every_ticks": 3_000}])
def test_the_commit_thread_and_grouping_change_nothing(
    reset: Callable[[], str], new_path: NewPath, in_steps: Callable[[str], None], setting: dict[str, Any]
) -> None:
    in_steps("stream in steps")
    survive(lambda: made(reset(), "stream in steps", new_path, beside=True, **setting), pairs=False)


@pytest.mark.parametrize("way", ["stream without ids in steps"])
def test_one_target_survives_a_second_crash_during_recovery(
    reset: Callable[[], str], new_path: NewPath, in_steps: Callable[[str], None], way: str
) -> None:
    in_steps(way)
    survive(lambda: made(reset(), way, new_path), stride=13, second_stride=13)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("way", WAYS)
def test_one_target_survives_pairs_of_crashes(
    reset: Callable[[], str], new_path: NewPath, in_steps: Callable[[str], None], way: str
) -> None:
    in_steps(way)
    survive_pairs(lambda: made(reset(), way, new_path))


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_beside_another_sink_it_survives_pairs_of_crashes(
    reset: Callable[[], str], new_path: NewPath, in_steps: Callable[[str], None]
) -> None:
    in_steps("stream in steps")
    survive_pairs(lambda: made(reset(), "stream in steps", new_path, beside=True), stride=2, second_stride=2)


# --- the server dies ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["stream without ids", "stream without ids in steps"])
def test_a_server_that_is_killed_at_any_command_has_each_row_once(
    mortal_redis: RedisServer, new_path: NewPath, in_steps: Callable[[str], None], way: str
) -> None:
    """Before the command arrives, and after it was done and not answered: the sink is asked, and nothing is guessed."""
    in_steps(way)
    places = 0
    for when in ("before", "after"):
        for place in range(1, 200):
            mortal_redis.start()
            with redis.Redis.from_url(mortal_redis.url) as client:
                client.flushall()
            if not _one_kill(mortal_redis, made(mortal_redis.url, way, new_path), when, place):
                break
            places += 1
    assert places > 4


def _one_kill(server: RedisServer, world: World, when: str, place: int) -> bool:
    """Kill the server at one of the commands, once; return whether there is such a command."""
    count, killed = 0, False
    run = RedisSession.run

    def dying(self: RedisSession, script: str, keys: Sequence[str], arguments: Sequence[Any]) -> int:
        nonlocal count, killed
        count += 1
        if count != place:
            return run(self, script, keys, arguments)
        killed = True
        if when == "after":
            run(self, script, keys, arguments)
        server.stop()
        server.start()
        self.close()
        raise InDoubt("the connection broke")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RedisSession, "run", dying)
        for _ in range(3):
            try:
                with world.life() as life:
                    life.run()
                break
            except (InDoubt, Unavailable, SimulatedCrash):
                continue
    world.finish()
    assert world.audit() == [], (when, place, world.trace)
    return killed


@pytest.mark.nightly
def test_a_server_that_is_killed_while_it_writes_has_all_or_resumes(
    mortal_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any moment of a large epoch and of small ones: what the server says afterwards is what it has."""
    monkeypatch.setattr(redis_sink, "ATOMIC_ROWS", 500)
    form, url = Form("rows", "stream"), RedisUrl(mortal_redis.url)
    sink = RedisSink("rows", PIPELINE, RedisSession(url, "sink 'rows'", "test"), form, SCHEMA)
    sink.open(RunIdentity(PIPELINE, 1))
    chance, wanted, kills = random.Random(7), 0, 0
    for epoch in range(1, 61):
        count = chance.choice([400, 20_000])
        rows = rows_between(wanted, wanted + count, 0, 0.5)
        wanted += count
        publication = Publication(EpochRecord(PIPELINE, epoch, 1, {"s": {"log": wanted}}), (Carried(rows),))
        killer = threading.Timer(chance.random() * (0.02 if count == 400 else 0.6), mortal_redis.stop)
        killer.start()
        while sink.outcome(epoch) is not Outcome.PUBLISHED:
            try:
                sink.publish([publication], Held())
            except (InDoubt, Unavailable):
                killer.join()
                mortal_redis.start()
                kills += 1
        killer.cancel()
        killer.join()
        mortal_redis.start()
    with redis.Redis.from_url(mortal_redis.url, decode_responses=True) as client:
        assert [int(entry["id"]) for _, entry in client.xrange("rows")] == list(range(wanted))
    assert kills > 10
    sink.close()
