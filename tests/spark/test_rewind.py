"""Rewinds of real runs with state: to each of ten epochs, and on (design/0012)."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import holdfast as hf
from holdfast.checkpoint import progress
from holdfast.checkpoint.graph_record import Role
from holdfast.cli.app import app
from holdfast.cli.words import rewind_lines
from holdfast.config import Settings
from holdfast.errors import Diverged, InvalidPipeline
from holdfast.starts.graph_diff import NodeVerdict
from holdfast.starts.plan import plan
from holdfast.starts.refusals import check_change
from holdfast.starts.rewind import Rewinding
from holdfast.starts.target_state import TargetState
from holdfast.store.local import LocalStore
from tests.spark.counting import counting
from tests.spark.running import arrive, parquet_rows, sqlite_rows

pytestmark = pytest.mark.spark

LETTERS = "aab", "bc", "abc", "c", "ab", "b", "ca", "cc", "a", "bb", "abc", "c"
SETTINGS = Settings(buckets=2, checkpoint_freq=86_400_000)


def give(work: Path, count: int) -> None:
    for number, text in enumerate(LETTERS[:count]):
        if not (work / "in" / f"{number:02}.json").exists():
            arrive(work / "in", f"{number:02}.json", [{"k": letter, "v": 1} for letter in text])


def pipeline_of(work: Path) -> hf.Pipeline:
    given = hf.read.files(str(work / "in"), schema="k STRING, v BIGINT", max_files_per_epoch=1, name="given")
    counts = counting(given, name="counts")
    table = hf.write.sqlite(work / "t.db", table="t", rewindable=True, name="table")
    return hf.Pipeline(
        "trips",
        counts | table,
        counts | hf.select("k", "n", name="shown") | hf.write.files(work / "out", name="archive"),
    )


def run(work: Path, spark: SparkSession, **options: Any) -> None:
    options = {"settings": SETTINGS, **options}
    pipeline_of(work).run(checkpoint=str(work / "checkpoint"), trigger=hf.available_now(), session=spark, **options)


def expected(count: int) -> list[Any]:
    """Return the rows of so many files, from a loop over the letters."""
    counts: dict[str, int] = {}
    rows = []
    for text in LETTERS[:count]:
        for letter in sorted(set(text)):
            counts[letter] = counts.get(letter, 0) + text.count(letter)
            rows.append((letter, counts[letter]))
    return sorted(rows)


def check(work: Path, count: int) -> None:
    assert sqlite_rows(work / "t.db", "SELECT k, n FROM t") == expected(count)
    archive = parquet_rows(work / "out", "n")
    assert archive == sorted(n for _, n in expected(count))


def rewind(work: Path, to: str, *options: str) -> Any:
    """Go back by the command line."""
    flows = work / "flows.py"
    flows.write_text(f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from pathlib import Path
from tests.spark.test_rewind import pipeline_of
pipeline = pipeline_of(Path({str(work)!r}))
""")
    arguments = ["rewind", f"{flows}:pipeline", "--checkpoint", str(work / "checkpoint"), "--to", to, *options]
    return CliRunner().invoke(app, arguments)


def test_from_several_epochs_the_sinks_become_those_of_a_run_that_never_went_further(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])
    give(tmp_path, 1)
    run(tmp_path, spark)  # its clean stop leaves the snapshot of epoch 1: the later epochs are replayed from there
    give(tmp_path, 10)
    run(tmp_path, spark)
    planned = rewind(tmp_path, "4", "--dry-run")
    assert planned.exit_code == 0, planned.output
    assert "after epoch 4: would be withdrawn" in planned.output
    assert "state  from the journal, at the end of epoch 4\n" in planned.output
    check(tmp_path, 10)

    sources = {
        10: "snapshot of epoch 10\n",
        5: "snapshot of epoch 1; 4 epochs after it are evaluated again by this graph",  # the journal began at 10
        2: "journal, at the end of epoch 2\n",  # that of the epochs that were evaluated again
    }
    for to, source in sources.items():  # always further back: each from where the one before stands
        done = rewind(tmp_path, str(to), "--force")
        assert done.exit_code == 0, done.output
        check(tmp_path, to)
        assert f"state  from the {source}" in done.output
    give(tmp_path, 12)
    run(tmp_path, spark)
    check(tmp_path, 12)
    # And back into the new line, whose epochs have new numbers.
    ends = sqlite_rows(tmp_path / "t.db", "SELECT DISTINCT __holdfast_epoch FROM t")
    assert ends[:2] == [1, 2]
    assert ends[2] > 12
    done = rewind(tmp_path, str(ends[6]), "--force")
    assert done.exit_code == 0, done.output
    check(tmp_path, 7)
    run(tmp_path, spark)
    check(tmp_path, 12)
    refused = rewind(tmp_path, "5", "--force")
    assert refused.exit_code == 2
    assert "cannot go back to 5" in refused.output


KINDS = ("literal", "name", "operator")
"""What is mended: the literal of a filter, the name of a stateful operator, an operator and a sink more."""


def graph_of(work: Path, kind: str = "") -> hf.Pipeline:
    """Return a graph that leaves out the letter c; mended, b or the same."""
    given = hf.read.files(str(work / "in"), schema="k STRING, v BIGINT", max_files_per_epoch=1, name="given")
    some = given | hf.filter(f"k <> '{'b' if kind == 'literal' else 'c'}'", name="some")
    past: dict[str, Any] = {"name": "tally", "renamed_from": "counts"} if kind == "name" else {"name": "counts"}
    counts = some | hf.accumulate(by="k", n=hf.count(), **past)
    sinks = [counts | hf.write.sqlite(work / "t.db", table="t", rewindable=True, name="table")]
    if kind == "operator":
        twice = counts | hf.select("k", name="chosen") | hf.accumulate(by="k", n=hf.count(), name="twice")
        sinks.append(twice | hf.write.sqlite(work / "more.db", table="t", name="more"))
    return hf.Pipeline("trips", *sinks)


def mended(kind: str, target: int, count: int) -> tuple[list[Any], list[Any]]:
    """Return what both tables hold: rows and state up to the target are the old graph's, the mended one goes on there.

    An operator that only the mended graph has begins at the target, without state.
    """
    counts: dict[str, int] = {}
    twice: dict[str, int] = {}
    rows, more = [], []
    for epoch, text in enumerate(LETTERS[:count], start=1):
        made = evaluated(counts, text, "b" if kind == "literal" and epoch > target else "c")
        rows += made
        if kind == "operator" and epoch > target:
            more += evaluated(twice, "".join(letter for letter, _ in made), "")
    return sorted(rows), sorted(more)


def evaluated(counts: dict[str, int], text: str, left_out: str) -> list[Any]:
    made = []
    for letter in (each for each in text if each != left_out):
        counts[letter] = counts.get(letter, 0) + 1
        made.append((letter, counts[letter]))
    return made


EVERY_TARGET = [(target, kind) for target in range(1, 6) for kind in KINDS]
JOURNAL = "spark/1/journal"


@pytest.mark.parametrize("has_journal", [True, False], ids=["from the journal", "evaluated again"])
@pytest.mark.parametrize(
    "chosen", [EVERY_TARGET[9:10], pytest.param(EVERY_TARGET, marks=pytest.mark.nightly)], ids=["some", "all"]
)
def test_after_a_rewind_to_any_epoch_a_mended_graph_continues_from_the_state_of_that_epoch(
    spark: SparkSession, tmp_path: Path, chosen: list[tuple[int, str]], has_journal: bool
) -> None:
    work, directory = tmp_path / "work", tmp_path / "work" / "checkpoint"
    options: dict[str, Any] = {"trigger": hf.available_now(), "session": spark, "settings": SETTINGS}
    for count in (1, 6):  # a snapshot of epoch 1 alone; that of the second stop lies beyond every target
        give(work, count)
        graph_of(work).run(checkpoint=str(directory), **options)
    if not has_journal:  # as after so many epochs that these are pruned
        shutil.rmtree(directory / JOURNAL)
    shutil.copytree(work, tmp_path / "copy")
    for target, kind in chosen:
        shutil.rmtree(work)
        shutil.copytree(tmp_path / "copy", work)
        store = LocalStore(str(directory))
        rewinding = Rewinding(graph_of(work), store, directory, SETTINGS, spark)
        is_exact = target == 1
        if not (is_exact or has_journal):
            check_interrupted(rewinding, str(target), graph_of(work, kind))
        done = rewinding.do(str(target))
        assert done.replayed == (0 if is_exact or has_journal else target - 1)
        planned = plan(graph_of(work, kind), store, directory, SETTINGS).change
        assert planned is not None
        assert planned.replay is None, "nothing is left to the mended graph"
        check_change(planned, "trips", is_forced=False)
        give(work, 8)
        graph_of(work, kind).run(checkpoint=str(directory), **options)
        found = [sqlite_rows(work / name, "SELECT k, n FROM t") for name in ("t.db", "more.db")]
        assert found == list(mended(kind, target, 8)), (target, kind)


def check_interrupted(rewinding: Rewinding, to: str, other: hf.Pipeline) -> None:
    """Interrupt a rewind before it has brought the state to its target: no other graph may go on from there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TargetState, "evaluate", lambda self, to, replayed, left_out: interrupted())
        with pytest.raises(KeyboardInterrupt):
            rewinding.do(to)
    planned = plan(other, rewinding.store, rewinding.directory, SETTINGS).change
    assert planned is not None
    with pytest.raises(InvalidPipeline, match="before the old one had caught up") as refused:
        check_change(planned, "trips", is_forced=False)
    assert "holdfast rewind with the old graph" in refused.value.do


def test_a_sink_that_cannot_withdraw_is_left_out_and_filled_from_the_beginning(
    spark: SparkSession, tmp_path: Path
) -> None:
    """While the state at the target is evaluated again, nothing is written to it."""
    directory = tmp_path / "checkpoint"
    options: dict[str, Any] = {"trigger": hf.available_now(), "session": spark, "settings": SETTINGS}

    def graph(name: str = "log", **backfill: Any) -> hf.Pipeline:
        (table,) = graph_of(tmp_path).sinks
        return hf.Pipeline(
            "trips", table, table.stream | hf.write.sqlite(tmp_path / "log.db", table="t", name=name, **backfill)
        )

    def rows() -> list[Any]:
        return [sqlite_rows(tmp_path / name, "SELECT k, n FROM t") for name in ("t.db", "log.db")]

    for count in (1, 6):
        give(tmp_path, count)
        graph().run(checkpoint=str(directory), **options)
    shutil.rmtree(directory / JOURNAL)
    rewinding = Rewinding(graph(), LocalStore(str(directory)), directory, SETTINGS, spark)
    done = rewinding.do("4", ["log"])
    assert (done.replayed, done.left_out) == (3, ("log",))
    assert "log  left out: what it holds from after epoch 4 stays" in "\n".join(rewind_lines("trips", done))
    (at_target, _), (whole, _) = mended("", 0, 4), mended("", 0, 6)
    assert rows() == [at_target, whole]

    def effect(of: hf.Pipeline) -> str:
        change = plan(of, rewinding.store, directory, SETTINGS).change
        assert change is not None
        return next(node.effect for node in change.nodes if node.role is Role.SINK and node.verdict is NodeVerdict.NEW)

    assert "is there twice" in effect(graph("renamed"))
    with pytest.raises(Diverged, match="sink 'log' holds epoch 6"):
        graph().run(checkpoint=str(directory), **options)
    for path in tmp_path.glob("log.db*"):
        path.unlink()
    assert "gets everything from the beginning" in effect(graph(backfill=True))
    give(tmp_path, 8)
    graph(backfill=True).run(checkpoint=str(directory), **options)
    (whole, _) = mended("", 0, 8)
    assert rows() == [whole, whole]


def interrupted() -> None:
    raise KeyboardInterrupt


def test_a_sink_that_was_out_of_the_graph_during_a_rewind_is_refused_when_it_comes_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    give(tmp_path, 2)
    directory = tmp_path / "checkpoint"
    given = hf.read.files(str(tmp_path / "in"), schema="k STRING, v BIGINT", max_files_per_epoch=1, name="given")
    kept, archive = (given | hf.write.files(tmp_path / name, name=name) for name in ("kept", "archive"))
    options: dict[str, Any] = {"trigger": hf.available_now(), "session": spark}
    hf.Pipeline("trips", kept, archive).run(checkpoint=str(directory), **options)
    done = Rewinding(hf.Pipeline("trips", kept), LocalStore(str(directory)), directory, SETTINGS).do("1")
    assert list(rewind_lines("trips", done))[1] == (
        "archive  not in the graph: it keeps what it holds; after epoch 1, it is refused if it is put back"
    )
    with pytest.raises(Diverged, match="sink 'archive' holds epoch 2, which epoch 3, a rewind, has withdrawn"):
        hf.Pipeline("trips", kept, archive).run(checkpoint=str(directory), **options)
    assert parquet_rows(tmp_path / "kept", "k") == sorted(LETTERS[0]), "nothing has begun"


@pytest.mark.nightly
def test_a_name_is_always_within_reach(spark: SparkSession, tmp_path: Path) -> None:
    give(tmp_path, 3)
    running = pipeline_of(tmp_path).start(
        checkpoint=str(tmp_path / "checkpoint"), trigger=hf.available_now(), session=spark, settings=SETTINGS, keep=1
    )
    running.wait()
    assert running.checkpoint_now(name="third") == 3
    with pytest.raises(InvalidPipeline, match="already"):
        running.checkpoint_now(name="third")
    for count in (5, 7):
        give(tmp_path, count)
        run(tmp_path, spark, keep=1)
    directory = tmp_path / "checkpoint"
    rewinding = Rewinding(pipeline_of(tmp_path), LocalStore(str(directory)), directory, SETTINGS)
    with pytest.raises(InvalidPipeline) as refused:
        rewinding.plan("3")
    assert "it can go back to epoch 7:" in refused.value.why
    done = rewinding.do("third")
    assert (done.to, done.snapshot, done.replayed) == (3, 3, 0)
    check(tmp_path, 3)
    run(tmp_path, spark)
    check(tmp_path, 7)


@pytest.mark.nightly
def test_it_reaches_behind_a_new_division_of_state(spark: SparkSession, tmp_path: Path) -> None:
    divided = Settings(buckets=5, checkpoint_freq=86_400_000)
    for count, settings in ((1, SETTINGS), (4, SETTINGS), (7, divided)):
        give(tmp_path, count)
        run(tmp_path, spark, settings=settings, keep=10)
    directory = tmp_path / "checkpoint"
    done = Rewinding(pipeline_of(tmp_path), LocalStore(str(directory)), directory, divided).do("3")
    assert (done.snapshot, done.replayed) == (1, 2), "the journal ended when state was divided anew"
    check(tmp_path, 3)
    give(tmp_path, 12)
    run(tmp_path, spark, settings=divided, keep=10)
    check(tmp_path, 12)


def test_without_state_it_reaches_as_far_as_the_log_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    rows = hf.read.files(str(tmp_path / "in"), schema="k STRING", max_files_per_epoch=1, name="given")
    table = hf.write.sqlite(tmp_path / "t.db", table="t", rewindable=True, name="table")
    plain = hf.Pipeline("plain", rows | hf.filter("k <> 'c'", name="some") | table)
    directory = tmp_path / "checkpoint"

    def letters() -> str:
        plain.run(checkpoint=str(directory), trigger=hf.available_now(), session=spark)
        return "".join(sqlite_rows(tmp_path / "t.db", "SELECT k FROM t ORDER BY __holdfast_epoch"))

    give(tmp_path, 3)
    assert letters() == "aaabbb"
    rewinding = Rewinding(plain, LocalStore(str(directory)), directory, Settings())
    for to in ("2", "1"):
        assert rewinding.do(to).sinks["table"].epoch_count == 1
    assert sqlite_rows(tmp_path / "t.db", "SELECT k FROM t") == ["a", "a", "b"]
    assert letters() == "aaabbb"


def test_without_state_it_reaches_behind_the_log_of_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "GATHERED", 2)
    rows = hf.read.files(str(tmp_path / "in"), schema="k STRING", max_files_per_epoch=1, name="given")
    table = hf.write.sqlite(tmp_path / "t.db", table="t", rewindable=True, name="table")
    plain = hf.Pipeline("plain", rows | hf.filter("k <> 'c'", name="some") | table)
    directory = tmp_path / "checkpoint"
    give(tmp_path, 5)
    plain.run(checkpoint=str(directory), trigger=hf.available_now(), session=spark)
    for entry in (directory / "spark/1/offsets").iterdir():  # as Spark does with all but the last hundred
        if entry.name.lstrip(".").split(".")[0] in ("0", "1", "2"):
            entry.unlink()
    rewinding = Rewinding(plain, LocalStore(str(directory)), directory, Settings())
    assert rewinding.do("2").sinks["table"].row_count == len([k for k in "".join(LETTERS[2:5]) if k != "c"])
    plain.run(checkpoint=str(directory), trigger=hf.available_now(), session=spark)
    found = sqlite_rows(tmp_path / "t.db", "SELECT k FROM t")
    assert found == sorted(k for k in "".join(LETTERS[:5]) if k != "c")
