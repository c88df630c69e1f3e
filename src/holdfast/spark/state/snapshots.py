"""The checkpointer of a run: whose state it reads, from which directory, beginning with which seed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.checkpoint.barriers import At, Barriers, Taken, gathered, taken_from
from holdfast.checkpoint.checkpointer import Checkpointer, Intervals
from holdfast.checkpoint.directory_header import DirectoryHeader, remove_older
from holdfast.checkpoint.graph_record import state_fingerprint
from holdfast.checkpoint.manifest import BucketState, EpochEnd, Manifest, OperatorState
from holdfast.checkpoint.snapshot import checked, read_part
from holdfast.errors import Corrupt
from holdfast.graph.graph import Graph
from holdfast.plan.levels.journal import StateJournal
from holdfast.plan.levels.kept import read_state
from holdfast.plan.levels.seed import seed_of
from holdfast.ports import Clock, Store
from holdfast.spark.failure import translate
from holdfast.spark.state.plan import StatefulPlan, state_schemas_of
from holdfast.spark.state.shape import StateShape

log = logging.getLogger("holdfast.checkpoint")

_PART_WAIT_S = 5.0
"""So long workers have to write their parts."""

_LOOK_S = 0.02


def waited_for(store: Store, taken: Taken, run: str, wait_s: float) -> tuple[dict[At, BucketState], frozenset[At]]:
    """Return the buckets that have their files, after waiting for workers; and those that must be read."""
    found, missing = dict(taken.there), dict(taken.written)
    until = time.monotonic() + wait_s
    while missing:
        for at, of in list(missing.items()):
            state = read_part(store, *at, of, run)
            if state is not None:
                found[at] = state
                del missing[at]
        if not missing:
            break
        if time.monotonic() > until:
            log.warning("%d buckets were not written by their workers: they are read from the journal", len(missing))
            break
        time.sleep(_LOOK_S)
    return found, taken.read | frozenset(missing)


@dataclass(frozen=True)
class Snapshotting:
    """What a run's checkpointer is made of.

    Parameters
    ----------
    store, directory : Store, Path
        The checkpoint, and where it lies.
    below : str
        Spark's directory below it.
    shape : StateShape
        Buckets and tasks.
    intervals : Intervals
        How often snapshots are made.
    token : str
        Unique for the run.
    """

    store: Store
    directory: Path
    below: str
    shape: StateShape
    intervals: Intervals
    token: str

    def checkpointer(
        self,
        pipeline: Graph,
        stateful: StatefulPlan,
        origin: DirectoryHeader,
        generation: int,
        clock: Clock,
        check_fenced: Callable[[], None],
        user_data: Callable[[], Mapping[str, Any] | None],
        barriers: Barriers,
        journal: StateJournal,
        publish: Callable[[], None],
    ) -> Checkpointer:
        """Return the checkpointer of a run, which has not begun to work."""
        seed = seed_of(self.directory, self.below)
        if seed is not None and seed.buckets != self.shape.buckets:
            raise Corrupt(
                f"{self.below}/state.json says {self.shape.buckets} buckets, and its state begins with {seed.buckets}.",
                why="a key must be found in the bucket where it was put; the record was changed.",
                do="restore it from a copy of the checkpoint.",
                pipeline=pipeline.name,
                participant=f"{self.below}/state.json",
            )
        state_schemas = state_schemas_of(pipeline, stateful.stages)

        def found_of(ended: EpochEnd, known: Manifest | None) -> Mapping[At, BucketState]:
            known_of_buckets = barriers.as_of(ended.step_epoch)
            taken = taken_from(state_schemas, self.shape.buckets, known_of_buckets, known, seed)
            found, missing = waited_for(self.store, taken, self.token, _PART_WAIT_S)
            missing |= self._spoilt(seed, found, known).keys()
            if missing:
                batch_id = ended.epoch - origin.base
                states = read_state(
                    self.store, self.below, batch_id, state_schemas, known=known, seed=seed, only=missing
                )
                found |= {(name, at): of for name, each in states.items() for at, of in each.buckets.items()}
                anew = {at: found[at] for at in missing if at in found}
                for error in self._spoilt(seed, anew, known).values():
                    raise error  # the journal does not have it either
            return found

        def read(ended: EpochEnd, known: Manifest | None) -> dict[str, OperatorState]:
            try:
                return gathered(state_schemas, found_of(ended, known))
            except Exception as error:
                raise translate(error, pipeline.name, f"the snapshot of epoch {ended.epoch}") from error

        return Checkpointer(
            pipeline=pipeline.name,
            graph=state_fingerprint(pipeline),
            generation=generation,
            buckets=self.shape.buckets,
            store=self.store,
            clock=clock,
            read=read,
            check_fenced=check_fenced,
            intervals=self.intervals,
            seed=seed,
            tidy=partial(remove_older, self.directory, self.below),
            user_data=user_data,
            barriers=barriers,
            hold=lambda ended: journal.hold(ended.epoch - origin.base),
            publish=publish,
        )

    def _spoilt(
        self, seed: Manifest | None, found: Mapping[At, BucketState], known: Manifest | None
    ) -> dict[At, Corrupt]:
        """Return the buckets of which a file of the seed is missing, cut or changed, with the error that says so.

        A snapshot must not name such a file: older ones, which may be whole, are pruned because of it.  Only the first
        snapshot of a run checks.
        """
        taken_over = set() if seed is None or known is not None else {file.key for file in seed.files}
        spoilt = {}
        for at, state in found.items():
            for file in state.files.values():
                if file.key in taken_over:
                    try:
                        checked(self.store.get(file.key), file)
                    except Corrupt as error:
                        spoilt[at] = error
        return spoilt
