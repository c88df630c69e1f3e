"""Several consumers of one stream in one pass: a linear plan in which each row knows its branch.

A *wide* frame holds the rows of many steps at once.  Each row has a tag that says which step's row it is, and
only that step's columns are set.  Where a stream fans out, rows are multiplied (``explode`` of tags) *after* the
shared prefix; after that every operator of a branch is written as guarded expressions on the same frame::

    filter c       ->  filter (tag <> t OR c)
    project e AS x ->  x = CASE WHEN tag = t THEN e END

So the prefix is computed once, in one task, and even a random value is the same for every sink: no cache, no second
scan, and no lost executor can make two sinks see two values.

The guarded expressions are the operator's own: it is applied to a proxy frame, and the projections and filters that it
added to the analysed plan are grafted onto the wide one.  An operator that adds anything else is refused.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.errors import InvalidPipeline
from holdfast.plan.routes import STEP
from holdfast.spark import private


class WideFrame:
    """The rows of several steps in one frame; grows by one step at a time.

    Columns of step ``n`` are named ``c<n>_<i>``: unique, whatever names users choose.
    """

    def __init__(self, frame: DataFrame, tags: list[int]) -> None:
        self.frame = frame
        self._session: SparkSession = frame.sparkSession
        self._only_tag = tags[0] if len(tags) == 1 else None

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
            tags = F.when(F.col(STEP) == tag, tags).otherwise(F.array(F.col(STEP)))
        # NB: while there is one tag only, the generator must not mention the step.  Spark 4.3 folds the constant away
        # after it has noted, by index, which columns the generator alone needs, and then drops the wrong one.
        self._only_tag = None
        others = [name for name in self.frame.columns if name != STEP]
        self.frame = self.frame.select(F.explode(tags).alias(STEP), *others)

    def merge(self, tags: list[int], columns: list[list[tuple[str, str]]], into: int) -> list[tuple[str, str]]:
        """Turn the rows of several tags into rows of one step, columns in the order of the first."""
        merged = []
        for position, (name, _) in enumerate(columns[0]):
            value: Column | None = None
            for tag, named in zip(tags, columns, strict=True):
                mine = F.col(dict(named)[name])
                condition = F.col(STEP) == tag
                value = F.when(condition, mine) if value is None else value.when(condition, mine)
            assert value is not None
            merged.append((name, column_name(into, position), value))
        step = F.when(F.col(STEP).isin(*tags), F.lit(into)).otherwise(F.col(STEP)).alias(STEP)
        others = [name for name in self.frame.columns if name != STEP]
        self.frame = self.frame.select(step, *others, *[value.alias(wide) for _, wide, value in merged])
        return [(name, wide) for name, wide, _ in merged]

    def graft(self, tag: int, proxy: DataFrame, applied: DataFrame, into: int, operator: str) -> list[tuple[str, str]]:
        """Write what an operator did to the proxy as guarded expressions on this frame.

        Parameters
        ----------
        tag : int
            The rows that the operator takes.
        proxy, applied : DataFrame
            Its input, and its result.
        into : int
            Number of the step, for the names of its columns.
        operator : str
            Kind and name, for the error.

        Raises
        ------
        InvalidPipeline
            If the operator is neither a filter nor a projection.
        """
        layers = self._layers(private.analyzed(proxy), private.analyzed(applied), operator)
        before = self.frame.columns
        for layer in layers:
            if private.kind_of(layer) == "Filter":
                self.frame = self.frame.filter(
                    (F.col(STEP) != tag) | private.column_of(self._session, layer.condition())
                )
            else:
                self._project(tag, layer.projectList())
        output = private.listed(private.analyzed(applied).output())
        names = [(name, column_name(into, i)) for i, name in enumerate(applied.columns)]
        columns = [private.column_of(self._session, output[i]).alias(wide) for i, (_, wide) in enumerate(names)]
        self.frame = self.frame.select(*before, *columns)
        return names

    def _layers(self, base: Any, plan: Any, operator: str) -> list[Any]:
        """Return the projections and filters above ``base``, lowest first, ``base`` itself included."""
        layers = []
        while not plan.equals(base):
            kind = private.kind_of(plan)
            if kind not in ("Project", "Filter", *private.TRANSPARENT):
                raise _not_row_wise(operator, kind)
            if kind not in private.TRANSPARENT:
                layers.append(plan)
            if private.has_python_function(self._session, plan):
                # It would be called, with nulls, on the rows of the other branches too.
                raise _not_row_wise(operator, "a Python UDF")
            plan = plan.child()
        return [base, *reversed(layers)]

    def _project(self, tag: int, expressions: Any) -> None:
        """Add the new columns of a projection, with the identities by which later layers refer to them."""
        added: list[Column] = []
        for named in private.listed(expressions):
            if private.kind_of(named) != "Alias":
                continue  # a column that is there already
            child = private.column_of(self._session, named.child())
            guarded = self._resolved(F.when(F.col(STEP) == tag, child))
            added.append(private.alias_of(self._session, guarded, named))
        if added:
            self.frame = self.frame.select("*", *added)

    def _resolved(self, column: Column) -> Any:
        plan = private.analyzed(self.frame.select(column.alias("resolved")))
        return private.listed(plan.projectList())[0].child()


def column_name(step: int, index: int) -> str:
    """Return the name of a step's column in the wide frame."""
    return f"c{step}_{index}"


def _not_row_wise(operator: str, found: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"{operator} is downstream of a fan-out and is more than a filter or a projection: it adds {found}.",
        why="the rows of all branches go through one plan, so that what they share is computed once; "
        "only filters, projections and map_batches can be made to ignore the other branches' rows.  Where there is "
        'state, the bound rows of a source are a branch of it, and so are its timestamps with commit_at="pts".',
        do="move it before the point where the stream is used twice, write it as map_batches, "
        "or give this branch a pipeline of its own.",
    )
