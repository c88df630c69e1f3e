"""Graphs that change over a checkpoint: kept operators keep their state, and every row has its effect once
(design/0011, section 5).

The rule that the expected rows follow: rows before the change point had their effect by the old graph, rows after it by
the new one; an operator counts what it saw while it was in the graph, from its last beginning on.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast import faults
from holdfast.config import Settings
from holdfast.errors import Diverged, HoldfastError, InvalidPipeline
from holdfast.starts.graph_diff import NodeVerdict
from holdfast.starts.plan import plan
from holdfast.store.local import LocalStore
from tests.spark.counting import counting
from tests.spark.running import die_at, sqlite_rows

pytestmark = pytest.mark.spark

GIVEN = ("aab", "bc", "ab", "cca", "ab", "bb")
MORE = ("xa", "x", "ay", "xb")
SETTINGS = Settings(checkpoint_freq=86_400_000)


def source(name: str, texts: Sequence[str]) -> hf.Stream:
    rows = [[{"k": letter, "v": 1} for letter in text] for text in texts]
    return hf.read.rows(rows, schema="k STRING, v BIGINT", name=name)


class Pipelines:
    """The versions of one pipeline over one checkpoint."""

    def __init__(self, work: Path, spark: SparkSession) -> None:
        self.work = work
        self.spark = spark

    def table(self, stream: hf.Stream, name: str) -> hf.SinkNode:
        """Return a sink for the columns that all versions have."""
        chosen = stream if name == "raw" else stream | hf.select("k", "n", name=f"{name}_chosen")
        return chosen | hf.write.sqlite(self.work / f"{name}.db", table="rows", name=f"{name}_table")

    def plain(self, given: int) -> hf.Pipeline:
        return hf.Pipeline("changing", self.table(source("given", GIVEN[:given]), "raw"))

    def one(self, given: int) -> hf.Pipeline:
        return hf.Pipeline("changing", self.table(counting(source("given", GIVEN[:given]), name="first"), "first"))

    def two(self, given: int, more: int, sink: str = "second") -> hf.Pipeline:
        """Insert an operator before ``first``, put one behind it, add a source and a sink."""
        both = hf.union(source("given", GIVEN[:given]), source("more", MORE[:more]), name="both")
        first = counting(both, name="first")
        second = counting(first | hf.filter("n > 1", name="many"), name="second")
        return hf.Pipeline("changing", self.table(first, "first"), self.table(second, sink))

    def run(self, pipeline: hf.Pipeline, **options: Any) -> None:
        checkpoint = str(self.work / "checkpoint")
        options = {"settings": SETTINGS, **options}
        pipeline.run(checkpoint=checkpoint, trigger=hf.available_now(), session=self.spark, **options)

    def planned(self, pipeline: hf.Pipeline) -> dict[str, NodeVerdict]:
        directory = self.work / "checkpoint"
        change = plan(pipeline, LocalStore(str(directory)), directory, SETTINGS).change
        assert change is not None
        return {node.name: node.verdict for node in change.nodes if node.verdict is not NodeVerdict.KEPT}

    def rows(self, name: str) -> list[Any]:
        return sqlite_rows(self.work / f"{name}.db", "SELECT k, n FROM rows")


class Expected:
    """Counts as a loop over rows makes them."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = {"first": Counter(), "second": Counter()}
        self.rows: dict[str, list[tuple[str, int]]] = {"first": [], "second": []}

    def epoch(self, letters: str, *, has_second: bool) -> None:
        made = self._counted("first", list(letters))
        if has_second:
            self._counted("second", [key for key, count in made if count > 1])

    def _counted(self, name: str, letters: list[str]) -> list[tuple[str, int]]:
        made = []
        for key, count in sorted(Counter(letters).items()):
            self.counts[name][key] += count
            made.append((key, self.counts[name][key]))
        self.rows[name] += made
        return made

    def sorted(self, name: str) -> list[tuple[str, int]]:
        return sorted(self.rows[name])


def test_three_changes_in_a_row_after_clean_stops(spark: SparkSession, tmp_path: Path) -> None:
    pipelines, wanted = Pipelines(tmp_path, spark), Expected()
    pipelines.run(pipelines.one(2))
    for text in GIVEN[:2]:
        wanted.epoch(text, has_second=False)

    # An operator behind the other, a source and a sink more.
    changed = pipelines.two(3, 2)
    new = dict.fromkeys(("more", "both", "many", "second", "second_chosen", "second_table"), NodeVerdict.NEW)
    assert pipelines.planned(changed) == {**new, "given": NodeVerdict.CHANGED, "first": NodeVerdict.CHANGED}
    pipelines.run(changed)
    for text in (GIVEN[2] + MORE[0], MORE[1]):
        wanted.epoch(text, has_second=True)
    assert pipelines.rows("first") == wanted.sorted("first")
    assert pipelines.rows("second") == wanted.sorted("second")

    # All that goes again.
    changed = pipelines.one(4)
    gone = dict.fromkeys(("more", "both", "many", "second", "second_chosen", "second_table"), NodeVerdict.GONE)
    assert pipelines.planned(changed) == {**gone, "given": NodeVerdict.CHANGED, "first": NodeVerdict.CHANGED}
    pipelines.run(changed)
    wanted.epoch(GIVEN[3], has_second=False)
    assert pipelines.rows("first") == wanted.sorted("first")

    # And comes back: the operator is a new one, the source goes on where it was. The old sink would lack what came
    # between, so there is another one.
    pipelines.run(pipelines.two(5, 3, sink="again"))
    wanted.counts["second"].clear()
    wanted.rows["second"].clear()
    wanted.epoch(GIVEN[4] + MORE[2], has_second=True)
    assert pipelines.rows("first") == wanted.sorted("first")
    assert pipelines.rows("again") == wanted.sorted("second")


@pytest.mark.parametrize("point", ["after-publish", pytest.param("before-stage", marks=pytest.mark.nightly)])
def test_a_change_after_a_death_begins_at_the_last_epoch_that_was_published(
    spark: SparkSession, tmp_path: Path, point: str
) -> None:
    pipelines, wanted = Pipelines(tmp_path, spark), Expected()
    die_at(point, 3)
    with pytest.raises(HoldfastError):
        pipelines.run(pipelines.one(4))
    faults.install(None)
    assert not list((tmp_path / "checkpoint").glob("snapshots/*.manifest")), "the state is read where it is"
    done = 3 if point == "after-publish" else 2
    commits = tmp_path / "checkpoint" / "spark" / "1" / "commits"
    assert sorted(int(path.name) for path in commits.iterdir() if path.name.isdigit()) == [0, 1]
    pipelines.run(pipelines.two(4, 2))
    for text in GIVEN[:done]:
        wanted.epoch(text, has_second=False)
    for number in range(2):
        wanted.epoch("".join(GIVEN[done + number : 4][:1]) + MORE[number], has_second=True)
    assert pipelines.rows("first") == wanted.sorted("first")
    assert pipelines.rows("second") == wanted.sorted("second")


def test_state_may_come_and_go(spark: SparkSession, tmp_path: Path) -> None:
    pipelines, wanted = Pipelines(tmp_path, spark), Expected()
    pipelines.run(pipelines.plain(2))
    pipelines.run(pipelines.one(4))
    for text in GIVEN[2:4]:
        wanted.epoch(text, has_second=False)
    assert pipelines.rows("first") == wanted.sorted("first")
    assert sqlite_rows(tmp_path / "raw.db", "SELECT k FROM rows") == sorted("".join(GIVEN[:2]))


@pytest.mark.nightly
def test_a_change_whose_old_directory_is_lost_needs_a_snapshot_of_the_change_point(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipelines, wanted = Pipelines(tmp_path, spark), Expected()
    pipelines.run(pipelines.one(2))
    die_at("after-publish", 3)
    with pytest.raises(HoldfastError):
        pipelines.run(pipelines.one(4))
    faults.install(None)
    shutil.rmtree(tmp_path / "checkpoint" / "spark")
    with pytest.raises(Diverged, match="the graph has changed") as refused:
        pipelines.run(pipelines.two(4, 1))
    assert "start the old graph once" in refused.value.do
    pipelines.run(pipelines.one(4))
    shutil.rmtree(tmp_path / "checkpoint" / "spark")
    pipelines.run(pipelines.two(5, 1))
    for text in GIVEN[:4]:
        wanted.epoch(text, has_second=False)
    wanted.epoch(GIVEN[4] + MORE[0], has_second=True)
    assert pipelines.rows("first") == wanted.sorted("first")
    assert pipelines.rows("second") == wanted.sorted("second")


def test_state_that_does_not_fit_is_refused_before_anything_happens_unless_forced(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipelines = Pipelines(tmp_path, spark)
    pipelines.run(pipelines.one(2))
    total = source("given", GIVEN[:3]) | hf.accumulate(by="k", n=hf.count(), name="first")
    other = hf.Pipeline("changing", pipelines.table(total, "first"))
    assert pipelines.planned(other)["first"] is NodeVerdict.REFUSED
    with pytest.raises(InvalidPipeline, match="does not fit the changed graph") as refused:
        pipelines.run(other)
    assert "it was stateful, and is accumulate" in refused.value.why
    before = pipelines.rows("first")
    pipelines.run(other, force=True)
    fresh = [("a", 1), ("b", 1)]
    assert pipelines.rows("first") == sorted([*before, *fresh])

    # Nor is it dropped where a new operator of the same kind may be the old one.
    again = source("given", GIVEN[:4]) | hf.accumulate(by="k", n=hf.count(), name="renamed")
    other = hf.Pipeline("changing", pipelines.table(again, "first"))
    for refusing in (lambda: pipelines.run(other), lambda: pipelines.run(other, drop_state=["other"])):
        with pytest.raises(InvalidPipeline, match="state of stateful operator 'first' would be lost"):
            refusing()
    pipelines.run(other, drop_state=["first"])
    assert pipelines.rows("first") == sorted([*before, *fresh, ("a", 1), ("c", 1), ("c", 2)])


def test_a_sink_that_gets_everything_goes_on_where_a_death_on_the_way_left_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipelines, wanted = Pipelines(tmp_path, spark), Expected()
    pipelines.run(pipelines.one(3))

    def filled(given: int) -> hf.Pipeline:
        first = counting(source("given", GIVEN[:given]), name="first")
        chosen = first | hf.select("k", "n", name="all_chosen")
        everything = chosen | hf.write.sqlite(tmp_path / "all.db", table="rows", name="all_table", backfill=True)
        return hf.Pipeline("changing", pipelines.table(first, "first"), everything)

    new = dict.fromkeys(("all_chosen", "all_table"), NodeVerdict.NEW)
    assert pipelines.planned(filled(4)) == {**new, "given": NodeVerdict.CHANGED, "first": NodeVerdict.REBUILT}
    # Epochs go on from the highest: 4 to 6 are those of before, and 7 is the first new one.
    for point, epoch in (("before-stage", 4), ("after-publish", 5)):
        die_at(point, epoch)
        with pytest.raises(HoldfastError):
            pipelines.run(filled(4))
        faults.install(None)
    pipelines.run(filled(5))
    for text in GIVEN[:5]:
        wanted.epoch(text, has_second=False)
    assert pipelines.rows("all") == pipelines.rows("first") == wanted.sorted("first")


def test_what_is_left_of_a_backfill_that_was_killed_is_evaluated_by_the_graph_of_now(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipelines = Pipelines(tmp_path, spark)
    pipelines.run(pipelines.one(3))

    def filled(given: int, left_out: str = "") -> hf.Pipeline:
        rows = source("given", GIVEN[:given])
        first = counting(rows | hf.filter(f"k <> '{left_out}'", name="some") if left_out else rows, name="first")
        chosen = first | hf.select("k", "n", name="all_chosen")
        everything = chosen | hf.write.sqlite(tmp_path / "all.db", table="rows", name="all_table", backfill=True)
        return hf.Pipeline("changing", pipelines.table(first, "first"), everything)

    die_at("after-publish", 5)  # epochs 4 to 6 are those of before: of 5 only the new sink knows, and not Spark
    with pytest.raises(HoldfastError):
        pipelines.run(filled(3))
    faults.install(None)
    pipelines.run(filled(5, "a"))
    old, new = Expected(), Expected()
    for text in GIVEN[:3]:
        old.epoch(text, has_second=False)
    for text in (*GIVEN[:2], GIVEN[2].replace("a", "")):  # the third is left, and is the new graph's
        new.epoch(text, has_second=False)
    held = len(new.rows["first"])
    for text in GIVEN[3:5]:
        new.epoch(text.replace("a", ""), has_second=False)
    assert pipelines.rows("all") == new.sorted("first")
    assert pipelines.rows("first") == sorted(old.rows["first"] + new.rows["first"][held:])
