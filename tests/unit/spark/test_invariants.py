"""What a run on Spark promises itself: batches are consecutive, and each part, branch and bucket counts once."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import InternalError
from holdfast.operators.lowering import InSpark
from holdfast.plan.levels.store import Record
from holdfast.spark.compile import _WideCompiler
from holdfast.spark.compile_steps import CompileStep
from holdfast.spark.epoch_loop import EpochLoop
from holdfast.spark.quarantine.probe import Probe
from holdfast.spark.staging import answered
from holdfast.spark.state import host
from holdfast.spark.state.reader import StateReader
from holdfast.starts import act
from holdfast.starts.table import StartWay


def test_batches_are_consecutive_and_only_a_restarted_query_repeats_one() -> None:
    loop: Any = SimpleNamespace(
        _batch_id=None, _is_repeating=False, _pipeline="p", _coordinator=SimpleNamespace(generation=3)
    )
    for batch_id in (7, 8):
        EpochLoop._check_consecutive(loop, batch_id, batch_id + 1)
    for wrong in (8, 10):
        loop._batch_id = 8
        with pytest.raises(InternalError, match=f"Spark's batch {wrong} follows batch 8"):
            EpochLoop._check_consecutive(loop, wrong, wrong + 1)
    loop._batch_id, loop._is_repeating = 8, True
    EpochLoop._check_consecutive(loop, 8, 9)


def answer(sink: str, name: str) -> dict[str, Any]:
    return {"sink": sink, "name": name, "row_count": 1, "reference": "{}", "report": None}


def test_a_part_has_one_handle_and_is_for_a_sink_that_lacks_the_epoch() -> None:
    with pytest.raises(InternalError, match=r"(?s)the same part for sink 'table' twice.*Parts: \['a', 'a'\]"):
        answered([answer("table", "a"), answer("table", "a")], ["table"])
    with pytest.raises(InternalError, match="staged rows for 'files', which is not to get any"):
        answered([answer("files", "a")], ["table"])


def test_a_probe_names_only_rows_that_it_was_given() -> None:
    rows = pa.Table.from_pylist([{"number": 9, "kind": "BadRow", "what": "x", "why": ""}])
    job = SimpleNamespace(mapInArrow=lambda task, schema: SimpleNamespace(toArrow=lambda: rows))
    session: Any = SimpleNamespace(range=lambda *arguments: job)
    program: Any = None
    part: Any = SimpleNamespace(low=3)
    with pytest.raises(InternalError, match=r"a probe of the rows 3 to 8 names \[9\]"):
        Probe(session, program, {}, 1, None).rows([(part, 9)], 10)


def test_a_branch_is_taken_once() -> None:
    nothing: Any = SimpleNamespace(kind="union", name="both", origin="here.py:1")
    step = CompileStep(InSpark.UNION, (), nothing, 0)
    parent = SimpleNamespace(_consumers={step: [0, 0]})
    wide: Any = SimpleNamespace(_parent=parent, _taken={}, _branch={(step, 0): 10, (step, 1): 11})
    assert [_WideCompiler._input_tag(wide, step, 0) for _ in range(2)] == [10, 11]
    with pytest.raises(InternalError, match=r"'both'.* has 2 branches to a consumer, and 3 are taken"):
        _WideCompiler._input_tag(wide, step, 0)


def test_a_bucket_of_the_store_has_one_label(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = {("counts", label): Record(version=1, token="x") for label in (0, 2)}
    monkeypatch.setattr(StateReader, "_view", lambda self, batch_id: nullcontext(tmp_path))
    monkeypatch.setattr(StateReader, "_records", lambda self, view, batch_id, schemas: records)
    monkeypatch.setattr(StateReader, "_written", lambda *arguments: [("counts", 0, None)])
    nothing: Any = None
    with pytest.raises(InternalError, match="2 buckets have records in Spark's store, and 1 were read"):
        StateReader(nothing, tmp_path, "spark/1").read(nothing, 0, {}, 2)


def test_a_task_knows_its_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {host.BATCH_TIME_PROPERTY: "7"}
    monkeypatch.setattr(
        "holdfast.spark.state.host.TaskContext.get", lambda: SimpleNamespace(getLocalProperty=given.get)
    )
    with pytest.raises(InternalError, match="does not say of which epoch"):
        host._context()
    given |= {host.EPOCH_PROPERTY: "3", host.BATCH_PROPERTY: "2", host.STATE_PROPERTY: host.NO_ENTRY}
    at, batch_id, entry = host._context()
    assert (at.epoch, batch_id, entry) == (3, 2, "")


def test_a_case_of_the_table_of_starts_has_what_it_needs() -> None:
    inputs: Any = SimpleNamespace(pipeline=SimpleNamespace(name="p"))
    case: Any = SimpleNamespace(letter="M", way=StartWay.MOVE)
    facts: Any = SimpleNamespace(inputs=inputs, case=case)
    decision: Any = SimpleNamespace(facts=facts, case=case, seed=None)
    header: Any = None
    with pytest.raises(InternalError, match="case M of the table of starts has no beginning"):
        act._seed(decision, header, lambda: None, None)
