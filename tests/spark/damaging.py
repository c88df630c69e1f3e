"""A checkpoint that a small pipeline has left, copies of it with one file damaged, and what a run makes of them.

The pipeline keeps state, has a snapshot of an older epoch and one of a newer, epochs behind it, and was killed between
publish and Spark's commit log: whatever a checkpoint can hold is there.  What files these are is found by walking it.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import holdfast as hf
from holdfast import faults
from holdfast.errors import HoldfastError
from tests.spark.damages import CONTINUES, DAMAGES, LOST, RESTORES, SEEDED, STOPS, WHOLE
from tests.spark.running import MODES, arrive, die_at, parquet_rows, sqlite_rows

KEYS = "abcdef"
FILES = 7
"""One epoch each; the last one arrives after the damage."""

KEPT = {"buckets": 2, "checkpoint_freq": 86_400_000}
"""Settings of every run."""

LIVES = ((2, "carried"), (4, "staged"), (FILES - 1, "carried"))
"""Up to which epoch a life gets, and how: state lies in entries of the journal, and in parts that workers wrote."""


def given(number: int) -> list[dict[str, Any]]:
    """Return the rows of an input file: two have one key, so that a bucket stays as the last snapshot has it."""
    keys = "a" if number in (4, 5) else KEYS
    return [{"k": keys[(number * 5 + at * at) % len(keys)], "v": number * 10 + at} for at in range(8)]


def expected(files: int = FILES) -> list[tuple[str, int, int]]:
    """Return what both sinks must hold after so many files, from a loop over the rows."""
    counts: dict[str, int] = {}
    totals: dict[str, int] = {}
    found = []
    for number in range(files):
        for row in given(number):
            counts[row["k"]] = counts.get(row["k"], 0) + 1
            totals[row["k"]] = totals.get(row["k"], 0) + row["v"]
        found += [(k, counts[k], totals[k]) for k in {row["k"] for row in given(number)}]
    return sorted(found)


def pipeline_of(inputs: Path, work: Path) -> hf.Pipeline:
    """Return the pipeline, with its sinks in a directory."""
    rows = hf.read.files(str(inputs), schema="k STRING, v BIGINT", max_files_per_epoch=1, name="rows")
    sums = rows | hf.reduce(by="k", n=hf.count(), total=hf.sum("v"), name="sums")
    return hf.Pipeline(
        "sums",
        sums | hf.write.sqlite(work / "sums.db", table="rows", name="table"),
        sums | hf.write.files(str(work / "sums"), name="files"),
    )


def run(inputs: Path, work: Path, spark: SparkSession, mode: str) -> None:
    """Run the pipeline until it has read what is there."""
    settings = MODES[mode].model_copy(update=KEPT)
    pipeline_of(inputs, work).run(
        checkpoint=str(work / "checkpoint"), trigger=hf.available_now(), session=spark, settings=settings
    )


@dataclass(frozen=True)
class Left:
    """What a killed run has left.

    Parameters
    ----------
    root : Path
        Holds the inputs and, for each base, a directory with the checkpoint and the sinks.
    """

    root: Path

    @property
    def inputs(self) -> Path:
        """The input files."""
        return self.root / "inputs"

    def checkpoint(self, base: str) -> Path:
        """The checkpoint of a base."""
        return self.root / base / "checkpoint"


def leave_checkpoint(root: Path, spark: SparkSession) -> Left:
    """Let the pipeline live three lives; the last one is killed.  Last of all an input file arrives."""
    left = Left(root)
    work = root / WHOLE
    work.mkdir()
    for ends, mode in LIVES:
        for number in range(ends):
            if not (left.inputs / f"{number}.json").exists():
                arrive(left.inputs, f"{number}.json", given(number))
        if ends < FILES - 1:
            run(left.inputs, work, spark, mode)
            continue
        die_at("after-publish", ends)
        try:
            run(left.inputs, work, spark, mode)
        except HoldfastError:
            pass
        else:
            raise AssertionError("the run was to die")
        finally:
            faults.install(None)
    shutil.copytree(work, root / LOST)
    shutil.rmtree(left.checkpoint(LOST) / "spark")
    shutil.copytree(root / LOST, root / SEEDED)
    run(left.inputs, root / SEEDED, spark, "carried")
    arrive(left.inputs, f"{FILES - 1}.json", given(FILES - 1))
    return left


def files_of(checkpoint: Path) -> list[str]:
    """Return every file of a checkpoint, below it."""
    return sorted(str(path.relative_to(checkpoint)) for path in checkpoint.rglob("*") if path.is_file())


def kind_of(file: str) -> str:
    """Return what kind of file it is: numbers, digests and random names are left out.

    Examples
    --------
    >>> kind_of("spark/1/journal/000000000003-2.entry")
    'spark/<n>/journal/<n>-<n>.entry'
    >>> kind_of("spark/1/journal/sums/1/000000000003-9f03a2c1.part")
    'spark/<n>/journal/sums/<n>/<n>-<x>.part'
    >>> kind_of("snapshots/files/sums/1/000000000004-58e6a1b2c3d4e5f6.groups.0a1b2c3d4e5f6071.parquet")
    'snapshots/files/sums/<n>/<n>-<x>.groups.<x>.parquet'
    """
    parts = []
    for part in file.split("/"):
        part = re.sub(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", "<x>", part)
        part = re.sub(r"(?<![0-9a-z<])(?=[0-9a-f]*\d)[0-9a-f]{16,}(?![0-9a-z>])", "<x>", part)
        part = re.sub(r"-[0-9a-f]{8}\.part$", "-<x>.part", part)
        parts.append(re.sub(r"(?<![a-z<])\d+(?![a-z>])", "<n>", part))
    return "/".join(parts)


def damage(path: Path, how: str) -> None:
    """Damage a file in one of the four ways."""
    data = bytearray(path.read_bytes())
    if how == "removed":
        path.unlink()
        return
    if how == "flipped":
        data[len(data) // 2] ^= 4
    path.write_bytes(data if how == "flipped" else data[: len(data) // 2] if how == "truncated" else b"")


def damages(left: Left, base: str) -> Iterator[tuple[str, str]]:
    """Yield every file with every damage that it can have; of the seeded base those that the others do not have so."""
    checkpoint = left.checkpoint(base)
    for file in files_of(checkpoint):
        if base == SEEDED and not re.match(r"snapshots/|sources.json|spark/\d+/(origin.json|journal/)", file):
            continue
        for how in DAMAGES:
            if how == "removed" or (checkpoint / file).stat().st_size:
                yield file, how


@dataclass(frozen=True)
class Outcome:
    """What a run made of a damage.

    Parameters
    ----------
    word : str
        One of the three.
    problems : tuple of str
        What must not be.
    error : str
        What it said when it stopped.
    """

    word: str
    problems: tuple[str, ...] = ()
    error: str = ""


def modes_of(file: str) -> Iterable[str]:
    """Return how the epochs behind a damage are evaluated: state is read by the driver, or by workers."""
    return MODES if "/journal/" in file else ("carried",)


def tried(left: Left, base: str, work: Path, file: str, how: str, mode: str, spark: SparkSession) -> Outcome:
    """Damage a file in a copy of a checkpoint and its sinks, and start the pipeline: twice, if it stops."""
    before = left.root / base
    shutil.copytree(before, work)
    checkpoint = work / "checkpoint"
    damage(checkpoint / file, how)
    problems: list[str] = []
    errors: list[str] = []
    for _ in range(2):
        try:
            run(left.inputs, work, spark, mode)
        except HoldfastError as error:
            errors.append(str(error))
            problems += _unnamed(error, file)
            continue
        except Exception as error:
            errors.append(repr(error))
            problems.append(f"no error of ours: {error!r}")
            continue
        problems += _wrong(work)
        break
    word = (CONTINUES, RESTORES, STOPS)[len(errors)]
    if word == STOPS:
        problems += _neither_before_nor_behind(shown(before), shown(work))
        for directory in re.findall(r"or move the directory '([^']+)' out of the checkpoint", errors[-1]):
            cured = work.with_suffix(".cured")
            shutil.copytree(work, cured)
            shutil.rmtree(cured / "checkpoint" / directory)
            problems += _cured("with the directory moved", left.inputs, cured, spark, mode)
        shutil.copy(before / "checkpoint" / file, checkpoint / file)
        problems += _cured("with the file restored", left.inputs, work, spark, mode)
    shutil.rmtree(work, ignore_errors=True)
    return Outcome(word, tuple(problems), errors[0] if errors else "")


def _cured(how: str, inputs: Path, work: Path, spark: SparkSession, mode: str) -> list[str]:
    """Run after a cure that an error has named; say what is wrong all the same."""
    try:
        run(inputs, work, spark, mode)
        return [f"{how}: {problem}" for problem in _wrong(work)]
    except Exception as error:
        return [f"{how}: {error}"]
    finally:
        shutil.rmtree(work)


def _neither_before_nor_behind(before: tuple[list[Any], list[Any]], now: tuple[list[Any], list[Any]]) -> list[str]:
    """Say which sink does not hold a number of whole epochs, or fewer than before: what was decided is published."""
    whole = [expected(count) for count in range(FILES + 1)]
    ends: tuple[Any, Any] = (whole, [sorted(total for _, _, total in rows) for rows in whole])
    found = zip(("SQLite", "the files sink"), ends, before, now, strict=True)
    return [f"{sink} holds {at}, after {was}" for sink, of, was, at in found if at not in of[of.index(was) :]]


def _wrong(work: Path) -> list[str]:
    """Say what is lost or doubled in the sinks."""
    rows, totals = shown(work)
    found = []
    if rows != expected():
        found.append(f"SQLite holds {rows}, and the files give {expected()}")
    if totals != sorted(total for _, _, total in expected()):
        found.append(f"the files sink holds {totals}")
    return found


def shown(work: Path) -> tuple[list[Any], list[Any]]:
    """Return what both sinks show."""
    return sqlite_rows(work / "sums.db", "SELECT k, n, total FROM rows"), parquet_rows(work / "sums", "total")


def _unnamed(error: HoldfastError, file: str) -> list[str]:
    text = str(error)
    names = [file, *(str(parent) for parent in Path(file).parents if len(parent.parts) > 2)]
    if not any(name in text for name in names):
        return [f"the error does not name {file}: {text}"]
    return [] if error.do else [f"the error names no cure: {text}"]
