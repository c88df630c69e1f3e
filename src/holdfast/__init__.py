"""Exactly-once pipelines on Spark Structured Streaming: ``import holdfast as hf``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast import later

if TYPE_CHECKING:
    from holdfast import errors, policy, read, testing, write
    from holdfast.aggregates import (
        collect,
        count,
        distinct_count,
        first,
        last,
        max,
        mean,
        min,
        quantile,
        quantiles,
        sum,
        variance,
    )
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
    from holdfast.hooks import Hooks
    from holdfast.operators.accumulate import accumulate
    from holdfast.operators.aggregate import aggregate, reduce
    from holdfast.operators.apply import KeyState, apply
    from holdfast.operators.clip import clip
    from holdfast.operators.distinct import distinct
    from holdfast.operators.filter import filter
    from holdfast.operators.limit_in_flight import limit_in_flight
    from holdfast.operators.map import map
    from holdfast.operators.map_batches import map_batches
    from holdfast.operators.merge import merge
    from holdfast.operators.select import select
    from holdfast.operators.split import split
    from holdfast.operators.sql import sql
    from holdfast.operators.stateful import stateful
    from holdfast.operators.step import Change, Moment, StateTable
    from holdfast.operators.sync import sync
    from holdfast.operators.union import union
    from holdfast.pipeline import Pipeline
    from holdfast.spark.run import Run
    from holdfast.spark.start import start_all
    from holdfast.supervision import supervise
    from holdfast.trigger import Trigger, available_now, every
    from holdfast.window import count_window, session, sliding, timer, total, tumbling

__version__ = "0.1.0"

__all__ = [
    "BadRow",
    "Change",
    "Corrupt",
    "Diverged",
    "Fenced",
    "HoldfastError",
    "Hooks",
    "InDoubt",
    "InternalError",
    "InvalidPipeline",
    "KeyState",
    "Moment",
    "Pipeline",
    "Run",
    "SinkNode",
    "StateTable",
    "Stream",
    "Trigger",
    "Unavailable",
    "accumulate",
    "aggregate",
    "apply",
    "available_now",
    "clip",
    "collect",
    "count",
    "count_window",
    "distinct",
    "distinct_count",
    "errors",
    "every",
    "filter",
    "first",
    "last",
    "limit_in_flight",
    "map",
    "map_batches",
    "max",
    "mean",
    "merge",
    "min",
    "policy",
    "quantile",
    "quantiles",
    "read",
    "reduce",
    "select",
    "session",
    "sliding",
    "split",
    "sql",
    "start_all",
    "stateful",
    "sum",
    "supervise",
    "sync",
    "testing",
    "timer",
    "total",
    "tumbling",
    "union",
    "variance",
    "write",
]

_HOMES = {
    "holdfast.aggregates": (
        "collect",
        "count",
        "distinct_count",
        "first",
        "last",
        "max",
        "mean",
        "min",
        "quantile",
        "quantiles",
        "sum",
        "variance",
    ),
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
    "holdfast.hooks": ("Hooks",),
    "holdfast.operators.accumulate": ("accumulate",),
    "holdfast.operators.aggregate": ("aggregate", "reduce"),
    "holdfast.operators.apply": ("KeyState", "apply"),
    "holdfast.operators.clip": ("clip",),
    "holdfast.operators.distinct": ("distinct",),
    "holdfast.operators.filter": ("filter",),
    "holdfast.operators.limit_in_flight": ("limit_in_flight",),
    "holdfast.operators.map": ("map",),
    "holdfast.operators.map_batches": ("map_batches",),
    "holdfast.operators.merge": ("merge",),
    "holdfast.operators.select": ("select",),
    "holdfast.operators.split": ("split",),
    "holdfast.operators.sql": ("sql",),
    "holdfast.operators.stateful": ("stateful",),
    "holdfast.operators.step": ("Change", "Moment", "StateTable"),
    "holdfast.operators.sync": ("sync",),
    "holdfast.operators.union": ("union",),
    "holdfast.pipeline": ("Pipeline",),
    "holdfast.policy:": ("policy",),
    "holdfast.read:": ("read",),
    "holdfast.spark.run": ("Run",),
    "holdfast.spark.start": ("start_all",),
    "holdfast.supervision": ("supervise",),
    "holdfast.testing:": ("testing",),
    "holdfast.trigger": ("Trigger", "available_now", "every"),
    "holdfast.window": ("count_window", "session", "sliding", "timer", "total", "tumbling"),
    "holdfast.write:": ("write",),
}

__getattr__, __dir__ = later.names(__name__, {name: home for home, names in _HOMES.items() for name in names})
