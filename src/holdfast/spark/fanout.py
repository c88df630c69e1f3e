"""Several consumers of one stream in one pass: a linear plan in which each row knows its branch.

A *wide* frame holds the rows of many steps at once.  Each row has a tag that says which step's row it is, and
only that step's columns are set.  Where a stream fans out, rows are multiplied (``explode`` of tags) *after* the
shared prefix; after that every operator of a branch is written as guarded expressions on the same frame::

    filter c       ->  filter (tag <> t OR c)
    project e AS x ->  x = CASE WHEN tag = t THEN e END
    explode a AS x ->  x = explode_outer(CASE WHEN tag = t THEN a END), for the rows of t where a is not empty
    join s ON c    ->  left outer join broadcast s ON tag = t AND c, for the rows of t where it has found one

So the prefix is computed once, in one task, and even a random value is the same for every sink: no cache, no second
scan, and no lost executor can make two sinks see two values.

The guarded expressions are the operator's own: it is applied to a proxy frame, and the projections, filters,
generators and joins with static tables that it added to the analysed plan are grafted onto the wide one.  Its Python
UDFs are told which rows are theirs (:mod:`holdfast.spark.plans.guarded`).  An operator that adds anything else is
refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.errors import InvalidPipeline
from holdfast.plan.routes import STEP, column_name
from holdfast.spark import private
from holdfast.spark.compile_steps import CompileStep
from holdfast.spark.plans import catalyst
from holdfast.spark.plans.guarded import guarded_udf
from holdfast.spark.plans.lookups import Lookup, lookup_of


class WideFrame:
    """The rows of several steps in one frame; grows by one step at a time.

    Columns of step ``n`` are named ``c<n>_<i>``: unique, whatever names users choose.
    """

    def __init__(
        self, frame: DataFrame, tags: list[int], where: str = "downstream of a fan-out", only: Column | None = None
    ) -> None:
        """Begin with a frame.

        Parameters
        ----------
        frame : DataFrame
            Its rows.
        tags : list of int
            All tags in it.
        where : str
            Where the frame is, for errors.
        only : Column, optional
            What is true of rows of the last tag, where there is a simpler condition while there is no other branch.
        """
        self.frame = frame
        self._only = only
        self._session: SparkSession = frame.sparkSession
        self._only_tag = tags[0] if len(tags) == 1 else None
        self._where = where
        self._generated = 0

    @staticmethod
    def of(heads: list[tuple[int, DataFrame]]) -> WideFrame:
        """Unite frames of their own, each under its tag."""
        renamed = []
        for tag, frame in heads:
            names = [column_name(tag, i) for i in range(len(frame.columns))]
            renamed.append(frame.toDF(*names).select(F.lit(tag).alias(STEP), *names))
        united = renamed[0]
        for other in renamed[1:]:
            united = united.unionByName(other, allowMissingColumns=True)
        return WideFrame(united, [tag for tag, _ in heads])

    def proxy(self, columns: list[tuple[str, str]]) -> DataFrame:
        """Return a frame with some columns under the names that users know: what an operator is applied to."""
        return self.frame.select(*[F.col(wide).alias(name) for name, wide in columns])

    def multiply(self, tag: int, branches: list[int]) -> None:
        """Turn every row of ``tag`` into one row for each branch."""
        tags = F.array(*[F.lit(branch) for branch in branches])
        if self._only_tag != tag:
            tags = F.when(self._is(tag), tags).otherwise(F.array(F.col(STEP)))
        # NB: while there is one tag only, the generator must not mention the step.  Spark 4.3 folds the constant away
        # after it has noted, by index, which columns the generator alone needs, and then drops the wrong one.
        self._only_tag = self._only = None
        others = [name for name in self.frame.columns if name != STEP]
        self.frame = self.frame.select(F.explode(tags).alias(STEP), *others)

    def merge(self, tags: list[int], columns: list[list[tuple[str, str]]], into: int) -> list[tuple[str, str]]:
        """Turn the rows of several tags into rows of one step, columns in the order of the first; missing are null."""
        merged = []
        self._only = None
        names = list(dict.fromkeys(name for named in columns for name, _ in named))
        for position, name in enumerate(names):
            value: Column | None = None
            for tag, named in zip(tags, columns, strict=True):
                wide = dict(named).get(name)
                if wide is None:
                    continue
                mine = F.col(wide)
                condition = F.col(STEP) == tag
                value = F.when(condition, mine) if value is None else value.when(condition, mine)
            assert value is not None
            merged.append((name, column_name(into, position), value))
        step = F.when(F.col(STEP).isin(*tags), F.lit(into)).otherwise(F.col(STEP)).alias(STEP)
        others = [name for name in self.frame.columns if name != STEP]
        self.frame = self.frame.select(step, *others, *[value.alias(wide) for _, wide, value in merged])
        return [(name, wide) for name, wide, _ in merged]

    def graft(
        self, tag: int, proxy: DataFrame, applied: DataFrame, into: int, step: CompileStep
    ) -> list[tuple[str, str]]:
        """Write what an operator did to the proxy as guarded expressions on this frame.

        Parameters
        ----------
        tag : int
            The rows that the operator takes.
        proxy, applied : DataFrame
            Its input, and its result.
        into : int
            Number of the step, for the names of its columns.
        step : CompileStep
            The operator, for errors.

        Raises
        ------
        InvalidPipeline
            If the operator is more than filters, projections, generators and joins with static tables.
        """
        layers = self._layers(private.analyzed(proxy), catalyst.inlined(applied), step)
        before = self.frame.columns
        for layer in layers:
            kind = "Join" if isinstance(layer, Lookup) else private.kind_of(layer)
            if kind == "Join":
                self._look_up(tag, layer, step)
            elif kind == "Filter":
                self.frame = self.frame.filter(~self._is(tag) | self._column(tag, layer.condition(), step))
            elif kind == "Generate":
                self._generate(tag, layer, step)
            else:
                self._project(tag, layer.projectList(), step)
        output = private.listed(private.analyzed(applied).output())
        names = [(name, column_name(into, i)) for i, name in enumerate(applied.columns)]
        columns = [private.column_of(self._session, output[i]).alias(wide) for i, (_, wide) in enumerate(names)]
        self.frame = self.frame.select(*before, *columns)
        return names

    def _layers(self, base: Any, plan: Any, step: CompileStep) -> list[Any]:
        """Return the projections, filters, generators and look-ups above ``base``, lowest first."""
        layers: list[Any] = []
        while not plan.equals(base):
            kind = private.kind_of(plan)
            if kind == "Join" and (found := lookup_of(plan, base)) is not None:
                plan, lookup = found
                layers.append(lookup)
                continue
            if kind not in ("Project", "Filter", "Generate", *private.TRANSPARENT):
                raise self._not_row_wise(step, kind)
            if kind not in private.TRANSPARENT:
                layers.append(plan)
            plan = plan.child()
        return [base, *reversed(layers)]

    def _project(self, tag: int, expressions: Any, step: CompileStep) -> None:
        """Add the new columns of a projection, with the identities that later layers refer to them by."""
        added: list[Column] = []
        for named in private.listed(expressions):
            if private.kind_of(named) != "Alias":
                continue  # a column that is there already
            value = named.child()
            # A column that is only renamed can be seen to be the same one, and raises nothing for any row.
            if private.kind_of(value) != "AttributeReference":
                value = self._resolved(F.when(self._is(tag), self._column(tag, value, step)))
            added.append(private.alias_of(self._session, value, named))
        if added:
            self.frame = self.frame.select("*", *added)

    def _look_up(self, tag: int, lookup: Lookup, step: CompileStep) -> None:
        """Join rows with a static table; the column that says which have found a row in it is dropped with the rest."""
        self._generated += 1
        condition = None if lookup.condition is None else self._column(tag, lookup.condition, step)
        self.frame = lookup.joined(self.frame, self._is(tag), condition, f"g{self._generated}")

    def _generate(self, tag: int, layer: Any, step: CompileStep) -> None:
        """Let rows become several, or none; a row of another step stays one, with nothing in the new columns."""
        generator = layer.generator()
        kind = private.kind_of(generator)
        if kind not in _GENERATORS:
            raise self._not_row_wise(step, f"the generator {kind}")
        self._generated += 1
        name = f"g{self._generated}"
        children = [self._column(tag, child, step) for child in private.listed(generator.children())]
        given = F.array(*_stacked(generator, children)) if kind == "Stack" else children[0]
        self.frame = self.frame.select("*", F.when(self._is(tag), given).alias(name))
        if kind not in _OF_ONE_ROW and not layer.outer():
            self.frame = self.frame.filter(~self._is(tag) | (F.size(name) > 0))
        made_by = _GENERATORS[kind](F.col(name), children[1:])
        output = private.listed(layer.generatorOutput())
        names = [f"{name}_{index}" for index in range(len(output))]
        self.frame = self.frame.select("*", made_by.alias(*names))
        made = [self._resolved(F.col(each)) for each in names]
        columns = [catalyst.renamed(self._session, each, like) for each, like in zip(made, output, strict=True)]
        self.frame = self.frame.select("*", *columns)

    def _column(self, tag: int, expression: Any, step: CompileStep) -> Column:
        """Return an operator's expression; a Python UDF in it is called for the rows of its step only."""
        if private.calls_python(self._session, expression):
            guard = self._resolved(self._is(tag))

            def rewrite(function: Any, eval_type: int, returned: Any) -> Any:
                return guarded_udf(function, eval_type, returned, step.title.rstrip(","), step.node.name)

            expression = catalyst.with_guard(self._session, expression, guard, rewrite)
        return private.column_of(self._session, expression)

    def _is(self, tag: int) -> Column:
        return F.col(STEP) == tag if self._only is None else self._only

    def _resolved(self, column: Column) -> Any:
        plan = private.analyzed(self.frame.select(column.alias("resolved")))
        return private.listed(plan.projectList())[0].child()

    def _not_row_wise(self, step: CompileStep, found: str) -> InvalidPipeline:
        return InvalidPipeline(
            f"{step.node.kind} {step.node.name!r} is {self._where} and is more than a filter or a projection: "
            f"it adds {found}.",
            why="the rows of all branches go through one plan, so that what they share is computed once; only filters, "
            "projections, generators (explode, inline, stack, json_tuple), joins with static tables and map_batches "
            "can be made to ignore the other branches' rows.  Where there is state, the bound rows of a source are a "
            "branch of it, and so are its timestamps "
            'with commit_at="pts".',
            do="move it before the point where the stream is used twice, or before the state, or write it as "
            "map_batches, or give this branch a pipeline of its own.",
            participant=step.node.name,
        )


_GENERATORS: Mapping[str, Callable[[Column, list[Column]], Column]] = {
    "Explode": lambda given, _: F.explode_outer(given),
    "PosExplode": lambda given, _: F.posexplode_outer(given),
    "Inline": lambda given, _: F.inline_outer(given),
    "Stack": lambda given, _: F.inline_outer(given),
    "JsonTuple": lambda given, names: F.call_function("json_tuple", given, *names),
}
"""Catalyst's generators -> one that leaves a row as it is where it is given null; of that, and of other arguments."""

_OF_ONE_ROW = ("JsonTuple",)
"""Generators that give one row for every row."""


def _stacked(generator: Any, children: list[Column]) -> list[Column]:
    """Return the rows that a ``stack`` gives: its arguments in rows, the last one filled with nulls."""
    width = len(private.listed(generator.elementSchema()))
    values = children[1:]
    rows = [values[at : at + width] for at in range(0, len(values), width)]
    return [
        F.struct(*[(row[place] if place < len(row) else F.lit(None)).alias(f"col{place}") for place in range(width)])
        for row in rows
    ]
