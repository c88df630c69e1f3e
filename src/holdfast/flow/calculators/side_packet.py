"""Side inputs as streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.errors import InvalidPipeline
from holdfast.flow import timestamps
from holdfast.flow.calculators.options import check_names
from holdfast.flow.contract import STOP, Calculator, Contract, Stop
from holdfast.flow.timestamps import PRE_STREAM

if TYPE_CHECKING:
    from holdfast.flow.context import Context


class SidePacketToStream(Calculator):
    """Sends side inputs as packets: once, at a time that is declared, or at each packet of ``tick``.

    Sent once, it is a source, and its outputs end with these packets.

    References
    ----------
    MediaPipe, ``SidePacketToStreamCalculator``.
    """

    @dataclass(frozen=True)
    class Options:
        """What is sent, and when.

        Parameters
        ----------
        names : sequence of str
            The side inputs; outputs have the same names.
        at : int or "tick"
            Time of the packets: ``hf.flow.PRE_STREAM``, ``hf.flow.POST_STREAM``, 0 or another one; ``"tick"``: that of
            each packet of an input ``tick``.
        """

        names: Sequence[str] = ("value",)
        at: int | str = PRE_STREAM

        def __post_init__(self) -> None:
            check_names(self, "names")
            is_time = isinstance(self.at, int) and not isinstance(self.at, bool) and timestamps.may_carry(self.at)
            if self.at != "tick" and not is_time:
                raise InvalidPipeline(
                    f"at={self.at!r} of SidePacketToStream.Options is no time of a packet.",
                    why="packets carry PRE_STREAM, MIN to MAX, or POST_STREAM.",
                    do='write at=hf.flow.PRE_STREAM, a number, or at="tick".',
                )

    @classmethod
    def contract_of(cls, options: Options) -> Contract:
        """Return the contract: with an input where there are ticks, and without one it is a source."""
        is_ticked = options.at == "tick"
        return Contract(
            inputs="tick" if is_ticked else (),
            outputs=options.names,
            side_inputs=options.names,
            timestamp_offset=0 if is_ticked else None,
            is_pure=True,
        )

    def process(self, context: Context) -> Stop | None:
        """Send them."""
        is_ticked = self.options.at == "tick"
        for name in self.options.names:
            context.emit(name, context.side[name], None if is_ticked else self.options.at)
        return None if is_ticked else STOP
