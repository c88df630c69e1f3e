"""The files sink in an object store keeps every promise of a sink, in both formats, on moto's server."""

from __future__ import annotations

import io
from dataclasses import dataclass
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.json as pa_json
import pyarrow.parquet as pq
import pytest

from holdfast.connectors.files.objects.spec import ObjectFilesSpec
from holdfast.ports import Sink
from holdfast.store.objects.errors import RequestLimits
from holdfast.store.objects.multipart import MultipartUploads
from holdfast.store.objects.store import open_objects
from tests.contract.explaining_contract import ExplainingContract, ReplacedRunContract
from tests.contract.ledger_contract import LedgerContract
from tests.contract.reset_contract import ResetContract, ResetWithoutRowsContract
from tests.contract.rewind_contract import RewindContract
from tests.contract.shard_contract import ShardContract, ShardLedgerContract, ShardRewindContract
from tests.contract.sink_contract import PIPELINE, SCHEMA, Row, SinkContract
from tests.everyday import everyday
from tests.s3_server import S3Bucket

pytestmark = pytest.mark.slow

TestSinkContract = SinkContract
TestLedgerContract = LedgerContract
TestReplacedRunContract = ReplacedRunContract
TestResetContract = ResetContract
TestResetWithoutRowsContract = ResetWithoutRowsContract
TestShardContract = ShardContract
TestShardLedgerContract = ShardLedgerContract


@pytest.mark.nightly
class TestExplainingContract(ExplainingContract):
    """What positions mean; each test is hundreds of requests."""


@pytest.mark.nightly
class TestShardRewindContract(ShardRewindContract):
    """Taking back what one shard has published."""


@pytest.mark.nightly
class TestRewindContract(RewindContract):
    """The way back; the steps are those of the sink in files."""


@dataclass(frozen=True)
class ObjectTarget:
    bucket: S3Bucket
    spec: ObjectFilesSpec

    def connect(self, name: str = "target", pipeline: str = PIPELINE, schema: pa.Schema = SCHEMA) -> Sink:
        return self.spec.connect(name, pipeline, schema)

    def is_there(self) -> bool:
        return bool(open_objects(f"s3://{self.bucket.name}").keys(""))

    def rows(self) -> list[Row]:
        """As a reader that knows nothing of Holdfast sees them: all objects but hidden ones."""
        objects, found = open_objects(self.spec.path), []
        for key in objects.keys(""):
            if key.startswith("_"):
                continue
            data = io.BytesIO(objects.get(key) or b"")
            table = pa_json.read_json(data) if key.endswith(".json") else pq.read_table(data)
            word = unquote(key.partition("=")[2].partition("/")[0])
            found += [(row["id"], row.get("word", word)) for row in table.to_pylist()]
        return found

    def leftovers(self) -> list[str]:
        return [key for key, _ in MultipartUploads(f"s3://{self.bucket.name}", RequestLimits()).all()]

    def refuse(self, word: str) -> bool:
        return False


@pytest.fixture(params=everyday(["parquet", "json", "parquet by word"], {"parquet by word"}))
def target(request: pytest.FixtureRequest, s3_bucket: S3Bucket) -> ObjectTarget:
    format_name, _, partition_by = request.param.partition(" by ")
    spec = ObjectFilesSpec(f"{s3_bucket.address}/out", format_name, (partition_by,) if partition_by else ())
    return ObjectTarget(s3_bucket, spec)


@pytest.fixture
def rewindable(target: ObjectTarget) -> ObjectTarget:
    return target
