"""The rows of a query as a table that streams look up in: taken as CSV and parsed by Arrow, column by column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.postgres.dsn import Dsn
from holdfast.errors import HoldfastError, InvalidPipeline, Unavailable
from holdfast.masking import masked

if TYPE_CHECKING:
    import psycopg

_RIGHT = 'hf.lookup_table.postgres("postgresql://app@db/shop", "SELECT id, name FROM customers")'

_TYPES = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
}
_DIGITS = 76  # of the powers of ten that Arrow knows
_TEXTS = ("text", "varchar", "bpchar", "name", "uuid", "json", "jsonb")
_SETTINGS = "SET TimeZone = 'UTC'; SET DateStyle = 'ISO'; SET default_transaction_read_only = on"


@dataclass(frozen=True)
class PostgresLookupTable:
    """The rows of a query.

    Parameters
    ----------
    dsn : Dsn
        Where; ``${NAME}`` is filled in where it is read.
    query : str
        One SELECT.
    """

    dsn: Dsn
    query: str
    kind: ClassVar[str] = "postgres"

    def described(self) -> Mapping[str, Any]:
        """Return server and query, without a password."""
        return {"kind": self.kind, "dsn": str(self.dsn), "query": masked(self.query)}

    def known_columns(self) -> tuple[str, ...] | None:
        """Return None: only the server knows them."""
        return None

    def schema(self) -> pa.Schema:
        """Return the columns of the query."""
        with self._connection() as connection:
            return self._described(connection)

    def load(self, columns: Sequence[str]) -> pa.Table:
        """Return columns of the rows of the query."""
        from psycopg import sql

        with self._connection() as connection:
            schema = self._described(connection)
            if missing := [name for name in columns if name not in schema.names]:
                raise InvalidPipeline(
                    f"the query gives no column {missing[0]!r}.",
                    why=f"it gives {', '.join(schema.names)}.",
                    do="select it, or correct hf.lookup(..., on=..., columns=...).",
                )
            chosen = sql.SQL(", ").join(map(sql.Identifier, columns))
            statement = sql.SQL("COPY (SELECT {} FROM ({}) AS looked_up) TO STDOUT (FORMAT csv)")
            with connection.cursor() as cursor, cursor.copy(statement.format(chosen, self._query())) as copy:
                data = b"".join(copy)
            return _read(data, pa.schema([schema.field(name) for name in columns]))

    def _query(self) -> Any:
        from psycopg import sql

        return sql.SQL(self.query.rstrip().rstrip(";"))

    def _described(self, connection: psycopg.Connection[Any]) -> pa.Schema:
        from psycopg import sql

        found = connection.execute(sql.SQL("SELECT * FROM ({}) AS looked_up LIMIT 0").format(self._query()))
        return pa.schema([pa.field(column.name, self._type(column, connection)) for column in found.description or ()])

    def _type(self, column: Any, connection: psycopg.Connection[Any]) -> pa.DataType:
        known = connection.adapters.types.get(column.type_code)
        name = known.name if known is not None and known.oid == column.type_code else ""  # else an array of them
        if name in _TYPES:
            return _TYPES[name]
        if name == "numeric":
            precision, scale = column.precision, column.scale
            return pa.decimal128(precision, scale) if precision and precision <= 38 else pa.decimal128(38, 18)
        if name in _TEXTS:
            return pa.string()
        raise InvalidPipeline(
            f"column {column.name!r} of the query is of type {name or 'of its own'}.",
            why="a look-up knows numbers, texts, booleans, dates and times.",
            do=f"cast it in the query: CAST({column.name} AS text) AS {column.name}",
        )

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection[Any]]:
        try:
            import psycopg
        except ImportError:
            raise InvalidPipeline(
                "hf.lookup_table.postgres needs psycopg.", do="install it: pip install 'holdfast[postgres]'"
            ) from None
        try:
            with psycopg.connect(self.dsn.expanded().text, connect_timeout=10, autocommit=True) as connection:
                connection.execute(_SETTINGS)
                yield connection
        except HoldfastError:
            raise
        except (psycopg.Error, pa.ArrowException) as error:
            is_away = isinstance(error, psycopg.OperationalError)
            kind = Unavailable if is_away else InvalidPipeline
            raise kind(
                f"the table of {self.dsn} cannot be loaded.",
                why=masked(" ".join(str(error).split())),
                do="make sure that the server answers." if is_away else f"correct the query: {masked(self.query)}",
                participant=str(self.dsn),
            ) from None


def postgres(dsn: str, query: str) -> PostgresLookupTable:
    """Return the rows of a query of PostgreSQL, for ``hf.lookup``.

    Parameters
    ----------
    dsn : str
        Where: a URL or keywords; ``${NAME}`` is an environment variable.  Its password is shown nowhere.
    query : str
        One SELECT.  It runs in a read-only session, once for each load.

    Raises
    ------
    InvalidPipeline
        If one of them is not a text.

    Examples
    --------
    ::

        customers = hf.lookup_table.postgres("${SHOP_DSN}", "SELECT id, name, country FROM customers")
        named = hf.lookup(orders, customers, on={"customer": "id"}, refresh="10 min")
    """
    for value, argument in ((dsn, "dsn"), (query, "query")):
        if not isinstance(value, str) or not value.strip():
            raise InvalidPipeline(f"{argument}= is no text.", do=f"write for instance {_RIGHT}")
    return PostgresLookupTable(Dsn(dsn), query)


def _read(data: bytes, wanted: pa.Schema) -> pa.Table:
    """Return what COPY has given; ``infinity``, and days of other years than 1 to 9999, are no values of Spark's."""
    from holdfast.types.from_text import read_csv

    if not data:
        return wanted.empty_table()
    types = {field.name: pa.string() if pa.types.is_decimal(field.type) else field.type for field in wanted}
    table = read_csv(data, wanted.names, types, true_values=["t"], false_values=["f"])
    for at, field in enumerate(wanted):
        if pa.types.is_decimal(field.type):
            table = table.set_column(at, field.name, _numbers(field, table.column(at)))
    return table.cast(wanted)


def _numbers(field: pa.Field, texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return numbers of a query: by decimals of more bits, for Arrow scales those of 128 modulo 2**128."""
    try:
        if (pc.max(pc.binary_length(texts)).as_py() or 0) > _DIGITS:
            raise pa.ArrowInvalid(f"one has more than {_DIGITS} digits")
        return texts.cast(pa.decimal256(field.type.precision, field.type.scale)).cast(field.type)
    except pa.ArrowInvalid as error:
        raise InvalidPipeline(
            f"column {field.name!r} of the query has numbers that {field.type} does not hold ({error}).",
            do=f"choose their digits in the query: SELECT CAST({field.name} AS numeric(38, 6)) AS {field.name}.",
        ) from error
