"""The canonical hash of a row (:mod:`holdfast.types.canonical`) as a SQL expression, and how its values are fetched.

Every function here is one of the catalog that parallel workers may call; nothing is created in the database.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pyarrow as pa
from psycopg import sql as pg

from holdfast.connectors.kit.sql import flat_type, is_nested
from holdfast.connectors.postgres.copy import is_binary, is_text
from holdfast.connectors.postgres.table import PostgresTable
from holdfast.connectors.postgres.types import TableColumn
from holdfast.types import canonical
from holdfast.values import Loss, Losses, LossKind

NUMBERS = ("int2", "int4", "int8", "bool")


@dataclass(frozen=True)
class HashedColumn:
    """A column that is compared.

    Parameters
    ----------
    column : TableColumn
        Of the table.
    kind : pa.DataType
        Plain Arrow type of the rows that were written.
    lost : frozenset of LossKind
        What its column does not keep.
    has_is_json : bool
        Whether the server can ask if a text is JSON (version 16).
    """

    column: TableColumn
    kind: pa.DataType
    lost: frozenset[LossKind]
    has_is_json: bool

    @property
    def name(self) -> pg.Identifier:
        """Return it for a statement."""
        return pg.Identifier(self.column.name)

    def hash(self) -> pg.Composable:
        """Return the expression of its hash: null for a null."""
        seed = bigint(canonical.seed_of(self.column.name))
        base = self.column.base
        if pa.types.is_null(self.kind):
            return _text_hash(self._text(), seed)
        if is_whole(self.kind):
            if base in NUMBERS:
                return _integer_hash(self._cast("integer" if base == "bool" else "bigint"), seed)
            return pg.SQL("CASE WHEN {} THEN {} ELSE {} END").format(
                self._is_whole(), _integer_hash(self._cast("bigint"), seed), _text_hash(self._text(), seed)
            )
        if pa.types.is_floating(self.kind):
            return self._kept(pg.SQL("pg_catalog.hashfloat8extended({}, {})").format(self._float(), seed))
        if pa.types.is_decimal(self.kind) or pa.types.is_uint64(self.kind):
            return _text_hash(pg.SQL("pg_catalog.trim_scale({})::pg_catalog.text").format(self._units()), seed)
        if (sent := self._sent()) is not None:
            return _text_hash(pg.SQL("pg_catalog.encode({}, 'hex')").format(sent), seed)
        return _text_hash(self._json() if is_nested(self.kind) else self._spelled(), seed)

    def value(self) -> pg.Composable:
        """Return the expression of its value as :mod:`holdfast.connectors.postgres.comparing.fetching` reads it."""
        if is_whole(self.kind) and self.column.base not in NUMBERS:
            return pg.SQL("CASE WHEN {} THEN {} END").format(self._is_whole(), self._cast("bigint"))
        if pa.types.is_floating(self.kind):
            return self._float()
        if pa.types.is_uint64(self.kind):
            return self._within(20, 0)
        if pa.types.is_decimal(self.kind):
            return self._within(self.kind.precision, self.kind.scale)
        if (sent := self._sent()) is not None:
            return pg.SQL("pg_catalog.encode({}, 'hex')").format(sent)
        return self._cast("integer") if self.column.base == "bool" else self._text()

    def _cast(self, kind: str) -> pg.Composed:
        return pg.SQL("{}::" + kind).format(self.name)

    def _text(self) -> pg.Composed:
        return self._cast("pg_catalog.text")

    def _is_whole(self) -> pg.Composed:
        """Somebody may have put a fraction there, or a number that is too large."""
        edge = 2**53 if self.column.base.startswith("float") else 2**63 - 1
        return pg.SQL(
            "({0} OPERATOR(pg_catalog.=) pg_catalog.trunc({0}) AND {0} OPERATOR(pg_catalog.>=) {1}::{3}"
            " AND {0} OPERATOR(pg_catalog.<=) {2}::{3})"
        ).format(
            self.name,
            pg.SQL(f"'{-edge}'"),
            pg.SQL(f"'{edge}'"),
            pg.SQL("numeric" if self.column.base == "numeric" else "double precision"),
        )

    def _float(self) -> pg.Composed:
        is_short = self.kind.bit_width <= 32 and self.column.base == "numeric"  # of a real PostgreSQL wrote few digits
        return self._cast("real::double precision" if is_short else "double precision")

    def _kept(self, expression: pg.Composable) -> pg.Composable:
        words = ["NaN"] * (LossKind.NAN in self.lost) + ["Infinity", "-Infinity"] * (LossKind.INFINITE in self.lost)
        if not words:
            return expression
        conditions = [
            pg.SQL("{} OPERATOR(pg_catalog.<>) {}::double precision").format(self._float(), pg.Literal(word))
            for word in words
        ]
        return pg.SQL("CASE WHEN {} THEN {} END").format(pg.SQL(" AND ").join(conditions), expression)

    def _units(self) -> pg.Composed:
        scale = self.kind.scale if pa.types.is_decimal(self.kind) else 0
        unit = f"'1{'0' * scale}'" if scale >= 0 else f"'0.{'0' * (-scale - 1)}1'"
        return pg.SQL("pg_catalog.numeric_mul({}, {}::numeric)").format(self.name, pg.SQL(unit))

    def _within(self, precision: int, scale: int) -> pg.Composed:
        return pg.SQL(
            "CASE WHEN pg_catalog.scale(pg_catalog.trim_scale({0})) OPERATOR(pg_catalog.<=) {1}"
            " AND pg_catalog.abs({0}) OPERATOR(pg_catalog.<) {2}::numeric THEN"
            " pg_catalog.round({0}, {1})::pg_catalog.text END"
        ).format(self.name, pg.SQL(str(max(scale, 0))), pg.SQL(f"'1{'0' * (precision - scale)}'"))

    def _sent(self) -> pg.Composable | None:
        """What the server would send of it: bytes."""
        if is_binary(self.kind):
            return self.name
        sends = {"timestamptz", "timestamp", "date", "time"}
        if not pa.types.is_temporal(self.kind) or self.column.base not in sends:
            return None
        return pg.SQL(f"pg_catalog.{self.column.base}_send({{}})").format(self.name)

    def _json(self) -> pg.Composable:
        parsed = self._cast("pg_catalog.jsonb::pg_catalog.text")
        if self.column.base in ("json", "jsonb") or not self.has_is_json:
            return parsed
        return pg.SQL("CASE WHEN {0} IS JSON THEN {1} ELSE {0} END").format(self._text(), parsed)

    def _spelled(self) -> pg.Composable:
        if LossKind.JSON in self.lost:
            return self._json()
        text: pg.Composable = self._text()
        if LossKind.EMPTY in self.lost:
            text = pg.SQL("CASE WHEN {0} OPERATOR(pg_catalog.<>) '' THEN {0} END").format(text)
        if LossKind.UUID in self.lost:
            text = pg.SQL("pg_catalog.lower(pg_catalog.translate({}, '-{{}}', ''))").format(text)
        if LossKind.PADDING in self.lost:
            text = pg.SQL("pg_catalog.rtrim({}, ' ')").format(text)
        return text


def is_whole(kind: pa.DataType) -> bool:
    """Return whether values are hashed as 64-bit integers."""
    is_small = pa.types.is_integer(kind) and not pa.types.is_uint64(kind)
    return bool(is_small or pa.types.is_boolean(kind) or pa.types.is_duration(kind))


_LOST = {"bpchar": LossKind.PADDING, "uuid": LossKind.UUID, "jsonb": LossKind.JSON}
"""What a column of texts does not keep, by PostgreSQL's type of it."""


def own_losses(table: PostgresTable) -> Losses:
    """Return what the table's columns do not keep of the rows that were written."""
    found = []
    for column in table.columns:
        kind = flat_type(table.schema.field(column.name).type)
        if is_text(kind):
            lost = _LOST.get(column.base)
            found += [Loss(column.name, lost)] if lost else []
    return frozenset(found)


def hashed_columns(table: PostgresTable, losses: Losses, version: int) -> list[HashedColumn]:
    """Return the columns of a table that are compared."""
    return [
        HashedColumn(
            column,
            flat_type(table.schema.field(column.name).type),
            canonical.losses_of(column.name, losses),
            version >= 160000,
        )
        for column in table.columns
        if column.name in table.mode.stored(table.schema).names
    ]


def joined(columns: Sequence[HashedColumn], names: Collection[str]) -> pg.Composable:
    """Return the exclusive or of the hashes of some columns."""
    parts: list[pg.Composable] = [
        pg.SQL("COALESCE({}, 0::bigint)").format(column.hash()) for column in columns if column.column.name in names
    ]
    while len(parts) > 1:  # as a tree: a table may have 1600 columns
        pairs = [pg.SQL("pg_catalog.int8xor({}, {})").format(*parts[at : at + 2]) for at in range(0, len(parts) - 1, 2)]
        parts = [*pairs, *parts[len(parts) - len(parts) % 2 :]]
    return parts[0] if parts else pg.SQL("0::bigint")


def mixed(expression: pg.Composable, constant: int) -> pg.Composable:
    """Return :func:`holdfast.types.lookup3.mixed`."""
    return pg.SQL("pg_catalog.hashint8extended({}, {})").format(bigint(constant), expression)


def bigint(value: int) -> pg.SQL:
    """Return 64 bits as a literal."""
    return pg.SQL(f"'{value - (value >> 63 << 64)}'::bigint")


def _integer_hash(value: pg.Composable, seed: pg.Composable) -> pg.Composed:
    return pg.SQL("pg_catalog.hashint8extended({0}, pg_catalog.int8xor({0}, {1}))").format(value, seed)


def _text_hash(text: pg.Composable, seed: pg.Composable) -> pg.Composed:
    return pg.SQL('pg_catalog.hashtextextended({} COLLATE pg_catalog."C", {})').format(text, seed)
