"""Names of a module that are loaded when they are first used (PEP 562); the stub beside it is their only list.

A stub ``X.pyi`` beside ``X.py`` is what type checkers and editors read.  It has a line for each public name, which says
where that is defined::

    from holdfast.graph.graph import Graph as Graph

Python workers import parts of this package in each executor: they must not pay for the parsers that only building a
graph needs, nor for the drivers of systems that they do not write to.  And a graph must need neither pyspark nor Java.

``holdfast.read`` and ``holdfast.write`` have the connectors, too, that other distributions have installed, by entry
points: a system whose connector Holdfast does not have can have one of its own.

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


CONNECTORS = "holdfast.connectors"
"""Group of entry points: name of a system -> module with a function ``read``, a function ``write``, or both."""


def names(spec: Any, *, of_connectors: str = "") -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` for a module.

    Parameters
    ----------
    spec : ModuleSpec
        The module's ``__spec__``.
    of_connectors : str
        Which function of installed connectors has its name here, too: ``"read"`` or ``"write"``; of names in the stub
        those win.  Empty: none.
    """
    # Through the loader: the package may lie in an archive that Spark has sent to its workers.
    stub = spec.loader.get_data(spec.origin.removesuffix(".py") + ".pyi").decode()
    homes: dict[str, str] = {name: home for home, name in _EXPORT.findall(stub)}

    def get(name: str) -> Any:
        if name not in homes:
            value = _of_connector(name, of_connectors) if of_connectors and not name.startswith("_") else None
            if value is None:
                there = sorted({*homes, *(_entry_points() if of_connectors else ())})
                raise AttributeError(f"module {spec.name!r} has no attribute {name!r}: it has {', '.join(there)}")
            setattr(sys.modules[spec.name], name, value)
            return value
        home = importlib.import_module(homes[name])
        # Like ``from home import name``: what a module does not define is a module below it.
        value = vars(home)[name] if name in vars(home) else importlib.import_module(f"{home.__name__}.{name}")
        setattr(sys.modules[spec.name], name, value)
        return value

    def attributes() -> list[str]:
        return sorted({*homes, *vars(sys.modules[spec.name]), *(_entry_points() if of_connectors else ())})

    return get, attributes, sorted(homes)


def _entry_points() -> dict[str, Any]:
    """Return the entry points of connectors that other distributions have installed."""
    from importlib.metadata import entry_points  # who names none of them pays nothing

    return {point.name: point for point in entry_points(group=CONNECTORS)}


def _of_connector(name: str, function: str) -> Any:
    """Return a function of an installed connector; None where there is no such connector, or it has none."""
    point = _entry_points().get(name)
    if point is None:
        return None
    try:
        return getattr(point.load(), function, None)
    except ImportError as error:
        distribution = "a distribution" if point.dist is None else f"{point.dist.name} {point.dist.version}"
        raise ImportError(
            f"The connector {name!r} cannot be loaded: {error}. It is {point.value}, of {distribution}, by the entry "
            f"points {CONNECTORS}; install what it lacks, or uninstall it."
        ) from error
