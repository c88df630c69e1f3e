"""Whether state after the loss of Spark's directory is what it was, or the start is refused (design/0018)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.checkpoint import progress
from holdfast.checkpoint.manifest import EpochEnd, StateSchema
from holdfast.checkpoint.progress import EpochSpan
from holdfast.errors import Diverged
from holdfast.plan.lookups.versions import VersionRecord
from holdfast.ports import Held
from holdfast.positions import Positions
from holdfast.resume.decide import Spark
from holdfast.spark.resume.beginning import Beginning, beginning_of
from holdfast.spark.resume.directory import Directory
from holdfast.spark.resume.found import look
from holdfast.spark.resume.sought import prepare
from holdfast.store import checked_json
from holdfast.store.local import LocalStore
from tests.unit.checkpoint.snapshots import KEEPS, snapshot

PRICES = pa.table({"id": [1], "price": [5]})
SNAPSHOT, HELD = 3, 9


def at(position: int) -> Positions:
    return {"given": {"log": position}}


def steps(first: int, last: int) -> list[EpochSpan]:
    return [EpochSpan(at(number - 1), EpochEnd(number, number, at(number), 0)) for number in range(first, last + 1)]


def graph(kind: str) -> hf.Pipeline:
    given = hf.read.rows([[{"id": 1}]] * HELD, schema="id BIGINT", name="given")
    if kind == "timed":
        step: Any = hf.apply(fired, by="id", state="n BIGINT", timers="batch", schema="id BIGINT", name="counted")
    else:
        given = hf.lookup(given, PRICES, on="id", name="priced") if kind == "priced" else given
        step = hf.accumulate(by="id", n=hf.count(), name="counted")
    return hf.Pipeline("counts", given | step | hf.write.memory("table"))


def fired(key: int, rows: list[dict[str, int]], state: Any) -> list[dict[str, int]]:
    return []


def lost(work: Path, kind: str, *, recorded: range, versions: range) -> Beginning:
    """Return a checkpoint without Spark's directory, with a snapshot and some records."""
    store = LocalStore(str(work))
    store.prepare()
    snapshot(store, SNAPSHOT)
    progress.add(store, steps(recorded[0], recorded[-1]) if recorded else [], 1)
    for epoch in versions:
        record = VersionRecord(1, epoch, "of some bytes")
        store.put(record.key("priced"), checked_json.dump({"version": record.version}))
    pipeline = graph(kind)
    schemas: dict[str, StateSchema] = {"counted": KEEPS}
    return beginning_of(pipeline, store, work, Directory("spark/1", Spark.NONE), schemas)


def held(told: range) -> dict[str, Held]:
    return {"table": Held(HELD, 1, at(HELD), recent_ends=progress.to_text(steps(told[0], told[-1])))}


@pytest.mark.parametrize("kind", ["priced", "timed", "plain"])
def test_what_records_tell_and_what_the_sink_tells_is_all_that_state_depends_on(tmp_path: Path, kind: str) -> None:
    beginning = lost(tmp_path, kind, recorded=range(4, 7), versions=range(2, 3))
    findings = look(beginning, held(range(7, HELD + 1)))
    assert findings.case.letter == "F"
    assert findings.anew.snapshot is not None
    assert [each.epoch for each in findings.anew.snapshot.replayed] == list(range(4, HELD + 1))


@pytest.mark.parametrize(
    ("kind", "recorded", "versions"),
    [
        pytest.param("priced", range(0), range(2, 3), id="no-records"),
        pytest.param("priced", range(4, 7), range(0), id="no-versions"),
        pytest.param("priced", range(4, 7), range(5, 7), id="the-first-version-is-gone"),
        pytest.param("timed", range(4, 6), range(0), id="a-gap"),
    ],
)
def test_where_what_epochs_decided_is_lost_the_start_is_refused_and_names_the_operator(
    tmp_path: Path, kind: str, recorded: range, versions: range
) -> None:
    """It went on with one version of the table, and one time, for all epochs: exit code 0, and other totals."""
    beginning = lost(tmp_path, kind, recorded=recorded, versions=versions)
    findings = look(beginning, held(range(7, HELD + 1)))
    assert findings.case.letter == "S"
    with pytest.raises(Diverged, match="state cannot be what it was") as refused:
        prepare(beginning, findings, HELD)
    assert "The state of counted depends on" in refused.value.why


def test_an_operator_that_does_not_depend_on_how_epochs_were_cut_goes_on(tmp_path: Path) -> None:
    beginning = lost(tmp_path, "plain", recorded=range(0), versions=range(0))
    findings = look(beginning, held(range(7, HELD + 1)))
    assert findings.case.letter == "F"
    assert findings.anew.snapshot is not None
    assert findings.anew.snapshot.joined_count == 1
