"""The reader on the page of the format reads what is written; the blocks of the page on video run in order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given

import holdfast as hf
from holdfast.video import CodecParameters, EncodedPacket
from holdfast.video.decoding import CURES
from tests.docs.pages import ROOT, blocks, prose
from tests.unit.video.test_packets import PACKETS

(READER,) = (block for block in blocks(ROOT / "docs/formats/video-packet.md", "python") if block.file_name)
PAGE = ROOT / "docs/operators/video.md"


def reader() -> ModuleType:
    module = ModuleType("read_packet")
    exec(compile(READER.text, str(READER), "exec"), module.__dict__)
    return module


def test_the_reader_needs_nothing_but_python() -> None:
    assert len(READER.text.splitlines()) <= 40
    assert "holdfast" not in READER.text


@given(PACKETS)
def test_it_reads_what_is_written(packet: EncodedPacket) -> None:
    found = reader().read(packet.to_bytes())
    described, extradata = found.pop("parameters"), found.pop("extradata")
    parameters = CodecParameters(**described, extradata=extradata) if described else None
    assert EncodedPacket(**found, parameters=parameters) == packet


def test_it_prints_a_packet_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "read.py").write_text(READER.text)
    packet = EncodedPacket(b"abc", 7, None, 0, True, CodecParameters("h264", 2, 2, "yuv420p", b"\x01"))
    (tmp_path / "packet").write_bytes(packet.to_bytes())
    command = [sys.executable, "read.py", "packet"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert found == "7 None True {'codec': 'h264', 'width': 2, 'height': 2, 'pixel_format': 'yuv420p'} 3\n"


@pytest.mark.slow
def test_the_blocks_of_the_page_run_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks(PAGE, "python"):
        exec(compile(block.text, str(block), "exec"), names)


def test_each_calculator_and_each_reason_is_on_the_page() -> None:
    text = prose(PAGE)
    assert [name for name in ("decode", "encode", "mux", "demux", "draw") if f"\n## {name}\n" not in text] == []
    assert [reason for reason in CURES if reason and reason not in text] == []
    assert {name for name in dir(hf.video) if name in ("VideoFrame", "EncodedPacket", "message_times")} == {
        name for name in ("VideoFrame", "EncodedPacket", "message_times") if f"`hf.video.{name}" in text
    }
