"""Progress: pure pictures of a status, and a display that can fail without the run noticing."""

import io
import json
import sys
import threading
from dataclasses import replace

import pytest
from rich.console import Console

from holdfast.display.lines import as_last_line, as_line
from holdfast.display.tables import footlines
from holdfast.observe import progress
from holdfast.observe.progress import as_display, progress_of
from holdfast.status import FilterStatus, OperatorStatus, SinkStatus, SourceStatus, Status, Wait
from holdfast.time_use import EpochStatus, NodeTime, TimeUse

RUNNING = Status(
    pipeline="trips",
    generation=3,
    state="running",
    epoch=41,
    rows_total=12_345,
    rows_per_s=250.4,
    sources=(
        SourceStatus("rides", {"log": 7}, {"log": 9}, 2, rows=12_000, rejects=4),
        SourceStatus("weather", {"": '{"0":5}'}, None, None, rows=345),
    ),
    sinks=(
        SinkStatus("trips_table", "sqlite", "exactly-once", "Arrow files", 41, 12_000, "carried"),
        SinkStatus("archive", "files", "exactly-once", "Parquet files", 40, 345, "staged"),
    ),
    retries=1,
    queue=2,
    last_epoch=EpochStatus(41, 100, 2_048, {"publish": 39.2, "plan": 2.0, "evaluate": 40.4}, carried=True),
)


def drawn(status: Status, width: int = 120) -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(as_display(status))
    return file.getvalue()


def test_a_line_says_epoch_rate_lag_sinks_stages_and_retries():
    assert as_line(RUNNING) == (
        "trips running: epoch 41, 12,345 rows (250/s), lag rides=2, rejects 4, sinks trips_table@41 "
        "archive@40, 82 ms (plan 2, evaluate 40, publish 39), 2 waiting for the commit thread, retries 1"
    )


def test_filtered_rows_are_shown_for_each_filter_and_none_where_nobody_counts():
    filters = (FilterStatus("late", 12_000, 345), FilterStatus("march", 345, 0), FilterStatus("odd"))
    status = replace(RUNNING, filters=filters)
    assert ", filtered out late=345, " in as_line(status)
    lines = [line.split() for line in drawn(status).splitlines()]
    assert ["late", "12,000", "345"] in lines
    assert ["odd", "-", "-"] in lines
    assert status.as_json()["filters"][2] == {"name": "odd", "rows": None, "filtered": None}


def test_a_line_before_the_first_epoch_says_that_it_is_awaited():
    assert as_line(Status("trips")) == "trips starting: waiting for the first epoch"
    line = as_line(Status("trips", state="running", sources=RUNNING.sources, retries=3))
    assert line == "trips running: waiting for the first epoch, lag rides=2, rejects 4, retries 3"


def test_a_run_that_ended_without_an_epoch_does_not_name_one():
    status = Status("trips", state="stopped", started_at_us=0)
    assert as_last_line(status, 1_000_000) == "trips stopped before the first epoch: 0 rows in 1.0 s (0/s)"


def test_the_last_line_counts_the_whole_run():
    status = Status("trips", state="failed", epoch=9, rows_total=100, retries=10, started_at_us=1_000_000)
    assert as_last_line(status, 3_000_000) == "trips failed at epoch 9: 100 rows in 2.0 s (50/s), retries 10"


def test_the_display_shows_each_source_each_sink_and_where_the_time_went():
    text = drawn(RUNNING)
    for word in ("generation 3", "epoch 41", "12,345 rows", "retries 1", "log=7", "trips_table", "archive"):
        assert word in text
    assert "staged: Parquet files" in text
    assert "carried" in text
    assert "last epoch: 100 rows carried, 82 ms (plan 2, evaluate 40, publish 39)" in text


WAIT = Wait({"k": "a"}, "lidar", 1_700_000_000_000_000)
STATEFUL = Status(
    "trips",
    state="running",
    epoch=7,
    operators=(
        OperatorStatus("sums", "aggregate", 1_200, 34_000, late=2),
        OperatorStatus(
            "aligned",
            "sync",
            30,
            900,
            waiting_rows=12,
            late=1,
            waits=(WAIT,),
        ),
        OperatorStatus("entry", "limit_in_flight", shed=4),
    ),
)


def test_a_line_says_what_waits_what_was_late_and_who_waits_longest_on_whom():
    line = as_line(STATEFUL)
    assert "waiting aligned=12, late sums=2 aligned=1, shed entry=4, " in line
    assert "aligned (k=a) waits on lidar since 2023-11-14T22:13:20Z" in line


def test_a_line_of_a_pipeline_without_state_does_not_speak_of_it():
    assert not {"late", "shed", "waits"} & set(as_line(RUNNING).replace(",", "").split())
    assert "rejects 4, sinks" in as_line(RUNNING)


def test_the_last_line_counts_late_and_shed_rows_and_what_still_waits():
    assert as_last_line(STATEFUL, 1_000_000).endswith(
        ", late sums=2 aligned=1, shed entry=4, still waiting for later rows, and not in the sinks: aligned=12"
    )


def test_the_display_has_a_row_for_each_stateful_operator():
    text = drawn(STATEFUL, 200)
    assert "longest wait" in text
    assert "k=a waits on lidar since 2023-11-14T22:13:20Z, which has sent nothing yet" in text
    assert "34 kB" in text
    assert "longest wait" not in drawn(RUNNING)


@pytest.mark.parametrize("state", ["starting", "running", "stopping", "stopped", "failed"])
def test_every_state_can_be_drawn_even_when_little_is_known(state):
    assert state in drawn(Status("trips", state=state))


def test_an_error_is_drawn_without_its_secrets():
    text = drawn(Status("trips", state="failed", error="no answer from postgresql://app:hunter2@db/x"))
    assert "no answer" in text
    assert "hunter2" not in text


class FakeRun:
    """Answers with one status after the other, the last one for ever, and says when it has been asked often enough."""

    def __init__(self, *statuses, asked=3):
        self.statuses = list(statuses)
        self.count = 0
        self.asked = asked
        self.asked_enough = threading.Event()

    def status(self):
        self.count += 1
        if self.count >= self.asked:
            self.asked_enough.set()
        status = self.statuses[0] if len(self.statuses) == 1 else self.statuses.pop(0)
        if isinstance(status, Exception):
            raise status
        return status


STOPPED = Status("trips", state="stopped", epoch=42, rows_total=10)


def test_without_a_terminal_there_are_plain_lines_and_a_last_one(capsys):
    run = FakeRun(RUNNING, RUNNING, STOPPED)
    with progress_of(run, interval_s=0.001, now_us=lambda: 1_000_000, is_terminal=False):
        assert run.asked_enough.wait(30)
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert lines[0] == as_line(RUNNING)
    assert lines[-1] == "trips stopped at epoch 42: 10 rows in 1.0 s (10/s)"
    assert "\x1b" not in err


def test_a_run_shorter_than_the_interval_still_has_its_last_line(capsys):
    with progress_of(FakeRun(STOPPED), interval_s=3600, now_us=lambda: 1_000_000, is_terminal=False):
        pass
    assert capsys.readouterr().err == "trips stopped at epoch 42: 10 rows in 1.0 s (10/s)\n"


def test_json_lines_go_to_stdout_and_are_complete(capsys):
    run = FakeRun(RUNNING, RUNNING, STOPPED)
    with progress_of(run, interval_s=0.001, now_us=lambda: 0, as_json=True, is_terminal=True):
        assert run.asked_enough.wait(30)
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out.splitlines()[0]) == RUNNING.as_json()
    assert json.loads(out.splitlines()[-1]) == STOPPED.as_json()


def test_a_status_that_cannot_be_had_leaves_the_last_one_in_place(capsys):
    run = FakeRun(RUNNING, RuntimeError("the gateway is gone"))
    with progress_of(run, interval_s=0.001, now_us=lambda: 1, is_terminal=False):
        assert run.asked_enough.wait(30)
    assert as_line(RUNNING) in capsys.readouterr().err


@pytest.mark.slow
def test_on_a_terminal_the_display_is_drawn_and_logs_keep_out_of_it(capsys):
    run = FakeRun(RUNNING, RUNNING, STOPPED)
    with progress_of(run, interval_s=1, now_us=lambda: 1_000_000, is_terminal=True):
        assert run.asked_enough.wait(30)
    assert "trips stopped at epoch 42" in capsys.readouterr().err


class ClosedPipe(io.StringIO):
    def write(self, text):
        raise BrokenPipeError


@pytest.mark.parametrize(("as_json", "is_terminal"), [(False, False), (True, False), (False, True)])
def test_a_closed_pipe_stops_the_display_and_not_the_run(monkeypatch, as_json, is_terminal):
    monkeypatch.setattr(sys, "stdout" if as_json else "stderr", ClosedPipe())
    run = FakeRun(RUNNING, asked=1)
    with progress_of(run, interval_s=0.001, now_us=lambda: 0, as_json=as_json, is_terminal=is_terminal):
        assert run.asked_enough.wait(30)


def test_a_run_that_fails_has_a_last_line_too(capsys):
    run = FakeRun(Status("trips", state="failed", epoch=3))
    with (
        pytest.raises(RuntimeError, match="the run failed"),
        progress_of(run, interval_s=3600, now_us=lambda: 1_000_000, is_terminal=False),
    ):
        raise RuntimeError("the run failed")
    assert capsys.readouterr().err == "trips failed at epoch 3: 0 rows in 1.0 s (0/s)\n"


def test_a_sink_with_a_pace_shows_it_and_what_waits():
    slow = SinkStatus("slow", "sqlite", "exactly-once", epoch=3, rows=7, last_choice="carried", pace="30 s")
    assert "carried, every 30 s" in drawn(replace(RUNNING, sinks=(slow,)))
    slow = replace(slow, waiting_epochs=12, waiting_rows=3_400, waiting_since_us=5)
    assert "carried, every 30 s, 12 epochs, 3,400 rows wait" in drawn(replace(RUNNING, sinks=(slow,)))


def test_a_line_that_says_nothing_new_is_left_out_for_a_minute(capsys):
    news = progress._News()
    for line in ["a", *["b"] * 14, "a"]:
        news.write(line)
    assert capsys.readouterr().err == "a\nb\nb\na\n"


def test_terminal_and_line_name_the_busiest_nodes_and_what_limits_the_run() -> None:
    nodes = (NodeTime("rides", 12.0, share=0.04), NodeTime("up"), NodeTime("hourly", 0.0, 240.0, 0.0, 0.61))
    use = TimeUse(1, 400.0, {}, nodes, 0.0, "publish to hourly, 61 % of the epoch")
    status = Status("trips", state="running", epoch=3, time=use)
    assert "limited by: publish to hourly, 61 % of the epoch" in as_line(status)
    assert [text for _, text in footlines(status)] == [
        "busiest: hourly 61 % (publish 240 ms), rides 4 % (evaluate 12 ms)",
        "limited by: publish to hourly, 61 % of the epoch",
    ]
