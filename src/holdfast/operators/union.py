"""``union``: the rows of several streams, their columns matched by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from holdfast.errors import InvalidPipeline
from holdfast.graph.building import a_type, building
from holdfast.graph.nodes import Stream, apply
from holdfast.graph.row_ids import united
from holdfast.graph.shape import Shape

_RIGHT = "hf.union(left, right)"


@dataclass(frozen=True)
class Union:
    """Unite the rows of all inputs; columns are matched by name, in the order of the first input.

    Parameters
    ----------
    missing : str
        What becomes of a column that an input lacks: ``error``, or ``null``.
    """

    missing: str = "error"
    kind: ClassVar[str] = "union"

    def arguments(self) -> Mapping[str, Any]:
        """Return what is said besides the inputs."""
        return {} if self.missing == "error" else {"missing": self.missing}

    @property
    def fills(self) -> bool:
        """Whether columns that an input lacks are null in its rows."""
        return self.missing == "null"

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return the first input's columns, after checking that the others have the same."""
        known = [shape.columns for shape in inputs if shape.columns is not None]
        if not self.fills:
            for other in known[1:]:
                _check_same(known[0], other)
        columns = inputs[0].columns
        if self.fills:
            every = {name.lower(): name for each in reversed(known) for name in each}
            columns = tuple(dict.fromkeys(every[name.lower()] for each in known for name in each))
            columns = columns if len(known) == len(inputs) else None
        timestamps = {shape.timestamp for shape in inputs}
        timestamp = inputs[0].timestamp if len(timestamps) == 1 else None
        return Shape(columns, timestamp, united([shape.ids for shape in inputs]))

    def bounds_end(self, inputs: Sequence[Shape]) -> str | None:
        """Return why no bound holds downstream of it."""
        return None if len({shape.timestamp for shape in inputs}) == 1 else "its inputs have different timestamps"


def _check_same(first: tuple[str, ...], other: tuple[str, ...]) -> None:
    only_first = [column for column in first if column.lower() not in {name.lower() for name in other}]
    only_other = [column for column in other if column.lower() not in {name.lower() for name in first}]
    if only_first or only_other:
        raise InvalidPipeline(
            "the streams do not have the same columns.",
            why="; ".join(
                f"only {place} has {', '.join(columns)}"
                for place, columns in (("the first", only_first), ("another", only_other))
                if columns
            )
            + ".",
            do='select the same columns from each first, stream | hf.select(...); or write missing="null".',
        )


def union(*streams: Stream, missing: str = "error", name: str | None = None) -> Stream:
    """Return one stream with the rows of all.

    Parameters
    ----------
    *streams : Stream
        Two or more different streams with the same columns, in any order; types are those of Spark's ``unionByName``.
    missing : str, default "error"
        What becomes of a column that a stream lacks: ``"error"``, or ``"null"`` in its rows.
    name : str, optional
        The node's name.

    Raises
    ------
    InvalidPipeline
        If the columns differ, or a stream is given twice (each of its rows would occur twice).

    Examples
    --------
    ::

        departures = hf.union(newark, kennedy, name="departures")
    """
    with building(Union.kind, name) as built_at:
        if missing not in ("error", "null"):
            raise InvalidPipeline(f"missing={missing!r} is not known.", do='write missing="null", or leave it out.')
        for given in streams:
            if not isinstance(given, Stream):
                raise InvalidPipeline(
                    f"{a_type(given)} is not a stream.",
                    why="union takes streams, each an argument of its own.",
                    do="write hf.union(*streams)" if isinstance(given, list | tuple | set) else f"write {_RIGHT}",
                )
        if len(streams) < 2:
            raise InvalidPipeline(
                f"it unites {len(streams)} stream{'' if len(streams) == 1 else 's'}.",
                why="a union takes two or more.",
                do=f"write {_RIGHT}",
            )
        twice = next((stream for place, stream in enumerate(streams) if stream in streams[:place]), None)
        if twice is not None:
            raise InvalidPipeline(
                f"stream {twice.name!r} is given twice.",
                why="each of its rows would occur twice.",
                do="give each stream once; to double rows on purpose: "
                'stream | hf.select("*", "explode(array(1, 2)) as copy")',
            )
    return apply(Union(missing), streams, name=name, built_at=built_at)
