"""The reader on the page of the format reads what the sink writes, and knows nothing of Holdfast."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.pages import ROOT, blocks
from tests.unit.byte_streams import PIPELINE, Writing, frames

(BLOCK,) = (block for block in blocks(ROOT / "docs/formats/byte-stream.md", "python") if block.file_name)


@pytest.fixture
def reader() -> ModuleType:
    module = ModuleType("read_byte_stream")
    exec(compile(BLOCK.text, str(BLOCK), "exec"), module.__dict__)
    return module


@pytest.fixture
def writing(tmp_path: Path) -> Writing:
    return Writing(tmp_path / "store", {"target_bytes": 300})


def test_it_has_60_lines_at_most_and_needs_nothing_but_python() -> None:
    assert len(BLOCK.text.splitlines()) <= 60
    assert "holdfast" not in BLOCK.text


def test_it_prints_the_messages_of_a_stream_from_a_time_on(writing: Writing, tmp_path: Path) -> None:
    writing.publish(*frames(0, 40, camera="front/left"))
    (tmp_path / "read.py").write_text(BLOCK.text)
    command = [sys.executable, "read.py", f"store/{PIPELINE}/out", "front/left", "33"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    wanted = [f"{at} {at} {int(at % 5 == 0)} {(f'{at:06}'.encode() * 3).hex()}" for at in range(30, 40)]
    assert found.splitlines() == wanted


def test_it_reads_what_the_source_reads(writing: Writing, reader: ModuleType) -> None:
    for epoch in range(10):
        writing.publish(*frames(3 * epoch, 3 * epoch + 3), *frames(2, 4, camera=".."))
        if epoch % 3 == 0:
            writing.opened()
    writing.rewind(5)
    writing.publish(*frames(50, 60))
    branch = f"{writing.path}/{PIPELINE}/out"
    for name in ("front", ".."):
        found = [(at, name, bool(key), payload) for _, at, key, payload in reader.messages(branch, name)]
        assert found == writing.messages(name)
        for time in range(-1, 62):
            first = next((ordinal for ordinal, *_ in reader.messages(branch, name, time)), None)
            assert first == writing.stream(name).access_point(time)


@pytest.mark.slow
def test_it_finds_every_damaged_byte_of_what_it_reads(writing: Writing, reader: ModuleType) -> None:
    writing.publish(*frames(0, 20))
    branch = Path(writing.path) / PIPELINE / "out"
    newest = sorted((branch / "log").iterdir())[-1]
    for path in [newest, *sorted((branch / "streams/front").iterdir())]:
        whole = path.read_bytes()
        for place in range(len(whole)):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
            with pytest.raises(AssertionError, match=f"{path.name} is damaged"):
                list(reader.messages(str(branch), "front"))
        path.write_bytes(whole)
