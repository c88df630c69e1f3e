"""Readers of directories give the rows that were written, with their types, partition columns included."""

from __future__ import annotations

import datetime as dt
import socket
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

import holdfast as hf
from holdfast.connectors.files.sink.dataset import FilesTable
from holdfast.connectors.files.sink.spec import FilesSinkSpec
from holdfast.connectors.kit.json_lines import decode, encode
from holdfast.connectors.segments.spec import SegmentsSinkSpec
from holdfast.errors import Corrupt, InvalidPipeline, Unavailable
from holdfast.ports import Carried, EpochRecord, Publication, RunIdentity
from tests.contract.test_segments_contract import Sealer, always

pytestmark = pytest.mark.slow

UTC = dt.UTC
PARTITIONS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (pa.string(), ["007", "07", "7", None]),
    "number": (pa.int8(), [-7, 0, 7, None]),
    "flag": (pa.bool_(), [True, False, True, None]),
    "day": (pa.date32(), [dt.date(1, 1, 1), dt.date(2026, 1, 2), dt.date(9999, 12, 31), None]),
    "price": (pa.decimal128(38, 4), [Decimal("-1.5000"), Decimal("7.0000"), Decimal(10**30), None]),
    "at": (pa.timestamp("us", "UTC"), [dt.datetime(2026, 1, 2, tzinfo=UTC), dt.datetime(1, 1, 1, tzinfo=UTC),
                                      dt.datetime(2026, 1, 2, 3, 4, 5, 6, UTC), None]),
    "local": (pa.timestamp("us"), [dt.datetime(2026, 1, 2), dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31), None]),
}  # fmt: skip
OTHERS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "id": (pa.int64(), [1, 2, 3, 4]),
    "small": (pa.int16(), [1, None, 3, 4]),
    "ratio": (pa.float32(), [1.0, 0.5, None, -2.0]),
    "cents": (pa.decimal128(9, 2), [Decimal("1.50"), None, Decimal("-0.01"), Decimal("2.00")]),
    "wide": (pa.decimal128(38, 18), [Decimal("99999999999999999999.999999999999999999"), None, Decimal("0"), None]),
    "seen": (pa.timestamp("us", "UTC"), [dt.datetime(9999, 12, 31, tzinfo=UTC), None, None, None]),
    "born": (pa.date32(), [dt.date(1600, 1, 1), None, None, None]),
    "looks_like_a_day": (pa.string(), ["2026-01-02", "2026-01-02", "7", None]),
    "nested": (pa.struct([("days", pa.list_(pa.date32())), ("n", pa.int8())]), [{"days": [dt.date(1, 1, 1)], "n": 1},
                                                                               None, {"days": None, "n": None}, None]),
    "counts": (pa.map_(pa.string(), pa.int32()), [[("a", 1)], [], None, None]),
    "by_day": (pa.map_(pa.date32(), pa.bool_()), [[(dt.date(2026, 1, 2), True)], None, None, None]),
    "bytes": (pa.binary(), [b"\xff\x00", b"", None, None]),
    "lasting": (pa.duration("us"), [dt.timedelta(days=-3, microseconds=7), None, None, None]),
}  # fmt: skip
COLUMNS = PARTITIONS | OTHERS
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in COLUMNS.items()])
ROWS = pa.table({name: pa.array(values, kind) for name, (kind, values) in COLUMNS.items()}, schema=SCHEMA)
PLAIN = pa.schema([field for field in SCHEMA if field.name not in ("nested", "counts", "by_day", "bytes", "lasting")])


def publish(spec: Any, schema: pa.Schema = SCHEMA, epoch: int = 1, name: str = "out") -> None:
    sink = spec.connect(name, "p", schema)
    expected = sink.open(RunIdentity("p", epoch))
    record = EpochRecord("p", epoch, epoch, {"s": {"log": epoch}})
    sink.publish([Publication(record, (Carried(ROWS.select(schema.names).cast(schema)),))], expected)
    sink.close()


def by_id(table: pa.Table) -> pa.Table:
    return table.sort_by("id").combine_chunks()


@pytest.mark.parametrize(
    "partition_by",
    [(), *(pytest.param((name,), marks=pytest.mark.slow) for name in PARTITIONS), tuple(PARTITIONS)],
    ids=["none", *PARTITIONS, "all"],
)
@pytest.mark.parametrize("kind", ["parquet", "json", "segments"])
def test_what_is_read_is_what_was_written(kind: str, partition_by: tuple[str, ...], tmp_path: Path) -> None:
    """``"007"`` was read as 7, a decimal or a day as a text, and another type where the data was another."""
    path = str(tmp_path / "out")
    if kind == "segments":
        publish(SegmentsSinkSpec(path, partition_by=partition_by))
        table = hf.segments.open(path).to_arrow()
    else:
        publish(FilesSinkSpec(path, format=kind, partition_by=partition_by))  # type: ignore[arg-type]
        table = hf.files.open(path).to_arrow()
        assert hf.files.open(path).schema.equals(SCHEMA)
    assert table.schema.equals(SCHEMA)
    assert by_id(table).equals(ROWS)


@pytest.mark.parametrize("format", ["parquet", "json"])
def test_columns_are_chosen_wherever_they_are(format: Any, tmp_path: Path) -> None:
    publish(FilesSinkSpec(str(tmp_path), format=format, partition_by=("text", "day")))
    found = hf.files.open(tmp_path)
    for names in (["id"], ["text"], ["day", "id", "text"]):
        table = found.to_arrow(columns=names)
        assert (table.schema.names, table.num_rows) == (names, 4)
    assert by_id(found.to_arrow(columns=["day", "id"]))["day"].to_pylist() == COLUMNS["day"][1]


def test_a_directory_without_rows_has_its_columns(tmp_path: Path) -> None:
    sink = FilesSinkSpec(str(tmp_path), partition_by=("text",)).connect("out", "p", SCHEMA)
    sink.open(RunIdentity("p", 1))
    assert hf.files.open(tmp_path).to_arrow().equals(SCHEMA.empty_table())


def test_every_entry_of_the_log_says_the_columns(tmp_path: Path) -> None:
    """Of an epoch, a fence, and a compaction; of two sinks those of both."""
    spec = FilesSinkSpec(str(tmp_path), partition_by=("text",), compact="1 MB")
    for epoch in (1, 2, 3):
        publish(spec, epoch=epoch)
        assert hf.files.open(tmp_path).schema.equals(SCHEMA)
    sink = spec.connected("out", "p", SCHEMA, is_tended=False)
    sink.open(RunIdentity("p", 4))
    assert sink.compaction is not None
    assert hf.files.open(tmp_path).schema.equals(SCHEMA)
    publish(FilesSinkSpec(str(tmp_path), partition_by=("text",)), name="second")
    assert hf.files.open(tmp_path).to_arrow().num_rows == 16


@pytest.mark.parametrize("value", ["007", "7"])
def test_a_trace_finds_a_row_by_the_value_of_a_partition_column(tmp_path: Path, value: str) -> None:
    spec = FilesSinkSpec(str(tmp_path), partition_by=("text", "price"))
    publish(spec)
    (one,) = spec.find("out", f"text = '{value}'", limit=9)
    (same,) = spec.find("out", ("text", value), limit=9)
    assert one == same
    assert type(one["price"]) is Decimal


def test_a_directory_that_no_sink_has_named_is_corrupt_and_not_another_value(tmp_path: Path) -> None:
    publish(FilesSinkSpec(str(tmp_path), partition_by=("number",)))
    (tmp_path / "number=many").mkdir()
    pq.write_table(ROWS.drop_columns(["number"]), tmp_path / "number=many" / "other.parquet")
    with pytest.raises(Corrupt, match="number=many has no value"):
        hf.files.open(tmp_path).to_arrow()
    assert len(hf.files.open(tmp_path).paths()) == 5


@pytest.mark.parametrize("kind", ["parquet", "json", "segments"])
def test_a_damaged_file_is_corrupt_and_named(kind: str, tmp_path: Path) -> None:
    path = str(tmp_path / "out")
    if kind == "segments":
        spec = SegmentsSinkSpec(path, seal=(always,))
        sink = spec.connected("out", "p", SCHEMA, is_tended=False)
        sink.__class__ = Sealer
        record = EpochRecord("p", 1, 1, {"s": {"log": 1}})
        sink.publish([Publication(record, (Carried(ROWS),))], sink.open(RunIdentity("p", 1)))
    else:
        publish(FilesSinkSpec(path, format=kind))  # type: ignore[arg-type]
    opened: Any = hf.segments.open(path) if kind == "segments" else hf.files.open(path)
    (file,) = Path(path).glob("*.json" if kind == "json" else "*.parquet")
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(Corrupt, match="cannot be read") as raised:
        opened.to_arrow()
    assert file.name in str(raised.value)


@pytest.mark.parametrize("name", ["a.parquet", "a.json"])
def test_a_store_that_does_not_answer_is_no_damage(name: str) -> None:
    """Nobody is told to move files out because the network is down."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{nobody.getsockname()[1]}"
        once = fs.AwsStandardS3RetryStrategy(max_attempts=1)
        store = fs.S3FileSystem(anonymous=True, region="x", scheme="http", endpoint_override=host, retry_strategy=once)
        with pytest.raises(Unavailable, match="bucket/out") as raised:
            FilesTable((f"bucket/out/{name}",), "bucket/out", SCHEMA, store).to_table()
    assert "NETWORK_CONNECTION" in raised.value.why


def test_a_name_above_the_directory_is_no_column_of_it(tmp_path: Path) -> None:
    above = tmp_path / "id=9" / "text=x"
    publish(FilesSinkSpec(str(above), partition_by=("text",)))
    assert by_id(hf.files.open(above).to_arrow()).equals(ROWS)


def test_a_log_of_an_earlier_version_is_told_from_types_that_are_known(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("holdfast.connectors.files.sink.sink.encode_schema", lambda schema: "")
    publish(FilesSinkSpec(str(tmp_path)))
    assert hf.files.open(tmp_path).paths()
    with pytest.raises(InvalidPipeline, match="start a pipeline that writes there once"):
        hf.files.open(tmp_path).to_arrow()


@pytest.mark.parametrize("schema", [SCHEMA, PLAIN], ids=["read in Python", "read by Arrow"])
def test_lines_are_decoded_as_they_were_encoded(schema: pa.Schema) -> None:
    rows = ROWS.select(schema.names)
    assert decode(encode(rows), schema).equals(rows)
    assert decode(b"", schema).equals(schema.empty_table())
    wider = schema.append(pa.field("later", pa.int8()))
    assert decode(encode(rows), wider)["later"].null_count == 4
    assert decode(encode(rows), pa.schema([schema.field("id")])).num_rows == 4


def test_a_number_that_is_none_is_null_in_lines() -> None:
    schema = pa.schema([("x", pa.float64())])
    assert decode(encode(pa.table({"x": [float("nan"), 1.5]})), schema)["x"].to_pylist() == [None, 1.5]
