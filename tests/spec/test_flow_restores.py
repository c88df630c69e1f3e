"""What of a flowgraph is restored, let go and promised, where graphs come and go (design/0045)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from holdfast.flow import Calculator, Context, Contract
from tests.calculators import Decoder

pytestmark = pytest.mark.slow

NOTHING: Any = []


def row(key: str, t: int, value: int = 1) -> dict[str, Any]:
    return {"k": key, "t": t, "v": value}


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
