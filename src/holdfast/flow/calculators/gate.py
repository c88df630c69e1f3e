"""A gate: packets pass where another stream says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.flow.calculators.options import check_names
from holdfast.flow.contract import Calculator, Contract, Saved

if TYPE_CHECKING:
    from holdfast.flow.context import Context


class Gate(Calculator):
    """Passes the packets of its other inputs at times at which ``allow`` is true.

    At a time without a packet of ``allow`` it is closed, unless ``empty_packets_as_allow``.  A time that does not pass
    raises the outputs' bounds, too.

    References
    ----------
    MediaPipe, ``GateCalculator``.
    """

    @dataclass(frozen=True)
    class Options:
        """What passes.

        Parameters
        ----------
        inputs : sequence of str
            The inputs that it passes; outputs have the same names.
        disallow : bool
            Whether a true packet closes it, and a false one opens it.
        empty_packets_as_allow : bool
            Whether it is open at times without a packet of ``allow``.
        state_change : bool
            Whether there is an output ``state_change``, true or false where it opens or closes.
        """

        inputs: Sequence[str] = ("data",)
        disallow: bool = False
        empty_packets_as_allow: bool = False
        state_change: bool = False

        def __post_init__(self) -> None:
            check_names(self, "inputs", taken=("allow", "state_change"))

    @classmethod
    def contract_of(cls, options: Options) -> Contract:
        """Return the contract, with the inputs of the options."""
        outputs = dict.fromkeys(options.inputs) | ({"state_change": bool} if options.state_change else {})
        return Contract(
            inputs={"allow": bool} | dict.fromkeys(options.inputs),
            outputs=outputs,
            timestamp_offset=0,
            is_pure=not options.state_change,
        )

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._was_open: bool | None = None

    def process(self, context: Context) -> None:
        """Pass, or not."""
        if "allow" in context:
            is_open = bool(context["allow"]) is not self.options.disallow
        else:
            is_open = self.options.empty_packets_as_allow
        if self.options.state_change:
            if self._was_open not in (None, is_open):
                context.emit("state_change", is_open)
            self._was_open = is_open
        for name in self.options.inputs:
            if name in context:
                if is_open:
                    context.emit(name, context[name])
                else:
                    context.drop()

    def save(self) -> Saved:
        """Return whether it was open."""
        return {"was_open": self._was_open}

    def restore(self, saved: Saved) -> None:
        """Take it."""
        self._was_open = saved["was_open"]
