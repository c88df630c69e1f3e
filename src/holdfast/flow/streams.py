"""A stream of a graph that runs: one producer, and the inputs that it fills."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from holdfast.errors import HoldfastError, InvalidPipeline
from holdfast.flow import timestamps
from holdfast.flow.queues import ABSENT, InputQueue, Packet, Payload, late_packet
from holdfast.flow.timestamps import DONE, MAX, MIN, PRE_STREAM

Observer = Callable[[int, Any], None]


class OutputStream:
    """A stream: one producer, any number of inputs that it fills, and who looks on.

    Parameters
    ----------
    name : str
        Unique in the graph.
    """

    __slots__ = ("bound", "bound_observers", "name", "observers", "queues")

    def __init__(self, name: str) -> None:
        self.name = name
        self.queues: list[InputQueue] = []
        self.observers: list[Observer] = []
        self.bound_observers: list[Observer] = []
        self.bound = PRE_STREAM
        """Lowest time of the next packet, as the producer knows it."""

    def send(self, packet: Packet) -> None:
        """Give a packet to every input; ask those nodes that may be ready now.

        Raises
        ------
        BrokenContract
            If an input must not have it.
        """
        for queue in self.queues:
            node = queue.node
            if not node.is_closed and queue.push(packet):
                node.ask()
        t = packet[0]
        bound = t + 1 if MIN <= t < MAX else timestamps.after(t)
        if bound > self.bound:
            self.bound = bound
        elif self.observers:
            raise late_packet(self.name, t, self.bound, "who looks on from outside", None)
        if self.observers:
            self._show(self.observers, t, packet[1])

    def raise_bound(self, bound: int) -> None:
        """Promise that no packet below a time comes; a lower one changes nothing."""
        if bound <= self.bound:
            return
        ahead: list[Raised] = []
        self.rise(bound, ahead)
        while ahead:  # depth first, with a stack of its own: a chain of calculators may be long
            stream, bound, queues = ahead[-1]
            height = len(ahead)
            for queue in queues:
                if queue.raise_bound(bound):
                    queue.node.ask(ahead)
                    if len(ahead) > height:
                        break
            else:
                ahead.pop()
                if stream.bound_observers and MIN < bound < DONE:
                    stream._show(stream.bound_observers, timestamps.before(bound), ABSENT)

    def rise(self, bound: int, ahead: list[Raised]) -> None:
        """Raise the bound here, and leave to the caller what follows from it."""
        self.bound = bound
        ahead.append((self, bound, iter(self.queues)))

    def _show(self, observers: Sequence[Observer], t: int, value: Payload) -> None:
        for observer in observers:
            try:
                observer(t, value)
            except HoldfastError:
                raise
            except Exception as error:
                raise InvalidPipeline(
                    f"An observer of stream {self.name!r} failed at {timestamps.text(t)}: "
                    f"{type(error).__name__}: {error}.",
                    why="its own code raised it; the graph has stopped.",
                    do="mend the observer; the traceback above is where.",
                ) from error


Raised = tuple[OutputStream, int, Iterator[InputQueue]]
"""A stream whose bound has risen, the bound, and the inputs that do not know of it yet."""
