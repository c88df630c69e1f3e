"""``union``: the rows of several streams, their columns matched by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from holdfast.errors import InvalidPipeline
from holdfast.graph.checks import a_type, building
from holdfast.graph.nodes import Shape, Stream, apply
from holdfast.graph.row_ids import united

_RIGHT = "hf.union(left, right)"


@dataclass(frozen=True)
class Union:
    """Unite the rows of all inputs; columns are matched by name, in the order of the first input."""

    kind: ClassVar[str] = "union"

    def arguments(self) -> Mapping[str, Any]:
        """Return none: what is united is in the inputs."""
        return {}

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return the first input's columns, after checking that the others have the same."""
        known = [shape.columns for shape in inputs if shape.columns is not None]
        for columns in known[1:]:
            _check_same(known[0], columns)
        timestamps = {shape.timestamp for shape in inputs}
        timestamp = inputs[0].timestamp if len(timestamps) == 1 else None
        return Shape(inputs[0].columns, timestamp, united([shape.ids for shape in inputs]))

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
            do="select the same columns from each first: stream | hf.select(...)",
        )


def union(*streams: Stream, name: str | None = None) -> Stream:
    """Return one stream with the rows of all.

    Parameters
    ----------
    *streams : Stream
        Two or more different streams with the same columns, in any order; types are those of Spark's ``unionByName``.
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
    return apply(Union(), streams, name=name, built_at=built_at)
