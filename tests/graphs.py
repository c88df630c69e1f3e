"""Sources and sinks that only stand in a graph: declarations that can be built, checked and drawn, and never run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from holdfast.graph.building import require_columns
from holdfast.graph.nodes import SinkNode, Stream, sink, stream_from
from holdfast.ports import Guarantee
from holdfast.types.schema import to_arrow

FLIGHTS = "origin STRING, dest STRING, dep_delay INT, arr_delay INT, time_hour TIMESTAMP"


@dataclass(frozen=True)
class PaperSource:
    schema: pa.Schema
    timestamp: str | None = None
    rejects: bool = False
    path: str = "data/flights"
    limit: int | None = None
    kind: str = "paper"

    def arguments(self) -> Mapping[str, Any]:
        return {"path": self.path, "limit": self.limit}

    def open(self, name: str, workspace: str) -> Any:
        raise AssertionError("a graph opens nothing")

    def obstacle(self, name: str, workspace: str, positions: Any, until: Any = None) -> str:
        raise AssertionError("a graph asks nothing")

    def reached(self, name: str, workspace: str) -> Any:
        raise AssertionError("a graph asks nothing")


@dataclass(frozen=True)
class PaperSink:
    path: str | None = None
    key: tuple[str, ...] = ()
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    options: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "paper_sink"

    def arguments(self) -> Mapping[str, Any]:
        return {"path": self.path, "key": list(self.key), **self.options}

    def check_columns(self, columns: Collection[str] | None) -> None:
        require_columns(self.key, columns, "key=")

    def connect(self, name: str, pipeline: str, schema: pa.Schema) -> Any:
        raise AssertionError("a graph opens nothing")


def source(
    name: str | None = "flights",
    *,
    schema: str | pa.Schema | None = FLIGHTS,
    timestamp: str | None = None,
    rejects: bool = False,
    path: str = "data/flights",
    limit: int | None = None,
) -> Stream:
    known = None if schema is None else to_arrow(schema)
    return stream_from(PaperSource(known, timestamp, rejects, path, limit), name=name)


def paper(
    name: str | None = None,
    *,
    path: str | None = None,
    key: tuple[str, ...] = (),
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
    **options: Any,
) -> SinkNode:
    return sink(PaperSink(path if path or not name else name, key, guarantee, options), name=name)
