"""Where a pipeline is asked to begin: at a named checkpoint, at a time, or with state that is given."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.directory_header import DirectoryHeader, newest_directory, noted_beginning
from holdfast.checkpoint.given_state import GivenState, given_states
from holdfast.checkpoint.manifest import StateSchema
from holdfast.checkpoint.state_upgrade import StateUpgrade
from holdfast.connectors.reading import from_time
from holdfast.errors import InvalidPipeline
from holdfast.graph.event_time import TimeUnit, begin_at, common_unit
from holdfast.graph.graph import Graph
from holdfast.ports import Held, Store
from holdfast.state.step import StepTime

_WITHOUT_THE_TIME = (
    ", and leave out the rows before that time with hf.filter: the checkpoint that knew the time is lost, and sinks do "
    "not know it."
)

_NOTED_TIME = re.compile(r"(?<![^ ])at=(-?\d+)")


def _in_words(noted: re.Match[str]) -> str:
    try:
        time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(noted[1]))
    except OverflowError:  # no year of four digits
        return noted[0]
    return f"at={time.isoformat().replace('+00:00', 'Z')}"


@dataclass(frozen=True)
class StartAt:
    """What a start is asked for.

    Parameters
    ----------
    where : str, optional
        The named checkpoint, as the user wrote it.
    at_us : int, optional
        The time, microseconds of Unix time.
    state : tuple of GivenState
        The state of operators.
    has_ticks : bool
        Whether the time is a number of ticks.
    is_part : bool
        Whether the named checkpoint is the part of a shard: what sources remember is there for all shards already.
    """

    where: str | None = None
    at_us: int | None = None
    state: tuple[GivenState, ...] = ()
    has_ticks: bool = field(default=False, compare=False)
    is_part: bool = field(default=False, compare=False)

    @staticmethod
    def of(
        pipeline: Graph,
        *,
        from_checkpoint: str | None = None,
        at: str | datetime | int | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> StartAt:
        """Return what the arguments of a start ask for.

        Raises
        ------
        InvalidPipeline
            If the time is none, or the state; or if they exclude each other.
        """
        if state is not None and from_checkpoint is not None:
            raise InvalidPipeline(
                "state= and from_checkpoint= exclude each other.",
                why="a named checkpoint holds the state of every operator.",
                do="edit it: holdfast checkpoint edit NAME --operator X --with FILE --as NEWNAME; then begin with "
                "NEWNAME.",
            )
        at_us = begin_at(at, pipeline.sources)
        has_ticks = common_unit(pipeline.sources) is TimeUnit.TICKS
        return StartAt(from_checkpoint, at_us, () if state is None else given_states(state), has_ticks)

    def __str__(self) -> str:
        """Return it as people read it."""
        return self._shown(self.noted)

    @property
    def noted(self) -> str:
        """What a checkpoint notes of it and later starts are compared with; the time is a number there."""
        parts = [] if self.where is None else [f"from_checkpoint={self.where!r}"]
        parts += [] if self.at_us is None else [f"at={self.at_us}"]
        given = "; ".join(f"{each.operator}: {each.shown}" for each in self.state)
        return ", ".join([*parts, *([f"state=({given})"] if given else [])])

    def _shown(self, noted: str) -> str:
        """Return what was noted with its time in words, where that is a time."""
        return noted if self.has_ticks else _NOTED_TIME.sub(_in_words, noted)

    def __bool__(self) -> bool:
        """Return whether anything is asked for."""
        return self != StartAt()

    def is_due(self, store: Store, pipeline: str, *, has_begun: bool) -> bool:
        """Tell whether the pipeline still has to begin.

        Raises
        ------
        InvalidPipeline
            If it has begun otherwise.
        """
        begun = noted_beginning(store)
        if begun is None and not has_begun:
            return True
        if begun is not None and begun[0] == self.noted:
            return False  # a restart of the same program
        raise self.refused(pipeline, begun)

    def refused(self, pipeline: str, begun: tuple[str, DirectoryHeader] | None) -> InvalidPipeline:
        """Return the error of a pipeline that has begun otherwise."""
        began = f"with {self._shown(begun[0])}" if begun else "at the beginning of its sources"
        return InvalidPipeline(
            f"pipeline {pipeline!r} cannot begin with {self}: it has begun already.",
            why=f"this checkpoint began {began}.",
            do="leave the option out, to go on where it is; or begin with a new checkpoint, another name and new "
            "targets.",
            pipeline=pipeline,
        )

    def refusal(
        self, pipeline: str, begun: tuple[str, DirectoryHeader] | None, held: Mapping[str, Held]
    ) -> InvalidPipeline:
        """Return why a pipeline that has begun, or sinks that hold epochs of it, stand against it."""
        if not held:
            return self.refused(pipeline, begun)
        name, each = next(iter(held.items()))
        return InvalidPipeline(
            f"pipeline {pipeline!r} cannot begin with {self}: sink {name!r} holds epoch {each.epoch}.",
            why="what the sink holds was published from other positions: rows would be missing, or there twice.",
            do="give the pipeline another name and new targets; or leave the option out, to go on where it is"
            + ("." if self.at_us is None else _WITHOUT_THE_TIME),
            pipeline=pipeline,
            participant=name,
            epoch=each.epoch,
        )

    def tables(
        self, pipeline: str, state_schemas: Mapping[str, StateSchema], upgrades: Mapping[str, StateUpgrade], now_us: int
    ) -> dict[str, dict[str, pa.Table]]:
        """Return operator -> its state tables, as they were given.

        Raises
        ------
        InvalidPipeline
            If the graph has no such operator, or a table does not fit it.
        """
        at = StepTime(0, now_us)
        found = {}
        for each in self.state:
            if each.operator not in state_schemas:
                raise InvalidPipeline(
                    f"state= names the operator {each.operator!r}, which keeps no state in pipeline {pipeline!r}.",
                    why=f"operators with state are: {', '.join(state_schemas) or 'none'}.",
                    do="name one of those.",
                    pipeline=pipeline,
                    participant=each.operator,
                )
            upgrade = upgrades.get(each.operator, StateUpgrade())
            found[each.operator] = each.tables(state_schemas[each.operator], partial(_grown, upgrade, at))
        return found

    def check_sources(self, pipeline: Graph) -> None:
        """Refuse sources that cannot begin at a time.

        Raises
        ------
        InvalidPipeline
            Naming the source.
        """
        for node in pipeline.sources if self.at_us is not None else ():
            why = from_time.obstacle(node.source_spec)
            if why:
                raise InvalidPipeline(
                    f"source {node.name!r} cannot begin at a time.",
                    why=why,
                    do='declare timestamp="<column>" at the source; or leave at= out, and use hf.clip(...).',
                    pipeline=pipeline.name,
                    participant=node.name,
                )


def _grown(upgrade: StateUpgrade, at: StepTime, table: str, part: pa.Table) -> pa.Table | None:
    return upgrade.grown(table, part, at)


def still_to_begin(wanted: StartAt | None, pipeline: Graph, store: Store) -> StartAt | None:
    """Return where a pipeline still has to begin; refuse what a start refuses before it looks at anything else."""
    if not wanted:
        return None
    wanted.check_sources(pipeline)
    return wanted if wanted.is_due(store, pipeline.name, has_begun=newest_directory(store) > 0) else None
