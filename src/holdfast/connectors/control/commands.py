"""Commands that travel in the stream: what they are as values, and as the JSON text of a control column.

The text is a format: it lies in sources, journals and ledgers.  Words are added to it; none ever changes its meaning.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from holdfast.errors import BadRow, InvalidPipeline
from holdfast.types import ddl


@dataclass(frozen=True)
class AddColumn:
    """The rows after it may have a column more; ``type`` as in a DDL schema (``"decimal(10,2)"``)."""

    column: str
    type: str


@dataclass(frozen=True)
class Widen:
    """A column's type becomes a wider one: every value that it has is one of the new type."""

    column: str
    type: str


@dataclass(frozen=True)
class DropPartition:
    """The rows before it that have these values are dropped; a value is a text, or None for null."""

    values: Mapping[str, str | None]


Command: TypeAlias = AddColumn | Widen | DropPartition


def add_column(column: str, type: str) -> str:
    """Return the command that adds a column: the value of a row's control column.

    Parameters
    ----------
    column : str
        Its name.
    type : str
        Its type, as in a schema: ``"double"``, ``"decimal(10, 2)"``; not a nested one.

    Raises
    ------
    InvalidPipeline
        If there is no such type.

    Examples
    --------
    >>> add_column("gust", "double")
    '{"do": "add_column", "column": "gust", "type": "double"}'
    """
    return _check(AddColumn(column, type))


def widen(column: str, type: str) -> str:
    """Return the command that widens a column's type, such as ``int`` to ``bigint``.

    Parameters
    ----------
    column : str
        Its name.
    type : str
        The new type, of which every value of the present one is a value: an integer with more bits, ``double`` for
        ``float``, a decimal with more digits and no fewer of them on either side of the point.

    Examples
    --------
    >>> widen("delay", "bigint")
    '{"do": "widen", "column": "delay", "type": "bigint"}'
    """
    return _check(Widen(column, type))


def drop_partition(**values: object) -> str:
    """Return the command that drops the rows before it which have these values.

    Parameters
    ----------
    **values : object
        Column -> value; None means null.

    Examples
    --------
    >>> drop_partition(day="2026-01-01")
    '{"do": "drop_partition", "values": {"day": "2026-01-01"}}'
    """
    texts = {column: None if value is None else _text(value) for column, value in values.items()}
    return _check(DropPartition(texts))


def kind_of(command: Command) -> str:
    """Return what a command is about, as it is noted: ``schema`` or ``partition``."""
    return "partition" if isinstance(command, DropPartition) else "schema"


def text_of(command: Command) -> str:
    """Return a command as the value of a control column."""
    match command:
        case DropPartition(values):
            return json.dumps({"do": "drop_partition", "values": dict(values)}, ensure_ascii=False)
        case AddColumn(column, kind):
            return json.dumps({"do": "add_column", "column": column, "type": kind}, ensure_ascii=False)
        case Widen(column, kind):
            return json.dumps({"do": "widen", "column": column, "type": kind}, ensure_ascii=False)


def is_schema_change(text: str) -> bool:
    """Return whether a command that was carried out has changed the columns."""
    return not isinstance(parsed(text), DropPartition)


def parsed(text: str) -> Command:
    """Return the command that a control column's value is.

    Raises
    ------
    BadRow
        If it is none, or names a type that does not exist.
    """
    try:
        body = json.loads(text)
        json.dumps(body, ensure_ascii=False).encode()  # JSON can write halves of characters, which no text has
    except (ValueError, RecursionError) as error:
        raise wrong(ascii(text), f"it is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise wrong(text, "it is no JSON object")
    found: Command
    match body:
        case {"do": "add_column", "column": str(column), "type": str(kind), **rest} if not rest:
            found = AddColumn(column, kind)
        case {"do": "widen", "column": str(column), "type": str(kind), **rest} if not rest:
            found = Widen(column, kind)
        case {"do": "drop_partition", "values": dict(values), **rest} if not rest and _are_texts(values):
            found = DropPartition(values)
        case _:
            raise wrong(text, "it has other members than a command has, or values of other kinds")
    texts = (*found.values, *found.values.values()) if isinstance(found, DropPartition) else (found.column,)
    if any("\0" in each for each in texts if each is not None):
        raise wrong(text, "it holds the character NUL")
    if isinstance(found, DropPartition):
        if not found.values:
            raise wrong(text, "it names no column, and would drop everything")
    else:
        type_of(found)
    return found


def type_of(command: AddColumn | Widen) -> pa.DataType:
    """Return the type that a command names.

    Raises
    ------
    BadRow
        If there is none of this name, or values of it cannot be written as text.
    """
    try:
        # The name apart: it may be any text, and the grammar has no comment that could hide in a type.
        (field,) = ddl.fields(f"c {command.type}")
    except (InvalidPipeline, ValueError) as error:
        why = f"the type {command.type!r} is not known: {error.why if isinstance(error, InvalidPipeline) else error}"
        raise wrong(text_of(command), why.rstrip(".")) from error
    kind: pa.DataType = field.type
    if not field.nullable or field.metadata or pa.types.is_nested(kind) or pa.types.is_duration(kind):
        raise wrong(text_of(command), f"{command.type!r} is not a plain type")
    return kind


def wrong(text: str, why: str) -> BadRow:
    """Return the error of a command that cannot be carried out."""
    return BadRow(
        f"The control row {text[:500]} cannot be carried out.",
        why=f"{why}.",
        do="correct it where it is made: holdfast.control writes commands; or leave it out: --on-poison isolate.",
    )


def check_drops_own(command: Command, writers: Collection[str]) -> None:
    """Raise :class:`BadRow` where a command drops rows of a table that several shards write.

    Rows of the others would go, too, and whether before or after rows that are still to come is decided by nothing.

    Parameters
    ----------
    command : Command
        The command.
    writers : collection of str
        The shards that hold something in the table, this one among them.
    """
    if len(writers) > 1 and isinstance(command, DropPartition):
        shards = ", ".join(sorted(writers))
        raise wrong(
            text_of(command), f"the table has rows of several shards ({shards}), and only one reads the command"
        )


def _check(command: Command) -> str:
    text = text_of(command)
    try:
        parsed(text)
    except BadRow as error:
        raise InvalidPipeline(error.what, why=error.why, do="correct its arguments.") from error
    return text


def _are_texts(values: Mapping[Any, Any]) -> bool:
    return all(value is None or isinstance(value, str) for value in values.values())


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
