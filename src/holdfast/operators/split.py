"""``split``: each row to the first part whose predicate is true."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from holdfast.errors import InvalidPipeline
from holdfast.expressions import text as expressions
from holdfast.graph import naming
from holdfast.graph.building import building
from holdfast.graph.changes import Changes
from holdfast.graph.naming import Origin
from holdfast.graph.nodes import Node, Stream, apply
from holdfast.graph.shape import Shape
from holdfast.operators import changes_of_rows
from holdfast.operators.arguments import check_reads, check_text, closed

_RIGHT = 'parts = stream | hf.split(late="dep_delay > 15", early="dep_delay < 0", otherwise="rest")'
_PART = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


@dataclass(frozen=True)
class SplitBranch:
    """Keep the rows of one part.

    Parameters
    ----------
    condition : str
        True for exactly the rows of this part: the predicates before it are excluded, and null counts as false.
    """

    condition: str
    kind: ClassVar[str] = "split"

    def arguments(self) -> Mapping[str, Any]:
        """Return the condition."""
        return {"condition": self.condition}

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return the input's shape, after checking the columns that the condition reads."""
        check_reads(self.condition, inputs[0].columns, "predicate")
        return inputs[0]

    def changes(self, inputs: Sequence[Shape]) -> Changes | None:
        """Return the input's changes."""
        return changes_of_rows.changes_where(self.condition, inputs[0].changes, "predicate")


@dataclass(frozen=True)
class Split:
    """A split that has no input yet: what ``hf.split(...)`` returns.

    Parameters
    ----------
    predicates : mapping of str to str
        Part -> the predicate as the user wrote it.
    conditions : mapping of str to str
        Part -> its exclusive condition, in order; ``otherwise`` included.
    name : str, optional
        The name the user gave.
    origin : Origin
        The line of the user's code that built it.
    """

    predicates: Mapping[str, str]
    conditions: Mapping[str, str]
    name: str | None
    origin: Origin

    def attach(self, stream: Stream) -> Parts:
        """Return the parts of a stream."""
        with building("split", self.name, self.origin):
            for part, predicate in self.predicates.items():
                check_reads(predicate, stream.columns, part)
        return Parts(self, stream)


@dataclass(frozen=True, eq=False)
class Parts:
    """The parts of a split stream, by name: ``parts.late`` or ``parts["late"]``.

    A part becomes a stream when it is first asked for; rows of an unused part are dropped.
    """

    split: Split
    stream: Stream
    # Weak, so that a part which was only looked up does not count as a forgotten stream.
    _nodes: weakref.WeakValueDictionary[str, Node] = field(default_factory=weakref.WeakValueDictionary, repr=False)

    def __getitem__(self, part: str) -> Stream:
        conditions = self.split.conditions
        if part not in conditions:
            raise InvalidPipeline(
                f"the split built at {self.split.origin} has no part {part!r}; asked for at {naming.origin()}.",
                why=f"its parts are {', '.join(conditions)}.",
                do="ask for one of these, or name the part in the split.",
            )
        node = self._nodes.get(part)
        if node is None:
            node = apply(
                SplitBranch(conditions[part]),
                (self.stream,),
                name=naming.extended(self.split.name or self._derived_name(), part),
                built_at=self.split.origin,
                is_derived=self.split.name is None,
            ).node
            self._nodes[part] = node
        return Stream(node)

    def _derived_name(self) -> str:
        return naming.derived_name("split", dict(self.split.conditions), [self.stream.name])

    def __getattr__(self, part: str) -> Stream:
        if part.startswith("_"):
            raise AttributeError(part)
        return self[part]

    def __iter__(self) -> Iterator[str]:
        return iter(self.split.conditions)


def split(*misplaced: Any, otherwise: str | None = None, name: str | None = None, **predicates: str) -> Split:
    """Divide a stream: each row goes to the first part whose predicate is true.

    Parameters
    ----------
    otherwise : str, optional
        Name of the part for rows for which no predicate is true (false or null).  Without it they are dropped.
    name : str, optional
        The prefix of the parts' node names: ``<name>_<part>``.
    **predicates : str
        Part -> Spark SQL expression.  The order counts.

    Returns
    -------
    Split
        To be used to the right of ``stream |``, which returns the :class:`Parts`.

    Raises
    ------
    InvalidPipeline
        If a predicate is not a text, is not the same each time it is computed (``rand()``), or names an unknown column.

    Examples
    --------
    ::

        parts = flights | hf.split(late="dep_delay > 15", early="dep_delay < 0", otherwise="rest", name="delay")
        late, rest = parts.late, parts.rest
    """
    with building("split", name) as built_at:
        _check_parts(misplaced, predicates, otherwise)
        stable = {part: _stable(check_text(text, part, right=_RIGHT), part) for part, text in predicates.items()}
        return Split(stable, _exclusive(stable, otherwise), name, built_at)


def _check_parts(misplaced: Sequence[Any], predicates: Mapping[str, Any], otherwise: Any) -> None:
    if misplaced:
        raise InvalidPipeline(
            f"{misplaced[0]!r} has no name.",
            why="each part has a name, and the stream is to the left of |.",
            do=f"write {_RIGHT}",
        )
    if not predicates:
        raise InvalidPipeline("it has no part.", do=f"write {_RIGHT}")
    for part in (*predicates, *([] if otherwise is None else [otherwise])):
        if not isinstance(part, str) or not _PART.fullmatch(part) or part in ("split", "stream"):
            raise InvalidPipeline(
                f"{part!r} is not a name for a part.",
                why="it is a letter and then letters, digits and underscores, and neither 'split' nor 'stream'.",
                do=f"write {_RIGHT}",
            )
    if otherwise in predicates:
        raise InvalidPipeline(f"otherwise={otherwise!r} is the name of a part too.", do="give it another name.")


def _exclusive(predicates: Mapping[str, str], otherwise: str | None) -> dict[str, str]:
    """Return part -> a condition that is true for exactly its rows, and never null."""
    conditions: dict[str, str] = {}
    before: list[str] = []
    for part, predicate in predicates.items():
        safe = _null_safe(predicate)
        conditions[part] = " AND ".join([*(f"NOT {other}" for other in before), safe])
        before.append(safe)
    if otherwise is not None:
        conditions[otherwise] = " AND ".join(f"NOT {other}" for other in before)
    return conditions


def _stable(text: str, part: str) -> str:
    if (function := expressions.varying(text)) is not None:
        raise InvalidPipeline(
            f"{part}={text!r} uses {function}.",
            why="the predicate is computed once for each part, and would put a row into two parts or into none.",
            do="compute it once before: "
            f'stream | hf.select("*", chance="{function}()") | hf.split({part}="chance > ...")',
        )
    return text


def _null_safe(text: str) -> str:
    # In parentheses of its own a text with a comma is not a second argument.
    return f"coalesce(({closed(text)}), false)"
