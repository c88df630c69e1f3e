"""Policies that drop, choose or shift; and all of them by the kind that is declared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from holdfast.errors import InvalidPipeline
from holdfast.flow.policies import (
    CLOSE,
    Answer,
    BarrierInputs,
    EarlyCloseInputs,
    ImmediateInputs,
    InputSet,
    Policy,
    SettledInputs,
    SyncSetInputs,
)
from holdfast.flow.queues import InputQueue, Packet, Payload
from holdfast.flow.timestamps import DONE, ONE_OVER_POST_STREAM, UNSET, after, before, shift


class FixedSizeInputs(SettledInputs):
    """Settled, but an input whose queue grows to ``trigger`` packets keeps only the newest ``target``."""

    state = ("last", "kept")
    drops = True

    def __init__(
        self,
        queues: Sequence[InputQueue],
        with_bounds: bool = False,
        trigger: int = 2,
        target: int = 1,
        min_size: bool = False,
    ) -> None:
        super().__init__(queues, with_bounds)
        self.trigger = trigger
        self.target = target
        self.min_size = min_size
        self.kept = UNSET
        """Below this time all is dropped."""

    def next_set(self) -> Answer:
        """Return the next input set, taken out of the queues."""
        self.drop()
        return super().next_set()

    def _take(self, t: int) -> InputSet:
        newest = min(before(after(queue.items[-1][0])) if queue.items else before(queue.bound) for queue in self.queues)
        self.kept = min(self.kept, newest)  # so that one time survives
        return super()._take(t)

    def drop(self) -> None:
        """Drop what newer packets push out."""
        if self.min_size:
            if any(len(queue.items) < self.trigger for queue in self.queues):
                return
            below = min(queue.items[-self.target][0] for queue in self.queues)
        else:
            for queue in self.queues:
                limit = self.target if len(queue.items) >= self.trigger else self.trigger - 1
                if len(queue.items) > limit:
                    self.kept = max(self.kept, after(queue.items[-limit - 1][0]))
            below = self.kept
        for queue in self.queues:
            while queue.items and queue.items[0][0] < below:
                queue.drop()


class MuxInputs(Policy):
    """Each packet of the control input chooses, by name or number, which data input's packet of its time goes along."""

    is_ordered_across = True

    def __init__(
        self,
        queues: Sequence[InputQueue],
        with_bounds: bool = False,
        select: str = "",
        column: str | None = None,
    ) -> None:
        super().__init__(queues, with_bounds)
        self._control = next(queue for queue in self.queues if queue.name == select)
        self._data = [queue for queue in self.queues if queue is not self._control]
        self._by_name = {queue.name: queue for queue in self._data}
        self._attribute = column

    def next_set(self) -> Answer:
        """Return the next input set, taken out of the queues."""
        control = self._control
        self.low = control.head
        if not control.items:
            return CLOSE if control.bound == DONE else None
        t, choice = control.items[0]
        self._drop_below(t)
        chosen = self._choice(choice)
        if not chosen.items and chosen.bound <= t:
            return None
        found = []
        for queue in self.queues:
            takes = queue is control or (queue is chosen and queue.items and queue.items[0][0] == t)
            found.append(queue.pop() if takes else queue.empty_packet())
        self._drop_below(t + 1)
        return t, found

    def missing(self) -> list[InputQueue]:
        """Return the inputs that what waits is waiting for."""
        control = self._control
        return [self._choice(control.items[0][1]) if control.items else control]

    def _drop_below(self, t: int) -> None:
        for queue in self._data:
            while queue.items and queue.items[0][0] < t:
                queue.drop()

    def _choice(self, choice: Payload) -> InputQueue:
        if self._attribute is not None:
            choice = choice[self._attribute] if isinstance(choice, Mapping) else getattr(choice, self._attribute)
        if isinstance(choice, str) and choice in self._by_name:
            return self._by_name[choice]
        if isinstance(choice, int) and 0 <= choice < len(self._data):
            return self._data[choice]
        raise InvalidPipeline(
            f"A packet of input {self._control.name!r} of calculator {self._control.node.name!r} chooses {choice!r}.",
            why=f"the data inputs are {', '.join(f'{n} ({name})' for n, name in enumerate(self._by_name))}.",
            do="give each control packet one of these numbers or names.",
            participant=self._control.node.name,
        )


class AlignedInputs(Policy):
    """Settled, after each other input was shifted to the base's time at their first meeting."""

    state = ("offsets",)

    def __init__(self, queues: Sequence[InputQueue], with_bounds: bool = False, base: str = "") -> None:
        super().__init__(queues, with_bounds)
        self._base = next(queue for queue in self.queues if queue.name == base)
        self.offsets: list[int] = []
        """What is added to the times of each input; empty: they have not met."""

    def form(self) -> list[list[str]]:
        """Return the base, and the inputs."""
        return [[self._base.name], [queue.name for queue in self.queues]]

    def next_set(self) -> Answer:
        """Return the next input set, taken out of the queues."""
        base = self._base
        if not self.offsets:
            self.low = base.head
            if not base.items:
                return None
            if not all(queue.items for queue in self.queues):
                t = base.items[0][0]
                return t, [queue.pop() if queue is base else queue.empty_packet() for queue in self.queues]
            self.offsets = [base.head - queue.head for queue in self.queues]
        low_bound = low_packet = DONE
        for queue, offset in zip(self.queues, self.offsets, strict=True):
            if queue.items:
                low_packet = min(low_packet, shift(queue.items[0][0], offset))
            else:
                low_bound = min(low_bound, shift(queue.bound, offset))
        self.low = min(low_bound, low_packet)
        if self.low >= ONE_OVER_POST_STREAM:
            return CLOSE
        if low_bound <= low_packet:
            return None
        found: list[Packet] = []
        for queue, offset in zip(self.queues, self.offsets, strict=True):
            if queue.items and shift(queue.items[0][0], offset) == low_packet:
                found.append((low_packet, queue.pop()[1]))
            else:
                found.append(queue.empty_packet())
        return low_packet, found

    def missing(self) -> list[InputQueue]:
        """Return the inputs that what waits is waiting for."""
        if not self.offsets:
            return [self._base]
        shifts = list(zip(self.queues, self.offsets, strict=True))
        first = min((shift(queue.items[0][0], offset) for queue, offset in shifts if queue.items), default=UNSET)
        return [queue for queue, offset in shifts if not queue.items and shift(queue.bound, offset) <= first]


POLICIES: dict[str, Callable[..., Policy]] = {
    "settled": SettledInputs,
    "sync_sets": SyncSetInputs,
    "immediate": ImmediateInputs,
    "barrier": BarrierInputs,
    "early_close": EarlyCloseInputs,
    "fixed_size": FixedSizeInputs,
    "mux": MuxInputs,
    "timestamp_align": AlignedInputs,
}
"""How each declared kind is followed."""
