"""What the SQL sinks share: how rows are written, the ledger row, the checks of names, values without a SQL type.

Invariants: the ledger row of (pipeline, sink) moves in the transaction that writes the rows; its ``epoch`` and
``generation`` only grow (asserted for every sink in :mod:`holdfast.connectors.kit.expected`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from holdfast.errors import BadRow, Diverged, Fenced, InvalidPipeline
from holdfast.graph.building import names_of
from holdfast.ports import Held
from holdfast.positions import Positions
from holdfast.shards.naming import shard_of
from holdfast.types.plain import flat as flat
from holdfast.types.plain import flat_type as flat_type
from holdfast.types.plain import is_nested as is_nested
from holdfast.types.plain import json_text as json_text

log = logging.getLogger("holdfast.connectors")

Mode = Literal["append", "upsert"]
OnNewColumn = Literal["add", "fail"]

LEDGER = "holdfast_ledger"
"""The sink's own ledger, beside the target: one row for each (pipeline, sink)."""

CONTROL = "holdfast_control"
"""The control rows that were carried out, where a sink has a control column."""

OWN_TABLES = "holdfast_"
"""Tables that begin so are Holdfast's own: rows go to no such table, nor to one that a later version needs."""

RESERVED_PREFIX = "__holdfast"
"""Columns that begin so are Holdfast's own (the order of staged rows, the delete flag)."""


@dataclass(frozen=True)
class TableMode:
    """How rows are written to the table.

    Parameters
    ----------
    mode : {"append", "upsert"}
        Add every row, or let the last row of each key win.
    key : tuple of str
        Columns that identify a row; needed for upsert.
    delete : str, optional
        Boolean column, upsert only: a true row deletes its key instead.  The column itself is not stored.
    rewindable : bool
        Keep the epoch of each row in a column of its own, so that rows can be withdrawn; append only.
    on_new_column : {"add", "fail"}
        What a start does where the rows have a column that the table has not (design/0035).
    """

    mode: Mode = "append"
    key: tuple[str, ...] = ()
    delete: str | None = None
    rewindable: bool = False
    on_new_column: OnNewColumn = "add"

    @classmethod
    def of(
        cls,
        mode: Mode,
        key: str | Sequence[str],
        delete: str | None,
        rewindable: bool,
        on_new_column: OnNewColumn = "add",
    ) -> TableMode:
        """Return it from arguments as users write them."""
        return cls(mode, names_of(key), delete, rewindable, on_new_column)

    def arguments(self) -> dict[str, Any]:
        """Return what a sink's node shows of it."""
        shown: dict[str, Any] = {"mode": self.mode, "key": list(self.key), "delete": self.delete}
        if self.rewindable:
            shown["rewindable"] = True
        return shown if self.on_new_column == "add" else {**shown, "on_new_column": self.on_new_column}

    def adds(self, column: str) -> bool:
        """Return whether a start adds a column to a table that lacks it: never one of the key."""
        return self.on_new_column == "add" and column not in self.key

    def stored(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns that the table holds: all but the delete column."""
        return pa.schema([field for field in schema if field.name != self.delete])

    def check(self, node: str) -> None:
        """Raise :class:`InvalidPipeline` if the arguments contradict each other."""
        if self.mode not in ("append", "upsert"):
            raise InvalidPipeline(
                f"{node}: mode={self.mode!r} is not known.",
                why='a table is written by mode="append" or mode="upsert".',
                do='choose one of the two; upsert also needs key=["column", ...].',
            )
        if self.mode == "upsert" and not self.key:
            raise InvalidPipeline(
                f'{node}: mode="upsert" without a key.',
                why="an upsert must know which columns identify a row.",
                do='name them: mode="upsert", key=["id"].',
            )
        if self.mode == "append" and (self.key or self.delete):
            given = f"key={list(self.key)!r}" if self.key else f"delete={self.delete!r}"
            raise InvalidPipeline(
                f'{node}: {given} has no meaning with mode="append".',
                why="append adds every row and looks none up.",
                do='write mode="upsert", or leave the argument out.',
            )
        if self.mode == "upsert" and self.rewindable:
            raise InvalidPipeline(
                f'{node}: rewindable=True has no meaning with mode="upsert".',
                why="a row that an upsert has replaced is gone: it cannot be restored.",
                do='append every version of a row (mode="append"), or leave rewindable out.',
            )
        if len(set(self.key)) != len(self.key) or self.delete in self.key:
            raise InvalidPipeline(
                f"{node}: key={list(self.key)!r}, delete={self.delete!r} name a column twice.",
                why="each column has one role.",
                do="name each column once.",
            )
        if self.on_new_column not in ("add", "fail"):
            raise InvalidPipeline(
                f"{node}: on_new_column={self.on_new_column!r} is not known.",
                why="a column that the table lacks is added to it, or the start is refused.",
                do='write on_new_column="add" or on_new_column="fail".',
            )

    def check_columns(self, node: str, columns: Collection[str] | None) -> None:
        """Raise :class:`InvalidPipeline` if a named column is not among ``columns`` (None: not known)."""
        wanted = (*self.key, *([self.delete] if self.delete else []))
        for column in wanted if columns is not None else ():
            if column not in (columns or ()):
                raise InvalidPipeline(
                    f"{node}: column {column!r} is not among the rows' columns.",
                    why=f"the rows have {', '.join(sorted(columns or ())) or 'no columns'}.",
                    do="correct the name, or add the column before the sink.",
                )

    def check_schema(self, node: str, schema: pa.Schema) -> None:
        """Raise :class:`InvalidPipeline` if no table can hold these columns in this mode."""
        self.check_columns(node, schema.names)
        repeated = sorted({name for name in schema.names if schema.names.count(name) > 1})
        reserved = [name for name in schema.names if name.lower().startswith(RESERVED_PREFIX)]
        if repeated or reserved or not self.stored(schema).names:
            wrong = f"has column {(repeated or reserved)[0]!r}" if repeated or reserved else "has no column to store"
            raise InvalidPipeline(
                f"{node}: the rows' schema {wrong}{' twice' if repeated else ''}.",
                why=f"a table needs distinct names, at least one, and names in {RESERVED_PREFIX}* are taken.",
                do="rename or add a column before the sink.",
            )
        if self.delete and not pa.types.is_boolean(schema.field(self.delete).type):
            raise InvalidPipeline(
                f"{node}: the delete column {self.delete!r} is {schema.field(self.delete).type}, not boolean.",
                why="a row either deletes its key or does not.",
                do=f"make it boolean before the sink, for instance with select(\"... = 'D' as {self.delete}\").",
            )


APPEND = TableMode()
"""Every row is added."""


def check_keys(node: str, mode: TableMode, rows: pa.RecordBatch | pa.Table) -> None:
    """Raise :class:`BadRow` if a key is null: a null is equal to nothing, so no row would win."""
    for column in mode.key:
        if rows.column(column).null_count:
            raise BadRow(
                f"{node}: {rows.column(column).null_count} rows have a null in the key column {column!r}.",
                why="a row is found again by its key, and null is equal to nothing.",
                do=f'filter such rows out before the sink: hf.filter("{column} is not null").',
            )


def check_text(node: str, column: str, values: pa.Array) -> None:
    """Raise :class:`BadRow` if a text is not UTF-8: Arrow's own kernels check it only where they must."""
    try:
        values.validate(full=True)
    except pa.ArrowInvalid as error:
        try:
            values.to_pylist()
        except UnicodeDecodeError as text:
            raise no_utf8(node, column, f"it holds {text.object[:40]!r}") from error
        raise no_utf8(node, column, str(error)) from error


def check_nested(node: str, column: str, values: pa.Array, system: str) -> None:
    """Raise :class:`BadRow` if nested values hold a text that is not UTF-8, or a time that JSON text cannot say here.

    Spark and Arrow have times of years before 1 and after 9999, Python, which writes them, has not.
    """
    check_text(node, column, values)
    if _has_times(values.type):
        try:
            json_text(values)
        except (ValueError, OverflowError) as error:
            raise unkept_value(node, column, system, error) from error


def _has_times(kind: pa.DataType) -> bool:
    return bool(pa.types.is_temporal(kind)) or any(_has_times(kind.field(n).type) for n in range(kind.num_fields))


def no_utf8(node: str, column: str, why: str) -> BadRow:
    """Return the error of a text that is none."""
    return BadRow(
        f"{node}: a text in column {column!r} is not UTF-8.",
        why=f"{why}.",
        do="declare the column BINARY, or decode it before the sink.",
    )


def unkept_value(node: str, column: str, system: str, error: Exception) -> BadRow:
    """Return the error of a value that cannot be converted to the system's form."""
    return BadRow(
        f"{node}: column {column!r} holds a value that {system} cannot keep.",
        why=f"{error}.",
        do="correct or filter such rows before the sink.",
    )


def misfit(node: str, table: str, column: str, ours: str, theirs: str, cure: str) -> InvalidPipeline:
    """Return the error of a column that does not fit the table: names the column and both types."""
    return InvalidPipeline(
        f"{node}: column {column!r} is {ours}, but {theirs} in table {table}.",
        why="not every value of the one can be kept in the other.",
        do=cure,
    )


def unknown_column(node: str, table: str, column: str, present: Collection[str]) -> InvalidPipeline:
    """Return the error of a column that the table lacks, and that no start may add."""
    return InvalidPipeline(
        f"{node}: column {column!r} does not exist in table {table}.",
        why=f'the table has {", ".join(present)}; a start adds a column by on_new_column="add", and none of a key.',
        do="add it to the table, or leave it out with select(...) before the sink.",
    )


def not_added_yet(node: str, table: str, columns: Collection[str]) -> InvalidPipeline:
    """Return the error of a question about columns that only the next start adds."""
    return InvalidPipeline(
        f"{node}: table {table} has no column {', '.join(map(repr, columns))} yet.",
        why="the pipeline has got it since its last run, and a start adds it to the table.",
        do="start the pipeline once (holdfast run ...), then ask again.",
    )


def check_columns(node: str, schema: pa.Schema, rows: pa.RecordBatch | pa.Table) -> None:
    """Refuse rows that were decided with other columns than this run has, where recovery could not publish them."""
    if set(schema.names) != set(rows.schema.names):
        raise InvalidPipeline(
            f"{node}: rows of an epoch that was decided before the pipeline was changed have other columns than now.",
            why=f"they have {', '.join(rows.schema.names)}; now there are {', '.join(schema.names)}; and their epoch "
            "could not be published first.",
            do="start the pipeline once as it was before the change; then with the change.",
        )


def unfilled_columns(node: str, table: str, columns: Collection[str]) -> InvalidPipeline:
    """Return the error of NOT NULL columns that no row fills."""
    names = ", ".join(repr(column) for column in columns)
    return InvalidPipeline(
        f"{node}: table {table} requires a value for {names}, and the rows have no such column.",
        why="the table declares it NOT NULL and without a default.",
        do="add the column before the sink, or give it a default in the table.",
    )


def no_unique_index(node: str, table: str, key: Collection[str], ddl: str) -> InvalidPipeline:
    """Return the error of an upsert into a table that does not keep the key unique."""
    return InvalidPipeline(
        f"{node}: table {table} has no unique index on exactly ({', '.join(key)}).",
        why="the database finds the row to replace by such an index.",
        do=f"create it: {ddl}",
    )


# --- the ledger row -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LedgerRow:
    """What the sink's own ledger says of one pipeline."""

    epoch: int
    generation: int
    positions: str
    pts: int | None
    in_progress: str | None = None

    def held(self) -> Held:
        """Return it as the coordinator sees it."""
        return Held(self.epoch, self.generation, json.loads(self.positions), self.pts)


def rows_of_shards(pipeline: str, found: Iterable[tuple[str, LedgerRow]]) -> dict[str, LedgerRow]:
    """Return of the ledger rows of a sink its own, and those of other shards that hold something.

    Parameters
    ----------
    pipeline : str
        The pipeline, or one of its shards.
    found : iterable of (str, LedgerRow)
        Pipeline -> row, of this sink's name, of whichever pipelines.

    Examples
    --------
    >>> row, empty = LedgerRow(3, 1, '{"lines": {"a": 4}}', None), LedgerRow(3, 1, '{"lines": {}}', None)
    >>> [*rows_of_shards("trips-1", [("trips", row), ("trips-1", empty), ("trips-2", empty), ("rides", row)])]
    ['trips', 'trips-1']
    """
    base = shard_of(pipeline)[0]
    ours = {name: row for name, row in found if shard_of(name)[0] == base}
    return {name: row for name, row in ours.items() if name == pipeline or any(row.held().positions.values())}


def check_one_shard(node: str, table: str, held: Mapping[str, Held]) -> None:
    """Raise :class:`InvalidPipeline` where a table has rows of several shards, and one asks for those of its own."""
    if len(held) > 1:
        raise InvalidPipeline(
            f"{node}: table {table} has rows of {len(held)} shards: {', '.join(sorted(held))}.",
            why="a row of a table does not say which shard has written it: those of the others would be too many.",
            do="compare all shards at once: holdfast reconcile does.",
        )


def positions_text(positions: Positions) -> str:
    """Return positions as the ledger stores them: equal texts, equal positions."""
    return json.dumps({source: dict(segments) for source, segments in positions.items()}, sort_keys=True)


def check_generation(node: str, pipeline: str, ours: int, row: LedgerRow | None) -> LedgerRow:
    """Return the row if this generation owns it.

    Raises
    ------
    Fenced
        If a higher generation has opened the sink.
    Diverged
        If the row is gone or older than our own ``open``: the database was replaced during the run.
    """
    if row is None or row.generation < ours:
        raise Diverged(
            f"{node}: the ledger row of pipeline {pipeline!r} is {'gone' if row is None else 'older than this run'}.",
            why="the table was dropped, or the database was restored from a backup during the run.",
            do="stop the run, check the database, and start again: what it lacks is replayed; a table that is empty is "
            "filled by holdfast reconcile --rebuild.",
            pipeline=pipeline,
            participant=node,
            generation=ours,
        )
    if row.generation > ours:
        raise fenced(node, pipeline, ours, row.generation)
    return row


def fenced(node: str, pipeline: str, ours: int, theirs: int) -> Fenced:
    """Return the error of a generation that no longer owns (or cannot take) the sink.

    It carries the higher generation: a takeover with a checkpoint that is younger than the sink goes above it.
    """
    return Fenced(
        f"{node}: generation {ours} of pipeline {pipeline!r} is fenced by generation {theirs}.",
        why="another run has taken this pipeline over.",
        do="leave the newer run alone; nothing was changed by this one.",
        pipeline=pipeline,
        participant=node,
        generation=theirs,
    )


def warn_of_empty(node: str, epoch: int) -> None:
    """Say that a table has no rows, of a sink whose ledger holds epochs: that may be right, or they were removed."""
    log.info(
        "%s: the table is empty, and its ledger says that it holds everything up to epoch %d. If rows should be there, "
        "compare it with its sources: holdfast reconcile",
        node,
        epoch,
    )
