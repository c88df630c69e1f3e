"""``hf.write.arrow_file`` and ``hf.read.arrow_file``: rows and ledger in one Arrow file, which an epoch replaces.

An example of a connector in a distribution of its own.  Rows travel in the handles of tasks, so nothing is ever left
behind; each epoch writes the whole file, so it is for small tables.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa

import holdfast as hf
from holdfast import faults
from holdfast.connectors.kit.expected import unpublished
from holdfast.connectors.kit.handle_rows import HandleWriterFactory, batches_of, check_carried
from holdfast.errors import Fenced
from holdfast.graph import nodes
from holdfast.graph.building import building
from holdfast.ports import Guarantee, Held, Outcome, Publication, RunIdentity, Sink
from holdfast.store import durable

_LEDGER = b"holdfast"


def write(path: str, *, name: str | None = None) -> nodes.SinkNode:
    """Write rows to one Arrow file, each exactly once.

    Parameters
    ----------
    path : str
        The file; its directory is created.
    name : str, optional
        The sink's name: the identity of its ledger.
    """
    with building("sink", name):
        spec = ArrowFileSpec(os.path.abspath(path))
    return nodes.sink(spec, name=name)


def read(path: str, *, name: str | None = None) -> nodes.Stream:
    """Read the rows of an Arrow file, once."""
    table = pa.ipc.open_file(path).read_all()
    return hf.read.rows(table.to_pylist(), schema=table.schema.remove_metadata(), name=name)


@dataclass(frozen=True)
class ArrowFileSpec:
    """Declaration of the sink."""

    path: str

    kind = "arrow_file"
    guarantee = Guarantee.EXACTLY_ONCE

    def arguments(self) -> Mapping[str, Any]:
        """Return the arguments for display and fingerprint."""
        return {"path": self.path}

    def check_columns(self, columns: Collection[str] | None) -> None:
        """Any columns will do."""

    def connect(self, name: str, pipeline: str, schema: pa.Schema) -> ArrowFileSink:
        """Return the sink; the directory is created when absent."""
        aside = f"{self.path}.writing"
        durable.prepare(os.path.dirname(self.path), aside=aside, published=os.path.dirname(self.path))
        return ArrowFileSink(name, pipeline, schema, self.path, aside)


class ArrowFileSink:
    """The sink of a run; see :class:`holdfast.ports.Sink`."""

    guarantee = Guarantee.EXACTLY_ONCE
    staging = "rows in the handles"

    def __init__(self, name: str, pipeline: str, schema: pa.Schema, path: str, aside: str) -> None:
        self.name = name
        self._row = f"{pipeline}/{name}"
        self._pipeline = pipeline
        self._schema = schema
        self._path = path
        self._aside = aside
        self._generation = 0

    def open(self, run: RunIdentity) -> Held:
        """Fence lower generations; return what is held."""
        rows, ledger = self._content()
        held = ledger.get(self._row, Held())
        if held.generation >= run.generation:
            raise self._fenced(run.generation, held)
        self._generation = run.generation
        self._replace(rows, {**ledger, self._row: replace(held, generation=run.generation)})
        return held

    def writer_factory(self) -> HandleWriterFactory:
        """Return the factory that executors call."""
        return HandleWriterFactory(self._schema)

    def admit(self, publication: Publication, earlier: Sequence[tuple[Sink, Publication]] = ()) -> bool:
        """See that the rows fit: nothing else is refused here."""
        check_carried(publication, self._schema)
        return False

    def publish(self, publications: Sequence[Publication], expected: Held) -> None:
        """Write the file with the rows of the epochs, and the ledger row of the last one."""
        rows, ledger = self._content()
        held = ledger.get(self._row, Held())
        if held.generation > self._generation:
            raise self._fenced(self._generation, held)
        new = unpublished(f"sink {self.name!r}", self._pipeline, publications, held, expected)
        if not new:
            return
        added = [batch for publication in new for batch in batches_of(publication, self._schema)]
        for publication in new:
            faults.reach("publish-uncommitted", publication.record.epoch)
        record = new[-1].record
        now = Held(record.epoch, self._generation, record.positions, record.pts, recent_ends=record.recent_ends)
        self._replace([*rows, *added], {**ledger, self._row: now})

    def outcome(self, epoch: int) -> Outcome:
        """Ask the file."""
        held = self._content()[1].get(self._row, Held())
        return Outcome.PUBLISHED if epoch <= held.epoch else Outcome.ABSENT

    def sweep(self, *, below_epoch: int) -> int:
        """There are no orphans: rows whose handle was lost are lost with it."""
        return 0

    def close(self) -> None:
        """Nothing is held open."""

    def _content(self) -> tuple[list[pa.RecordBatch], dict[str, Held]]:
        try:
            with open(self._path, "rb") as file:
                table = pa.ipc.open_file(file.read()).read_all()
        except FileNotFoundError:
            return [], {}
        ledger = json.loads(table.schema.metadata[_LEDGER])
        return table.to_batches(), {row: Held(**held) for row, held in ledger.items()}

    def _replace(self, rows: Sequence[pa.RecordBatch], ledger: Mapping[str, Held]) -> None:
        noted = json.dumps({row: _as_json(held) for row, held in ledger.items()}).encode()
        schema = self._schema.with_metadata({_LEDGER: noted})
        buffer = pa.BufferOutputStream()
        with pa.ipc.new_file(buffer, schema) as file:
            for batch in rows:
                file.write_batch(batch.select(schema.names).replace_schema_metadata(schema.metadata))
        durable.replace(self._path, buffer.getvalue().to_pybytes(), aside=self._aside)

    def _fenced(self, generation: int, held: Held) -> Fenced:
        return Fenced(
            f"Generation {generation} of pipeline {self._pipeline!r} may not write to sink {self.name!r}.",
            why=f"generation {held.generation} has opened it.",
            do="stop this run: another one has taken over.",
            pipeline=self._pipeline,
            participant=self.name,
            epoch=held.epoch,
            generation=held.generation,
        )


def _as_json(held: Held) -> dict[str, Any]:
    kept = asdict(held)
    return {name: kept[name] for name in ("epoch", "generation", "positions", "pts", "recent_ends")}
