"""Cutting never loses, doubles or divides a record, whatever the bytes."""

from __future__ import annotations

import csv
import io
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.connectors.formats import blocks, csv_quotes, csv_records
from holdfast.connectors.formats.csv_records import Walk

lines = st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"")), max_size=30)
ends = st.sampled_from([b"\n", b"\r\n"])
fields = st.text(st.sampled_from('ab,"\n\ré '), max_size=6)
tables = st.lists(st.lists(fields, min_size=2, max_size=3), max_size=20)


def as_csv(rows: list[list[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_MINIMAL).writerows(rows)
    return text.getvalue().encode()


def records_of(data: bytes) -> list[tuple[int, int, str]]:
    return list(Walk(data, ",", longest=1 << 30).records())


def pieces_of(data: bytes, cuts: list[blocks.TextBlock]) -> list[bytes]:
    assert cuts[0].start == 0
    assert cuts[-1].end == len(data)
    assert all(one.end == other.start for one, other in pairwise(cuts))
    return [data[cut.start : cut.end] for cut in cuts]


@pytest.mark.slow
@given(lines, ends, st.booleans(), st.integers(1, 40))
def test_blocks_of_lines_are_the_lines(parts: list[bytes], end: bytes, closed: bool, block_size: int) -> None:
    data = end.join(parts) + (end if closed else b"")
    if not data:
        return
    pieces = pieces_of(data, blocks.cut_around(io.BytesIO(data), len(data), block_size))
    assert b"".join(pieces) == data
    assert all(piece.endswith(b"\n") for piece in pieces[:-1])


@pytest.mark.slow
@given(lines, ends, st.integers(1, 40), st.none() | st.integers(1, 5))
def test_counted_blocks_hold_the_lines_they_say(parts: list[bytes], end: bytes, size: int, rows: int | None) -> None:
    data = end.join(parts)
    cuts = blocks.cut_counted(io.BytesIO(data), len(data), block_size=size, rows=rows, separator=None)
    assert cuts is not None
    if not data:
        assert cuts == []
        return
    pieces = pieces_of(data, cuts)
    assert [cut.row_count for cut in cuts] == [len(io.BytesIO(piece).readlines()) for piece in pieces]
    assert all(rows is None or (cut.row_count or 0) <= rows for cut in cuts)


@pytest.mark.slow
@given(tables, st.integers(1, 40), st.none() | st.integers(1, 5))
def test_blocks_of_csv_are_whole_records(table: list[list[str]], block_size: int, rows: int | None) -> None:
    data = as_csv(table)
    cuts = blocks.cut_counted(io.BytesIO(data), len(data), block_size=block_size, rows=rows, separator=",")
    assert cuts is not None
    if data:
        read = [row for piece in pieces_of(data, cuts) for row in csv.reader(io.StringIO(piece.decode(), newline=""))]
        assert read == list(csv.reader(io.StringIO(data.decode(), newline="")))
        assert sum(cut.row_count or 0 for cut in cuts) == len(table)


@pytest.mark.slow
@given(tables)
def test_the_tolerant_walk_finds_the_records_of_clean_csv(table: list[list[str]]) -> None:
    data = as_csv(table)
    found = records_of(data)
    assert b"".join(data[start:end] for start, end, _ in found) == data
    assert [problem for *_, problem in found] == [""] * len(table)
    assert [end for _, end, _ in found] == blocks.quotes(data, ",").ends.tolist()


@pytest.mark.slow
@given(st.text(st.sampled_from('a,"\n'), max_size=40))
def test_any_bytes_are_covered_once_and_clean_means_exact(text: str) -> None:
    data = text.encode()
    found = records_of(data)
    assert b"".join(data[start:end] for start, end, _ in found) == data
    quotes = blocks.quotes(data, ",")
    if quotes.is_clean:
        assert all(problem == "" for *_, problem in found)
        assert [end for _, end, _ in found if data[end - 1 : end] == b"\n"] == quotes.ends.tolist()
    else:
        assert b'"' in data


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_file_larger_than_what_is_looked_at_once_is_cut_the_same(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    data = as_csv([["a", 'x\n"y"'], ["", "b"], ["c,d", "\n\n"]] * 5)
    whole = blocks.cut_counted(io.BytesIO(data), len(data), block_size=20, rows=2, separator=",")
    monkeypatch.setattr(blocks, "_SCANNED", size)
    monkeypatch.setattr(blocks, "_AROUND_CUT", size)
    assert blocks.cut_counted(io.BytesIO(data), len(data), block_size=20, rows=2, separator=",") == whole
    plain = b"abc\ndefgh\n\nij"
    assert b"".join(pieces_of(plain, blocks.cut_around(io.BytesIO(plain), len(plain), 4))) == plain


@pytest.mark.parametrize("text", ['a,5" pipe\nb,"c\nd"\n', 'a,"b\nc,d\n', 'a,"b"c\nd,e\n'])
def test_a_quote_that_stands_wrong_forbids_cutting(text: str) -> None:
    data = text.encode()
    assert blocks.cut_counted(io.BytesIO(data), len(data), block_size=4, rows=None, separator=",") is None


def test_a_quote_left_open_spoils_its_line_only() -> None:
    data = b'1,a\n2,"b\n3,c\n4,"d"\n'
    found = [(data[start:end], bool(problem)) for start, end, problem in records_of(data)]
    assert found == [(b"1,a\n", False), (b'2,"b\n', True), (b"3,c\n", False), (b'4,"d"\n', False)]


@pytest.mark.slow
@given(
    st.text(st.sampled_from('a,"\n\r'), max_size=60), st.integers(1, 20), st.sampled_from([3, 10, 100]), st.booleans()
)
def test_lines_judged_together_are_those_walked_over_one_by_one(
    text: str, at_once: int, longest: int, whole: bool
) -> None:
    data = text.encode()
    judged = csv_quotes.judged

    def unknown(*arguments: Any) -> csv_quotes.Lines:
        lines = judged(*arguments)
        return lines._replace(verdicts=np.full(len(lines.ends), csv_quotes.UNKNOWN, np.uint8))

    def walk() -> list[tuple[int, int, str]]:
        return list(Walk(data, ",", longest=longest, is_whole=whole).records())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_records, "_LINES", at_once)
        patch.setattr(csv_records, "_FIRST_LINES", at_once)
        together = walk()
        patch.setattr(csv_quotes, "judged", unknown)
        assert together == walk()


@pytest.mark.slow
@example([b"\r", b""], b"\r\n", False)
@given(lines, ends, st.booleans())
def test_records_are_the_lines_that_are_not_empty(parts: list[bytes], end: bytes, closed: bool) -> None:
    data = end.join(parts) + (end if closed else b"")
    expected = [line for line in data.split(b"\n") if line.rstrip(b"\r")]  # as Arrow: one of CRs alone is empty, too
    assert blocks.record_count(data) == len(expected)
