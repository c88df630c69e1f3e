"""aggregate over every kind of column, driven through graphs as users write them."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

import holdfast as hf
from holdfast.errors import BadRow, InvalidPipeline
from holdfast.operators.aggregate import aggregates, window
from holdfast.operators.aggregate.accumulate import accumulate
from holdfast.operators.aggregate.spec import aggregate, reduce
from holdfast.state.tables import decode
from holdfast.testing.drive import Drive, drive
from holdfast.testing.given import bound, close

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(minutes):
    return NOON + timedelta(minutes=minutes)


def source(schema, timestamp="t", name="s"):
    return hf.read.rows([], schema=schema, timestamp=timestamp, name=name)


@pytest.mark.slow
def test_windows_of_a_timestamp_column_have_timestamps_and_durations_with_units():
    stream = source("k STRING, t TIMESTAMP, v INT") | aggregate(
        by="k", window=window.tumbling("1 hour", offset="30 min"), disorder="10 min", n=aggregates.count()
    )
    rows = [{"k": "a", "t": at(minutes), "v": 1} for minutes in (0, 29, 31, 25, 20, 95)]
    driven = Drive(stream, {"s": [rows, [close()]]})
    first, last = (table.to_pylist() for table in driven.tables())
    # the row at 20 is below 31 less 10; the window up to 12:30 is final once a row at 95 has come
    assert first == [{"k": "a", "window_start": at(-30), "window_end": at(30), "n": 3}]
    assert last == [
        {"k": "a", "window_start": at(30), "window_end": at(90), "n": 1},
        {"k": "a", "window_start": at(90), "window_end": at(150), "n": 1},
    ]


def test_a_late_row_of_a_timestamp_column_says_both_times():
    stream = source("k STRING, t TIMESTAMP") | aggregate(by="k", window=window.tumbling("1 h"), n=aggregates.count())
    driven = Drive(stream.late, {"s": [[{"k": "a", "t": at(5)}, {"k": "a", "t": at(4)}]]})
    (late,) = driven.tables()[0].to_pylist()
    assert late["timestamp"] == at(4)
    assert "2026-01-01 12:04:00" in late["reason"]
    assert "below the bound 2026-01-01 12:05:00" in late["reason"]
    assert driven.counts[stream.node.name, "late"] == 1


def test_decimals_are_added_exactly_and_what_does_not_fit_is_an_error():
    schema = "k STRING, t BIGINT, d DECIMAL(38, 2)"
    computed: dict[str, Any] = {"s": aggregates.sum("d"), "m": aggregates.mean("d"), "most": aggregates.max("d")}
    stream = source(schema) | aggregate(by="k", window=window.tumbling(10), **computed)
    large = Decimal("9" * 36 + ".99")
    rows = [{"k": "a", "t": 1, "d": d} for d in (large, Decimal("0.01"), None, large.copy_negate())]
    ((row,),) = drive(stream, {"s": [[*rows, close()]]})
    assert (row["s"], row["most"]) == (Decimal("0.01"), large)
    assert row["m"] == pytest.approx(0.01 / 3)
    with pytest.raises(BadRow, match=r"'s' of a window does not fit in decimal128"):
        drive(stream, {"s": [[rows[0], rows[0], close()]]})


def test_keys_of_several_columns_are_told_apart_and_ordered_by_all_of_them():
    schema = "k STRING, day DATE, n INT, t BIGINT"
    stream = source(schema) | aggregate(by=["k", "day", "n"], window=window.tumbling(10), rows=aggregates.count())
    days = [datetime(2026, 1, day).date() for day in (1, 2)]
    keys = [(k, day, n) for k in ("b", "a", "") for day in days[::-1] for n in (2, -1)]
    rows = [dict(zip(("k", "day", "n", "t"), (*key, 5), strict=True)) for key in keys]
    found = drive(stream, {"s": [rows, [*rows[::-1], close()]]})
    assert [tuple(row.values()) for row in found[1]] == [(*key, 0, 10, 2) for key in sorted(keys)]


@pytest.mark.slow
def test_a_key_that_looks_like_another_in_its_last_eight_bytes_is_another():
    stream = source("k STRING, t BIGINT") | reduce(by="k", n=aggregates.count())
    rows = [{"k": f"{number:04d}-00000000", "t": 0} for number in range(9000)]
    found = drive(stream, {"s": [rows, [rows[17], rows[8999]]]})
    assert [(row["k"], row["n"]) for row in found[1]] == [("0017-00000000", 2), ("8999-00000000", 2)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["collect", "distinct_count"])
def test_values_that_are_kept_leave_with_the_window_of_an_idle_key(kind):
    computed: dict[str, Any] = {"all": getattr(aggregates, kind)("v")}
    stream = source("k STRING, t BIGINT, v INT") | aggregate(
        by="k", window=window.tumbling(10), idle_after="2 s", **computed
    )
    rows = [{"k": "a", "t": t, "v": v} for t, v in ((1, 7), (2, 7), (3, 8))]
    driven = Drive(stream, {"s": [rows[:2], rows[2:], [], [], []]})
    found = [table.to_pylist() for table in driven.tables()]
    assert [[row["all"] for row in rows] for rows in found] == [[], [], [], [[7, 7, 8] if kind == "collect" else 2], []]
    (state,) = driven.states[stream.node.name]
    assert decode(state)["all__values"].num_rows == 0


def test_a_bound_for_all_keys_leaves_no_row_of_keys_that_it_has_reached():
    stream = source("k STRING, t BIGINT") | aggregate(by="k", window=window.tumbling(10), n=aggregates.count())
    rows = [{"k": f"k{number}", "t": 3} for number in range(50)]
    driven = Drive(stream, {"s": [rows, [bound(20), {"k": "k1", "t": 25}], [bound(30)]]})
    assert [table.num_rows for table in driven.tables()] == [0, 50, 1]
    state = decode(driven.states[stream.node.name][0])
    assert {name: table.num_rows for name, table in state.items()} == {"windows": 0, "keys": 1}


def test_reduce_gives_the_keys_that_changed():
    stream = source("k STRING, t BIGINT, v BIGINT") | reduce(by="k", total=aggregates.sum("v"))
    epochs = [[{"k": "b", "t": 0, "v": 1}, {"k": "a", "t": 0, "v": 2}], [{"k": "b", "t": 0, "v": 3}], []]
    assert drive(stream, {"s": epochs}) == [
        [{"k": "a", "total": 2}, {"k": "b", "total": 1}],
        [{"k": "b", "total": 4}],
        [],
    ]


def test_a_column_called_as_an_argument_is_no_argument_of_reduce():
    with pytest.raises((InvalidPipeline, TypeError)):
        source("k STRING, t BIGINT") | reduce(by="k", name=aggregates.count())


def test_accumulate_passes_times_and_bounds_on():
    stream = source("k STRING, t BIGINT, v BIGINT") | accumulate(by="k", so_far=aggregates.sum("v"))
    hourly = stream | aggregate(by="k", window=window.tumbling(10), last=aggregates.last("so_far"))
    rows = [{"k": "a", "t": t, "v": 1} for t in (1, 5, 9)]
    assert drive(hourly, {"s": [[*rows, bound(10)]]}) == [[{"k": "a", "window_start": 0, "window_end": 10, "last": 3}]]
