"""A planning process that is killed at any moment: what it handed out stays, and no file is lost or doubled."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.sources.reading import everything, source_over

PLANNER = """
import json, sys
from holdfast import read
directory, workspace = sys.argv[1:]
options = json.loads(sys.stdin.readline())
spec = read.files(directory, schema="id INT", name="source", **options).node.spec
source = spec.open("source", workspace)
start = source.initial()
print("ready", flush=True)
for line in sys.stdin:
    end = source.latest(start, bounded=False)
    spans = source.spans(start, end, parallelism=2)
    source.committed(start)
    print(json.dumps([start["log"], end["log"], [list(map(list, span.value)) for span in spans]]), flush=True)
    start = end
"""


def planner(directory: Path, workspace: Path, options: dict[str, int]) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PLANNER, os.fspath(directory), os.fspath(workspace)]
    started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert started.stdin is not None
    assert started.stdout is not None
    started.stdin.write(json.dumps(options) + "\n")
    started.stdin.flush()
    assert started.stdout.readline() == "ready\n"
    return started


@pytest.mark.crash
@pytest.mark.parametrize("seed", range(3))
def test_a_killed_planner_leaves_a_log_that_the_next_one_goes_on_with(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    directory = tmp_path / "in"
    directory.mkdir()
    options = chance.choice([{}, {"max_rows_per_epoch": 2}, {"max_files_per_epoch": 1}])
    count = 0
    handed_out: list[tuple[int, int, list[object]]] = []
    for _ in range(8):
        process = planner(directory, tmp_path / "workspace", options)
        assert process.stdin is not None
        assert process.stdout is not None
        rounds = chance.randrange(1, 12)
        for turn in range(rounds):
            for _ in range(chance.randrange(4)):
                aside = directory / "_new"
                aside.write_text(f'{{"id":{count}}}\n')
                os.rename(aside, directory / f"{count:06d}.json")
                count += 1
            process.stdin.write("\n")
            process.stdin.flush()
            if turn < rounds - 1:
                handed_out.append(json.loads(process.stdout.readline()))
        # The last request is under way: the signal meets it wherever it is.
        os.kill(process.pid, signal.SIGKILL)
        rest = process.stdout.read().splitlines()
        handed_out += [json.loads(line) for line in rest if line.endswith("]]")]
        process.stdin.close()
        process.stdout.close()
        process.wait()
    source = source_over(directory, tmp_path / "workspace", "id INT", **options)
    assert sorted(row["id"] for row in everything(source)) == list(range(count))
    assert handed_out
    for start, end, spans in handed_out:
        again = source.spans({"log": start}, {"log": end}, parallelism=2)
        assert json.loads(json.dumps([list(map(list, span.value)) for span in again])) == spans
