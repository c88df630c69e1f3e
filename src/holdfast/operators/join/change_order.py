"""Changes in an order for a table: of each of its keys, what no longer holds before what holds (design/0065).

Nobody writes it: a pipeline puts it before a sink of changes whose rows of one key come from several buckets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from holdfast.graph.changes import Changes
from holdfast.graph.shape import Shape
from holdfast.ports import SideRows
from holdfast.state import keyed, tables
from holdfast.state.rows import rows_at
from holdfast.state.step import PLACE, Arrivals, Result, StateTable, StepTime, has_end


@dataclass(frozen=True)
class ChangeOrderStep:
    """The rows of an epoch: first those that no longer hold.  It has no state.

    Parameters
    ----------
    key, schema : pa.Schema
        Key columns, and all.
    column : str
        The Boolean column that is true for rows that no longer hold.
    """

    key: pa.Schema
    schema: pa.Schema
    column: str

    @property
    def inputs(self) -> Mapping[str, pa.Schema]:
        """The one input."""
        return {"rows": self.schema}

    @property
    def tables(self) -> Mapping[str, StateTable]:
        """None."""
        return {}

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        """The same rows."""
        return {"rows": self.schema}

    def apply(self, state: Mapping[str, pa.Table], arrivals: Mapping[str, Arrivals], at: StepTime) -> Result:
        """Return the rows of the epoch in order."""
        given = arrivals["rows"]
        rows = given.rows.drop_columns([PLACE])
        holds = ~np.asarray(rows.column(self.column)).astype(bool)
        ordered = tables.fitted(rows_at(rows, np.argsort(holds, kind="stable")), self.schema)
        bounds = tables.end_for_all(self.key) if has_end(given.bounds) else None
        return Result({"rows": ordered}, bounds=bounds, fates={"rows": rows.num_rows})


@dataclass(frozen=True)
class ChangeOrder:
    """Bring the rows of each key of a stream of changes together, and in order.

    Parameters
    ----------
    by : tuple of str
        The key.
    column : str
        The Boolean column that is true for rows that no longer hold.
    """

    by: tuple[str, ...]
    column: str
    kind: ClassVar[str] = "change_order"
    input_names: ClassVar[tuple[str, ...]] = ("rows",)
    side_outputs: ClassVar[Mapping[str, SideRows]] = {}
    time_columns: ClassVar[tuple[str | None, ...]] = (None,)

    def arguments(self) -> Mapping[str, Any]:
        """Return key and column."""
        return {"by": list(self.by), "column": self.column}

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return that of the input."""
        return inputs[0]

    def changes(self, inputs: Sequence[Shape]) -> Changes | None:
        """Return those of the input, in order now."""
        changes = inputs[0].changes
        return None if changes is None else replace(changes, is_scattered=False)

    def step(self, inputs: Mapping[str, pa.Schema]) -> ChangeOrderStep:
        """Return the step for rows of a schema."""
        ((_, schema),) = inputs.items()
        key = pa.schema([field.with_nullable(True) for field in keyed.key_schema(schema, self.by)])
        return ChangeOrderStep(key, schema, keyed.field_of(schema, self.column, "column=").name)
