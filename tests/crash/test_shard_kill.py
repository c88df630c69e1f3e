"""Four shards under SIGKILLs of their driver, and failures of one of them: every row once (design/0048, section 5)."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast import segments
from holdfast.shards.naming import shard_name
from tests.crash.processes import ROOT
from tests.crash.shards_process import DOWN, SHARDS
from tests.spark.running import arrive, eventually, sqlite_rows

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.timeout(7200)]

KILLS = int(os.environ.get("HOLDFAST_JVM_KILLS", "2"))
"""How often the driver is killed: 30 times in ``make nightly``."""
FILES = 24
WITHIN_S = 400
SEED = int(os.environ.get("HOLDFAST_SEED", "7"))


@contextmanager
def driver(work: Path, seed: int, count: int = 0) -> Iterator[subprocess.Popen[str]]:
    """Give a driver that has begun all of its shards; it is gone afterwards, with its JVM."""
    variables = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "HOLDFAST_DRIVER_MEMORY": "1 GiB"}
    command = [sys.executable, "-m", "tests.crash.shards_process", str(work), str(seed), str(count)]
    said = work / "said"  # by all drivers: shown where one fails
    with said.open("ab") as errors:
        process = subprocess.Popen(
            command, env=variables, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        yield process
    except BaseException:
        sys.stderr.write(said.read_text()[-8_000:])
        raise
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def more_rows(work: Path, ids: list[int]) -> None:
    """Let files of ten rows arrive; their names are spread over the segments."""
    for _ in range(FILES):
        first = len(ids)
        new = [*range(first, first + 10)]
        arrive(work / "in", f"{first:05}.json", [{"id": each} for each in new])
        ids += new


def epoch_of(work: Path, shard: int) -> int:
    """Return the last epoch that a shard has published in the table, as an outside reader sees it."""
    query = f"SELECT epoch FROM holdfast_ledger WHERE pipeline = '{shard_name('numbers', shard)}'"
    return max(sqlite_rows(work / "table.db", query), default=0)


def table(work: Path) -> list[int]:
    """Return what an outside reader sees."""
    return sqlite_rows(work / "table.db") if (work / "table.db").exists() else []


def come_true(process: subprocess.Popen[str], holds: Callable[[], bool], what: str) -> None:
    """Wait for something that a driver brings about; fail where it ends."""

    def is_over() -> bool:
        assert process.poll() is None, f"the driver has ended with {process.returncode}: {what}"
        return holds()

    eventually(is_over, within_s=WITHIN_S, what=what)


def test_every_row_is_there_once_after_kills_and_while_a_shard_is_down_others_are_seen(tmp_path: Path) -> None:
    chance, ids = random.Random(SEED), list[int]()
    more_rows(tmp_path, ids)
    for kill in range(KILLS):
        with driver(tmp_path, SEED + kill) as process:
            before = table(tmp_path)
            more_rows(tmp_path, ids)
            come_true(process, lambda before=before: table(tmp_path) != before, "rows of this driver")
            time.sleep(chance.uniform(0, 1))  # what is killed may be anywhere
            os.killpg(process.pid, signal.SIGKILL)
    with driver(tmp_path, SEED + KILLS) as process:
        come_true(process, lambda: table(tmp_path) == ids, "all rows, after the kills")
        (tmp_path / "down").touch()
        seen = {shard: epoch_of(tmp_path, shard) for shard in range(SHARDS)}
        count = len(ids)
        more_rows(tmp_path, ids)
        others = [shard for shard in range(SHARDS) if shard != DOWN]
        come_true(process, lambda: all(epoch_of(tmp_path, each) > seen[each] for each in others), "rows of the others")
        more_rows(tmp_path, ids)
        come_true(process, lambda: len(table(tmp_path)) > count + 10 * FILES, "more of the others")
        assert epoch_of(tmp_path, DOWN) == seen[DOWN], "shard 2 is down"
        (tmp_path / "down").unlink()
        come_true(process, lambda: table(tmp_path) == ids, "the rows that waited")
    with driver(tmp_path, SEED, len(ids)) as process:
        assert process.wait(WITHIN_S) == 0
    assert table(tmp_path) == ids
    assert sorted(segments.open(tmp_path / "store").to_arrow()["id"].to_pylist()) == ids
