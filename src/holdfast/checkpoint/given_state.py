"""State that people give: tables and Parquet files, read as the state of one operator and checked column by column."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.checkpoint.manifest import StateSchema
from holdfast.errors import InvalidPipeline
from holdfast.graph.building import a_type
from holdfast.operators.stateful.spec import is_alike
from holdfast.state import checks, joins, tables
from holdfast.state.step import StateTable
from holdfast.types.conversion import check_int96, check_ranges
from holdfast.types.frames import as_arrow, is_frame

Fill = Callable[[str, pa.Table], "pa.Table | None"]
"""A table's name and a part of its columns -> the whole table; None where the others cannot be filled in."""


@dataclass(frozen=True)
class GivenState:
    """The state of one operator, as it is given.

    Parameters
    ----------
    operator : str
        Whose.
    given : pa.Table, Path, or mapping of str to one of them
        The rows of its only state table; a Parquet file, or a directory of them; or state table -> one of these.  A
        directory in which files are named after the state tables (``keys.parquet``) gives each its own.
    shown : str
        What people call it: a path as it was written, a table by its size and digest.
    """

    operator: str
    given: Any = field(repr=False, compare=False)
    shown: str

    def tables(self, schema: StateSchema, fill: Fill = lambda table, part: None) -> dict[str, pa.Table]:
        """Return every state table of the operator; one that is not given is empty.

        Parameters
        ----------
        schema : StateSchema
            What the operator keeps.
        fill : callable, optional
            Asked for columns that are not given.

        Raises
        ------
        InvalidPipeline
            If a file cannot be read, or a table does not fit what the operator keeps.  Names the column.
        """
        found = {name: of.schema.empty_table() for name, of in schema.tables.items()}
        for name, given in self._by_table(schema).items():
            parts = _read(given, self.operator) if isinstance(given, Path) else [given]
            found[name] = self._fitted(name, schema.tables[name], parts, fill)
        return found

    def _by_table(self, schema: StateSchema) -> Mapping[str, Any]:
        names = list(schema.tables)
        given = self.given
        if isinstance(given, Path) and given.is_dir():
            named = {path.stem: path for path in sorted(given.glob("*.parquet"))}
            if named and named.keys() <= set(names):
                return named
        if isinstance(given, Mapping):
            odd = next((name for name in given if name not in names), None)
            if odd is None:
                return given
            raise self._refused(f"it has no state table {odd!r}; it has {', '.join(names) or 'none'}.")
        if len(names) != 1:
            several = f"it keeps {len(names)} state tables: {', '.join(names)}." if names else "it keeps no state."
            raise self._refused(several, "give a mapping of table names to tables, or a directory of <table>.parquet.")
        return {names[0]: given}

    def _fitted(self, name: str, table: StateTable, parts: Sequence[pa.Table], fill: Fill) -> pa.Table:
        """Return parts that have the same columns as one state table."""
        wanted = table.schema
        reasons = dict.fromkeys(reason for rows in parts for reason in _misfits(rows.schema, wanted))
        known = [column for column in wanted if column.name in parts[0].schema.names]
        if reasons:
            raise self._refused(f"of table {name!r}: {'; '.join(reasons)}.", _CURE, wanted)
        part = tables.united([_plain(rows) for rows in parts], pa.schema(known))
        try:
            check_ranges(part)
        except pa.ArrowInvalid as error:
            raise self._refused(f"of table {name!r}: {error}.", _CURE) from error
        if len(known) < len(wanted):
            whole = fill(name, part) if {*table.key} <= {*part.schema.names} else None
            if whole is None:
                missing = ", ".join(f"{each.name} {each.type}" for each in wanted if each not in known)
                raise self._refused(f"of table {name!r}: not given: {missing}.", _CURE, wanted)
            part = whole
        hole = next((hole for column in wanted for hole in _holes(part.column(column.name), column, column.name)), None)
        if hole is not None:
            raise self._refused(f"of table {name!r}: column {hole!r} has nulls, which it never has.", _CURE)
        distinct = joins.distinct_keys(part, table.key).num_rows
        if distinct < part.num_rows:
            key = ", ".join(table.key) or "empty: it holds one row"
            raise self._refused(f"of table {name!r}: {part.num_rows} rows, and {distinct} keys; its key is {key}.")
        return part.combine_chunks()

    def _refused(self, why: str, do: str = "", wanted: pa.Schema | None = None) -> InvalidPipeline:
        says = "" if wanted is None else f" It keeps: {checks.spelled(wanted)}."
        return InvalidPipeline(
            f"what is given ({self.shown}) is no state of operator {self.operator!r}.",
            why=why + says,
            do=do or "give rows by the schema that holdfast inspect prints.",
            participant=self.operator,
        )


_CURE = "give the columns by the schema that holdfast inspect prints: CAST(column AS type), for instance."


def given_states(state: Any) -> tuple[GivenState, ...]:
    """Return the state that is given, by operator.

    Parameters
    ----------
    state : mapping of str to table, path, or mapping of str to these
        Operator -> its state.  A table is a pyarrow.Table, or a frame of another library that speaks Arrow.

    Raises
    ------
    InvalidPipeline
        If it is none of these.

    Examples
    --------
    >>> given_states({"counts": "counts.parquet"})
    (GivenState(operator='counts', shown="'counts.parquet'"),)
    """
    if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
        raise InvalidPipeline(
            f"state= is {a_type(state)}.",
            why="it says for each operator, by its name, with what state it begins.",
            do='write for instance state={"counts": "counts.parquet"}.',
        )
    return tuple(_given(name, state[name]) for name in sorted(state))


def _given(operator: str, given: Any) -> GivenState:
    if isinstance(given, Mapping):
        parts = {name: _one(operator, each) for name, each in sorted(given.items())}
        shown = ", ".join(f"{name}: {shown}" for name, (_, shown) in parts.items())
        return GivenState(operator, {name: each for name, (each, _) in parts.items()}, shown)
    return GivenState(operator, *_one(operator, given))


def _one(operator: str, given: Any) -> tuple[pa.Table | Path, str]:
    if isinstance(given, str | os.PathLike):
        return Path(given).expanduser().absolute(), repr(os.fspath(given))
    if not is_frame(given):
        raise InvalidPipeline(
            f"the state of operator {operator!r} is given as {a_type(given)}.",
            why="state is a set of tables.",
            do="give a Parquet file, a pyarrow.Table, a frame of Spark, Polars or pandas, or a mapping of table "
            "names to these.",
            participant=operator,
        )
    given = _without_views(as_arrow(given))
    return given, f"{given.num_rows} rows, {_digest(given)}"


def _digest(table: pa.Table) -> str:
    """Return a digest of the rows in any order: what a query gives, of Spark for instance, has none."""
    comparable = [column.name for column in table.schema if _is_comparable(column.type)]
    if comparable:
        table = table.sort_by([(name, "ascending") for name in comparable])
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table.combine_chunks())
    return hashlib.sha256(out.getvalue()).hexdigest()[:8]


def _without_views(table: pa.Table) -> pa.Table:
    """Return a table with columns that Arrow can sort and take rows of."""
    plain = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    return table.cast(pa.schema([column.with_type(plain.get(column.type, column.type)) for column in table.schema]))


def _is_comparable(kind: pa.DataType) -> bool:
    return not (pa.types.is_nested(kind) or pa.types.is_dictionary(kind) or pa.types.is_null(kind))


def _read(path: Path, operator: str) -> list[pa.Table]:
    """Return the tables of one file or several, which have the same columns."""
    import pyarrow.parquet as pq

    files: Sequence[Path] = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    try:
        if not files:
            raise FileNotFoundError(f"{path} holds no *.parquet")
        for file in files:
            check_int96(file)
        parts = [pq.ParquetFile(file, coerce_int96_timestamp_unit="us").read() for file in files]
        for file, part in zip(files, parts, strict=True):
            if sorted(part.schema.names) != sorted(parts[0].schema.names):
                have, first = (", ".join(each.schema.names) for each in (part, parts[0]))
                raise ValueError(f"{file.name} has the columns {have}, and {files[0].name} {first}")
        return parts
    except (OSError, ValueError, pa.ArrowException) as error:
        raise InvalidPipeline(
            f"the state of operator {operator!r} cannot be read from {path}.",
            why=f"{' '.join(str(error).split())}.",
            do="name a Parquet file, or a directory of Parquet files with the same columns.",
            participant=operator,
        ) from error


def _misfits(found: pa.Schema, wanted: pa.Schema) -> Iterator[str]:
    names = {column.name for column in wanted}
    for column in found:
        if column.name not in names:
            yield f"column {column.name!r} is none of it"
        elif found.names.count(column.name) > 1:
            yield f"column {column.name!r} is there twice"
        elif not is_alike(_plain_type(column.type), kept := wanted.field(column.name).type):
            yield f"column {column.name!r} is {column.type}, and the state has {kept}"


def _holes(values: pa.ChunkedArray, field: pa.Field, name: str) -> Iterator[str]:
    """Yield what has nulls and is never null: the column, or members of what it holds."""
    if not field.nullable and values.null_count:
        yield name
    if pa.types.is_struct(field.type):
        there = values.drop_null()
        for member in field.type:
            yield from _holes(pc.struct_field(there, member.name), member, f"{name}.{member.name}")
    elif pa.types.is_list(field.type):
        yield from _holes(pc.list_flatten(values), field.type.value_field, f"{name}[]")


def _plain_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _plain(rows: pa.Table) -> pa.Table:
    columns = [column.cast(_plain_type(column.type)) for column in rows.columns]
    return pa.Table.from_arrays(columns, names=rows.schema.names)
