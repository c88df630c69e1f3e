"""Checks of one node while it is built; each error names the node and the line that builds it.

What was built, weakly: every node and sink, the thread that built it, and whether a pipeline has taken it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import TracebackType
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from holdfast.capabilities import offers, optional
from holdfast.errors import InvalidPipeline
from holdfast.graph import naming
from holdfast.graph.naming import Origin
from holdfast.ports import SinkSpec, StatefulSpec


class Named(Protocol):
    """What is asked of a stream here."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def origin(self) -> Origin:
        """The line that built it."""


class Placed(Named, Protocol):
    """What is asked of a node here."""

    @property
    def spec(self) -> Any:
        """What it does."""

    @property
    def kind(self) -> str:
        """Its kind."""

    @property
    def inputs(self) -> Sequence[Any]:
        """The nodes that it reads."""


PlacedT = TypeVar("PlacedT", bound=Placed)


@dataclass(frozen=True)
class building:
    """Context in which a node is being built: checks its name, and puts node and line in front of every error.

    Returns the :class:`Origin` of the node.

    Parameters
    ----------
    kind : str
        What is being built.
    name : str, optional
        The name that the user gave.
    built_at : Origin, optional
        Where it is built; found on the stack by default.
    """

    kind: str
    name: str | None = None
    built_at: Origin = field(default_factory=naming.origin)

    def __enter__(self) -> Origin:
        naming.checked_name(self.name, of=self.kind, built_at=self.built_at)
        return self.built_at

    def __exit__(self, kind: Any, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, InvalidPipeline):
            called = f"{self.kind} {self.name!r}" if self.name else self.kind
            raise InvalidPipeline(
                f"{called}, built at {self.built_at}: {error.what}",
                why=error.why,
                do=error.do,
                participant=self.name or "",
            ) from None


def require_columns(wanted: Iterable[str], columns: Collection[str] | None, argument: str) -> None:
    """Check that columns exist, where columns are known.  Names are compared as Spark does, without regard to case.

    Raises
    ------
    InvalidPipeline
        Naming the missing column, those that exist and the nearest of them.
    """
    if columns is None:
        return
    known = {column.lower() for column in columns}
    for name in wanted:
        if name.lower() not in known:
            raise no_such_column(name, columns, argument)


def added_twice(added: Sequence[str], before: Sequence[str]) -> str | None:
    """Return the first column that is added to others of which one has its name; Spark's names have no case.

    Examples
    --------
    >>> added_twice(["a", "B"], ["b", "c"])
    'B'
    """
    taken = {name.lower() for name in before}
    for name in added:
        if name.lower() in taken:
            return name
        taken.add(name.lower())
    return None


def check_choice(argument: str, value: str, choices: tuple[str, ...]) -> None:
    """Check that an argument is one of a few words.

    Raises
    ------
    InvalidPipeline
        If it is none of them.
    """
    if value not in choices:
        raise InvalidPipeline(
            f"{argument}={value!r} is not known.",
            why=f"it is one of {', '.join(map(repr, choices))}.",
            do=f"write {argument}={choices[0]!r}.",
        )


def names_of(names: str | Iterable[str]) -> tuple[str, ...]:
    """Return names that a user wrote as one text, or as several: a text is one name, and not its letters.

    Examples
    --------
    >>> names_of("place"), names_of(["day", "place"])
    (('place',), ('day', 'place'))
    """
    return (names,) if isinstance(names, str) else tuple(names)


def no_such_column(name: str, columns: Collection[str], argument: str) -> InvalidPipeline:
    """Return the error for a column that is not there, with the nearest one that is."""
    known = {column.lower(): column for column in columns}
    near = get_close_matches(name.lower(), list(known), n=1)
    meant = f"did you mean {known[near[0]]!r}? " if near else ""
    return InvalidPipeline(
        f"{argument} names the column {name!r}, which does not exist.",
        why=f"the columns are {', '.join(columns)}.",
        do=f'{meant}Correct the name, or add the column before: stream | hf.select("*", {_word(name)}=...)',
    )


def _word(name: str) -> str:
    return name if name.isidentifier() else "name"


def not_attachable(stream: Named, consumer: Any, built_at: Origin) -> InvalidPipeline:
    """Return the error for something that is not allowed to the right of ``stream |``."""
    return InvalidPipeline(
        f"stream {stream.name!r}, built at {stream.origin}, was given {called(consumer)} at {built_at}.",
        why="to the right of | an operator or a sink of Holdfast is expected.",
        do=_cure_of(consumer),
        participant=stream.name,
    )


def called(value: Any) -> str:
    """Return what a value of a wrong type is called in an error."""
    name = getattr(value, "__qualname__", None)
    return f"the function {name!r}" if callable(value) and name else a_type(value)


def a_type(value: Any) -> str:
    """Return the type of a value with its article.

    Examples
    --------
    >>> a_type(1.5), a_type(1)
    ('a float', 'an int')
    """
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"


def check_timestamp(column: str, schema: pa.Schema) -> None:
    """Check that a source's timestamp column exists and can hold one.

    Raises
    ------
    InvalidPipeline
        If it is neither a TIMESTAMP nor a BIGINT.
    """
    if column not in schema.names:
        raise no_such_column(column, schema.names, "timestamp=")
    kind = schema.field(column).type
    if not (pa.types.is_timestamp(kind) or kind == pa.int64()):
        raise InvalidPipeline(
            f"timestamp= names the column {column!r}, which is of type {kind}.",
            why="event time is a TIMESTAMP, or a BIGINT of ticks.",
            do=f'read it as one: schema="... {column} TIMESTAMP ..."',
        )


def _cure_of(consumer: Any) -> str:
    if type(consumer).__name__ == "Stream":
        return (
            'to pair the rows of two streams write hf.join(left, right, on="key", within="2 h"); to unite them '
            "hf.union(left, right); by time, "
            'hf.sync({"left": left, "right": right}, by="key") or hf.merge(main, {"slow": slow}, by="key").'
        )
    if consumer is print:
        return "to see rows write stream | hf.write.console(); wrong: stream | print"
    if callable(consumer):
        return "to call a function on each epoch write stream | hf.map(function); wrong: stream | function"
    if isinstance(consumer, str):
        return f"to keep some rows write stream | hf.filter({consumer!r}); wrong: stream | {consumer!r}"
    return 'write for instance stream | hf.filter("a > 1"), or stream | hf.write.files("out").'


def no_such_attribute(name: str) -> str:
    """Return the text for an attribute that a stream lacks; DataFrame's methods are what users try."""
    if name.startswith("_"):
        return name
    return f'a Stream has no attribute {name!r}: operators follow |, for instance stream | hf.filter("a > 1")'


@optional(SinkSpec)
class Ordered(Protocol):
    """What a sink's declaration may say: which of its columns holds commands, whose place among the rows counts."""

    control: Any
    """None: none does."""


def check_row_order(spec: Any, node: Placed) -> None:
    """Raise :class:`InvalidPipeline` if a sink with commands is behind an operator with state."""
    if not offers(spec, Ordered) or spec.control is None:
        return
    for above in upwards(node):
        if offers(above.spec, StatefulSpec):
            raise InvalidPipeline(
                f"control={spec.control.control!r} behind {above.kind} {above.name!r}, built at {above.origin}.",
                why="rows wait in an operator with state, by key and time: a command would overtake those before it.",
                do="give control rows to sinks that take a stream as it was read, and leave control= out here.",
            )


def upwards(node: PlacedT) -> Iterator[PlacedT]:
    """Yield a node and all that lead to it, each once."""
    waiting, seen = [node], set[int]()
    while waiting:
        found = waiting.pop()
        if id(found) not in seen:
            seen.add(id(found))
            yield found
            waiting += found.inputs


_lock = threading.Lock()

_built: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # -> the thread that built it

_adopted: weakref.WeakSet[Any] = weakref.WeakSet()


def register(node: Any) -> None:
    """Record that a node was built."""
    with _lock:
        _built[node] = threading.get_ident()


def adopt(nodes: Iterable[Any]) -> None:
    """Record that nodes belong to a pipeline."""
    with _lock:
        _adopted.update(nodes)


def by_this_thread() -> tuple[list[Any], set[Any]]:
    """Return what this thread has built and nobody has dropped, and all that belongs to a pipeline."""
    with _lock:
        here = threading.get_ident()
        return [node for node, thread in _built.items() if thread == here], set(_adopted)
