"""The times of a stream in another clock: UTC, TAI or NTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.errors import InvalidPipeline
from holdfast.flow import timestamps
from holdfast.flow.calculators.leap_seconds import LEAP_SECONDS, NTP, LeapSeconds
from holdfast.flow.calculators.packets import promise
from holdfast.flow.contract import Calculator, Contract
from holdfast.flow.timestamps import MAX, MIN

if TYPE_CHECKING:
    from holdfast.flow.context import Context

CLOCKS = ("UTC", "TAI", "NTP")


class ClockConversion(Calculator):
    """Sends each packet of ``data`` at the same instant in another clock; times are microseconds.

    ``"UTC"`` counts since 1970 without leap seconds, as POSIX and Unix do, ``"TAI"`` since 1970 with them, and
    ``"NTP"`` since 1900 without.  Packets at PRE_STREAM and POST_STREAM keep their time.

    Notes
    -----
    From TAI, a leap second and the second before it share one second, in which time passes at half its pace: so times
    ascend, and two packets must be two microseconds apart there.

    References
    ----------
    RFC 5905, "Network Time Protocol Version 4", section 6.  IERS, Bulletin C.
    """

    @dataclass(frozen=True)
    class Options:
        """From which clock, and to which.

        Parameters
        ----------
        from_clock, to_clock : "UTC", "TAI" or "NTP"
            Of the packets that come, and of those that leave.
        leap_seconds : LeapSeconds, optional
            For TAI: how far UTC is behind; times beyond what it knows are refused.
        """

        from_clock: str
        to_clock: str
        leap_seconds: LeapSeconds = LEAP_SECONDS

        def __post_init__(self) -> None:
            begin, end = self.from_clock, self.to_clock
            if begin not in CLOCKS or end not in CLOCKS or begin == end:
                raise InvalidPipeline(
                    f"ClockConversion cannot go from {begin!r} to {end!r}.",
                    why=f"it goes from one to another of {', '.join(CLOCKS)}.",
                    do='write for instance ClockConversion.Options("UTC", "TAI").',
                )
            if not isinstance(self.leap_seconds, LeapSeconds):
                raise InvalidPipeline(
                    f"{self.leap_seconds!r} is no table of leap seconds.",
                    do='write leap_seconds=LeapSeconds.read("/usr/share/zoneinfo/leap-seconds.list"), or leave it out.',
                )

    @classmethod
    def contract_of(cls, options: Options) -> Contract:
        """Return the contract, which is the same for all options: the distance of two clocks is no constant."""
        return Contract(inputs="data", outputs="data", process_timestamp_bounds=True, is_pure=True)

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._table = options.leap_seconds
        self._needs_table = "TAI" in (options.from_clock, options.to_clock)

    def process(self, context: Context) -> None:
        """Send the packet, and promise."""
        t = context.timestamp
        if "data" in context:
            context.emit("data", context["data"], self._convert(t))
        bound = timestamps.after(t)
        promise(context, "data", self._convert(bound, is_bound=True) if bound <= MAX else bound)

    def _convert(self, t: int, is_bound: bool = False) -> int:
        """Return a time in the other clock; a bound as far as the distance is known."""
        if not MIN <= t <= MAX:
            return t
        begin, end = self.options.from_clock, self.options.to_clock
        utc = self._table.utc(t) if begin == "TAI" else t - NTP if begin == "NTP" else t
        if self._needs_table:
            if is_bound:
                utc = min(utc, self._table.expires)
            else:
                self._table.check(utc)
        found = self._table.tai(utc) if end == "TAI" else utc + NTP if end == "NTP" else utc
        return min(max(found, MIN), MAX)
