"""The modules of the source as syntax trees: each is read once, whatever is asked about it."""

import ast
import gc
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / "src/holdfast"
MODULES = tuple(sorted(ROOT.rglob("*.py")))


@cache
def _trees() -> dict[Path, ast.Module]:
    """Return all trees.

    Read with the garbage collector at rest, and kept from its walks for good, with whatever else is there by then: what
    it looked through again and again were four seconds of five.
    """
    gc.collect()
    gc.disable()
    try:
        return {path: ast.parse(path.read_text()) for path in MODULES}
    finally:
        gc.freeze()
        gc.enable()


def tree_of(path: Path) -> ast.Module:
    """Return the tree of a module."""
    return _trees()[path]


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a module."""
    return tuple(ast.walk(tree_of(path)))
