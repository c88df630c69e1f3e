"""The data sets of a pipeline, and which column of a sink is made of which columns of its sources.

Columns are followed through operators that pass them on, and through the expressions of ``select``.  What a function of
the user computes, an aggregate, a statement or a flow is not followed: it has no lineage, rather than a wrong one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

import pyarrow as pa

from holdfast.expressions.text import Item, item_of
from holdfast.graph.graph import Graph
from holdfast.graph.nodes import Node, SinkNode
from holdfast.metrics.lineage import LineageColumn, LineageDataset, LineageGraph
from holdfast.operators.select import Select
from holdfast.plan.derived_part import sink_schemas

_PASS_ON = frozenset({"filter", "split", "clip", "distinct", "union", "row_id", "order", "limit"})
"""Kinds whose columns are those of their inputs, under their names."""

Columns = Mapping[str, frozenset[LineageColumn]]
"""A column, in lower case -> what it is made of."""


def lineage_of(pipeline: Graph) -> LineageGraph:
    """Return the data sets of a pipeline, with what is known of their columns."""
    sources = list(pipeline.sources)
    inputs = tuple(_dataset(pipeline.name, node, node.source_spec.schema) for node in sources)
    known: dict[Node, Columns] = {}
    for node in pipeline.nodes:  # inputs come first
        known[node] = _source(sources.index(node), node) if node.is_source else _operator(node, known)
    schemas = sink_schemas(pipeline)
    outputs = tuple(_output(pipeline.name, sink, schemas.get(sink.name), known) for sink in pipeline.sinks)
    return LineageGraph(pipeline.name, inputs, outputs)


def _source(number: int, node: Node) -> Columns:
    schema: pa.Schema | None = node.source_spec.schema
    names = () if schema is None else schema.names
    return {name.lower(): frozenset({LineageColumn(number, name, True)}) for name in names}


def _operator(node: Node, known: Mapping[Node, Columns]) -> Columns:
    before = [known[each] for each in node.inputs]
    if isinstance(node.spec, Select):
        return _of_select([item_of(text) for text in node.spec.items], before[0])
    if node.kind not in _PASS_ON:
        return {}
    names = set.intersection(*(set(each) for each in before)) if before else set()
    return {name: frozenset().union(*(each[name] for each in before)) for name in names}


def _of_select(items: Sequence[Item], before: Columns) -> Columns:
    found: dict[str, frozenset[LineageColumn]] = {}
    for item in items:
        if item.is_star:
            found |= {name: of for name, of in before.items() if name not in item.excluded}
        elif item.names is not None and len(item.names) == 1:
            reads = [name.lower() for name in item.reads]
            if reads and all(name in before for name in reads):
                of = frozenset().union(*(before[name] for name in reads))
                found[item.names[0].lower()] = of if item.source is not None else frozenset(map(_not_same, of))
    return found


def _not_same(of: LineageColumn) -> LineageColumn:
    return LineageColumn(of.dataset, of.column, False)


def _output(pipeline: str, sink: SinkNode, schema: pa.Schema | None, known: Mapping[Node, Columns]) -> LineageDataset:
    made = _dataset(pipeline, sink, schema)
    columns = known.get(sink.inputs[0], {})
    names = {name.lower(): name for name in (sink.inputs[0].columns or (schema.names if schema is not None else ()))}
    order = {
        names[name]: tuple(sorted(of, key=lambda each: (each.dataset, each.column)))
        for name, of in columns.items()
        if name in names
    }
    return LineageDataset(made.namespace, made.name, made.schema, order)


def _dataset(pipeline: str, node: Node | SinkNode, schema: pa.Schema | None) -> LineageDataset:
    namespace, name = _place(pipeline, node)
    fields = () if schema is None else tuple((each.name, str(each.type)) for each in schema)
    return LineageDataset(namespace, name, fields)


def _place(pipeline: str, node: Node | SinkNode) -> tuple[str, str]:
    """Return namespace and name of what a source reads or a sink writes, by the rules of OpenLineage; else our own.

    Of an address only system, host, port and database: what else is in it may be a secret.
    """
    arguments = dict(node.spec.arguments())
    given = {name: value for name, value in arguments.items() if isinstance(value, str)}
    path, table, topic = given.get("path"), given.get("table"), given.get("topic")
    address = given.get("dsn") or given.get("url") or ""
    if topic and (servers := given.get("servers") or given.get("bootstrap_servers")):
        return f"kafka://{servers.partition(',')[0]}", topic
    if table and "://" in address:
        parts = urlsplit(address)
        host = f"{parts.hostname or 'localhost'}{f':{parts.port}' if parts.port else ''}"
        database = parts.path.strip("/").partition("?")[0]
        return f"{node.kind}://{host}", ".".join(part for part in (database, table) if part)
    if path and table:
        return node.kind, f"{os.path.abspath(path)}/{table}"
    if path and (remote := re.fullmatch(r"(\w+://[^/?#@]+)/?([^?#]*)", path)):
        return remote[1], remote[2]
    if path and "://" not in path:
        return "file", os.path.abspath(path)
    return "", f"{pipeline}.{node.name}"
