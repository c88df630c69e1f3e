"""Memory: rows kept as an Arrow table in the driver's process; exactly-once for as long as that process lives.

For tests and notebooks.  The rows and the ledger are kept together under one lock; when the process ends both are
gone, and a new process needs a new checkpoint.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

import pyarrow as pa

from holdfast import faults
from holdfast.connectors.control.columns import check_no_control
from holdfast.connectors.kit.expected import unpublished
from holdfast.connectors.kit.handle_rows import HandleWriterFactory, batches_of, check_carried
from holdfast.errors import Fenced, InvalidPipeline
from holdfast.graph import nodes
from holdfast.graph.building import building
from holdfast.ports import Guarantee, Held, Outcome, Publication, RunIdentity, Sink
from holdfast.state.tables import united

Row = tuple[str, str]
"""(pipeline, sink): whose ledger row it is."""


@dataclass
class _Kept:
    """One name's rows and ledger."""

    schema: pa.Schema
    batches: list[pa.RecordBatch] = field(default_factory=list)
    ledger: dict[Row, Held] = field(default_factory=dict)


_lock = RLock()
_kept: dict[str, _Kept] = {}


def memory(name: str, *, freshness: str | None = None, control: None = None) -> nodes.SinkNode:
    """Keep rows in the driver's process, for tests and notebooks; :func:`rows` returns them.

    Parameters
    ----------
    name : str
        Name of the table, and of the node.
    freshness : str, optional
        How old the oldest row may be that the sink lacks (``"5 min"``), before the health of the run says so:
        ``docs/expectations.md``.
    control : None
        Other sinks have it (``docs/control-rows.md``): this one cannot carry out commands, and says so.

    Returns
    -------
    SinkNode
        To be used to the right of ``stream |``.

    Notes
    -----
    Exactly-once within the process: a run that fails and is started again neither loses nor repeats a row.  A new
    process begins with an empty table.  The driver must have room for all rows.
    """
    with building("sink", name):
        check_no_control("write.memory", control)
        spec = MemorySpec(name)
    return nodes.sink(spec, name=name, freshness=freshness)


def rows(name: str) -> pa.Table:
    """Return the rows published so far, in the order of their epochs.

    Raises
    ------
    InvalidPipeline
        If no run of this process has opened a memory sink of that name.
    """
    with _lock:
        kept = _kept.get(name)
        if kept is None:
            raise InvalidPipeline(
                f"There is no memory table {name!r} in this process.",
                why=f"tables here: {', '.join(sorted(_kept)) or 'none'}.",
                do="start the pipeline that writes to it, in this process.",
                participant=name,
            )
        return united([kept.schema.empty_table(), *(pa.Table.from_batches([batch]) for batch in kept.batches)])


def clear(name: str) -> None:
    """Forget the rows and the ledger of one table; absent is fine.

    A pipeline that wrote to it must then start with an empty checkpoint.
    """
    with _lock:
        _kept.pop(name, None)


@dataclass(frozen=True)
class MemorySpec:
    """Declaration of a memory sink.

    Parameters
    ----------
    table : str
        Key in this process's registry.
    """

    table: str

    kind = "memory"
    guarantee = Guarantee.EXACTLY_ONCE

    def arguments(self) -> Mapping[str, Any]:
        """Return the arguments for display and fingerprint."""
        return {"table": self.table}

    def check_columns(self, columns: Collection[str] | None) -> None:
        """Any columns will do."""

    def connect(self, name: str, pipeline: str, schema: pa.Schema) -> MemorySink:
        """Return the sink; the table is created when absent."""
        with _lock:
            kept = _kept.setdefault(self.table, _Kept(schema))
            _check_schema(self.table, kept.schema, schema)
        return MemorySink(name, pipeline, self.table, schema)


class MemorySink:
    """The sink of a run; see :class:`holdfast.ports.Sink`."""

    is_volatile = True
    """Ends with the process: a run in another process starts it empty and continues."""
    guarantee = Guarantee.EXACTLY_ONCE
    staging = "rows in the handles"

    def __init__(self, name: str, pipeline: str, table: str, schema: pa.Schema) -> None:
        self.name = name
        self._row = (pipeline, name)
        self._table = table
        self._schema = schema
        self._generation = 0

    def open(self, run: RunIdentity) -> Held:
        """Fence lower generations; return what is held."""
        with _lock:
            held = self._held()
            if held.generation >= run.generation:
                raise self._fenced(run.generation, held)
            self._generation = run.generation
            self._keep([], dataclasses.replace(held, generation=run.generation))
            return held

    def writer_factory(self) -> HandleWriterFactory:
        """Return the factory that executors call."""
        return HandleWriterFactory(self._schema)

    def admit(self, publication: Publication, earlier: Sequence[tuple[Sink, Publication]] = ()) -> bool:
        """See that the rows fit: nothing else is refused here."""
        check_carried(publication, self._schema)
        return False

    def publish(self, publications: Sequence[Publication], expected: Held) -> None:
        """Add the rows and move the ledger under one lock."""
        with _lock:
            held = self._held()
            if held.generation > self._generation:
                raise self._fenced(self._generation, held)
            new = unpublished(f"sink {self.name!r}", self._row[0], publications, held, expected)
            if not new:
                return
            added = [batch for publication in new for batch in batches_of(publication, self._schema)]
            for publication in new:
                faults.reach("publish-uncommitted", publication.record.epoch, publication.record.pipeline)
            record = new[-1].record
            held = Held(record.epoch, self._generation, record.positions, record.pts, recent_ends=record.recent_ends)
            self._keep(added, held)

    def outcome(self, epoch: int) -> Outcome:
        """Ask the ledger."""
        with _lock:
            return Outcome.PUBLISHED if epoch <= self._held().epoch else Outcome.ABSENT

    def sweep(self, *, below_epoch: int) -> int:
        """There are no orphans: rows whose handle was lost are lost with it."""
        return 0

    def close(self) -> None:
        """Nothing is held open."""

    def _held(self) -> Held:
        kept = _kept.get(self._table)
        return kept.ledger.get(self._row, Held()) if kept else Held()

    def _keep(self, added: Sequence[pa.RecordBatch], held: Held) -> None:
        kept = _kept.setdefault(self._table, _Kept(self._schema))  # absent: cleared since
        kept.batches.extend(added)
        kept.ledger[self._row] = held

    def _fenced(self, generation: int, held: Held) -> Fenced:
        return Fenced(
            f"Generation {generation} of pipeline {self._row[0]!r} may not write to sink {self.name!r}.",
            why=f"generation {held.generation} has opened it.",
            do="stop this run: another one has taken over.  For a fresh start, hf.write.memory's clear(name).",
            pipeline=self._row[0],
            participant=self.name,
            epoch=held.epoch,
            generation=held.generation,
        )


def _check_schema(table: str, kept: pa.Schema, wanted: pa.Schema) -> None:
    for name in (*wanted.names, *kept.names):
        if _type(kept, name) != _type(wanted, name):
            raise InvalidPipeline(
                f"Column {name!r} of memory table {table!r} is {_type(kept, name)} there and {_type(wanted, name)} "
                "in the rows.",
                why="another pipeline of this process, or an earlier version of this one, made the table.",
                do=f"use another name, or clear({table!r}) first.",
                participant=table,
            )


def _type(schema: pa.Schema, name: str) -> str:
    return str(schema.field(name).type) if name in schema.names else "absent"
