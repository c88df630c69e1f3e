"""Columns for members that no schema has, by the values that were seen of them, or by the type that a writer gave."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from holdfast.types.ddl import SIMPLE_TYPES

_WORDS = {kind: word.upper() for word, kind in reversed(SIMPLE_TYPES.items())}

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")


def declaration_of(name: str, values: Sequence[Any]) -> str:
    """Return a member with some values as a column, in SQL's words.

    Examples
    --------
    >>> declaration_of("tip", [1, None]), declaration_of("of day", ["mon"])
    ('tip BIGINT', '`of day` STRING')
    """
    return f"{_identifier(name)} {type_of(values)}"


def declaration_by(name: str, kind: pa.DataType) -> str:
    """Return a column of a type, in SQL's words; empty where a part of the type has none.

    Examples
    --------
    >>> declaration_by("tips", pa.list_(pa.struct([("of day", pa.timestamp("ms", tz="UTC"))])))
    'tips ARRAY<STRUCT<`of day`: TIMESTAMP>>'
    """
    text = _text_of(kind)
    return text and f"{_identifier(name)} {text}"


def _text_of(kind: pa.DataType) -> str:
    kinds = pa.types
    if kinds.is_timestamp(kind):
        return "TIMESTAMP_NTZ" if kind.tz is None else "TIMESTAMP"
    if kinds.is_decimal128(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    if kinds.is_list(kind):
        element = _text_of(kind.value_type)
        return element and f"ARRAY<{element}>"
    if kinds.is_map(kind):
        key, item = _text_of(kind.key_type), _text_of(kind.item_type)
        return f"MAP<{key}, {item}>" if key and item else ""
    if kinds.is_struct(kind):
        members = [(field.name, _text_of(field.type)) for field in kind]
        texts = [f"{_identifier(name)}: {text}" for name, text in members if text]
        return f"STRUCT<{', '.join(texts)}>" if texts and len(texts) == len(members) else ""
    return _WORDS.get(kind, "")


def type_of(values: Sequence[Any]) -> str:
    """Return the type to declare a member with, that has some values: STRING where they have none in common.

    Examples
    --------
    >>> type_of([1, None]), type_of([1, 2.5]), type_of(["a", 1]), type_of([[{"a": True}]])
    ('BIGINT', 'DOUBLE', 'STRING', 'ARRAY<STRUCT<a: BOOLEAN>>')
    """
    known = [value for value in values if value is not None]
    kinds = {type(value) for value in known}
    if kinds == {bool}:
        return "BOOLEAN"
    if kinds == {int} and all(-(2**63) <= value < 2**63 for value in known):
        return "BIGINT"
    if kinds and kinds <= {int, float}:
        return "DOUBLE"
    if kinds == {list}:
        return f"ARRAY<{type_of([one for value in known for one in value])}>"
    if kinds == {dict} and any(known):
        names = dict.fromkeys(name for value in known for name in value)
        inner = (f"{_identifier(name)}: {type_of([value.get(name) for value in known])}" for name in names)
        return f"STRUCT<{', '.join(inner)}>"
    return "STRING"


def _identifier(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else f"`{name.replace('`', '``')}`"
