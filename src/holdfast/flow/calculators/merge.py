"""One stream of several, in the order of time: of packets of one time the first input's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.flow.calculators.options import check_names
from holdfast.flow.contract import Calculator, Contract

if TYPE_CHECKING:
    from holdfast.flow.context import Context


class Merge(Calculator):
    """Sends the packets of all inputs by one output; of several of one time that of the input named first.

    The others of that time are dropped: a stream has one packet at a time.

    References
    ----------
    MediaPipe, ``MergeCalculator``.
    """

    @dataclass(frozen=True)
    class Options:
        """What is put together.

        Parameters
        ----------
        inputs : sequence of str
            The inputs, the first of which goes before the others.
        """

        inputs: Sequence[str]

        def __post_init__(self) -> None:
            check_names(self, "inputs")

    @classmethod
    def contract_of(cls, options: Options) -> Contract:
        """Return the contract, with the inputs of the options."""
        return Contract(inputs=options.inputs, outputs="out", timestamp_offset=0, is_pure=True)

    def process(self, context: Context) -> None:
        """Send the first."""
        values = list(context.payloads().values())
        if values:
            context.emit("out", values[0])
            context.drop(len(values) - 1)
