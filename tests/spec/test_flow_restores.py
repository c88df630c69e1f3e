"""What of a flowgraph is restored, let go and promised, where graphs come and go (design/0045)."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

import holdfast as hf
from holdfast.flow import Calculator, Context, Contract, Graph, node
from tests.calculators import Both, Decoder, Total
from tests.spec.test_flow_operator import line, single

pytestmark = pytest.mark.slow

NOTHING: Any = []


def row(key: str, t: int, value: int = 1) -> dict[str, Any]:
    return {"k": key, "t": t, "v": value}


def counted(stream: hf.Stream) -> hf.Stream:
    """Return how many rows of a stream are in each window of ten."""
    return stream | hf.aggregate(by="k", window=hf.tumbling(10), n=hf.count())


def pair(**options: Any) -> Graph:
    """Return a graph of two inputs that meet."""
    graph = Graph("pair")
    left, right = graph.input("left"), graph.input("right")
    graph.output("out", {"left": left, "right": right} | node(Both, **options))
    return graph


# --- restored --------------------------------------------------------------------------------------------------------


class Promising(Calculator):
    """Promises bounds by itself, from the beginning on."""

    contract: ClassVar[Contract] = Contract(inputs="value", outputs="same", is_pure=True)

    def open(self, context: Context) -> None:
        context.bound("same", 0)

    def process(self, context: Context) -> None:
        context.emit("same", context["value"])
        context.bound("same", context.timestamp + 1)

    def save(self) -> Mapping[str, Any]:
        return {}


class PromisingDecoder(Decoder):
    """A decoder that does so."""

    contract: ClassVar[Contract] = Contract(inputs={"frame": dict}, outputs={"image": int}, replay_from="is_key")

    def process(self, context: Context) -> None:
        super().process(context)
        context.bound("image", context.timestamp + 1)


# --- let go ----------------------------------------------------------------------------------------------------------


class Unsaved(Total):
    """Cannot be saved."""

    def save(self) -> Mapping[str, Any]:
        raise ValueError("no")


def threads() -> int:
    return sum(each.name.startswith("holdfast-flow") for each in threading.enumerate())


_STREAMS: dict[type, hf.Stream] = {}


def single_of(calculator: type[Calculator]) -> hf.Stream:
    """Return the same stream for a calculator each time, as the tasks of a run have it."""
    if calculator not in _STREAMS:
        _STREAMS[calculator] = single(line(calculator), threads=2)
    return _STREAMS[calculator]


class Closing(Total):
    """Raises when it is closed before its time."""

    opened: ClassVar[list[object]] = []
    contract: ClassVar[Contract] = Contract(
        inputs="value", outputs="total", timestamp_offset=0, process_timestamp_bounds=True
    )

    def open(self, context: Context) -> None:
        self.opened.append(self)

    def process(self, context: Context) -> None:
        if "value" in context:
            super().process(context)

    def close(self, context: Context) -> None:
        self.opened.remove(self)
        if self._total < 5:
            raise ValueError("too few")


class SlowTotal(Total):
    """Is called several times at once."""

    contract: ClassVar[Contract] = Contract(inputs="value", outputs="total", timestamp_offset=0, max_in_flight=4)

    def process(self, context: Context) -> None:
        time.sleep(0.001 * (context["value"] % 3))
        super().process(context)


# --- promised --------------------------------------------------------------------------------------------------------


class Opening(Calculator):
    """Sends something when it is opened, for each key."""

    contract: ClassVar[Contract] = Contract(inputs="value", outputs="same", timestamp_offset=0, is_pure=True)

    def open(self, context: Context) -> None:
        context.emit("same", 0, at=0)

    def process(self, context: Context) -> None:
        context.emit("same", context["value"])

    def save(self) -> Mapping[str, Any]:
        return {}


class Ticking(Opening):
    """Sends something for bounds."""

    contract: ClassVar[Contract] = Contract(
        inputs="value", outputs="same", timestamp_offset=0, process_timestamp_bounds=True, is_pure=True
    )

    def open(self, context: Context) -> None:
        """Send nothing."""

    def process(self, context: Context) -> None:
        context.emit("same", context.get("value", 0))
