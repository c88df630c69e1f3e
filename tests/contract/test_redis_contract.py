"""Redis keeps the promises of a sink: as a stream, and where an epoch takes several steps."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
import redis

from holdfast.connectors.redis import sink as redis_sink
from holdfast.connectors.redis.spec import RedisSpec
from holdfast.ports import LedgerSpec, Sink
from tests.contract.explaining_contract import ExplainingContract
from tests.contract.ledger_contract import LedgerContract
from tests.contract.reset_contract import LostLedgerContract, ResetContract, ResetWithoutRowsContract
from tests.contract.shard_contract import ShardContract, ShardLedgerContract
from tests.contract.sink_contract import PIPELINE, SCHEMA, Row, SinkContract

pytestmark = pytest.mark.slow

TestSinkContract = SinkContract
TestExplainingContract = ExplainingContract
TestLedgerContract = LedgerContract
TestLostLedgerContract = LostLedgerContract
TestResetContract = ResetContract
TestResetWithoutRowsContract = ResetWithoutRowsContract
TestShardContract = ShardContract
TestShardLedgerContract = ShardLedgerContract


class RedisTarget:
    def __init__(self, url: str) -> None:
        self.spec: LedgerSpec = RedisSpec(url, "words", id=None)
        self._client: Any = redis.Redis.from_url(url, decode_responses=True)

    def connect(self, name: str = "target", pipeline: str = PIPELINE, schema: pa.Schema = SCHEMA) -> Sink:
        assert isinstance(self.spec, RedisSpec)
        return self.spec.connect(name, pipeline, schema)

    def is_there(self) -> bool:
        return bool(self._client.keys("*"))

    def rows(self) -> list[Row]:
        return [(int(entry["id"]), entry["word"]) for _, entry in self._client.xrange("words")]

    def leftovers(self) -> list[str]:
        keys = self._client.keys("holdfast:*:staged:*")
        for names in self._client.keys("holdfast:*:staged"):
            keys = [*keys, *(name for name in self._client.smembers(names) if name not in keys)]
        return keys

    def lose_ledger(self) -> None:
        self._client.delete(f"holdfast:{PIPELINE}/target:ledger")

    def refuse(self, word: str) -> bool:
        return False

    def close(self) -> None:
        self._client.close()


@pytest.fixture(params=["one step", "several steps"])
def target(redis_url: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    if request.param == "several steps":
        monkeypatch.setattr(redis_sink, "ATOMIC_ROWS", 0)
        monkeypatch.setattr("holdfast.connectors.redis.form.CHUNK_ROWS", 1)
    target = RedisTarget(redis_url)
    yield target
    target.close()
