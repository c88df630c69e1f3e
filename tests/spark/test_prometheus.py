"""A real Prometheus scrapes a run: alerts fire while a system is away, and clear when it is back (design/0049).

The server is Debian's: ``prometheus`` on the PATH, the one that ``HOLDFAST_PROMETHEUS`` names, or unpacked from the
package, where apt reaches it.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sqlite3
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

import holdfast as hf
from holdfast.config import Settings
from holdfast.metrics import exporter
from holdfast.metrics.table import METRICS
from holdfast.status import OperatorStatus, Status
from tests.spark.running import eventually
from tools.metrics import RULES

pytestmark = [pytest.mark.spark, pytest.mark.nightly, pytest.mark.timeout(900)]

FAST = "2s"
LOAD_S = float(os.environ.get("HOLDFAST_PROMETHEUS_S", "120"))


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the paths of prometheus and promtool."""
    given = os.environ.get("HOLDFAST_PROMETHEUS") or shutil.which("prometheus")
    if given is None:
        work = tmp_path_factory.mktemp("prometheus")
        unpack = "apt-get update -qq; apt-get download -qq prometheus && dpkg -x prometheus_*.deb ."
        subprocess.run(["sh", "-c", unpack], cwd=work, check=False, capture_output=True, timeout=300)
        given = str(work / "usr/bin/prometheus")
    found = {"prometheus": given, "promtool": str(Path(given).with_name("promtool"))}
    if not all(Path(path).exists() for path in found.values()):
        pytest.skip("there is no prometheus: apt-get install prometheus, or HOLDFAST_PROMETHEUS=/path/to/prometheus")
    return found


def test_the_rules_are_valid(programs: dict[str, str]) -> None:
    said = subprocess.run([programs["promtool"], "check", "rules", RULES], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout + said.stderr


class Prometheus:
    """A server that scrapes each second, with the rules of the project, which fire after two."""

    def __init__(self, program: str, work: Path, target: str) -> None:
        rules = yaml.safe_load(RULES.read_text())
        for rule in rules["groups"][0]["rules"]:
            rule["for"] = FAST
            rule["expr"] = rule["expr"].replace("> 300", "> 5").replace("[30m]", "[10s]")
        (work / "rules.yml").write_text(yaml.safe_dump(rules))
        timing = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        jobs = [{"job_name": "holdfast", "static_configs": [{"targets": [target]}]}]
        settings = {"global": timing, "scrape_configs": jobs, "rule_files": ["rules.yml"]}
        (work / "prometheus.yml").write_text(yaml.safe_dump(settings))
        self.url = f"http://127.0.0.1:{free_port()}"
        address = self.url.removeprefix("http://")
        command = [program, "--config.file=prometheus.yml", f"--storage.tsdb.path={work / 'data'}"]
        with (work / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [*command, f"--web.listen-address={address}"], cwd=work, stdout=log, stderr=log
            )

    def ask(self, path: str, **query: str) -> Any:
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=20) as answer:
            return json.load(answer)["data"]

    def is_ready(self) -> bool:
        assert self.process.poll() is None
        try:
            return self.number('holdfast_run_state{state="running"}') == 1
        except OSError:
            return False

    def number(self, expression: str) -> float | None:
        """Return the sum of what an expression gives; None where it gives nothing."""
        found = [float(each["value"][1]) for each in self.ask("query", query=expression)["result"]]
        return sum(found) if found else None

    def firing(self) -> set[str]:
        return {each["labels"]["alertname"] for each in self.ask("alerts")["alerts"] if each["state"] == "firing"}

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(60)


@pytest.fixture
def run_and_server(tmp_path: Path, programs: dict[str, str]) -> Iterator[tuple[Any, Prometheus]]:
    rows = hf.read.rate(1000, name="rows")
    table = (
        rows | hf.filter("value % 2 = 0", name="even") | hf.write.sqlite(str(tmp_path / "t.db"), table="t", name="t")
    )
    target = f"127.0.0.1:{free_port()}"
    run = hf.Pipeline("load", table).start(
        checkpoint=tmp_path / "checkpoint",
        trigger=hf.every("200 ms"),
        metrics=target,
        settings=Settings(retry_attempts=100, retry_cap="1 s"),
    )
    try:
        with closing(Prometheus(programs["prometheus"], tmp_path, target)) as server:
            eventually(server.is_ready, within_s=120, what="the run is scraped")
            yield run, server
    finally:
        run.stop()
        run.wait()


def test_alerts_fire_while_a_system_is_away_and_clear_when_it_is_back(
    run_and_server: tuple[Any, Prometheus], tmp_path: Path
) -> None:
    run, server = run_and_server
    began = time.monotonic()
    eventually(lambda: (server.number('holdfast_rows_total{direction="out"}') or 0) > 0, what="rows are counted")
    assert server.firing() == set()
    with closing(sqlite3.connect(tmp_path / "t.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        eventually(
            lambda: {"HoldfastWaitsForSystem", "HoldfastBehind"} <= server.firing(), within_s=200, what="alerts fire"
        )
        other.execute("ROLLBACK")
    eventually(lambda: server.firing() == set(), within_s=200, what="alerts clear")
    eventually(lambda: time.monotonic() - began > LOAD_S, within_s=LOAD_S + 1, what="so long it is scraped")
    assert server.number('sum_over_time(up{job="holdfast"}[1h]) / count_over_time(up{job="holdfast"}[1h])') == 1
    assert (server.number('rate(holdfast_rows_total{node="t"}[1m])') or 0) > 100
    known = {metric.name for metric in METRICS} | {
        f"{metric.name}_{part}" for metric in METRICS for part in ("bucket", "sum", "count", "created")
    }
    served = {name for name in server.ask("label/__name__/values") if name.startswith("holdfast_")}
    assert served
    assert served <= known
    assert run.is_active


class Growing:
    """A run whose keys wait for an input: more and more of them, until that speaks."""

    def __init__(self) -> None:
        self.keys, self.growth, self._ended = 2_000, 50, threading.Event()

    def pictures(self) -> list[Status]:
        self.keys += self.growth
        return [Status("trips", state="running", operators=(OperatorStatus("aligned", waiting_keys=self.keys),))]

    def wait(self, timeout_s: float | None = None) -> bool:
        return self._ended.wait(timeout_s)

    def end(self) -> None:
        self._ended.set()


def test_keys_that_wait_and_a_replica_that_is_away_are_noticed_until_that_is_over(
    tmp_path: Path, programs: dict[str, str]
) -> None:
    target = f"127.0.0.1:{free_port()}"
    run = Growing()
    exporter.show_metrics(run, target)
    try:
        with closing(Prometheus(programs["prometheus"], tmp_path, target)) as server:
            with exporter.show_replica("trips", target):
                eventually(server.is_ready, within_s=120, what="they are scraped")
                eventually(lambda: server.firing() == {"HoldfastWaitingKeys"}, within_s=120, what="keys are noticed")
                run.growth = 0
                eventually(lambda: server.firing() == set(), within_s=120, what="the input has spoken")
            eventually(lambda: server.firing() == {"HoldfastReplicaAway"}, within_s=120, what="the replica is away")
            with exporter.show_replica("trips", target):
                eventually(lambda: server.firing() == set(), within_s=120, what="a replica waits again")
    finally:
        run.end()
