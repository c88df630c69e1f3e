"""An epoch is given to an idempotent sink before it is decided; the driver dies at any durable write (design/0025).

The sink is the real one of ``write.foreach_batch``; its function writes by id, as it has promised.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.connectors.foreach_batch import ForeachBatchSink
from holdfast.graph.trigger import SinkPace
from holdfast.ports import Sink
from holdfast.testing import (
    SCHEMA,
    CrashAt,
    FaultySink,
    Load,
    Process,
    Setting,
    SimulatedCrash,
    SinkUnderTest,
    World,
    simulated_sink,
)
from holdfast.testing.failures import Failures
from holdfast.testing.simulation.rows import ROW_US, is_for
from holdfast.testing.simulation.world import PIPELINE


class ByRowId:
    """A target that writes by id: a row that is there already is written over.  It says when it got which."""

    def __init__(self, work: Path, trace: Callable[[str], None]) -> None:
        self.rows: dict[int, tuple[object, ...]] = {}
        self._work = work
        self._trace = trace

    def under_test(self, name: str, *, is_early: bool) -> SinkUnderTest:
        def save(table: pa.Table, epoch: int) -> None:
            self._trace(f"{name} gets epoch {epoch}")
            self.rows.update((row["id"], tuple(row.values())) for row in table.to_pylist())

        def to_table(rows: pa.Table | list[str], schema: pa.Schema) -> pa.Table:
            return pa.concat_tables(map(pa.parquet.read_table, rows)) if isinstance(rows, list) else rows

        def connect(process: Process, failures: Failures) -> Sink:
            real = ForeachBatchSink(name, PIPELINE, SCHEMA, save, is_early=is_early)
            real.bind(to_table, os.fspath(self._work))
            return FaultySink(real, process, failures)

        staging = self._work / "staging"
        return SinkUnderTest(name, connect, lambda: sorted(self.rows.values()), lambda: os.listdir(staging))


LOAD = Load(row_count=7, epoch_rows_max=3)
SETTINGS = {
    "plain": Setting(LOAD),
    "commit thread": Setting(Load(row_count=7, epoch_rows_max=3, carried_share=0.0), commit_thread=True),
    "grouped": Setting(LOAD, commit_every_ticks=3 * ROW_US),
    "a pace beside it": Setting(LOAD, paces={"table": SinkPace(every_epochs=2)}),
    "failing tasks": Setting(Load(row_count=7, epoch_rows_max=3, task_failure_rate=0.3)),
}


def world_of(work: Path, setting: Setting, *, is_early: bool = True, is_first: bool = False) -> tuple[World, ByRowId]:
    trace: list[str] = []
    target = ByRowId(work, trace.append)
    early, table = target.under_test("early", is_early=is_early), simulated_sink("table")
    world = World([early, table] if is_first else [table, early], seed=5, setting=setting)
    world.trace = trace
    return world, target


def problems(world: World) -> list[str]:
    """Return what an auditor finds; values differ where an epoch was evaluated twice, which ids do not."""
    return [each for each in world.audit() if "has two values" not in each]


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_no_row_is_lost_none_is_there_twice_and_none_stays_that_never_was(
    new_path: Callable[[], Path], name: str, when: str
) -> None:
    n = 0
    while True:
        n += 1
        world, target = world_of(new_path(), SETTINGS[name], is_first=n % 2 == 0)
        wanted = [row for row in range(LOAD.row_count) if is_for(int(n % 2 == 1), row)]
        try:
            with world.life(CrashAt(n, when)) as life:  # type: ignore[arg-type]
                life.run()
            break
        except SimulatedCrash:
            assert set(target.rows) <= set(wanted), "a row that the pipeline does not have"
        world.finish()
        assert sorted(target.rows) == wanted, f"{n}: {sorted(target.rows)}\n" + "\n".join(world.trace)
        assert not problems(world), f"{n}: {problems(world)}\n" + "\n".join(world.trace)
    assert n > 20


@pytest.mark.parametrize("is_early", [True, False])
def test_it_has_the_rows_before_the_decision_and_gets_them_once(tmp_path: Path, is_early: bool) -> None:
    setting = Setting(Load(row_count=4, epoch_rows_min=2, epoch_rows_max=2), commit_every_ticks=100 * ROW_US)
    world, _ = world_of(tmp_path, setting, is_early=is_early)
    with world.life() as life:
        life.run()
    got = [line for line in world.trace if line.startswith("early gets")]
    assert got == ["early gets epoch 1", "early gets epoch 2"]
    order = [line for line in world.trace if line.startswith(("early gets", "epoch"))]
    for epoch in (1, 2):
        is_before = order.index(f"early gets epoch {epoch}") < order.index(f"epoch {epoch} DECIDE")
        assert is_before == is_early


def test_what_another_sink_refuses_is_not_sent(tmp_path: Path) -> None:
    """It is asked first: the row may be mended, or left out, and then it was never there."""
    world, target = world_of(tmp_path, Setting(LOAD))
    table = world.sinks[0].target
    assert table is not None
    table.refuses = lambda row: True
    with pytest.raises(Exception, match="refuses row"), world.life() as life:
        life.run()
    assert target.rows == {}
