"""The memory sink keeps the promises of a sink; its rows travel in the handles, so nothing is ever left behind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pytest

from holdfast.connectors import memory
from holdfast.errors import HoldfastError
from holdfast.ports import Carried, EpochRecord, Held, Publication, RunIdentity, Sink, Staged, Task
from tests.contract.sink_contract import PIPELINE, SCHEMA, Row, SinkContract, Target

TABLE = "contract"


@dataclass(frozen=True)
class MemoryTarget:
    def connect(self, name: str = "target", pipeline: str = PIPELINE, schema: pa.Schema = SCHEMA) -> Sink:
        return memory.MemorySpec(TABLE).connect(name, pipeline, schema)

    def rows(self) -> list[Row]:
        return [(row["id"], row["word"]) for row in memory.rows(TABLE).to_pylist()]

    def leftovers(self) -> list[str]:
        return []

    def refuse(self, word: str) -> bool:
        return False


@pytest.fixture
def target() -> Iterator[MemoryTarget]:
    memory.clear(TABLE)
    yield MemoryTarget()
    memory.clear(TABLE)


class TestMemoryContract(SinkContract):
    """Where the contract counts orphans, this sink has none."""

    def test_only_the_handle_that_the_driver_received_is_published(self, target: Target) -> None:
        sink = target.connect()
        sink.open(RunIdentity(PIPELINE, 1))
        staged = []
        for attempt in (0, 1):
            writer = sink.writer_factory()(Task(PIPELINE, 1, 1, 0, attempt))
            writer.write(_rows((1, "one")).rows.to_batches()[0])
            staged.append(writer.stage())
        sink.publish([_publication(1, staged[1])], Held())
        assert sink.sweep(below_epoch=2) == 0
        assert target.rows() == [(1, "one")]

    def test_publishing_rows_that_were_swept_fails_and_changes_nothing(self, target: Target) -> None:
        """Rows cannot be swept apart from their handle; a handle without its rows is refused."""
        sink = target.connect()
        sink.open(RunIdentity(PIPELINE, 1))
        with pytest.raises(HoldfastError):
            sink.publish([_publication(1, Staged(f"{PIPELINE}/1/1/0/0", 1))], Held())
        assert target.rows() == []
        sink.publish([_publication(1, _rows((3, "three")))], Held())
        assert target.rows() == [(3, "three")]

    def test_sweep_drops_lower_generations_and_earlier_epochs_and_keeps_the_rest(self, target: Target) -> None:
        sink = target.connect()
        sink.open(RunIdentity(PIPELINE, 1))
        sink.publish([_publication(1, _rows((1, "one")))], Held())
        assert sink.sweep(below_epoch=9) == 0
        assert target.rows() == [(1, "one")]


def _rows(*rows: Row) -> Carried:
    import pyarrow as pa

    return Carried(pa.table({"id": [r[0] for r in rows], "word": [r[1] for r in rows]}, schema=SCHEMA))


def _publication(epoch: int, *parts: Carried | Staged) -> Publication:
    return Publication(EpochRecord(PIPELINE, epoch, 1, {"lines": {"log": 10 * epoch}}), parts)
