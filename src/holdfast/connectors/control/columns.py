"""The columns of a sink at a position: those that the pipeline declares, and the schema changes so far.  Pure.

Invariant: columns only come, and types only widen, so every row that fitted once fits still.

Rows cut at the commands among them: pieces of data, and commands, in their order.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.capabilities import optional
from holdfast.connectors.control.commands import (
    AddColumn,
    Command,
    DropPartition,
    Widen,
    parsed,
    text_of,
    type_of,
    wrong,
)
from holdfast.connectors.kit.sql import RESERVED_PREFIX, TableMode
from holdfast.errors import BadRow, InvalidPipeline
from holdfast.ports import Carried, Part, Publication, Sink
from holdfast.types.from_text import from_text

EXTRA_TYPE = pa.map_(pa.string(), pa.string())


@dataclass(frozen=True)
class ControlColumns:
    """Which columns of a sink's rows are not data.

    Parameters
    ----------
    control : str
        Text: a command, or null in rows of data.
    extra : str, optional
        A map of text to text, or a JSON object as text: values of columns that commands have added or widened.
    """

    control: str
    extra: str | None = None

    @property
    def names(self) -> list[str]:
        """Both names."""
        return [name for name in (self.control, self.extra) if name is not None]

    @classmethod
    def of(cls, node: str, control: str | None, extra: str | None) -> ControlColumns | None:
        """Return what the arguments of a sink say; None without a control column."""
        if control is None:
            if extra is not None:
                raise InvalidPipeline(
                    f"{node}: extra={extra!r} has no meaning without control=.",
                    why="it holds values of columns that commands add.",
                    do='name the column with the commands, too: control="control"; or leave extra out.',
                )
            return None
        if control == extra:
            raise InvalidPipeline(
                f"{node}: control and extra name the same column, {control!r}.",
                why="a command is a text, and extra values are a map.",
                do="name two columns, or leave extra out.",
            )
        return cls(control, extra)

    def check_columns(self, node: str, columns: Collection[str] | None, roles: Collection[str] = ()) -> None:
        """Raise :class:`InvalidPipeline` if a column is missing, or has another role in the sink."""
        for argument, name in (("control", self.control), ("extra", self.extra)):
            if name is not None and columns is not None and name not in columns:
                raise InvalidPipeline(
                    f"{node}: {argument} names column {name!r}, which its rows do not have.",
                    why=f"they have {', '.join(columns)}.",
                    do=f"correct {argument}=, or carry the column through the operators before the sink.",
                )
            if name is not None and name in roles:
                raise InvalidPipeline(
                    f"{node}: {argument}={name!r} names a column that has another role.",
                    why="what is not data is neither key nor partition.",
                    do="name another column.",
                )

    def data(self, node: str, schema: pa.Schema) -> pa.Schema:
        """Return the columns of data among those of the rows; check the types of the others."""
        self.check_columns(node, schema.names)
        kind = schema.field(self.control).type
        if not _is_text(kind):
            raise InvalidPipeline(
                f"{node}: the control column {self.control!r} is {kind}, not text.",
                why="a command is JSON text, as holdfast.control writes it.",
                do="make it a STRING, null in rows of data.",
            )
        if self.extra is not None:
            kind = schema.field(self.extra).type
            is_map = pa.types.is_map(kind) and _is_text(kind.key_type) and _is_text(kind.item_type)
            if not (is_map or _is_text(kind)):
                raise InvalidPipeline(
                    f"{node}: the extra column {self.extra!r} is {kind}, neither text nor a map of text to text.",
                    why="its values are those of columns whose types only a command says.",
                    do="make it a STRING that holds a JSON object, or a MAP<STRING, STRING>.",
                )
        return pa.schema([field for field in schema if field.name not in self.names])


def control_arguments(columns: ControlColumns | None) -> dict[str, Any]:
    """Return what a sink's node shows of it: nothing where there is none, as before there were any."""
    if columns is None:
        return {}
    return {"control": columns.control, **({} if columns.extra is None else {"extra": columns.extra})}


def check_no_control(node: str, control: object) -> None:
    """Raise :class:`InvalidPipeline` if a sink that cannot carry out commands is to do so."""
    if control is not None:
        raise InvalidPipeline(
            f"{node}: control={control!r} is not possible.",
            why="it has no columns and no partitions of its own that a command could change in order with its rows.",
            do="write the stream to segments, postgres or sqlite; or leave commands out before this sink: "
            f'hf.filter("{control} is null").',
        )


def check_control_mode(node: str, columns: ControlColumns | None, mode: TableMode) -> None:
    """Raise :class:`InvalidPipeline` if a table's rows could be withdrawn: what a command did could not be."""
    if columns is not None and mode.rewindable:
        raise InvalidPipeline(
            f"{node}: control={columns.control!r} and rewindable=True contradict each other.",
            why="a rewind withdraws rows; what a command has dropped or changed stays so.",
            do="leave one of the two out.",
        )


@dataclass(frozen=True)
class Columns:
    """The columns of data at one position.

    Parameters
    ----------
    declared : pyarrow.Schema
        Those of the pipeline's rows, without control and extra column.
    roles : frozenset of str
        Those whose type does not change: partition columns.
    changes : tuple of AddColumn or Widen
        So far, in order; those that changed something.

    Examples
    --------
    >>> before = Columns(pa.schema([("id", pa.int32())]))
    >>> after = before.after(AddColumn("gust", "double")).after(Widen("id", "bigint"))
    >>> [str(field.type) for field in after.schema], after.version
    (['int64', 'double'], 2)
    """

    declared: pa.Schema
    roles: frozenset[str] = frozenset()
    changes: tuple[AddColumn | Widen, ...] = ()

    @property
    def version(self) -> int:
        """How often they have changed."""
        return len(self.changes)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns: what was added is behind what is declared."""
        fields = {field.name: field for field in self.declared}
        for change in self.changes:
            kind = type_of(change)
            known = fields.get(change.column)
            if known is None:
                fields[change.column] = pa.field(change.column, kind)
            elif is_wider(known.type, kind):  # else the pipeline declares it as wide meanwhile
                fields[change.column] = known.with_type(kind)
        return pa.schema(list(fields.values()))

    def noted(self, texts: Iterable[str]) -> Columns:
        """Return the columns behind the commands that a sink has noted, in order; those of partitions change none."""
        commands = (parsed(text) for text in texts)
        changes = tuple(command for command in commands if isinstance(command, (AddColumn, Widen)))
        return replace(self, changes=(*self.changes, *changes))

    def after(self, command: Command) -> Columns:
        """Return the columns behind a command.

        Raises
        ------
        BadRow
            If it cannot be carried out here.
        """
        match command:
            case AddColumn() | Widen() if command in self.changes:  # repeated, for the rows of another segment
                return self
            case AddColumn():
                return self._with(command) if self._is_new(command) else self
            case Widen():
                return self._with(command) if self._is_widened(command) else self
            case DropPartition():
                self._check_values(command)
                return self

    def _with(self, change: AddColumn | Widen) -> Columns:
        return replace(self, changes=(*self.changes, change))

    def _is_new(self, command: AddColumn) -> bool:
        name, kind = command.column, type_of(command)
        if not name.strip() or name.lower().startswith(RESERVED_PREFIX) or "\0" in name:
            raise wrong(text_of(command), f"no column can be called {name!r}")
        same = [field for field in self.schema if field.name.lower() == name.lower()]
        is_declared = bool(same) and (same[0].type == kind or is_wider(kind, same[0].type))
        if same and not (same[0].name == name and is_declared):
            raise wrong(text_of(command), f"there is a column {same[0].name!r} already, and it is {same[0].type}")
        return not same

    def _is_widened(self, command: Widen) -> bool:
        field, kind = self._field(command, command.column), type_of(command)
        if field.type == kind:
            return False
        if field.name in self.roles:
            raise wrong(
                text_of(command), f"{field.name!r} is a partition column, whose values are names of directories"
            )
        if not is_wider(field.type, kind):
            raise wrong(text_of(command), f"{field.name!r} is {field.type}, and not every value of it is a {kind}")
        return True

    def _field(self, command: Command, name: str) -> pa.Field:
        place = self.schema.get_field_index(name)
        if place < 0:
            why = f"there is no column {name!r} at this place; there are {', '.join(self.schema.names)}"
            raise wrong(text_of(command), why)
        return self.schema.field(place)

    def _check_values(self, command: DropPartition) -> None:
        for name in command.values:
            self.value_of(command, name)

    def value_of(self, command: DropPartition, name: str) -> pa.Scalar:
        """Return a value that a command names, in the type of its column."""
        field, text = self._field(command, name), command.values[name]
        if pa.types.is_nested(field.type) or pa.types.is_duration(field.type):
            raise wrong(text_of(command), f"column {name!r} is {field.type}: no value of it can be written as text")
        try:
            return from_text(pa.array([text], pa.string()), field.type)[0]
        except pa.ArrowException as error:
            raise wrong(text_of(command), f"{text!r} is no value of column {name!r}, which is {field.type}") from error

    def conformed(self, rows: pa.RecordBatch, columns: ControlColumns) -> pa.RecordBatch:
        """Return rows of data as the sink has them: extra values in their columns, what is lacking null.

        Parameters
        ----------
        rows : pyarrow.RecordBatch
            As the pipeline declares them, with control and extra column.
        columns : ControlColumns
            Which these are.

        Raises
        ------
        BadRow
            If an extra value is none of its column, or of a column that is not there.
        """
        extra = None if columns.extra is None else _maps(rows.column(columns.extra))
        named = frozenset() if extra is None or extra.null_count == len(extra) else _keys(extra)
        if unknown := sorted(named - set(self.schema.names)):
            raise BadRow(
                f"A row has a value for column {unknown[0]!r}, which the sink does not have at this place.",
                why=f"it has {', '.join(self.schema.names)}; a control row adds a column for the rows behind it.",
                do="put the control row before: holdfast.control.add_column(...); or leave the row out: "
                "--on-poison isolate.",
            )
        return pa.RecordBatch.from_arrays(
            [self._values(rows, field, extra if field.name in named else None) for field in self.schema],
            schema=pa.schema([field.with_nullable(True) for field in self.schema]),
        )

    def _values(self, rows: pa.RecordBatch, field: pa.Field, extra: pa.Array | None) -> pa.Array:
        is_declared = field.name in self.declared.names
        own = rows.column(field.name) if is_declared else pa.nulls(rows.num_rows, field.type)
        own = own if own.type == field.type else own.cast(field.type)
        if extra is None:
            return own
        texts = pc.map_lookup(extra, pa.scalar(field.name, extra.type.key_type), "last")
        try:
            given = from_text(texts, field.type)
        except pa.ArrowException as error:
            raise BadRow(
                f"A row has an extra value for column {field.name!r} that is no {field.type}.",
                why=f"{error}.",
                do="correct it where it is made; or leave it out: --on-poison isolate.",
            ) from error
        return pc.coalesce(given, own)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _maps(extra: pa.Array) -> pa.Array:
    """Return extra values as maps, also where they are JSON objects as text."""
    if not _is_text(extra.type):
        return extra
    if extra.null_count == len(extra):
        return pa.nulls(len(extra), EXTRA_TYPE)
    return pa.array([None if text is None else _items(text) for text in extra.to_pylist()], EXTRA_TYPE)


def _items(text: str) -> list[tuple[str, str | None]]:
    try:
        found = json.loads(text)
        json.dumps(found, ensure_ascii=False).encode()  # JSON can write halves of characters, which no text has
        if not isinstance(found, dict) or any(isinstance(value, (dict, list)) for value in found.values()):
            raise ValueError("it is no object of plain values")
    except (ValueError, RecursionError) as error:
        raise BadRow(
            f"A row has extra values that cannot be read: {text[:200]!a}.",
            why=f"{error}.",
            do="correct it where it is made: a JSON object, column -> value; or leave it out: --on-poison isolate.",
        ) from error
    return [
        (name, value if isinstance(value, str) or value is None else json.dumps(value)) for name, value in found.items()
    ]


def _keys(extra: pa.Array) -> frozenset[str]:
    maps = extra.drop_null()
    first, last = maps.offsets[0].as_py(), maps.offsets[len(maps)].as_py()
    return frozenset(maps.keys.slice(first, last - first).unique().to_pylist())


def is_wider(old: pa.DataType, new: pa.DataType) -> bool:
    """Return whether every value of one type is a value of another, of the same kind.

    Examples
    --------
    >>> is_wider(pa.int32(), pa.int64()), is_wider(pa.int64(), pa.float64())
    (True, False)
    >>> is_wider(pa.decimal128(8, 2), pa.decimal128(10, 2)), is_wider(pa.decimal128(8, 2), pa.decimal128(10, 5))
    (True, False)
    """
    if pa.types.is_integer(old) and pa.types.is_integer(new):
        bits = old.bit_width + (pa.types.is_unsigned_integer(old) and pa.types.is_signed_integer(new))
        return bool(new.bit_width >= bits and new != old and not _loses_sign(old, new))
    if pa.types.is_floating(old) and pa.types.is_floating(new):
        return bool(new.bit_width > old.bit_width)
    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        is_enough = new.scale >= old.scale and new.precision - new.scale >= old.precision - old.scale
        return bool(is_enough and (new.precision, new.scale) != (old.precision, old.scale))
    return False


def _loses_sign(old: pa.DataType, new: pa.DataType) -> bool:
    return bool(pa.types.is_signed_integer(old) and pa.types.is_unsigned_integer(new))


Piece: TypeAlias = pa.RecordBatch | Command


@optional(Sink)
class Controlled(Protocol):
    """What a sink may offer beyond :class:`~holdfast.ports.Sink`: to carry out commands among its rows."""

    def control_counts(self) -> Mapping[str, int]:
        """Return how many it has carried out: those that changed the ``schema``, and those that dropped a
        ``partition``; empty without a control column.  Asked of a sink opened or not: changes nothing.
        """


def pieces(rows: pa.RecordBatch, columns: ControlColumns) -> Iterator[Piece]:
    """Yield rows of data, and commands, in their order.

    Raises
    ------
    BadRow
        At a control row that is no command.

    Examples
    --------
    >>> rows = pa.RecordBatch.from_pydict({"id": [1, 2, 0, 3], "do": [None, None, '{"do": "widen", '
    ...     '"column": "id", "type": "bigint"}', None]})
    >>> [piece["id"].to_pylist() if isinstance(piece, pa.RecordBatch) else piece.column
    ...     for piece in pieces(rows, ControlColumns("do"))]
    [[1, 2], 'id', [3]]
    """
    control = rows.column(columns.control)
    first = 0
    for place in np.flatnonzero(pc.is_valid(control).to_numpy(zero_copy_only=False)).tolist():
        if place > first:
            yield rows.slice(first, place - first)
        yield parsed(control[place].as_py())
        first = place + 1
    if first < rows.num_rows:
        yield rows.slice(first)


def commands_only(batches: Iterator[pa.RecordBatch], columns: ControlColumns) -> pa.Table | None:
    """Return the control rows alone; None where there are none."""
    found = [rows.filter(pc.is_valid(rows.column(columns.control))) for rows in batches]
    found = [rows for rows in found if rows.num_rows]
    return pa.Table.from_batches(found) if found else None


class Awaited:
    """Commands of epochs that were admitted and are not published: they wait for their group, or for their turn.

    What is admitted behind them is checked as if they were carried out.
    """

    def __init__(self, columns: ControlColumns) -> None:
        self._columns = columns
        self._waiting: dict[int, Publication] = {}

    def note(self, publication: Publication, rows: Iterator[pa.RecordBatch]) -> None:
        """Take the commands of an epoch that passed."""
        epoch = publication.record.epoch
        self._waiting.pop(epoch, None)
        found = commands_only(rows, self._columns)
        if found is not None:
            self._waiting[epoch] = Publication(publication.record, (Carried(found),))

    def forget(self, epoch: int) -> None:
        """Drop the commands of an epoch: it comes again without rows, since all of them were left out meanwhile."""
        self._waiting.pop(epoch, None)

    def before(self, epoch: int, held: int) -> Sequence[Publication]:
        """Return those of epochs before one that the sink does not hold."""
        self._waiting = {number: each for number, each in sorted(self._waiting.items()) if number > held}
        return [each for number, each in self._waiting.items() if number < epoch]


def carried(parts: Sequence[Part]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of parts that the driver carries."""
    for part in parts:
        if isinstance(part, Carried):
            yield from part.rows.to_batches()
