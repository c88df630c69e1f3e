"""The byte stream sink keeps every promise of a sink: one stream and several, large files and tiny ones."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.connectors.byte_stream.branch import branches
from holdfast.connectors.byte_stream.messages import MessageColumns
from holdfast.connectors.byte_stream.sink_spec import ByteStreamSinkSpec
from holdfast.ports import Sink
from tests.byte_store import verify
from tests.contract.explaining_contract import ExplainingContract, ReplacedRunContract
from tests.contract.ledger_contract import LedgerContract
from tests.contract.reset_contract import ResetContract, RowsInLedgerContract
from tests.contract.rewind_contract import RewindContract
from tests.contract.shard_contract import ShardContract, ShardLedgerContract, ShardRewindContract
from tests.contract.sink_contract import PIPELINE, SCHEMA, Row, SinkContract

pytestmark = pytest.mark.slow

TestSinkContract = SinkContract
TestExplainingContract = ExplainingContract
TestLedgerContract = LedgerContract
TestReplacedRunContract = ReplacedRunContract
TestResetContract = ResetContract
TestRowsInLedgerContract = RowsInLedgerContract
TestRewindContract = RewindContract
TestShardContract = ShardContract
TestShardLedgerContract = ShardLedgerContract
TestShardRewindContract = ShardRewindContract


@dataclass(frozen=True)
class ByteStreamTarget:
    directory: Path
    spec: ByteStreamSinkSpec

    def connect(self, name: str = "target", pipeline: str = PIPELINE, schema: pa.Schema = SCHEMA) -> Sink:
        return self.spec.connect(name, pipeline, schema)

    def is_there(self) -> bool:
        return self.directory.exists()

    def rows(self) -> list[Row]:
        found = []
        for branch in branches(os.fspath(self.directory)).values():
            for stream in branch.view().streams.values():
                for chunk in stream.read(0, stream.end):
                    words = [bytes(payload).decode() for payload in chunk.payloads]
                    found += list(zip(chunk.timestamps, words, strict=True))
        assert len(found) == verify(os.fspath(self.directory))
        return found

    def leftovers(self) -> list[str]:
        return [str(path) for kind in ("staging", "writing") for path in self.directory.glob(f"*/*/{kind}/*")]

    def refuse(self, word: str) -> bool:
        return False


TARGETS: dict[str, dict[str, Any]] = {
    "one file": {},
    "tiny files": {"target_bytes": 100, "index_every": 2},
    "a stream for each word": {"columns": MessageColumns("id", "word", stream="word")},
}


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> ByteStreamTarget:
    directory = tmp_path / "store"
    options: dict[str, Any] = {"columns": MessageColumns("id", "word"), **TARGETS[request.param]}
    return ByteStreamTarget(directory, ByteStreamSinkSpec(os.fspath(directory), **options))


@pytest.fixture
def rewindable(target: ByteStreamTarget) -> ByteStreamTarget:
    return target
