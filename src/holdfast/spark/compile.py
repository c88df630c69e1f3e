"""A graph as one Spark plan: the rows of every sink, tagged, in one streaming frame.

A branch that shares nothing is compiled operator by operator.  Sinks whose streams share a prefix are
compiled together into one wide frame (:mod:`holdfast.spark.fanout`), so that the prefix is computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from holdfast.errors import REPORT, InternalError, InvalidPipeline, invariant
from holdfast.graph.graph import Graph
from holdfast.graph.nodes import Node
from holdfast.operators.lowering import InSpark, entry_of
from holdfast.plan.batches import BatchFunction, BranchFunction, promise_of
from holdfast.plan.feeds import Unchanged
from holdfast.plan.lookup_operation import LookUpFunction, look_up_of
from holdfast.plan.routes import PASSING, STEP, TAG, Routes, column_name, end_column_name, struct_name
from holdfast.plan.stages import SparkPart
from holdfast.spark import apply, private
from holdfast.spark.compile_steps import CompileStep, Steps, explained_at, steps_of
from holdfast.spark.fanout import WideFrame
from holdfast.spark.plans.named import with_named_udfs

RowWise = Callable[[Any, DataFrame], DataFrame]
"""What a declaration makes of a frame: a projection, a filter, or both."""

_MAY_READ_TWICE = (InSpark.FUNCTION, InSpark.SQL)
"""Operators that are given their input under a name, and can use it more than once."""

_BOUNDS_MAY_PASS = (InSpark.FUNCTION, InSpark.SELECT, InSpark.SQL)
"""Operators whose plan shows, alone or in part, what happens to the timestamp."""


@dataclass(frozen=True)
class Compiled:
    """A pipeline as Spark will run it.

    Parameters
    ----------
    frame : DataFrame
        All rows of all sinks; tagged when there are several sinks.
    routes : Routes
        How to tell them apart, with each sink's schema.
    analysis : mapping of str to Unchanged
        Of a first stage: operator that may let bounds pass -> which columns it leaves as they are.
    """

    frame: DataFrame
    routes: Routes
    analysis: Mapping[str, Unchanged] = field(default_factory=dict)


def compile_pipeline(pipeline: Graph | SparkPart, read: Callable[[Node], DataFrame], token: str) -> Compiled:
    """Return the pipeline as one frame.

    Parameters
    ----------
    pipeline : Graph
        The checked graph.
    read : callable
        Returns the streaming frame of a source node, with the hidden reject column where it has rejects.
    token : str
        Unique for the run.

    Raises
    ------
    InvalidPipeline
        If Spark cannot resolve an operator (the message names node, line and Spark's reason), or an operator
        downstream of a fan-out is neither a filter nor a projection nor ``map_batches``.
    """
    steps = steps_of(pipeline)
    compiler = _Compiler(steps, read, token, analyses=isinstance(pipeline, SparkPart))
    frames = compiler.sink_frames()
    schemas = [_schema(frame.schema) for _, frame in sorted(frames.items())]
    routes = Routes(tuple(sink.name for sink in pipeline.sinks), tuple(schemas))
    return Compiled(compiler.united(frames), routes, compiler.analysis)


def compile_opened(
    part: SparkPart, opened: DataFrame, kept: Sequence[str], token: str
) -> tuple[DataFrame, tuple[StructType, ...], Mapping[str, Unchanged]]:
    """Return what Spark's plan makes of rows that were opened between two levels.

    Parameters
    ----------
    part : SparkPart
        A subplan: with heads.
    opened : DataFrame
        Rows of all heads in one frame, each with the number of its head for a tag; rows of none pass unchanged.
    kept : sequence of str
        Further columns of the frame, which each row keeps; the first is null in those that have a tag.
    token : str
        Unique for the run.

    Raises
    ------
    InvalidPipeline
        If Spark cannot resolve an operator, or it does more than can be told apart from the rows of other branches.

    Returns
    -------
    (DataFrame, tuple of StructType, mapping of str to Unchanged)
        The number of the end that a row is for, where there are several; the columns that are kept; and the columns of
        each end (:func:`~holdfast.plan.routes.end_column_name`), which are set in its rows.  Names and types of each
        end's columns.  Operator -> what it leaves as it was.
    """
    compiler = _Compiler(steps_of(part), _not_read, token, analyses=True)
    frame, ends = _WideCompiler(compiler, range(len(part.sinks))).behind(part, opened, kept)
    return frame, ends, compiler.analysis


def _not_read(node: Node) -> DataFrame:
    raise InternalError(f"{node.kind} {node.name!r} is read between two levels.", why="its rows are there.", do=REPORT)


class _Compiler:
    def __init__(self, steps: Steps, read: Callable[[Node], DataFrame], token: str, *, analyses: bool) -> None:
        self.analysis: dict[str, Unchanged] = {}
        self._analyses = analyses
        self._steps = steps
        self._read = read
        self._token = token
        self._plain: dict[CompileStep, DataFrame] = {}
        self._consumers: dict[CompileStep, list[CompileStep | int]] = {step: [] for step in steps.steps}
        for step in steps.steps:
            for before in step.inputs:
                self._consumers[before].append(step)
        for sink, end in enumerate(steps.ends):
            self._consumers[end].append(sink)

    def sink_frames(self) -> dict[int, DataFrame]:
        """Return, for every sink, a frame with its rows; the frames of one wide group are views of one frame."""
        frames: dict[int, DataFrame] = {}
        self._groups: list[tuple[tuple[int, ...], DataFrame]] = []
        alone = [sink for sink, end in enumerate(self._steps.ends) if not self._is_shared(end)]
        for sink in alone:
            frames[sink] = self._frame(self._steps.ends[sink])
        for group in self._shared_groups(set(range(len(self._steps.ends))) - set(alone)):
            wide = self._wide(group)
            self._groups.append((tuple(group), wide))
            for sink in group:
                frames[sink] = wide.select(f"{struct_name(sink)}.*")
        return frames

    def united(self, frames: dict[int, DataFrame]) -> DataFrame:
        """Return all rows of all sinks in one frame, tagged where there are several sinks."""
        if len(frames) == 1:
            grouped = [wide.filter(F.col(TAG) == 0).select(f"{struct_name(0)}.*") for _, wide in self._groups]
            return grouped[0] if grouped else frames[0]
        grouped_sinks = {sink for group, _ in self._groups for sink in group}
        tagged = [wide for _, wide in self._groups]
        for sink, frame in frames.items():
            if sink not in grouped_sinks:
                row = _row(frame, {name: name for name in frame.columns}).alias(struct_name(sink))
                tagged.append(frame.select(F.lit(sink).alias(TAG), row))
        united = tagged[0]
        for other in tagged[1:]:
            united = united.unionByName(other, allowMissingColumns=True)
        return united.select(TAG, *[struct_name(sink) for sink in range(len(frames))])

    # --- branches of their own ----------------------------------------------------------------------

    def _is_shared(self, step: CompileStep) -> bool:
        return len(self._consumers[step]) > 1 or any(self._is_shared(before) for before in step.inputs)

    def _frame(self, step: CompileStep) -> DataFrame:
        if step not in self._plain:
            inputs = [self._frame(before) for before in step.inputs]
            self._plain[step] = self._applied(step, inputs)
        return self._plain[step]

    def _applied(self, step: CompileStep, inputs: Sequence[DataFrame]) -> DataFrame:
        with explained_at(step):
            return _lowered(step).alone(self, step, inputs)

    def _made(self, step: CompileStep, before: DataFrame, apply_to: RowWise) -> DataFrame:
        """Return what a row-wise operator makes of a frame; note what it leaves as it was, where bounds may pass it."""
        made = apply_to(step.node.spec, before)
        if step.way in _MAY_READ_TWICE and apply.streams_read(made) > apply.streams_read(before):
            raise InvalidPipeline(
                f"{step.title} reads its input more than once, or another stream.",
                why="each source is read once in an epoch, whatever uses its rows.",
                do="unite streams with hf.union, join them with hf.merge or hf.sync, or give several rows for one with "
                "explode.",
                participant=step.node.name,
            )
        if self._analyses and step.way in _BOUNDS_MAY_PASS:
            self.analysis[step.node.name] = apply.unchanged(before, made)
        return distinct(with_named_udfs(before, made, step.title, step.node.name), step.title)

    def _expect(self, step: CompileStep, inputs: Sequence[DataFrame]) -> DataFrame:
        marked = self._made(step, inputs[0], apply.marked_unmet)
        return apply.counted_unmet(marked, step.node, F.lit(True), F.col(f"`{marked.columns[-1]}`")).drop(
            marked.columns[-1]
        )

    def _batches(self, step: CompileStep, inputs: Sequence[DataFrame]) -> DataFrame:
        function = self._batch_function(step, inputs[0].schema)
        return inputs[0].mapInArrow(function, private.spark_schema(function.schema))

    def _batch_function(self, step: CompileStep, before: StructType) -> BatchFunction | LookUpFunction:
        spec: Any = step.node.spec
        if step.way is InSpark.LOOKED_UP:
            return LookUpFunction(look_up_of(step.node, _schema(before), self._token, as_spark_has_it))
        schema = private.arrow_schema(private.spark_schema(spec.output(_schema(before))))
        token = f"{self._token}/{step.number}"
        return BatchFunction(spec.fn, spec.setup, schema, step.node.name, token, promise_of(step.node))

    # --- branches that share a prefix ---------------------------------------------------------------

    def _shared_groups(self, sinks: set[int]) -> list[list[int]]:
        """Return the sinks in groups that have a step in common."""
        groups: list[tuple[set[int], set[CompileStep]]] = []
        for sink in sorted(sinks):
            members, needed = {sink}, set(self._needed([sink]))
            for other in [group for group in groups if group[1] & needed]:
                members |= other[0]
                needed |= other[1]
                groups.remove(other)
            groups.append((members, needed))
        return [sorted(members) for members, _ in groups]

    def _needed(self, sinks: Sequence[int]) -> list[CompileStep]:
        wanted = {self._steps.ends[sink] for sink in sinks}
        for step in reversed(self._steps.steps):
            if step in wanted:
                wanted.update(step.inputs)
        return [step for step in self._steps.steps if step in wanted]

    def _wide(self, sinks: Sequence[int]) -> DataFrame:
        """Return the tagged rows of sinks that share a prefix."""
        return _WideCompiler(self, sinks).compiled()


class _WideCompiler:
    """Compiles one group of sinks into one wide frame.  Tags are step numbers, then numbers of branches."""

    def __init__(self, parent: _Compiler, sinks: Sequence[int]) -> None:
        self._parent = parent
        self._sinks = sinks
        self._needed = parent._needed(sinks)
        self._next_tag = max(step.number for step in parent._steps.steps) + 1
        self._columns: dict[CompileStep, list[tuple[str, str]]] = {}
        self._tag: dict[CompileStep, int] = {}
        self._branch: dict[tuple[CompileStep, int], int] = {}
        """(step, ordinal of the consumer) -> tag of the rows for it."""
        self._taken: dict[CompileStep, int] = {}
        self._sink_step: dict[int, int] = {}
        """Sink -> tag of the rows for it."""

    def compiled(self) -> DataFrame:
        heads = [step for step in self._needed if self._is_head(step)]
        for head in heads:
            frame = self._parent._frame(head)
            self._tag[head] = head.number
            self._columns[head] = [(name, column_name(head.number, i)) for i, name in enumerate(frame.columns)]
        self._wide = WideFrame.of([(head.number, self._parent._frame(head)) for head in heads])
        self._grow(heads)
        return self._finish()

    def behind(
        self, part: SparkPart, opened: DataFrame, kept: Sequence[str]
    ) -> tuple[DataFrame, tuple[StructType, ...]]:
        """Return the same of rows that stand in one frame from the beginning, beside columns that they keep."""
        heads = [step for step in self._needed if not step.inputs]
        for head in heads:
            self._tag[head] = head.number
            names = part.heads[head.node].names
            self._columns[head] = [(name, column_name(head.number, i)) for i, name in enumerate(names)]
        tags = [PASSING, *(head.number for head in heads)]
        only = F.col(kept[0]).isNull() if len(heads) == 1 else None
        self._wide = WideFrame(opened, tags, "between two operators with state", only)
        self._grow(heads)
        return self._side_by_side(kept)

    def _grow(self, heads: Sequence[CompileStep]) -> None:
        for step in self._needed:
            if step in heads:
                self._fan_out(step)
            elif self._parent._is_shared(step) or any(before in self._tag for before in step.inputs):
                with explained_at(step):
                    self._add(step)
                self._fan_out(step)
        self._sink_step = {sink: self._input_tag(self._end(sink), sink) for sink in self._sinks}

    def _is_head(self, step: CompileStep) -> bool:
        if any(self._parent._is_shared(before) for before in step.inputs):
            return False
        consumers = self._parent._consumers[step]
        if len(consumers) > 1:
            return True
        # A branch of its own that flows into a step which another input shares.
        return not isinstance(consumers[0], int) and any(self._parent._is_shared(b) for b in consumers[0].inputs)

    def _fan_out(self, step: CompileStep) -> None:
        consumers = self._parent._consumers[step]
        if len(consumers) == 1:
            self._branch[step, 0] = self._tag[step]
            return
        tags = [self._new_tag() for _ in consumers]
        self._wide.multiply(self._tag[step], tags)
        for ordinal, tag in enumerate(tags):
            self._branch[step, ordinal] = tag

    def _new_tag(self) -> int:
        self._next_tag += 1
        return self._next_tag

    def _input_tag(self, step: CompileStep, consumer: CompileStep | int) -> int:
        """Return the tag of the rows that flow from ``step`` to a consumer; each branch is taken once."""
        ordinals = [
            i for i, other in enumerate(self._parent._consumers[step]) if other is consumer or other == consumer
        ]
        taken = self._taken.get(step, 0) if len(ordinals) > 1 else 0
        invariant(
            taken < len(ordinals),
            f"{step.title} has {len(ordinals)} branches to a consumer, and {taken + 1} are taken.",
            why="each branch is taken once: its rows would be in a sink twice.",
        )
        self._taken[step] = taken + 1
        return self._branch[step, ordinals[taken]]

    def _add(self, step: CompileStep) -> None:
        tags = [self._input_tag(before, step) for before in step.inputs]
        add = _lowered(step).wide
        if add is None:
            raise InternalError(
                f"{step.title} is downstream of a fan-out.", why=f"{step.way.name} has no form there.", do=REPORT
            )
        add(self, step, tags)

    def _add_union(self, step: CompileStep, tags: list[int]) -> None:
        into = self._new_tag()
        self._columns[step] = self._wide.merge(tags, [self._columns[before] for before in step.inputs], into)
        self._tag[step] = into

    def _add_rowwise(self, step: CompileStep, tags: list[int], apply_to: RowWise) -> None:
        (tag,), (before,) = tags, step.inputs
        self._tag[step] = tag
        proxy = self._wide.proxy(self._columns[before])
        applied = self._parent._made(step, proxy, apply_to)
        self._columns[step] = self._wide.graft(tag, proxy, applied, self._new_tag(), step)

    def _add_expected(self, step: CompileStep, tags: list[int]) -> None:
        self._add_rowwise(step, tags, apply.marked_unmet)
        *kept, (_, mark) = self._columns[step]
        self._columns[step] = kept
        self._wide.frame = apply.counted_unmet(self._wide.frame, step.node, F.col(STEP) == tags[0], F.col(mark))

    def _add_batches(self, step: CompileStep, tags: list[int]) -> None:
        (tag,), (before,) = tags, step.inputs
        self._tag[step] = tag
        inputs = self._columns[before]
        given = StructType([StructField(name, self._wide.frame.schema[wide].dataType) for name, wide in inputs])
        function = self._parent._batch_function(step, given)
        into = self._new_tag()
        outputs = [(name, column_name(into, i)) for i, name in enumerate(function.schema.names)]
        declared = private.spark_schema(function.schema).fields
        frame = self._wide.frame
        schema = StructType(
            [StructField(f.name, f.dataType, nullable=True) for f in frame.schema.fields]
            + [StructField(wide, f.dataType, nullable=True) for (_, wide), f in zip(outputs, declared, strict=True)]
        )
        arrow_schema = private.arrow_schema(schema)
        branch = BranchFunction(function, tag, tuple(inputs), tuple(wide for _, wide in outputs), arrow_schema)
        self._wide.frame = frame.mapInArrow(branch, schema)
        self._columns[step] = outputs

    def _finish(self) -> DataFrame:
        """Return the rows with the tags of sinks, and one struct for each sink."""
        structs = []
        for sink in self._sinks:
            row = _row(self._wide.frame, dict(self._columns[self._end(sink)]))
            structs.append(F.when(self._is_for(sink), row).alias(struct_name(sink)))
        return self._wide.frame.select(self._sink_tag(), *structs)

    def _side_by_side(self, kept: Sequence[str]) -> tuple[DataFrame, tuple[StructType, ...]]:
        """Return the rows with columns that are kept, and with those of all sinks; and what these columns are."""
        types = {field.name: field.dataType for field in self._wide.frame.schema}
        columns, ends = [], []
        for sink in self._sinks:
            named = self._columns[self._end(sink)]
            end = StructType([StructField(name, _nullable(types[wide]), nullable=True) for name, wide in named])
            for index, ((_, wide), of) in enumerate(zip(named, end, strict=True)):
                column = F.col(wide) if types[wide] == of.dataType else F.col(wide).cast(of.dataType)
                columns.append(column.alias(end_column_name(sink, index)))
            ends.append(end)
        tag = [self._sink_tag()] if len(ends) > 1 else []
        return self._wide.frame.select(*tag, *kept, *columns), tuple(ends)

    def _sink_tag(self) -> Column:
        tag = None
        for sink in self._sinks:
            tag = F.when(self._is_for(sink), F.lit(sink)) if tag is None else tag.when(self._is_for(sink), F.lit(sink))
        assert tag is not None
        return tag.alias(TAG)

    def _is_for(self, sink: int) -> Column:
        return F.col(STEP) == self._sink_step[sink]

    def _end(self, sink: int) -> CompileStep:
        return self._parent._steps.ends[sink]


# --- each way that an operator is done ------------------------------------------------------------------


@dataclass(frozen=True)
class _Lowered:
    """One way, in both forms of a plan.

    Parameters
    ----------
    alone : callable
        Returns the frame that it makes of the frames of its inputs.
    wide : callable, optional
        Adds it to a frame that several branches share; None where it is never downstream of a fan-out.
    """

    alone: Callable[[_Compiler, CompileStep, Sequence[DataFrame]], DataFrame]
    wide: Callable[[_WideCompiler, CompileStep, list[int]], None] | None = None


def _rowwise(apply_to: RowWise) -> _Lowered:
    return _Lowered(
        lambda compiler, step, inputs: compiler._made(step, inputs[0], apply_to),
        lambda compiler, step, tags: compiler._add_rowwise(step, tags, apply_to),
    )


def _hosted(compiler: _Compiler, step: CompileStep, inputs: Sequence[DataFrame]) -> DataFrame:
    raise InternalError(
        f"{step.title} is not part of a Spark plan.",
        why="what keeps state runs in a level, and what is downstream of it in the level's worker.",
        do=REPORT,
        participant=step.node.name,
    )


WAYS: Mapping[InSpark, _Lowered] = {
    InSpark.READ: _Lowered(lambda compiler, step, inputs: compiler._read(step.node)),
    InSpark.READABLE: _rowwise(apply.readable),
    InSpark.REJECTS: _rowwise(apply.rejected),
    InSpark.BOUND_ROWS: _rowwise(apply.bound_rows),
    InSpark.FUNCTION: _rowwise(apply.transformed),
    InSpark.SELECT: _rowwise(apply.selected),
    InSpark.FILTER: _rowwise(apply.filtered),
    InSpark.EXPECT: _Lowered(_Compiler._expect, _WideCompiler._add_expected),
    InSpark.IDENTIFIED: _rowwise(apply.identified),
    InSpark.SPAN: _rowwise(apply.clipped),
    InSpark.SQL: _rowwise(apply.queried),
    InSpark.BATCHES: _Lowered(_Compiler._batches, _WideCompiler._add_batches),
    InSpark.LOOKED_UP: _Lowered(_Compiler._batches, _WideCompiler._add_batches),
    InSpark.UNION: _Lowered(
        lambda compiler, step, inputs: distinct(apply.united(inputs, step.node.spec), step.title),
        _WideCompiler._add_union,
    ),
    InSpark.HOSTED: _Lowered(_hosted),
}
"""How Spark does an operator -> its frame, alone and among branches that share one."""


def _lowered(step: CompileStep) -> _Lowered:
    return entry_of(WAYS, step.way, "holdfast/spark/compile.py")


def distinct(frame: DataFrame, title: str) -> DataFrame:
    """Return the frame; raise if two of its columns have one name, which no sink could tell apart."""
    names = [name.lower() for name in frame.columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidPipeline(
            f"{title} gives two columns of the name {twice[0]!r}.",
            why="a sink could not distinguish them (Spark does not distinguish upper from lower case).",
            do="give one of them another name, or drop it.",
        )
    return frame


def _row(frame: DataFrame, columns: dict[str, str]) -> Column:
    """Return a row as a struct whose fields may all be null: where the row is for another sink, the struct is null."""
    types = {field.name: field.dataType for field in frame.schema}
    fields = [StructField(name, _nullable(types[wide]), nullable=True) for name, wide in columns.items()]
    return F.struct(*[F.col(f"`{wide}`").alias(name) for name, wide in columns.items()]).cast(StructType(fields))


def _nullable(kind: DataType) -> DataType:
    """Return a type in which every member of a struct may be null, however deep."""
    if isinstance(kind, StructType):
        return StructType([StructField(f.name, _nullable(f.dataType), nullable=True) for f in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType), kind.containsNull)
    if isinstance(kind, MapType):
        return MapType(kind.keyType, _nullable(kind.valueType), kind.valueContainsNull)
    return kind


def _schema(spark_schema: StructType) -> pa.Schema:
    """Return the Arrow schema of a sink's rows as they leave Spark."""
    return private.arrow_schema(spark_schema)


def as_spark_has_it(schema: pa.Schema) -> pa.Schema:
    """Return an Arrow schema as it comes back from Spark (names inside lists, for instance)."""
    return private.arrow_schema(private.spark_schema(schema))
