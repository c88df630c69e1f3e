"""Shards as runs: two of one graph in one process, each with a checkpoint and ledgers of its own (design/0048)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast import faults, segments
from holdfast.config import Settings
from holdfast.connectors.segments.policies import rows
from holdfast.controller.layouts.graph import ShardGraphs
from holdfast.controller.layouts.rearranging import Rearranging
from holdfast.controller.start import ShardStarts
from holdfast.errors import Diverged, Fenced, HoldfastError, InvalidPipeline
from holdfast.graph.hooks import NONE, Lifecycle
from holdfast.graph.trigger import available_now, every
from holdfast.pipeline import Pipeline
from holdfast.shards.layout import ShardLayout, newest_layout, record_layout
from holdfast.shards.naming import shard_checkpoint
from holdfast.shards.progress import read_progress
from holdfast.spark.run import Run
from holdfast.starts.context import StartOptions
from holdfast.starts.start import begin_run
from holdfast.starts.starting import Starting
from holdfast.store import sealed
from holdfast.store.local import LocalStore
from tests.spark.running import arrive, eventually, sqlite_rows

pytestmark = pytest.mark.spark

DIRECTORIES = "abcdefgh"


@dataclass
class Place:
    """Files that arrive, a table and a segments store; shards of a pipeline between them."""

    directory: Path
    runs: dict[int, Run] = field(default_factory=dict)
    ids: list[int] = field(default_factory=list)

    @property
    def checkpoint(self) -> Path:
        return self.directory / "checkpoint"

    def arrive(self, *names: str) -> None:
        for name in names:
            number = len(self.ids)
            arrive(self.directory / "in", f"{name}-{number:04}.json", [{"id": number}])
            self.ids.append(number)

    def pipeline(self) -> Pipeline:
        rides = hf.read.files(str(self.directory / "in"), schema="id BIGINT", name="rides")
        table = rides | hf.write.sqlite(str(self.directory / "rides.db"), table="rows", name="table")
        store = rides | hf.write.segments(str(self.directory / "store"), seal=[rows(4)], name="store")
        return hf.Pipeline("rides", table, store)

    def graphs(self) -> ShardGraphs:
        return ShardGraphs(self.pipeline(), self.checkpoint)

    def start(self, layout: ShardLayout, shard: int) -> Run:
        asked = StartOptions(
            self.graphs().of(layout, shard),
            shard_checkpoint(str(self.checkpoint), shard),
            every("50 ms"),
            commit_every_ticks=None,
            commit_thread=True,
            session=None,
            settings=Settings(),
        )
        self.runs[shard] = Starting(asked, Lifecycle(NONE, asked.pipeline.name)).run()
        return self.runs[shard]

    def table(self) -> list[int]:
        return sqlite_rows(self.directory / "rides.db") if (self.directory / "rides.db").exists() else []

    def store(self) -> list[int]:
        return sorted(segments.open(self.directory / "store").to_arrow()["id"].to_pylist())

    def ledgers(self) -> list[str]:
        return sqlite_rows(self.directory / "rides.db", "SELECT pipeline FROM holdfast_ledger")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as ending:
        (tmp_path / "in").mkdir()
        found = Place(tmp_path)
        ending.callback(lambda: [run.stop() for run in found.runs.values()])
        yield found


def test_one_shard_goes_on_while_the_other_is_stopped(place: Place) -> None:
    """Invariant 1 and the first goal: every row once, and a shard that is down leaves the other alone."""
    place.arrive(*DIRECTORIES)
    layout = place.graphs().first(2, "")
    for shard in range(2):
        place.start(layout, shard)
    eventually(lambda: place.table() == place.ids, what="rows of both shards")
    assert set(place.ledgers()) == {"rides", "rides-1"}
    place.runs[1].stop()
    seen = len(place.table())
    place.arrive(*DIRECTORIES)
    own = place.runs[0]
    eventually(lambda: len(place.table()) > seen, what="rows of shard 0, while shard 1 is stopped")
    assert own.is_active
    place.start(layout, 1)
    eventually(lambda: place.table() == place.ids, what="the rows that waited for shard 1")
    for run in place.runs.values():
        run.stop()
        run.wait()
    assert place.store() == place.ids == place.table()


def test_shards_share_what_their_sources_keep_and_nothing_else(place: Place) -> None:
    """Design/0048, section 2: one workspace of a source, put-if-absent; checkpoints of their own beside it."""
    place.arrive(*DIRECTORIES)
    layout = place.graphs().first(2, "")
    for shard in range(2):
        place.start(layout, shard)
    eventually(lambda: place.table() == place.ids)
    below = place.checkpoint / "shards/1"
    assert (place.checkpoint / "sources/rides/log").is_dir()
    assert not (below / "sources").exists()
    assert {"generations", "ledger", "spark", "identity.json"} <= {each.name for each in below.iterdir()}


def test_a_checkpoint_without_shards_goes_on_as_shard_0(place: Place) -> None:
    """Goal: a checkpoint and ledgers of a run without shards are shard 0, unchanged."""
    place.arrive("a", "b", "c")
    place.pipeline().run(checkpoint=place.checkpoint, trigger=hf.available_now())
    assert place.table() == place.ids
    before = {each.name for each in (place.checkpoint / "generations").iterdir()}
    layout = place.graphs().first(1, "")
    place.start(layout, 0)
    place.arrive("d", "e")
    eventually(lambda: place.table() == place.ids, what="rows after the ones that it had")
    place.runs[0].stop()
    assert place.store() == place.ids
    assert before < {each.name for each in (place.checkpoint / "generations").iterdir()}
    assert place.ledgers() == ["rides"]


def test_a_pipeline_runs_in_shards_and_goes_on_so(place: Place) -> None:
    """Section 5: `start(shards=N)`; the next start has as many."""
    place.arrive(*DIRECTORIES)
    run = place.pipeline().start(checkpoint=place.checkpoint, trigger=every("50 ms"), shards=2)
    eventually(lambda: place.table() == place.ids, what="rows of both shards")
    eventually(lambda: sum(each.rows_total for each in run.status().shards) == 2 * len(place.ids))
    status = run.status()
    assert [(each.shard, each.state) for each in status.shards] == [(0, "running"), (1, "running")]
    assert all(each.epoch > 0 and each.rows_total > 0 for each in status.shards)
    assert run.stop()
    assert run.wait()
    assert sorted(set(place.ledgers())) == ["rides", "rides-1"]
    record = read_progress(LocalStore(str(place.checkpoint)))
    assert record is not None
    assert [(each["shard"], each["state"]) for each in record.shards] == [(0, "stopped"), (1, "stopped")]
    place.arrive(*DIRECTORIES)
    again = place.pipeline().run(checkpoint=place.checkpoint, trigger=available_now())
    assert [each.state for each in again.status().shards] == ["stopped", "stopped"]
    assert place.table() == place.store() == place.ids


def test_the_number_of_shards_changes_at_a_start(place: Place) -> None:
    """Acceptance 3, from one run without shards: 1, 4, 2, 4, and as many as before where none is said."""
    place.arrive("a")
    place.pipeline().run(checkpoint=place.checkpoint, trigger=available_now(), shards=1)
    store = LocalStore(str(place.checkpoint))
    assert newest_layout(store) is None
    dealt = {}
    for count in (4, 2, 4, None):
        place.arrive(*DIRECTORIES)
        run = place.pipeline().run(checkpoint=place.checkpoint, trigger=available_now(), shards=count)
        assert len(run.status().shards) == (count or 4)
        assert place.table() == place.store() == place.ids
        layout = newest_layout(store)
        assert layout is not None
        assert dealt.setdefault(count or 4, layout.assignment.shards) == layout.assignment.shards


def test_a_controller_whose_layout_was_changed_starts_no_shard_under_it(place: Place) -> None:
    """Section 6: it waits to start a shard again while another controller changes the number."""
    place.arrive(*DIRECTORIES)
    place.pipeline().run(checkpoint=place.checkpoint, trigger=available_now(), shards=2)
    former = newest_layout(LocalStore(str(place.checkpoint)))
    assert former is not None
    asked = StartOptions(
        place.pipeline(),
        str(place.checkpoint),
        available_now(),
        commit_every_ticks=None,
        commit_thread=True,
        session=None,
        settings=Settings(),
    )
    Rearranging(place.pipeline(), place.checkpoint, Settings()).change(3)
    place.arrive(*DIRECTORIES)
    with pytest.raises(Fenced, match="changed by another start"):
        begin_run(ShardStarts(asked, place.checkpoint)._asked_of(place.graphs(), former, 0))
    place.pipeline().run(checkpoint=place.checkpoint, trigger=available_now())
    assert place.table() == place.store() == place.ids


def fail_at(point: str, shard: int) -> None:
    """Let a shard fail whenever it reaches a point, and let nobody publish for it from then on.

    While the others still run they take over what is down, and would publish what it has left.
    """
    failed: list[str] = []

    def hook(reached: str, epoch: int) -> None:
        if reached == point or (failed and reached == "before-publish"):
            failed.append(f"{reached}:{epoch}")
            raise RuntimeError(failed[-1])

    faults.install(hook, shard=shard)


@pytest.mark.parametrize(
    ("point", "counts"), [("after-stage", [1]), ("after-decide", [3, None]), ("after-publish", [None])]
)
def test_shards_whose_checkpoint_is_lost_go_on_from_their_sinks(
    place: Place, point: str, counts: list[int | None]
) -> None:
    """Section 8: with another number, too; the second time, what the first one has recovered is lost."""
    place.arrive(*DIRECTORIES)
    shard_count = 2
    place.pipeline().run(checkpoint=place.checkpoint, trigger=available_now(), shards=shard_count)
    for count in counts:
        place.arrive(*DIRECTORIES)
        fail_at(point, 1)
        with pytest.raises(HoldfastError):
            place.pipeline().run(
                checkpoint=place.checkpoint, trigger=available_now(), settings=Settings(max_restarts=0)
            )
        faults.install(None)
        shutil.rmtree(place.checkpoint)
        place.arrive(*DIRECTORIES, "new")
        planned = Rearranging(place.pipeline(), place.checkpoint, Settings()).plan(4)
        assert planned.before == shard_count
        if point == "after-publish":  # two sinks of shard 1 differ: only a run makes them equal
            with pytest.raises(Diverged, match="hold less than others"):
                place.pipeline().start(checkpoint=place.checkpoint, shards=3)
        run = place.pipeline().run(checkpoint=place.checkpoint, trigger=available_now(), shards=count)
        assert place.table() == place.store() == place.ids
        shard_count = count or shard_count
        assert len(run.status().shards) == shard_count


def test_one_run_whose_checkpoint_is_lost_goes_on_in_shards(place: Place) -> None:
    place.arrive(*DIRECTORIES)
    place.pipeline().run(checkpoint=place.checkpoint, trigger=available_now())
    shutil.rmtree(place.checkpoint)
    place.arrive(*DIRECTORIES)
    run = place.pipeline().run(checkpoint=place.checkpoint, trigger=available_now(), shards=2)
    assert place.table() == place.store() == place.ids
    assert len(run.status().shards) == 2


def test_state_of_shards_whose_checkpoint_is_lost_is_rebuilt_if_that_is_asked_for(place: Place) -> None:
    """As a single run does: each shard counts on from what its segments had."""
    rides = hf.read.files(str(place.directory / "in"), schema="id BIGINT", name="rides")
    halves = rides | hf.select("id % 2 AS half", name="halves")
    counts = halves | hf.accumulate(by="half", n=hf.count(), name="counts")
    table = counts | hf.write.sqlite(str(place.directory / "rides.db"), table="rows", name="table")
    pipeline = hf.Pipeline("rides", table, shards="independent")
    place.arrive(*DIRECTORIES)
    pipeline.run(checkpoint=place.checkpoint, trigger=available_now(), shards=2)
    shutil.rmtree(place.checkpoint)
    place.arrive(*DIRECTORIES)
    with pytest.raises(Diverged, match="holds epoch"):
        pipeline.start(checkpoint=place.checkpoint)
    run = pipeline.run(checkpoint=place.checkpoint, trigger=available_now(), rebuild_state=True)
    assert len(run.status().shards) == 2
    for half in (0, 1):
        found = sqlite_rows(place.directory / "rides.db", f"SELECT n FROM rows WHERE half = {half}")
        assert len(found) == len([each for each in place.ids if each % 2 == half])
        times = [found.count(n) for n in range(1, max(found) + 1)]
        assert times == sorted(times, reverse=True), "a count is left out, or is there again"
        assert times[0] == 2


def test_shards_of_a_layout_that_opened_no_sinks_are_opened_before_one_runs(place: Place) -> None:
    """A record of an older version: some of its shards may not have begun."""
    place.arrive(*DIRECTORIES)
    store = LocalStore(str(place.checkpoint))
    store.prepare()
    layout = record_layout(store, place.graphs().first(3, ""))
    assert layout is not None
    key = "shards/layout/00000001.json"
    value = sealed.load(store.get(key) or b"")
    store.put(key, sealed.dump({name: of for name, of in value.items() if name != "opened"}))
    rearranging = Rearranging(place.pipeline(), place.checkpoint, Settings())
    assert rearranging.to_open == [0, 1, 2]
    with pytest.raises(InvalidPipeline, match="has not begun"):
        place.pipeline().start(checkpoint=place.checkpoint, only_shard=2)
    run = place.pipeline().start(checkpoint=place.checkpoint, trigger=every("50 ms"))
    assert set(place.ledgers()) == {"rides", "rides-1", "rides-2"}
    eventually(lambda: place.table() == place.ids, what="rows of all shards")
    run.stop()
    assert run.wait()
    assert rearranging.to_open == []


def test_no_shard_begins_before_the_sinks_of_all_are_open(place: Place) -> None:
    """Section 5: a shard whose sinks were away would hide all higher ones from who has lost the checkpoint."""
    place.arrive(*DIRECTORIES)
    obstacle = place.directory / "store/_holdfast/rides-1"
    obstacle.parent.mkdir(parents=True)
    obstacle.write_text("no directory can be made here")
    with pytest.raises(HoldfastError, match="store"):
        place.pipeline().start(checkpoint=place.checkpoint, shards=3)
    assert newest_layout(LocalStore(str(place.checkpoint))) is None
    assert place.table() == []
    with pytest.raises(InvalidPipeline, match="no shard 2"):
        place.pipeline().start(checkpoint=place.checkpoint, only_shard=2)
    obstacle.unlink()
    place.pipeline().run(checkpoint=place.checkpoint, trigger=available_now(), shards=3)
    assert place.table() == place.store() == place.ids


@pytest.mark.parametrize("point", ["before-stage", "after-decide", "after-publish"])
def test_a_shard_that_fails_leaves_the_other_alone(place: Place, point: str) -> None:
    """Its recovery is its own: the other's query is the same one, and every row takes effect once.

    While it waits for its next start it is taken over; a failure there is no start's, and the next one meets it again.
    """
    failures: list[int] = []

    def hook(reached: str, epoch: int) -> None:
        if reached == point and len(failures) < 3 and run.status().shards[1].state != "waiting":
            failures.append(epoch)
            raise RuntimeError(f"{reached}:{epoch}")

    run = place.pipeline().start(checkpoint=place.checkpoint, trigger=every("50 ms"), shards=2)
    place.arrive(*DIRECTORIES)
    eventually(lambda: place.table() == place.ids)
    healthy = run.status().shards[0]
    faults.install(hook, shard=1)
    for _ in range(4):
        place.arrive(*DIRECTORIES)
        eventually(lambda: place.table() == place.ids, what="rows of both shards, after failures of one")
    assert len(failures) == 3
    # Rows of a decided epoch are published by a takeover, before the shard is started again.
    eventually(lambda: [each.restarts for each in run.status().shards] == [0, 3], what="three starts of one shard")
    assert run.status().shards[0].generation == healthy.generation
    run.stop()
    assert run.wait()
    assert place.table() == place.store() == place.ids


def refuse(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Fail at one row."""
    if 13 in batch.column("id").to_pylist():
        raise ValueError("13 is poison")
    return batch


def test_a_row_that_kills_one_shard_is_isolated_there(place: Place) -> None:
    """A shard reads several segments: a row of each has an address (design/0013)."""
    rides = hf.read.files(str(place.directory / "in"), schema="id BIGINT", name="rides")
    met = rides | hf.map_batches(refuse, "id BIGINT", name="met")
    pipeline = hf.Pipeline(
        "rides", met | hf.write.sqlite(str(place.directory / "rides.db"), table="rows", name="table")
    )
    settings = Settings(on_poison="isolate", poison_attempts=1)
    run = pipeline.start(checkpoint=place.checkpoint, trigger=every("50 ms"), shards=2, settings=settings)
    place.arrive(*DIRECTORIES, *DIRECTORIES, *DIRECTORIES)
    eventually(lambda: place.table() == [each for each in place.ids if each != 13], what="all rows but one")
    assert sorted(each.restarts for each in run.status().shards) == [0, 1]
    run.stop()
    assert run.wait()


def test_one_shard_runs_alone(place: Place) -> None:
    with pytest.raises(InvalidPipeline, match="no shard 1"):
        place.pipeline().start(checkpoint=place.checkpoint, only_shard=1)
    place.arrive(*DIRECTORIES)
    place.pipeline().run(checkpoint=place.checkpoint, trigger=available_now(), shards=2)
    place.arrive(*DIRECTORIES)
    before = len(place.table())
    run = place.pipeline().run(checkpoint=place.checkpoint, trigger=available_now(), only_shard=1)
    assert run.pipeline.name == "rides-1"
    assert before < len(place.table()) < len(place.ids)
    place.pipeline().run(checkpoint=place.checkpoint, trigger=available_now())
    assert place.table() == place.store() == place.ids


def test_hooks_of_setup_and_teardown_are_called_once_for_all(place: Place) -> None:
    called: list[str] = []
    place.arrive(*DIRECTORIES)
    hooks = hf.Hooks(
        on_setup=lambda: called.append("setup"),
        on_start=lambda: called.append("start"),
        on_teardown=lambda: called.append("teardown"),
    )
    plain = place.pipeline()
    hf.Pipeline("rides", *plain.sinks, hooks=hooks).run(checkpoint=place.checkpoint, trigger=available_now(), shards=2)
    assert called == ["setup", "start", "start", "teardown"]


def test_each_shard_has_a_value_of_its_own_and_its_hooks_are_told_whose_it_is(place: Place) -> None:
    recovered: dict[int, str] = {}
    place.arrive(*DIRECTORIES)
    hooks = hf.Hooks(
        on_checkpoint=lambda *, shard: f"of {shard}",
        on_recover=lambda value, *, shard: recovered.update({shard: value}),
    )
    for _ in range(2):
        pipeline = hf.Pipeline("rides", *place.pipeline().sinks, hooks=hooks)
        pipeline.run(checkpoint=place.checkpoint, trigger=available_now(), shards=2)
    assert recovered == {0: "of 0", 1: "of 1"}


def test_what_keeps_state_runs_in_shards_only_if_these_are_independent(tmp_path: Path) -> None:
    def pipeline(**more: Any) -> Pipeline:
        ticks = hf.read.rate(rows_per_second=1000, name="ticks")
        counts = ticks | hf.accumulate(by="value", n=hf.count(), name="counts")
        return hf.Pipeline("counted", counts | hf.write.memory(name="out"), **more)

    with pytest.raises(InvalidPipeline, match="puts rows of one key together"):
        pipeline().start(checkpoint=tmp_path / "one", shards=2)
    assert pipeline(shards="independent").shards == "independent"
    with pytest.raises(InvalidPipeline, match="how many there are is said at a start"):
        pipeline(shards=4)
