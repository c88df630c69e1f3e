"""A stand-in that keeps digests: they are those of the rows, whatever crashes; and rows of chosen buckets alone."""

from __future__ import annotations

import pickle
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import faults
from holdfast.connectors.kit.files.staged import ArrowStaging, unchecked
from holdfast.connectors.kit.sql import APPEND, TableMode
from holdfast.connectors.sqlite.spec import SqliteSpec
from holdfast.errors import Fenced, InvalidPipeline
from holdfast.ports import Carried, EpochRecord, Held, Publication, RunIdentity, Task
from holdfast.reconcile.comparison import ContentComparison
from holdfast.reconcile.digest_sink import DigestSink, DigestSpec
from holdfast.reconcile.digests import ReducingWriterFactory, Reduction, Wanted
from holdfast.reconcile.report import differences
from holdfast.types import canonical
from holdfast.types.canonical import Digests
from holdfast.values import NO_LOSSES, Loss, LossKind

PIPELINE = "compared"
SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.float64())])
BY_KEY = TableMode.of("upsert", "id", "gone", rewindable=False)
WITH_FLAG = SCHEMA.append(pa.field("gone", pa.bool_()))


def table_of(ids: Collection[int], value: float = 1.0) -> pa.Table:
    return pa.table({"id": list(ids), "value": [value] * len(ids)}, schema=SCHEMA)


class Stood:
    """A table and its stand-in, which are given the same."""

    def __init__(self, work: Path, mode: TableMode = APPEND, schema: pa.Schema = SCHEMA) -> None:
        self.work, self.mode, self.schema = work, mode, schema
        self.real_spec = SqliteSpec(str(work / "real.db"), "t", mode)
        self.real = self.real_spec.connect("table", PIPELINE, schema)
        self.generation = 0
        self.held = self.real.open(RunIdentity(PIPELINE, 1))
        self.sink = self.opened()

    def opened(self, wanted: Wanted | None = None) -> DigestSink:
        self.generation += 1
        name = "digests.db" if wanted is None else "rows.db"
        spec = DigestSpec(str(self.work / name), self.real_spec, self.mode, ("id",), wanted)
        sink = spec.connect("table", PIPELINE, self.schema)
        self.expected = sink.open(RunIdentity(PIPELINE, self.generation))
        return sink

    def publication(self, epoch: int, rows: pa.Table, sink: Any = None) -> Publication:
        record = EpochRecord(PIPELINE, epoch, self.generation, {"source": {"": epoch}})
        if sink is None:
            return Publication(record, (Carried(rows),))
        writers = [
            pickle.loads(pickle.dumps(sink.writer_factory()))(Task(PIPELINE, self.generation, epoch, task, 0))
            for task in range(2)
        ]
        half = rows.num_rows // 2
        for writer, part in zip(writers, (rows.slice(0, half), rows.slice(half)), strict=True):
            for batch in part.to_batches(max_chunksize=max(7, half // 5)):
                writer.write(batch)
        return Publication(record, tuple(writer.stage() for writer in writers))

    def give(self, epoch: int, rows: pa.Table, *, staged: bool = False) -> None:
        self.real.publish([self.publication(epoch, rows)], self.held)
        self.held = Held(epoch, 1, {"source": {"": epoch}})
        publication = self.publication(epoch, rows, self.sink if staged else None)
        assert publication.row_count == rows.num_rows, "the audit counts rows, not what is kept of them"
        self.sink.publish([publication], self.expected)
        self.expected = Held(epoch, self.generation, {"source": {"": epoch}})

    def close(self) -> None:
        self.real.close()
        self.sink.close()

    def compared(self) -> bool:
        with self.sink.content() as expected, self.real.content() as actual:  # type: ignore[attr-defined]
            return ContentComparison(expected, actual, by=("id",)).is_equal


def executed(stood: Stood, statement: str) -> None:
    stood.real._session.connection().execute(statement)  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("staged", [False, True])
def test_digests_are_those_of_the_rows_that_were_added(tmp_path: Path, staged: bool) -> None:
    stood = Stood(tmp_path)
    for epoch in range(1, 4):
        stood.give(epoch, table_of([epoch, 7, 7, *range(100, 200)], float("nan")), staged=staged)
    assert stood.compared()
    executed(stood, "DELETE FROM t WHERE rowid = 2")
    assert not stood.compared()
    executed(stood, "INSERT INTO t VALUES (7, NULL)")
    assert stood.compared(), "NaN is null in SQLite: the stand-in has asked"
    stood.close()


ROWS = st.lists(st.tuples(st.integers(0, 9), st.sampled_from([1.0, 2.0, None]), st.sampled_from([True, False, None])))


@pytest.mark.slow
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(epochs=st.lists(ROWS, min_size=1, max_size=4), staged=st.booleans())
def test_digests_of_an_upsert_are_those_of_the_rows_that_are_left(
    tmp_path_factory: pytest.TempPathFactory, epochs: list[list[tuple[int, Any, Any]]], staged: bool
) -> None:
    work = tmp_path_factory.mktemp("upsert")
    stood = Stood(work, BY_KEY, WITH_FLAG)
    given_rows = [
        pa.table({name: [row[at] for row in rows] for at, name in enumerate(WITH_FLAG.names)}, schema=WITH_FLAG)
        for rows in epochs
    ]
    for epoch, rows in enumerate(given_rows, 1):
        stood.give(epoch, rows, staged=staged)
    assert stood.compared()
    digests, stood.sink = stood.sink, stood.opened(Wanted(0, (0,)))
    digests.close()
    for epoch, rows in enumerate(given_rows, 1):
        stood.sink.publish([stood.publication(epoch, rows, stood.sink if staged else None)], stood.expected)
        stood.expected = Held(epoch, stood.generation, {"source": {"": epoch}})
    with stood.sink.content() as kept, stood.real.content() as actual:  # type: ignore[attr-defined]
        losses = kept.losses | actual.losses
        assert sorted_rows(kept.rows(0, [0], losses, ("id",))) == sorted_rows(actual.rows(0, [0], losses, ("id",)))
    stood.close()


def sorted_rows(batches: Any) -> list[tuple[Any, ...]]:
    found = [row for batch in batches for row in batch.select(["id", "value"]).to_pylist()]
    return sorted((row["id"], str(row["value"])) for row in found)


@pytest.mark.slow
def test_an_epoch_that_is_given_again_after_a_crash_is_counted_once(tmp_path: Path) -> None:
    """Dead before its COMMIT nothing is counted; after it, the ledger knows."""
    stood = Stood(tmp_path)
    stood.give(1, table_of(range(50)))
    rows = table_of(range(50, 90))
    staged = stood.publication(2, rows, stood.sink)
    with dying("publish-uncommitted"), pytest.raises(Dies):
        stood.sink.publish([staged], stood.expected)
    stood.sink.close()
    stood.sink = stood.opened()
    assert stood.expected.epoch == 1
    stood.sink.publish([staged], stood.expected)
    stood.sink.publish([staged], Held(2, stood.generation, {"source": {"": 2}}))
    stood.real.publish([stood.publication(2, rows)], stood.held)
    assert stood.compared()
    stood.sink.close()
    stood.sink = stood.opened()
    assert stood.expected.epoch == 2
    assert stood.sink.sweep(below_epoch=3) == 0, "what was counted in is removed"
    stood.close()


def test_who_was_replaced_counts_nothing_in(tmp_path: Path) -> None:
    stood = Stood(tmp_path)
    former, stood.sink = stood.sink, stood.opened()
    with pytest.raises(Fenced):
        former.publish([stood.publication(1, table_of([1]))], Held())
    former.close()
    with stood.sink.content() as content:
        assert content.row_count() == 0
    stood.close()


@pytest.mark.slow
def test_of_what_differs_rows_are_kept_of_those_buckets_alone_and_found_exactly(tmp_path: Path) -> None:
    stood = Stood(tmp_path)
    rows = table_of(range(20_000))
    stood.give(1, rows, staged=True)
    executed(stood, "DELETE FROM t WHERE id IN (5, 6)")
    executed(stood, "UPDATE t SET value = 9 WHERE id = 17")
    executed(stood, "INSERT INTO t VALUES (99999, 1)")
    with stood.sink.content() as expected, stood.real.content() as actual:  # type: ignore[attr-defined]
        compared = ContentComparison(expected, actual, by=("id",))
        wanted = Wanted(compared.digests[0].bits, tuple(compared.differing.tolist()))
        assert 1 <= len(wanted.buckets) <= 4
        digests, stood.sink = stood.sink, stood.opened(wanted)
        stood.sink.publish([stood.publication(1, rows, stood.sink)], Held())
        with stood.sink.content() as kept:
            fetched = sum(batch.num_rows for batch in kept.rows(wanted.bits, wanted.buckets, actual.losses, ("id",)))
            assert fetched <= 4 * 2 * 128
            compared.fetch_from(kept)
            found = differences(compared, ("id",))
    assert (sorted(found.missing["id"].to_pylist()), sorted(found.extra["id"].to_pylist())) == ([5, 6, 17], [17, 99999])
    assert len(found.same) == 1
    digests.close()
    stood.close()


def test_rows_whose_columns_are_named_like_sums_are_kept_as_rows(tmp_path: Path) -> None:
    schema = pa.schema([("bucket", pa.int64()), ("row_count", pa.int64()), ("sum", pa.uint64())])
    reduction = Reduction(tuple(schema.names), ("bucket",), NO_LOSSES, APPEND, Wanted(0, (0,)))
    rows = pa.record_batch([[7, -2], [0, 5], [1, 2]], schema=schema)
    staging = ArrowStaging(str(tmp_path), PIPELINE, "table", unchecked)
    writer = ReducingWriterFactory(staging.factory(), reduction)(Task(PIPELINE, 1, 1, 0, 0))
    writer.write(rows)
    (kept,) = staging.whole(writer.stage())
    assert kept.to_pylist() == rows.to_pylist()


@pytest.mark.slow
def test_what_is_kept_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    stood = Stood(tmp_path)
    sizes = []
    for epoch in range(1, 5):
        ids = np.random.default_rng(epoch).integers(0, 2**60, 400_000)
        rows = pa.table({"id": ids, "value": ids.astype(float)}, schema=SCHEMA)
        stood.sink.publish([stood.publication(epoch, rows, stood.sink)], stood.expected)
        stood.expected = Held(epoch, stood.generation, {"source": {"": epoch}})
        stood.sink._file.connection().execute("PRAGMA wal_checkpoint(TRUNCATE)")
        sizes.append(sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()))
    with stood.sink.content() as content:
        assert content.row_count() == 1_600_000
    assert sizes[-1] <= 1.05 * sizes[1] < 40_000_000, sizes
    stood.close()


def test_digests_of_another_form_of_the_columns_are_refused(tmp_path: Path) -> None:
    stood = Stood(tmp_path)
    with stood.sink.content() as content:
        losses = content.losses | {Loss("id", LossKind.PADDING)}
        for asked, by in ((losses, ("id",)), (content.losses, ())):
            with pytest.raises(InvalidPipeline, match="another form of its columns"):
                content.digests(3, asked, by)
    stood.close()


def test_fewer_buckets_are_neighbours_added_up() -> None:
    hashes = np.random.default_rng(7).integers(0, 2**64, 500, np.uint64)
    whole = Digests.empty(10)
    whole.add(canonical.buckets(hashes, 10), hashes)
    for bits in (0, 3, 10, 12):
        other = Digests.empty(min(bits, 10))
        other.add(canonical.buckets(hashes, other.bits), hashes)
        found = whole.coarser(bits)
        assert found.bits == other.bits
        assert not len(found.differing(other))


class Dies(Exception):
    """What ends a process at a point."""


class dying:
    def __init__(self, point: str) -> None:
        self.point = point

    def __enter__(self) -> None:
        def reached(point: str, epoch: int) -> None:
            if point == self.point:
                raise Dies

        faults.install(reached)

    def __exit__(self, *told: object) -> None:
        faults.install(None)
