"""Several streams of one: another stream chooses which, for each time; or each in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.errors import InvalidPipeline
from holdfast.flow import timestamps
from holdfast.flow.calculators.options import check_names
from holdfast.flow.contract import Calculator, Contract, Saved

if TYPE_CHECKING:
    from holdfast.flow.context import Context


class Demux(Calculator):
    """Sends each packet of ``data`` by the output that ``select`` chooses at its time, by number, from 0, or by name.

    A packet at whose time ``select`` has none is dropped.  The bounds of all outputs rise together.

    References
    ----------
    MediaPipe, ``MuxCalculator``, of which this is the inverse.
    """

    @dataclass(frozen=True)
    class Options:
        """Between what is chosen.

        Parameters
        ----------
        outputs : sequence of str
            The outputs, in the order of their numbers.
        """

        outputs: Sequence[str]

        def __post_init__(self) -> None:
            check_names(self, "outputs")

    @classmethod
    def contract_of(cls, options: Options) -> Contract:
        """Return the contract, with the outputs of the options."""
        return Contract(
            inputs={"data": None, "select": (int, str)}, outputs=options.outputs, timestamp_offset=0, is_pure=True
        )

    def process(self, context: Context) -> None:
        """Send it where it belongs."""
        if "data" in context and "select" in context:
            context.emit(self._output(context), context["data"])
        elif "data" in context:
            context.drop()

    def _output(self, context: Context) -> str:
        choice, outputs = context["select"], self.options.outputs
        if choice in outputs:
            return str(choice)
        if isinstance(choice, int) and 0 <= choice < len(outputs):
            return str(outputs[choice])
        raise InvalidPipeline(
            f"A packet of input 'select' of calculator {context.name!r} chooses {choice!r}, at "
            f"{timestamps.text(context.timestamp)}.",
            why=f"the outputs are {', '.join(f'{n} ({name})' for n, name in enumerate(outputs))}.",
            do="give each packet of select one of these numbers or names.",
            participant=context.name,
        )


class RoundRobinDemux(Calculator):
    """Sends the packets of ``data`` by its outputs in turn, and by ``select`` the number of the one that it has used.

    So several copies of a slow calculator share the work: ``select`` goes to a :class:`Mux` behind them, which puts
    what they make into the order of time again.  The bounds of all outputs rise together.

    References
    ----------
    MediaPipe, ``RoundRobinDemuxCalculator``.
    """

    @dataclass(frozen=True)
    class Options:
        """Between what it goes around.

        Parameters
        ----------
        outputs : sequence of str
            The outputs, in their order.
        """

        outputs: Sequence[str]

        def __post_init__(self) -> None:
            check_names(self, "outputs", taken=("select",))

    @classmethod
    def contract_of(cls, options: Options) -> Contract:
        """Return the contract, with the outputs of the options."""
        return Contract(inputs="data", outputs=dict.fromkeys(options.outputs) | {"select": int}, timestamp_offset=0)

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._turn = 0

    def process(self, context: Context) -> None:
        """Send it, and say where."""
        context.emit(self.options.outputs[self._turn], context["data"])
        context.emit("select", self._turn)
        self._turn = (self._turn + 1) % len(self.options.outputs)

    def save(self) -> Saved:
        """Return whose turn it is."""
        return {"turn": self._turn}

    def restore(self, saved: Saved) -> None:
        """Take it."""
        self._turn = saved["turn"] % len(self.options.outputs)
