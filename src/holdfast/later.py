"""Names of a module that are loaded when they are first used (PEP 562); the stub beside it is their only list.

A stub ``X.pyi`` beside ``X.py`` is what type checkers and editors read.  It has a line for each public name, which says
where that is defined::

    from holdfast.graph.graph import Graph as Graph

Python workers import parts of this package in each executor: they must not pay for the parsers that only building a
graph needs, nor for the drivers of systems that they do not write to.  And a graph must need neither pyspark nor Java.

Prior art: Scientific Python's SPEC 1, whose ``lazy_loader`` takes a package's own modules only; ``holdfast.read`` names
what is elsewhere.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from typing import Any

_EXPORT = re.compile(r"^from (\S+) import (\w+) as \2$", re.MULTILINE)


def names(spec: Any) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` for a module.

    Parameters
    ----------
    spec : ModuleSpec
        The module's ``__spec__``.
    """
    # Through the loader: the package may lie in an archive that Spark has sent to its workers.
    stub = spec.loader.get_data(spec.origin.removesuffix(".py") + ".pyi").decode()
    homes: dict[str, str] = {name: home for home, name in _EXPORT.findall(stub)}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {spec.name!r} has no attribute {name!r}: it has {', '.join(sorted(homes))}")
        home = importlib.import_module(homes[name])
        # Like ``from home import name``: what a module does not define is a module below it.
        value = vars(home)[name] if name in vars(home) else importlib.import_module(f"{home.__name__}.{name}")
        setattr(sys.modules[spec.name], name, value)
        return value

    return get, lambda: sorted({*homes, *vars(sys.modules[spec.name])}), sorted(homes)
