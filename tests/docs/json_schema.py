"""The tables of ``docs/watching.md``: what the answers of ``--json`` consist of, from the classes they are made of.

``python -m tests.docs.json_schema`` writes them into the page, between its two marks.
"""

from __future__ import annotations

import ast
import collections.abc
import inspect
import re
import textwrap
import types
from collections.abc import Iterator
from dataclasses import Field, fields, is_dataclass
from enum import Enum
from functools import cache
from itertools import groupby
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from holdfast.commit.takeover import Resumption
from holdfast.observe.inspection import Inspection
from holdfast.observe.trace import Traced
from holdfast.reconcile.report import Reconciled
from holdfast.starts.graph_diff import GraphChange
from holdfast.starts.plan import PlannedBeginning, PlannedRecovery
from holdfast.starts.rewind_target import Rewound
from holdfast.status import Status
from tests.docs.pages import ROOT

PAGE = ROOT / "docs/watching.md"
BEGIN, END = "<!-- written by: python -m tests.docs.json_schema -->\n", "<!-- until here -->\n"

ROOTS: dict[type, str] = {
    Status: "`run`: each line",
    Inspection: "`inspect --checkpoint`; with `--dry-run` also `resolve`",
    Resumption: "`resolve`, with `dry_run`, `start` and `refusal`",
    GraphChange: "`plan`: `change`",
    PlannedRecovery: "`plan`: `recovery`",
    PlannedBeginning: "`plan`: `begins`",
    Rewound: "`rewind`, with `dry_run` and `carried_through`",
    Reconciled: "`reconcile`, with `is_equal`",
    Traced: "`trace --id`; with `--where` an array of them",
}
"""Class -> the command that answers with it."""


def rendered() -> str:
    """Return the tables of all classes, each once, those that a class has inside it after it."""
    done: list[type] = []
    return "\n".join(table for root in ROOTS for table in _tables(root, done))


def untold() -> list[str]:
    """Return the fields of which nothing is told."""
    done: list[type] = []
    for root in ROOTS:
        list(_tables(root, done))
    return [f"{of.__name__}.{each.name}" for of in done for each in _shown(of) if each.name not in _told(of)]


def _shown(of: type) -> list[Field[Any]]:
    """Return the fields that are in the JSON."""
    return [each for each in fields(of) if each.metadata.get("is_shown", True)]


def _tables(of: type, done: list[type]) -> Iterator[str]:
    if of in done:
        return
    done.append(of)
    told, hints = _told(of), _hints(of)
    yield f"#### {of.__name__}\n"
    if of in ROOTS:
        yield f"{ROOTS[of]}.\n"
    yield "| field | JSON | meaning |\n|---|---|---|"
    for meaning, together in groupby(_shown(of), lambda each: told.get(each.name, each.name)):
        names = [each.name for each in together]
        kinds = dict.fromkeys(_json(hints[name]) for name in names)
        yield f"| {', '.join(f'`{name}`' for name in names)} | {', '.join(kinds)} | {meaning} |"
    yield ""
    for each in _shown(of):
        for inner in _inside(hints[each.name]):
            yield from _tables(inner, done)


@cache
def _hints(of: type) -> dict[str, Any]:
    """Return the types of a class's fields; names that its module imports for type checkers only stay open."""
    try:
        return get_type_hints(of)
    except NameError:
        return {each.name: Any for each in fields(of)}


def _json(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        parts = [_json(each) for each in arguments if each is not type(None)]
        return " or ".join(dict.fromkeys([*parts, *(["null"] if type(None) in arguments else [])]))
    if origin is Literal:
        return "text"
    if isinstance(hint, type) and is_dataclass(hint):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return ", ".join(f"`{member.name.lower()}`" for member in hint)
    if origin in (tuple, list, collections.abc.Sequence, frozenset):
        inner = [_json(each) for each in arguments if each is not ...]
        return "array of " + " and ".join(dict.fromkeys(inner))
    if origin is collections.abc.Mapping:
        return f"object of {_json(arguments[1])}"
    names = {str: "text", bool: "true or false", int: "number", float: "number", type(None): "null"}
    return names.get(hint, "any")


def _inside(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and is_dataclass(hint):
        yield hint
    for each in get_args(hint):
        yield from _inside(each)


def _told(of: type) -> dict[str, str]:
    """Return what is told of each field: by the class's numpydoc, or below the field."""
    text = inspect.cleandoc(of.__doc__ or "")
    found: dict[str, str] = {}
    for match in re.finditer(r"^([a-z_]+(?:, [a-z_]+)*)(?: : .*)?\n((?:    .*\n?)+)", text, re.MULTILINE):
        for name in match[1].split(", "):
            found[name] = _plain(match[2])
    body = ast.parse(textwrap.dedent(inspect.getsource(of))).body[0]
    assert isinstance(body, ast.ClassDef)
    for field, behind in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(behind, ast.Expr) and isinstance(behind.value, ast.Constant):
            found[ast.unparse(field.target)] = _plain(str(behind.value.value))
    return found


def _plain(text: str) -> str:
    text = re.sub(r":\w+:`~?([\w.]+)`", r"`\1`", text).replace("``", "`").replace("|", "\\|")
    return re.sub(r"\bNone\b", "null", " ".join(text.split()))


def main() -> None:
    """Write the tables into the page."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{rendered()}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
