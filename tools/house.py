"""Measures the layout of ``src``: what hurts a reader, in numbers that may only get better.

``python -m tools.house`` prints each figure beside its bound of ``tests/arch/ratchets.toml``, which
``tests/arch/test_ratchets.py`` holds the tree to.  ``python -m tools.house --tighten`` writes the figures of today into
that file where they are better.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "holdfast"
RATCHETS = ROOT / "tests" / "arch" / "ratchets.toml"

FUNCTION_LINES_MAX = 60
FILE_LINES_LONG = 480
PACKAGE_MODULES_FEW = 4
ASSERTING = ("commit", "types", "expressions", "checkpoint")
"""The rooms whose assertions are counted: a wrong answer there is a wrong row."""

SIZES = ("files", "code_lines", "protocols")
"""Figures without a bound: they grow with what Holdfast can do."""

AT_LEAST = "assertions"
"""Figures whose names begin so are to rise; all others are to fall."""

BY_NAME = {"later.py", "cli/target.py"}
"""Modules that import by a name that is computed: public names, and what a user names."""

_IRREGULAR = frozenset(
    re.findall(
        r"\w+",
        """
        begun bound broken built chosen done drawn driven fed found frozen given gone grown held hidden kept known
        left led lost made meant met paid risen said seen sent shown sought spent spoken stood taken told thrown woken
        worn written
        """,
    )
)
_NO_PARTICIPLE = frozenset({"embed", "exceed", "feed", "need", "proceed", "seed", "shed", "speed", "succeed"})


@dataclass(frozen=True)
class Module:
    """A module of the source.

    Parameters
    ----------
    name : str
        With dots.
    path : Path
        Its file.
    tree : ast.Module
        Its syntax.
    text : str
        Its text.
    """

    name: str
    path: Path
    tree: ast.Module
    text: str

    @property
    def shown(self) -> str:
        """Its path below the package."""
        return self.path.relative_to(SOURCE).as_posix()

    @property
    def room(self) -> str:
        """The first package below the root; empty for modules of the root."""
        parts = self.shown.split("/")
        return parts[0] if len(parts) > 1 else ""

    @property
    def package(self) -> str:
        """The package that it is a module of."""
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]

    @cached_property
    def code_lines(self) -> int:
        """Lines that are neither blank, nor a comment, nor of a docstring."""
        lines: set[int] = set()
        skipped = {
            tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
            tokenize.ENCODING,
        }  # fmt: skip
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type not in skipped:
                lines.update(range(token.start[0], token.end[0] + 1))
        for text in self.docstrings:
            lines -= set(range(text.lineno, (text.end_lineno or text.lineno) + 1))
        return len(lines)

    @cached_property
    def docstrings(self) -> tuple[ast.expr, ...]:
        """Texts that stand alone as statements."""
        return tuple(
            node.value
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes of its syntax tree."""
        return tuple(ast.walk(self.tree))


@dataclass(frozen=True)
class House:
    """The whole source."""

    modules: Mapping[str, Module]

    @classmethod
    def read(cls) -> House:
        """Read it."""
        found = {}
        for path in sorted(SOURCE.rglob("*.py")):
            parts = path.relative_to(SOURCE.parent).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            text = path.read_text()
            found[name] = Module(name, path, ast.parse(text), text)
        return cls(found)

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """Module -> what it imports: at its top, in functions, for type checkers alone, and by strings."""
        return {name: set(self._imported(module)) - {name} for name, module in self.modules.items()}

    def _imported(self, module: Module) -> Iterator[str]:
        for node in module.nodes:
            if isinstance(node, ast.Import):
                yield from (each.name for each in node.names if each.name in self.modules)
            elif isinstance(node, ast.ImportFrom) and node.module is not None and node.module in self.modules:
                for each in node.names:
                    inner = f"{node.module}.{each.name}"
                    yield inner if inner in self.modules else node.module
            elif (text := _by_string(node)) is not None and text in self.modules:
                yield text

    @cached_property
    def circles(self) -> list[list[str]]:
        """Groups of modules that import each other, directly or not; the largest first."""
        return sorted(_circles(self.imports), key=len, reverse=True)

    def by_strings(self) -> list[str]:
        """Return the places that import a module of Holdfast by a string."""
        return [
            f"{module.shown}:{node.lineno}"
            for module in self.modules.values()
            if module.shown not in BY_NAME
            for node in module.nodes
            if isinstance(node, ast.Call) and (_by_string(node) or "").startswith("holdfast")
        ]

    def pairs(self, *, rooms: bool) -> list[tuple[str, str]]:
        """Return the packages that import each other; of rooms, sub-packages count as the room.

        A module of the root is a room of its own: the ladder has a step for each.
        """

        def place(name: str) -> str:
            module = self.modules[name]
            return module.room or module.shown if rooms else module.package

        arrows = {(place(a), place(b)) for a, found in self.imports.items() for b in found}
        return sorted({(a, b) for a, b in arrows if a < b and (b, a) in arrows})

    @cached_property
    def packages(self) -> dict[str, int]:
        """Package -> its modules, apart from ``__init__``."""
        found: dict[str, int] = defaultdict(int)
        for module in self.modules.values():
            found[module.package] += module.path.name != "__init__.py"
        return dict(found)

    @cached_property
    def functions(self) -> list[tuple[Module, ast.FunctionDef | ast.AsyncFunctionDef]]:
        """All functions and methods."""
        return [
            (module, node)
            for module in self.modules.values()
            for node in module.nodes
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]

    @cached_property
    def classes(self) -> list[tuple[Module, ast.ClassDef]]:
        """All classes."""
        return [(m, node) for m in self.modules.values() for node in m.nodes if isinstance(node, ast.ClassDef)]

    def constructors(self) -> dict[str, int]:
        """Return how many arguments each class takes, by its ``__init__``, or as the fields of a dataclass."""
        return {f"{module.shown}: {each.name}": _width(each) for module, each in self.classes}

    def fan_out(self) -> dict[str, int]:
        """Return how many modules of Holdfast each module imports."""
        return {self.modules[name].shown: len(found) for name, found in self.imports.items()}

    @cached_property
    def protocols(self) -> dict[str, ast.ClassDef]:
        """The Protocols, by name."""
        return {each.name: each for _, each in self.classes if "Protocol" in map(_base, each.bases)}

    def lonely_protocols(self) -> list[str]:
        """Return the Protocols that fewer than two classes implement, by the names of their members."""
        methods = {
            f"{module.shown}:{each.name}": _members(each)
            for module, each in self.classes
            if each.name not in self.protocols
        }
        found = []
        for name, protocol in self.protocols.items():
            wanted = _members(protocol)
            if wanted and sum(wanted <= have for have in methods.values()) < 2:
                found.append(name)
        return found

    def asked_protocols(self) -> list[str]:
        """Return the places that ask by ``isinstance`` whether a value has a Protocol."""
        return [
            f"{module.shown}:{node.lineno}"
            for module in self.modules.values()
            for node in module.nodes
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "isinstance"
            and any(isinstance(each, ast.Name) and each.id in self.protocols for each in ast.walk(node.args[1]))
        ]

    def participles(self) -> list[str]:
        """Return the functions that are named by a past participle alone."""
        return [f"{module.shown}: {each.name}" for module, each in self.functions if _is_participle(each.name)]

    def long_functions(self) -> list[str]:
        """Return the functions of more than :data:`FUNCTION_LINES_MAX` lines, their docstrings apart."""
        return [f"{m.shown}: {each.name}" for m, each in self.functions if _length(each) > FUNCTION_LINES_MAX]

    @cached_property
    def code_lines(self) -> int:
        """Lines of code of all modules."""
        return sum(module.code_lines for module in self.modules.values())

    def any_share(self) -> float:
        """Return how often ``Any`` is written as a type, in a hundred lines of code."""
        written = sum(
            isinstance(node, ast.Name) and node.id == "Any" for module in self.modules.values() for node in module.nodes
        )
        return round(100 * written / self.code_lines, 2)

    def assertions(self, room: str) -> float:
        """Return the assertions in a hundred lines of code of a room."""
        inside = [module for module in self.modules.values() if module.room == room]
        count = sum(_is_assertion(node) for module in inside for node in module.nodes)
        return round(100 * count / max(1, sum(module.code_lines for module in inside)), 2)


def figures(house: House) -> dict[str, float]:
    """Return all figures, in the order in which they are printed."""
    lengths = [len(module.text.splitlines()) for module in house.modules.values()]
    found: dict[str, float] = {
        "files": len(house.modules),
        "code_lines": house.code_lines,
        "modules_in_circles": sum(len(circle) for circle in house.circles),
        "largest_circle": max(map(len, house.circles), default=0),
        "imports_by_string": len(house.by_strings()),
        "packages_that_import_each_other": len(house.pairs(rooms=False)),
        "rooms_that_import_each_other": len(house.pairs(rooms=True)),
        "packages_of_few_modules": sum(0 < each <= PACKAGE_MODULES_FEW for each in house.packages.values()),
        "long_files": sum(length >= FILE_LINES_LONG for length in lengths),
        "widest_constructor": max(house.constructors().values()),
        "largest_fan_out": max(house.fan_out().values()),
        "long_functions": len(house.long_functions()),
        "functions_named_by_a_participle": len(house.participles()),
        "protocols": len(house.protocols),
        "protocols_of_fewer_than_two": len(house.lonely_protocols()),
        "isinstance_of_protocols": len(house.asked_protocols()),
        "any_per_hundred_lines": house.any_share(),
    }
    return found | {f"{AT_LEAST}_{room}": house.assertions(room) for room in ASSERTING}


def bounds() -> dict[str, float]:
    """Return the bound of each figure."""
    return dict(tomllib.loads(RATCHETS.read_text()))


def is_better(name: str, figure: float, bound: float) -> bool:
    """Tell whether a figure is better than its bound.

    Examples
    --------
    >>> is_better("files", 499, 500), is_better("files", 500, 500), is_better("assertions_commit", 1.5, 1.0)
    (True, False, True)
    """
    return figure > bound if name.startswith(AT_LEAST) else figure < bound


def main(arguments: Iterable[str]) -> int:
    """Print the figures beside their bounds; return 1 where one is worse."""
    found, known = figures(House.read()), bounds()
    worse = [name for name, figure in found.items() if name in known and is_better(name, known[name], figure)]
    for name, figure in found.items():
        bound = "" if name in SIZES else f"   bound {known.get(name, figure):>9,g}"
        print(f"{name:34} {figure:>9,g}{bound}{'   WORSE' if name in worse else ''}")
    if "--tighten" in arguments:
        best = {
            name: figure if name not in known or is_better(name, figure, known[name]) else known[name]
            for name, figure in found.items()
            if name not in SIZES
        }
        head = RATCHETS.read_text().partition("\n\n")[0] if RATCHETS.exists() else ""
        RATCHETS.write_text(head + "\n\n" + "".join(f"{name} = {figure:g}\n" for name, figure in best.items()))
    return 1 if worse else 0


def _by_string(node: ast.AST) -> str | None:
    if not isinstance(node, ast.Call) or not node.args:
        return None
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if called == "import_module":
        first = node.args[0]
        return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None
    return None


def _circles(arrows: Mapping[str, set[str]]) -> Iterator[list[str]]:
    """Yield the strongly connected components of more than one node.  Source: R. Tarjan, 1972."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = lowest[node] = len(number)
        stack.append(node)
        for after in sorted(arrows[node]):
            if after not in number:
                visit(after)
                lowest[node] = min(lowest[node], lowest[after])
            elif after in stack:
                lowest[node] = min(lowest[node], number[after])
        if lowest[node] == number[node]:
            at = stack.index(node)
            component = sorted(stack[at:])
            del stack[at:]
            if len(component) > 1:
                found.append(component)

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(arrows) * 4 + limit)
    try:
        for each in arrows:
            if each not in number:
                visit(each)
    finally:
        sys.setrecursionlimit(limit)
    return iter(found)


def _base(node: ast.expr) -> str:
    return ast.unparse(node.value if isinstance(node, ast.Subscript) else node).rpartition(".")[2]


def _members(each: ast.ClassDef) -> frozenset[str]:
    """Return the names of what a class has: methods and fields."""
    names = {node.name for node in each.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    names |= {ast.unparse(node.target) for node in each.body if isinstance(node, ast.AnnAssign)}
    return frozenset(name for name in names if not name.startswith("__"))


def _width(each: ast.ClassDef) -> int:
    for node in each.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            given = node.args
            return len(given.posonlyargs) + len(given.args) - 1 + len(given.kwonlyargs)
    is_dataclass = any("dataclass" in ast.unparse(node) for node in each.decorator_list)
    if not is_dataclass:
        return 0
    fields = [node for node in each.body if isinstance(node, ast.AnnAssign)]
    return sum("ClassVar" not in ast.unparse(f.annotation) and "init=False" not in ast.unparse(f) for f in fields)


def _is_participle(name: str) -> bool:
    """Tell whether a name is a past participle and nothing else; those that are also the verb do not count."""
    name = name.strip("_")
    if "_" in name or name in _NO_PARTICIPLE:
        return False
    return name in _IRREGULAR or bool(re.fullmatch(r"[a-z]{2,}ed", name))


def _length(each: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = each.body[0]
    has_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    text = (first.end_lineno or 0) - first.lineno + 1 if has_text else 0
    return (each.end_lineno or 0) - each.lineno + 1 - text


def _is_assertion(node: ast.AST) -> bool:
    if isinstance(node, ast.Assert):
        return True
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("invariant", "present")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
