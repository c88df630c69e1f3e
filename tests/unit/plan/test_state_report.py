"""What buckets report, folded on the driver and kept in the checkpoint."""

from __future__ import annotations

import json
from typing import Any

import pytest

import holdfast as hf
from holdfast.errors import Corrupt
from holdfast.plan.report import KEEP_EVERY_S, OperatorReports, Pace, late_rows_read
from holdfast.state.bucket_report import BucketReport
from holdfast.state.step import Result
from holdfast.status import STATE_REPORT_KEY, Wait
from holdfast.testing import SimulatedClock, SimulatedStore

WAITING = {"seen/0": 4, "aligned/0": 3}
KINDS = {"aligned": "sync", "seen": "merge"}


def wait(since_us: int, key: str = "a") -> Wait:
    return Wait({"k": key}, "lidar", since_us, None, 1)


@pytest.fixture
def store() -> SimulatedStore:
    return SimulatedStore()


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def reports(store: SimulatedStore, clock: SimulatedClock) -> OperatorReports:
    return OperatorReports(KINDS, store, clock, 3)


def test_sizes_are_those_of_every_bucket_as_it_reported_last_and_counts_add_up(reports: OperatorReports) -> None:
    reports.note(1, {"aligned/0": BucketReport({"late": 1, "sets": 4}, 5, 50, 2)})
    reports.note(2, {"aligned/1": BucketReport({"late": 2}, 7, 70, 1)})
    reports.note(3, {"aligned/0": BucketReport({"late": 0, "sets": 1}, 1, 10, 0)})
    aligned, seen = reports.statuses()
    assert (aligned.name, aligned.kind, aligned.state_rows, aligned.state_bytes) == ("aligned", "sync", 8, 80)
    assert (aligned.waiting_rows, aligned.late, aligned.counts) == (1, 3, {"sets": 5})
    assert (seen.name, seen.state_rows) == ("seen", 0)


def test_late_rows_that_go_nowhere_are_warned_of_once_for_each_operator(
    store: SimulatedStore, clock: SimulatedClock, caplog: pytest.LogCaptureFixture
) -> None:
    reports = OperatorReports(KINDS, store, clock, 3, drops_late=["aligned"])
    for epoch, late in enumerate((0, 2, 5), start=1):
        reports.note(epoch, {"aligned/0": BucketReport({"late": late}), "seen/0": BucketReport({"late": 1})})
    assert [record.getMessage().partition(".")[0] for record in caplog.records] == [
        "operator 'aligned': 2 rows came too late and go nowhere"
    ]


def test_who_reads_late_rows_is_known() -> None:
    rows = hf.read.rows([], schema="k STRING, t BIGINT", timestamp="t", name="rows")
    counts = rows | hf.aggregate(by="k", window=hf.tumbling(5), n=hf.count(), name="counts")
    main, late = counts | hf.write.memory(name="main"), counts.late | hf.write.memory(name="late")
    assert late_rows_read(hf.Pipeline("p", main).nodes) == frozenset()
    assert late_rows_read(hf.Pipeline("p", main, late).nodes) == {"counts"}


def test_rejects_of_sources_are_kept_with_their_reasons_also_without_state(
    store: SimulatedStore, clock: SimulatedClock
) -> None:
    reports = OperatorReports({}, store, clock, 3)
    reports.note(1, {})
    assert STATE_REPORT_KEY not in store.objects
    reports.note(2, {}, {"flights": {"it is not UTF-8": 2}})
    kept = json.loads(store.objects[STATE_REPORT_KEY])
    assert (kept["epoch"], kept["rejects"], kept["operators"]) == (2, {"flights": {"it is not UTF-8": 2}}, [])


def test_rows_that_wait_are_no_count_of_a_step(reports: OperatorReports) -> None:
    said = {name: BucketReport.of(Result({}, {}, None, {"waiting_rows": n})) for name, n in WAITING.items()}
    assert [report.counts for report in said.values()] == [{}, {}]
    reports.note(1, said)
    assert [status.waiting_rows for status in reports.statuses()] == [3, 4]


def test_the_ten_longest_waits_of_all_buckets_are_shown(reports: OperatorReports) -> None:
    odd, even = (BucketReport(waiting_rows=9, waits=tuple(map(wait, range(n, 20, 2)))) for n in (1, 0))
    reports.note(1, {"aligned/0": odd, "aligned/1": even})
    assert [each.since_us for each in reports.statuses()[0].waits] == list(range(10))
    assert reports.statuses()[0].waits[0] == Wait({"k": "a"}, "lidar", 0, None, 1)


def test_waits_stay_while_nobody_looks_and_go_when_nothing_waits_any_more(reports: OperatorReports) -> None:
    two = (BucketReport(waiting_rows=2, waits=(wait(5),), waiting_keys=keys) for keys in (12, 30))
    reports.note(1, dict(zip(("aligned/0", "aligned/1"), two, strict=True)))
    assert reports.statuses()[0].waiting_keys == 42
    reports.note(2, {"aligned/0": BucketReport(waiting_rows=1)})
    assert len(reports.statuses()[0].waits) == 2
    assert reports.statuses()[0].waiting_keys == 42
    reports.note(3, {"aligned/0": BucketReport(waiting_rows=0)})
    assert len(reports.statuses()[0].waits) == 1
    assert reports.statuses()[0].waiting_keys == 30
    reports.note(4, {"aligned/1": BucketReport(waiting_rows=0)})
    assert (reports.statuses()[0].waits, reports.statuses()[0].waiting_keys) == ((), 0)
    assert reports.statuses()[1].waiting_keys is None


def test_the_report_is_kept_after_the_first_epoch_then_seldom_and_when_asked(
    reports: OperatorReports, store: SimulatedStore, clock: SimulatedClock
) -> None:
    def kept_epoch() -> Any:
        return json.loads(store.objects[STATE_REPORT_KEY])["epoch"]

    reports.keep()
    assert STATE_REPORT_KEY not in store.objects  # nothing is known yet
    for epoch in (1, 2):
        reports.note(epoch, {"aligned/0": BucketReport(state_rows=epoch)})
    assert kept_epoch() == 1
    clock.advance_us(KEEP_EVERY_S * 1_000_000)
    reports.note(3, {})
    assert kept_epoch() == 3
    reports.note(4, {})
    reports.keep()
    assert kept_epoch() == 4


def test_the_next_run_knows_the_buckets_that_nothing_arrives_for(store: SimulatedStore, clock: SimulatedClock) -> None:
    first = OperatorReports({**KINDS, "gone": "merge"}, store, clock, 1)
    said = BucketReport({"late": 2}, 5, waiting_rows=1, waits=(wait(5),))
    first.note(1, {"aligned/0": said, "gone/0": BucketReport()})
    second = OperatorReports(KINDS, store, clock, 2)
    second.note(2, {"aligned/1": BucketReport(state_rows=3)})
    aligned, _ = second.statuses()
    assert (aligned.state_rows, aligned.late, len(aligned.waits)) == (8, 0, 1)  # counts are those of a run
    second.keep()
    assert set(json.loads(store.objects[STATE_REPORT_KEY])["buckets"]) == {"aligned/0", "aligned/1"}


@pytest.mark.parametrize("damaged", [b"{", b"[]", b'{"format": 1, "buckets": {"aligned/0": 7}}', b'{"format": 2}'])
def test_a_damaged_report_is_as_good_as_none(store: SimulatedStore, clock: SimulatedClock, damaged: bytes) -> None:
    store.put(STATE_REPORT_KEY, damaged)
    assert OperatorReports(KINDS, store, clock, 1).statuses()[0].state_rows == 0


@pytest.mark.parametrize(
    "damaged",
    [
        {"waits": [wait(5).as_json() | {"inqut": "lidar"}]},
        {"waits": [wait(5).as_json() | {"waiting_rows": 1}, {"key": {}, "inqut": "lidar", "since_us": 5}]},
        {"waits": [wait(5).as_json() | {"since_us": "5"}]},
        {"waits": [wait(5).as_json() | {"key": 7}]},
        {"waits": [7]},
        {"waits": 7},
        {"state_rows": "many"},
        {"state_bytes": None},
    ],
    ids=str,
)
def test_a_report_that_was_changed_and_is_still_json_neither_fails_an_epoch_nor_the_end(
    store: SimulatedStore, clock: SimulatedClock, damaged: dict[str, Any]
) -> None:
    buckets = {"aligned/0": {"state_rows": 5, "waiting_rows": 1} | damaged, "aligned/1": {"state_rows": 3}}
    store.put(STATE_REPORT_KEY, json.dumps({"format": 1, "buckets": buckets}).encode())
    reports = OperatorReports(KINDS, store, clock, 1)
    reports.note(7, {"seen/0": BucketReport(state_rows=1)})
    reports.keep()
    assert reports.statuses()[0].state_rows in (3, 8)  # what cannot be used of a bucket is left out, with the bucket
    assert json.loads(store.objects[STATE_REPORT_KEY])["epoch"] == 7


def test_a_report_on_a_disk_that_does_not_answer_is_as_good_as_none(clock: SimulatedClock) -> None:
    class Broken(SimulatedStore):
        def get(self, key: str) -> bytes | None:
            raise Corrupt(f"{key} cannot be read.", why="the disk reports an input/output error.")

    assert OperatorReports(KINDS, Broken(), clock, 1).statuses()[0].state_rows == 0


def test_a_store_that_cannot_be_written_does_not_stop_the_run(clock: SimulatedClock) -> None:
    class Full(SimulatedStore):
        def put(self, key: str, data: bytes) -> None:
            raise OSError("no space left on device")

    reports = OperatorReports(KINDS, Full(), clock, 1)
    reports.note(1, {"aligned/0": BucketReport(state_rows=5)})
    assert reports.statuses()[0].state_rows == 5


def test_a_pipeline_without_state_writes_no_report(store: SimulatedStore, clock: SimulatedClock) -> None:
    reports = OperatorReports({}, store, clock, 1)
    reports.note(1, {})
    reports.keep()
    assert (reports.statuses(), store.objects) == ((), {})


def test_a_look_that_takes_long_is_taken_seldom() -> None:
    now = [0.0]
    pace = Pace(lambda: now[0])

    def look() -> str:
        now[0] += 1.0
        return "seen"

    assert pace.measured("b", look) == "seen"
    now[0] = 20.9
    assert pace.measured("b", look) is None
    now[0] = 21.0
    assert pace.measured("b", look) == "seen"


def test_several_looks_share_the_time() -> None:
    now = [0.0]
    pace = Pace(lambda: now[0])

    def look() -> None:
        now[0] += 1.0

    looks = 0
    for _ in range(4000):
        for name in "abcd":
            before = now[0]
            pace.measured(name, look)
            looks += now[0] > before
        now[0] += 0.1
    assert looks <= now[0] / 20 + 4
