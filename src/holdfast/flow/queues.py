"""The queue of one input of one node, with its bound: what waits, and what may still come."""

from __future__ import annotations

from collections import deque
from operator import index
from typing import Any

from holdfast.errors import InvalidPipeline
from holdfast.flow import timestamps
from holdfast.flow.timestamps import DONE, MAX, MIN, ONE_OVER_POST_STREAM, POST_STREAM, PRE_STREAM, UNSET

Types = type | tuple[type, ...] | None
"""Of the payloads of a port: a type, several, or None for any."""

UNLIMITED = -1
DEFAULT_LIMIT = 100
"""Packets in one queue at which what feeds it is held back."""

Payload = Any
"""Any value, by reference; None, too."""

Packet = tuple[int, Payload]
"""Time and payload.  In an input set an input without a packet has :data:`ABSENT`, and the last time settled there."""


class Absent:
    """The type of :data:`ABSENT`."""

    def __repr__(self) -> str:
        return "ABSENT"

    def __reduce__(self) -> str:
        return "ABSENT"


ABSENT = Absent()
"""In the place of a payload: there is no packet."""


class BrokenContract(InvalidPipeline):
    """A calculator or a caller has sent what its stream must not carry.

    Parameters
    ----------
    rule : str
        Which rule: ``late_packet``, ``illegal_timestamp``, ``post_stream_not_alone``, ``illegal_bound``,
        ``bound_moved_back``, ``type``, ``port``.
    """

    def __init__(self, what: str, *, rule: str, **more: Any) -> None:
        super().__init__(what, **more)
        self.rule = rule


class Throttle:
    """Holds back what feeds a full queue: a part of the engine."""

    def hold_back(self, queue: InputQueue) -> None:
        """Hold it back."""
        raise NotImplementedError

    def let_go(self, queue: InputQueue) -> None:
        """Let it go."""
        raise NotImplementedError


class QueueOwner:
    """Whose input a queue is: a part of a node."""

    name: str
    is_closed: bool
    throttle: Throttle
    drop_count: int
    """Packets that were dropped: by the policy, by the calculator, and those that it has gone beyond."""

    def ask(self, ahead: list[Any] | None = None) -> None:
        """Ask what is next."""
        raise NotImplementedError


class InputQueue:
    """Packets that one input of one node has not taken yet, and the lowest time of the next.

    Parameters
    ----------
    node : QueueOwner
        Whose input it is.
    name : str
        The input's.
    stream : str
        Name of the stream that fills it.
    limit : int
        Length at which it is full; :data:`UNLIMITED`: never.
    types : type, tuple of types or None
        Of payloads, where they are to be looked at: what fills the stream says nothing of them.
    """

    __slots__ = (
        "bound",
        "had_packet",
        "is_asked_always",
        "is_full",
        "is_ordered",
        "items",
        "limit",
        "name",
        "node",
        "passed_over",
        "stream",
        "types",
    )

    def __init__(self, node: QueueOwner, name: str, stream: str, limit: int, types: Types = None) -> None:
        self.node = node
        self.name = name
        self.stream = stream
        self.limit = limit
        self.types = types
        self.items: deque[Packet] = deque()
        self.bound = PRE_STREAM
        self.had_packet = False
        self.is_full = False
        self.is_ordered = True
        """Whether times must ascend: not where the node's policy ignores them."""

        self.passed_over = UNSET
        """Packets below this time are dropped, as long as nothing later has come: see :meth:`pass_over`."""

        self.is_asked_always = False
        """Whether each packet concerns the policy, and not only the first that waits."""

    @property
    def head(self) -> int:
        """Time of the first packet, or the bound."""
        return self.items[0][0] if self.items else self.bound

    def push(self, packet: Packet) -> bool:
        """Append a packet; return whether readiness may have changed.

        Raises
        ------
        BrokenContract
            If its time is below the bound, it is not alone where it must be, or its payload is of another type.
        """
        t = packet[0]
        items = self.items
        if self.bound <= t < MAX and t >= MIN:
            bound = t + 1
        elif t < self.passed_over == self.bound and (self.is_ordered or self.bound == DONE):
            self.node.drop_count += 1
            return False
        else:
            self._check(t)
            bound = max(timestamps.after(t), self.bound)
        if self.types is not None and not isinstance(packet[1], self.types):
            raise self._wrong_type(packet)
        items.append(packet)
        self.had_packet = True
        self.bound = bound
        if len(items) >= self.limit > 0 and not self.is_full:
            self.is_full = True
            self.node.throttle.hold_back(self)
        return len(items) == 1 or self.is_asked_always

    def raise_bound(self, bound: int) -> bool:
        """Raise the bound; a lower one changes nothing.  Return whether readiness may have changed."""
        if bound <= self.bound:
            return False
        self.bound = bound
        return not self.items

    def pass_over(self, below: int) -> None:
        """Drop what comes below a time: in a changed graph another stream fills it, and the node has gone beyond."""
        if below > self.bound:
            self.bound = self.passed_over = below

    def drop(self) -> None:
        """Take the first packet, and count it: nobody gets it."""
        self.pop()
        self.node.drop_count += 1

    def pop(self) -> Packet:
        """Take the first packet."""
        packet = self.items.popleft()
        if self.is_full and len(self.items) < self.limit:
            self.is_full = False
            self.node.throttle.let_go(self)
        return packet

    def clear(self) -> None:
        """Drop what waits: the node is closed."""
        while self.items:
            self.drop()

    def empty_packet(self) -> Packet:
        """Return what an input set has where this one has no packet: the last time known to have none."""
        return timestamps.before(self.items[0][0] if self.items else self.bound), ABSENT

    def _check(self, t: int) -> None:
        if not timestamps.may_carry(t):
            raise BrokenContract(
                f"A packet of stream {self.stream!r} has the time {timestamps.text(t)}.",
                rule="illegal_timestamp",
                why="packets carry PRE_STREAM, MIN to MAX, or POST_STREAM.",
                do="give it the time of what it was made from.",
                participant=self.node.name,
            )
        if not self.is_ordered and self.bound != DONE:
            return
        if t == POST_STREAM and self.had_packet:
            raise BrokenContract(
                f"A packet of stream {self.stream!r} at POST_STREAM follows others.",
                rule="post_stream_not_alone",
                why="it is for a stream that has one packet only, after everything else.",
                do="give it a stream of its own, or a time.",
                participant=self.node.name,
            )
        if t < self.bound:
            reader = f"input {self.name!r} of calculator {self.node.name!r}"
            raise late_packet(self.stream, t, self.bound, reader, self.node.name)

    def _wrong_type(self, packet: Packet) -> BrokenContract:
        return BrokenContract(
            f"A packet of stream {self.stream!r} at {timestamps.text(packet[0])} is {type(packet[1]).__name__}.",
            rule="type",
            why=f"input {self.name!r} of calculator {self.node.name!r} takes {type_text(self.types)}.",
            do="send that, or change the contract.",
            participant=self.node.name,
        )


def late_packet(stream: str, t: int, bound: int, reader: str, participant: str | None) -> BrokenContract:
    """Return the error of a packet below a bound."""
    return BrokenContract(
        f"A packet of stream {stream!r} at {timestamps.text(t)} comes too late for {reader}.",
        rule="late_packet",
        why="the stream is closed."
        if bound == DONE
        else f"nothing below {timestamps.text(bound)} was to come: so said a bound, or the last packet, which leaves "
        "its time plus one.",
        do="send packets in ascending order of time, one at a time; what comes in any order goes through a "
        "calculator that sorts it, or to one with the policy barrier.",
        participant=participant,
    )


def checked_time(t: Any, what: str) -> int:
    """Return a time that somebody gives, as a plain number.

    Raises
    ------
    BrokenContract
        If it is no whole number.

    Examples
    --------
    >>> checked_time(True, "A packet comes at"), checked_time(7, "A packet comes at")
    (1, 7)
    """
    try:
        return index(t)
    except TypeError:
        raise BrokenContract(
            f"{what} {t!r}.",
            rule="illegal_timestamp",
            why="times are whole numbers: of microseconds, or of frames.",
            do="give an int.",
        ) from None


def checked_bound(stream: str, bound: int, current: int) -> None:
    """Check a bound that somebody sets.

    Raises
    ------
    BrokenContract
        If no packet can have it, or it goes back.
    """
    if not (timestamps.may_carry(bound) or bound == ONE_OVER_POST_STREAM):
        raise BrokenContract(
            f"The bound {timestamps.text(bound)} of stream {stream!r} is none.",
            rule="illegal_bound",
            why="a bound is PRE_STREAM, MIN to MAX, POST_STREAM or ONE_OVER_POST_STREAM.",
            do="close the stream where nothing comes any more.",
            participant=stream,
        )
    if bound < current:
        raise BrokenContract(
            f"The bound of stream {stream!r} goes back from {timestamps.text(current)} to {timestamps.text(bound)}.",
            rule="bound_moved_back",
            why="a bound is a promise, which others have relied on.",
            do="raise it only.",
            participant=stream,
        )


def type_text(types: Types) -> str:
    """Return types for messages.

    Examples
    --------
    >>> type_text((int, float)), type_text(None)
    ('int or float', 'anything')
    """
    if types is None:
        return "anything"
    return " or ".join(each.__name__ for each in (types if isinstance(types, tuple) else (types,)))


def check_types(what: str, given: Types, wanted: Types) -> None:
    """Check that payloads of some types go where others are taken.

    Raises
    ------
    InvalidPipeline
        If one of them does not.
    """
    if given is None or wanted is None:
        return
    several = wanted if isinstance(wanted, tuple) else (wanted,)
    for each in given if isinstance(given, tuple) else (given,):
        if not issubclass(each, several):
            raise InvalidPipeline(
                f"The {what} takes {type_text(wanted)}, and {type_text(given)} was given.",
                do="put a calculator between them, or change one of the contracts.",
            )


def checked_limit(limit: int) -> int:
    """Return a length at which a queue is full.

    Raises
    ------
    InvalidPipeline
        If it is none.
    """
    if not isinstance(limit, int) or isinstance(limit, bool) or (limit < 1 and limit != UNLIMITED):
        raise InvalidPipeline(
            f"max_queue_size={limit!r} is no length of a queue.",
            why="at least one packet is in it.",
            do="write max_queue_size=100, or -1 for no limit.",
        )
    return limit
