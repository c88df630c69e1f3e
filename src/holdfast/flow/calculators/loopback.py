"""What the graph made of the packet before, beside the next one."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.flow import timestamps
from holdfast.flow.contract import Calculator, Contract
from holdfast.flow.policies import Immediate
from holdfast.flow.timestamps import MAX, UNSTARTED

if TYPE_CHECKING:
    from holdfast.flow.context import Context


class PreviousLoopback(Calculator):
    """Gives with each packet of ``main`` what ``loop`` had at the time of the packet before, at the time of this one.

    ``loop`` comes by a back edge from what is made of ``main``.  The first packet of ``main`` has no predecessor, and
    where ``loop`` has nothing at a time, nothing is given: only the bound of the output rises.

    References
    ----------
    MediaPipe, ``PreviousLoopbackCalculator``.
    """

    contract: ClassVar[Contract] = Contract(
        inputs=("main", "loop"),
        outputs=("previous",),
        policy=Immediate,
        process_timestamp_bounds=True,
    )

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self._main: deque[tuple[int, int]] = deque()
        """(time, time of the packet before), and where only a bound came: (time, time)."""

        self._loop: deque[tuple[int, Any]] = deque()
        self._last = UNSTARTED
        self._main_until = UNSTARTED
        self._loop_until = UNSTARTED

    def process(self, context: Context) -> None:
        """Give what is known now."""
        t = context.timestamp
        if context.time_of("main") == t and t > self._main_until:
            self._main_until = t
            if "main" in context:
                self._main.append((t, self._last))
                self._last = t
            elif not self._main:
                self._promise(context, timestamps.after(t))
            else:
                self._main.append((t, t))
        if context.time_of("loop") == t and t > self._loop_until:
            self._loop_until = t
            if "loop" in context:
                self._loop.append((t, context["loop"]))
        self._give(context)

    def _give(self, context: Context) -> None:
        while self._main:
            t, previous = self._main[0]
            if previous not in (UNSTARTED, t):
                while self._loop and self._loop[0][0] < previous:
                    self._loop.popleft()
                if self._loop and self._loop[0][0] == previous:
                    context.emit("previous", self._loop.popleft()[1], t)
                elif self._loop_until < previous:
                    return
            self._promise(context, timestamps.after(t))
            self._main.popleft()

    def _promise(self, context: Context, bound: int) -> None:
        if bound > MAX:
            context.close_output("previous")
        elif bound > context.output_bound("previous"):
            context.bound("previous", bound)

    def save(self) -> Mapping[str, Any]:
        """Return what waits."""
        return {
            "main": list(self._main),
            "loop": list(self._loop),
            "times": [self._last, self._main_until, self._loop_until],
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take it."""
        self._main = deque((t, previous) for t, previous in saved["main"])
        self._loop = deque((t, value) for t, value in saved["loop"])
        self._last, self._main_until, self._loop_until = saved["times"]
