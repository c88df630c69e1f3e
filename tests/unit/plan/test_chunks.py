"""Chunks on their way through Spark, as rows of a batch."""

from __future__ import annotations

import gc
import sys

import pyarrow as pa
import pytest

from holdfast.plan.chunks import DRIVER, REPORT, Chunk, Routing, from_batch

ROUTING = Routing((), 1, 1)


def test_a_batch_holds_the_bytes_of_its_chunks() -> None:
    given = [b"", b"some", pa.py_buffer(b"others"), pa.py_buffer(b"a part of them").slice(2, 4)]
    chunks = [Chunk(DRIVER, 0, REPORT, 0, number, "", data) for number, data in enumerate(given)]
    found = from_batch(ROUTING.to_batch(chunks, 1))
    assert [bytes(chunk.data) for chunk in found] == [b"", b"some", b"others", b"part"]
    assert from_batch(ROUTING.to_batch([], 1)) == []


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3])
def test_a_chunk_that_has_been_sent_leaves_nothing_behind(count: int) -> None:
    """A worker lives as long as its run."""
    data = bytes(1000)
    before = sys.getrefcount(data)
    batch = ROUTING.to_batch([Chunk(DRIVER, 0, REPORT, 0, number, "", data) for number in range(count)], 1)
    del batch
    gc.collect()
    assert sys.getrefcount(data) == before
