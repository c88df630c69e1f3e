"""The rate source: rows follow from a durable start and nothing else."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast import read
from holdfast.connectors.rate import RateSpec
from holdfast.errors import InvalidPipeline
from tests.contract.source_contract import Hands


def test_row_n_has_the_time_start_plus_n_over_rate(tmp_path: Path) -> None:
    clock = Hands(10_000_000)
    source = RateSpec(3, 4_000_000, clock=clock).open("ticks", str(tmp_path))
    end = source.latest({"rows": 0}, bounded=False)
    assert end == {"rows": 18}
    (span,) = source.spans({"rows": 0}, end, parallelism=2)
    (batch,) = source.read(span)
    assert batch.column("value").to_pylist() == list(range(18))
    first = datetime(1970, 1, 1, 0, 0, 4, tzinfo=UTC)
    assert batch.column("timestamp").to_pylist()[:4] == [
        first + timedelta(microseconds=us) for us in (0, 333_333, 666_666, 1_000_000)
    ]


def test_a_clock_that_goes_back_takes_nothing_back(tmp_path: Path) -> None:
    clock = Hands(10_000_000)
    source = RateSpec(1, 0, clock=clock).open("ticks", str(tmp_path))
    end = source.latest({"rows": 0}, bounded=False)
    clock.now = 5_000_000
    assert source.latest(end, bounded=False) == end


@pytest.mark.parametrize(("rate", "start"), [(2, None), (1, 7)])
def test_what_rows_follow_from_cannot_be_changed(tmp_path: Path, rate: int, start: int | None) -> None:
    RateSpec(1, None, clock=Hands()).open("ticks", str(tmp_path)).latest({"rows": 0}, bounded=False)
    with pytest.raises(InvalidPipeline, match="has begun with 1 rows a second"):
        RateSpec(rate, start, clock=Hands()).open("ticks", str(tmp_path)).latest({"rows": 0}, bounded=False)


def test_large_numbers_keep_their_times(tmp_path: Path) -> None:
    source = RateSpec(7_000_000, 0, clock=Hands()).open("ticks", str(tmp_path))
    first = 7_000_000 * 86_400 * 365 * 50
    (span,) = source.spans({"rows": first}, {"rows": first + 1}, parallelism=1)
    (batch,) = source.read(span)
    assert batch.column("timestamp").to_pylist() == [datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=365 * 50)]


@pytest.mark.parametrize("arguments", [{"rows_per_second": 0}, {"rows_per_second": 1, "start": "noon"}])
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(InvalidPipeline):
        read.rate(**arguments, name="ticks")  # type: ignore[arg-type]


def test_a_start_is_a_time_in_utc() -> None:
    spec = read.rate(1, start="1970-01-01T00:00:01.5", name="ticks").node.spec
    assert isinstance(spec, RateSpec)
    assert spec.start_us == 1_500_000
    assert spec.timestamp == "timestamp"
