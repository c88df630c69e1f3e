"""Every moment of an evaluation belongs to one node, under its name in the graph (design/0049, section 3).

The clock stands still but where functions and sources of these tests move it, so each node takes exactly what it is
told to.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.commit.busy import LEDGER
from holdfast.commit.coordinator import Coordinator
from holdfast.flow import Calculator, Context, Contract, Graph, node
from holdfast.plan.chunks import reported
from holdfast.plan.counts import EpochReport, united
from holdfast.plan.cutting import build_stages
from holdfast.plan.epoch_times import EpochTimes, Graphed, time_use
from holdfast.plan.laps import HERE, Laps
from holdfast.plan.levels.host import LevelsHere, levels_of
from holdfast.plan.levels.journal import NOTHING
from holdfast.plan.levels.level import EpochContext
from holdfast.plan.levels.packing import packings
from holdfast.plan.levels.taps import Wish
from holdfast.plan.program_build import as_it_is, build_program
from holdfast.ports import Carried, EpochRecord, Publication
from holdfast.spark.evaluation import ProgramHere
from holdfast.testing import SimulatedClock, SimulatedSink, SimulatedStore

SCHEMA = "k STRING, t BIGINT, v BIGINT"
ROWS = pa.RecordBatch.from_pylist(
    [{"k": "a", "t": 1, "v": 1}, {"k": "b", "t": 2, "v": 2}],
    schema=pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", pa.int64())]),
)


class Hand:
    """The clock, moved by hand, in milliseconds."""

    def __init__(self) -> None:
        self.ms = 1000

    def take(self, ms: int) -> None:
        """Let so much time pass."""
        self.ms += ms

    def ns(self) -> int:
        return self.ms * 1_000_000

    def s(self) -> float:
        return self.ms / 1000

    def function(self, ms: int) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """Return a function of batches that takes so long for each."""

        def slow(rows: pa.RecordBatch) -> pa.RecordBatch:
            self.take(ms)
            return rows

        return slow

    def reads(self, ms: int, batches: Sequence[pa.RecordBatch] = (ROWS,)) -> Iterator[pa.RecordBatch]:
        """Yield batches, each of which takes so long to read."""
        for batch in batches:
            self.take(ms)
            yield batch


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Hand:
    found = Hand()
    monkeypatch.setattr(time, "perf_counter_ns", found.ns)
    monkeypatch.setattr(time, "perf_counter", found.s)
    return found


def source(name: str) -> hf.Stream:
    return hf.read.rows([], schema=SCHEMA, timestamp="t", name=name)


def in_ms(report: EpochReport) -> dict[str, int]:
    """Return the milliseconds of each name that has any."""
    found: dict[str, int] = {}
    for spent in report.waves.values():
        for name, ns in spent.nodes.items():
            found[name] = found.get(name, 0) + ns // 1_000_000
    return {name: ms for name, ms in found.items() if ms}


# --- without state ---------------------------------------------------------------------------------------------------


class Sources:
    """Sources whose batches take time to be read, in the place of those of a run."""

    def __init__(self, clock: Hand, reads_ms: dict[str, int]) -> None:
        self._clock = clock
        self._reads_ms = reads_ms
        self._name = ""

    def spans(self, start: Any, end: Any, parallelism: int) -> Iterator[tuple[str, str]]:
        return ((name, name) for name in self._reads_ms)

    def source(self, name: str, *, wish: Wish | None = None) -> Any:
        return self

    def read(self, span: str) -> Iterator[pa.RecordBatch]:
        return self._clock.reads(self._reads_ms[span], (ROWS, ROWS))


def fanned_out(clock: Hand) -> hf.Pipeline:
    """Return a graph of two sources, a function that three branches read, a union, and three sinks."""
    parsed = source("rows") | hf.map_batches(clock.function(60), SCHEMA, timestamp="t", name="parsed")
    high = parsed | hf.filter("v > 1", name="high") | hf.map_batches(clock.function(5), SCHEMA, name="checked")
    both = hf.union(parsed, source("more"), name="both")
    return hf.Pipeline(
        "p", high | hf.write.memory(name="a"), both | hf.write.memory(name="b"), parsed | hf.write.memory(name="c")
    )


def test_each_node_of_a_graph_that_fans_out_has_the_time_that_it_took_once(clock: Hand) -> None:
    pipeline = fanned_out(clock)
    program = build_program(pipeline, as_it_is, "t")
    assert program is not None
    sources: Any = Sources(clock, {"rows": 30, "more": 7})
    began = clock.ms
    _, report = ProgramHere(program, sources, {"rows": "t", "more": "t"})({}, {}, frozenset("abc"))
    assert in_ms(report) == {"rows": 60, "more": 14, "parsed": 120, "checked": 10}
    assert report.waves[HERE].longest == (clock.ms - began) * 1_000_000, "laps add up to all that passed"
    named = {name for name in report.waves[HERE].nodes if name}
    assert named <= {each.name for each in pipeline.nodes}
    assert {"rows", "more", "parsed", "high", "checked", "both"} <= named


# --- with state ------------------------------------------------------------------------------------------------------


class Slow(Calculator):
    """Passes its value on, and takes time."""

    contract: ClassVar[Contract] = Contract(inputs="value", outputs="total", timestamp_offset=0, is_pure=True)
    clock: ClassVar[Hand]

    def process(self, context: Context) -> None:
        self.clock.take(11)
        context.emit("total", context["value"])


def stateful(clock: Hand) -> hf.Pipeline:
    """Return a graph with a function before state, functions of keys, a join, a flow, and what follows them."""

    def counting(key: str, rows: Any, state: hf.KeyState) -> Any:
        clock.take(40)
        for row in rows:
            state.set(n=state.get("n", 0) + 1)
            yield {"k": key, "t": row["t"], "v": row["v"]}

    Slow.clock = clock
    graph = Graph("inner")
    graph.output("out", graph.input("rows") | node(Slow, name="inside"))
    parsed = source("rows") | hf.map_batches(clock.function(9), SCHEMA, timestamp="t", name="parsed")
    counts = parsed | hf.apply(counting, by="k", state="n BIGINT", schema=SCHEMA, timestamp="t", name="counts")
    after = counts | hf.map_batches(clock.function(3), SCHEMA, timestamp="t", name="after")
    joined = hf.join(parsed, source("more"), on="k", within=10, name="joined")
    flowed = hf.flow(
        {"rows": parsed}, graph, by="k", inputs={"rows": "v"}, outputs={"out": "out BIGINT"}, name="flowed"
    )
    return hf.Pipeline(
        "p",
        after | hf.write.memory(name="a"),
        joined | hf.write.memory(name="b"),
        flowed | hf.write.memory(name="c"),
    )


def test_each_operator_with_state_has_its_time_and_so_has_what_follows_it(clock: Hand) -> None:
    """Two keys, in buckets of their own or not: functions are called for each key, batches pass where they are."""
    pipeline = stateful(clock)
    stages = build_stages(pipeline, as_it_is, "t", buckets=2, partitions=1, prefix=lambda part: ())
    packed = packings(stages, {"rows": "t", "more": "t"})
    began, laps = clock.ms, Laps()
    laps.to("rows")
    chunks = [chunk for number, name in enumerate(packed) for chunk in packed[name].rows(number, clock.reads(20), laps)]
    read = laps.take()
    assert {name: ns // 1_000_000 for name, ns in read.nodes.items() if ns} == {"rows": 20, "more": 20, "parsed": 9}
    levels = LevelsHere(levels_of(stages, "t"), stages.routing)
    came, _ = levels.run(chunks, NOTHING, lambda piece: b"", EpochContext(1, 5))
    found = united(reported(came))
    spent = {name: ms for name, ms in in_ms(found).items() if name in ("counts", "flowed", "after", "joined")}
    assert (spent["counts"], spent["flowed"]) == (80, 22)
    assert spent["after"] in (3, 6), "for both keys at once, or bucket by bucket"
    assert sum(in_ms(found).values()) == sum(spent.values()) == clock.ms - began - 49
    assert {name for name in found.waves[HERE].nodes if name} == {"counts", "joined", "flowed", "after"}


def test_an_epoch_that_failed_leaves_no_time_to_the_next(clock: Hand) -> None:
    def failing(key: str, rows: Any, state: hf.KeyState) -> Any:
        clock.take(500)
        raise ValueError("poison")

    counts = source("rows") | hf.apply(failing, by="k", state="n BIGINT", schema=SCHEMA, name="counts")
    pipeline = hf.Pipeline("p", counts | hf.write.memory(name="a"))
    stages = build_stages(pipeline, as_it_is, "t", buckets=1, partitions=1, prefix=lambda part: ())
    chunks = list(packings(stages, {"rows": "t"})["rows"].rows(0, clock.reads(0)))
    levels = LevelsHere(levels_of(stages, "t"), stages.routing)
    with pytest.raises(hf.errors.InvalidPipeline):
        levels.run(chunks, NOTHING, lambda piece: b"", EpochContext(1, 5))
    came, _ = levels.run([], NOTHING, lambda piece: b"", EpochContext(1, 5))
    assert in_ms(united(reported(came))) == {}


# --- sinks -----------------------------------------------------------------------------------------------------------


class SlowSink(SimulatedSink):
    """A sink that takes time to publish; one with a gate publishes when it is opened."""

    def __init__(self, name: str, clock: Hand, ms: int, gate: threading.Event | None = None) -> None:
        super().__init__(name)
        self._clock = clock
        self._ms = ms
        self._gate = gate

    def publish(self, publications: Sequence[Publication], held: Any) -> None:
        if self._gate is not None:
            assert self._gate.wait(30)
        self._clock.take(self._ms)
        super().publish(publications, held)


def committed(coordinator: Coordinator, times: EpochTimes, clock: Hand, epoch: int) -> None:
    """Commit an epoch that takes 100 ms to be evaluated."""
    times.begin(epoch, coordinator.busy)
    claim = coordinator.missing(epoch)
    times.mark()
    clock.take(100)
    times.mark()
    record = EpochRecord("trips", epoch, coordinator.generation, {"rows": {"log": epoch}})
    rows = Carried(pa.table({"v": [epoch]}))
    coordinator.commit(claim, record, dict.fromkeys(claim.sinks, (rows,)))
    times.mark()
    times.note({}, coordinator.busy)
    times.end()


def test_a_slow_sink_among_others_is_what_limits_the_run(clock: Hand) -> None:
    sinks = [SlowSink("quick", clock, 20), SlowSink("hourly_table", clock, 380), SlowSink("other", clock, 0)]
    coordinator = Coordinator(pipeline="trips", store=SimulatedStore(), sinks=sinks, clock=SimulatedClock())
    coordinator.open()
    times = EpochTimes(now_us=lambda: 0)
    for epoch in range(1, 4):
        committed(coordinator, times, clock, epoch)
    use = time_use(Graphed({"rows": "source", **{sink.name: "sink" for sink in sinks}}), times.recent()[0])
    assert use is not None
    assert use.limited_by == "publish to hourly_table, 76 % of the epoch"
    assert [(node.name, node.publish_ms) for node in use.nodes[1:]] == [
        ("quick", pytest.approx(20)),
        ("hourly_table", pytest.approx(380)),
        ("other", pytest.approx(0)),
    ]
    assert use.period_ms == pytest.approx(500)


def test_time_of_a_commit_thread_counts_beside_the_engines(clock: Hand) -> None:
    """It holds nothing up unless the engine waits for it."""
    gate = threading.Event()
    sinks = [SlowSink("table", clock, 300, gate), SlowSink("files", clock, 0, gate)]
    coordinator = Coordinator(pipeline="trips", store=SimulatedStore(), sinks=sinks, clock=SimulatedClock())
    coordinator.open()
    staged = {sink.name: tuple(_staged(sink, coordinator.generation)) for sink in sinks}
    claim = coordinator.missing(1)
    coordinator.commit(claim, EpochRecord("trips", 1, coordinator.generation, {"rows": {"log": 1}}), staged)
    before = coordinator.busy
    gate.set()
    coordinator.flush()
    assert before.here.keys() >= {LEDGER, "table"}, "the engine asks, and decides"
    assert coordinator.busy.beside["table"] == pytest.approx(0.3)
    assert coordinator.busy.here["table"] == before.here["table"] == 0.0
    coordinator.close()


def _staged(sink: SimulatedSink, generation: int) -> Iterator[Any]:
    from holdfast.ports import Task

    writer = sink.writer_factory()(Task("trips", generation, 1, 0, 0))
    writer.write(pa.RecordBatch.from_pylist([{"v": 1}]))
    yield writer.stage()
