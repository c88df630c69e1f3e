"""The rows of a query of MySQL or MariaDB as a table that streams look up in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from holdfast.connectors.kit.queried_table import QueriedTable
from holdfast.connectors.mysql.url import MysqlUrl
from holdfast.errors import InvalidPipeline, Unavailable
from holdfast.masking import masked

_RIGHT = 'hf.lookup_table.mysql("mysql://app@db/shop", "SELECT id, name FROM customers")'


@dataclass(frozen=True)
class MysqlLookupTable(QueriedTable):
    """The rows of a query.

    Parameters
    ----------
    url : MysqlUrl
        Where; ``${NAME}`` is filled in where it is read.
    query : str
        One SELECT.
    """

    url: MysqlUrl
    query: str
    kind: ClassVar[str] = "mysql"

    def described(self) -> Mapping[str, Any]:
        """Return server and query, without a password."""
        return {"kind": self.kind, "url": str(self.url), "query": masked(self.query)}

    def rows(self) -> pa.Table:
        """Read them, in a transaction that changes nothing."""
        try:
            import pymysql
            from pymysql.constants import FIELD_TYPE
        except ImportError:
            raise InvalidPipeline(
                "hf.lookup_table.mysql needs PyMySQL.", do="install it: pip install 'holdfast[mysql]'"
            ) from None
        kinds = {
            FIELD_TYPE.TINY: pa.int64(), FIELD_TYPE.SHORT: pa.int64(), FIELD_TYPE.INT24: pa.int64(),
            FIELD_TYPE.LONG: pa.int64(), FIELD_TYPE.FLOAT: pa.float64(), FIELD_TYPE.DOUBLE: pa.float64(),
            FIELD_TYPE.DATE: pa.date32(), FIELD_TYPE.DATETIME: pa.timestamp("us"),
            FIELD_TYPE.TIMESTAMP: pa.timestamp("us", "UTC"), FIELD_TYPE.TIME: pa.duration("us"),
        }  # fmt: skip
        init = "SET SESSION time_zone = '+00:00'"
        try:
            with (
                pymysql.connect(**self.url.expanded().parameters(), charset="utf8mb4", init_command=init) as connection,
                connection.cursor() as cursor,
            ):
                cursor.execute("START TRANSACTION READ ONLY")
                cursor.execute(self.query)
                columns = [(name, kinds.get(code)) for name, code, *_ in cursor.description or ()]
                values = list(zip(*cursor.fetchall(), strict=True)) or [()] * len(columns)
            arrays = [pa.array(column, kind) for column, (_, kind) in zip(values, columns, strict=True)]
            plain = [array.cast(pa.string()) if pa.types.is_null(array.type) else array for array in arrays]
            return pa.Table.from_arrays(plain, names=[name for name, _ in columns])
        except (pymysql.err.Error, pa.ArrowException) as error:
            code = error.args[0] if error.args else 0
            is_away = isinstance(error, pymysql.err.OperationalError) and code in (1040, 1053, 2003, 2006, 2013)
            kind = Unavailable if is_away else InvalidPipeline
            raise kind(
                f"the table of {self.url} cannot be loaded.",
                why=masked(" ".join(str(error).split())),
                do="make sure that the server answers." if is_away else f"correct the query: {masked(self.query)}",
                participant=str(self.url),
            ) from None


def mysql(url: str, query: str) -> MysqlLookupTable:
    """Return the rows of a query of MySQL or MariaDB, for ``hf.lookup``.

    Parameters
    ----------
    url : str
        Where, as in ``hf.write.mysql``; ``${NAME}`` is an environment variable.  Its password is shown nowhere.
    query : str
        One SELECT.  It runs in a read-only transaction, once for each load; a TIMESTAMP is read as UTC.

    Raises
    ------
    InvalidPipeline
        If one of them is not a text, or the address is none.

    Examples
    --------
    ::

        customers = hf.lookup_table.mysql("${SHOP_URL}", "SELECT id, name, country FROM customers")
        named = hf.lookup(orders, customers, on={"customer": "id"}, refresh="10 min")
    """
    for value, argument in ((url, "url"), (query, "query")):
        if not isinstance(value, str) or not value.strip():
            raise InvalidPipeline(f"{argument}= is no text.", do=f"write for instance {_RIGHT}")
    MysqlUrl(url).check()
    return MysqlLookupTable(MysqlUrl(url), query)
