"""What the plan promises itself: where it does not hold, the epoch stops before anything of it is decided."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.checkpoint.manifest import BucketState, StateSchema, TableFile
from holdfast.errors import InternalError
from holdfast.plan import chunks as plan_chunks
from holdfast.plan.bounds import all_keys
from holdfast.plan.chunks import ROWS, Chunk, ChunkTarget, Packer, Routing, divided, in_order, rank_of
from holdfast.plan.counts import Counts, EpochReport, Observed, united
from holdfast.plan.derived_part import stages_without_spark
from holdfast.plan.levels import seed
from holdfast.plan.levels.arrivals import FeedBounds
from holdfast.plan.levels.journal import BucketChange, StateJournal
from holdfast.plan.levels.level import EpochContext, Level, WorkerMemory
from holdfast.plan.levels.store import Record, StatePart, advance, load
from holdfast.plan.pressure import BackPressure, Limited
from holdfast.plan.program import Pass
from holdfast.plan.program_build import Builder, as_it_is
from holdfast.plan.report import OperatorReports
from holdfast.plan.stages import require_one_way
from holdfast.state import tables
from holdfast.state.bucket_report import BucketReport, Pressure
from holdfast.state.step import StateTable
from holdfast.testing import SimulatedClock, SimulatedStore

KEY = pa.schema([("k", pa.string())])
ROW = pa.schema([("k", pa.string()), ("t", pa.int64())])
TARGET = ChunkTarget(0, 1, "counts", "rows", ROW, KEY)
ROUTING = Routing((TARGET,), buckets=2, partitions=2)
ANY: Any = None


def chunk(seq: int, bucket: int = 0) -> Chunk:
    return Chunk(0, bucket, ROWS, rank_of(0, 0, 0), seq, "", b"")


def stages() -> Any:
    source = hf.read.rows([], schema="k STRING, t BIGINT", timestamp="t", name="in")
    counted = source | hf.aggregate(by="k", window=hf.tumbling(10), n=hf.count(), name="counts")
    pipeline = hf.Pipeline("p", counted | hf.write.console(name="out"))
    return stages_without_spark(pipeline, as_it_is, "test", is_columnar=True)


def test_two_chunks_with_one_place_would_have_no_order() -> None:
    assert [one.seq for one in in_order([chunk(2), chunk(1)])] == [1, 2]
    with pytest.raises(InternalError, match="two chunks of an epoch have one place"):
        in_order([chunk(1), chunk(2), chunk(1)])


def test_a_key_belongs_to_one_of_the_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pa.table({"k": ["a", "b"], "t": [1, 2]}, schema=ROW)
    monkeypatch.setattr(plan_chunks, "bucket_of", lambda rows, key, buckets: np.array([0, 5]))
    with pytest.raises(InternalError, match="belongs to bucket 5, and there are 2"):
        list(divided(rows, KEY, 2))
    monkeypatch.setattr(seed, "bucket_of", lambda rows, key, buckets: np.array([0, 5]))
    table = StateTable(ROW, ("k",))
    state = seed.StateDivision("counts", StateSchema("aggregate", "{}", KEY, {"all": table}), {})
    with pytest.raises(InternalError, match=r"1 rows of state table 'all' .* are in none of 2 buckets"):
        list(state.divided({"all": rows}, 2))


def test_a_level_takes_only_what_is_addressed_to_the_bucket() -> None:
    level = Level(1, stages().stages[1], ROUTING, "test")
    key = ROUTING.address(chunk(1, bucket=0), 1)
    with pytest.raises(InternalError, match=r"(?s)of another bucket than \('counts', .*Addressed to: \[\('counts'"):
        list(level.run(key, [chunk(1, bucket=0), chunk(2, bucket=1)], ANY, EpochContext(7, 0), WorkerMemory()))


def test_a_bound_comes_from_a_feed_of_its_input() -> None:
    feeds = FeedBounds(stages().stages[1].hosted["counts"], {}, 1)
    (name,) = stages().stages[1].hosted["counts"].step.inputs
    assert feeds.raise_bound(name, "in", 7) == 7
    with pytest.raises(InternalError, match="got a bound of 'elsewhere', which is no feed of it"):
        feeds.raise_bound(name, "elsewhere", 7)


def test_versions_of_a_bucket_ascend_and_its_parts_lead_to_its_record() -> None:
    known = Record(version=5, token="x", recent=((5, "x"),))
    for version in (4, 5):
        with pytest.raises(InternalError, match=f"epoch {version} is to change a bucket that epoch 5 has changed"):
            advance(ANY, known, {}, {}, {}, version)

    step = stages().stages[1].hosted["counts"].step
    stored = tables.encode(tables.empty_state(step))
    cells: Any = SimpleNamespace(piece=lambda part, number: stored)
    part = StatePart(0, 4, len(stored), 1, is_base=True)
    assert load(cells, replace(known, version=4, parts=(part,)), step, None).keys() == step.tables.keys()
    with pytest.raises(InternalError, match="lead to version 4, and its record says 5"):
        load(cells, replace(known, parts=(part,)), step, None)


def test_a_bucket_changes_once_in_an_epoch() -> None:
    change = BucketChange(("counts", 0), "{}", {})
    journal = StateJournal(SimulatedStore(), "spark/1", 7)
    with pytest.raises(InternalError, match="bucket 0 of 'counts' has changed twice in one epoch"):
        journal.write(0, [change, change])


def test_a_seed_with_rows_has_a_version() -> None:
    of = BucketState(0, "x", {}, {"all": TableFile("a", "b", 1, 1)})
    seeds: Any = SimpleNamespace(bucket=lambda operator, number: of)
    with pytest.raises(InternalError, match="the seed of bucket 3 of operator 'counts' has rows under version 0"):
        seed.adopted(ANY, seeds, "counts", 3, ANY)


def test_a_plan_is_one_line_of_levels() -> None:
    made = stages()
    targets = made.routing.targets
    require_one_way(made.stages, targets)
    with pytest.raises(InternalError, match=r"stage 0 of a plan sends to \[\('counts', 0\)\]"):
        require_one_way(made.stages, [replace(targets[0], level=0), *targets[1:]])
    with pytest.raises(InternalError, match="the targets of a plan are numbered"):
        require_one_way(made.stages, targets[::-1])


def test_a_step_of_a_program_takes_rows_of_earlier_ones() -> None:
    with pytest.raises(InternalError, match=r"step 0 of a program takes the rows of \[0\]"):
        Builder(as_it_is, "test")._step(Pass(), (0,), ROW)


def test_a_bucket_reports_once_and_belongs_to_an_operator() -> None:
    one = EpochReport({}, {"counts/0": BucketReport()})
    with pytest.raises(InternalError, match=r"\['counts/0'\] have reported twice"):
        united([one, one])
    reports = OperatorReports({"counts": "aggregate"}, SimulatedStore(), SimulatedClock(), 1)
    with pytest.raises(InternalError, match=r"\['sums/0'\] report, and are no buckets of stateful operators"):
        reports.note(1, {"sums/0": BucketReport()})


def test_no_more_rows_are_dropped_than_there_were() -> None:
    counts = Counts({})
    counts.passed("late", 3, 3, 4, drops=True)
    assert counts.found["late"] == Observed(3, -1)
    with pytest.raises(InternalError, match="more rows are rejected or dropped than there were"):
        counts.report()


def test_no_source_is_held_that_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = {"x": frozenset({"fast"}), "y": frozenset({"slow"})}
    pressure = BackPressure({"both": Limited(1, sources)}, str(tmp_path / "held"), is_bounded=False)
    monkeypatch.setattr(pressure, "_wanted", lambda: (frozenset({"slow"}), frozenset({"slow"})))
    with pytest.raises(InternalError, match=r"is to hold \['slow'\], which an operator waits for"):
        pressure.note({"both/0": BucketReport(pressure=Pressure(1, ("x",), ("y",)))}, (), 0)


def test_what_a_packer_makes_has_places_of_its_own() -> None:
    packer = Packer(ROUTING, rank_of(0, 0, 0), 0)
    made = [*packer.add(0, pa.record_batch([["a", "b"], [1, 2]], schema=ROW)), *packer.rows()]
    bounds = [packer.bounds(0, bucket, "in", all_keys(KEY, 3)) for bucket in range(2)]
    assert len(in_order([*bounds, *made])) == len(made) + 2
