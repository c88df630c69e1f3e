"""Rows packed for the server's script: whatever they are, and however they are cut, each value is what it was."""

from __future__ import annotations

import json
import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.connectors.redis import form as redis_form
from holdfast.connectors.redis.form import NAMED, Form
from holdfast.errors import BadRow
from tests.everyday import examples

SCHEMA = pa.schema([("id", pa.string()), ("n", pa.int64()), ("text", pa.string()), ("raw", pa.binary())])
ROWS = st.lists(
    st.tuples(
        st.text(max_size=4),
        st.none() | st.integers(-(2**63), 2**63 - 1),
        st.none() | st.text(max_size=20),
        st.none() | st.binary(max_size=20),
    ),
    max_size=40,
)


def unpacked(chunk: bytes) -> list[list[bytes | None]]:
    """Return the rows of a chunk, as the script reads them."""
    rows, columns = struct.unpack_from("<II", chunk)
    at, values = 8, []
    for _ in range(columns - NAMED):
        (called,) = struct.unpack_from("<I", chunk, at)
        at += 4 + called
        (size,) = struct.unpack_from("<I", chunk, at)
        lengths = struct.unpack_from(f"<{rows}i", chunk, at + 4)
        at += 4 + 4 * rows
        end, column = at + size, []
        for length in lengths:
            column.append(None if length < 0 else chunk[at : at + max(length, 0)])
            at += max(length, 0)
        assert at == end
        values.append(column)
    assert at == len(chunk)
    return [list(row) for row in zip(*values, strict=True)]


def batch_of(rows: list[Any], offset: int) -> pa.RecordBatch:
    """Return rows as part of a larger batch: buffers begin before them, and end after them."""
    padding = [("x" * 9, 7, "pad", b"pad")]
    table = [*padding * offset, *rows, *padding]
    columns = [pa.array([row[number] for row in table], field.type) for number, field in enumerate(SCHEMA)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA).slice(offset, len(rows))


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(rows=ROWS, offset=st.integers(0, 9), limit=st.sampled_from([1, 3, 500]), size=st.sampled_from([60, 1 << 20]))
def test_each_value_of_each_row_is_packed_once_in_order(rows: list[Any], offset: int, limit: int, size: int) -> None:
    wanted = [
        [
            id.encode(),
            None if n is None else str(n).encode(),
            None if text is None else text.encode(),
            raw,
        ]
        for id, n, text, raw in rows
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redis_form, "CHUNK_ROWS", limit)
        patch.setattr(redis_form, "CHUNK_BYTES", size)
        chunks = list(Form("k", "stream", "id").chunks("sink 's'", batch_of(rows, offset)))
        named = list(Form("k", "hash", "id").chunks("sink 's'", batch_of(rows, offset)))
    assert [row for _, chunk in chunks for row in unpacked(chunk)] == wanted
    assert [row for _, chunk in named for row in unpacked(chunk)] == [[row[0], *row] for row in wanted]
    assert all(count == len(unpacked(chunk)) <= limit for count, chunk in chunks)
    assert all(len(chunk) <= size or count == 1 for count, chunk in chunks)


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(rows=ROWS, offset=st.integers(0, 9))
def test_a_row_as_json_is_one_value_whatever_is_in_it(rows: list[Any], offset: int) -> None:
    batch = batch_of(rows, offset).drop_columns(["raw"])
    found = [row for _, chunk in Form("k", "fields", "id").chunks("sink 's'", batch) for row in unpacked(chunk)]
    assert [name for name, _ in found] == [row[0].encode() for row in rows]
    assert [json.loads(value or b"") for _, value in found] == [
        {"id": id, "n": n, "text": text} for id, n, text, _ in rows
    ]


def test_a_row_that_no_server_takes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_form, "CHUNK_BYTES", 50)
    monkeypatch.setattr(redis_form, "ROW_BYTES_MAX", 200)
    batch = batch_of([("a", 1, "x" * 300, None)], 0)
    with pytest.raises(BadRow, match=r"a row has 3.. bytes"):
        Form("k", "stream", "id").check("sink 's'", batch)


def test_text_that_is_not_utf8_is_kept_in_a_stream_and_refused_as_json() -> None:
    text = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")])
    batch = pa.RecordBatch.from_arrays([pa.array(["a"]), text], names=["id", "text"])
    ((_, chunk),) = Form("k", "stream", "id").chunks("sink 's'", batch)
    assert unpacked(chunk) == [[b"a", b"\xff\xfe"]]
    with pytest.raises(BadRow, match="'text'"):
        Form("k", "fields", "id").check("sink 's'", batch)
