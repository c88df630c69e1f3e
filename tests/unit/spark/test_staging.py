"""What tasks answer: handles for the sinks that took part, and reports, which are nobody's handles."""

from __future__ import annotations

import pyarrow as pa
import pytest

from holdfast.plan.counts import EpochReport, Observed
from holdfast.ports import Staged
from holdfast.spark.staging import ANSWERS, _to_batch, answer_of, answered
from holdfast.state.bucket_report import BucketReport, KeptVersion

HANDLE = Staged("trips/1/2/0/0", 3, {"path": "a/b"})
OTHER = Staged("trips/1/2/1/1", 2, {"path": "a/c"})


def collected(*batches: pa.RecordBatch) -> list[dict[str, object]]:
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("batch", [_to_batch([]), _to_batch([("table", HANDLE)]), answer_of(EpochReport())])
def test_every_answer_has_the_schema_that_spark_was_told(batch: pa.RecordBatch) -> None:
    assert batch.schema.names == ANSWERS.names


def test_handles_and_reports_come_apart_again() -> None:
    said = {at: BucketReport({"late": at}, state_rows=at, due_us=at, kept=KeptVersion(at, "d")) for at in (5, 7)}
    reports = [EpochReport({"in": Observed(2, 1, at)}, {f"sums/{at}": of}) for at, of in said.items()]
    rows = collected(_to_batch([("table", HANDLE)]), *map(answer_of, reports), _to_batch([("table", OTHER)]))
    parts, report = answered(rows, ["table", "files"])
    assert parts == {"table": (HANDLE, OTHER), "files": ()}
    assert report == EpochReport({"in": Observed(4, 2, 7)}, {"sums/5": said[5], "sums/7": said[7]})


def test_a_sink_may_have_any_name() -> None:
    """Counts came as handles of a sink without a name once."""
    parts, report = answered(collected(_to_batch([("", HANDLE)])), [""])
    assert (parts, report) == ({"": (HANDLE,)}, EpochReport())
