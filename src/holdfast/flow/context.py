"""What a calculator sees of one input set, and where it puts what it makes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from holdfast.errors import InvalidPipeline
from holdfast.flow import timestamps
from holdfast.flow.queues import (
    ABSENT,
    BrokenContract,
    Packet,
    Payload,
    QueueOwner,
    Types,
    checked_bound,
    checked_time,
    type_text,
)
from holdfast.flow.streams import OutputStream
from holdfast.flow.timestamps import DONE, UNSTARTED


class CalledNode(QueueOwner):
    """The node whose calculator is called, as its context knows it."""

    places: dict[str, int]
    outputs: dict[str, tuple[OutputStream, Types]]
    side_inputs: Mapping[str, Payload]
    no_packets: list[Packet]

    def now(self) -> int:
        """Return real time, where the contract says that it is read."""
        raise NotImplementedError


class Context:
    """What ``open``, ``process`` and ``close`` of a calculator are given; it is used again for the next input set.

    ``context["frame"]`` is the payload of an input, ``"frame" in context`` says whether it has a packet, and
    ``context.emit("boxes", value)`` sends one, at the time of the input set.
    """

    __slots__ = (
        "_bounds_then",
        "_drop_count",
        "_explicit",
        "_node",
        "_outputs",
        "_packets",
        "_places",
        "_sent",
        "_side",
        "timestamp",
    )

    timestamp: int
    """Time of the input set.  For a source, and in ``open`` and ``close``, there is none: packets are sent with one."""

    def __init__(self, node: CalledNode, bounds_then: Mapping[str, int] | None = None) -> None:
        self._node = node
        self._places: dict[str, int] = node.places
        self._outputs: dict[str, tuple[OutputStream, Types]] = node.outputs
        self._side: Mapping[str, Payload] = node.side_inputs
        self._packets: list[Packet] = node.no_packets
        self._sent: list[tuple[OutputStream, Packet]] = []
        self._explicit: dict[str, int] = {}
        self._drop_count = 0
        self._bounds_then = bounds_then
        """Of a call that is repeated, whose packets and promises have left: output -> its bound before it was made."""

        self.timestamp = UNSTARTED

    # --- what came --------------------------------------------------------------------------------

    def __contains__(self, name: str) -> bool:
        return self._packets[self._place(name)][1] is not ABSENT

    def __getitem__(self, name: str) -> Payload:
        try:
            value = self._packets[self._places[name]][1]
        except KeyError:
            value = self._packets[self._place(name)][1]
        if value is ABSENT:
            raise InvalidPipeline(
                f"Calculator {self._node.name!r} reads input {name!r}, which has no packet at "
                f"{timestamps.text(self.timestamp)}.",
                why="an input set has the packets that there are at its time, not one of each input.",
                do=f'ask before: if "{name}" in context, or context.get("{name}").',
                participant=self._node.name,
            )
        return value

    def get(self, name: str, default: Payload = None) -> Payload:
        """Return the payload of an input, or a default where it has no packet."""
        value = self._packets[self._place(name)][1]
        return default if value is ABSENT else value

    def payloads(self) -> dict[str, Payload]:
        """Return input -> payload, of the inputs that have a packet."""
        return {
            name: packet[1] for name, packet in zip(self._places, self._packets, strict=True) if packet[1] is not ABSENT
        }

    def time_of(self, name: str) -> int:
        """Return the time of an input's packet; without one, the last time that is known to have none."""
        return self._packets[self._place(name)][0]

    def __iter__(self) -> Iterator[str]:
        return iter(self.payloads())

    @property
    def side(self) -> Mapping[str, Payload]:
        """Side inputs: name -> value."""
        return self._side

    @property
    def name(self) -> str:
        """The node's name."""
        return self._node.name

    def now(self) -> int:
        """Return real time, in microseconds; only for a calculator whose contract says that it reads the clock.

        Raises
        ------
        InvalidPipeline
            If the contract does not say so.
        """
        return self._node.now()

    # --- what leaves ------------------------------------------------------------------------------

    def emit(self, name: str, value: Payload, at: int | None = None) -> None:
        """Send a packet.

        Parameters
        ----------
        name : str
            Output.
        value : object
            Payload, by reference: nobody copies it.
        at : int, optional
            Its time; that of the input set by default.

        Raises
        ------
        BrokenContract
            If there is no such output, the payload has another type than the contract says, or no time is said where
            there is none.
        """
        try:
            stream, types = self._outputs[name]
        except KeyError:
            raise self._no_output(name) from None
        if types is not None and not isinstance(value, types):
            raise BrokenContract(
                f"Calculator {self._node.name!r} sends {type(value).__name__} to output {name!r}, at "
                f"{timestamps.text(self.timestamp if at is None else at)}.",
                rule="type",
                why=f"its contract says {type_text(types)}.",
                do="send that, or change the contract.",
                participant=self._node.name,
            )
        if at is None:
            at = self.timestamp
            if at in (UNSTARTED, DONE):
                raise BrokenContract(
                    f"Calculator {self._node.name!r} sends a packet to output {name!r} without a time.",
                    rule="illegal_timestamp",
                    why="in open and close, and for a source, there is no input set whose time it could have.",
                    do=f'write context.emit("{name}", value, at=time).',
                    participant=self._node.name,
                )
        elif type(at) is not int:
            at = checked_time(at, f"Calculator {self._node.name!r} sends a packet to output {name!r} at")
        self._sent.append((stream, (at, value)))

    def raise_bound(self, name: str, t: int) -> None:
        """Promise that nothing below a time leaves by an output any more.

        Raises
        ------
        BrokenContract
            If there is no such output, or it goes back.
        """
        if name not in self._outputs:
            raise self._no_output(name)
        t = checked_time(t, f"Calculator {self._node.name!r} promises of output {name!r} the bound")
        current = max(self._bound_before(name), self._explicit.get(name, timestamps.UNSET))
        checked_bound(self._outputs[name][0].name, t, current)
        self._explicit[name] = t

    def close_output(self, name: str) -> None:
        """Promise that nothing leaves by an output any more.

        Raises
        ------
        BrokenContract
            If there is no such output.
        """
        if name not in self._outputs:
            raise self._no_output(name)
        self._explicit[name] = DONE

    def drop(self, count: int = 1) -> None:
        """Count packets that the calculator drops, for :meth:`Run.drops` and the status of a pipeline."""
        self._drop_count += count

    def output_bound(self, name: str) -> int:
        """Return the lowest time that the next packet of an output may have."""
        if name not in self._outputs:
            raise self._no_output(name)
        stream = self._outputs[name][0]
        sent = [timestamps.after(packet[0]) for to, packet in self._sent if to is stream]
        return max(self._bound_before(name), self._explicit.get(name, timestamps.UNSET), *sent, timestamps.UNSET)

    def _bound_before(self, name: str) -> int:
        """Return the bound of an output, as it was before the call."""
        then = self._bounds_then
        return self._outputs[name][0].bound if then is None else then.get(name, timestamps.PRE_STREAM)

    # --- for the node -----------------------------------------------------------------------------

    def _place(self, name: str) -> int:
        try:
            return self._places[name]
        except KeyError:
            raise BrokenContract(
                f"Calculator {self._node.name!r} has no input {name!r}.",
                rule="port",
                why=f"its contract has {', '.join(self._places) or 'none'}.",
                do="use one of these, or add it to the contract.",
                participant=self._node.name,
            ) from None

    def _no_output(self, name: str) -> BrokenContract:
        return BrokenContract(
            f"Calculator {self._node.name!r} has no output {name!r}.",
            rule="port",
            why=f"its contract has {', '.join(self._outputs) or 'none'}.",
            do="use one of these, or add it to the contract.",
            participant=self._node.name,
        )
