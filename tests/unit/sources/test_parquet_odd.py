"""Odd Parquet files, and some that cannot be read: rows, or a bad file, but never an error that is tried again."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.connectors.formats import access
from holdfast.connectors.formats.access import FilePart, opened
from holdfast.errors import BadRow, Unavailable
from tests.unit.sources.reading import everything, good, rejected, source_over

pytestmark = pytest.mark.slow

WAYS = [{}, {"on_bad_row": "reject"}, {"max_rows_per_epoch": 8, "on_bad_row": "reject"}]


def file_of(*names: str, **options: Any) -> bytes:
    """Return a file with these columns of the numbers 1 and 2."""
    return bytes_of(pa.table([pa.array([1, 2]) for _ in names], names=list(names)), **options)


def bytes_of(table: pa.Table, **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


def several_groups(*counts: int) -> bytes:
    """Return a file with row groups of so many rows."""
    out = io.BytesIO()
    schema = pa.schema([("a", pa.int64())])
    with pq.ParquetWriter(out, schema) as writer:
        for count in counts:
            writer.write_table(pa.table({"a": pa.array(range(count), pa.int64())}), row_group_size=max(1, count))
    return out.getvalue()


ROWS: list[tuple[str, bytes, str, list[Any]]] = [
    ("another column twice", file_of("a", "b", "b"), "a BIGINT", [{"a": 1}, {"a": 2}]),
    ("names that differ in case", file_of("A", "a", "AA"), "a BIGINT", [{"a": 1}, {"a": 2}]),
    ("a dot in a name", bytes_of(pa.table([pa.array([{"b": 7}]), pa.array([1]), pa.array([2])], ["a", "a.b", "c"])),
     "`a.b` BIGINT, a STRUCT<b: BIGINT>", [{"a.b": 1, "a": {"b": 7}}]),
    ("no row group", several_groups(), "a BIGINT", []),
    ("an empty row group", several_groups(0), "a BIGINT", []),
    ("row groups without rows", several_groups(0, 2, 0, 1, 0), "a BIGINT", [{"a": 0}, {"a": 1}, {"a": 0}]),
    ("no statistics", file_of("a", write_statistics=False), "a BIGINT", [{"a": 1}, {"a": 2}]),
    ("another column without a name", file_of("a", ""), "a BIGINT", [{"a": 1}, {"a": 2}]),
    ("a column of nothing but nulls in a deep type", bytes_of(pa.table({"a": pa.array([[[{"b": None}]]])})),
     "a ARRAY<ARRAY<STRUCT<b: DECIMAL(38, 10)>>>", [{"a": [[{"b": None}]]}]),
    ("38 digits beside none", bytes_of(pa.table({"a": pa.array([Decimal("-" + "9" * 38), None])})), "a DECIMAL(38, 0)",
     [{"a": Decimal("-" + "9" * 38)}, {"a": None}]),
]  # fmt: skip

BAD: list[tuple[str, bytes, str, str]] = [
    ("the column twice", file_of("a", "a"), "a BIGINT", "it has the column 'a' 2 times"),
    ("the column in another case only", file_of("A"), "a BIGINT", "it has no column 'a'; it has 'A'"),
    ("a member twice", bytes_of(pa.table({"a": pa.StructArray.from_arrays([pa.array([1])] * 2, ["b", "b"])})),
     "a STRUCT<b: BIGINT>", "column 'a' is declared"),
    ("a name that is no text", file_of("a", "bbbb", store_schema=False).replace(b"bbbb", b"\xff\xfe\xff\xfe"),
     "a BIGINT", "utf-8"),
    ("a footer that is encrypted", file_of("a")[:-4] + b"PARE", "a BIGINT", "cannot be read"),
    ("other bytes", b"id\n" + b"1\n" * 100, "a BIGINT", "magic bytes"),
    ("nothing but the magic bytes", b"PAR1PAR1", "a BIGINT", ""),
]  # fmt: skip


def named(cases: list[Any]) -> list[Any]:
    return [pytest.param(*rest, id=name) for name, *rest in cases]


@pytest.mark.parametrize("options", WAYS)
@pytest.mark.parametrize(("data", "schema", "rows"), named(ROWS))
def test_an_odd_file_that_can_be_read_gives_its_rows(
    tmp_path: Path, data: bytes, schema: str, rows: list[Any], options: dict[str, Any]
) -> None:
    found = rows_of(tmp_path, data, schema, **options)
    assert (good(found) if "on_bad_row" in options else found) == rows


@pytest.mark.parametrize("options", WAYS)
@pytest.mark.parametrize(("data", "schema", "reason"), named(BAD))
def test_a_file_that_cannot_be_read_is_a_bad_row_and_is_not_tried_again(
    tmp_path: Path, data: bytes, schema: str, reason: str, options: dict[str, Any]
) -> None:
    if "on_bad_row" not in options:
        with pytest.raises(BadRow) as error:
            rows_of(tmp_path, data, schema, **options)
        assert reason in str(error.value)
        return
    found = rows_of(tmp_path, data, schema, **options)
    (reject,) = rejected(found)
    assert reason in f"{reject['reason']} cannot be read"
    assert good(found) == []


def test_a_file_without_columns_is_a_bad_row(tmp_path: Path) -> None:
    with pytest.raises(BadRow, match="it has no column 'a'; it has none"):
        rows_of(tmp_path, bytes_of(pa.table({})), "a BIGINT")


@pytest.mark.parametrize(
    "seeds", [range(20), pytest.param(range(20, 1000), marks=pytest.mark.nightly)], ids=["some", "many"]
)
def test_any_damage_is_a_bad_row_or_gives_rows(tmp_path: Path, seeds: range) -> None:
    """A byte anywhere is another one: whatever Arrow says of it, it is said of the file."""
    table = pa.table({
        "id": range(50), "s": [f"x{n % 7}" for n in range(50)], "l": [[n, None] for n in range(50)],
        "d": pa.array(map(Decimal, range(50)), pa.decimal128(38, 2)),
        "m": pa.array([[("a", n)] for n in range(50)], pa.map_(pa.string(), pa.int64())),
    })  # fmt: skip
    schema = "id BIGINT, s STRING, l ARRAY<INT>, d DECIMAL(38, 2), m MAP<STRING, BIGINT>"
    data = bytes_of(table, row_group_size=20)
    for seed in seeds:
        chance = random.Random(seed)
        damaged = bytearray(data)
        for _ in range(chance.choice([1, 1, 3])):
            damaged[chance.randrange(len(data))] = chance.randrange(256)
        place = tmp_path / str(seed)
        try:
            rows_of(place, bytes(damaged), schema)
        except BadRow:
            (place / "workspace").rename(place / "former")
            assert rejected(rows_of(place, bytes(damaged), schema, on_bad_row="reject")), seed


@pytest.mark.parametrize("call", [lambda file: file.read(10), lambda file: file.seek(2)], ids=["read", "seek"])
def test_only_what_the_file_system_says_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[Any], Any]
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    part = FilePart(str(path), 10, 0, -1)
    with pytest.raises(KeyError), opened(part):
        raise KeyError("a reader's word for what it has read")
    for broken in (OSError(5, "Input/output error"), RuntimeError("a library's word for a server that fails")):
        with opened(part) as file:
            monkeypatch.setattr(file, "_raw", Broken(broken))
            with pytest.raises(Unavailable, match="file cannot be read"):
                call(file)


def test_a_disk_that_fails_while_arrow_reads_is_tried_again_and_the_file_is_not_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is raised below Arrow comes out of it as it was."""
    source = source_of(tmp_path, file_of("a"), "a BIGINT", on_bad_row="reject")
    end = source.latest(source.initial(), bounded=False)

    def read(self: Any, size: int) -> pa.Buffer:
        raise access.unavailable(self._part, OSError(5, "Input/output error"))

    monkeypatch.setattr(access._LocalFile, "read_buffer", read)
    (span,) = source.spans(source.initial(), end, parallelism=1)
    with pytest.raises(Unavailable, match="Input/output error"):
        list(source.read(span))


class Broken:
    """A file that fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def read(self, size: int = -1) -> bytes:
        raise self._error

    def seek(self, offset: int, whence: int = 0) -> int:
        raise self._error

    def close(self) -> None:
        """It was closed where it was opened."""


def source_of(tmp_path: Path, data: bytes, schema: str, **options: Any) -> Any:
    directory = tmp_path / "in"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "file.parquet").write_bytes(data)
    return source_over(directory, tmp_path / "workspace", schema, format="parquet", **options)


def rows_of(tmp_path: Path, data: bytes, schema: str, **options: Any) -> list[dict[str, Any]]:
    return everything(source_of(tmp_path, data, schema, **options))
