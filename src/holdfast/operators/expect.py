"""``expect``: rows are held to a condition, and those that do not meet it are counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from holdfast.errors import InvalidPipeline
from holdfast.expressions import text as expressions
from holdfast.graph.building import building
from holdfast.graph.nodes import Operator
from holdfast.graph.shape import Shape
from holdfast.operators.arguments import check_reads, check_text, closed

OnFail = Literal["warn", "drop", "reject", "stop"]
"""What becomes of rows that do not meet an expectation; ``stop``: of their epoch."""

_RIGHT = 'hf.expect("speed between 0 and 120", name="valid_speed")'


@dataclass(frozen=True)
class Expectation:
    """Count the rows for which a condition is false or null.

    Parameters
    ----------
    condition : str
        What is expected of each row.
    on_fail : str
        What becomes of rows that do not meet it.
    max_fraction : float
        The part of an epoch's rows that may fail, 0 to 1, before the expectation counts as broken.
    """

    condition: str
    on_fail: OnFail
    max_fraction: float
    kind: ClassVar[str] = "expect"

    @property
    def drops(self) -> bool:
        """Whether rows that do not meet it go no further."""
        return self.on_fail in ("drop", "reject")

    def arguments(self) -> Mapping[str, Any]:
        """Return the condition, and what follows from it."""
        return {"within": self.condition, "on_fail": self.on_fail, "max_fraction": self.max_fraction}

    def failing(self) -> Unmet | None:
        """Return what keeps the rows that fail; None where they are no side output."""
        return Unmet(self.condition) if self.on_fail == "reject" else None

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return the input's shape, after checking the columns that the condition reads."""
        check_reads(self.condition, inputs[0].columns, "within")
        return inputs[0]


@dataclass(frozen=True)
class Unmet:
    """Keep the rows that do not meet an expectation.

    Parameters
    ----------
    within : str
        What was expected of them.
    """

    within: str
    kind: ClassVar[str] = "unmet"

    @property
    def condition(self) -> str:
        """True for exactly the rows that fail: null counts as false."""
        return f"NOT coalesce(({closed(self.within)}), false)"

    def arguments(self) -> Mapping[str, Any]:
        """Return what was expected."""
        return {"within": self.within}

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return the input's shape."""
        return inputs[0]


def expect(within: str, *, name: str, on_fail: OnFail = "warn", max_fraction: float = 0.0) -> Operator:
    """Hold rows to a condition, and count those that do not meet it: per epoch, each row once whatever dies.

    Parameters
    ----------
    within : str
        A Spark SQL expression, as of :func:`filter`.  A row for which it is false or null fails.
    name : str
        The node's name: counts, metrics and messages go by it.
    on_fail : {"warn", "drop", "reject", "stop"}
        What becomes of rows that fail.  ``warn``: they go on.  ``drop``: they go nowhere.  ``reject``: they are the
        side output ``.rejects`` of the stream.  ``stop``: they go on, unless the expectation is broken; then the run
        ends before the epoch is decided, and no sink gets anything of it.
    max_fraction : float
        The part of an epoch's rows that may fail, 0 to 1.  With more the expectation is broken: that is logged, the
        health of the run says so until an epoch with rows keeps it, and the hook ``on_health`` is called.

    Raises
    ------
    InvalidPipeline
        If the condition is not a text, is not the same each time it is computed (``rand()``), or names an unknown
        column (when attached); or if another argument is not one of these.

    Examples
    --------
    ::

        valid = rides | hf.expect("speed between 0 and 120", name="valid_speed", on_fail="reject", max_fraction=0.01)
        pipeline = hf.Pipeline("rides", valid | table, valid.rejects | hf.write.files("out/bad", name="bad"))
    """
    with building(Expectation.kind, name) as built_at:
        condition = check_text(within, "within", right=_RIGHT)
        if (function := expressions.varying(condition)) is not None:
            raise InvalidPipeline(
                f"within={condition!r} uses {function}.",
                why="an epoch that is evaluated again would count, and drop, other rows.",
                do=f"compute it once before, where a source gives it; or expect what a row says: {_RIGHT}",
            )
        if on_fail not in get_args(OnFail):
            raise InvalidPipeline(
                f"on_fail={on_fail!r} is none of {', '.join(get_args(OnFail))}.",
                why="it says what becomes of rows that fail.",
                do=f'write one of these: {_RIGHT[:-1]}, on_fail="drop")',
            )
        is_number = isinstance(max_fraction, int | float) and not isinstance(max_fraction, bool)
        if not is_number or not 0 <= max_fraction <= 1:
            raise InvalidPipeline(
                f"max_fraction={max_fraction!r} is no number from 0 to 1.",
                why="it is the part of an epoch's rows that may fail.",
                do=f"for one in a hundred write {_RIGHT[:-1]}, max_fraction=0.01)",
            )
        return Operator(Expectation(condition, on_fail, float(max_fraction)), name, built_at)
