"""Every place in the source that raises an error of ours, with all the advice that it can give.

A place is found by syntax: a call of a kind of ``holdfast.errors``, or any call with ``do=``.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from holdfast.errors import KINDS
from tests.arch.trees import MODULES, ROOT, nodes_of, tree_of

FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
BUILDS_NONE = ("errors.py",)
"""Where errors are defined, and not raised for a reason of their own."""


@dataclass(frozen=True)
class Site:
    """A place that raises.

    Parameters
    ----------
    module : str
        File below ``src/holdfast``.
    function : str
        Qualified name of the function around it.
    kind : str
        Class of the error, ``any`` where it is chosen at run time.
    number : int
        Which of those of one kind in the function, from 1.
    lines : range
        Lines of the call.
    texts : tuple of str
        What ``do=`` can be; what is filled in stands in braces.
    what : str
        The first sentence of its message, with dots for what is filled in; empty where it is made elsewhere.
    """

    module: str
    function: str
    kind: str
    number: int
    lines: range = field(compare=False)
    texts: tuple[str, ...] = field(compare=False)
    what: str = field(compare=False)

    @property
    def id(self) -> str:
        """Its name in the table of cures."""
        return f"{self.module}:{self.function} {self.kind}" + (f" {self.number}" if self.number > 1 else "")


@cache
def sites() -> tuple[Site, ...]:
    """Return all places that raise, in the order of modules and lines."""
    return tuple(site for path in MODULES for site in _sites_of(path))


def _sites_of(path: Path) -> Iterator[Site]:
    module = path.relative_to(ROOT).as_posix()
    if module in BUILDS_NONE:
        return
    scopes = [node for node in nodes_of(path) if isinstance(node, FUNCTIONS | ast.ClassDef)]
    counts: Counter[tuple[str, str]] = Counter()
    calls = [node for node in nodes_of(path) if isinstance(node, ast.Call)]
    for call in sorted(calls, key=lambda each: (each.lineno, each.col_offset)):
        called = _name_of(call.func)
        advice = next((each.value for each in call.keywords if each.arg == "do"), None)
        if called not in KINDS and advice is None:
            continue
        around = [scope for scope in scopes if _holds(scope, call)]
        name = ".".join(scope.name for scope in around)
        function = next((scope for scope in reversed(around) if isinstance(scope, FUNCTIONS)), None)
        kind = called if called in KINDS else "any"
        counts[name, kind] += 1
        texts = () if advice is None else tuple(dict.fromkeys(_Texts(path, function).of(advice)))
        lines = range(call.lineno, (call.end_lineno or call.lineno) + 1)
        yield Site(module, name, kind, counts[name, kind], lines, texts, _what(call) if called in KINDS else "")


def _what(call: ast.Call) -> str:
    what = next((each.value for each in call.keywords if each.arg == "what"), next(iter(call.args), None))
    if isinstance(what, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "..." for part in what.values)
    return what.value if isinstance(what, ast.Constant) and isinstance(what.value, str) else ""


def _holds(scope: FUNCTIONS | ast.ClassDef, call: ast.Call) -> bool:
    """Tell whether a call is in the body of a function or class; outer scopes come first among nodes."""
    return scope.lineno <= call.lineno and (call.end_lineno or 0) <= (scope.end_lineno or 0)


def _name_of(called: ast.expr) -> str:
    """Return by which name something is called, without what stands before it; empty where it has none."""
    return getattr(called, "attr", getattr(called, "id", ""))


class _Texts:
    """What an expression of ``do=`` can be: constants of the module and local names are followed."""

    def __init__(self, path: Path, function: ast.AST | None) -> None:
        self._path = path
        self._tree = tree_of(path)
        self._function = function
        self._seen: set[str] = set()

    def of(self, node: ast.AST) -> list[str]:
        match node:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.JoinedStr():
                return self._filled(node)
            case ast.IfExp():
                return [*self.of(node.body), *self.of(node.orelse)]
            case ast.BoolOp():
                return [text for each in node.values for text in self.of(each)]
            case ast.BinOp(op=ast.Add()):
                return [left + right for left in self.of(node.left) or [""] for right in self.of(node.right) or [""]]
            case ast.Name(id=name):
                return self._named(name)
            case ast.Call(func=ast.Name(id=name)):
                return self._returned(name)
            case ast.Call(func=ast.Attribute(value=value)):
                return self.of(value) if isinstance(value, ast.Name) and value.id.isupper() else []
            case ast.Dict(values=values):
                return [text for each in values for text in self.of(each)]
            case ast.Subscript(value=value):
                return self.of(value)
        return []

    def _filled(self, node: ast.JoinedStr) -> list[str]:
        found = [""]
        for part in node.values:
            if isinstance(part, ast.Constant):
                ways = [str(part.value)]
            else:
                assert isinstance(part, ast.FormattedValue)
                inner = part.value
                ways = self.of(inner) if isinstance(inner, ast.Name | ast.IfExp) else []
                ways = ways or ["{" + ast.unparse(inner).replace("{", "").replace("}", "") + "}"]
            found = [before + way for before in found for way in ways]
        return found

    def _named(self, name: str) -> list[str]:
        if name in self._seen:
            return []
        self._seen.add(name)
        texts = []
        for scope in (self._function, self._tree):
            for node in ast.walk(scope) if isinstance(scope, FUNCTIONS) else scope.body if scope else ():  # type: ignore
                targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
                value = getattr(node, "value", None)
                if value is not None and any(isinstance(each, ast.Name) and each.id == name for each in targets):
                    texts += self.of(value)
            if texts:
                break
        if not texts and isinstance(self._function, FUNCTIONS):
            texts = self._given(self._function, name)
        self._seen.discard(name)
        return texts

    def _given(self, function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> list[str]:
        """Return what callers in the module give for a parameter."""
        parameters = [each.arg for each in function.args.args]
        texts = []
        for node in nodes_of(self._path):
            if isinstance(node, ast.Call) and _name_of(node.func) == function.name:
                given = [each.value for each in node.keywords if each.arg == name]
                if name in parameters:
                    place = parameters.index(name) - (parameters[0] in ("self", "cls"))
                    given += node.args[place : place + 1]
                texts += [text for each in given for text in self.of(each)]
        return texts

    def _returned(self, name: str) -> list[str]:
        for node in nodes_of(self._path):
            if isinstance(node, FUNCTIONS) and node.name == name:
                inner = _Texts(self._path, node)
                returned = [each.value for each in ast.walk(node) if isinstance(each, ast.Return) and each.value]
                return [text for each in returned for text in inner.of(each)]
        return []
