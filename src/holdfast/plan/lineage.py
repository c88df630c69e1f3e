"""The data sets of a pipeline, and which column of a sink is made of which columns of its sources.

Columns are followed through operators that pass them on, the expressions of ``select``, aggregates, joins and look-ups,
as these are declared.  It is said of what values a value is made; not by which keys, times and conditions rows were
chosen, nor what is counted where no column is.  What a function of the user computes, a statement, ``sync`` or a flow
is not followed: it has no lineage, rather than a wrong one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from urllib.parse import urlsplit

import pyarrow as pa

from holdfast.expressions.text import Item, item_of
from holdfast.graph.graph import Graph
from holdfast.graph.nodes import Node, SinkNode
from holdfast.metrics.lineage import Derivation, LineageColumn, LineageDataset, LineageGraph
from holdfast.operators.aggregate.accumulate import Accumulate
from holdfast.operators.aggregate.aggregates import Aggregate
from holdfast.operators.aggregate.collected import START
from holdfast.operators.aggregate.open import END
from holdfast.operators.aggregate.over import Over
from holdfast.operators.aggregate.spec import Aggregation
from holdfast.operators.join.changes_spec import ChangesJoin
from holdfast.operators.join.rules import LEFT, RIGHT, SIDES, right_names
from holdfast.operators.join.spec import Join
from holdfast.operators.lookup.as_of import AsOfLookup
from holdfast.operators.row_id import RowIdOfColumns
from holdfast.operators.select import Select
from holdfast.plan.derived_part import sink_schemas

_PASS_ON = frozenset(
    {
        *("filter", "split", "clip", "expect", "unmet", "distinct", "limit_in_flight", "union", "row_id", "lookup"),
        *("call", "answered", "unanswered"),
    }
)
"""Kinds whose columns are those of their inputs, under their names; what a table of ``lookup`` adds is no source's."""

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
    return {name.lower(): frozenset({LineageColumn(number, name)}) for name in names}


def _operator(node: Node, known: Mapping[Node, Columns]) -> Columns:
    before = [known[each] for each in node.inputs]
    match node.spec:
        case Select() as spec:
            return _of_select([item_of(text) for text in spec.items], before[0])
        case Aggregation() as spec:
            return _of_aggregation(spec, before[0])
        case Accumulate() | Over() as spec:
            return {**before[0], **_of_aggregates(spec.aggregates, before[0])}
        case Join() as spec:
            return _of_join(spec, node, before)
        case ChangesJoin() as spec:
            held = [spec.values(side, tuple(of)) for side, of in zip(SIDES, before, strict=True)]
            return _of_pairs(
                spec, node, [{name: of[name] for name in own} for own, of in zip(held, before, strict=True)]
            )
        case AsOfLookup() as spec:
            return _of_look_up(spec, node, before)
        case RowIdOfColumns() as spec:
            made_of = _derivation([*spec.columns, *filter(None, [spec.timestamp])], before[0])
            return {**before[0], **({spec.into.lower(): made_of} if made_of else {})}
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
            how = Derivation.TRANSFORMATION if item.source is None else Derivation.IDENTITY
            if made_of := _derivation(item.reads, before, how):
                found[item.names[0].lower()] = made_of
    return found


def _of_aggregation(spec: Aggregation, before: Columns) -> Columns:
    found = {name.lower(): before[name.lower()] for name in spec.by if name.lower() in before}
    if spec.is_by_time and spec.timestamp is not None and (made_of := _derivation([spec.timestamp], before)):
        found |= {START: made_of, END: made_of}
    if spec.ranking is not None:
        order = [term.column for term in spec.ranking.order]
        of_rows = {
            name.lower(): _derivation([name, *order], before, Derivation.AGGREGATION) for name in spec.ranking.columns
        }
        found |= {name: made_of for name, made_of in of_rows.items() if made_of}
    return {**found, **_of_aggregates(spec.aggregates, before)}


def _of_aggregates(aggregates: Iterable[tuple[str, Aggregate]], before: Columns) -> Columns:
    made = {name.lower(): one.reads for name, one in aggregates}
    found = {name: _derivation(columns, before, Derivation.AGGREGATION) for name, columns in made.items()}
    return {name: made_of for name, made_of in found.items() if made_of}


def _of_join(spec: Join, node: Node, before: Sequence[Columns]) -> Columns:
    """Return the columns of pairs, and their time."""
    found = _of_pairs(spec, node, before)
    if not found or spec.how in ("semi", "anti"):
        return found
    times = [_derivation([spec.times[side]], of) for side, of in zip((LEFT, RIGHT), before, strict=True)]
    return {**found, spec.timestamp.lower(): frozenset().union(*times)} if all(times) else found


def _of_pairs(spec: Join | ChangesJoin, node: Node, before: Sequence[Columns]) -> Columns:
    """Return the columns of pairs; a row of right alone has its own key."""
    (left, right), (mine, other) = before, (each.columns for each in node.inputs)
    if spec.how in ("semi", "anti"):
        return left
    if mine is None or other is None:
        return {}
    if isinstance(spec, ChangesJoin):
        mine, other = spec.values(LEFT, mine), spec.values(RIGHT, other)
    found = dict(left)
    if spec.how in ("right", "full"):
        keys = [name.lower() for name in spec.on]
        found |= {key: left[key] | right[key] for key in keys if key in left and key in right}
        found = {name: of for name, of in found.items() if name not in keys or name in right}
    names = right_names(mine, other, spec.on, spec.suffix)
    return found | {after.lower(): right[name.lower()] for name, after in names.items() if name.lower() in right}


def _of_look_up(spec: AsOfLookup, node: Node, before: Sequence[Columns]) -> Columns:
    main, table = before
    if spec.how in ("semi", "anti"):
        return main
    there = node.inputs[1].columns or ()
    plain = [(name, name) for name in there if name not in (*spec.by, spec.times[1])]
    pairs = plain if spec.columns is None else spec.columns
    return {**main, **{name.lower(): table[of.lower()] for name, of in pairs if of.lower() in table}}


def _derivation(
    columns: Iterable[str], before: Columns, how: Derivation = Derivation.TRANSFORMATION
) -> frozenset[LineageColumn]:
    """Return what is made of some columns; nothing where one of them is not known, or there is none."""
    of = [before.get(name.lower(), frozenset()) for name in columns]
    if not of or not all(of):
        return frozenset()
    return frozenset(replace(each, how=max(each.how, how)) for several in of for each in several)


def _output(pipeline: str, sink: SinkNode, schema: pa.Schema | None, known: Mapping[Node, Columns]) -> LineageDataset:
    made = _dataset(pipeline, sink, schema)
    columns = known.get(sink.inputs[0], {})
    names = {name.lower(): name for name in (sink.inputs[0].columns or () if schema is None else schema.names)}
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
