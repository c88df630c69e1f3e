"""The latest packets of some streams, again at each tick of another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.errors import InvalidPipeline
from holdfast.flow.calculators.options import check_names
from holdfast.flow.contract import Calculator, Contract, Saved
from holdfast.flow.queues import Payload

if TYPE_CHECKING:
    from holdfast.flow.context import Context


class PacketCloner(Calculator):
    """Sends the latest packet of each of its other inputs at each packet of ``tick``, with the time of the tick.

    A packet at the time of the tick counts.  An input that has had no packet yet gives none.

    Notes
    -----
    Bounds rise also at times that are settled without a tick; those of the reference wait for the next tick.

    References
    ----------
    MediaPipe, ``PacketClonerCalculator``.
    """

    @dataclass(frozen=True)
    class Options:
        """What is sent again.

        Parameters
        ----------
        inputs : sequence of str
            The inputs whose packets are sent again; outputs have the same names.
        needs_all : bool
            Whether nothing is sent until each input has had a packet.
        bounds_meanwhile : bool
            Whether the bounds of the outputs rise until then.
        """

        inputs: Sequence[str] = ("data",)
        needs_all: bool = False
        bounds_meanwhile: bool = True

        def __post_init__(self) -> None:
            check_names(self, "inputs", taken=("tick",))
            if not (self.needs_all or self.bounds_meanwhile):
                raise InvalidPipeline(
                    f"{self!r} waits for nothing.",
                    why="bounds_meanwhile says what happens until each input has had a packet, which only needs_all "
                    "waits for.",
                    do="write needs_all=True, or leave bounds_meanwhile out.",
                )

    @classmethod
    def contract_of(cls, options: Options) -> Contract:
        """Return the contract, with the inputs of the options."""
        return Contract(
            inputs=(*options.inputs, "tick"),
            outputs=options.inputs,
            timestamp_offset=0 if options.bounds_meanwhile else None,
        )

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._latest: dict[str, Payload] = {}

    def process(self, context: Context) -> None:
        """Remember what came, and send it at a tick."""
        found = context.payloads()
        is_tick = "tick" in found
        found.pop("tick", None)
        self._latest.update(found)
        if is_tick and not (self.options.needs_all and len(self._latest) < len(self.options.inputs)):
            for name, value in self._latest.items():
                context.emit(name, value)

    def save(self) -> Saved:
        """Return the latest payload of each input that has had one."""
        return {"latest": dict(self._latest)}

    def restore(self, saved: Saved) -> None:
        """Take them."""
        self._latest = {name: value for name, value in saved["latest"].items() if name in self.options.inputs}
