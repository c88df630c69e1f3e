"""HTTP under the real coordinator: killed before and after each request, alone and beside a database file.

The server is a real one, with a unique index by key; what it has is looked at there (design/0023).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.connectors.http.bodies import Bodies, Request
from holdfast.connectors.http.posting import Endpoint, Posting
from holdfast.connectors.http.sink import HttpSink
from holdfast.errors import Unavailable
from holdfast.ports import Sink
from holdfast.store.local import LocalStore
from holdfast.testing import SCHEMA, Failures, Load, Process, Setting, SimulatedClock, SinkUnderTest, World, crash_loop
from tests.crash.mortal import as_killed
from tests.http_servers import KeyedServer, serving
from tests.sim.test_unlike_sinks import sqlite

pytestmark = pytest.mark.slow

NewPath = Callable[[], Path]

SHORT = Load(row_count=4, epoch_rows_max=3, carried_share=0.5, task_failure_rate=0.2)


class MortalPosting(Posting):
    """A driver's requests: each of them is a place to die, before and after it."""

    process = Process()

    def _try(self, request: Request) -> Unavailable | None:
        return self.process.write("sink rows POST", lambda: Posting._try(self, request))


@pytest.fixture
def server() -> KeyedServer:
    return KeyedServer()


@pytest.fixture
def by_id() -> KeyedServer:
    return KeyedServer("id")


@pytest.fixture
def url(server: KeyedServer) -> Iterator[str]:
    with serving(server) as url:
        yield url


@pytest.fixture
def url_by_id(by_id: KeyedServer) -> Iterator[str]:
    with serving(by_id) as url:
        yield url


def target(server: KeyedServer, url: str, *, batch_rows: int = 1) -> SinkUnderTest:
    """Return a server as a sink of a world; it is empty at first."""
    server.forget()
    bodies = Bodies("id", batch_rows)

    def connect(process: Process, _: Failures) -> Sink:
        headers = {"Content-Type": bodies.content_type}
        posting = MortalPosting(Endpoint("sink 'rows'", url, url, headers, {}), SimulatedClock())
        posting.process = process
        return HttpSink("rows", SCHEMA, bodies, posting)

    def rows() -> list[tuple[Any, ...]]:
        return [tuple(row[name] for name in SCHEMA.names) for row in server.rows]

    return SinkUnderTest("rows", connect, rows, list, is_ordered=batch_rows == 1)


def beside(sink: SinkUnderTest, new_path: NewPath, **setting: Any) -> World:
    """A world in which a database file publishes before the server gets its rows."""
    file = as_killed(sqlite, "embedded", new_path())
    return World([file, sink], setting=Setting(SHORT, **setting), store=LocalStore(os.fspath(new_path())))


def test_a_server_that_honours_the_key_has_each_row_once_whatever_dies(server: KeyedServer, url: str) -> None:
    crash_loop(lambda: World([target(server, url)], setting=Setting(SHORT)), pairs=False)


def test_a_server_that_is_unique_by_id_has_each_row_of_a_batch_once(by_id: KeyedServer, url_by_id: str) -> None:
    crash_loop(lambda: World([target(by_id, url_by_id, batch_rows=2)], setting=Setting(SHORT)), pairs=False)


def test_beside_another_sink_both_have_each_row_once(server: KeyedServer, url: str, new_path: NewPath) -> None:
    crash_loop(lambda: beside(target(server, url), new_path), pairs=False, stride=2)


@pytest.mark.nightly
@pytest.mark.parametrize("setting", [{"commit_thread": True}, {"commit_every_ticks": 3_000}])
def test_the_commit_thread_and_grouping_change_nothing(
    server: KeyedServer, url: str, new_path: NewPath, setting: dict[str, Any]
) -> None:
    crash_loop(lambda: beside(target(server, url), new_path, **setting), pairs=False)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_every_pair_of_crashes_is_survived(server: KeyedServer, url: str, new_path: NewPath) -> None:
    crash_loop(lambda: World([target(server, url)], setting=Setting(SHORT)))
    crash_loop(lambda: beside(target(server, url), new_path), stride=2, second_stride=2)
