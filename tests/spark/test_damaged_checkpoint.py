"""Each file of a checkpoint damaged in turn: the run continues exactly, or stops and says which file it is.

What comes of each kind of file is in :data:`tests.spark.damages.TABLE`, which these tests hold to, and which stands in
``docs/damaged-checkpoints.md``.
"""

from __future__ import annotations

import json
import logging
import os
from collections import defaultdict
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.damages import BASES, DAMAGES, HANDFUL, TABLE, Cell
from tests.spark.damaging import Left, damages, files_of, kind_of, leave_checkpoint, modes_of, tried

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600)]

log = logging.getLogger("tests.damages")


@pytest.fixture(scope="module")
def left(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Left:
    """Return what a killed run has left: inputs, checkpoint, sinks; whole, and without Spark's directory."""
    return leave_checkpoint(tmp_path_factory.mktemp("left"), spark)


def held(left: Left, tmp_path: Path, spark: SparkSession, chosen: list[tuple[str, str, str]]) -> None:
    """Try damages, given as base, file and way; compare what comes of them with the table."""
    found: dict[Cell, set[str]] = defaultdict(set)
    problems = []
    for number, (base, file, how) in enumerate(chosen):
        cell = (base, kind_of(file), how)
        for mode in modes_of(file):
            outcome = tried(left, base, tmp_path / f"{number}-{mode}", file, how, mode, spark)
            found[cell].add(outcome.word)
            problems += [f"{base}, {file} {how}, {mode}: {problem}" for problem in outcome.problems]
            log.info("%s, %s: %s %s", cell, mode, outcome.word, outcome.error)
            _note([*cell, mode, file, outcome.word, outcome.problems, outcome.error])
    for (base, kind, how), words in found.items():
        row = TABLE.get((base, kind))
        if row is None:
            problems.append(f"{base}, {kind}: there is no such row in the table")
        elif not words <= row.words(how):
            problems.append(f"{base}, {kind} {how}: {sorted(words)}, and the table says {sorted(row.words(how))}")
    assert not problems, "\n".join(problems)


def _note(found: list[object]) -> None:
    """Append what was found to a file, if somebody wants to make the table anew."""
    path = os.environ.get("HOLDFAST_NOTE_DAMAGES")
    if path:
        with Path(path).open("a") as file:
            file.write(json.dumps(found) + "\n")


def test_a_handful(left: Left, tmp_path: Path, spark: SparkSession) -> None:
    """The newest file of a kind, where a mistake would be worst."""
    chosen = []
    for base, kind, how in HANDFUL:
        files = [file for file in files_of(left.checkpoint(base)) if kind_of(file) == kind]
        assert files, f"{base}: there is no {kind}"
        chosen.append((base, files[-1], how))
    held(left, tmp_path, spark, chosen)


@pytest.mark.nightly
@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("base", BASES)
def test_every_file(left: Left, tmp_path: Path, spark: SparkSession, base: str, how: str) -> None:
    held(left, tmp_path, spark, [(base, file, way) for file, way in damages(left, base) if way == how])


@pytest.mark.nightly
def test_the_table_has_no_row_too_many(left: Left) -> None:
    kinds = {(base, kind_of(file)) for base in BASES for file, _ in damages(left, base)}
    assert kinds == TABLE.keys()
