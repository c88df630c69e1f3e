"""Kill a stateful pipeline whose checkpoint is in an object store, on two machines that share nothing else (0037).

A machine is a directory for its scratch.  The input, and what comes out, is that of the stateful pipeline.  Every day
``tests/spark/test_object_store.py`` does the same in one process, with deaths that are exceptions.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import segments
from tests.crash.lives import MODES, Lives
from tests.crash.shards_process import Life
from tests.crash.test_lookup_kill import NO_RECORDS, check_totals_go_on, die_after_a_snapshot
from tests.crash.test_stateful_kill import expected, held, write_input
from tests.spark.running import arrive, sqlite_rows
from tools.s3_server import s3_server

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.nightly]


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, str]]:
    with s3_server() as variables:
        yield variables


def begun(work: Path, server: dict[str, str], mode: str) -> Lives:
    write_input(work)
    variables = {**MODES[mode], **server, "HOLDFAST_CHECKPOINT_FREQ": "1"}
    return Lives(work, "stateful_pipeline", variables, checkpoint=f"s3://checkpoints/{uuid.uuid4().hex}")


def on(lives: Lives, machine: str) -> Lives:
    """Go on with the machine that has this scratch."""
    if lives.last_session:
        lives.wait_for_survivors()
    lives.environment["HOLDFAST_SPARK_CHECKPOINT"] = str(lives.work / machine)
    return lives


def numberless(found: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Leave the numbers of epochs out: where a scratch was lost, what is evaluated again has new ones."""
    counts = sorted(row[1:] for row in found["counts"])
    beside = sorted(re.sub(r"^alone \d+ ", "alone ", line) for line in found["beside"])
    return {**found, "counts": counts, "beside": beside}


@pytest.mark.parametrize("mode", MODES)
def test_the_sinks_are_exact_after_kills_on_two_machines(tmp_path: Path, server: dict[str, str], mode: str) -> None:
    lives = begun(tmp_path, server, mode)
    on(lives, "a").die("after-decide:3")
    on(lives, "b").die("after-publish:5")
    on(lives, "a").die("before-stage:7")  # its scratch ends at epoch 3: expected, epochs 4 and 5 would come twice
    shutil.rmtree(tmp_path / "a")
    assert on(lives, "a").end() == 0, lives.said()
    assert numberless(held(lives.work)) == numberless(expected())


def test_totals_of_what_was_found_in_a_changing_table_survive_a_kill_and_the_loss_of_the_scratch(
    tmp_path: Path, server: dict[str, str]
) -> None:
    lives = Lives(
        tmp_path, "totals_pipeline", {**NO_RECORDS, **server}, checkpoint=f"s3://checkpoints/{uuid.uuid4().hex}"
    )
    die_after_a_snapshot(on(lives, "a"))
    shutil.rmtree(tmp_path / "a")
    check_totals_go_on(on(lives, "a"))


def test_shards_are_exact_after_kills_with_their_scratch_without_it_and_with_an_older_one(
    tmp_path: Path, server: dict[str, str]
) -> None:
    """Three shards, then two; the driver dies in one of them, in the middle of an epoch (design/0048, section 16)."""
    life = Life(str(tmp_path))
    lives = Lives(
        tmp_path, "shards_process", {**server, **life.variables}, checkpoint=f"s3://checkpoints/{uuid.uuid4().hex}"
    )
    ids: list[int] = []

    def go_on(machine: str, shards: int, fault: str = "") -> None:
        for _ in range(12):
            new = range(len(ids), len(ids) + 10)
            arrive(tmp_path / "in", f"{len(ids):05}.json", [{"id": each} for each in new])
            ids.extend(new)
        on(lives, machine).arguments = ("--shards", str(shards))
        assert lives.end(**({"HOLDFAST_FAULT": fault} if fault else {})) == (-signal.SIGKILL if fault else 0), (
            lives.said()
        )

    go_on("a", 3, "after-decide@1")
    shutil.copytree(tmp_path / "a", tmp_path / "older")
    go_on("a", 3, "after-publish@2")
    go_on("b", 3, "before-stage@1")
    shutil.rmtree(tmp_path / "a")
    os.rename(tmp_path / "older", tmp_path / "a")
    go_on("a", 3, "after-forget@0")
    go_on("b", 2, "recovery-resolved@1")
    go_on("b", 2)
    assert sqlite_rows(tmp_path / "table.db") == ids
    assert sorted(segments.open(tmp_path / "store").to_arrow()["id"].to_pylist()) == ids
