"""What becomes of members of JSON objects that are no column of ``schema=``: ``on_new_column=``.

They are ignored, make their row a bad one, or are rescued: then the rows have one column more, the text of the members
that the others do not have.  Or they stop the run, which adds columns for them to the schema file: the next start has
these.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import pyarrow as pa
from pydantic_core import to_json

from holdfast.connectors.formats import blocks, json_members
from holdfast.connectors.formats.blocks import Parser, Records, RowRules, Unreadable
from holdfast.connectors.formats.json_lines import JsonParser
from holdfast.errors import BadRow, InvalidPipeline
from holdfast.ports import RESCUE_COLUMN
from holdfast.types import ddl, schema_files
from holdfast.types.inferred import declaration_of

OnNewColumn = Literal["ignore", "fail", "rescue", "add"]

RESCUED = pa.field(RESCUE_COLUMN, pa.string())
"""The column of members that are no other column, as JSON text; null where a row has none."""

_PIECE = 4000
"""Lines of which one with such a member costs all the exact way."""

_ADDED_MAX = 50
"""Columns that are added at once: an error carries them; the next run finds the others."""


def choice_of(on_new_column: str, format: str) -> OnNewColumn:
    """Return what ``on_new_column=`` says.

    Raises
    ------
    InvalidPipeline
        If it says nothing that is known, or the format has no members.
    """
    if on_new_column not in ("ignore", "fail", "rescue", "add"):
        raise InvalidPipeline(
            f"on_new_column={on_new_column!r} is not known.",
            do='write on_new_column="fail", "rescue" or "add", or leave it out.',
        )
    if on_new_column != "ignore" and format != "json":
        raise InvalidPipeline(
            f'on_new_column="{on_new_column}" is for format="json", and this is format={format!r}.',
            why="only members of JSON objects are compared with schema=.",
            do="leave on_new_column= out.",
        )
    return on_new_column  # type: ignore[return-value]


def file_to_add_to(schema: Any, on_new: OnNewColumn) -> str:
    """Return the path of the schema file that gets new columns; empty where none does.

    Raises
    ------
    InvalidPipeline
        If ``schema=`` is no file.
    """
    if on_new != "add":
        return ""
    if not schema_files.is_file(schema):
        raise InvalidPipeline(
            'on_new_column="add" needs schema= to be a file.',
            why="a run that meets a new member writes its column there, and cannot change your program.",
            do='write the columns into a file, and name that: schema="rides.ddl".',
        )
    path: str = os.path.abspath(schema)
    return path


@dataclass(frozen=True)
class NewColumns:
    """Columns that a schema file is to get.

    Parameters
    ----------
    record : int
        The first record that has a member for one of them.
    columns : tuple of str
        In SQL's words.
    schema_file : str
        Where to.
    """

    record: int
    columns: tuple[str, ...]
    schema_file: str

    def note_in(self, error: BadRow) -> BadRow:
        """Return the error of the record, from which the driver knows them."""
        error.do = f"add what the schema lacks to {self.schema_file}, then start again: {', '.join(self.columns)}."
        error.args = (error.message,)
        error.new_columns, error.schema_file = "\n".join(self.columns), self.schema_file
        return error


def columns_to_add(contents: Sequence[bytes], reasons: Mapping[int, str], rows: RowRules) -> NewColumns | None:
    """Return the columns that a schema file is to get; None where that is none, or gets none.

    Parameters
    ----------
    contents : sequence of bytes
        Records.
    reasons : mapping of int to str
        Why some are bad.  One that has another fault is taken for none that says of what type a member is.
    rows : RowRules
        The result of rows.
    """
    if not rows.schema_file:
        return None
    found = [at for at, reason in sorted(reasons.items()) if json_members.is_refusal(reason)]
    values = json_members.new_values((contents[at] for at in found), rows.schema)
    columns = {name: column for name, each in values.items() if (column := _column_for(name, each))}
    some = dict(islice(columns.items(), _ADDED_MAX))
    first = next((at for at in found if json_members.new_values([contents[at]], rows.schema).keys() & some), None)
    return None if first is None else NewColumns(first, tuple(some.values()), rows.schema_file)


def _column_for(name: str, values: Sequence[Any]) -> str:
    """Return the column for a member; empty where none could be written, or would have all of these values."""
    if not name.isprintable():
        return ""
    column = declaration_of(name, values)
    try:
        parser = JsonParser(pa.schema(ddl.fields(column)), ignores_new=False)
        parser.parse(b"".join(to_json({name: value}) + b"\n" for value in values))
    except (Unreadable, InvalidPipeline, ValueError):
        return ""
    return column


def with_rescue(columns: pa.Schema, on_new: OnNewColumn) -> pa.Schema:
    """Return the columns of the rows: those of ``schema=``, and what is rescued beside them.

    Raises
    ------
    InvalidPipeline
        If one of them has its name.
    """
    if on_new != "rescue":
        return columns
    if any(name.lower() == RESCUED.name for name in columns.names):
        raise InvalidPipeline(
            f'column {RESCUED.name!r} is in schema=, and on_new_column="rescue" adds one of this name.',
            why="it holds the members that are no column.",
            do="give the column of schema= another name, or leave it out.",
        )
    return columns.append(RESCUED)


def parser_of(schema: pa.Schema, on_new: OnNewColumn, encoding: str = "UTF-8") -> Parser:
    """Return what reads lines into the columns of :func:`with_rescue`."""
    if on_new == "rescue":
        declared = schema.remove(schema.get_field_index(RESCUED.name))
        return RescueParser(JsonParser(declared, encoding), JsonParser(declared, encoding, ignores_new=False))
    return JsonParser(schema, encoding, ignores_new=on_new == "ignore")


@dataclass(frozen=True)
class RescueParser:
    """Parses objects, one a line, with the members that are no column as text.

    Parameters
    ----------
    columns : JsonParser
        Reads the columns, and ignores other members.
    strict : JsonParser
        The same, and refuses objects that have others.

    Notes
    -----
    Lines without such a member are parsed as without this: Arrow says that there is none.  Where some have one, Python
    looks at each line of the few thousand around it.
    """

    columns: JsonParser
    strict: JsonParser

    def parse(self, data: bytes) -> list[pa.RecordBatch]:
        """Return the rows, one for each line."""
        try:
            return [_with_texts(batch, None) for batch in self.strict.parse(data)]
        except Unreadable:
            return [batch for piece in _pieces(data) for batch in self._parse_piece(piece)]

    def _parse_piece(self, contents: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
        data = b"\n".join(contents) + b"\n"
        try:
            yield from (_with_texts(batch, None) for batch in self.strict.parse(data))
            return
        except Unreadable:
            batches = self.columns.parse(data)
        try:
            texts = pa.array(json_members.rest_of(contents, self.columns.schema), pa.string())
        except ValueError as error:
            raise Unreadable(f"it has a member that is no column, and cannot be rescued: {error}") from error
        at = 0
        for batch in batches:
            yield _with_texts(batch, texts.slice(at, batch.num_rows))
            at += batch.num_rows

    def joins(self, data: bytes) -> bool:
        """Whether the text may be parsed together with others."""
        return self.columns.joins(data)

    def head(self, data: bytes, size: int) -> bytes:
        """Return the lines that end within the first bytes."""
        return self.columns.head(data, size)

    def records(self, data: bytes) -> Records:
        """Take the text apart into lines."""
        return self.columns.records(data)

    def judge(self, contents: Sequence[bytes], error: Unreadable | None = None) -> Mapping[int, str]:
        """Return why lines are surely bad, by index; a member that is no column is no reason."""
        return self.columns.judge(contents, error)

    def reason(self, record: bytes, error: Unreadable) -> str:
        """Say why a line cannot be read."""
        return self.columns.reason(record, error)


def _pieces(data: bytes) -> Iterator[list[bytes]]:
    """Yield the lines that are not empty, some thousand at a time."""
    starts, ends = (places.tolist() for places in blocks.lines(data))
    for first in range(0, len(starts), _PIECE):
        last = first + _PIECE
        yield [data[start:end] for start, end in zip(starts[first:last], ends[first:last], strict=True)]


def _with_texts(batch: pa.RecordBatch, texts: pa.Array | None) -> pa.RecordBatch:
    return batch.append_column(RESCUED, pa.nulls(batch.num_rows, pa.string()) if texts is None else texts)
