"""Input policies, as a node follows them: which packets are its next input set, and when.

A policy is asked when something of a node's inputs has changed and the node is free.  It answers with the next input
set, which it has taken out of the queues, with :data:`CLOSE`, or with None: not ready.  Rules and quirks are those of
docs/operators/flow.md; the columnar operator ``sync`` decides the same for whole epochs
(:mod:`holdfast.operators.sync.decide`), and tests compare the two.

References
----------
MediaPipe, "Synchronization: input policies".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

from holdfast.flow.queues import InputQueue, Packet, Payload
from holdfast.flow.timestamps import (
    DONE,
    ONE_OVER_POST_STREAM,
    POST_STREAM,
    UNSET,
    UNSTARTED,
    before,
)


class Close:
    """The type of :data:`CLOSE`."""

    def __repr__(self) -> str:
        return "CLOSE"


CLOSE = Close()
"""Answer of a policy: nothing comes any more."""

InputSet = tuple[int, list[Packet]]
"""Time, and for each input its packet, or ABSENT with the last time settled there."""

Answer = InputSet | Close | None


class Declared(Protocol):
    """A policy as it is declared: one of ``hf.policy``, which the operator ``sync`` takes too."""

    @property
    def kind(self) -> str:
        """Its name."""

    def arguments(self) -> Mapping[str, Payload]:
        """Return what it was declared with."""


def identity_of(kind: type) -> str:
    """Return by what a checkpoint knows a class: what it declares itself, or its module and name."""
    return str(vars(kind).get("identity") or f"{kind.__module__}.{kind.__qualname__}")


class Policy:
    """What a node's inputs make of its packets; a policy of one's own is a subclass.

    Parameters
    ----------
    queues : sequence of InputQueue
        The inputs, in the order of the contract.
    with_bounds : bool
        Whether the node runs also for times that are settled without a packet.
    """

    identity: ClassVar[str] = ""
    """As that of a calculator: by what a checkpoint knows the class, where its code has moved."""

    state: tuple[str, ...] = ()
    """Attributes that are kept with a checkpoint: numbers, and lists of numbers."""

    is_ordered = True
    """Whether the times of each input must ascend."""

    is_ordered_across = False
    """Whether times ascend across the inputs: no input set is below what any of them has settled."""

    drops = False
    """Whether each packet is to be looked at when it comes, for what is dropped: then :meth:`drop` is called."""

    def __init__(self, queues: Sequence[InputQueue], with_bounds: bool = False) -> None:
        self.queues = tuple(queues)
        self.with_bounds = with_bounds
        self.low: int | None = None
        """Least time that the next input set may have, as far as the last answer says; None: unknown."""

    def next_set(self) -> Answer:
        """Return the next input set, taken out of the queues."""
        raise NotImplementedError

    def drop(self) -> None:
        """Drop what is not wanted: a packet has come."""

    def form(self) -> list[list[str]]:
        """Return what the lists of its state are about, such as the inputs: of others they are not taken over."""
        return []

    def missing(self) -> list[InputQueue]:
        """Return the inputs that what waits is waiting for."""
        return _missing(self.queues)

    def _take(self, t: int) -> InputSet:
        """Take what is at a time."""
        found = []
        for queue in self.queues:
            items = queue.items
            if items and items[0][0] == t:
                found.append(queue.pop() if queue.is_full else items.popleft())
            else:
                found.append(queue.empty_packet())
        return t, found


def _missing(queues: Sequence[InputQueue]) -> list[InputQueue]:
    """Return the inputs that are empty, and not settled at the first packet that waits."""
    first = min((queue.items[0][0] for queue in queues if queue.items), default=UNSET)
    return [queue for queue in queues if not queue.items and queue.bound <= first]


class _Group:
    """Inputs that settle together."""

    __slots__ = ("last", "low", "queues", "with_bounds")

    def __init__(self, queues: Sequence[InputQueue], with_bounds: bool) -> None:
        self.queues = queues
        self.with_bounds = with_bounds
        self.last = UNSTARTED
        self.low = UNSTARTED

    def ready(self) -> int | Close | None:
        """Return the time of the next input set."""
        low_bound = low_packet = DONE
        for queue in self.queues:
            items = queue.items
            if items:
                t = items[0][0]
                if t < low_packet:
                    low_packet = t
            elif queue.bound < low_bound:
                low_bound = queue.bound
        if low_bound > low_packet:
            self.low = low_packet
            if not self.with_bounds or low_packet == POST_STREAM:
                return low_packet
        else:
            self.low = low_bound
            if low_bound >= ONE_OVER_POST_STREAM:
                return CLOSE
        if not self.with_bounds:
            return None
        t = before(low_bound)
        if low_packet < t:
            t = low_packet
        return t if t > self.last else None


class SettledInputs(Policy):
    """All packets of one time as soon as it is settled on every input; ascending, and nothing is dropped."""

    state: tuple[str, ...] = ("last",)
    is_ordered_across = True

    def __init__(self, queues: Sequence[InputQueue], with_bounds: bool = False) -> None:
        super().__init__(queues, with_bounds)
        self._group = _Group(self.queues, with_bounds)

    @property
    def last(self) -> int:
        """Time of the last input set."""
        return self._group.last

    @last.setter
    def last(self, t: int) -> None:
        self._group.last = t

    def next_set(self) -> Answer:
        """Return the next input set, taken out of the queues."""
        group = self._group
        t = group.ready()
        self.low = group.low
        if t is None or isinstance(t, Close):
            return t
        group.last = t
        return self._take(t)


class EarlyCloseInputs(SettledInputs):
    """Settled, until one input has ended and is used up; what waits elsewhere then is lost."""

    def next_set(self) -> Answer:
        """Return the next input set, taken out of the queues."""
        if any(queue.bound == DONE and not queue.items for queue in self.queues):
            return CLOSE
        answer = super().next_set()
        return None if answer is CLOSE else answer


class SyncSetInputs(Policy):
    """Settled within each group of inputs; of several groups that are ready the least time goes first."""

    state = ("last",)

    def __init__(
        self, queues: Sequence[InputQueue], with_bounds: bool = False, groups: Sequence[Sequence[str]] = ()
    ) -> None:
        super().__init__(queues, with_bounds)
        by_name = {queue.name: queue for queue in queues}
        named = {name for group in groups for name in group}
        rest = [name for name in by_name if name not in named]
        self._groups = [
            _Group([by_name[name] for name in group], with_bounds) for group in (*groups, rest) if len(group)
        ]

    @property
    def last(self) -> list[int]:
        """For each group the time of its last input set."""
        return [group.last for group in self._groups]

    @last.setter
    def last(self, times: Sequence[int]) -> None:
        for group, t in zip(self._groups, times, strict=True):
            group.last = t

    def form(self) -> list[list[str]]:
        """Return the inputs of each group."""
        return [[queue.name for queue in group.queues] for group in self._groups]

    def missing(self) -> list[InputQueue]:
        """Return the inputs that what waits is waiting for."""
        return [queue for group in self._groups for queue in _missing(group.queues)]

    def next_set(self) -> Answer:
        """Return the next input set, taken out of the queues."""
        best: _Group | None = None
        first = DONE
        is_over = True
        for group in self._groups:
            t = group.ready()
            if isinstance(t, Close):
                continue
            is_over = False
            if t is not None and t < first:
                best, first = group, t
        if best is None:
            return CLOSE if is_over else None
        best.last = first
        found = []
        for queue in self.queues:
            is_at = queue in best.queues and queue.items and queue.items[0][0] == first
            found.append(queue.pop() if is_at else queue.empty_packet())
        return first, found


class ImmediateInputs(Policy):
    """What has come, at once; packets meet only where they have piled up while the node was busy."""

    state = ("last", "is_told")

    def __init__(self, queues: Sequence[InputQueue], with_bounds: bool = False) -> None:
        super().__init__(queues, with_bounds)
        self.last = [UNSTARTED] * len(self.queues)
        self.is_told = [0] * len(self.queues)
        """Which inputs' end the node knows of."""

    def form(self) -> list[list[str]]:
        """Return the inputs."""
        return [[queue.name for queue in self.queues]]

    def next_set(self) -> Answer:
        """Return the next input set, taken out of the queues."""
        heads = [queue.head for queue in self.queues]
        self.low = min(heads)
        ready = [self._ready(place, queue) for place, queue in enumerate(self.queues)]
        t = min(ready)
        ended = [head >= ONE_OVER_POST_STREAM for head in heads]
        has_news = any(is_over and not told for is_over, told in zip(ended, self.is_told, strict=True))
        if t < DONE:
            self.is_told = [int(is_over or told) for is_over, told in zip(ended, self.is_told, strict=True)]
            found = []
            for place, queue in enumerate(self.queues):
                if ready[place] == t:
                    self.last[place] = t
                is_at = queue.items and queue.items[0][0] == t
                found.append(queue.pop() if is_at else queue.empty_packet())
            return t, found
        if all(ended):
            return CLOSE
        if has_news and not self.with_bounds:
            self.is_told = [int(is_over) for is_over in ended]
            return self.low, [queue.empty_packet() for queue in self.queues]
        return None

    def _ready(self, place: int, queue: InputQueue) -> int:
        """Return the time at which an input can be given; DONE: not now."""
        if queue.items:
            return queue.items[0][0]
        if not self.with_bounds:
            return DONE
        t = before(queue.bound)
        return t if t > self.last[place] else DONE


class BarrierInputs(Policy):
    """The next packet of each input, whatever its time."""

    is_ordered = False

    def next_set(self) -> Answer:
        """Return the next input set, taken out of the queues."""
        if all(queue.items for queue in self.queues):
            found = [queue.pop() for queue in self.queues]
            return min(packet[0] for packet in found), found
        if any(queue.bound == DONE and not queue.items for queue in self.queues):
            return CLOSE
        return None

    def missing(self) -> list[InputQueue]:
        """Return the inputs that what waits is waiting for."""
        return [queue for queue in self.queues if not queue.items]
