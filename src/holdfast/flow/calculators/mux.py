"""One stream of several: another stream chooses which of them, for each time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.flow import policy_table
from holdfast.flow.calculators.options import check_names
from holdfast.flow.contract import Calculator, Contract
from holdfast.flow.queues import InputQueue

if TYPE_CHECKING:
    from holdfast.flow.context import Context


class BySelect(policy_table.MuxInputs):
    """The policy mux, whose control input is ``select``."""

    def __init__(self, queues: Sequence[InputQueue], with_bounds: bool = False) -> None:
        super().__init__(queues, with_bounds, select="select")


class Mux(Calculator):
    """Sends, for each packet of ``select``, the packet that the chosen input has at its time, if it has one.

    ``select`` chooses by number, from 0, or by name.  Packets of inputs that are not chosen are dropped.

    References
    ----------
    MediaPipe, ``MuxCalculator`` with ``MuxInputStreamHandler``.
    """

    @dataclass(frozen=True)
    class Options:
        """Between what is chosen.

        Parameters
        ----------
        inputs : sequence of str
            The inputs, in the order of their numbers.
        """

        inputs: Sequence[str]

        def __post_init__(self) -> None:
            check_names(self, "inputs", taken=("select",))

    @classmethod
    def contract_of(cls, options: Options) -> Contract:
        """Return the contract, with the inputs of the options."""
        return Contract(
            inputs=dict.fromkeys(options.inputs) | {"select": (int, str)},
            outputs="out",
            policy=BySelect,
            timestamp_offset=0,
            is_pure=True,
        )

    def process(self, context: Context) -> None:
        """Send what the policy has taken."""
        for name in self.options.inputs:
            if name in context:
                context.emit("out", context[name])
