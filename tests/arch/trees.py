"""The modules of the source as syntax trees: each is read once, whatever is asked about it."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / "src/holdfast"
MODULES = tuple(sorted(ROOT.rglob("*.py")))


@cache
def tree_of(path: Path) -> ast.Module:
    """Return the tree of a module."""
    return ast.parse(path.read_text())


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a module."""
    return tuple(ast.walk(tree_of(path)))
