"""What a join keeps without a limit, and by how much its state grows with each row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from holdfast.expressions.text import item_of
from holdfast.graph.changes import RETRACTED
from holdfast.graph.nodes import Node
from holdfast.operators.arguments import as_distance, limit_column
from holdfast.operators.join.rules import SIDES
from holdfast.operators.select import Select

_SAME = ("filter", "expect", "clip", "split")
"""Operators whose rows are those of their input."""

_NUMBER_BYTES = 8
"""Of a row's number in the state."""


def unlimited_growth(node: Node) -> str | None:
    """Return what to know of a join that keeps rows until its streams end; None of any other operator."""
    if node.kind not in ("join", "join_changes"):
        return None
    given = node.arguments()
    sides = _unlimited(given) if node.kind == "join" else _never_retracted(given)
    if not sides:
        return None
    grows = " and ".join(f"{_row(before)} a row of {side}" for side, before in _sides_of(node).items() if side in sides)
    until, instead = "", "give a limit, within="
    if node.kind == "join_changes":
        instead = "leave delete= out, and give a limit, within="
    elif given["how"] == "semi" and "left" in sides:
        until = ", those of left until their first partner"
    return (
        f"{node.kind} {node.name!r} ({node.origin}): rows of {' and '.join(sides)} are kept until the streams end"
        f"{until}, as no limit is set there: the state grows by {grows}. Leave out before the join what nothing reads, "
        f"stream | hf.select(...); or {instead}."
    )


def _sides_of(node: Node) -> dict[str, Node]:
    """Return the nodes before a join by its inputs."""
    return dict(zip(node.stateful_spec.input_names, node.inputs, strict=True))


def _unlimited(given: Mapping[str, Any]) -> list[str]:
    """Return the inputs whose rows are kept for ever."""
    if given.get("forget_after") is not None:
        return []
    low, high = (as_distance(limit, given["times"]["left"]) for limit in given["within"])
    is_open = {"left": high is None, "right": low is None or limit_column(low) is not None}
    return [side for side, is_kept in is_open.items() if is_kept]


def _never_retracted(given: Mapping[str, Any]) -> list[str]:
    """Return the inputs of a join of changes whose rows only come."""
    return [side for side, column in zip(SIDES, given[RETRACTED], strict=True) if column is None]


def _row(before: Node) -> str:
    """Return how large a row of a stream is in the state, as far as its types are known."""
    if before.columns is None:
        return "all columns of"
    kinds = _kinds(before)
    known = [kinds[name.lower()] for name in before.columns if name.lower() in kinds]
    if len(known) < len(before.columns):
        return f"{len(before.columns)} columns of"
    plain = sum(_width(kind) for kind in known) + _NUMBER_BYTES
    texts = sum(not _is_plain(kind) for kind in known)
    more = "" if not texts else " and a text" if texts == 1 else f" and {texts} texts"
    return f"{plain} bytes{more} for"


def _is_plain(kind: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(kind) or pa.types.is_decimal(kind))


def _width(kind: pa.DataType) -> int:
    return (kind.bit_width + 7) // 8 if _is_plain(kind) else 4


def _kinds(node: Node) -> dict[str, pa.DataType]:
    """Return the types of those columns that come from a source as they are."""
    if node.is_source:
        schema = node.source_spec.schema
        return {} if schema is None else {field.name.lower(): field.type for field in schema}
    spec = node.spec
    if isinstance(spec, Select):
        before = _kinds(node.inputs[0])
        found: dict[str, pa.DataType] = {}
        for item in map(item_of, spec.items):
            if item.is_star:
                found |= {name: kind for name, kind in before.items() if name not in item.excluded}
            elif item.source is not None and item.names and item.source.lower() in before:
                found[item.names[0].lower()] = before[item.source.lower()]
        return found
    return _kinds(node.inputs[0]) if node.kind in _SAME else {}
