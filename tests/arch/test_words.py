"""A table over the members of an enumeration has a row for each of them.

A member without its row is a KeyError that the first user meets who has such a case.
"""

from __future__ import annotations

import ast
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast.connectors.http.bodies
import holdfast.connectors.redis.form
import holdfast.observe.progress
import holdfast.observe.transactions
import holdfast.status
from holdfast.observe.inspection import TransactionStanding
from tests.arch.trees import MODULES, ROOT, nodes_of

PARTIAL = {
    "store/objects/errors.py:_CURES": "looked up behind `in`: other answers are no refusals",
    "starts/graph_diff.py:_EFFECT_OF_CHANGED": "a changed operator with state is spoken of by `_stateful`",
    "cli/words.py:done": "other verdicts are said by their names",
}
"""Tables that need not have all rows, and why."""

OF_WORDS = {
    "status": (holdfast.status.State, holdfast.observe.progress._STYLES),
    "transaction": (TransactionStanding, holdfast.observe.transactions._BECOMES),
    "redis": (holdfast.connectors.redis.form.Kind, holdfast.connectors.redis.form._TYPES),
    "http": (holdfast.connectors.http.bodies.Format, holdfast.connectors.http.bodies._TYPES),
}
"""Words of a ``Literal``, and the table over them."""


def _members() -> dict[str, set[str]]:
    """Return the members of each enumeration, by its name."""
    found: dict[str, set[str]] = {}
    for path in MODULES:
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef) and {ast.unparse(base) for base in node.bases} & {"Enum", "IntEnum"}:
                names = (target for part in node.body if isinstance(part, ast.Assign) for target in part.targets)
                found.setdefault(node.name, set()).update(name.id for name in names if isinstance(name, ast.Name))
    return found


def _tables(path: Path) -> Iterator[tuple[str, str, set[str]]]:
    """Yield name, enumeration and members of each table of a module."""
    for node in nodes_of(path):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, ast.Dict):
            continue
        keys = [key for key in node.value.keys if isinstance(key, ast.Attribute) and isinstance(key.value, ast.Name)]
        owners = {key.value.id for key in keys if isinstance(key.value, ast.Name)}
        if len(owners) == 1 and len(keys) == len(node.value.keys) > 1:
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            yield ast.unparse(target), owners.pop(), {key.attr for key in keys}


def test_tables_over_an_enumeration_are_complete() -> None:
    members, lacking, count = _members(), {}, 0
    for path in MODULES:
        for name, enumeration, rows in _tables(path):
            place = f"{path.relative_to(ROOT)}:{name}"
            count += enumeration in members
            if members.get(enumeration, rows) - rows and place not in PARTIAL:
                lacking[place] = sorted(members[enumeration] - rows)
    assert lacking == {}
    assert count >= 8  # the tables that there are are found


@pytest.mark.parametrize(("words", "table"), OF_WORDS.values(), ids=OF_WORDS)
def test_tables_over_words_are_complete(words: typing.Any, table: typing.Any) -> None:
    assert set(table) == set(typing.get_args(words))
