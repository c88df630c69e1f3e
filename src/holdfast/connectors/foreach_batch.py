"""foreach_batch: every epoch passed to a function of yours as a DataFrame; at-least-once.

The escape hatch.  Your function cannot be asked what it has written: when the process dies between its return and
our record of it, the epoch is passed again.  The record, ``held.json`` in the sink's work directory, keeps a clean
restart from repeating anything.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import pyarrow as pa

from holdfast import faults
from holdfast.connectors.control.columns import check_no_control
from holdfast.connectors.kit.expected import rows_gone
from holdfast.connectors.kit.files import staged as stage
from holdfast.connectors.kit.files.staged import FileStaging
from holdfast.connectors.kit.handle_rows import check_carried
from holdfast.errors import REPORT, Corrupt, Fenced, InternalError, InvalidPipeline
from holdfast.graph import naming, nodes
from holdfast.graph.building import building
from holdfast.graph.row_ids import AUTO, DECIDED, EARLY, RowIds, check_id, id_column
from holdfast.ports import Guarantee, Held, Outcome, Publication, RunIdentity, Sink, Staged, Task
from holdfast.store import durable
from holdfast.store.records import without_step_time
from holdfast.types.casting import fitted_table

_NOTE = "held.json"
"""In a sink's work directory: what was passed last."""

ToDataFrame = Callable[[pa.Table | list[str], pa.Schema], Any]
"""Makes a DataFrame of an epoch's rows: a table, or paths of Parquet files.  Provided by the engine."""


def foreach_batch(
    fn: Callable[[Any, int], None],
    *,
    idempotent: bool = False,
    id: str = AUTO,
    send: Literal["decided", "early"] = "decided",
    control: None = None,
    name: str | None = None,
    freshness: str | None = None,
    backfill: bool = False,
) -> nodes.SinkNode:
    """Hand every epoch to a function, as Spark's ``foreachBatch`` does; at-least-once.

    Parameters
    ----------
    fn : callable
        Called on the driver with a DataFrame and the epoch's number.  It must bear being called twice for an epoch:
        overwrite by epoch, or merge by key.
    idempotent : bool
        Says that ``fn`` writes by row id: a row that is there already is left, or written over.  Then the stream must
        have one.
    id : str
        The column of the DataFrame that holds it: ``"auto"``, the one that ``hf.row_id`` made, or a column of which you
        know that it is unique.
    send : {"decided", "early"}
        ``"early"``: ``fn`` is called before the epoch is decided and other sinks have it.  Only for an idempotent one,
        behind operators that give the same rows again; ``docs/sinks/foreach_batch.md`` says what a crash may leave.
    control : None
        Other sinks have it (``docs/control-rows.md``): this one cannot carry out commands, and says so.
    name : str, optional
        The node's name.
    freshness : str, optional
        How old the oldest row may be that the sink lacks (``"5 min"``), before the health of the run says so:
        ``docs/expectations.md``.
    backfill : bool
        Whether the sink, added to a pipeline that has run, gets everything from the beginning: ``docs/state.md``.

    Returns
    -------
    SinkNode
        To be used to the right of ``stream |``.

    Notes
    -----
    An error of ``fn`` stops the run; the next one passes the same epoch again, with the same rows where the
    pipeline has several sinks (they were decided), else evaluated again.
    """
    with building("sink", name):
        check_no_control("write.foreach_batch", control)
        spec = ForeachBatchSpec(fn, idempotent, check_id(id), send=send)
    return nodes.sink(spec, name=name, backfill=backfill, freshness=freshness)


@dataclass(frozen=True)
class ForeachBatchSpec:
    """Declaration of a foreach_batch sink; parameters as :func:`foreach_batch`."""

    fn: Callable[[Any, int], None]
    idempotent: bool = False
    id: str = AUTO
    id_column: str | None = None
    send: str = DECIDED

    kind = "foreach_batch"
    guarantee = Guarantee.AT_LEAST_ONCE

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise InvalidPipeline(
                f"write.foreach_batch needs a function, but was given {type(self.fn).__name__}.",
                do="write def save(df, epoch): ...  and then  write.foreach_batch(save).",
            )
        if self.id != AUTO and not self.idempotent:
            raise InvalidPipeline(
                f"write.foreach_batch has id={self.id!r}, and is not idempotent.",
                why="id= names the column by which the function recognises rows that it has written.",
                do=f"write write.foreach_batch(save, idempotent=True, id={self.id!r}), or leave id= out.",
            )

        if self.send not in (DECIDED, EARLY):
            raise InvalidPipeline(f"send={self.send!r} is unknown.", do='write send="early", or leave it out.')
        if self.send == EARLY and not (self.idempotent and self.id == AUTO):
            raise InvalidPipeline(
                'write.foreach_batch has send="early", and its rows are not known to keep their ids.',
                why="it may be given the rows of an epoch again.",
                do="write hf.row_id() right behind the source, and write.foreach_batch(save, idempotent=True, "
                'send="early").',
            )

    def arguments(self) -> Mapping[str, Any]:
        """Return the arguments for display and fingerprint."""
        early = {"send": self.send} if self.send != DECIDED else {}
        ids = {"idempotent": True, "id": self.id_column or self.id} if self.idempotent else {}
        return {"fn": naming.callable_text(self.fn), **ids, **early}

    def check_columns(self, columns: Collection[str] | None) -> None:
        """Any columns will do."""

    def identified(self, columns: Collection[str] | None, ids: RowIds | None) -> ForeachBatchSpec:
        """Return the declaration for a stream: with the column that the function recognises rows by, if it does."""
        return replace(self, id_column=id_column(self.id, columns, ids)) if self.idempotent else self

    def connect(self, name: str, pipeline: str, schema: pa.Schema) -> ForeachBatchSink:
        """Return the sink; the engine binds it before it is opened."""
        return ForeachBatchSink(
            name, pipeline, schema, self.fn, is_idempotent=self.idempotent, is_early=self.send == EARLY
        )


class ForeachBatchSink:
    """The sink of a run; see :class:`holdfast.ports.Sink`.

    :meth:`bind` must be called before :meth:`open`.
    """

    guarantee = Guarantee.AT_LEAST_ONCE
    staging = "Parquet files in the checkpoint"

    def __init__(
        self,
        name: str,
        pipeline: str,
        schema: pa.Schema,
        fn: Callable[[Any, int], None],
        *,
        is_idempotent: bool = False,
        is_early: bool = False,
    ) -> None:
        self.name = name
        self.is_idempotent = is_idempotent
        self.is_early = is_early
        self._sent: dict[int, set[str]] = {}
        """Epochs whose rows the function has, and which are not noted; their staged directories."""
        self._pipeline = pipeline
        self._schema = schema
        self._fn = fn
        self._generation = 0
        self._bound: _Bound | None = None

    def bind(self, to_dataframe: ToDataFrame, work_directory: str) -> None:
        """Provide the sink with what only the engine has.

        Parameters
        ----------
        to_dataframe : callable
            Makes a DataFrame of a table, or of paths of Parquet files, and a schema.
        work_directory : str
            Belongs to this sink alone, below the checkpoint; every executor sees it under this path.  Created when
            absent.
        """
        directory = os.path.abspath(work_directory)
        aside = os.path.join(directory, "writing")
        durable.prepare(directory, aside=aside)
        staging = FileStaging(os.path.join(directory, "staging"), self._schema, suffix="", is_published=False)
        with durable.explained(f"opening {directory}"):
            durable.make_directory(staging.directory)
        self._bound = _Bound(to_dataframe, os.path.join(directory, _NOTE), aside, staging)

    def open(self, run: RunIdentity) -> Held:
        """Record the generation; return what was noted last."""
        held = self._held()
        self._check(held, run.generation, is_open=True)
        self._generation = run.generation
        self._note(replace(held, generation=run.generation))
        return held

    def writer_factory(self) -> FileStaging:
        """Return the factory that executors call."""
        return self._engine.staging

    def admit(self, publication: Publication, earlier: Sequence[tuple[Sink, Publication]] = ()) -> bool:
        """See that the rows fit.  The function has effects, so it cannot be tried."""
        check_carried(publication, self._schema)
        return False

    def publish(self, publications: Sequence[Publication], expected: Held) -> None:
        """Call the function for each epoch that is not noted, and note it."""
        for publication in publications:
            record = publication.record
            held = self._held()
            self._check(held, self._generation)
            if record.epoch <= held.epoch:
                continue
            if record.epoch not in self._sent:
                self._give(publication)
            staged = self._sent.pop(record.epoch)
            faults.reach("publish-uncommitted", record.epoch, record.pipeline)
            held = Held(record.epoch, self._generation, record.positions, record.pts, recent_ends=record.recent_ends)
            self._note(held)
            for name in staged:
                self._engine.staging.remove(name)

    def send(self, publication: Publication) -> None:
        """Call the function; :meth:`publish` notes it, and does not call it again."""
        held = self._held()
        self._check(held, self._generation)
        if publication.record.epoch > held.epoch:
            self._give(publication)

    def _give(self, publication: Publication) -> None:
        epoch = publication.record.epoch
        staged, rows = self._rows(publication)
        try:
            self._fn(self._engine.to_dataframe(rows, self._schema), epoch)
        except Exception as error:
            error.add_note(f"raised by the function of sink {self.name!r}, in epoch {epoch}")
            raise
        self._sent[epoch] = staged

    def outcome(self, epoch: int) -> Outcome:
        """Answer from the note; the function itself cannot be asked."""
        return Outcome.PUBLISHED if epoch <= self._held().epoch else Outcome.ABSENT

    def expired(self, parts: Sequence[Staged]) -> list[str]:
        """Return the names of the parts whose files are gone."""
        return self._engine.staging.expired(parts)

    def sweep(self, *, below_epoch: int) -> int:
        """Drop orphans by name."""
        if self._held().generation != self._generation:
            return 0
        staging = self._engine.staging
        return sum(
            staging.remove(staged.name)
            for staged in staging.directories()
            if (staged.generation, staged.epoch) < (self._generation, below_epoch)
        )

    def close(self) -> None:
        """Nothing is held open."""

    @property
    def _engine(self) -> _Bound:
        if self._bound is None:
            raise InternalError(f"Sink {self.name!r} was opened before the engine bound it.", do=REPORT)
        return self._bound

    def _rows(self, publication: Publication) -> tuple[set[str], pa.Table | list[str]]:
        """Return the staged directories, and the rows: one table if all are carried, else paths."""
        carried = [part.rows for part in publication.parts if not isinstance(part, Staged)]
        handles = [part for part in publication.parts if isinstance(part, Staged) and part.row_count]
        if not handles:
            tables = [fitted_table(table, self._schema) for table in carried]
            return set(), pa.concat_tables(tables) if tables else self._schema.empty_table()
        for index, table in enumerate(carried):
            writer = self._engine.staging(Task(self._pipeline, self._generation, publication.record.epoch, index, 0))
            for batch in table.to_batches():
                writer.write(batch)
            handles.append(writer.stage())
        paths, names = [], set()
        for handle in handles:
            name = stage.directory_of(handle)
            if name is None:
                continue
            names.add(name)
            why = self._engine.staging.missing(handle)
            if why is not None:
                node = f"sink {self.name!r}"
                raise rows_gone(node, handle.name, why, pipeline=self._pipeline, participant=self.name)
            above = os.path.join(self._engine.staging.directory, name)
            paths += [os.path.join(above, file.path) for file in stage.files_of(handle)]
        return names, paths

    # --- the note -----------------------------------------------------------------------------------

    def _held(self) -> Held:
        path = self._engine.note
        with durable.explained(f"reading {path}"):
            try:
                with open(path, "rb") as file:
                    return Held(**without_step_time(json.load(file)))
            except FileNotFoundError:
                return Held()
            except (ValueError, TypeError) as error:
                raise Corrupt(
                    f"The note {path} of sink {self.name!r} is damaged.",
                    why=str(error),
                    do="remove it: the last epoch may then be passed again.",
                    participant=self.name,
                ) from error

    def _note(self, held: Held) -> None:
        durable.replace(self._engine.note, json.dumps(_noted(held)).encode(), aside=self._engine.aside)

    def _check(self, held: Held, generation: int, *, is_open: bool = False) -> None:
        if held.generation > generation or (is_open and held.generation == generation):
            raise Fenced(
                f"Generation {generation} of pipeline {self._pipeline!r} may not write to sink {self.name!r}.",
                why=f"generation {held.generation} has opened it.",
                do="stop this run: another one has taken over.",
                pipeline=self._pipeline,
                participant=self.name,
                epoch=held.epoch,
                generation=held.generation,
            )


@dataclass(frozen=True)
class _Bound:
    """What the engine provides, and the places below the work directory."""

    to_dataframe: ToDataFrame
    note: str
    aside: str
    staging: FileStaging


def forget(work_directory: str) -> None:
    """Remove the note of what was passed: its epochs were withdrawn, and the function was not told."""
    with durable.explained(f"removing the note in {work_directory}"), suppress(FileNotFoundError):
        os.unlink(os.path.join(work_directory, _NOTE))


def _noted(held: Held) -> dict[str, Any]:
    return {name: value for name, value in asdict(held).items() if name != "recent_ends" or value}
