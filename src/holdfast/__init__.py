"""Exactly-once pipelines on Spark Structured Streaming: ``import holdfast as hf``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast import later

if TYPE_CHECKING:
    from holdfast import errors, read, testing, write
    from holdfast.cli.supervision import supervise
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
    from holdfast.graph.hooks import Hooks
    from holdfast.graph.nodes import SinkNode, Stream
    from holdfast.graph.pipeline import Pipeline
    from holdfast.graph.trigger import Trigger, available_now, every
    from holdfast.operators.aggregate.accumulate import accumulate
    from holdfast.operators.aggregate.aggregates import (
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
    from holdfast.operators.aggregate.spec import aggregate, reduce
    from holdfast.operators.aggregate.window import count_window, session, sliding, timer, total, tumbling
    from holdfast.operators.clip import clip
    from holdfast.operators.filter import filter
    from holdfast.operators.map import map
    from holdfast.operators.map_batches import map_batches
    from holdfast.operators.select import select
    from holdfast.operators.split import split
    from holdfast.operators.sql import sql
    from holdfast.operators.stateful.apply import KeyState, apply
    from holdfast.operators.stateful.distinct import distinct
    from holdfast.operators.stateful.limit_in_flight import limit_in_flight
    from holdfast.operators.stateful.merge import merge
    from holdfast.operators.stateful.spec import stateful
    from holdfast.operators.sync import policy
    from holdfast.operators.sync.spec import sync
    from holdfast.operators.union import union
    from holdfast.spark.resume.start import start_all
    from holdfast.spark.run import Run
    from holdfast.state.step import Change, StateTable, StepTime

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
    "Pipeline",
    "Run",
    "SinkNode",
    "StateTable",
    "StepTime",
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
    "holdfast.operators.aggregate.aggregates": (
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
    "holdfast.graph.nodes": ("SinkNode", "Stream"),
    "holdfast.graph.hooks": ("Hooks",),
    "holdfast.operators.aggregate.accumulate": ("accumulate",),
    "holdfast.operators.aggregate.spec": ("aggregate", "reduce"),
    "holdfast.operators.stateful.apply": ("KeyState", "apply"),
    "holdfast.operators.clip": ("clip",),
    "holdfast.operators.stateful.distinct": ("distinct",),
    "holdfast.operators.filter": ("filter",),
    "holdfast.operators.stateful.limit_in_flight": ("limit_in_flight",),
    "holdfast.operators.map": ("map",),
    "holdfast.operators.map_batches": ("map_batches",),
    "holdfast.operators.stateful.merge": ("merge",),
    "holdfast.operators.select": ("select",),
    "holdfast.operators.split": ("split",),
    "holdfast.operators.sql": ("sql",),
    "holdfast.operators.stateful.spec": ("stateful",),
    "holdfast.state.step": ("Change", "StateTable", "StepTime"),
    "holdfast.operators.sync.spec": ("sync",),
    "holdfast.operators.union": ("union",),
    "holdfast.graph.pipeline": ("Pipeline",),
    "holdfast.operators.sync.policy:": ("policy",),
    "holdfast.read:": ("read",),
    "holdfast.spark.run": ("Run",),
    "holdfast.spark.resume.start": ("start_all",),
    "holdfast.cli.supervision": ("supervise",),
    "holdfast.testing:": ("testing",),
    "holdfast.graph.trigger": ("Trigger", "available_now", "every"),
    "holdfast.operators.aggregate.window": ("count_window", "session", "sliding", "timer", "total", "tumbling"),
    "holdfast.write:": ("write",),
}

__getattr__, __dir__ = later.names(__name__, {name: home for home, names in _HOMES.items() for name in names})
