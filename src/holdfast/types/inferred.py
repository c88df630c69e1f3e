"""Columns for members that no schema has, by the values that were seen of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")


def declaration_of(name: str, values: Sequence[Any]) -> str:
    """Return a member with some values as a column, in SQL's words.

    Examples
    --------
    >>> declaration_of("tip", [1, None]), declaration_of("of day", ["mon"])
    ('tip BIGINT', '`of day` STRING')
    """
    return f"{_identifier(name)} {type_of(values)}"


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
