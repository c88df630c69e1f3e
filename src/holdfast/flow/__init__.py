"""Flowgraphs: graphs of calculators that exchange packets with timestamps, alone or as an operator of a pipeline.

A graph runs in one process, without Spark and Java (:meth:`Graph.start`), or once for every key inside Spark's tasks
(:func:`holdfast.flow`).  The rules are in docs/operators/flow.md.
"""

import sys
from types import ModuleType
from typing import Any

from holdfast import later

__getattr__, __dir__, __all__ = later.names(__spec__)


class _Callable(ModuleType):
    """The module as a function: ``hf.flow(graph, ...)`` is the operator of a pipeline."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Return :func:`holdfast.operators.flow.spec.flow` of the arguments."""
        return self.flow(*arguments, **named)


sys.modules[__name__].__class__ = _Callable
