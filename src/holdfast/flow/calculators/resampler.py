"""A stream at regular times: of what comes the nearest."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from hashlib import blake2b
from typing import TYPE_CHECKING

from holdfast.errors import InvalidPipeline
from holdfast.flow import timestamps
from holdfast.flow.calculators.options import check_numbers
from holdfast.flow.calculators.packets import promise, restored_packets, saved_packets
from holdfast.flow.contract import Calculator, Contract, Saved
from holdfast.flow.queues import Packet
from holdfast.flow.timestamps import MAX, MIN

if TYPE_CHECKING:
    from holdfast.flow.context import Context

_SECOND = 1_000_000


class PacketResampler(Calculator):
    """Sends at each of its own times the packet of ``data`` that is nearest; of two that are as near the later.

    Its times are ``base_timestamp`` and whole periods from there, from the one that is nearest to the first packet to
    the one that is nearest to the last.  A packet is sent as often as it is the nearest, or never.  Those at PRE_STREAM
    and POST_STREAM pass as they are.

    Notes
    -----
    What is sent depends on packets alone: with ``base_timestamp``, a stream that is read from another place on gives
    the same at the same times, jitter too, which is drawn from ``seed`` and the number of the period.  Without jitter
    the reference fills a period that has no packet with the one before, and not with the nearest.

    References
    ----------
    MediaPipe, ``PacketResamplerCalculator``.
    """

    @dataclass(frozen=True)
    class Options:
        """Its times.

        Parameters
        ----------
        frame_rate : float or Fraction, optional
            Packets in a second, where times are microseconds.
        period : int, optional
            Instead: from one packet to the next, in the unit of the times.
        base_timestamp : int, optional
            One of its times, not necessarily among those sent; the time of the first packet by default.
        jitter : float
            Part of the period, from 0 to 1, within which a time is drawn, around the regular one.
        seed : int
            The same gives the same times.
        """

        frame_rate: float | Fraction | None = None
        period: int | None = None
        base_timestamp: int | None = None
        jitter: float = 0.0
        seed: int = 0

        def __post_init__(self) -> None:
            if (self.frame_rate is None) is (self.period is None):
                raise InvalidPipeline(
                    f"{self!r} says no period, or two.",
                    why="one of them follows from the other.",
                    do="write frame_rate=10, or period=100_000.",
                )
            if self.period is not None:
                check_numbers(self, period=1)
            elif not isinstance(self.frame_rate, int | float | Fraction) or not 0 < self.frame_rate <= _SECOND:
                raise InvalidPipeline(
                    f"frame_rate={self.frame_rate!r} of PacketResampler.Options is no number of packets in a second.",
                    why="a time is a whole number of microseconds, so there are at most a million.",
                    do="write frame_rate=10, or Fraction(30_000, 1001).",
                )
            if not isinstance(self.jitter, int | float) or not 0 <= self.jitter <= 1:
                raise InvalidPipeline(
                    f"jitter={self.jitter!r} of PacketResampler.Options is no part of a period.",
                    do="write jitter=0.2, or another number from 0 to 1.",
                )
            check_numbers(self, seed=None)
            if self.base_timestamp is not None:
                check_numbers(self, base_timestamp=None)

    @classmethod
    def contract_of(cls, options: Options) -> Contract:
        """Return the contract, which is the same for all options."""
        return Contract(inputs="data", outputs="data", process_timestamp_bounds=True)

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        # Fractions of numbers as they are written: 29.97 is 2997/100.
        period = Fraction(options.period) if options.period else _SECOND / Fraction(str(options.frame_rate))
        self._numerator, self._denominator = period.numerator, period.denominator
        self._width = int(period * Fraction(str(options.jitter)))
        self._base = options.base_timestamp
        self._next = 0
        """Number of the period whose packet is sent next."""

        self._last: list[Packet] = []
        """The newest packet."""

    def process(self, context: Context) -> None:
        """Send what is decided now, and promise."""
        t = context.timestamp
        if "data" in context:
            if not MIN <= t <= MAX:
                context.emit("data", context["data"])
                return
            self._take(context, (t, context["data"]))
        bound = timestamps.after(t)
        for last, value in self._last:
            at = self._time(self._next)
            if self._number(last) == self._next and bound - at > at - last:  # no packet that may come is as near
                context.emit("data", value, at)
                self._next += 1
        promise(context, "data", self._lowest(bound))

    def _take(self, context: Context, packet: Packet) -> None:
        """Send at those of its times that a packet has reached."""
        t, value = packet
        if not self._last:
            self._base = t if self._base is None else self._base
            self._next = self._number(t)
        while (at := self._time(self._next)) <= t:
            is_nearer = not self._last or t - at <= at - self._last[0][0]
            context.emit("data", value if is_nearer else self._last[0][1], at)
            self._next += 1
        self._last = [packet]

    def _lowest(self, bound: int) -> int:
        """Return the lowest time of the next packet that leaves, from the lowest of the next that comes."""
        if self._last:
            return self._time(self._next)
        return bound - self._width // 2 if self._base is None else self._time(self._number(bound))

    def close(self, context: Context) -> None:
        """Send the newest packet, if the time nearest to it has had none."""
        for t, value in self._last:
            if self._number(t) == self._next:
                context.emit("data", value, self._time(self._next))

    def _number(self, t: int) -> int:
        """Return which of its regular times is nearest."""
        assert self._base is not None
        return (2 * (t - self._base) * self._denominator + self._numerator) // (2 * self._numerator)

    def _time(self, number: int) -> int:
        """Return one of its times: the regular one, and what is drawn."""
        assert self._base is not None
        regular = self._base + (2 * number * self._numerator + self._denominator) // (2 * self._denominator)
        if not self._width:
            return regular
        drawn = blake2b(f"{self.options.seed} {number}".encode(), digest_size=8).digest()
        return regular + (int.from_bytes(drawn, "big") * self._width >> 64) - self._width // 2

    def save(self) -> Saved:
        """Return the next of its times, and the newest packet."""
        at = self._time(self._next) if self._last else None
        return {"base": self._base, "next": at, "last": saved_packets(self._last)}

    def restore(self, saved: Saved) -> None:
        """Take them; with another period it goes on at its first time from there."""
        self._last = list(restored_packets(saved["last"]))
        if self._last:
            self._base = saved["base"] if self._base is None else self._base
            self._next = self._number(saved["next"]) - 1
            while self._time(self._next) < saved["next"]:
                self._next += 1
