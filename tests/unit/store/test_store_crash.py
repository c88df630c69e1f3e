"""The local store under real SIGKILLs and real races between processes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.store.local import LocalStore

pytestmark = pytest.mark.crash

_OBJECT_BYTES = 200_000

_WRITER = f"""
import sys
from holdfast.store.local import LocalStore
store = LocalStore(sys.argv[1])
print("opened", flush=True)
number = int(sys.argv[2])
while True:
    number += 1
    data = b"%020d" % number * ({_OBJECT_BYTES} // 20)
    store.put("replaced", data)
    store.put_if_absent(f"created/{{number:012}}", data)
    print(number, flush=True)
"""

_RACER = """
import sys
from holdfast.store.local import LocalStore
store, me = LocalStore(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
for number in range(200):
    if store.put_if_absent(f"race/{number:03}", me.encode()):
        print(number, flush=True)
"""


def _start(program: str, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


def _is_whole(data: bytes | None) -> bool:
    return data is not None and len(data) == _OBJECT_BYTES and data == data[:20] * (_OBJECT_BYTES // 20)


def test_a_reader_never_sees_a_part_of_an_object_and_a_kill_leaves_none(tmp_path: Path) -> None:
    """Killed after a random number of reads, so at any moment of a write; what was reported is there."""
    directory = os.fspath(tmp_path / "store")
    moments = random.Random(20_261)
    store = LocalStore(directory)
    last = 0
    for _ in range(12):
        writer = _start(_WRITER, directory, str(last))
        assert writer.stdout is not None
        assert writer.stdout.readline() == "opened\n"
        writer.stdout.readline()
        for _ in range(moments.randrange(1, 150)):
            assert _is_whole(store.get("replaced"))
        writer.kill()
        reported = [int(line) for line in writer.communicate()[0].split()]
        assert _is_whole(store.get("replaced"))
        created = store.keys("created/")
        assert all(_is_whole(store.get(key)) for key in created)
        last = int(created[-1].rpartition("/")[2])
        assert all(f"created/{number:012}" in created for number in reported)
    LocalStore(directory).prepare()
    assert os.listdir(os.path.join(directory, ".writing")) == []


def test_of_several_processes_exactly_one_creates_each_object(tmp_path: Path) -> None:
    directory = os.fspath(tmp_path / "store")
    racers = [_start(_RACER, directory, str(index)) for index in range(4)]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    _release(racers)
    won = {str(index): {int(n) for n in racer.communicate()[0].split()} for index, racer in enumerate(racers)}
    assert all(racer.returncode == 0 for racer in racers)
    assert sum(len(numbers) for numbers in won.values()) == 200
    store = LocalStore(directory)
    for index, numbers in won.items():
        assert all(store.get(f"race/{number:03}") == index.encode() for number in numbers)
    assert os.listdir(os.path.join(directory, ".writing")) == []


def _release(racers: Sequence[subprocess.Popen[str]]) -> None:
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
