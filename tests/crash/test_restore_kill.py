"""Kill a stateful pipeline and take Spark's directory away, again and again: the sinks are as if nothing had happened.

Snapshots are made all the time, so that the kills meet them too (design/0011).
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.snapshot import snapshot_keys
from holdfast.store.local import LocalStore
from tests.crash.lives import Lives
from tests.crash.test_stateful_kill import expected, held, write_input

pytestmark = [pytest.mark.spark, pytest.mark.crash]

DEATHS = ("snapshot-manifest", "moment:2", "snapshot-files")


def without_numbers(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Leave out what says in which epoch a count was made: after a loss epochs are counted on from the highest."""
    beside = sorted(re.sub(r"^alone \d+ ", "alone ", line) for line in rows["beside"])
    return {**rows, "counts": sorted(row[1:] for row in rows["counts"]), "beside": beside}


@pytest.mark.nightly
@pytest.mark.parametrize("deaths", [DEATHS[:1], pytest.param(DEATHS, marks=pytest.mark.nightly)], ids=" ".join)
def test_the_sinks_are_exact_after_kills_that_each_cost_sparks_directory(
    tmp_path: Path, deaths: tuple[str, ...]
) -> None:
    write_input(tmp_path)
    lives = Lives(tmp_path, "stateful_pipeline", {"HOLDFAST_CHECKPOINT_FREQ": "1"})
    for number, where in enumerate(deaths):
        lives.die(where)
        assert snapshot_keys(LocalStore(str(tmp_path / "checkpoint"))), "the first life died behind one"
        lives.wait_for_survivors()
        shutil.rmtree(tmp_path / "checkpoint" / "spark")
        if number % 2:
            shutil.rmtree(tmp_path / "checkpoint" / "progress", ignore_errors=True)
    assert lives.end() == 0, lives.said()
    assert without_numbers(held(tmp_path)) == without_numbers(expected())
    assert "state is restored from the snapshot of epoch" in (tmp_path / "log").read_text()
