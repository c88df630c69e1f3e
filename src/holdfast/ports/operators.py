"""What the declaration of an operator that keeps state has besides that of a stateless one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from holdfast.capabilities import optional
from holdfast.values import SideRows

if TYPE_CHECKING:
    from holdfast.state.step import Step


@optional()
class StatefulSpec(Protocol):
    """What the declaration of an operator that keeps state has besides that of a stateless one."""

    input_names: tuple[str, ...]
    """The names under which its step knows the node's inputs, in their order; that of a single one is ``rows``."""

    side_outputs: Mapping[str, SideRows]
    """Outputs of its step besides ``rows`` that can be used: ``late``, ``shed``, ``unmatched``."""

    time_columns: tuple[str | None, ...]
    """For each input the timestamp column that it uses; None: that of the stream."""

    def step(self, inputs: Mapping[str, pa.Schema]) -> Step:
        """Return the step for inputs of these schemas; raise InvalidPipeline where a column is missing or unfit."""


@optional(StatefulSpec)
class SelectiveSpec(Protocol):
    """What the declaration of a stateful operator may say beyond :class:`StatefulSpec`: that it uses some columns."""

    def reads(self, outputs: Collection[str]) -> Collection[str] | None:
        """Return the columns of its inputs that its step needs to give ``rows`` and these side outputs; None: all.

        Where an input has only these, the step has the same state and gives the same.
        """


@optional(StatefulSpec)
class ClockDriven(Protocol):
    """What the declaration of a stateful operator may say beyond :class:`StatefulSpec`: what it does by batch time."""

    watches_clock: bool
    """Whether it decides by batch time (something is forgotten, say): it is called in every epoch, rows or not."""

    wakes: bool
    """Whether rows leave it by batch time: epochs are planned although nothing arrives.  Then it watches, too."""
