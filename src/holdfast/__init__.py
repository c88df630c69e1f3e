"""Exactly-once pipelines on Spark Structured Streaming: ``import holdfast as hf``."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast import errors as errors
    from holdfast import sinks as write
    from holdfast import sources as read
    from holdfast import testing as testing
    from holdfast.errors import (
        BadRow,
        Corrupt,
        Diverged,
        Fenced,
        HoldfastError,
        InDoubt,
        InternalError,
        InvalidPipeline,
        Unavailable,
    )
    from holdfast.graph import Pipeline, SinkNode, Stream
    from holdfast.operators.clip import clip
    from holdfast.operators.filter import filter
    from holdfast.operators.map import map
    from holdfast.operators.map_batches import map_batches
    from holdfast.operators.select import select
    from holdfast.operators.split import split
    from holdfast.operators.sql import sql
    from holdfast.operators.union import union
    from holdfast.spark.run import Run, start_all
    from holdfast.trigger import Trigger, available_now, every

__version__ = "0.1.0"

__all__ = [
    "BadRow",
    "Corrupt",
    "Diverged",
    "Fenced",
    "HoldfastError",
    "InDoubt",
    "InternalError",
    "InvalidPipeline",
    "Pipeline",
    "Run",
    "SinkNode",
    "Stream",
    "Trigger",
    "Unavailable",
    "available_now",
    "clip",
    "errors",
    "every",
    "filter",
    "map",
    "map_batches",
    "read",
    "select",
    "split",
    "sql",
    "start_all",
    "testing",
    "union",
    "write",
]

# Every name is loaded when it is first asked for.  Python workers import parts of this package in each executor: they
# must not pay for the parsers that only building a graph needs.  And a graph must need neither pyspark nor Java.
_MODULES = {
    "errors": "holdfast.errors",
    "read": "holdfast.sources",
    "testing": "holdfast.testing",
    "write": "holdfast.sinks",
}
_HOMES = {
    "holdfast.errors": (
        "BadRow",
        "Corrupt",
        "Diverged",
        "Fenced",
        "HoldfastError",
        "InDoubt",
        "InternalError",
        "InvalidPipeline",
        "Unavailable",
    ),
    "holdfast.graph": ("Pipeline", "SinkNode", "Stream"),
    "holdfast.operators.clip": ("clip",),
    "holdfast.operators.filter": ("filter",),
    "holdfast.operators.map": ("map",),
    "holdfast.operators.map_batches": ("map_batches",),
    "holdfast.operators.select": ("select",),
    "holdfast.operators.split": ("split",),
    "holdfast.operators.sql": ("sql",),
    "holdfast.operators.union": ("union",),
    "holdfast.spark.run": ("Run", "start_all"),
    "holdfast.trigger": ("Trigger", "available_now", "every"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value: Any = importlib.import_module(_MODULES[name])
    elif name in _HOME_OF:
        value = getattr(importlib.import_module(_HOME_OF[name]), name)
    else:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
