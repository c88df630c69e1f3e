"""Compressed files of several members, as ``cat a.bz2 b.bz2`` makes them: all rows, or a bad file that says so."""

from __future__ import annotations

import bz2
import gzip
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.connectors.formats.access import FilePart, Undecodable
from holdfast.errors import Corrupt
from tests.everyday import examples
from tests.unit.sources.reading import everything, good, rejected, source_over


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


CODECS: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".bz2": bz2.compress, ".zst": zstd}
ALWAYS_BAD = [b"garbage", b"\n", bytes(512), b"BZh", b"\x1f\x8b", b"\x28\xb5\x2f"]


def content_of(path: Path, size: int) -> bytes | None:
    """Return what a file holds when it is read ``size`` bytes at a time; None if it cannot be decompressed."""
    try:
        return b"".join(FilePart(str(path), path.stat().st_size, 0, -1).stream(size))
    except Undecodable:
        return None


@pytest.mark.parametrize("ending", CODECS)
def test_a_member_that_is_empty_is_one_wherever_it_stands(tmp_path: Path, ending: str) -> None:
    """``.bz2`` with one between two others was refused with a text of the library about its own calls."""
    compress = CODECS[ending]
    texts = ["", '{"a":1}\n', "", "", '{"a":2}\n{"a":3}\n', ""]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / f"file.json{ending}").write_bytes(b"".join(compress(text.encode()) for text in texts))
    (tmp_path / "in" / f"nothing.json{ending}").write_bytes(compress(b"") * 3)
    rows = everything(source_over(tmp_path / "in", tmp_path / "w", "a INT"))
    assert [row["a"] for row in rows] == [1, 2, 3]


@pytest.mark.parametrize("ending", CODECS)
def test_what_follows_the_last_member_makes_a_bad_file(tmp_path: Path, ending: str) -> None:
    compress, path = CODECS[ending], tmp_path / f"file{ending}"
    for garbage in ALWAYS_BAD:
        for size in (3, 1 << 20):
            path.write_bytes(compress(b"a\n" * 9) + compress(b"") + garbage)
            assert content_of(path, size) is None, f"{garbage!r}, read by {size}"


@pytest.mark.slow
@pytest.mark.parametrize("ending", CODECS)
@pytest.mark.parametrize("seed", range(examples(25)))
def test_a_file_of_members_gives_all_that_it_holds_or_is_a_bad_file(tmp_path: Path, ending: str, seed: int) -> None:
    chance, compress, path = random.Random(seed), CODECS[ending], tmp_path / f"file{ending}"
    contents = [
        chance.randbytes(chance.choice([0, 0, 1, 50, 5000, 200_000])) + b"x" * chance.choice([0, 3, 300_000])
        for _ in range(chance.randrange(1, 7))
    ]
    contents = [b"" if chance.random() < 0.3 else content for content in contents]
    packed = [compress(content) for content in contents]
    borders = {sum(map(len, packed[:count])): b"".join(contents[:count]) for count in range(len(packed) + 1)}
    data = b"".join(packed)
    ends = {
        len(data),
        *chance.choices(range(1, len(data)), k=20),
        *(end + more for end in borders for more in (-1, 0, 1)),
    }
    for end in sorted(end for end in ends if 0 < end <= len(data)):
        path.write_bytes(data[:end])
        for size in (chance.choice([1000, 4097]), 1 << 20):
            assert content_of(path, size) == borders.get(end), f"{end} of {len(data)} bytes, read by {size}"


@pytest.mark.parametrize("ending", CODECS)
def test_a_damaged_member_refuses_the_file_with_all_of_its_rows(tmp_path: Path, ending: str) -> None:
    compress = CODECS[ending]
    data = compress(b'{"a":1}\n') + compress(b'{"a":2}\n' * 1000)[:-9] + compress(b'{"a":3}\n')
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / f"file{ending}").write_bytes(data)
    with pytest.raises(Corrupt, match="cannot be decompressed"):
        everything(source_over(tmp_path / "in", tmp_path / "w", "a INT"))
    rows = everything(source_over(tmp_path / "in", tmp_path / "w2", "a INT", on_bad_row="reject"))
    assert good(rows) == []
    assert [one["position"] for one in rejected(rows)] == [f"file{ending}:0"]
