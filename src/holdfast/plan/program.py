"""A pipeline as an Arrow program: rows of a source in, rows of every sink out, and none of them enters the JVM.

Rows that go Python -> JVM -> Python only for a filter and a few expressions cost more to transfer than to parse and
copy.  Where every operator of a pipeline is one that Arrow evaluates exactly as Spark does
(:mod:`holdfast.expressions.compile`), a task reads a span, runs this program on its batches and hands the results to
the writers.  Anything else makes the whole pipeline go through Spark's own plan (:mod:`holdfast.spark.compile`), and so
does an expression that can raise where Spark may leave it out (:mod:`holdfast.plan.laziness`).  It is built by
:mod:`holdfast.plan.program_build`, which needs more than a worker has to import.

A node's output is computed once for a batch, however many sinks share it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.capabilities import offers
from holdfast.expressions.logic import Columnar
from holdfast.expressions.shared import Common
from holdfast.plan.batches import BatchFunction
from holdfast.plan.counts import Counts
from holdfast.plan.laps import OTHER, Laps
from holdfast.plan.operation import Batches, Choosing, Made, Operation
from holdfast.plan.routes import Routes
from holdfast.ports import REJECT_COLUMN
from holdfast.types.casting import fitted, fitted_column
from holdfast.types.row_ids import Key, ids_of_columns


@dataclass(frozen=True)
class ProgramStep:
    """One node of the program: what it does, and the numbers of the steps it reads.

    Parameters
    ----------
    operation : Operation
        What it does.
    inputs : tuple of int
        The steps that it reads.
    schema : pa.Schema
        Of its rows.
    name : str
        The operator; empty where rows only come in.
    drops : bool
        Whether the rows that it drops are counted for the status.
    """

    operation: Operation
    inputs: tuple[int, ...]
    schema: pa.Schema
    name: str = ""
    drops: bool = False


@dataclass(frozen=True)
class Program:
    """The program of a pipeline.  Picklable.

    Parameters
    ----------
    schemas : mapping of str to pa.Schema
        Source -> schema that its rows are read with.
    steps : tuple of ProgramStep
        Inputs first.  The first ones are the sources, in the order of ``schemas``.
    ends : tuple of int
        For each sink of ``routes``, the step whose rows it takes.
    routes : Routes
        The sinks, with the schemas of their rows.
    runs_user_code : bool
        Whether a user's function (``map_batches``) is part of it: such a program does not run in the driver, nor where
        a source is planned.
    """

    schemas: Mapping[str, pa.Schema]
    steps: tuple[ProgramStep, ...]
    ends: tuple[int, ...]
    routes: Routes
    runs_user_code: bool

    @property
    def filters(self) -> frozenset[str]:
        """The nodes that drop rows, and say how many."""
        return frozenset(step.name for step in self.steps if step.drops)

    @property
    def counted(self) -> frozenset[str]:
        """The operators whose rows are counted, for the audit."""
        return frozenset(step.name for step in self.steps if step.name)

    def reads(self, source: str) -> frozenset[str]:
        """Return the columns of a source whose values are used."""
        wanted: list[frozenset[str]] = [frozenset() for _ in self.steps]
        for end, schema in zip(self.ends, self.routes.schemas, strict=True):
            wanted[end] |= frozenset(schema.names)
        for number in reversed(range(len(self.steps))):  # inputs have lower numbers
            step = self.steps[number]
            for before in step.inputs:
                if offers(step.operation, Choosing):
                    wanted[before] |= step.operation.reads(wanted[number])
                else:
                    wanted[before] |= frozenset(self.steps[before].schema.names)
        return wanted[list(self.schemas).index(source)]

    def run(
        self, source: str, batch: pa.RecordBatch, counts: Counts | None = None
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield (sink, rows) for one batch of a source; count how many rows reached and left each operator.

        Arrow knows how many rows a batch has, so counting costs nothing; each step is a lap.
        """
        laps = Laps() if counts is None else counts.laps
        sources = list(self.schemas)
        done: list[Batches] = [
            [fitted(batch, self.schemas[source])] if name == source and batch.num_rows else [] for name in sources
        ]
        for name, head, taken in zip(sources, self.steps, done, strict=False):
            if counts is not None and head.name and name == source:
                counts.passed(head.name, batch.num_rows, batch.num_rows, _rows(taken), drops=False)
                counts.taps.see(head.name, taken)
        for step in self.steps[len(sources) :]:
            inputs = [done[number] for number in step.inputs]
            if not any(inputs):
                done.append([])
                continue
            laps.to(step.name)
            made = step.operation.apply(inputs)
            done.append(made.batches)
            if counts is not None and step.name:
                counts.passed(step.name, _rows(*inputs), made.due, _rows(made.batches), drops=step.drops)
                counts.taps.see(step.name, made.batches)
                if made.failed is not None:
                    counts.expect(step.name, _rows(*inputs), made.failed)
        laps.to(OTHER)
        for sink, end, schema in zip(self.routes.sinks, self.ends, self.routes.schemas, strict=True):
            for rows in done[end]:
                if rows.num_rows:
                    yield sink, fitted(rows, schema)

    def counting(self, source: str, batch: pa.RecordBatch, counts: Counts) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield (sink, rows) for the rows of one batch of a source, and count them."""
        counts.laps.to(source)
        counts.add(source, batch)
        yield from self.run(source, batch, counts)

    def tables(
        self, read: Iterable[tuple[str, pa.RecordBatch]], sinks: Collection[str], counts: Counts
    ) -> dict[str, pa.Table]:
        """Return the rows of some sinks in an epoch whose batches were read, source by source."""
        made = (part for source, batch in read for part in self.counting(source, batch, counts))
        return self.routes.gathered(made, sinks)


# --- operations -----------------------------------------------------------------------------------------------


def _rows(*inputs: Batches) -> int:
    return sum(batch.num_rows for batches in inputs for batch in batches)


def _choose(batches: Batches, mask_of: Callable[[pa.RecordBatch], pa.Array]) -> Made:
    """Return the rows for which a mask is true, and how many are true in it."""
    kept, due = [], 0
    for batch in batches:
        mask = mask_of(batch)
        count = mask.true_count
        due += count
        kept.append(batch if count == batch.num_rows else batch.filter(mask))  # a filter copies what it keeps
    return Made(kept, due)


@dataclass(frozen=True)
class Pass:
    """The rows of a source, or of a head, as they come."""

    def apply(self, inputs: Sequence[Batches]) -> Made:
        """Return the step's output."""
        return Made(inputs[0], _rows(*inputs))


@dataclass(frozen=True)
class Keep:
    """Keep the rows for which a condition is true; false and null drop a row."""

    condition: Columnar
    common: Common

    @classmethod
    def of(cls, condition: Columnar) -> Keep:
        """Return the operation for a condition."""
        return cls(condition, Common.of(condition))

    def reads(self, wanted: frozenset[str]) -> frozenset[str]:
        """Return the columns that it uses, of which some are wanted."""
        return wanted | self.condition.reads

    def apply(self, inputs: Sequence[Batches]) -> Made:
        """Return the step's output."""
        return _choose(inputs[0], lambda batch: self.common.evaluate(batch)[0])


@dataclass(frozen=True)
class Verify:
    """Count the rows for which a condition is not true, and pass them on, or drop them."""

    keep: Keep
    drops: bool

    def reads(self, wanted: frozenset[str]) -> frozenset[str]:
        """Return the columns that it uses, of which some are wanted."""
        return self.keep.reads(wanted)

    def apply(self, inputs: Sequence[Batches]) -> Made:
        """Return the step's output."""
        good = self.keep.apply(inputs)
        failed = _rows(*inputs) - good.due
        return Made(good.batches, good.due, failed) if self.drops else Made(inputs[0], _rows(*inputs), failed)


@dataclass(frozen=True)
class Compute:
    """Compute columns.

    Parameters
    ----------
    items : tuple of Columnar
        The columns.
    common : Common
        The same, with what they share taken out.
    schema : pyarrow.Schema
        What they are.
    """

    items: tuple[Columnar, ...]
    common: Common
    schema: pa.Schema

    @classmethod
    def of(cls, items: Sequence[Columnar], schema: pa.Schema) -> Compute:
        """Return the operation that computes such columns."""
        return cls(tuple(items), Common.of(*items), schema)

    def reads(self, wanted: frozenset[str]) -> frozenset[str]:
        """Return the columns that it uses: all are computed, wanted or not; what is passed on is used where it is."""
        named = zip(self.schema.names, self.items, strict=True)
        used = (item.reads for name, item in named if item.reference is None or name in wanted)
        return frozenset[str]().union(*used)

    def apply(self, inputs: Sequence[Batches]) -> Made:
        """Return the step's output."""
        made = [
            pa.RecordBatch.from_arrays(self.common.evaluate(batch), schema=self.schema)
            for batch in inputs[0]
            if batch.num_rows
        ]
        return Made(made, _rows(*inputs))


@dataclass(frozen=True)
class Identify:
    """Add a column with the ids of the values of others."""

    key: Key
    columns: tuple[str, ...]
    timestamp: str | None
    schema: pa.Schema

    def apply(self, inputs: Sequence[Batches]) -> Made:
        """Return the step's output."""
        return Made([self._identified(batch) for batch in inputs[0]], _rows(*inputs))

    def _identified(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        times = None if self.timestamp is None else batch.column(self.timestamp)
        ids = ids_of_columns(self.key, [batch.column(name) for name in self.columns], times)
        return pa.RecordBatch.from_arrays([*batch.columns, ids], schema=self.schema)


@dataclass(frozen=True)
class Fit:
    """The same rows under a schema that says less of them: what is never null may be."""

    schema: pa.Schema

    def apply(self, inputs: Sequence[Batches]) -> Made:
        """Return the step's output."""
        return Made([fitted(batch, self.schema) for batch in inputs[0]], _rows(*inputs))


@dataclass(frozen=True)
class Project:
    """The rows with some of their columns."""

    schema: pa.Schema

    def reads(self, wanted: frozenset[str]) -> frozenset[str]:
        """Return the columns that it uses, of which some are wanted."""
        return frozenset(self.schema.names)

    def apply(self, inputs: Sequence[Batches]) -> Made:
        """Return the step's output."""
        return Made([batch.select(self.schema.names) for batch in inputs[0]], _rows(*inputs))


@dataclass(frozen=True)
class Chain:
    """Several operations, each on what the one before it gave."""

    operations: tuple[Operation, ...]

    def apply(self, inputs: Sequence[Batches]) -> Made:
        """Return the step's output."""
        made = Made(inputs[0], _rows(*inputs))
        missing = 0
        for operation in self.operations:
            made = operation.apply([made.batches])
            missing += made.due - _rows(made.batches)
        return Made(made.batches, _rows(made.batches) + missing)


@dataclass(frozen=True)
class Between:
    """Keep the rows of a span of time."""

    column: str
    start_us: int | None
    end_us: int | None

    def reads(self, wanted: frozenset[str]) -> frozenset[str]:
        """Return the columns that it uses, of which some are wanted."""
        return wanted | {self.column}

    def apply(self, inputs: Sequence[Batches]) -> Made:
        """Return the step's output."""
        return _choose(inputs[0], lambda batch: self._mask(batch.column(self.column)))

    def _mask(self, column: pa.Array) -> pa.Array:
        ticks = pc.cast(column, pa.int64())
        mask = pc.is_valid(ticks)
        if self.start_us is not None:
            mask = pc.and_kleene(mask, pc.greater_equal(ticks, self.start_us))
        if self.end_us is not None:
            mask = pc.and_kleene(mask, pc.less(ticks, self.end_us))
        return mask


@dataclass(frozen=True)
class Latest:
    """Of each batch the time of its latest row, or nothing."""

    column: str
    schema: pa.Schema
    is_silent: bool

    def apply(self, inputs: Sequence[Batches]) -> Made:
        """Return the step's output."""
        if self.is_silent:
            return Made([], 0)
        found = [
            pc.max(batch.column(self.column).cast(pa.int64())) for batch in inputs[0]
        ]  # ticks: no datetime has all
        arrays = [pa.array([latest.as_py()], pa.int64()) for latest in found if latest.is_valid]
        made = [pa.RecordBatch.from_arrays([one.cast(self.schema.field(0).type)], schema=self.schema) for one in arrays]
        return Made(made, len(arrays))


@dataclass(frozen=True)
class Unite:
    """Put the rows of several streams together, by column name."""

    schema: pa.Schema

    def apply(self, inputs: Sequence[Batches]) -> Made:
        """Return the step's output."""
        made = [
            pa.RecordBatch.from_arrays([_column_of(batch, field) for field in self.schema], schema=self.schema)
            for batches in inputs
            for batch in batches
        ]
        return Made(made, _rows(*inputs))


def _column_of(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    there = field.name in batch.schema.names
    return fitted_column(batch.column(field.name), field.type) if there else pa.nulls(batch.num_rows, field.type)


@dataclass(frozen=True)
class Call:
    """Call a user's function."""

    function: BatchFunction

    def apply(self, inputs: Sequence[Batches]) -> Made:
        """Return the step's output."""
        made, due = [], 0
        for batch in inputs[0]:
            if batch.num_rows:
                for result in self.function.apply(batch):
                    due += result.num_rows
                    made.append(result)
        return Made(made, due)


@dataclass(frozen=True)
class WithoutRejects:
    """The rows of a source that could be read."""

    def apply(self, inputs: Sequence[Batches]) -> Made:
        """Return the step's output."""
        good = _choose(inputs[0], lambda batch: pc.is_null(batch.column(REJECT_COLUMN)))
        return Made([batch.drop_columns([REJECT_COLUMN]) for batch in good.batches], good.due)


@dataclass(frozen=True)
class Bad:
    """The rows of a source that could not."""

    def apply(self, inputs: Sequence[Batches]) -> Made:
        """Return the step's output."""
        bad = _choose(inputs[0], lambda batch: pc.is_valid(batch.column(REJECT_COLUMN)))
        rows = [
            pa.RecordBatch.from_struct_array(batch.column(REJECT_COLUMN)) for batch in bad.batches if batch.num_rows
        ]
        return Made(rows, bad.due)
