"""What of Catalyst is not public and is needed to rewrite a plan, beside what :mod:`holdfast.spark.private` has.

Each name says in which version it was seen, what it leans on, and what to do when that changes; it is tried by
``tests/spark/test_compile.py`` (every kind of function and generator) and ``tests/spark/test_behind_state.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession

from holdfast.errors import InvalidPipeline
from holdfast.spark import private
from holdfast.spark.spark_versions import running

BATCHED, ARROW_BATCHED, PANDAS, ARROW = 100, 101, 200, 250
"""How a Python UDF is called: once for each row, the same with rows sent as Arrow, with Series, with Arrow arrays.

Seen in 4.3, in ``pyspark.util.PythonEvalType``; written to the wire, so they stay.
"""

PANDAS_ITERATOR, ARROW_ITERATOR = 204, 251
"""Called once for all batches of a task: with an iterator of Series, of Arrow arrays.

Seen in 4.3, in ``pyspark.util.PythonEvalType``; written to the wire, so they stay.
"""

Rewrite = Callable[[Any, int, Any], Any]
"""Returns the function to be called in the place of a Python UDF's, given that, how it is called and what it gives."""


def with_guard(session: SparkSession, expression: Any, guard: Any, rewrite: Rewrite) -> Any:
    """Return an expression in which every Python UDF has one more argument, the first one, and another function.

    Parameters
    ----------
    session : SparkSession
        Of the plan.
    expression, guard : Expression
        What is rewritten, resolved; the new argument.
    rewrite : callable
        Gives the function that takes it.

    Raises
    ------
    InvalidPipeline
        If a UDF is larger than what Spark sends with a plan.

    Notes
    -----
    Seen in 4.3: ``PythonUDF``, its ``func`` with seven members as ``SimplePythonFunction`` takes them, and what
    ``pyspark.sql.udf.UserDefinedFunction._create_judf`` makes of them.  If they change: look there.
    """
    children = private.listed(expression.children())
    made = [with_guard(session, child, guard, rewrite) for child in children]
    if private.kind_of(expression) == "PythonUDF":
        return _python_udf(session, expression, [guard, *made], rewrite)
    if all(new is old for new, old in zip(made, children, strict=True)):
        return expression
    return expression.withNewChildren(_seq(session, made))


def with_functions(session: SparkSession, expression: Any, *, rewrite: Rewrite) -> Any:
    """Return an expression in which every Python UDF has another function; one that Spark broadcasts keeps its own.

    Notes
    -----
    Seen in 4.3: see :func:`with_guard`.
    """
    if not private.calls_python(session, expression):
        return expression
    children = private.listed(expression.children())
    made = [with_functions(session, child, rewrite=rewrite) for child in children]
    if private.kind_of(expression) == "PythonUDF" and isinstance(_function_of(session, expression), tuple):
        return _python_udf(session, expression, made, rewrite)
    return expression.withNewChildren(_seq(session, made))


def rewritten(frame: DataFrame, base: DataFrame, rewrite: Callable[[Any], Any]) -> DataFrame:
    """Return what was made of one frame, with other expressions in its projections and filters.

    Parameters
    ----------
    frame : DataFrame
        What was made of ``base``.
    base : DataFrame
        The frame, whose own plan stays as it is.
    rewrite : callable
        Returns an expression of a plan node, or another one of its type and identity.

    Notes
    -----
    Seen in 4.3: ``Project`` and ``Filter`` of ``catalyst.plans.logical``, with two arguments each.  If they change:
    leave the frame as it is; Spark's trace then stands for a function that fails.
    """
    session = frame.sparkSession
    bottom, plan = private.analyzed(base), private.analyzed(frame)
    chain = []
    while not plan.equals(bottom):
        children = private.children_of(plan)
        if len(children) != 1:
            return frame
        chain.append(plan)
        (plan,) = children
    logical = session._jvm.org.apache.spark.sql.catalyst.plans.logical
    is_same = True
    for node in reversed(chain):
        kind, made = private.kind_of(node), None
        if kind == "Project":
            old = private.listed(node.projectList())
            new = [rewrite(each) for each in old]
            if any(one is not other for one, other in zip(new, old, strict=True)):
                made = logical.Project(_seq(session, new), plan)
        elif kind == "Filter":
            condition = node.condition()
            if (other := rewrite(condition)) is not condition:
                made = logical.Filter(other, plan)
        is_same = is_same and made is None
        plan = made if made is not None else node if is_same else node.withNewChildren(_seq(session, [plan]))
    return frame if is_same else frame_of(session, plan)


def _function_of(session: SparkSession, udf: Any) -> Any:
    """Return what is sent of a Python UDF: function and type of its values; where Spark broadcasts it, no pair."""
    jvm: Any = session._jvm
    command = bytes(udf.func().command().toArray(jvm.scala.reflect.ClassTag.Byte()))
    return private.unpickled(command)


def _python_udf(session: SparkSession, udf: Any, arguments: Sequence[Any], rewrite: Rewrite) -> Any:
    jvm: Any = session._jvm
    given = udf.func()
    known = _function_of(session, udf)
    if not isinstance(known, tuple):
        raise InvalidPipeline(
            f"the Python UDF {udf.name()} is too large to be called for the rows of one branch only.",
            why="Spark broadcasts it, because with what it refers to it has more than a megabyte.",
            do="write it as map_batches, and load what it needs in setup=.",
        )
    function, returned = known
    packed = bytearray(private.pickled((rewrite(function, udf.evalType(), returned), returned)))
    simple = jvm.org.apache.spark.api.python.SimplePythonFunction(
        packed,
        given.envVars(),
        given.pythonIncludes(),
        given.pythonExec(),
        given.pythonVer(),
        given.broadcastVars(),
        given.accumulator(),
    )
    return jvm.org.apache.spark.sql.catalyst.expressions.PythonUDF(
        udf.name(),
        simple,
        udf.dataType(),
        _seq(session, arguments),
        udf.evalType(),
        udf.udfDeterministic(),
        udf.resultId(),
    )


def inlined(frame: DataFrame) -> Any:
    """Return a frame's analysed plan with the common table expressions of a statement put where they are used.

    Seen in 4.3: ``InlineCTE``, a rule of the optimizer, whose number of switches differs.  If it changes: leave plans
    as they are; statements that have such an expression are then refused downstream of a fan-out, and bounds end at
    them.
    """
    jvm: Any = frame.sparkSession._jvm
    rule = jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE(*running().inlining)
    return rule.apply(private.analyzed(frame))


def renamed(session: SparkSession, expression: Any, attribute: Any) -> Column:
    """Return an expression under the name and the identity of a column that a plan node gives.

    Seen in 4.3: the six arguments of Catalyst's ``Alias``, as in :func:`holdfast.spark.private.alias_of`.
    """
    jvm: Any = session._jvm
    catalyst = jvm.org.apache.spark.sql.catalyst.expressions
    nothing = jvm.scala.Option.apply(None)
    alias = catalyst.Alias(
        expression, attribute.name(), attribute.exprId(), attribute.qualifier(), nothing, _seq(session, [])
    )
    return private.column_of(session, alias)


_OF_MORE_THAN_ROWS = ("PYTHON_UDF", "SCALA_UDF", "HIGH_ORDER_FUNCTION", "PLAN_EXPRESSION", "WINDOW_EXPRESSION")


def is_of_one_row(session: SparkSession, expression: Any) -> bool:
    """Tell whether an expression's value follows from its own row, and Spark's own functions compute it of that.

    Seen in 4.3: ``Expression.deterministic``, and the patterns of ``TreePattern``: UDFs are called by plan nodes of
    their own, functions with functions in them have variables, subqueries have plans.  If these change: say that none
    is.
    """
    patterns = session._jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    return bool(expression.deterministic()) and not any(
        expression.containsPattern(getattr(patterns, name)()) for name in _OF_MORE_THAN_ROWS
    )


def replaced(session: SparkSession, expression: Any, by: Mapping[int, Any]) -> Any:
    """Return an expression, resolved, with others in the place of columns, which are named by their identities.

    Seen in 4.3: ``TreeNode.withNewChildren``, which keeps the place in a text that errors show.
    """
    if private.kind_of(expression) == "AttributeReference":
        return by[private.identity_of(expression)]
    children = private.listed(expression.children())
    made = [replaced(session, child, by) for child in children]
    if all(new is old for new, old in zip(made, children, strict=True)):
        return expression
    return expression.withNewChildren(_seq(session, made))


def values_of_template(transform: Any) -> list[Any]:
    """Return the members of the struct that a ``transform`` makes of each element.

    Seen in 4.3: children of ``ArrayTransform`` are its array and a ``LambdaFunction``, whose are its body and its
    variables; those of ``CreateNamedStruct`` are names and values, in turns.
    """
    body = private.listed(private.listed(transform.children())[1].children())[0]
    return private.listed(body.children())[1::2]


def with_body(session: SparkSession, transform: Any, body: Any) -> Any:
    """Return a ``transform`` with another body, of the same variables: see :func:`values_of_template`."""
    array, function = private.listed(transform.children())
    _, *variables = private.listed(function.children())
    return transform.withNewChildren(
        _seq(session, [array, function.withNewChildren(_seq(session, [body, *variables]))])
    )


def references_of(expression: Any) -> set[int]:
    """Return the columns that an expression is computed with, as :func:`holdfast.spark.private.identity_of` has them.

    Seen in 4.3: ``Expression.references``, an ``AttributeSet``.  If it changes: every column goes through the plan.
    """
    return {private.identity_of(column) for column in private.listed(expression.references().toSeq())}


def collapsed(frame: DataFrame) -> DataFrame:
    """Return a frame with fewer projections, as the optimizer makes it of every epoch's plan: here once for all.

    Seen in 4.3: the rule ``CollapseProject``, which reads no clock and no data.  If it goes: leave the frame as it is.
    """
    session = frame.sparkSession
    jvm: Any = session._jvm
    plan, before = private.analyzed(frame), None
    while before is None or not plan.equals(before):
        before, plan = plan, jvm.org.apache.spark.sql.catalyst.optimizer.CollapseProject.apply(plan)
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan), session)


def planted(frame: DataFrame, base: DataFrame, onto: DataFrame) -> DataFrame:
    """Return what was made of one frame, made of another one that has the same columns.

    Parameters
    ----------
    frame : DataFrame
        What was made of ``base``, which is in it once.
    base, onto : DataFrame
        The frames.

    Notes
    -----
    Seen in 4.3: ``TreeNode.withNewChildren``, ``classic.Dataset.ofRows``, and that an ``Alias`` gives a column the
    identity that it says.  If they change: make the frame anew of ``onto``; functions of users are then called twice.
    """
    session = frame.sparkSession
    bottom = private.analyzed(base)
    chain, plan = [], private.analyzed(frame)
    while not plan.equals(bottom):
        children = private.children_of(plan)
        place = next(number for number, child in enumerate(children) if contains(child, bottom))
        chain.append((plan, children, place))
        plan = children[place]
    given = private.listed(private.analyzed(onto).output())
    wanted = private.listed(bottom.output())
    columns = [renamed(session, mine, like) for mine, like in zip(given, wanted, strict=True)]
    plan = private.analyzed(onto.select(*columns))
    for node, children, place in reversed(chain):
        plan = node.withNewChildren(_seq(session, [*children[:place], plan, *children[place + 1 :]]))
    return frame_of(session, plan)


def frame_of(session: SparkSession, plan: Any) -> DataFrame:
    """Return a frame of an analysed plan (seen in 4.3: ``classic.Dataset.ofRows``)."""
    jvm: Any = session._jvm
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan), session)


def contains(plan: Any, other: Any) -> bool:
    """Tell whether a plan stands in another one, or is it."""
    return bool(plan.equals(other)) or any(contains(child, other) for child in private.children_of(plan))


def _seq(session: SparkSession, values: Sequence[Any]) -> Any:
    jvm: Any = session._jvm
    return jvm.PythonUtils.toSeq(list(values))
