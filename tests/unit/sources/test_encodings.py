"""Files that are not UTF-8: read as what they are declared to be, or refused with what they are and the cure."""

from __future__ import annotations

import codecs
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from holdfast import read
from holdfast.errors import BadRow, InvalidPipeline
from tests.unit.sources.reading import everything, good, rejected, rows_of, source_over

pytestmark = pytest.mark.slow

ROWS = [{"id": 1, "größe": 'Zoë, "q"\r\nΩ'}, {"id": 2, "größe": ""}, {"id": 3, "größe": "é" * 50}]
ROWS_LATIN = [{"id": 1, "größe": 'Zoë, "q"\r\nß'}, *ROWS[1:]]
SCHEMA = "id INT, größe STRING"
REJECT: dict[str, Any] = {"on_bad_row": "reject"}
MARKS = {"utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE, "utf-32-le": codecs.BOM_UTF32_LE}


def text_of(rows: list[dict[str, Any]], format: str) -> str:
    if format == "json":
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    quoted = [[str(row["id"]), '"' + row["größe"].replace('"', '""') + '"'] for row in rows]
    return "\r\n".join(",".join(fields) for fields in [["id", "größe"], *quoted]) + "\r\n"


@pytest.mark.parametrize("format", ["csv", "json"])
@pytest.mark.parametrize(
    ("encoding", "mark", "rows"),
    [
        ("utf-16", codecs.BOM_UTF16_LE + b"le", ROWS),
        ("utf-16", codecs.BOM_UTF16_BE + b"be", ROWS),
        ("utf-16-le", b"le", ROWS),
        ("utf-16-le", codecs.BOM_UTF16_LE + b"le", ROWS),
        ("utf-32-be", b"be", ROWS),
        ("latin-1", b"", ROWS_LATIN),
        ("cp1252", b"", ROWS_LATIN),
        ("utf-8-sig", codecs.BOM_UTF8, ROWS),
        ("utf-8", b"", ROWS),
    ],
)
def test_a_file_is_read_in_the_encoding_that_is_declared(
    tmp_path: Path, format: str, encoding: str, mark: bytes, rows: list[dict[str, Any]]
) -> None:
    order = mark[-2:].decode() if mark[-2:] in (b"le", b"be") else ""
    written = encoding if not order or encoding.endswith(order) else f"{encoding}-{order}"
    head = mark.removesuffix(order.encode())
    data = head + text_of(rows, format).encode("utf-8" if encoding == "utf-8-sig" else written)
    assert rows_of(tmp_path, data, SCHEMA, format=format, encoding=encoding) == rows


@pytest.mark.parametrize("format", ["csv", "json"])
@pytest.mark.parametrize("written", MARKS)
def test_a_byte_order_mark_of_another_encoding_refuses_the_file_and_says_which_one_it_is(
    tmp_path: Path, format: str, written: str
) -> None:
    """It was a trace of Spark's: a header of such bytes is not text."""
    data = MARKS[written] + text_of(ROWS, format).encode(written)
    name = written[:6]
    said = f"it is {name} by its byte order mark ({MARKS[written].hex(' ').upper()}) and is read as"
    with pytest.raises(BadRow) as error:
        rows_of(tmp_path, data, SCHEMA, format=format)
    assert f"/in/file cannot be read: {said} utf-8: write encoding='{name}'" in str(error.value)
    ways: list[dict[str, Any]] = [{}, {"encoding": "latin-1"}, {"block_size": "64 B"}, {"max_rows_per_epoch": 2}]
    for number, options in enumerate(ways):
        (tmp_path / "workspace").rename(tmp_path / f"before {number}")
        (row,) = rows_of(tmp_path, data, SCHEMA, format=format, **REJECT, **options)
        (one,) = rejected([row])
        assert one["reason"].startswith(said)
        assert (one["raw"], one["position"]) == ("", "file:0")


def test_utf_16_without_a_mark_is_asked_for_its_byte_order(tmp_path: Path) -> None:
    (row,) = rows_of(
        tmp_path, text_of(ROWS, "csv").encode("utf-16-be"), SCHEMA, format="csv", encoding="utf-16", **REJECT
    )
    assert "write encoding='utf-16-le' or 'utf-16-be'" in rejected([row])[0]["reason"]


def test_a_header_that_is_not_of_the_encoding_is_said_with_the_cure(tmp_path: Path) -> None:
    """Its bytes ended the run with a trace of Spark's."""
    with pytest.raises(BadRow, match="the header is not text in the encoding that is read: write encoding="):
        rows_of(tmp_path, text_of(ROWS_LATIN, "csv").encode("latin-1"), SCHEMA, format="csv")


@pytest.mark.parametrize("format", ["csv", "json"])
@pytest.mark.parametrize(("encoding", "spoiled", "shown"), [("utf-8", b"\xe9", "UTF-8"), ("cp1252", b"\x81", "cp1252")])
def test_bytes_that_are_not_of_the_encoding_make_their_record_bad_alone(
    tmp_path: Path, format: str, encoding: str, spoiled: bytes, shown: str
) -> None:
    text = text_of([{"id": number, "größe": "@" if number == 5 else "ä"} for number in range(9)], format)
    data = text.encode(encoding).replace(b"@", spoiled)
    rows = rows_of(tmp_path, data, SCHEMA, format=format, encoding=encoding, block_size="40 B", **REJECT)
    assert [(row["id"], row["größe"]) for row in good(rows)] == [(number, "ä") for number in range(9) if number != 5]
    (one,) = rejected(rows)
    assert f"it is not {shown}" in one["reason"]
    assert one["position"] == ("file:7" if format == "csv" else "file:6")
    (tmp_path / "workspace").rename(tmp_path / "before")
    with pytest.raises(BadRow, match=r'encoding= if the file is not UTF-8 ."utf-16", "latin-1", "cp1252"'):
        rows_of(tmp_path, data, SCHEMA, format=format, encoding=encoding)


@pytest.mark.parametrize("format", ["csv", "json"])
@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "shift_jis"])
def test_a_file_in_any_encoding_is_counted_cut_and_compressed_like_others(
    tmp_path: Path, format: str, encoding: str
) -> None:
    wanted = [{"id": number, "n": "x" * (number % 7)} for number in range(50)]
    lines = [f"{row['id']},{row['n']}" if format == "csv" else json.dumps(row) for row in wanted]
    lines[20] = lines[20].replace("20", "none")
    data = "\n".join([*(["id,n"] if format == "csv" else []), *lines]).encode(encoding)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "file").write_bytes(data)
    (tmp_path / "in" / "packed.gz").write_bytes(gzip.compress(data))
    ways: list[dict[str, Any]] = [{"block_size": "100 B"}, {"max_rows_per_epoch": 8}, {}]
    for number, options in enumerate(ways):
        source = source_over(
            tmp_path / "in",
            tmp_path / str(number),
            "id INT, n STRING",
            format=format,
            encoding=encoding,
            **REJECT,
            **options,
        )
        rows = everything(source)
        assert sorted(row["id"] for row in good(rows)) == sorted(2 * [*range(20), *range(21, 50)])
        line = 22 if format == "csv" else 21
        assert sorted(one["position"] for one in rejected(rows)) == [f"file:{line}", f"packed.gz:{line}"]


def test_an_encoding_that_is_declared_after_the_file_was_taken_is_that_of_its_blocks(tmp_path: Path) -> None:
    """Where a line ends in bytes depends on the encoding: a block could begin within a character."""
    wanted = [{"a": number, "b": "ü"} for number in range(20)]
    text = "".join(f"{row['a']},{row['b']}\n" for row in wanted)
    (tmp_path / "in").mkdir()
    for encoding in ("latin-1", "utf-16-le"):
        (tmp_path / "in" / "file").write_bytes(text.encode(encoding))
        options = {"format": "csv", "header": False, "block_size": "50 B", **REJECT}
        source = source_over(tmp_path / "in", tmp_path / encoding, "a INT, b STRING", **options)
        end = source.latest(source.initial(), bounded=False)
        source = source_over(tmp_path / "in", tmp_path / encoding, "a INT, b STRING", encoding=encoding, **options)
        spans = source.spans(source.initial(), end, parallelism=1)
        rows = [row for span in spans for batch in source.read(span) for row in batch.to_pylist()]
        if encoding == "latin-1":
            assert good(rows) == wanted
        else:
            assert good(rows) == []
            assert {one["reason"].partition(":")[0] for one in rejected(rows)} == {
                "it was divided as a file of another encoding than utf-16-le"
            }


@pytest.mark.parametrize("encoding", ["klingon", "base64", "", "undefined"])
def test_what_is_no_encoding_of_texts_is_refused_while_building(encoding: str) -> None:
    with pytest.raises(InvalidPipeline, match="encoding="):
        read.files("in", schema="a INT", encoding=encoding, name="source")


def test_parquet_has_no_encoding() -> None:
    with pytest.raises(InvalidPipeline, match="is for JSON lines and CSV"):
        read.files("in", schema="a INT", format="parquet", encoding="latin-1", name="source")


@pytest.mark.parametrize("text", ["a,b\r1,x\r2,y\r", "a,b\r1,x\r2,y", "\ufeffa,b\r1,x", 'a,"b"\r1,"x"\r'])
def test_a_csv_file_whose_lines_end_in_cr_alone_is_refused_by_name(tmp_path: Path, text: str) -> None:
    """All of it was taken for its header: no row, and not a word."""
    with pytest.raises(
        BadRow, match=r"file cannot be read: the header contains a carriage return .lines that end in it"
    ):
        rows_of(tmp_path, text, "a INT, b STRING", format="csv")
    (tmp_path / "workspace").rename(tmp_path / "before")
    (row,) = rows_of(tmp_path, text, "a INT, b STRING", format="csv", **REJECT)
    assert rejected([row])[0]["position"] == "file:0"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("1,x\r2,y\r", {"format": "csv", "header": False}),
        ('{"a":1}\r{"a":2}\r', {"format": "json"}),
        ('a,"b\n1,x\n2,y"\n', {"format": "csv"}),
        ('a,"b\n1,x\n', {"format": "csv"}),
        ("c,d\n", {"format": "csv"}),
        ("a;b\n", {"format": "csv"}),
        ("a,b,c\n" + "x" * 200, {"format": "csv", "max_record_size": "100 B"}),
        ("a" * 200, {"format": "csv", "max_record_size": "100 B"}),
    ],
)
def test_a_file_that_holds_something_and_gives_no_row_gives_a_reject(
    tmp_path: Path, text: str, options: dict[str, Any]
) -> None:
    rows = rows_of(tmp_path, text, "a INT, b STRING", **REJECT, **options)
    assert good(rows) == []
    assert rejected(rows) != []


@pytest.mark.parametrize("text", ["a,b\n", "a,b", "a,b\r\n\r\n", "\n", "\r\n\r\n", "\ufeff", "\r"])
def test_a_file_of_a_header_or_of_nothing_is_no_row_and_no_error(tmp_path: Path, text: str) -> None:
    assert rows_of(tmp_path, text, "a INT, b STRING", format="csv") == []
