"""What comes goes on: for tests, and where a graph wants several streams to leave together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.flow.calculators.options import check_names
from holdfast.flow.contract import Calculator, Contract

if TYPE_CHECKING:
    from holdfast.flow.context import Context


class PassThrough(Calculator):
    """Sends each packet on, by the output of the input's name, with the others of its time.

    References
    ----------
    MediaPipe, ``PassThroughCalculator``.
    """

    @dataclass(frozen=True)
    class Options:
        """Its inputs and outputs.

        Parameters
        ----------
        inputs : sequence of str
            Their names.
        """

        inputs: Sequence[str] = ("data",)

        def __post_init__(self) -> None:
            check_names(self, "inputs")

    @classmethod
    def contract_of(cls, options: Options) -> Contract:
        """Return the contract, with the inputs of the options."""
        return Contract(inputs=options.inputs, outputs=options.inputs, timestamp_offset=0, is_pure=True)

    def process(self, context: Context) -> None:
        """Send them on."""
        for name, value in context.payloads().items():
            context.emit(name, value)
