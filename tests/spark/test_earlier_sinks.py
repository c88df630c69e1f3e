"""Checkpoints, logs and ledgers that an earlier version wrote are gone on with, for each kind of sink that keeps one.

Each archive (:mod:`tests.spark.earlier.make`) was left by a process that was killed in its third epoch: decided, with
rows that are staged or carried, and published by the first sink, or begun, and by no other one.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.observe.inspection import inspect_checkpoint
from holdfast.store.local import LocalStore
from tests.spark.earlier import targets
from tests.spark.earlier.left import KINDS, Left, left
from tests.spark.earlier.pipeline import FILES, arrive, pipeline

__all__ = ["left"]

pytestmark = pytest.mark.spark

ALL = FILES + 2


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_has_its_effect_once_over_what_an_earlier_version_left(spark: SparkSession, left: Left) -> None:
    go_on(left, spark)
    assert epochs(left) == {ALL}


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_state_is_computed_again_from_what_sinks_of_an_earlier_version_say(spark: SparkSession, left: Left) -> None:
    shutil.rmtree(left.root / "checkpoint")
    go_on(left, spark, rebuild_state=True)
    (last,) = epochs(left)
    assert last > ALL, "the epochs that compute it again have numbers, too"


def go_on(left: Left, spark: SparkSession, **options: Any) -> None:
    """Let the code of today read the rest, and look at all targets."""
    for file in range(FILES, ALL):
        arrive(left.root, file)
    graph = pipeline(left.root, left.kind)
    graph.run(checkpoint=str(left.root / "checkpoint"), trigger=hf.available_now(), session=spark, **options)
    targets.check(left.kind, left.root, left.server, ALL)


def epochs(left: Left) -> set[int]:
    """Return the last epoch of the checkpoint, and of each sink: they were begun by a generation that is not theirs."""
    place: Path = left.root / "checkpoint"
    inspection = inspect_checkpoint("", LocalStore(str(place)), place)
    assert inspection.open_epochs == ()
    held = [ledger.held for ledger in left.ledgers().values()]
    assert {each.generation for each in held} == {inspection.owner.generation}
    assert inspection.owner.generation > 1
    return {inspection.last_done, *(each.epoch for each in held)}
