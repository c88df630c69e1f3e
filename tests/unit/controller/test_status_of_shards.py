"""The status of all shards in one: what is counted is added up, and nothing is that of the first alone."""

from __future__ import annotations

from holdfast.controller.status import status_of_all
from holdfast.health import CallStatus, ExpectationStatus
from holdfast.status import OperatorStatus, ShardStatus, SinkStatus, SourceStatus, Status


def of_shard(number: int) -> Status:
    return Status(
        "trips",
        state="running",
        sources=(
            SourceStatus(
                "rides",
                {f"{number}": 5},
                {f"{number}": 7},
                2,
                5,
                number + 1,
                {"rejects": {"no JSON": number, f"of {number}": 1}},
                is_paused=True,
                limit_rows_per_s=50.0,
            ),
        ),
        operators=(
            OperatorStatus("sums", "aggregate", 10, late=number, reasons={"late": {"below its bound": number}}),
        ),
        sinks=(SinkStatus("table", "sqlite", "exactly-once", rows=7, stale_s=10.0 * number),),
        calls=(CallStatus("judged", 10 + number),),
        expectations=(
            ExpectationStatus(
                "valid", "v > 0", "warn", 0.1, 10, number, 100, 5 * number, 4, number, is_broken=number > 0
            ),
        ),
    )


def test_what_is_counted_is_added_up_and_what_is_worst_is_told() -> None:
    shards = [ShardStatus(number, "running") for number in range(3)]
    whole = status_of_all("trips", "running", shards, [of_shard(number) for number in range(3)], started_at_us=1)
    (rides,), (sums,), (table,), (valid,) = whole.sources, whole.operators, whole.sinks, whole.expectations
    assert (rides.lag, rides.rows, rides.rejects) == (6, 15, 6)
    assert rides.reasons == {"rejects": {"no JSON": 3, "of 0": 1, "of 1": 1, "of 2": 1}}
    assert (rides.is_paused, rides.limit_rows_per_s) == (True, 150.0), "each shard has its share of the rate"
    assert (sums.state_rows, sums.late, sums.reasons) == (30, 3, {"late": {"below its bound": 3}})
    assert (table.rows, table.stale_s) == (21, 20.0)
    assert (valid.rows, valid.failed, valid.rows_total, valid.failed_total) == (30, 3, 300, 15)
    assert [call.calls for call in whole.calls] == [12], "of one file, which has the costs of all"
    assert (valid.last_rows, valid.last_failed, valid.is_broken) == (8, 3, True), "of the shards where it is broken"


def test_what_no_shard_has_is_not_there() -> None:
    whole = status_of_all(
        "trips", "starting", [ShardStatus(0)], [Status("trips", sources=(SourceStatus("rides"),))], started_at_us=1
    )
    (rides,) = whole.sources
    assert (rides.limit_rows_per_s, rides.reasons, rides.lag_s) == (None, {}, None)
