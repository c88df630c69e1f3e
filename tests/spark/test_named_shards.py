"""Named checkpoints of all shards of real runs: made while they run or stand still, forked, gone back to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

import holdfast as hf
from holdfast import faults, segments
from holdfast.cli.app import app
from holdfast.config import Settings
from holdfast.connectors.segments.policies import rows
from holdfast.controller.controller import ShardedRun
from holdfast.controller.named import ShardNames
from holdfast.controller.named_parts import shard_stores
from holdfast.errors import HoldfastError, InvalidPipeline
from holdfast.pipeline import Pipeline
from holdfast.shards.layout import newest_layout
from holdfast.starts.rewind import Rewinding
from holdfast.store.local import LocalStore
from tests.spark.running import arrive, eventually, sqlite_rows

pytestmark = pytest.mark.spark

FILES = "abcdefgh"
SETTINGS = Settings(buckets=2, partitions=1, checkpoint_freq=86_400_000)


class Row(NamedTuple):
    """A row of the table."""

    shard: int
    epoch: int
    id: int
    n: int


@dataclass
class Place:
    """Files that arrive; a pipeline over them that counts, in two shards, and forks of it."""

    directory: Path
    runs: list[Any] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)

    def checkpoint(self, name: str = "rides") -> Path:
        return self.directory / f"checkpoint-{name}"

    def arrive(self, *names: str) -> None:
        for name in names:
            number = len(self.ids)
            arrive(self.directory / "in", f"{name}-{number:04}.json", [{"id": number, "k": name}])
            self.ids.append(number)

    def pipeline(self, name: str = "rides", *, has_state: bool = True, has_store: bool = True) -> Pipeline:
        rides = hf.read.files(str(self.directory / "in"), schema="id BIGINT, k STRING", name="rides")
        counts = rides | (hf.accumulate(by="k", n=hf.count(), name="counts") if has_state else hf.select(n="id"))
        table = hf.write.sqlite(str(self.directory / f"{name}.db"), table="rows", name="table", rewindable=True)
        store = hf.write.segments(str(self.directory / f"store-{name}"), seal=[rows(4)], name="store")
        sinks = (counts | table, rides | store) if has_store else (counts | table,)
        return hf.Pipeline(name, *sinks, shards="independent")

    def start(self, name: str = "rides", **options: Any) -> ShardedRun:
        options = {"checkpoint": self.checkpoint(name), "trigger": hf.every("50 ms"), "settings": SETTINGS, **options}
        run = self.pipeline(name).start(**options)
        self.runs.append(run)
        assert isinstance(run, ShardedRun)
        return run

    def run(self, name: str = "rides", *, has_state: bool = True, has_store: bool = True, **options: Any) -> None:
        options = {"checkpoint": self.checkpoint(name), "settings": SETTINGS, **options}
        self.pipeline(name, has_state=has_state, has_store=has_store).run(trigger=hf.available_now(), **options)

    def table(self, name: str = "rides") -> list[Row]:
        found = sqlite_rows(self.directory / f"{name}.db", "SELECT id, n, __holdfast_epoch FROM rows")
        return [Row(epoch >> 48, epoch & (1 << 48) - 1, id_, n) for id_, n, epoch in found]

    def counts(self, name: str = "rides", since: int = 0) -> list[tuple[int, int, int]]:
        return [(row.shard, row.id, row.n) for row in self.table(name) if row.id >= since]

    def ids_of(self, name: str = "rides") -> list[int]:
        return [row.id for row in self.table(name)] if (self.directory / f"{name}.db").exists() else []

    def store(self, name: str) -> list[int]:
        return sorted(segments.open(self.directory / f"store-{name}").to_arrow()["id"].to_pylist())

    @property
    def names(self) -> ShardNames:
        layout = newest_layout(LocalStore(str(self.checkpoint())))
        assert layout is not None
        return ShardNames("rides", shard_stores(self.checkpoint(), layout))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as ending:
        (tmp_path / "in").mkdir()
        found = Place(tmp_path)
        ending.callback(lambda: [run.stop() for run in found.runs])
        yield found


def holdfast(*arguments: object) -> Any:
    answer = CliRunner().invoke(app, [*map(str, arguments), "--json"], catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    return json.loads(answer.stdout)


def keep(run: ShardedRun, name: str) -> None:
    """Name what the shards have finished, once one has: its rows are there a moment before."""

    def is_named() -> bool:
        with suppress(InvalidPipeline):
            return run.checkpoint_now(name=name) > 0
        return False

    eventually(is_named, what="a shard that has finished an epoch")


def test_shards_are_named_while_they_run_and_a_fork_goes_on_as_they_did(place: Place) -> None:
    """Rows after the name have the same counts in the fork as in the original, which went on; each once."""
    place.arrive("a")
    run = place.start(shards=2)
    eventually(lambda: place.ids_of() == place.ids, what="the first row")
    keep(run, "one")
    before = {shard: part.ended.epoch for shard, part in place.names.manifests("one").items()}
    assert before, "of the other one, which has read nothing yet, nothing is kept"
    place.arrive(*FILES)
    eventually(lambda: place.ids_of() == place.ids, what="rows of both shards")
    run.checkpoint_now(name="before")
    place.arrive(*FILES)
    eventually(lambda: place.ids_of() == place.ids, what="rows after the name")
    with pytest.raises(InvalidPipeline, match="already"):
        run.checkpoint_now(name="before")
    run.stop()
    parts = {shard: part.ended.epoch for shard, part in place.names.manifests("before").items()}
    first, shown = holdfast("checkpoint", "list", "--checkpoint", place.checkpoint())[::-1]
    assert (first["name"], first["shards"].keys()) == ("one", {*map(str, before)})
    assert (shown["name"], shown["pipeline"], shown["shards"].keys()) == ("before", "rides", {*map(str, parts)})
    assert holdfast("checkpoint", "show", "before", "--checkpoint", place.checkpoint())["rows"] > 0

    where = str(place.checkpoint() / "before")
    place.run("fork", from_checkpoint=where, shards=2)
    later = [row for row in place.table() if row.epoch > parts.get(row.shard, 0)]
    assert place.counts("fork") == [(row.shard, row.id, row.n) for row in later]
    assert place.store("fork") == [row.id for row in later]
    assert {*place.ids[9:]} <= {*place.store("fork")}

    place.arrive(*FILES)
    place.run()
    place.run("fork", from_checkpoint=where)  # the same program once more goes on, with as many shards
    assert place.ids_of() == place.store("rides") == place.ids
    assert place.store("fork") == place.ids_of("fork") == [row.id for row in later] + place.ids[17:]
    assert {*place.counts("fork")} <= {*place.counts()}
    with pytest.raises(InvalidPipeline, match="cannot begin with"):
        place.run("fork", from_checkpoint=str(place.checkpoint() / "other"))
    place.run("second", from_checkpoint=str(place.checkpoint() / "one"), shards=2)
    rest = [row.id for row in place.table() if row.epoch > before.get(row.shard, 0)]
    assert place.store("second") == place.ids_of("second") == rest


def test_shards_that_stand_still_are_named(place: Place) -> None:
    """Without state: what is kept is where each stands."""
    place.arrive(*FILES)
    place.run(has_state=False, shards=2)
    made = holdfast("checkpoint", "create", "first", "--force", "--checkpoint", place.checkpoint())
    assert made["shards"].keys() == {"0", "1"}
    place.arrive(*FILES)
    for shards, match in ((3, "is of 2 shards"), (None, "is of a pipeline in shards")):
        with pytest.raises(InvalidPipeline, match=match):
            place.run("fork", has_state=False, from_checkpoint=str(place.checkpoint() / "first"), shards=shards)
    place.run("fork", has_state=False, from_checkpoint=str(place.checkpoint() / "first"), shards=2)
    assert place.store("fork") == place.ids[8:]
    place.run(has_state=False)
    assert place.store("rides") == place.ids
    holdfast("checkpoint", "delete", "first", "--checkpoint", place.checkpoint())
    assert holdfast("checkpoint", "list", "--checkpoint", place.checkpoint()) == []

    place.run("single", has_state=False)
    holdfast("checkpoint", "create", "one", "--force", "--checkpoint", place.checkpoint("single"))
    with pytest.raises(InvalidPipeline, match="which is of no pipeline in shards"):
        place.run("other", has_state=False, from_checkpoint=str(place.checkpoint("single") / "one"), shards=2)


def test_a_fork_whose_first_start_dies_between_its_shards_begins_once(place: Place) -> None:
    place.arrive(*FILES)
    place.run(shards=2)
    holdfast("checkpoint", "create", "first", "--force", "--checkpoint", place.checkpoint())
    place.arrive(*FILES)

    takeovers: list[str] = []

    def hook(point: str, epoch: int) -> None:
        takeovers.append(point)
        if len(takeovers) > 1:  # the first is that of all shards, before there is a layout
            raise RuntimeError(f"{point}:{epoch}")

    options: dict[str, Any] = {"from_checkpoint": str(place.checkpoint() / "first"), "shards": 2}
    faults.install(hook, shard=1)
    with pytest.raises(HoldfastError):
        place.run("fork", **options, settings=SETTINGS.model_copy(update={"max_restarts": 0}))
    faults.install(None, shard=1)
    with pytest.raises(InvalidPipeline, match="some of its shards have not begun yet"):
        place.run("fork")
    place.run("fork", **options)
    place.run()
    assert place.ids_of("fork") == place.store("fork") == place.ids[8:]
    assert place.counts("fork") == place.counts(since=8)


def test_all_shards_go_back_to_a_name(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its snapshots are older than those that are kept besides; a death between two shards is carried through."""
    place.arrive(*FILES)
    place.run(has_store=False, shards=2)
    holdfast("checkpoint", "create", "first", "--force", "--checkpoint", place.checkpoint())
    for _ in range(2):
        place.arrive(*FILES)
        place.run(has_store=False, keep=1)
    before = place.counts()
    target = place.directory / "rides.py"
    target.write_text(
        f"import holdfast as hf\n"
        f"rides = hf.read.files({str(place.directory / 'in')!r}, schema='id BIGINT, k STRING', name='rides')\n"
        f"counts = rides | hf.accumulate(by='k', n=hf.count(), name='counts')\n"
        f"table = hf.write.sqlite({str(place.directory / 'rides.db')!r}, table='rows', name='table', rewindable=True)\n"
        f"pipeline = hf.Pipeline('rides', counts | table, shards='independent')\n"
    )
    do = Rewinding.do

    def die_in_shard_1(self: Rewinding, to: str, left_out: Any = ()) -> Any:
        if self.pipeline.name == "rides-1":
            raise KeyboardInterrupt
        return do(self, to, left_out)

    monkeypatch.setattr(Rewinding, "do", die_in_shard_1)
    arguments = ["rewind", str(target), "--to", "first", "--checkpoint", str(place.checkpoint()), "--force"]
    assert CliRunner().invoke(app, arguments).exit_code != 0
    monkeypatch.setattr(Rewinding, "do", do)
    assert len(place.ids_of()) > 8
    refused = CliRunner().invoke(app, ["checkpoint", "delete", "first", "--checkpoint", str(place.checkpoint())])
    assert refused.exit_code == 2
    place.run(has_store=False)  # goes back first, wholly
    assert place.ids_of() == place.ids
    assert place.counts() == before
    holdfast("rewind", *arguments[1:])
    assert place.ids_of() == place.ids[:8]
    holdfast("checkpoint", "delete", "first", "--checkpoint", place.checkpoint())
