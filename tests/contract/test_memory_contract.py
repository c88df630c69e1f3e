"""The memory sink keeps the promises of a sink; its rows travel in the handles, so nothing is ever left behind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pytest

from holdfast.connectors import memory
from holdfast.ports import Sink
from tests.contract.shard_contract import ShardContract
from tests.contract.sink_contract import PIPELINE, SCHEMA, HandleSinkContract, Row

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


TestMemoryContract = HandleSinkContract
TestShardContract = ShardContract
