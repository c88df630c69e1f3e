"""Packets that a calculator keeps for later, and what it promises of those to come."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from holdfast.flow.contract import Saved
from holdfast.flow.queues import Packet, Payload
from holdfast.flow.timestamps import MAX

if TYPE_CHECKING:
    from holdfast.flow.context import Context


def saved_packets(packets: Collection[Packet]) -> dict[str, list[Payload]]:
    """Return packets as a calculator's state has them: a list of times, and one of payloads."""
    return {"times": [t for t, _ in packets], "payloads": [value for _, value in packets]}


def restored_packets(saved: Saved) -> Iterator[Packet]:
    """Yield the packets that :func:`saved_packets` gave."""
    return zip(saved["times"], saved["payloads"], strict=True)


def promise(context: Context, output: str, bound: int) -> None:
    """Raise the bound of an output; a lower one changes nothing, and beyond every time the output is closed."""
    if bound > MAX:
        context.close_output(output)
    elif bound > context.output_bound(output):
        context.raise_bound(output, bound)
