"""One stream of several, as they come: what is older than what has left is dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.flow import timestamps
from holdfast.flow.calculators.options import check_names
from holdfast.flow.calculators.packets import promise
from holdfast.flow.contract import Calculator, Contract, Saved
from holdfast.flow.policies import ImmediateInputs
from holdfast.flow.timestamps import PRE_STREAM, UNSTARTED

if TYPE_CHECKING:
    from holdfast.flow.context import Context


class ImmediateMux(Calculator):
    """Sends each packet at once, unless it is older than the last that it has sent: that one is dropped.

    Of packets of one time the first that comes is sent, and of those that come together that of the input named first.
    What is dropped depends on arrival; where all is to be sent, :class:`Mux` or :class:`Merge` waits.

    Notes
    -----
    The bound of the output is the lowest of the inputs'.  It is not declared as an offset, as in the reference: after a
    call that only tells the end of an input, an offset would promise more than the other inputs have.

    References
    ----------
    MediaPipe, ``ImmediateMuxCalculator``.
    """

    @dataclass(frozen=True)
    class Options:
        """What is put together.

        Parameters
        ----------
        inputs : sequence of str
            The inputs; of packets that come together the first is sent.
        """

        inputs: Sequence[str]

        def __post_init__(self) -> None:
            check_names(self, "inputs")

    @classmethod
    def contract_of(cls, options: Options) -> Contract:
        """Return the contract, with the inputs of the options."""
        return Contract(inputs=options.inputs, outputs="out", policy=ImmediateInputs, process_timestamp_bounds=True)

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._next = PRE_STREAM
        """Lowest time of the next packet that is sent."""

    def process(self, context: Context) -> None:
        """Send the first packet that is not too old, and promise."""
        t = context.timestamp
        came = [name for name in self.options.inputs if name in context]
        if came and t >= self._next:
            context.emit("out", context[came.pop(0)])
            self._next = timestamps.after(t)
        context.drop(len(came))
        known = min(map(context.time_of, self.options.inputs))
        if known > UNSTARTED:
            self._next = max(self._next, timestamps.after(known))
            promise(context, "out", self._next)

    def save(self) -> Saved:
        """Return the lowest time of the next packet."""
        return {"next": self._next}

    def restore(self, saved: Saved) -> None:
        """Take it."""
        self._next = saved["next"]
