"""Random graphs with state, killed anywhere: every sink shows what plain Python makes of all rows (design/0010, 5).

The coordinator, the levels, chunks, buckets, stores' contents and workers' caches are the real ones; simulated are
Spark's tasks and stores, the sinks and the deaths of drivers (``holdfast.testing.simulation.levels``).
"""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

import holdfast as hf
from holdfast.graph.nodes import is_stateful
from holdfast.plan.counts import Balances
from holdfast.plan.levels import store
from holdfast.plan.levels.journal import StateJournal, StateVersion
from holdfast.ports import REJECT_COLUMN
from holdfast.testing import CrashAt, Load, Setting, SimulatedCrash, World, simulated_sink
from holdfast.testing.drive import drive
from holdfast.testing.given import Item, bound, close, malformed
from holdfast.testing.simulation.levels import KeptState, StatefulWorkload
from tests.everyday import part_of_seeds
from tests.sim.flows import Graph
from tests.sim.operator_makers import MAKERS
from tests.sim.stateful_graphs import random_graph

SEED = os.environ.get("HOLDFAST_SEED")
pytestmark = pytest.mark.slow

FEW, MANY, PARTS = 6, 48, 10
"""Graphs at every check; in a complete run; parts of those of a night, of which there are ``everyday.SEEDS``.

A failing one is replayed alone with HOLDFAST_SEED=<seed>.
"""


@dataclass
class Outcome:
    """What one seed did."""

    seed: int
    graph: Graph
    trace: list[str]
    problems: list[str]
    deaths: list[str] = field(default_factory=list)
    balances: list[Balances] = field(default_factory=list)

    def __str__(self) -> str:
        found = "\n  ".join(self.problems) or "nothing"
        return f"seed {self.seed} (HOLDFAST_SEED={self.seed}) of {', '.join(self.graph.kinds)}: {found}"


def live(seed: int, *, crashes_max: int = 4, is_dull: bool = False, **broken: Any) -> Outcome:
    """Run a random graph through its crashes to the end of its sources; a dull one as one epoch, unharmed."""
    with pytest.MonkeyPatch.context() as patched:  # in half of the runs parts of state count as large
        patched.setattr(store, "_STAY_BYTES", random.Random(f"{seed} parts").choice((store._STAY_BYTES, 0)))
        return lived(random_graph(seed), seed, crashes_max=crashes_max, is_dull=is_dull, **broken)


def lived(
    graph: Graph,
    seed: int,
    *,
    crashes_max: int = 4,
    is_dull: bool = False,
    gated: hf.Pipeline | None = None,
    **broken: Any,
) -> Outcome:
    """Run a graph that ``explain`` accepts; with a gate before its sinks other rows are late, so none are compared."""
    hf.Pipeline("accepted", *graph.sinks).explain()
    chance = random.Random(f"{seed} lives")
    sinks = [
        simulated_sink(node.name, way=chance.choice(("transaction", "transaction", "prepared"))) for node in graph.sinks
    ]
    buckets = chance.choice((1, 2, 2, 3))
    workload = StatefulWorkload(
        gated or hf.Pipeline("simulated", *graph.sinks),
        graph.events,
        graph.problems if gated is None else lambda visible: [],
        buckets=buckets,
        partitions=chance.randint(1, buckets),
        failure_rate=0.0 if is_dull else chance.choice((0.0, 0.1)),
        stand_ins=graph.stand_ins,
        **broken,
    )
    count = len(graph.events)
    load = Load(
        row_count=count,
        epoch_rows_min=count if is_dull else 1,
        epoch_rows_max=count if is_dull else chance.choice((4, 12)),
        carried_share=chance.choice((0.0, 0.5, 1.0)),
        task_failure_rate=0.0 if is_dull else chance.choice((0.0, 0.1)),
    )
    setting = Setting(load, commit_thread=chance.random() < 0.5)
    world = World(sinks, seed=seed, setting=setting, workload=workload)
    deaths: list[str] = []
    while True:
        again = len(deaths) < crashes_max and not is_dull
        crash = CrashAt(chance.randint(1, 40), chance.choice(("before", "after"))) if again else None
        try:
            with world.life(crash) as life:
                life.run()
        except SimulatedCrash as death:
            deaths.append(str(death))
            world.lose_power()
        else:
            break
    world.finish()
    return Outcome(seed, graph, world.trace, world.audit(), deaths, workload.balances)


def live_all(seeds: range, **options: Any) -> list[Outcome]:
    outcomes = []
    for seed in seeds:
        outcome = live(seed, **options)
        assert not outcome.problems, str(outcome)
        outcomes.append(outcome)
    return outcomes


def test_a_graph_in_one_epoch_without_crashes_gives_what_plain_python_gives() -> None:
    """First of all: what the others compare with is right."""
    live_all(range(FEW), is_dull=True)


def test_no_crash_loses_doubles_or_changes_a_row_behind_state() -> None:
    live_all(range(int(SEED), int(SEED) + 1) if SEED else range(FEW))


@pytest.mark.skipif(SEED is not None, reason="one seed is asked for")
@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(MANY), id="of a complete run"),
        *(
            pytest.param(
                part_of_seeds(part, PARTS),
                marks=[pytest.mark.nightly, pytest.mark.timeout(3600)],
                id=f"part {part} of the night",
            )
            for part in range(PARTS)
        ),
    ],
)
def test_among_thousands_of_graphs_every_epoch_adds_up_and_no_crash_loses_doubles_or_changes_a_row_behind_state(
    seeds: range,
) -> None:
    count = len(seeds)
    outcomes = live_all(seeds)
    kinds = Counter(kind for outcome in outcomes for kind in set(outcome.graph.kinds))
    assert set(kinds) == set(MAKERS)
    assert min(kinds.values()) >= count // 20, f"some operators hardly ever: {kinds}"
    deaths = Counter(_where(death) for outcome in outcomes for death in outcome.deaths)
    assert sum(deaths.values()) > 2 * count, "the drivers hardly ever die"
    assert deaths["state"] > count // 8, f"hardly ever next to a write of the journal: {deaths}"
    assert deaths["sink"] > count // 8, f"hardly ever in a sink: {deaths}"
    assert sum(outcome.graph.late_count > 0 for outcome in outcomes) >= count // 8, "hardly any row is late"
    audited = rows_audited(outcomes)
    assert set(audited) >= set(MAKERS) - {"function", "explode", "map"}, "Spark's plan alone is not counted"


def rows_audited(outcomes: list[Outcome]) -> Counter[str]:
    """Return how many rows the audit has counted on their way into each kind of operator."""
    found: Counter[str] = Counter()
    for outcome in outcomes:
        for name, balance in (pair for epoch in outcome.balances for pair in epoch.items()):
            found[re.split(r"\d", name)[0]] += balance.came
    return found


def _where(death: str) -> str:
    return "state" if "/journal/" in death else death.split()[1]


def test_however_a_graph_is_cut_into_epochs_drive_gives_the_same() -> None:
    """Operators with state behind each other, on dictionaries instead of stores: what users test with."""
    for seed in range(FEW):
        graph, chance = random_graph(seed), random.Random(f"{seed} cuts")
        driven = {sink: hf.Pipeline("driven", sink).nodes for sink in graph.sinks}
        sink = [sink for sink, nodes in driven.items() if any(map(is_stateful, nodes))][-1]  # else nothing stands in
        assert sink.stream is not None
        borders = sorted(chance.randint(0, len(graph.events)) for _ in range(3))
        epochs = [graph.events[start:end] for start, end in pairwise([0, *borders, len(graph.events)])]
        sources = {source.name: [[_item(row) for of, row in epoch if of == source.name] for epoch in epochs]
                   for source in driven[sink] if source.is_source}  # fmt: skip
        given = drive(sink.stream, sources, buckets=chance.randint(1, 3), stand_ins=graph.stand_ins)
        rows = [tuple(row.values()) for epoch in given for row in epoch]
        assert not graph.problems({sink.name: rows}), f"seed {seed} of {', '.join(graph.kinds)}"


def _item(row: Mapping[str, Any] | None) -> Item:
    if row is None:
        return close()
    if (bad := row.get(REJECT_COLUMN)) is not None:
        return malformed(bad["raw"], bad["reason"], bad["position"])
    if not row.get("is_bound"):
        return {name: value for name, value in row.items() if name != "is_bound"}
    return bound(row["t"], None if row["k"] is None else {"k": row["k"]})


@pytest.mark.parametrize("seed", [1, 4])
def test_the_same_seed_gives_the_same_trace(seed: int) -> None:
    one, other = live(seed), live(seed)
    assert _named(one.trace) == _named(other.trace)
    assert _named(one.deaths) == _named(other.deaths)


def _named(lines: list[str]) -> list[str]:
    """Return lines without what parts of the journal are called at random."""
    return [re.sub(r"-[0-9a-f]{8}\.part", ".part", line) for line in lines]


# --- what is wrong is noticed ----------------------------------------------------------------------------------------


class Newest(KeptState):
    """A replay begins with what the epoch left before: state is changed twice."""

    def begins_with(self, journal: StateJournal, batch_id: int) -> StateVersion:
        before = journal.begin(batch_id)
        return journal.reader.version(batch_id) if journal.reader.entries(batch_id) else before


class Forgetting(KeptState):
    """A task begins with the version before the one that it should: an epoch's state is lost now and then."""

    def begins_with(self, journal: StateJournal, batch_id: int) -> StateVersion:
        before = journal.begin(batch_id)
        return journal.reader.version(batch_id - 2) if batch_id % 3 == 2 else before


def is_noticed(*ways: str, make_state: Callable[[], KeptState] = KeptState, seeds: int = FEW) -> bool:
    """Tell whether a few seeds find out in each way: wrong rows, or an error because what they need is not there."""
    left = set(ways)
    for seed in range(seeds):
        try:
            left -= {problem.split(": ")[1][2:] for problem in live(seed, state=make_state()).problems}
        except (KeyError, hf.HoldfastError) as error:
            left.discard(type(error).__name__)
        if not left:
            return True
    return False


@pytest.mark.nightly
def test_a_replay_that_begins_with_the_state_of_its_own_epoch_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_noticed("InternalError", make_state=Newest, seeds=4 * FEW), "the versions of a bucket ascend"
    monkeypatch.setattr(store, "invariant", lambda *arguments, **named: None)
    assert is_noticed("times too few", "times too often", make_state=Newest, seeds=4 * FEW)


def test_a_task_that_begins_with_older_state_is_noticed() -> None:
    assert is_noticed("times too few", "times too often", make_state=Forgetting, seeds=4 * FEW)


def test_rows_that_wait_and_are_forgotten_are_noticed_by_the_audit_with_their_operator() -> None:
    found = set()
    for seed in range(40):
        try:
            live(seed, state=Forgetting())
        except hf.HoldfastError as error:
            if "when it was called last" in str(error.why):
                found.add(re.split(r"\d", str(error.participant))[0])
        if len(found) > 1:
            return
    raise AssertionError(f"noticed at {found} alone")


def test_a_worker_that_trusts_what_it_holds_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of an attempt that was never committed, or of a driver that is dead."""

    def trusting(cells: Any, record: Any, step: Any, held: Any) -> Any:
        return store.load(cells, record, step, None) if held is None else dict(held.state)

    monkeypatch.setattr("holdfast.plan.levels.level.load", trusting)
    monkeypatch.setattr(store.Cache, "drop_others", lambda self, run: None)
    assert is_noticed("times too few", "times too often", seeds=4 * FEW)
