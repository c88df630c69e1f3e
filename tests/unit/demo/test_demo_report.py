"""The demo's page stands alone and says the same as the last line."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from demo.cluster import Rerun, read_rerun
from holdfast.demo import report
from holdfast.demo.kills import Experiment, Kill
from holdfast.demo.verify import SinkVerdict, Sum
from holdfast.demo.watch import Sample

SAMPLES = [Sample(second / 10, (second * 10, second)) for second in range(100)]
EXPERIMENT = Experiment((Kill(3.0, 330, 7, 40, 1.5), Kill(6.0, 660, 7, 1234, 1.4)), 9.9, 1.2)
GOOD = [
    SinkVerdict(stream, rows, rows, 0, 0, (Sum("x", 1.0, 1.0),)) for stream, rows in (("flights", 990), ("weather", 99))
]
SINKS = ["flights (SQLite)", "weather (Parquet <files>)"]


def test_the_page_shows_the_rows_over_time_and_marks_every_kill() -> None:
    page = report.page(EXPERIMENT, SAMPLES, GOOD, sinks=SINKS, settings="Seed 1.")
    assert "<th>weather (Parquet &lt;files&gt;)</th>" in page
    lines = [ET.fromstring(line) for line in page.splitlines() if "<meter" in line]
    assert [[cell.text for cell in line][:2] for line in lines if line.get("class")] == [
        ["3.0", "kill 1"],
        ["6.0", "kill 2"],
    ]
    assert [meter.get("value") for meter in lines[-1].iter("meter")] == ["990", "99"]
    seconds = [float(line[0].text or "") for line in lines]
    assert seconds == sorted(seconds)
    assert len(lines) >= report.MOMENTS


def test_the_page_loads_nothing() -> None:
    page = report.page(EXPERIMENT, SAMPLES, GOOD, sinks=SINKS, settings="Seed 1.")
    assert "Every row exactly once." in page
    for reference in ("http://", "https://", "src=", "@import", "<script", "<link"):
        assert reference not in page


def test_the_page_says_what_waited_in_state_at_each_kill() -> None:
    page = report.page(EXPERIMENT, SAMPLES, GOOD, sinks=SINKS, settings="Seed 1.")
    assert "<td>2</td><td>6.0</td><td>660</td><td>1,234</td><td>7</td><td>1.4</td>" in page


def test_the_page_says_when_rows_are_lost() -> None:
    bad = [GOOD[0], SinkVerdict("weather", 99, 98, 0, 1, ())]
    page = report.page(EXPERIMENT, SAMPLES, bad, sinks=SINKS, settings="Seed 1.")
    assert "Rows are lost or doubled." in page


def started(stage: int, task: int, executor: str) -> dict[str, object]:
    return {"Event": "SparkListenerTaskStart", "Stage ID": stage, "Task Info": {"Index": task, "Executor ID": executor}}


def ended(stage: int, task: int, reason: dict[str, str], executor: str = "0") -> dict[str, object]:
    info = {"Index": task, "Executor ID": executor}
    event = {"Event": "SparkListenerTaskEnd", "Stage ID": stage, "Task Type": "ShuffleMapTask"}
    return {**event, "Task Info": info, "Task End Reason": reason}


def test_only_the_lost_task_ran_again() -> None:
    lost = {"Reason": "ExecutorLostFailure", "Executor ID": "1"}
    good = {"Reason": "Success"}
    events = [started(0, 0, "0"), started(0, 1, "1"), ended(0, 1, lost), ended(0, 0, good), started(0, 1, "0")]
    rerun = read_rerun([*events, ended(0, 1, good)])
    assert rerun == Rerun("1", frozenset({"0.1"}), frozenset({"0.1"}))
    assert rerun.is_exact


def test_a_finished_task_that_ran_again_is_noticed() -> None:
    lost = {"Reason": "ExecutorLostFailure", "Executor ID": "1"}
    events = [started(0, 0, "0"), started(0, 1, "1"), ended(0, 1, lost), started(0, 0, "0"), started(0, 1, "0")]
    assert not read_rerun(events).is_exact


def test_tasks_that_ran_again_since_their_output_was_lost_are_no_repetition_too_many() -> None:
    lost = {"Reason": "ExecutorLostFailure", "Executor ID": "1"}
    fetched = {"Reason": "FetchFailed"}
    good = {"Reason": "Success"}
    mapped = [started(0, 0, "0"), started(0, 1, "1"), ended(0, 0, good, "0"), ended(0, 1, good, "1")]
    reduced = [started(1, 0, "0"), started(1, 1, "1"), ended(1, 1, lost, "1"), ended(1, 0, fetched, "0")]
    again = [started(0, 1, "0"), started(1, 0, "0"), started(1, 1, "0")]
    rerun = read_rerun([*mapped, *reduced, *again])
    assert (rerun.lost, rerun.owed) == ({"1.1"}, {"0.1", "1.0"})
    assert rerun.is_exact
    assert not read_rerun([*mapped, *reduced, *again, started(0, 0, "0")]).is_exact, "its output was not lost"


def test_a_lost_task_that_never_ran_again_is_noticed() -> None:
    lost = {"Reason": "ExecutorLostFailure", "Executor ID": "1"}
    assert not read_rerun([started(0, 1, "1"), ended(0, 1, lost)]).is_exact
