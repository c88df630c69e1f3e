"""``holdfast video import``, killed before or in the middle of any durable write, and repeated: each packet once.

The store equals that of an undisturbed import: the same messages under the same ordinals, and nothing else on the disk.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.connectors.byte_stream import append
from holdfast.connectors.byte_stream.branch import branches
from holdfast.footage.importing import VideoImport
from tests.byte_store import verify
from tests.crash import video_import_process
from tests.crash.operations import die_once, die_twice, torn_write
from tests.unit.video.made_videos import write_video

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

START = 1_767_225_600 * 10**9
KILLS = (0, 4, 9, 15, 22, 30, 38, 46, 54)


Message = tuple[int, bool, bytes]


def _messages(store: Path) -> list[Message]:
    (branch,) = branches(os.fspath(store)).values()
    view = branch.view().streams["cam1"]
    assert verify(os.fspath(store)) == view.end
    named = {f"{file.stem}.data": file.size for file in view.files}
    named |= {f"{file.stem}.index": file.index_size for file in view.files}
    there = {path.name: path.stat().st_size for path in Path(view.directory).iterdir()}
    assert {name: size for name, size in there.items() if not name.endswith(".files")} == named
    return [
        (at, is_key, bytes(payload))
        for chunk in view.read(0, view.end)
        for at, is_key, payload in zip(chunk.timestamps, chunk.keys, chunk.payloads, strict=True)
    ]


class Importing:
    """Two files into one stream; dying leaves nothing but the store."""

    def __init__(self, directory: Path, files: Sequence[Path], wanted: Sequence[Message]) -> None:
        self.directory = directory
        self.files = files
        self.wanted = wanted

    def run(self) -> None:
        with VideoImport(os.fspath(self.directory), "cam1", batch_bytes=1500) as each:
            for number, file in enumerate(self.files):
                each.add(os.fspath(file), None if number else START)

    def recover(self) -> None:
        self.run()
        self.run()  # what a death left after the last commit is removed by who opens the stream next

    def check(self) -> None:
        assert _messages(self.directory) == self.wanted


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return [write_video(tmp_path / "1.mp4", 30), write_video(tmp_path / "2.ts", 20, first=30)]


@pytest.fixture
def wanted(tmp_path: Path, files: list[Path]) -> list[Message]:
    undisturbed = Importing(tmp_path / "undisturbed", files, [])
    undisturbed.run()
    found = _messages(undisturbed.directory)
    assert len(found) == 50
    return found


@pytest.fixture
def _torn_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append, "write_all", torn_write)
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # a process dies here, not the machine: only time would be lost


@pytest.mark.slow
@pytest.mark.usefixtures("_torn_writes")
def test_a_death_at_any_durable_write_of_an_import_loses_and_doubles_no_packet(
    tmp_path: Path, files: list[Path], wanted: list[Message]
) -> None:
    changes = die_once(lambda n: Importing(tmp_path / f"store-{n}", files, wanted))
    assert changes > 50, "the audit hook saw the work"


@pytest.mark.nightly
@pytest.mark.usefixtures("_torn_writes")
def test_a_second_death_while_the_import_is_repeated_loses_and_doubles_no_packet(
    tmp_path: Path, files: list[Path], wanted: list[Message]
) -> None:
    assert die_twice(lambda name: Importing(tmp_path / f"store-{name}", files, wanted), 3, 7) > 50


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def _killed(store: Path, files: Sequence[Path], left: int) -> bool:
    """Import in a process that is killed at a change; return whether it was."""
    program = [sys.executable, video_import_process.__file__, "once"]
    command = [*program, os.fspath(store), str(left), *map(os.fspath, files)]
    code = subprocess.run(command, env=_environment(), timeout=120, check=False).returncode
    assert code in (0, -signal.SIGKILL)
    return code != 0


@pytest.mark.crash
@pytest.mark.parametrize("left", KILLS)
def test_a_sigkill_at_a_durable_write_and_the_same_command_again_leave_what_an_undisturbed_import_does(
    tmp_path: Path, files: list[Path], wanted: list[Message], left: int
) -> None:
    store = tmp_path / "store"
    assert _killed(store, files, left)
    assert not _killed(store, files, 10**6)
    assert _messages(store) == wanted


@pytest.mark.nightly
def test_a_sigkill_at_every_durable_write_leaves_what_an_undisturbed_import_does(
    tmp_path: Path, files: list[Path], wanted: list[Message]
) -> None:
    command = [sys.executable, video_import_process.__file__, "every", os.fspath(tmp_path), *map(os.fspath, files)]
    subprocess.run(command, env=_environment(), timeout=500, check=True)
    stores = sorted(tmp_path.glob("store-*"))
    assert len(stores) > 50
    for store in stores:
        assert _messages(store) == wanted
