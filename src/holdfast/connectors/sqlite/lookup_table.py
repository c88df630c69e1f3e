"""The rows of a query of a SQLite file as a table that streams look up in."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from holdfast.connectors.kit.queried_table import QueriedTable
from holdfast.errors import InvalidPipeline, Unavailable
from holdfast.masking import masked

_RIGHT = 'hf.lookup_table.sqlite("shop.db", "SELECT id, name FROM customers")'


@dataclass(frozen=True)
class SqliteLookupTable(QueriedTable):
    """The rows of a query; the type of a column is that of its values."""

    path: str
    query: str
    kind: ClassVar[str] = "sqlite"

    def described(self) -> Mapping[str, Any]:
        """Return path and query."""
        return {"kind": self.kind, "path": self.path, "query": masked(self.query)}

    def rows(self) -> pa.Table:
        """Read them: SQLite has types of values alone."""
        try:
            with closing(sqlite3.connect(f"{Path(self.path).as_uri()}?mode=ro", uri=True, timeout=30)) as connection:
                cursor = connection.execute(self.query)
                names = [name for name, *_ in cursor.description or ()]
                values = list(zip(*cursor.fetchall(), strict=True)) or [()] * len(names)
            arrays = [pa.array(column) for column in values]
            plain = [array.cast(pa.string()) if pa.types.is_null(array.type) else array for array in arrays]
            return pa.Table.from_arrays(plain, names=names)
        except (sqlite3.Error, pa.ArrowException) as error:
            text = str(error)
            is_away = isinstance(error, sqlite3.OperationalError) and ("unable to open" in text or "locked" in text)
            kind = Unavailable if is_away else InvalidPipeline
            raise kind(
                f"the table of {self.path} cannot be loaded.",
                why=f"SQLite says: {masked(text)}.",
                do="make sure that the file is there, and that nobody locks it."
                if is_away
                else f"correct the query, so that each column has values of one type: {masked(self.query)}",
                participant=self.path,
            ) from None


def sqlite(path: str | os.PathLike[str], query: str) -> SqliteLookupTable:
    """Return the rows of a query of a SQLite file, for ``hf.lookup``.

    Parameters
    ----------
    path : str or path
        The file; it is opened for reading.
    query : str
        One SELECT; each of its columns has values of one type.

    Raises
    ------
    InvalidPipeline
        If one of them is empty.

    Examples
    --------
    ::

        customers = hf.lookup_table.sqlite("shop.db", "SELECT id, name FROM customers")
    """
    if (
        not isinstance(path, str | os.PathLike)
        or not os.fspath(path)
        or not isinstance(query, str)
        or not query.strip()
    ):
        raise InvalidPipeline("path= or query= is no text.", do=f"write for instance {_RIGHT}")
    return SqliteLookupTable(str(Path(path).expanduser().absolute()), query)
