"""Names of a module that are loaded when they are first asked for (PEP 562).

Python workers import parts of this package in each executor: they must not pay for the parsers that only building a
graph needs, nor for the drivers of systems that they do not write to.  And a graph must need neither pyspark nor Java.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def names(module: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a module.

    Parameters
    ----------
    module : str
        The module's ``__name__``.
    homes : mapping of str to str
        Public name -> the module that defines it; where the value ends in a colon, the name is that module itself.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}: it has {', '.join(sorted(homes))}")
        home, is_module, _ = homes[name].partition(":")
        loaded = importlib.import_module(home)
        value = loaded if is_module else getattr(loaded, name)
        setattr(sys.modules[module], name, value)
        return value

    return get, lambda: sorted({*homes, *vars(sys.modules[module])})
