"""Runs on Spark whose checkpoint is in an object store: lost scratches, faults of the store, and what is asked of it.

Everything goes through a proxy before an S3 server, that of Spark's own processes too (design/0037, 0039).
"""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.s3_proxy import CONFLICT, DROPPED, FAILED_AFTER, REPLY_LOST, SLOW_DOWN, Fault, Request, S3Proxy, s3_proxy
from tests.s3_server import CREDENTIALS
from tests.spark.object_store_runs import REFUSED, Place, RunsElsewhere, command, run, run_for, run_until_asked
from tests.spark.running import parquet_rows, sqlite_rows

pytestmark = pytest.mark.spark

SNAPSHOTS = {"HOLDFAST_CHECKPOINT_FREQ": "1"}
"""As many as there can be."""


@dataclass(frozen=True)
class Stage:
    """A process for runs, the proxy that it asks, and its credentials."""

    elsewhere: RunsElsewhere
    proxy: S3Proxy
    credentials: Path

    def sign_as(self, key: str) -> None:
        """Give the processes other credentials; new ones are read where the old ones are refused."""
        text = f"[test]\naws_access_key_id = {key}\naws_secret_access_key = x\nregion = us-east-1\n"
        aside = self.credentials.with_suffix(".new")
        aside.write_text(text)
        aside.replace(self.credentials)


@pytest.fixture(scope="module")
def stage(s3_of_session: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with s3_proxy(s3_of_session) as proxy:
        credentials = tmp_path_factory.mktemp("credentials") / "credentials"
        where = {"AWS_SHARED_CREDENTIALS_FILE": str(credentials), "AWS_PROFILE": "test"}
        elsewhere = RunsElsewhere(
            {**where, "AWS_REGION": CREDENTIALS["AWS_REGION"], "AWS_ENDPOINT_URL": proxy.endpoint}
        )
        stage = Stage(elsewhere, proxy, credentials)
        stage.sign_as("first")
        yield stage
        elsewhere.close()


@pytest.fixture
def proxy(stage: Stage) -> Iterator[S3Proxy]:
    stage.sign_as("first")
    stage.proxy.requests.clear()
    yield stage.proxy
    stage.proxy.faults.clear()
    stage.proxy.faulty = lambda _: None
    stage.proxy.accepts = lambda _: True


def placed(work: Path, kind: str) -> Place:
    return Place(work, f"s3://checkpoints/{work.name}/trips", kind)


@pytest.mark.nightly
def test_a_rewind_evaluates_state_again_in_the_scratch(stage: Stage, proxy: S3Proxy, tmp_path: Path) -> None:
    place, elsewhere = placed(tmp_path, "state"), stage.elsewhere
    for files in (1, 6):  # a snapshot of epoch 1, and one of epoch 6
        place.arrive(0, files)
        assert elsewhere(run, place) == ""
    for to, source in ((6, "snapshot of epoch 6"), (3, "snapshot of epoch 1; 2 epochs after it are evaluated again")):
        code, said = elsewhere(command, place, "rewind", "TARGET", "--to", str(to), "--force")
        assert code == 0, said
        assert f"state  from the {source}" in said
    place.check(3)
    assert elsewhere(run, place) == ""
    place.check(6)


@pytest.mark.parametrize("kind", ["two", "state"])
@pytest.mark.parametrize("is_lost", [True, pytest.param(False, marks=pytest.mark.nightly)], ids=["lost", "kept"])
def test_a_scratch_that_is_lost_between_runs_costs_no_row_and_doubles_none(
    stage: Stage, proxy: S3Proxy, tmp_path: Path, kind: str, is_lost: bool
) -> None:
    """The first run dies between its two sinks; what the second one begins with is in the object store, and in them."""
    place = placed(tmp_path, kind)
    place.arrive(0, 4)
    assert "after-publish:3" in stage.elsewhere(run, place, ("after-publish", 3), **SNAPSHOTS)
    for files in (4, 6):
        if is_lost:
            place.lose_scratch()
        place.arrive(4, files)
        assert stage.elsewhere(run, place, **SNAPSHOTS) == ""
        place.check(files)
    assert {request.key_id for request in proxy.requests} == {"first"}


PER_EPOCH = {"one": 1, "two": 3, "state": 3, "paced": 2}
"""Kind of pipeline -> requests for an epoch, as docs/object-stores.md says."""


@pytest.mark.parametrize(
    ("kind", "epochs"),
    [
        ("state", 30),
        pytest.param("one", 30, marks=pytest.mark.nightly),
        pytest.param("paced", 30, marks=pytest.mark.nightly),
        pytest.param("two", 30, marks=pytest.mark.nightly),
        pytest.param("two", 200, marks=pytest.mark.nightly),
    ],
)
def test_a_whole_run_asks_as_much_as_is_documented_and_lists_nothing(
    stage: Stage, proxy: S3Proxy, tmp_path: Path, kind: str, epochs: int
) -> None:
    """Of all its processes, whatever for: ledger, ends of epochs, reports, logs of sources, letters, journals."""
    place = placed(tmp_path, kind)
    found = stage.elsewhere(run_for, place, 10, epochs, 1.0)
    place.check(10 + epochs)
    began, ended, _ = found["busy"]
    busy = asked(proxy, began, ended)
    ends = busy.pop("PUT progress", 0)
    assert ends <= (ended - began) / 5 + epochs / 50 + 1  # where state is kept, every so often, else of fifty epochs
    assert busy.pop("PUT state", 0) <= (ended - began) / 30 + 1  # the report of what operators hold, and of the audit
    notes = busy.pop("GET flush", 0)
    assert notes <= (ended - began + 2 if kind == "paced" else 0)  # one a second
    if 10 + epochs > 50:  # the ends that earlier runs have left are joined, once for a thousand epochs
        assert (busy.pop("LIST progress"), busy.pop("GET progress")) == (1, 1)
    if epochs > 100:
        assert busy.pop("POST", 0) <= epochs / 100 + 1
    assert set(busy) <= {"PUT ledger", "GET generations"}
    looks = (ended - began) / 15 + epochs / 50 + 1  # before a sweep, and before ends of epochs are written
    assert busy.total() <= PER_EPOCH[kind] * epochs + looks, busy
    idle = asked(proxy, *found["idle"])
    assert set(idle) <= {"PUT progress", "GET generations", "GET flush"}, idle
    assert idle.total() <= 4


def asked(proxy: S3Proxy, since_s: float, until_s: float) -> Counter[str]:
    """Return how often what was asked for: the method, and which records."""
    found = Counter[str]()
    for request in proxy.requests:
        if since_s <= request.at_s <= until_s:
            path = request.path.partition("/trips/")[2] or request.path.partition("%2Ftrips%2F")[2].replace("%2F", "/")
            method = "LIST" if request.is_listing else request.method
            found[f"{method} {path.partition('/')[0]}".strip()] += 1
    return found


class Weather:
    """A store that now and then throttles, is slow, loses replies, and is away; and whose keys expire."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self._stage = stage
        self._chance = random.Random(seed)
        self._away = self._requests = self._back_at = 0
        self.count = Counter[str]()
        self.keys = ["first"]

    def strike(self, request: Request) -> Fault | None:
        """Return what happens to a request."""
        self._requests += 1
        if self._away:
            self._away -= 1
            return DROPPED
        if self._requests < 5 or self._chance.random() > 0.2:
            return None  # a start gives up early, on a store that has not answered yet
        kinds: dict[str, Callable[[], Fault | None]] = {
            "throttled": lambda: SLOW_DOWN,
            "slow": lambda: Fault(200, is_done=True, delay_s=0.2),
            "reply lost": lambda: REPLY_LOST,
            "failed after": lambda: FAILED_AFTER,
            "conflict": lambda: CONFLICT if request.method == "PUT" else SLOW_DOWN,
            "away": self._go_away,
            "expired": self._renew,
        }
        name = self._chance.choice(sorted(kinds))
        self.count[name] += 1
        return kinds[name]()

    def _go_away(self) -> Fault:
        """Be away for less than a run is patient; and not twice in a row, which would be for longer."""
        if self._requests > self._back_at + 20:
            self._away, self._back_at = 6, self._requests + 6
        return DROPPED

    def _renew(self) -> Fault:
        self.keys.append(f"key{len(self.keys)}")
        self._stage.sign_as(self.keys[-1])
        return Fault(400, "ExpiredToken")


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 6))])
@pytest.mark.parametrize("kind", ["two", pytest.param("state", marks=pytest.mark.nightly)])
def test_a_store_that_throttles_loses_replies_and_lets_credentials_expire_costs_no_row(
    stage: Stage, proxy: S3Proxy, tmp_path: Path, kind: str, seed: int
) -> None:
    """From the first request of a run to the last, through a death and without a scratch after it."""
    place, weather = placed(tmp_path, kind), Weather(stage, seed)
    proxy.faulty = weather.strike
    proxy.accepts = lambda key: key == weather.keys[-1]
    place.arrive(0, 5)
    patience = {**SNAPSHOTS, "HOLDFAST_RETRY_FIRST": "10 ms"}
    assert "after-publish:3" in stage.elsewhere(run, place, ("after-publish", 3), **patience)
    place.lose_scratch()
    place.arrive(5, 8)
    assert stage.elsewhere(run, place, **patience) == ""
    place.check(8)
    assert len(weather.count) >= 5, weather.count
    assert len({request.key_id for request in proxy.requests}) > 1 or not weather.count["expired"]


# --- commands, from a machine that has no scratch of the checkpoint -------------------------------------------------

ELSEWHERE = "another machine"
# Runs and commands are in one process here, which is alive: what takes a pipeline over is told --force.


def test_a_run_elsewhere_commits_when_it_is_asked_to(stage: Stage, proxy: S3Proxy, tmp_path: Path) -> None:
    held = stage.elsewhere(run_until_asked, placed(tmp_path, "paced"), ("flush", "TARGET", "table"))
    assert held == [20, 40]  # the first epoch of all does not wait


@pytest.mark.nightly
def test_dead_letters_are_listed_and_sent_again_from_elsewhere(stage: Stage, proxy: S3Proxy, tmp_path: Path) -> None:
    place, there = placed(tmp_path, "refuses"), {"HOLDFAST_SPARK_CHECKPOINT": str(tmp_path / ELSEWHERE)}
    place.arrive(0, 4)
    isolating = {"HOLDFAST_ON_POISON": "isolate", "HOLDFAST_POISON_ATTEMPTS": "1", "HOLDFAST_RETRY_ATTEMPTS": "1"}
    assert f"{REFUSED} is refused" in stage.elsewhere(run, place, **isolating)
    assert stage.elsewhere(run, place, **isolating) == ""
    without = [number for number in range(80) if number != REFUSED]
    assert sqlite_rows(tmp_path / "out.db") == without
    code, said = stage.elsewhere(command, place, "dead-letters", "list", "--json", **there)
    assert (code, str(REFUSED) in said, "left out" in said) == (0, True, True), said
    code, said = stage.elsewhere(command, place, "dead-letters", "replay", "--force", **there)
    assert code == 0, said
    place.lose_scratch()
    assert stage.elsewhere(run, place, HOLDFAST_TEST_MENDED="1") == ""
    place.check(4)


@pytest.mark.nightly
def test_a_repair_computes_again_what_a_sink_has_lost(stage: Stage, proxy: S3Proxy, tmp_path: Path) -> None:
    place = placed(tmp_path, "one")
    place.arrive(0, 4)
    assert stage.elsewhere(run, place) == ""
    with closing(sqlite3.connect(tmp_path / "out.db")) as connection, connection:
        connection.execute("DELETE FROM rows WHERE id % 7 = 1")
    for there in ({"HOLDFAST_SPARK_CHECKPOINT": str(tmp_path / ELSEWHERE)}, {}):
        code, said = stage.elsewhere(command, place, "reconcile", "TARGET", **there)
        assert code == 1, said
    code, said = stage.elsewhere(command, place, "reconcile", "TARGET", "--repair", "--force")
    assert code == 0, said
    place.check(4)
    place.arrive(4, 5)
    assert stage.elsewhere(run, place) == ""
    place.check(5)


def test_what_died_is_looked_at_and_resolved_from_elsewhere(stage: Stage, proxy: S3Proxy, tmp_path: Path) -> None:
    place, there = placed(tmp_path, "two"), {"HOLDFAST_SPARK_CHECKPOINT": str(tmp_path / ELSEWHERE)}
    place.arrive(0, 4)
    assert "after-publish:3" in stage.elsewhere(run, place, ("after-publish", 3))
    code, said = stage.elsewhere(command, place, "inspect", "TARGET", **there)
    assert (code, "epoch 3" in said) == (0, True), said
    code, said = stage.elsewhere(command, place, "plan", "TARGET", **there)
    assert code == 0, said
    code, said = stage.elsewhere(command, place, "resolve", "TARGET", "--force", **there)
    assert code == 0, said
    assert parquet_rows(tmp_path / "out") == list(range(60))
    assert stage.elsewhere(run, place) == ""
    place.check(4)
