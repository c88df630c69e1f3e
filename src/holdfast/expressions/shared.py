"""What several expressions have in common, computed once for each batch.

``split_part(url, '/', 4)`` and ``split_part(url, '/', 5)`` cut one text; ``CASE WHEN lower(a) = ...``
asks for one text twice.  Only parts that are no row's error are shared: they are computed of all rows, also where
CASE alone would compute them of some.

References
----------
Common subexpression elimination, as compilers do it; Spark's ``spark.sql.subexpressionElimination.enabled``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import pyarrow as pa

from holdfast.expressions.functions import SplitText
from holdfast.expressions.kernels import Constant, Expression, Member, Reference, references
from holdfast.expressions.logic import Columnar

_NAME = "\0shared {}"
"""Of a column that an operator has for itself: no column of a user begins like that."""

_Steps = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Common:
    """Expressions, and what is computed before them.

    Parameters
    ----------
    steps : tuple of (str, Expression)
        Names and values, each of which may read those before it.
    items : tuple of Columnar
        The expressions, which read them.
    """

    steps: tuple[tuple[str, Expression], ...]
    items: tuple[Columnar, ...]

    @classmethod
    def of(cls, *items: Columnar) -> Common:
        """Return expressions with what they share taken out."""
        steps, nodes = _take_out(_with_widest_splits(tuple(item.node for item in items)))
        used_once = {name for name, count in _uses(steps, nodes).items() if count == 1}
        steps, nodes = _put_back(steps, nodes, used_once)
        return cls(steps, tuple(replace(item, node=node) for item, node in zip(items, nodes, strict=True)))

    def evaluate(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """Return the values of each expression, one for each row of the batch.  Raises as each of them does."""
        for name, node in self.steps:
            batch = pa.RecordBatch.from_arrays([*batch.columns, node.compute(batch)], [*batch.schema.names, name])
        return [item.evaluate(batch) for item in self.items]


def _with_widest_splits(nodes: tuple[Any, ...]) -> tuple[Any, ...]:
    """Cut each text as often as any part of it needs: parts before a cut are the same, however many follow."""
    limits: dict[str, set[int]] = {}
    for node in _each(nodes):
        if isinstance(node, SplitText):
            limits.setdefault(_of_split(node), set()).add(node.limit)

    def widest(node: Any) -> Any:
        if not isinstance(node, SplitText):
            return node
        asked = limits[_of_split(node)]
        return replace(node, limit=-1 if -1 in asked else max(asked))

    changed: tuple[Any, ...] = _rewrite(nodes, widest)
    return changed


def _of_split(node: SplitText) -> str:
    """Return of what a text is cut where, however often, and however often what is in it is cut."""
    alike = _rewrite(node, lambda inner: replace(inner, limit=0) if isinstance(inner, SplitText) else inner)
    return repr(alike)


def _take_out(nodes: tuple[Any, ...]) -> tuple[_Steps, tuple[Any, ...]]:
    """Return all that occurs twice with names, the inner ones first, and the nodes that read them."""
    counts = Counter(repr(node) for node in _each(nodes) if _is_shareable(node))
    names: dict[str, str] = {}
    steps: list[tuple[str, Any]] = []

    def take(node: Any) -> Any:
        if isinstance(node, tuple):
            return tuple(map(take, node))
        if not is_dataclass(node):
            return node
        key = repr(node)  # NB not the node: 0.0 is equal to -0.0
        inner = _with_fields(node, take)
        if counts[key] < 2:
            return inner
        if key not in names:
            names[key] = _NAME.format(len(steps))
            steps.append((names[key], inner))
        return Reference(names[key], inner.type, inner.nullable)

    whole = take(nodes)
    return tuple(steps), whole


def _uses(steps: _Steps, nodes: tuple[Any, ...]) -> Counter[str]:
    everything = (*(node for _, node in steps), *nodes)
    return Counter(node.name for node in _each(everything) if isinstance(node, Reference))


def _put_back(steps: _Steps, nodes: tuple[Any, ...], used_once: set[str]) -> tuple[_Steps, tuple[Any, ...]]:
    """Undo names that stand in one place alone, which is in what is shared itself."""
    values: dict[str, Any] = {}

    def value(node: Any) -> Any:
        return values.get(node.name, node) if isinstance(node, Reference) else node

    kept = []
    for name, node in steps:
        whole = _rewrite(node, value)
        if name in used_once:
            values[name] = whole
        else:
            kept.append((name, whole))
    return tuple(kept), _rewrite(nodes, value)


def _is_shareable(node: Any) -> bool:
    is_leaf = isinstance(node, Reference | Constant | Member)
    return not is_leaf and not node.can_raise and bool(references(node))


def _each(node: Any) -> list[Any]:
    """Return all nodes of a tree, as often as they occur."""
    if isinstance(node, tuple):
        return [inner for item in node for inner in _each(item)]
    if not is_dataclass(node):
        return []
    return [node, *(inner for field in fields(node) for inner in _each(getattr(node, field.name)))]


def _rewrite(node: Any, change: Callable[[Any], Any]) -> Any:
    """Return a tree with each node changed, the inner ones first."""
    if isinstance(node, tuple):
        return tuple(_rewrite(item, change) for item in node)
    return change(_with_fields(node, lambda inner: _rewrite(inner, change))) if is_dataclass(node) else node


def _with_fields(node: Any, change: Callable[[Any], Any]) -> Any:
    given = {field.name: getattr(node, field.name) for field in fields(node)}
    changed = {name: change(value) for name, value in given.items() if isinstance(value, tuple) or is_dataclass(value)}
    return replace(node, **changed) if any(changed[name] is not given[name] for name in changed) else node
