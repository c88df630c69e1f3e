"""A flow limiter: it lets a packet into a graph only while few are in it, and drops the others at the entry."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.flow import timestamps
from holdfast.flow.calculators.options import check_names, check_numbers
from holdfast.flow.calculators.packets import promise, restored_packets, saved_packets
from holdfast.flow.contract import Calculator, Contract, Saved
from holdfast.flow.policies import ImmediateInputs
from holdfast.flow.queues import Packet
from holdfast.flow.timestamps import MAX, UNSET

if TYPE_CHECKING:
    from holdfast.flow.context import Context


class FlowLimiter(Calculator):
    """Lets packets of ``main`` in while fewer than ``max_in_flight`` are between here and ``finished``.

    ``finished`` is the final output of what is limited, by a back edge; a packet or bound there ends all that was let
    in up to its time.  What is not let in waits, ``max_in_queue`` packets at most, and the oldest beyond is dropped:
    here, where nothing has been done for it yet.  ``allow`` says for each packet of ``main`` whether it was let in.
    Packets of auxiliary inputs share the fate of the last decision at or before their time.

    What is let in depends on arrival, by nature; all times are of packets, so a simulated run repeats it.

    References
    ----------
    MediaPipe, ``FlowLimiterCalculator``.
    """

    @dataclass(frozen=True)
    class Options:
        """How much is let in.

        Parameters
        ----------
        max_in_flight : int
            Packets between here and ``finished``.
        max_in_queue : int
            Packets that wait here.
        in_flight_timeout : int
            Packets that are older than the newest by more than this are taken for finished; 0: never.
        auxiliary : sequence of str
            Further inputs, whose outputs have the same names.
        """

        max_in_flight: int = 1
        max_in_queue: int = 0
        in_flight_timeout: int = 0
        auxiliary: Sequence[str] = ()

        def __post_init__(self) -> None:
            check_numbers(self, max_in_flight=1, max_in_queue=0, in_flight_timeout=0)
            check_names(self, "auxiliary", taken=("main", "finished", "allow"), may_be_none=True)

    @classmethod
    def contract_of(cls, options: Options) -> Contract:
        """Return the contract, with the auxiliary inputs."""
        return Contract(
            inputs=("main", *options.auxiliary, "finished"),
            outputs=dict.fromkeys(("main", *options.auxiliary)) | {"allow": bool},
            policy=ImmediateInputs,
            process_timestamp_bounds=True,
        )

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._in_flight: list[int] = []
        self._queues: dict[str, deque[Packet]] = {name: deque() for name in ("main", *options.auxiliary)}
        self._decisions: list[tuple[int, bool]] = [(UNSET, True)]
        """What was decided, by time; those that no auxiliary packet can ask for any more are forgotten."""

    def process(self, context: Context) -> None:
        """Let in, drop, and promise."""
        t = context.timestamp
        if context.time_of("finished") == t:
            self._in_flight = [each for each in self._in_flight if each > t]
        for name, queue in self._queues.items():
            if name in context:
                queue.append((context.time_of(name), context[name]))
        timeout = self.options.in_flight_timeout
        if timeout and context.time_of("main") == t and t < MAX:
            self._in_flight = [each for each in self._in_flight if each >= t - timeout]
        main = self._queues["main"]
        while len(self._in_flight) < self.options.max_in_flight and main:
            at, value = main.popleft()
            context.emit("main", value, at)
            self._decide(context, at, True)
            self._in_flight.append(at)
        while len(main) > self.options.max_in_queue:
            self._decide(context, main.popleft()[0], False)
            context.drop()
        known = timestamps.after(context.time_of("main"))
        bound = main[0][0] if main else known
        promise(context, "main", bound)
        if not main:
            promise(context, "allow", bound)
        self._auxiliary(context, bound)

    def _decide(self, context: Context, t: int, is_let_in: bool) -> None:
        context.emit("allow", is_let_in, t)
        self._decisions.append((t, is_let_in))

    def _auxiliary(self, context: Context, main_bound: int) -> None:
        lowest = main_bound
        for name in self.options.auxiliary:
            queue = self._queues[name]
            while queue and queue[0][0] < main_bound:
                t, value = queue.popleft()
                if next(is_let_in for at, is_let_in in reversed(self._decisions) if at <= t):
                    context.emit(name, value, t)
                else:
                    context.drop()
            bound = queue[0][0] if queue else timestamps.after(context.time_of(name))
            lowest = min(lowest, bound)
            promise(context, name, bound)
        while len(self._decisions) > 1 and self._decisions[1][0] <= lowest:
            self._decisions.pop(0)

    def save(self) -> Saved:
        """Return what is in flight and what waits."""
        return {
            "in_flight": list(self._in_flight),
            "queues": {name: saved_packets(queue) for name, queue in self._queues.items()},
            "decided": [t for t, _ in self._decisions],
            "let_in": [is_let_in for _, is_let_in in self._decisions],
        }

    def restore(self, saved: Saved) -> None:
        """Take them."""
        self._in_flight = list(saved["in_flight"])
        for name in self._queues.keys() & saved["queues"].keys():  # an auxiliary input may be new, or gone
            self._queues[name] = deque(restored_packets(saved["queues"][name]))
        self._decisions = list(zip(saved["decided"], saved["let_in"], strict=True))
