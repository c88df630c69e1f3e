"""Rows are isolated once, whatever dies: a crash at every durable write of the search and of the replay behind it.

Design/0013, section 4.  Trials are fakes that read through masks, as the real ones do.
"""

import errno
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.checkpoint.directory_header import DirectoryHeader
from holdfast.checkpoint.spark_log import CONTROLS, Offsets, read_offsets
from holdfast.commit.claims import Claim
from holdfast.errors import BadRow, InternalError, InvalidPipeline, Unavailable, crossing, from_text
from holdfast.quarantine.dead_letters import DeadLetters, read_letters, send_again
from holdfast.quarantine.mask import NOTHING, lettered
from holdfast.spark.evaluation import Reader
from holdfast.spark.quarantine.isolate import Isolating, Suspicion
from holdfast.spark.quarantine.trials import planned
from holdfast.store import durable
from holdfast.testing.store import SimulatedStore

LISTS = [[0, 1], [2, 3, 4, 5, 6], [7]]
EVERYTHING = list(range(8))
ORIGIN = DirectoryHeader(1)


class Killed(BaseException):
    """The process is gone."""


@dataclass
class DyingStore:
    """A store in whose n-th write the process dies, before or after it is done."""

    inner: SimulatedStore
    dies_at: int | None = None
    is_done: bool = False
    writes: int = 0

    def get(self, key):
        return self.inner.get(key)

    def keys(self, prefix):
        return self.inner.keys(prefix)

    def put(self, key, data):
        self._write(lambda: self.inner.put(key, data))

    def delete(self, key):
        self._write(lambda: self.inner.delete(key))

    def _write(self, write):
        self.writes += 1
        if self.writes == self.dies_at and not self.is_done:
            raise Killed
        write()
        if self.writes == self.dies_at:
            raise Killed


class Owner:
    """A coordinator of which no sink holds the epoch."""

    generation = 1

    def __init__(self, sinks):
        self._sinks = sinks

    def missing(self, epoch, positions, start):
        return Claim(epoch, frozenset(self._sinks), self.generation, number=1, end=positions)

    def check_fenced(self):
        pass


@dataclass
class World:
    """What survives a process: the checkpoint, Spark's logs, and the sink."""

    path: Path
    bad: frozenset[int] = frozenset({3, 4})
    kills: bool = False
    has_state: bool = False
    rows_max: int = 10
    error: Exception = field(default_factory=lambda: BadRow("refused."))
    store: SimulatedStore = field(default_factory=SimulatedStore)
    sink: list[int] = field(default_factory=list)
    generation: int = 0
    trials: int = 0

    def __post_init__(self):
        for name in ("offsets", "commits"):
            (self.path / name).mkdir(parents=True)
        lists = [[{"v": one} for one in each] for each in LISTS]
        given = hf.read.rows(lists, schema="v BIGINT", name="in")
        self.pipeline = hf.Pipeline("p", given | hf.write.sqlite(self.path / "out.db", table="t", name="out"))

    def source(self, mask):
        return lettered(self.pipeline.sources[0].spec.open("in", str(self.path / "in")), mask)

    def read(self, masks, start, end):
        source = self.source(masks.get("in", NOTHING))
        spans = source.spans(start.get("in", source.initial()), end["in"], parallelism=2)
        return [one for span in spans for batch in source.read(span) for one in batch.column("v").to_pylist()]

    def live(self, dies_at=None, is_done=False):
        """Run until nothing is left; die, or fail, on the way."""
        store = DyingStore(self.store, dies_at, is_done)
        self.generation += 1
        letters = DeadLetters(store, self.generation, isolates=True)
        isolating = Isolating(
            pipeline=self.pipeline,
            store=store,
            opened=lambda node: self.source(NOTHING),
            spark=self.path,
            header=ORIGIN,
            coordinator=Owner({"out"}),
            letters=letters,
            trials=self,
            levels={1: ["counts"]} if self.has_state else {},
            now_us=lambda: 5,
            rows_max=self.rows_max,
        )
        isolating.settle(1)
        masks = letters.masks()
        while (epoch := planned(self.path, ORIGIN) or self._plan(masks)) is not None:
            rows = self.read(masks, epoch.start.positions, epoch.end.positions)
            self._evaluate(rows)
            self.sink += rows  # one step: rows and positions
            self._log("commits", epoch.batch, "{}")
        return store.writes

    def clear(self):
        """Nothing is left of a trial."""

    def make(self, epoch, masks, passing):
        """Be the trials: evaluate a part of an epoch."""
        self.trials += 1
        self._evaluate(self.read(masks, epoch.start.positions, epoch.end.positions))
        return {}

    def _evaluate(self, rows):
        if self.bad & set(rows):
            raise Killed if self.kills else self.error

    def _plan(self, masks):
        done = len(list((self.path / "commits").iterdir()))
        start = read_offsets(self.path, done - 1) if done else Offsets({}, {}, {}, {})
        source = self.source(masks.get("in", NOTHING))
        begin = start.positions.get("in", source.initial())
        end = source.latest(begin, bounded=True)
        if dict(end) == dict(begin):
            return None
        offset = json.dumps({"positions": end, "size_bytes": 0, "row_count": 0})
        self._log("offsets", done, json.dumps({"batchTimestampMs": 1}) + f"\nin:{offset}")
        return planned(self.path, ORIGIN)

    def _log(self, name, number, text):
        (self.path / name / str(number)).write_text(f"v2\n{text}")


def live_on(world, *, dies_at=None, is_done=False):
    """Live once with a death, then as often as it takes; return the writes of the first life, None if it died."""
    writes = None
    for life in range(60):
        try:
            found = world.live(dies_at if life == 0 else None, is_done)
            return found if life == 0 else writes
        except (Killed, BadRow):
            continue
    raise AssertionError("it never ends")


def letters_of(world):
    return [one.table.to_pylist()[0]["v"] for one in read_letters(world.store)]


@pytest.mark.slow
@pytest.mark.parametrize("has_state", [False, True])
@pytest.mark.parametrize("kills", [False, True])
@pytest.mark.parametrize("is_done", [False, True])
def test_a_crash_at_every_write_neither_loses_nor_doubles_a_row(tmp_path, has_state, kills, is_done):
    for at in range(1, 100):
        world = World(tmp_path / str(at), has_state=has_state, kills=kills)
        with pytest.raises((Killed, BadRow)):
            world.live()  # dies of the rows: nothing is isolated before a second start finds the epoch
        assert letters_of(world) == []
        has_survived = live_on(world, dies_at=at, is_done=is_done) is not None
        assert world.sink == [0, 1, 2, 5, 6, 7]
        assert letters_of(world) == [3, 4]
        assert world.store.keys("poison/") == []

        world.bad = frozenset()
        assert len(send_again(world.store, [], {})) == 2
        has_survived &= live_on(world, dies_at=at, is_done=is_done) is not None
        assert sorted(world.sink) == EVERYTHING
        if has_survived or (kills and at > 20):  # where rows kill, no life but the last one survives
            return
    raise AssertionError("the loop never ended")


def test_a_row_that_is_refused_again_when_it_comes_again_is_a_letter_again(tmp_path):
    world = World(tmp_path, bad=frozenset({3}))
    live_on(world)
    send_again(world.store, [], {})
    live_on(world)
    assert sorted(world.sink) == [0, 1, 2, 4, 5, 6, 7]
    assert [one.name for one in read_letters(world.store)] == ["in/rows/1/1", "in/letters/0/0"]
    world.bad = frozenset()
    send_again(world.store, [], {})
    live_on(world)
    assert sorted(world.sink) == EVERYTHING


def forbidden(number):
    """Return what a worker says that may not write where it stages rows, as it comes through the JVM."""
    with pytest.raises(InvalidPipeline) as caught, crossing(), durable.explained("staging rows in /data"):
        raise OSError(number, os.strerror(number), "/data")
    return from_text(f"...\nholdfast.errors.InvalidPipeline: {caught.value}")


@pytest.mark.parametrize(
    "error",
    [
        Unavailable("the database is away."),
        InternalError("Spark is ill."),
        forbidden(errno.EACCES),
        forbidden(errno.EROFS),
    ],
)
def test_what_says_nothing_about_rows_condemns_none(tmp_path, error):
    world = World(tmp_path, error=error)
    for _ in range(3):
        with pytest.raises(type(error)):
            world.live()
    assert letters_of(world) == []
    world.bad = frozenset()
    world.live()
    assert world.sink == EVERYTHING


def test_a_letter_keeps_no_secret_of_an_error(tmp_path):
    world = World(tmp_path, error=BadRow("no connection: password=hunter2", why="postgresql://app:hunter2@db/trips"))
    live_on(world)
    assert letters_of(world) == [3, 4]
    assert b"hunter2" not in b"".join(world.store.objects.values())
    assert read_letters(world.store)[0].error["what"] == "no connection: password=***"


def test_so_many_rows_that_they_speak_against_the_code_stop_the_start_however_often_it_is_made(tmp_path):
    world = World(tmp_path, bad=frozenset({2, 3, 4}), rows_max=2)
    with pytest.raises(BadRow):
        world.live()
    for _ in range(3):
        with pytest.raises(InvalidPipeline, match="more than 2 rows of epoch 2 fail"):
            world.live()
    assert letters_of(world) == [2, 3]


def test_an_epoch_that_a_sink_holds_keeps_its_rows(tmp_path, monkeypatch):
    world = World(tmp_path)
    monkeypatch.setattr(Owner, "missing", lambda *_: Claim(1, frozenset(), 1, number=1))
    for _ in range(2):
        with pytest.raises(BadRow):
            world.live()
    assert (letters_of(world), world.trials) == ([], 0)


def test_only_an_error_of_code_in_an_unfinished_epoch_is_suspected_to_be_that_of_rows(tmp_path):
    world = World(tmp_path)
    suspicion = Suspicion(world.store, tmp_path, ORIGIN, 3)
    assert suspicion.of(InvalidPipeline("it.")).epoch is None
    with pytest.raises(BadRow):
        world.live()
    suspected = suspicion.of(InvalidPipeline("it."))
    assert (type(suspected), suspected.epoch) == (BadRow, 2)
    assert suspicion.of(forbidden(errno.EACCES)).epoch is None, "no row is the reason"
    assert suspicion.of(InvalidPipeline("it.", participant="on_time_departures")).epoch == 2, "a node, and no hook"
    assert suspicion.of(InvalidPipeline("it.", participant="on_checkpoint")).epoch is None
    away = Unavailable("it.")
    assert suspicion.of(away) is away


class Looking:
    """A probe that finds bad rows by looking at them, with the numbers of the parts that it is given."""

    parallelism = 2
    program: Any = None

    def __init__(self, path, sources, bad):
        self.readers = {node.name: Reader(node.spec, node.name, str(path / node.name)) for node in sources}
        self._bad = bad

    def rows(self, parts, most):
        pieces = [piece for part, high in parts for piece in part.pieces(part.low, high, 1)]
        return [(at, BadRow("refused.")) for at, _, _, rows in pieces if rows.column("v")[0].as_py() in self._bad]


@pytest.mark.parametrize("others", [{}, {CONTROLS: {"first": 1}}])
def test_a_probe_numbers_rows_by_the_graph_in_whatever_order_spark_has_logged_its_sources(tmp_path, others):
    """Another order would condemn rows that did nothing.  And beside sources Spark's log has one that has no rows."""
    lists = {"first": [[0, 1], [2], [3]], "second": [[10, 11, 12]]}
    given = [
        hf.read.rows([[{"v": one} for one in each] for each in several], schema="v BIGINT", name=name)
        for name, several in lists.items()
    ]
    pipeline = hf.Pipeline("p", hf.union(*given) | hf.write.sqlite(tmp_path / "out.db", table="t", name="out"))
    (tmp_path / "offsets").mkdir()
    ends = {"second": {"rows": 1}, **others, "first": {"rows": 3}}
    entries = {name: json.dumps({"positions": of, "size_bytes": 0, "row_count": 0}) for name, of in ends.items()}
    texts = ["v2", json.dumps({"batchTimestampMs": 1}), *(f"{name}:{entry}" for name, entry in entries.items())]
    (tmp_path / "offsets/0").write_text("\n".join(texts))
    for node in pipeline.sources:
        source = node.spec.open(node.name, str(tmp_path / node.name))
        for at in range(len(lists[node.name])):
            source.latest({"rows": at}, bounded=True)

    class Passing:
        def make(self, epoch, masks, passing):
            """Nothing else is bad."""
            return {}

    store = SimulatedStore()
    isolating = Isolating(
        pipeline=pipeline,
        store=store,
        opened=lambda node: node.spec.open(node.name, str(tmp_path / node.name)),
        spark=tmp_path,
        header=ORIGIN,
        coordinator=Owner({"out"}),
        letters=DeadLetters(store, 1, isolates=True),
        trials=Passing(),
        levels={},
        now_us=lambda: 5,
        rows_max=10,
        probe=Looking(tmp_path, pipeline.sources, {1, 11}),
    )
    made = isolating.settle(1)
    assert [one.table.to_pylist()[0]["v"] for one in made] == [1, 11]
