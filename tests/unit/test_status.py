"""Status values: frozen, complete as JSON, lag counted per segment."""

import dataclasses
import json

import pytest

from holdfast.positions import lag_between
from holdfast.status import OperatorStatus, SinkStatus, SourceStatus, Status, Wait
from holdfast.store import records
from holdfast.time_use import EpochStatus

SEEN = OperatorStatus(
    "seen",
    "merge",
    5,
    900,
    waiting_rows=2,
    late=1,
    counts={"forgotten": 3},
    waits=(Wait({"k": "a"}, "weather", 7, 4, 2),),
)

FULL = Status(
    pipeline="trips",
    generation=2,
    state="running",
    epoch=41,
    rows_total=1_000,
    rows_per_s=250.5,
    sources=(SourceStatus("rides", {"log": 3}, {"log": 5}, 2, rows=900, rejects=1),),
    sinks=(SinkStatus("trips_table", "sqlite", "exactly-once", "Arrow files", 41, 1_000, "carried"),),
    retries=1,
    queue=0,
    started_at_us=1_700_000_000_000_000,
    last_epoch=EpochStatus(41, 10, 2_048, {"plan": 1.5, "publish": 4.0}, carried=True),
    operators=(SEEN,),
)


def test_a_status_is_complete_as_json_and_survives_the_round_trip():
    answer = json.loads(json.dumps(FULL.as_json()))
    assert answer == FULL.as_json()
    assert set(answer) == {f.name for f in dataclasses.fields(Status)} - {"totals"}
    assert answer["sources"][0]["positions"] == {"log": 3}
    assert answer["sinks"][0]["guarantee"] == "exactly-once"
    assert answer["last_epoch"]["duration_ms"] == {"plan": 1.5, "publish": 4.0}
    assert answer["error"] is None
    assert answer["operators"][0]["waits"] == [
        {"key": {"k": "a"}, "input": "weather", "since_us": 7, "bound": 4, "waiting_rows": 2, "is_time": False}
    ]


def test_a_status_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        FULL.epoch = 42


def test_only_stopped_and_failed_are_ends():
    ends = {s: Status("p", state=s).is_final for s in ("starting", "running", "stopping", "stopped", "failed")}
    assert ends == {"starting": False, "running": False, "stopping": False, "stopped": True, "failed": True}


@pytest.mark.parametrize(
    ("positions", "newest", "lag"),
    [
        ({"log": 3}, {"log": 10}, 7),
        ({"a": 3, "b": 1}, {"a": 4, "b": 4}, 4),
        ({}, {"log": 4}, 4),
        ({"log": 5}, {"log": 4}, 0),
        ({"log": 5}, None, None),
        ({"": '{"0":1}'}, {"": '{"0":1}'}, 0),
        ({"": '{"0":1}'}, {"": '{"0":2}'}, None),
    ],
)
def test_lag_counts_positions_over_all_segments_and_says_when_it_cannot_know(positions, newest, lag):
    assert lag_between(positions, newest) == lag


def test_the_milliseconds_of_an_epoch_add_up():
    assert FULL.last_epoch.total_ms == 5.5


def test_what_a_later_version_added_to_an_operators_status_is_left_out():
    told = json.loads(json.dumps(SEEN.as_json()))
    told["mood"], told["waits"][0]["mood"] = "calm", "calm"
    assert records.read(OperatorStatus, told) == SEEN
