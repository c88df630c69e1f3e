"""foreach_batch without an engine: what the function is given, how often, and what a restart repeats."""

from __future__ import annotations

import json
import os
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import holdfast as hf
from holdfast import faults
from holdfast.capabilities import offers
from holdfast.connectors.foreach_batch import ForeachBatchSink, ForeachBatchSpec, foreach_batch
from holdfast.errors import Corrupt, Diverged, Fenced, InternalError, InvalidPipeline
from holdfast.ports import (
    Carried,
    EpochRecord,
    Guarantee,
    Held,
    Idempotent,
    Outcome,
    Part,
    Publication,
    RunIdentity,
    Staged,
    Task,
)

SCHEMA = pa.schema([("id", pa.int64())])
Calls = list[tuple[int, list[int]]]


def _to_dataframe(rows: pa.Table | list[str], schema: pa.Schema) -> list[int]:
    """Stands for Spark: a list of ids is our DataFrame."""
    assert schema == SCHEMA
    table = rows if isinstance(rows, pa.Table) else pa.concat_tables(pq.read_table(path) for path in rows)
    return list(table["id"].to_pylist())


class _Killed(BaseException):
    pass


def _opened(work: Path, fn: Callable[[Any, int], None], generation: int = 1) -> ForeachBatchSink:
    sink = ForeachBatchSpec(fn).connect("out", "numbers", SCHEMA)
    sink.bind(_to_dataframe, os.fspath(work))
    sink.open(RunIdentity("numbers", generation))
    return sink


def _saving(calls: Calls) -> Callable[[Any, int], None]:
    return lambda rows, epoch: calls.append((epoch, sorted(rows)))


def _table(*ids: int) -> pa.Table:
    return pa.table({"id": ids}, schema=SCHEMA)


def _staged(sink: ForeachBatchSink, epoch: int, *ids: int, task: int = 0, generation: int = 1) -> Staged:
    writer = sink.writer_factory()(Task("numbers", generation, epoch, task, 0))
    writer.write(_table(*ids).to_batches()[0])
    return writer.stage()


def _publication(epoch: int, *parts: Part) -> Publication:
    return Publication(EpochRecord("numbers", epoch, 1, {"lines": {"log": epoch}}, epoch), parts)


def _leftovers(work: Path) -> list[str]:
    return [*os.listdir(work / "staging"), *os.listdir(work / "writing")]


def test_it_says_whether_its_function_recognises_rows() -> None:
    for idempotent in (True, False):
        sink = ForeachBatchSpec(lambda rows, epoch: None, idempotent).connect("out", "numbers", SCHEMA)
        assert offers(sink, Idempotent)
        assert sink.is_idempotent is idempotent


def test_the_function_gets_each_epoch_once_carried_or_staged_or_both(tmp_path: Path) -> None:
    calls: Calls = []
    sink = _opened(tmp_path / "work", _saving(calls))
    sink.publish([_publication(1, Carried(_table(1, 2)))], Held())
    sink.publish([_publication(2, _staged(sink, 2, 3), _staged(sink, 2, 4, task=1))], Held())
    sink.publish([_publication(3, _staged(sink, 3, 5), Carried(_table(6)))], Held())
    sink.publish([_publication(4), _publication(5, Carried(_table(7)), Carried(_table(8)))], Held())
    sink.publish([_publication(5, Carried(_table(7)))], Held())
    assert calls == [(1, [1, 2]), (2, [3, 4]), (3, [5, 6]), (4, []), (5, [7, 8])]
    assert _leftovers(tmp_path / "work") == []


def test_a_clean_restart_repeats_nothing(tmp_path: Path) -> None:
    calls: Calls = []
    _opened(tmp_path / "work", _saving(calls)).publish([_publication(1, Carried(_table(1)))], Held())
    again = ForeachBatchSpec(_saving(calls)).connect("out", "numbers", SCHEMA)
    again.bind(_to_dataframe, os.fspath(tmp_path / "work"))
    assert again.open(RunIdentity("numbers", 2)) == Held(1, 1, {"lines": {"log": 1}}, 1)
    assert again.outcome(1) is Outcome.PUBLISHED
    assert again.outcome(2) is Outcome.ABSENT
    again.publish([_publication(1, Carried(_table(1)))], Held())
    assert calls == [(1, [1])]


def test_a_crash_between_the_function_and_the_note_repeats_the_epoch(tmp_path: Path) -> None:
    """At-least-once: this is the gap, and it cannot be closed from here."""
    calls: Calls = []
    sink = _opened(tmp_path / "work", _saving(calls))
    handle = _staged(sink, 1, 1)

    def kill(point: str, epoch: int) -> None:
        raise _Killed

    faults.install(kill)
    try:
        with pytest.raises(_Killed):
            sink.publish([_publication(1, handle)], Held())
    finally:
        faults.install(None)
    again = _opened(tmp_path / "work", _saving(calls), 2)
    assert again.outcome(1) is Outcome.ABSENT
    again.publish([_publication(1, handle)], Held())
    assert calls == [(1, [1]), (1, [1])]
    assert _leftovers(tmp_path / "work") == []


def test_an_error_of_the_function_passes_with_a_note_and_the_epoch_stays_absent(tmp_path: Path) -> None:
    def failing(rows: Any, epoch: int) -> None:
        raise ValueError("no such bucket")

    sink = _opened(tmp_path / "work", failing)
    handle = _staged(sink, 1, 1)
    with pytest.raises(ValueError, match="no such bucket") as caught:
        sink.publish([_publication(1, handle)], Held())
    assert "sink 'out', in epoch 1" in caught.value.__notes__[0]
    assert sink.outcome(1) is Outcome.ABSENT
    assert len(_leftovers(tmp_path / "work")) == 1


def test_a_lower_generation_is_fenced_and_tidies_nothing(tmp_path: Path) -> None:
    calls: Calls = []
    stale = _opened(tmp_path / "work", _saving(calls), 1)
    handle = _staged(stale, 1, 1)
    with pytest.raises(Fenced):
        _opened(tmp_path / "work", _saving(calls), 1)
    owner = _opened(tmp_path / "work", _saving(calls), 2)
    with pytest.raises(Fenced):
        stale.publish([_publication(1, handle)], Held())
    assert stale.sweep(below_epoch=9) == 0
    owner.publish([_publication(1, handle)], Held())
    assert calls == [(1, [1])]


def test_orphans_are_swept_by_name(tmp_path: Path) -> None:
    sink = _opened(tmp_path / "work", _saving([]), 2)
    _staged(sink, 9, 1)
    _staged(sink, 1, 2, generation=2)
    kept = _staged(sink, 2, 3, generation=2)
    assert sink.sweep(below_epoch=2) == 2
    assert len(_leftovers(tmp_path / "work")) == 1
    assert sink.sweep(below_epoch=3) == 1
    assert _leftovers(tmp_path / "work") == []
    with pytest.raises(Diverged, match="are gone"):
        sink.publish([_publication(2, kept)], Held())


def test_a_damaged_note_is_no_answer(tmp_path: Path) -> None:
    _opened(tmp_path / "work", _saving([]))
    (tmp_path / "work" / "held.json").write_text('{"epoch": 1')
    with pytest.raises(Corrupt, match="damaged"):
        _opened(tmp_path / "work", _saving([]), 2)
    (tmp_path / "work" / "held.json").write_text(json.dumps({"epochs": 1}))
    with pytest.raises(Corrupt, match="damaged"):
        _opened(tmp_path / "work", _saving([]), 2)


def test_it_says_at_least_once_and_needs_a_function_and_an_engine() -> None:
    assert foreach_batch(_saving([])).guarantee is Guarantee.AT_LEAST_ONCE
    assert "fn" in foreach_batch(_saving([])).arguments()
    with pytest.raises(InvalidPipeline, match="needs a function"):
        foreach_batch("save")  # type: ignore[arg-type]
    with pytest.raises(InternalError, match="before the engine bound it"):
        ForeachBatchSpec(_saving([])).connect("out", "numbers", SCHEMA).open(RunIdentity("numbers", 1))


# --- row ids ----------------------------------------------------------------------------------------------------------


def test_an_idempotent_function_is_told_by_which_column_rows_are_the_same() -> None:
    rows = hf.read.rows([], schema="id BIGINT", name="in") | hf.row_id(into="uid")
    sink = rows | hf.select("uid as u", "id") | hf.write.foreach_batch(print, idempotent=True, name="out")
    assert sink.arguments()["id"] == "u"
    text = hf.Pipeline("p", sink).explain()
    assert "rows are identified by u" in text
    assert "it can receive rows twice, with the same u each time" in text
    named = rows | hf.write.foreach_batch(print, idempotent=True, id="id", name="out")
    assert named.arguments()["id"] == "id"
    plain = rows | hf.write.foreach_batch(print, name="out")
    assert set(plain.arguments()) == {"fn"}


def test_an_idempotent_function_needs_rows_with_ids() -> None:
    rows = hf.read.rows([], schema="id BIGINT", name="in")
    with pytest.raises(InvalidPipeline, match=r'id="auto", and no column(?s:.*)write hf\.row_id\(\) right behind'):
        rows | hf.write.foreach_batch(print, idempotent=True)
    with pytest.raises(InvalidPipeline, match=r"id='uid' is not a column(?s:.*)columns are id"):
        rows | hf.write.foreach_batch(print, idempotent=True, id="uid")
    with pytest.raises(InvalidPipeline, match=r"id=3 is no column"):
        hf.write.foreach_batch(print, idempotent=True, id=3)  # type: ignore[arg-type]
    with pytest.raises(InvalidPipeline, match=r"id='id', and is not idempotent(?s:.*)idempotent=True"):
        hf.write.foreach_batch(print, id="id")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_a_target_with_a_unique_index_has_each_row_once_though_epochs_come_again_and_end_elsewhere(
    tmp_path: Path, seed: int
) -> None:
    """Killed between the function and the note, again and again; the next run cuts what was not noted otherwise."""
    chance = random.Random(seed)
    (tmp_path / "in").mkdir()
    for number in range(8):
        lines = "".join(f'{{"id": {number * 40 + n}}}\n' for n in range(40))
        (tmp_path / "in" / f"{number}").write_text(lines)
    spec = (hf.read.files(tmp_path / "in", schema="id BIGINT", name="in") | hf.row_id()).node.source_spec
    source = spec.open("in", os.fspath(tmp_path / "source"))
    end = int(source.latest(source.initial(), bounded=False)["log"])
    target = sqlite3.connect(":memory:")
    target.execute("create table t (id bigint, row_id text unique)")
    repeated = 0

    def save(rows: pa.Table, epoch: int) -> None:
        nonlocal repeated
        pairs = list(zip(rows["id"].to_pylist(), rows["row_id"].to_pylist(), strict=True))
        before = target.total_changes
        target.executemany("insert into t values (?, ?) on conflict do nothing", pairs)
        repeated += len(pairs) - (target.total_changes - before)

    def kill(point: str, epoch: int) -> None:
        if chance.random() < 0.4:
            raise _Killed

    at, generation = 0, 0
    while at < end:
        generation += 1
        sink = ForeachBatchSpec(save, idempotent=True).connect("out", "numbers", spec.schema)
        sink.bind(lambda rows, schema: rows, os.fspath(tmp_path / "work"))
        held = sink.open(RunIdentity("numbers", generation))
        at, epoch = int(held.positions.get("in", {}).get("log", 0)), held.epoch
        faults.install(kill)
        try:
            while at < end:
                until, epoch = chance.randint(at + 1, end), epoch + 1
                spans = source.spans({"log": at}, {"log": until}, parallelism=chance.randint(1, 3))
                parts = [Carried(pa.Table.from_batches(source.read(span), spec.schema)) for span in spans]
                record = EpochRecord("numbers", epoch, generation, {"in": {"log": until}})
                sink.publish([Publication(record, tuple(parts))], Held())
                at = until
        except _Killed:
            continue
        finally:
            faults.install(None)
    assert target.execute("select count(*), count(distinct id) from t").fetchone() == (320, 320)
    assert generation == 1 or repeated
