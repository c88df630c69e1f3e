"""One list of metrics: what is served, the docs page, the board and the alert rules agree with it (design/0049)."""

from __future__ import annotations

import importlib
import json
import logging
import re
import socket
import sys
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from holdfast.config import Settings
from holdfast.display.health import with_health
from holdfast.errors import InternalError, InvalidPipeline
from holdfast.health import CallStatus, ExpectationStatus
from holdfast.metrics import exporter, families, samples
from holdfast.metrics.kinds import labels_of
from holdfast.metrics.table import METRICS
from holdfast.status import (
    CheckpointStatus,
    FilterStatus,
    OperatorStatus,
    ShardStatus,
    SinkStatus,
    SourceStatus,
    Status,
    Wait,
)
from holdfast.time_use import BUCKETS_S, EpochTotals
from tools import metrics as written

STATUS = Status(
    "trips-3",
    generation=4,
    state="running",
    epoch=41,
    rows_total=900,
    rows_per_s=7.5,
    sources=(
        SourceStatus(
            "rides",
            {"a/0": 7, "a/1": 9, "@bound": 5_000_000},
            {"a/0": 10, "a/1": 9, "a/2": 2, "@bound": 5_000_000},
            lag=5,
            rows=600,
            rejects=5,
            reasons={"rejects": {"no number": 3}, "rescued": {"tip": 2}},
            rescued=2,
            lag_s=1.5,
            bound_us=5_000_000,
        ),
        SourceStatus("weather", rows=20),
    ),
    operators=(
        OperatorStatus(
            "sums",
            "accumulate",
            state_rows=30,
            state_bytes=4_000,
            waiting_rows=11,
            waiting_keys=4,
            late=2,
            shed=1,
            counts={"dropped": 6},
            waits=(Wait({"k": 1}, "weather", 10), Wait({"k": 2}, "weather", 5)),
            reasons={"late": {"behind the bound": 2}},
        ),
    ),
    filters=(FilterStatus("some", 600, 40), FilterStatus("by_spark")),
    sinks=(SinkStatus("table", "sqlite", "exactly-once", epoch=41, rows=560, pace="30 s", waiting_rows=13),),
    retries=3,
    queue=2,
    in_doubt=1,
    audit_difference=8,
    dead_letters={"rides": 2},
    spare="away",
    drops={"spans": 9},
    started_at_us=1_000_000,
    checkpoints=CheckpointStatus(5, 2, 1, 40, at_us=2_000_000, size_bytes=1234),
    totals=EpochTotals().plus({"epoch": 0.02}, {"sums": 0.01}, {"table": 0.004}).plus({"epoch": 9_999.0}, {}, {}),
)

WHOLE = Status(
    "trips",
    state="running",
    shards=(ShardStatus(0, "running", restarts=2), ShardStatus(3, "waiting", error="the database is away")),
)

LEFT_OUT = {
    "Status.rows_per_s": "Prometheus takes the rate itself",
    "Status.rows_total": "the sum of holdfast_rows_total with the direction out of sinks",
    "Status.last_epoch": "the last one; holdfast_epoch_seconds has all",
    "Status.time": "means of the last epochs; holdfast_node_seconds_total has all",
    "Status.error": "a text: of the log, and of holdfast inspect",
    "Status.doing": "a text",
    "Status.compared": "of a start, and not of a moment: holdfast reconcile",
    "SinkStatus.waiting_since_us": "holdfast_sink_staleness_seconds has it",
    "CheckpointStatus.is_failing": "holdfast_healthy has it",
    "ExpectationStatus.within": "a text",
    "ExpectationStatus.on_fail": "a text",
    "ExpectationStatus.max_fraction": "it is declared",
    "ExpectationStatus.rows": "of this run alone; holdfast_expectation_rows_total has all",
    "ExpectationStatus.failed": "of this run alone; holdfast_expectation_rows_total has all",
    "ExpectationStatus.last_rows": "of one epoch; holdfast_expectation_broken says what follows",
    "ExpectationStatus.last_failed": "of one epoch; holdfast_expectation_broken says what follows",
    "SourceStatus.lag": "the sum of its segments",
    "OperatorStatus.kind": "a text",
    "SinkStatus.kind": "a text",
    "SinkStatus.guarantee": "a text",
    "SinkStatus.staging": "a text",
    "SinkStatus.last_choice": "a text",
    "SinkStatus.pace": "a text",
    "SinkStatus.waiting_epochs": "its rows are there",
    "CheckpointStatus.epoch": "its age is there",
    "CheckpointStatus.duration_ms": "of the last one alone",
    "CheckpointStatus.rows": "its size is there",
    "CheckpointStatus.last_error": "a text",
    "ShardStatus.generation": "holdfast_generation of the shard",
    "ShardStatus.epoch": "holdfast_epoch of the shard",
    "ShardStatus.rows_total": "holdfast_rows_total of the shard",
    "ShardStatus.rows_per_s": "Prometheus takes the rate itself",
    "ShardStatus.lag": "holdfast_lag_rows of the shard",
    "ShardStatus.doing": "a text",
    "ShardStatus.error": "a text",
}
"""Fields of a status that are in no metric, and why."""


class Fixed(Collector):
    def __init__(self, *statuses: Status) -> None:
        self.statuses = statuses

    def collect(self) -> Iterator[Any]:
        yield from families.families(self.statuses)


def served(*statuses: Status) -> dict[tuple[str, ...], float]:
    """Return name and label values -> number, as Prometheus parses what is served."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Fixed(*statuses))
    text = generate_latest(registry).decode()
    order = {metric.name.removesuffix("_total"): (*labels_of(metric), "le") for metric in METRICS}
    return {
        (each.name, *(each.labels[label] for label in order[family.name] if label in each.labels)): each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
    }


@pytest.fixture(autouse=True)
def _fixed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "_now_us", lambda: 100_000_000)


def test_the_page_the_board_and_the_rules_are_written_from_the_list() -> None:
    """After a change of the list: ``python -m tools.metrics`` writes them anew."""
    text = written.PAGE.read_text()
    assert written.page(text) == text
    assert written.BOARD.read_text() == written.board()
    assert written.RULES.read_text() == written.rules()


def test_names_follow_the_conventions_of_prometheus() -> None:
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))
    for metric in METRICS:
        assert re.fullmatch(r"holdfast_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.help.endswith("."), metric.name
        assert not re.search(r"_(ms|us|mb|kb|percent)$", metric.name)


def test_rules_and_board_name_what_is_served_and_no_other_label() -> None:
    known = {metric.name: set(labels_of(metric)) for metric in METRICS}
    known |= {f"{metric.name}_bucket": known[metric.name] | {"le"} for metric in METRICS if metric.kind == "histogram"}
    rules = [rule["expr"] for rule in yaml.safe_load(written.RULES.read_text())["groups"][0]["rules"]]
    targets = [
        target["expr"]
        for panel in json.loads(written.BOARD.read_text())["panels"]
        for target in panel.get("targets", [])
    ]
    assert len(rules) >= 8
    assert len(targets) >= 15
    for expression in (*rules, *targets):
        names = re.findall(r"holdfast_[a-z_]+", expression)
        assert names
        assert set(names) <= set(known), expression
        for label in re.findall(r'(\w+)=~?"', expression):
            assert any(label in known[name] for name in names), expression
        for group in re.findall(r"by \(([^)]*)\)", expression):
            assert {label.strip() for label in group.split(",")} <= known[names[0]], expression


def test_each_number_of_a_status_is_served_under_its_labels() -> None:
    found = served(STATUS)
    expected = {
        ("holdfast_run_state", "trips", "3", "running"): 1,
        ("holdfast_run_state", "trips", "3", "failed"): 0,
        ("holdfast_generation", "trips", "3"): 4,
        ("holdfast_start_time_seconds", "trips", "3"): 1,
        ("holdfast_epoch", "trips", "3"): 41,
        ("holdfast_rows_total", "trips", "3", "rides", "in"): 600,
        ("holdfast_rows_total", "trips", "3", "some", "in"): 600,
        ("holdfast_rows_total", "trips", "3", "some", "out"): 560,
        ("holdfast_rows_total", "trips", "3", "table", "out"): 560,
        ("holdfast_lag_rows", "trips", "3", "rides", "a/0"): 3,
        ("holdfast_lag_rows", "trips", "3", "rides", "a/1"): 0,
        ("holdfast_lag_rows", "trips", "3", "rides", "a/2"): 2,
        ("holdfast_lag_seconds", "trips", "3", "rides"): 1.5,
        ("holdfast_bound_seconds", "trips", "3", "rides"): 5,
        ("holdfast_rejected_total", "trips", "3", "rides", "no number"): 3,
        ("holdfast_rejected_total", "trips", "3", "rides", ""): 2,
        ("holdfast_rescued_total", "trips", "3", "rides"): 2,
        ("holdfast_late_total", "trips", "3", "sums", "behind the bound"): 2,
        ("holdfast_shed_total", "trips", "3", "sums", ""): 1,
        ("holdfast_operator_counts_total", "trips", "3", "sums", "dropped"): 6,
        ("holdfast_waiting_rows", "trips", "3", "sums"): 11,
        ("holdfast_waiting_keys", "trips", "3", "sums"): 4,
        ("holdfast_dead_letters", "trips", "3", "rides"): 2,
        ("holdfast_spare_ready", "trips", "3"): 0,
        ("holdfast_telemetry_dropped_total", "trips", "3", "spans"): 9,
        ("holdfast_wait_seconds", "trips", "3", "sums", "weather"): pytest.approx(100 - 5e-6),
        ("holdfast_state_rows", "trips", "3", "sums"): 30,
        ("holdfast_state_bytes", "trips", "3", "sums"): 4_000,
        ("holdfast_sink_epoch", "trips", "3", "table"): 41,
        ("holdfast_sink_waiting_rows", "trips", "3", "table"): 13,
        ("holdfast_retries_total", "trips", "3"): 3,
        ("holdfast_queue_epochs", "trips", "3"): 2,
        ("holdfast_in_doubt_epochs", "trips", "3"): 1,
        ("holdfast_audit_difference_rows_total", "trips", "3"): 8,
        ("holdfast_waits_for_system", "trips", "3"): 0,
        ("holdfast_snapshots_total", "trips", "3", "made"): 5,
        ("holdfast_snapshots_total", "trips", "3", "dropped"): 2,
        ("holdfast_snapshots_total", "trips", "3", "failed"): 1,
        ("holdfast_snapshot_age_seconds", "trips", "3"): 98,
        ("holdfast_snapshot_bytes", "trips", "3"): 1234,
        ("holdfast_node_seconds_total", "trips", "3", "sums", "evaluate"): 0.01,
        ("holdfast_node_seconds_total", "trips", "3", "table", "publish"): 0.004,
        ("holdfast_epoch_seconds_bucket", "trips", "3", "epoch", "0.01"): 0,
        ("holdfast_epoch_seconds_bucket", "trips", "3", "epoch", "0.025"): 1,
        ("holdfast_epoch_seconds_bucket", "trips", "3", "epoch", str(BUCKETS_S[-1])): 1,
        ("holdfast_epoch_seconds_bucket", "trips", "3", "epoch", "+Inf"): 2,
        ("holdfast_epoch_seconds_count", "trips", "3", "epoch"): 2,
        ("holdfast_epoch_seconds_sum", "trips", "3", "epoch"): pytest.approx(9_999.02),
    }
    assert {key: found.get(key) for key in expected} == expected


def test_shards_are_served_once_each_and_not_as_a_sum_besides() -> None:
    found = served(WHOLE, Status("trips", epoch=3, state="running"), STATUS)
    assert found["holdfast_shard_restarts_total", "trips", "0"] == 2
    assert found["holdfast_shard_state", "trips", "3", "waiting"] == 1
    assert found["holdfast_shard_state", "trips", "3", "running"] == 0
    assert {key[1:3]: value for key, value in found.items() if key[0] == "holdfast_epoch"} == {
        ("trips", "0"): 3,
        ("trips", "3"): 41,
    }


def test_each_field_of_a_status_is_in_a_metric_or_left_out_for_a_reason() -> None:
    """A field that comes is thought about."""
    text = "".join(Path(path).read_text() for path in (samples.__file__, families.__file__))
    classes = (
        Status, SourceStatus, OperatorStatus, FilterStatus, SinkStatus, CheckpointStatus, ShardStatus, ExpectationStatus
    )  # fmt: skip
    named = {f"{of.__name__}.{each.name}" for of in classes for each in fields(of)}
    missing = {each for each in named - set(LEFT_OUT) if not re.search(rf"\.{each.partition('.')[2]}\b", text)}
    assert not missing
    assert set(LEFT_OUT) <= named


def test_what_is_not_known_is_no_number() -> None:
    found = served(Status("trips", sources=(SourceStatus("rides", {"a": "x"}, {"a": "y"}), SourceStatus("more"))))
    assert not [
        key for key in found if key[0].startswith(("holdfast_lag", "holdfast_bound", "holdfast_sink", "holdfast_snap"))
    ]


def test_how_stale_a_sink_is_and_how_stale_it_may_be() -> None:
    sinks = (SinkStatus("a", "x", "y"), SinkStatus("b", "x", "y", stale_s=40.0, freshness_s=30.0))
    found = served(with_health(Status("trips", sources=(SourceStatus("rides", lag_s=4.0),), sinks=sinks)))
    assert ("holdfast_sink_staleness_seconds", "trips", "0", "a") not in found, "it is not known"
    assert found["holdfast_sink_staleness_seconds", "trips", "0", "b"] == 40
    assert found["holdfast_sink_freshness_seconds", "trips", "0", "b"] == 30
    assert found["holdfast_healthy", "trips", "0"] == 0


def test_expectations_are_counted_over_all_runs() -> None:
    valid = ExpectationStatus("valid", rows=3, failed=1, rows_total=10, failed_total=4, is_broken=True)
    found = served(Status("trips", expectations=(valid,)))
    assert found["holdfast_expectation_rows_total", "trips", "0", "valid", "met"] == 6
    assert found["holdfast_expectation_rows_total", "trips", "0", "valid", "failed"] == 4
    assert found["holdfast_expectation_broken", "trips", "0", "valid"] == 1
    assert found["holdfast_healthy", "trips", "0"] == 1


def test_calls_are_counted_with_what_their_function_reports() -> None:
    judged = CallStatus("judged", calls=5, retries=1, failed=1, reused=7, seconds=2.5, cost={"tokens": 63.0})
    found = served(Status("trips", calls=(judged,)))
    results = {"answered": 3, "retried": 1, "failed": 1}
    assert {name: found["holdfast_call_attempts_total", "trips", "0", "judged", name] for name in results} == results
    assert found["holdfast_call_reused_total", "trips", "0", "judged"] == 7
    assert found["holdfast_call_seconds_total", "trips", "0", "judged"] == 2.5
    assert found["holdfast_call_cost_total", "trips", "0", "judged", "tokens"] == 63


def test_a_replica_is_served_while_it_waits_and_a_run_is_none() -> None:
    address = free_address()
    run = FakeRun(STATUS)
    with exporter.show_replica("trips", address):
        assert 'holdfast_replica_waits{pipeline="trips",shard="0"} 1.0' in scraped(address)
        exporter.show_metrics(run, address)
    text = scraped(address)
    assert 'holdfast_epoch{pipeline="trips",shard="3"} 41.0' in text
    run.end()
    closed(address)
    assert ("holdfast_replica_waits", "trips", "3") not in served(STATUS)


@pytest.mark.parametrize("count", [1, 50, 51, 5_000])
def test_many_segments_are_few_numbers_that_add_up(count: int) -> None:
    newest = {f"topic/{number}": number for number in range(count)}
    found = served(Status("trips", sources=(SourceStatus("rides", {}, newest),)))
    lags = {key[-1]: value for key, value in found.items() if key[0] == "holdfast_lag_rows"}
    assert len(lags) == min(count, samples.SEGMENTS_MAX + 1)
    assert sum(lags.values()) == sum(range(count))


HOSTILE = ['a"b', "a\\b", "a\nb", 'x"} 1\nholdfast_epoch{pipeline="evil"', "<script>", "é\u202e\x00", "{{ x }}"]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_stay_values_of_a_label(text: str) -> None:
    status = Status("trips", sources=(SourceStatus("rides", {}, {text: 3}, rejects=1, reasons={"rejects": {text: 1}}),))
    found = served(status)
    assert found["holdfast_lag_rows", "trips", "0", "rides", text] == 3
    assert found["holdfast_rejected_total", "trips", "0", "rides", text] == 1
    assert {key[1] for key in found} == {"trips"}


# --- the port ---------------------------------------------------------------------------------------------------------


class FakeRun:
    """A run that ends when it is told to."""

    def __init__(self, *pictures: Status, error: Exception | None = None) -> None:
        self._pictures, self._ended, self._error = pictures, threading.Event(), error
        self.fails = False

    def pictures(self) -> Sequence[Status]:
        if self.fails:
            raise RuntimeError("the JVM is gone")
        return self._pictures

    def wait(self, timeout_s: float | None = None) -> bool:
        ended = self._ended.wait(timeout_s)
        if self._error is not None:
            raise self._error
        return ended

    def end(self) -> None:
        self._ended.set()


def scraped(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
        return answer.read().decode()


def free_address() -> str:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{held.getsockname()[1]}"


def closed(address: str) -> None:
    """Wait until the port of an address is closed."""
    port = exporter._ports.get(address)
    if port is not None:
        port._thread.join(20)
        assert not port._thread.is_alive()


def test_runs_of_a_process_share_a_port_which_is_closed_behind_the_last() -> None:
    address = free_address()
    first, second = FakeRun(Status("one", epoch=1)), FakeRun(Status("two", epoch=2), error=InternalError("x"))
    exporter.show_metrics(first, address)
    exporter.show_metrics(second, address)
    text = scraped(address)
    assert 'holdfast_epoch{pipeline="one",shard="0"} 1.0' in text
    assert 'holdfast_epoch{pipeline="two",shard="0"} 2.0' in text
    port = exporter._ports[address]
    second.end()
    first.end()
    port._thread.join(20)
    assert not port._thread.is_alive()
    third = FakeRun(Status("three", epoch=3))
    exporter.show_metrics(third, address)
    assert 'pipeline="three"' in scraped(address)
    third.end()
    closed(address)


def test_a_run_that_gives_no_status_does_not_hide_the_others() -> None:
    address = free_address()
    good, bad = FakeRun(Status("good", epoch=1)), FakeRun(Status("bad", epoch=2))
    for run in (bad, good):
        exporter.show_metrics(run, address)
    bad.fails = True
    text = scraped(address)
    assert 'pipeline="good"' in text
    assert 'pipeline="bad"' not in text
    for run in (bad, good):
        run.end()
    closed(address)


def test_a_port_that_is_taken_is_logged_and_leaves_the_run_alone(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as held, caplog.at_level(logging.WARNING, logger="holdfast.run"):
        held.bind(("127.0.0.1", 0))
        held.listen()
        exporter.show_metrics(FakeRun(Status("one")), f"127.0.0.1:{held.getsockname()[1]}")
    assert "the run goes on" in caplog.text


def test_without_the_library_a_start_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("prometheus_client", "prometheus_client.core"):
        monkeypatch.setitem(sys.modules, name, None)
    for module in ("exporter", "families"):
        monkeypatch.delitem(sys.modules, f"holdfast.metrics.{module}")
    with pytest.raises(InvalidPipeline, match="prometheus-client") as refused:
        importlib.import_module("holdfast.metrics.exporter")
    assert "pip install 'holdfast[metrics]'" in refused.value.do


@pytest.mark.parametrize("address", ["", ":9464", "127.0.0.1:9464", "[::1]:9464", "metrics.example.org:1"])
def test_addresses(address: str) -> None:
    assert Settings(metrics=address).metrics == address


@pytest.mark.parametrize("address", ["9464", "http://x:1", "x:", "a b:3", "x:123456"])
def test_an_address_that_is_none_is_refused_with_what_it_may_be(address: str) -> None:
    with pytest.raises(InvalidPipeline, match="HOLDFAST_METRICS") as refused:
        Settings(metrics=address)
    assert "host:port" in refused.value.message
