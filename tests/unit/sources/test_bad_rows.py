"""Hostile or merely drifted files: what a bad row may cost, what may be held in memory, and what is one entry."""

from __future__ import annotations

import errno
import gzip
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.json as arrow_json
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from holdfast import read
from holdfast.connectors.files.source import layout
from holdfast.connectors.files.source.layout import Cutter
from holdfast.connectors.formats import access, csv_lines, json_lines
from holdfast.connectors.formats.access import FilePart
from holdfast.connectors.formats.csv_records import Walk
from holdfast.errors import BadRow, Corrupt, InvalidPipeline, Unavailable
from tests.everyday import examples
from tests.unit.sources.reading import everything, good, rejected, rows_of, source_over

REJECT = {"on_bad_row": "reject"}
CSV = {"format": "csv", "header": False}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "options"),
    [
        ('{"id":"x"}', {}),
        ('{"id":1.5}', {}),
        ('{"id":', {}),
        ('{"id":1,"id":2}', {}),
        ('{"n":[{"a":1,"a":null}]}', {}),
        ('{"s":"\\ud800"}', {}),
        ('{"at":"2024-02-30"}', {}),
        ('{"at":"\\ud800"}', {}),
        ("x,y,z", CSV),
        ("1", CSV),
        ("1,2,3,4", CSV),
        ('1,"x,3', CSV),
        ("1,2,2024-02-30", CSV),
    ],
)
def test_rejected_rows_need_few_calls_of_arrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, options: dict[str, Any]
) -> None:
    """A call each, and several to find it, made 20 000 bad lines last 27 s."""
    calls = 0

    def counting(read: Any) -> Any:
        def counted(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            return read(*arguments, **named)

        return counted

    monkeypatch.setattr("holdfast.connectors.formats.json_lines.arrow_json.read_json", counting(arrow_json.read_json))
    monkeypatch.setattr("holdfast.connectors.formats.csv_lines.arrow_csv.read_csv", counting(arrow_csv.read_csv))
    schema = "id INT, s STRING, at TIMESTAMP" + ("" if options else ", n ARRAY<STRUCT<a: INT>>")
    rows = rows_of(tmp_path, f"{line}\n" * 20_000, schema, **REJECT, **options)
    assert len(rejected(rows)) == 20_000
    assert [one["position"] for one in rejected(rows)][::5000] == ["file:1", "file:5001", "file:10001", "file:15001"]
    assert calls < 50


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "options", "bad"),
    [
        (['{"at":"2024-01-01T12:00:00Z"}', '{"at":1704110400}'], {}, 0),
        (['{"at":1704110400}', '{"at":"2024-01-01T12:00:00Z"}', '{"id":"x"}'], {}, 80),
        (['{"n":{"a":1}}', '{"n":{"a":1,"a":2}}'], {}, 120),
        (["1,2", "1e400,2"], {"format": "csv", "header": False}, 120),
    ],
)
def test_what_only_arrow_finds_is_parsed_and_judged_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str], options: dict[str, Any], bad: int
) -> None:
    """Each of these was taken out of what was left, and all of the rest parsed and judged again."""
    parser = csv_lines.CsvParser if options else json_lines.JsonParser
    parsed = judged = 0
    parse, judge = parser.parse, parser.judge

    def parsing(self: Any, data: bytes) -> Any:
        nonlocal parsed
        parsed += len(data)
        return parse(self, data)

    def judging(self: Any, contents: Any, error: Any = None) -> Any:
        nonlocal judged
        judged += len(contents)
        return judge(self, contents, error)

    monkeypatch.setattr(parser, "parse", parsing)
    monkeypatch.setattr(parser, "judge", judging)
    text = "".join(f"{line}\n" for line in lines) * (240 // len(lines))
    schema = "d DECIMAL(10,2), id INT" if options else "id INT, at TIMESTAMP, n STRUCT<a: INT>, d DECIMAL(10,2)"
    rows = rows_of(tmp_path, text, schema, **REJECT, **options)
    assert len(rows) == 240
    assert len(rejected(rows)) == bad
    assert [one["position"] for one in rejected(rows)] == sorted(
        (one["position"] for one in rejected(rows)), key=lambda position: int(position.partition(":")[2])
    )
    assert parsed < 16 * len(text)
    assert judged < 12 * 240


@pytest.mark.slow
def test_the_time_for_quotes_grows_with_the_text_alone() -> None:
    """2.5 MB in one line of quoted fields took 29 s; lines that leave a quote open took the square of their number."""
    texts = [
        b",".join([b'"a""b"'] * 350_000) + b',"x"y\n',
        b'b","x\n' * 200_000,
        b'1,"x\n' * 200_000,
        b'""a\n' * 99_999,
    ]
    began = time.process_time()
    for text in texts:
        assert sum(end - start for start, end, _ in Walk(text, ",", longest=1 << 26).records()) == len(text)
    assert time.process_time() - began < 15


@pytest.mark.parametrize("longest", [10, 25, 1000])
def test_a_quote_is_sought_as_far_as_a_record_may_reach(longest: int) -> None:
    text = b'1,a\n2,"' + b"x\n" * 9 + b'"\n3,"b\n4,"c"\n'
    found = [(text[start:end], problem) for start, end, problem in Walk(text, ",", longest=longest).records()]
    assert b"".join(record for record, _ in found) == text
    if longest == 10:
        assert "not closed within max_record_size" in found[1][1]
        assert found[1][0] == b'2,"x\n'
    else:
        assert (found[1][0].count(b"\n"), found[1][1]) == (10, "")
    assert found[-2][0] == b'3,"b\n'
    assert found[-2][1]


TEXTS = st.lists(st.text(st.sampled_from('a1,"\n\r'), max_size=12), max_size=8).map("\n".join)


@pytest.mark.slow
@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@example('1\n,"""\n"\r,"\n1', 1, 11, True, False)
@example('2,"a\n",' + "1" * 40 + "\n3,1", 5, 12, True, True)
@example('"\n"1\n1111111\n111"', 1, 14, True, False)
@example('1\n"\n",', 1, 4, True, False)
@example('1,1\n"a",', 1, 30, True, False)
@given(TEXTS, st.integers(1, 30), st.integers(4, 40), st.booleans(), st.booleans())
def test_pieces_give_the_rows_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory, text: str, size: int, longest: int, is_csv: bool, is_packed: bool
) -> None:
    """However a file is read: at once, in pieces, or decompressed bit by bit."""
    options = {**(CSV if is_csv else {}), **REJECT, "max_record_size": f"{longest} B"}
    lines = text if is_csv else text.replace("a", '{"a":1}')

    def rows(name: str, data: bytes) -> list[tuple[Any, ...]]:
        directory = tmp_path_factory.mktemp("in")
        (directory / name).write_bytes(data)
        found = everything(source_over(directory, tmp_path_factory.mktemp("w"), "a STRING, b STRING", **options))
        bad = [one["__holdfast_reject"] for one in found]
        return [
            (one["a"], one["b"], b and (b["raw"], b["position"].rpartition(":")[2]))
            for one, b in zip(found, bad, strict=True)
        ]

    whole = rows("file", lines.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "_READ", size)
        patch.setattr(layout, "AT_ONCE", 0)
        name, data = ("file.gz", gzip.compress(lines.encode())) if is_packed else ("file", lines.encode())
        assert rows(name, data) == whole


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_record_that_is_too_long_is_a_bad_row_and_its_neighbours_are_not(tmp_path: Path, ending: str) -> None:
    directory = tmp_path / "in"
    directory.mkdir()
    text = b'{"id":1}\n\n{"s":"' + b"x" * 5000 + b'"}\n{"id":2}\n{"id":"x"}\n{"s":"' + b"y" * 2000 + b'"}'
    (directory / f"file{ending}").write_bytes(gzip.compress(text) if ending else text)
    options = {"max_record_size": "1 KB"}
    rows = everything(source_over(directory, tmp_path / "w", "id INT, s STRING", **options, **REJECT))
    assert [row["id"] for row in good(rows)] == [1, 2]
    found = rejected(rows)
    assert [one["position"] for one in found] == [f"file{ending}:{line}" for line in (3, 5, 6)]
    assert "longer than max_record_size (1,000 bytes)" in found[0]["reason"]
    assert [len(one["raw"]) for one in found] == [1000, 10, 1000]
    with pytest.raises(BadRow, match=r"line 3, cannot be read: it is longer than max_record_size"):
        everything(source_over(directory, tmp_path / "other", "id INT, s STRING", **options))


def test_a_csv_header_that_is_too_long_is_an_error_of_every_record(tmp_path: Path) -> None:
    text = "a," + "b" * 2000 + "\n" + "1,2\n" * 3
    rows = rows_of(tmp_path, text, "a INT", format="csv", max_record_size="1 KB", **REJECT)
    assert [one["position"] for one in rejected(rows)] == ["file:2", "file:3", "file:4"]
    assert "the header of the file cannot be read: it is longer" in rejected(rows)[0]["reason"]


def test_a_parquet_row_that_is_too_long_is_a_bad_row(tmp_path: Path) -> None:
    directory = tmp_path / "in"
    directory.mkdir()
    texts = ["a", "x" * 5000, "b", "y" * 3000, "c"]
    pq.write_table(pa.table({"id": range(5), "s": texts}), directory / "file")
    options = {"format": "parquet", "max_record_size": "1 KB"}
    rows = everything(source_over(directory, tmp_path / "w", "id BIGINT, s STRING", **options, **REJECT))
    assert [row["id"] for row in rows] == [0, None, 2, None, 4]
    assert [one["position"] for one in rejected(rows)] == ["file:1", "file:3"]
    with pytest.raises(BadRow, match="row 1, cannot be read: it is longer than max_record_size"):
        everything(source_over(directory, tmp_path / "other", "id BIGINT, s STRING", **options))


@pytest.mark.slow
@pytest.mark.parametrize("format_name", ["json", "csv", "csv with a quoted line end"])
def test_what_a_compressed_file_holds_is_never_held_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_name: str
) -> None:
    """292 kB of gzip made the process grow by 577 MB."""
    held = 0
    read_more = layout._read

    def watched(chunks: Iterator[bytes], size: int) -> bytes:
        nonlocal held
        held = max(held, size)  # as much as is left over is read once more
        return read_more(chunks, size)

    monkeypatch.setattr(layout, "_read", watched)
    monkeypatch.setattr(layout, "_READ", 1 << 16)
    line = 100_001
    text = b'{"id":1}\n' * 100_000 + b'{"s":"' + b"x" * 3_000_000 + b'"}\n{"id":2}\n'
    if format_name == "csv":
        text = b"1,x\n" * 100_000 + b'2,"' + b"x" * 3_000_000 + b'"\n3,y\n'
    elif format_name != "json":  # the line on which the quote opens is a bad record by itself
        text, line = b"1,x\n" * 100_000 + b'2,"x\n",' + b"x" * 3_000_000 + b"\n3,y\n", 100_002
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(text))
    part = FilePart(os.fspath(path), path.stat().st_size, 0, -1)
    cutter = Cutter(None if format_name == "json" else ",", 100_000)
    found = list(cutter.pieces(part, all_or_none=True))
    assert max(len(piece.data) for piece in found) < 400_000
    assert [piece.line for piece in found if piece.problem] == [line]
    assert found[-1].line == line + 1
    assert held < 400_000


@pytest.mark.slow
@pytest.mark.parametrize("limit", [None, 2])
@pytest.mark.parametrize("size", [5, 5_000_000])
def test_a_compressed_file_that_is_cut_short_is_one_entry_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, limit: int | None
) -> None:
    monkeypatch.setattr(access, "_HELD", 1000)
    monkeypatch.setattr(layout, "_READ", 1 << 16)
    directory = tmp_path / "in"
    directory.mkdir()
    chance = random.Random(1)
    text = b"".join(b'{"id":%d}\n' % chance.randrange(10**9) for _ in range(size // 14 + 1))
    (directory / "a.gz").write_bytes(gzip.compress(text, compresslevel=1)[:-10])
    (directory / "b.gz").write_bytes(gzip.compress(b'{"id":7}\n'))
    (directory / "c").write_bytes(b'{"id":8}\n')
    rows = everything(source_over(directory, tmp_path / "w", "id INT", max_rows_per_epoch=limit, **REJECT))
    assert sorted(row["id"] for row in good(rows)) == [7, 8]
    (entry,) = rejected(rows)
    assert entry["position"] == "a.gz:0"
    assert "the file cannot be decompressed" in entry["reason"]


FAILURES = [
    *(OSError(errno.EIO, "Input/output error"), TimeoutError("timed out"), ConnectionError()),
    *(pa.ArrowMemoryError("malloc of size 64 failed"), MemoryError(), pa.ArrowCancelled("stopped")),
]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
@pytest.mark.parametrize("on_bad_row", ["reject", "fail"])
@pytest.mark.parametrize("format_name", ["json", "parquet"])
def test_a_disk_that_fails_or_a_lack_of_memory_rejects_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_name: str, on_bad_row: str, failure: Exception
) -> None:
    """It may be read again: only bytes that do not follow their format are a file that fails for good."""
    directory = tmp_path / "in"
    directory.mkdir()
    if format_name == "json":
        (directory / "a.gz").write_bytes(gzip.compress(b'{"id":1}\n' * 1000))
    else:
        pq.write_table(pa.table({"id": range(1000)}), directory / "a.parquet")

    class Failing:
        closed = False

        def __init__(self, file: BinaryIO) -> None:
            self._file = file

        def read(self, size: int = -1) -> bytes:
            raise failure

        def readinto(self, place: memoryview) -> int:
            raise failure

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

    @contextmanager
    def failing(part: FilePart) -> Iterator[Any]:
        with open(part.path, "rb") as file:
            yield Failing(file)

    monkeypatch.setattr(access, "_open", failing)
    source = source_over(directory, tmp_path / "w", "id BIGINT", format=format_name, on_bad_row=on_bad_row)
    with pytest.raises(Unavailable):
        everything(source)


def test_a_parquet_column_for_which_memory_is_lacking_is_no_misfit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "in"
    directory.mkdir()
    pq.write_table(pa.table({"id": pa.array([1], pa.int32())}), directory / "a.parquet")

    def lacking(*arguments: Any, **named: Any) -> Any:
        raise pa.ArrowMemoryError("malloc of size 64 failed")

    monkeypatch.setattr("holdfast.connectors.formats.parquet.pc.cast", lacking)
    source = source_over(directory, tmp_path / "w", "id BIGINT", format="parquet", **REJECT)
    with pytest.raises(Unavailable, match="more memory"):
        everything(source)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, CSV, {"max_rows_per_epoch": 10}])
def test_a_line_of_more_than_two_gigabytes_is_a_bad_row(tmp_path: Path, options: dict[str, Any]) -> None:
    """It was an OverflowError that nobody caught."""
    directory = tmp_path / "in"
    directory.mkdir()
    row = b"1\n" if options == CSV else b'{"id":1}\n'
    with (directory / "file").open("wb") as file:
        file.write(row)
        file.seek(2_200_000_000)  # a hole, which takes no room on the disk
        file.write(b"\n" + row)
    rows = everything(source_over(directory, tmp_path / "w", "id INT", **REJECT, **options))
    assert [row["id"] for row in good(rows)] == [1, 1]
    assert [one["position"] for one in rejected(rows)] == ["file:2"]


@pytest.mark.slow
def test_lines_are_counted_once_however_many_blocks_have_bad_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = ('{"id":1}\n' * 9 + '{"id":"x"}\n') * 200
    read_bytes = 0
    whole_read = access._LoggedFile.read

    def counting(self: Any, size: int = -1) -> bytes:
        nonlocal read_bytes
        data: bytes = whole_read(self, size)
        read_bytes += len(data)
        return data

    directory = tmp_path / "in"
    directory.mkdir()
    (directory / "file").write_text(text)
    source = source_over(directory, tmp_path / "w", "id INT", block_size="100 B", **REJECT)
    source.latest(source.initial(), bounded=False)
    monkeypatch.setattr(access._LoggedFile, "read", counting)
    rows = everything(source)
    assert [one["position"] for one in rejected(rows)] == [f"file:{line}" for line in range(10, 2001, 10)]
    assert read_bytes < 5 * len(text)


def test_a_limit_of_records_that_makes_no_sense_is_refused_and_the_default_changes_no_graph() -> None:
    for wrong in ("2 GB", "0 B", "many"):
        with pytest.raises(InvalidPipeline, match="max_record_size"):
            read.files("in", schema="id INT", max_record_size=wrong, name="source")
    arguments = read.files("in", schema="id INT", name="source").node.spec.arguments()
    assert "max_record_size" not in arguments
    other = read.files("in", schema="id INT", max_record_size="1 MB", name="source").node.spec.arguments()
    assert other == {**arguments, "max_record_size": 1_000_000}


def test_without_rejects_a_file_that_cannot_be_decompressed_is_corrupt(tmp_path: Path) -> None:
    directory = tmp_path / "in"
    directory.mkdir()
    (directory / "a.gz").write_bytes(gzip.compress(b'{"id":1}\n' * 100)[:-10])
    with pytest.raises(Corrupt, match="cannot be decompressed") as error:
        everything(source_over(directory, tmp_path / "w", "id INT"))
    assert "reject" in error.value.do
