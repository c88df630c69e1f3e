"""What the graph made of the packet before, beside the next one."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.flow import timestamps
from holdfast.flow.calculators.packets import promise, restored_packets, saved_packets
from holdfast.flow.contract import Calculator, Contract, Saved
from holdfast.flow.policies import ImmediateInputs
from holdfast.flow.queues import ABSENT, Packet
from holdfast.flow.timestamps import UNSET, UNSTARTED

if TYPE_CHECKING:
    from holdfast.flow.context import Context


class PreviousLoopback(Calculator):
    """Gives with each packet of ``main`` what ``loop`` had at the time of the packet before, at the time of this one.

    ``loop`` comes by a back edge from what is made of ``main``.  The first packet of ``main`` has no predecessor, and
    where ``loop`` has nothing at a time, nothing is given: only the bound of the output rises, as it does where
    ``main`` has only a bound.

    References
    ----------
    MediaPipe, ``PreviousLoopbackCalculator``.
    """

    contract: ClassVar[Contract] = Contract(
        inputs=("main", "loop"),
        outputs=("previous",),
        policy=ImmediateInputs,
        process_timestamp_bounds=True,
    )

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self._main: deque[tuple[int, int]] = deque()
        """(time, time of the packet before it); UNSTARTED: it is the first, UNSET: it is only a bound."""

        self._loop: deque[Packet] = deque()
        """With ABSENT as payload: a time up to which there is nothing."""

        self._last = UNSTARTED
        self._main_until = UNSTARTED
        self._loop_until = UNSET

    def process(self, context: Context) -> None:
        """Take what is new, and give what is known now."""
        t = context.time_of("main")
        if t > self._main_until:
            self._main_until = t
            is_packet = "main" in context
            if not is_packet and self._main and self._main[-1][1] == UNSET:
                self._main.pop()  # a lower bound
            self._main.append((t, self._last if is_packet else UNSET))
            if is_packet:
                self._last = t
        t = context.time_of("loop")
        if t > self._loop_until:
            self._loop_until = t
            value = context.get("loop", ABSENT)
            if value is ABSENT and self._loop and self._loop[-1][1] is ABSENT:
                self._loop.pop()
            self._loop.append((t, value))
        self._give(context)

    def _give(self, context: Context) -> None:
        while self._main and self._loop:
            t, previous = self._main[0]
            at, value = self._loop[0]
            if at <= previous:
                self._loop.popleft()
            if at < previous:
                continue
            self._main.popleft()
            if at == previous and value is not ABSENT:
                context.emit("previous", value, t)
            promise(context, "previous", timestamps.after(t))

    def save(self) -> Saved:
        """Return what waits."""
        return {
            "main": [t for t, _ in self._main],
            "before": [previous for _, previous in self._main],
            "loop": saved_packets([packet for packet in self._loop if packet[1] is not ABSENT]),
            "nothing": [t for t, value in self._loop if value is ABSENT],
            "times": [self._last, self._main_until, self._loop_until],
        }

    def restore(self, saved: Saved) -> None:
        """Take it."""
        self._main = deque(zip(saved["main"], saved["before"], strict=True))
        loop = [*restored_packets(saved["loop"]), *((t, ABSENT) for t in saved["nothing"])]
        self._loop = deque(sorted(loop, key=lambda packet: packet[0]))
        self._last, self._main_until, self._loop_until = saved["times"]
