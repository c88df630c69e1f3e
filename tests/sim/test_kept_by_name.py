"""What an operator keeps is found by names: a graph may name its columns in another order at any start (design/0010,
section 3).

Every mapping and every list of columns of each operator that keeps state is turned around between two runs, each alone
and all together.  The second run goes on with what the first one kept, in the directory of the first, from a snapshot
of it, or by a transfer; or it is refused.  The rows are those of a run that was never stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

import holdfast as hf
from holdfast.checkpoint.graph_record import described, state_fingerprint
from holdfast.checkpoint.manifest import EpochEnd, Manifest, StateSchema, TableFile
from holdfast.checkpoint.snapshot import checked
from holdfast.plan.cutting import build_stages
from holdfast.plan.stages import Stages
from holdfast.spark.state.plan import state_schemas_of, upgrades_of
from holdfast.spark.state.transfer import Transfer
from holdfast.starts.graph_diff import compare
from holdfast.testing.clock import SimulatedClock
from holdfast.testing.simulation.levels import EPOCH_US, Event, KeptState, StatefulWorkload
from holdfast.testing.stand_in import StandInPlan
from holdfast.testing.store import SimulatedStore
from tests.sim.named_operators import OPERATORS, Order, events_of, pipeline_of, places_of, run

BUCKETS, EPOCH_ROWS = 2, 10


@dataclass
class Kept:
    """Runs of pipelines over one checkpoint."""

    events: Sequence[Event]
    shown: dict[str, list[Any]] = field(default_factory=dict)
    state: KeptState = field(default_factory=KeptState)
    seeds: Any = None
    end: int = 0
    store: SimulatedStore = field(default_factory=SimulatedStore)

    def run(self, pipeline: hf.Pipeline, until: int) -> None:
        work = StatefulWorkload(pipeline, self.events, lambda shown: [], BUCKETS, 1, state=self.state, seeds=self.seeds)
        run(work, self.shown, self.end, until, EPOCH_ROWS)
        self.end = until

    def begin_again(self, before: hf.Pipeline, after: hf.Pipeline) -> None:
        """Begin a directory from a snapshot of the one before, as a start does that lost it, or whose graph changed."""
        epoch = self.end // EPOCH_ROWS
        operators = self.state.taken_out(epoch, schemas_of(before))
        self.store.objects.update(self.state.objects.objects)
        ended = EpochEnd(epoch, epoch, {}, epoch * EPOCH_US)
        manifest = Manifest("p", 1, 0, state_fingerprint(before), ended, BUCKETS, operators)
        transfer = Transfer(
            self.store, "p", state_fingerprint(after), schemas_of(after), upgrades_of(after, stages_of(after)), BUCKETS,
            2, SimulatedClock(),
        )  # fmt: skip
        same = {name: name for name in operators}
        if transfer.is_needed(manifest, same):
            manifest = transfer.made(manifest, same)
        self.seeds, self.state = Snapshot(self.store, manifest), KeptState(begin=epoch)


@dataclass(frozen=True)
class Snapshot:
    """A seed out of a simulated store."""

    store: SimulatedStore
    manifest: Manifest

    def bucket(self, operator: str, number: int) -> Any:
        return self.manifest.operators[operator].buckets.get(number)

    def read(self, file: TableFile) -> bytes:
        return checked(self.store.get(file.key), file)


def stages_of(pipeline: hf.Pipeline) -> Stages:
    return build_stages(
        pipeline, lambda schema: schema, "t", buckets=BUCKETS, partitions=1, prefix=StandInPlan({}).schemas
    )


def schemas_of(pipeline: hf.Pipeline) -> dict[str, StateSchema]:
    return state_schemas_of(pipeline, stages_of(pipeline))


def is_refused(before: hf.Pipeline, after: hf.Pipeline) -> bool:
    """Say whether a start refuses the change, as ``holdfast plan`` says it."""
    graphs = [described(one, schemas_of(one), BUCKETS) for one in (before, after)]
    return bool(list(compare(graphs[0], graphs[1], upgrades_of(after, stages_of(after))).problems()))


def ways_of(before: hf.Pipeline, after: hf.Pipeline) -> list[str]:
    """Return how a start goes on: in the same directory where the state is the same, and it can be lost then."""
    return ["snapshot"] if state_fingerprint(before) != state_fingerprint(after) else ["directory", "snapshot"]


def refused_of(kind: str) -> list[str]:
    """Return what a start refuses to turn, each alone."""
    build = OPERATORS[kind]
    before = pipeline_of(build, Order())
    return [place for place in places_of(build) if is_refused(before, pipeline_of(build, Order(frozenset([place]))))]


def problems_of(kind: str, every: Iterable[frozenset[str]]) -> list[str]:
    """Return what differs when these places are turned between two runs."""
    before = pipeline_of(OPERATORS[kind], Order())
    whole = Kept(events_of(before))
    whole.run(before, len(whole.events))
    wrong = []
    for turned in every:
        after = pipeline_of(OPERATORS[kind], Order(turned))
        for way in ways_of(before, after):
            kept = Kept(whole.events)
            kept.run(before, 2 * EPOCH_ROWS)
            if way == "snapshot":
                kept.begin_again(before, after)
            kept.run(after, len(kept.events))
            if any(sorted(kept.shown[sink]) != sorted(rows) for sink, rows in whole.shown.items()):
                wrong.append(f"{sorted(turned)}, {way}")
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize("kind", OPERATORS)
def test_what_an_operator_keeps_is_found_by_names(kind: str) -> None:
    places, refused = frozenset(places_of(OPERATORS[kind])), frozenset(refused_of(kind))
    assert refused <= {"by", "on"}  # the order of a key decides where state is
    before = state_fingerprint(pipeline_of(OPERATORS[kind], Order()))
    unseen = [p for p in places if state_fingerprint(pipeline_of(OPERATORS[kind], Order(frozenset([p])))) == before]
    assert problems_of(kind, {places - refused, frozenset(unseen)}) == []


@pytest.mark.nightly
@pytest.mark.parametrize("kind", OPERATORS)
def test_each_mapping_and_list_of_columns_may_be_turned_alone(kind: str) -> None:
    places = {*places_of(OPERATORS[kind])} - {*refused_of(kind)}
    assert problems_of(kind, [frozenset([place]) for place in places]) == []
