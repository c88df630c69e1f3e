"""Exactly-once pipelines on Spark Structured Streaming: ``import holdfast as hf``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast import later

if TYPE_CHECKING:
    from holdfast import errors, read, testing, write
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
    from holdfast.graph import SinkNode, Stream
    from holdfast.operators.clip import clip
    from holdfast.operators.filter import filter
    from holdfast.operators.map import map
    from holdfast.operators.map_batches import map_batches
    from holdfast.operators.select import select
    from holdfast.operators.split import split
    from holdfast.operators.sql import sql
    from holdfast.operators.union import union
    from holdfast.pipeline import Pipeline
    from holdfast.spark.run import Run
    from holdfast.spark.start import start_all
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
    "holdfast.errors:": ("errors",),
    "holdfast.graph": ("SinkNode", "Stream"),
    "holdfast.operators.clip": ("clip",),
    "holdfast.operators.filter": ("filter",),
    "holdfast.operators.map": ("map",),
    "holdfast.operators.map_batches": ("map_batches",),
    "holdfast.operators.select": ("select",),
    "holdfast.operators.split": ("split",),
    "holdfast.operators.sql": ("sql",),
    "holdfast.operators.union": ("union",),
    "holdfast.pipeline": ("Pipeline",),
    "holdfast.read:": ("read",),
    "holdfast.spark.run": ("Run",),
    "holdfast.spark.start": ("start_all",),
    "holdfast.testing:": ("testing",),
    "holdfast.trigger": ("Trigger", "available_now", "every"),
    "holdfast.write:": ("write",),
}

__getattr__, __dir__ = later.names(__name__, {name: home for home, names in _HOMES.items() for name in names})
