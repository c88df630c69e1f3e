"""The rows of a query as a table that streams look up in: all of them are read, for the types of its columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import pyarrow as pa

from holdfast.errors import InvalidPipeline


class QueriedTable(ABC):
    """The rows of a query."""

    @abstractmethod
    def rows(self) -> pa.Table:
        """Read them."""

    def known_columns(self) -> tuple[str, ...] | None:
        """Return None: they are known when it is read."""
        return None

    def schema(self) -> pa.Schema:
        """Return the columns of the query."""
        return self.rows().schema

    def load(self, columns: Sequence[str]) -> pa.Table:
        """Return columns of the rows of the query."""
        found = self.rows()
        if missing := [name for name in columns if name not in found.schema.names]:
            raise InvalidPipeline(
                f"the query gives no column {missing[0]!r}.",
                why=f"it gives {', '.join(found.schema.names)}.",
                do="select it, or correct hf.lookup(..., on=..., columns=...).",
            )
        return found.select(list(columns))
