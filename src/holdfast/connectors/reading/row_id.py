"""``row_id``: a column with an id for each row, the same one whenever the row is computed again (design/0022)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from holdfast.capabilities import offers
from holdfast.connectors.reading.bounds import MarkedSpec, unmarked
from holdfast.connectors.reading.identified import IdentifiedSpec, NumberedSpec
from holdfast.connectors.reading.partitioned import beneath
from holdfast.errors import InvalidPipeline
from holdfast.graph.building import building, require_columns
from holdfast.graph.naming import Origin
from holdfast.graph.nodes import Node, Stream, apply
from holdfast.graph.row_ids import DEFAULT_COLUMN, RowIds
from holdfast.graph.shape import Shape
from holdfast.operators.row_id import RowIdOfColumns, check_into
from holdfast.ports import SourceSpec
from holdfast.types.row_ids import check_time

_INSTEAD = {
    "spark": 'name columns that make a row unique; for Kafka: hf.row_id("topic", "partition", "offset").',
    "segments": 'name columns that make a row unique: hf.row_id("flight", "time_hour").',
}
_WHY = {
    "spark": "positions of read.spark are Spark's own, and Holdfast does not see which row is at which.",
    "segments": "rows move to other files when segments are compacted, so none has a position that stays.",
}


@dataclass(frozen=True)
class RowId:
    """A row id that has no input yet: what ``hf.row_id(...)`` returns.

    Parameters
    ----------
    columns : tuple of str
        What ids are made of; none: the position of the row in the source.
    into : str
        The column that is added.
    timestamp : str, optional
        The column that their time is taken from; None: that of the stream; False: none.
    name : str, optional
        The name the user gave.
    origin : Origin
        The line of the user's code that built it.
    """

    columns: tuple[str, ...]
    into: str
    timestamp: str | Literal[False] | None
    name: str | None
    origin: Origin

    def attach(self, stream: Stream) -> Stream:
        """Return the stream with its ids."""
        if self.columns:
            time = stream.timestamp if self.timestamp is None else self.timestamp or None
            spec = RowIdOfColumns(self.columns, self.into, time, self.name or "")
            return apply(spec, (stream,), name=self.name, built_at=self.origin)
        with building("row_id", self.name, self.origin):
            return Stream(self._identified(stream.node))

    def _identified(self, node: Node) -> Node:
        """Return the source, of the same name, with ids; asking twice returns the same node."""
        if not node.is_source:
            raise InvalidPipeline(
                f"hf.row_id() without columns stands behind {node.kind} {node.name!r}, built at {node.origin}.",
                why="an id is made of a row's position, which only the source knows; it is an ordinary column from "
                "there on.",
                do="write it right behind the source: flights = hf.read.files(...) | hf.row_id(); where new rows are "
                'made, name the columns that make one unique: hf.row_id("key", "window_start").',
                participant=node.name,
            )
        if self.name is not None:
            raise InvalidPipeline(
                f"name={self.name!r} has nothing to be the name of.",
                why="ids of positions are part of the source, which has a name.",
                do="leave name= out, and give the source one: hf.read.files(..., name=...).",
            )
        label = f"row_id {self.into} {self.timestamp}"
        found = node.side_outputs.get(label)
        if found is None:
            spec = self._spec(node)
            columns = None if node.columns is None else (*node.columns, self.into)
            ids = RowIds(self.into, frozenset({f"source/{node.name}"}), _made_of(spec))
            shape = Shape(columns, node.timestamp, ids)
            found = Node(spec, (), node.name, node.is_named, node.origin, shape, node.past)
            node.side_outputs[label] = found
        return found

    def _spec(self, node: Node) -> SourceSpec:
        spec = node.source_spec
        given = unmarked(spec)
        if isinstance(given, IdentifiedSpec):
            raise InvalidPipeline(
                f"source {node.name!r}, built at {node.origin}, has ids in {given.column!r} already.",
                do="write hf.row_id() once.",
                participant=node.name,
            )
        if not offers(beneath(spec), NumberedSpec):
            raise InvalidPipeline(
                f"rows of {node.kind} {node.name!r}, built at {node.origin}, have no position that an id could be "
                "made of.",
                why=_WHY.get(node.kind, "a source says so in its declaration (numbering), and this one does not."),
                do=_INSTEAD.get(node.kind, 'name columns that make a row unique: hf.row_id("order_id").'),
                participant=node.name,
            )
        check_into(self.into, given.schema.names)
        time = given.timestamp if self.timestamp is None else self.timestamp or None
        if time is not None:
            require_columns([time], given.schema.names, "timestamp=")
            check_time(time, given.schema.field(time).type)
        made = cast("SourceSpec", IdentifiedSpec(given, self.into, time))
        return cast("SourceSpec", replace(spec, given=made)) if isinstance(spec, MarkedSpec) else made


def _made_of(spec: SourceSpec) -> str:
    given: Any = unmarked(spec)
    return f"the source's name, {given.given.numbering}"


def row_id(
    *columns: str,
    into: str = DEFAULT_COLUMN,
    timestamp: str | Literal[False] | None = None,
    name: str | None = None,
) -> RowId:
    """Add a column with an id for each row, which is the same in every replay, however epochs and tasks are cut.

    Parameters
    ----------
    *columns : str
        Columns that together make a row unique.  Without any the id is made of the row's position in its source, and
        this stands right behind the source.
    into : str
        The column that is added, STRING.
    timestamp : str or False, optional
        The column, TIMESTAMP or BIGINT, by which ids sort; by default the stream's.  False: ids have no time, and no
        order.
    name : str, optional
        The node's name, only with columns.  If given, it is part of the ids: equal rows of two streams are then
        different rows.

    Returns
    -------
    RowId
        To be used to the right of ``stream |``.

    Raises
    ------
    InvalidPipeline
        If rows have no position there, or a column does not exist or cannot be hashed.

    Notes
    -----
    An id is the text of a UUID: version 7, 48 bits of time and 74 of a hash; without a time version 8, 122 bits of a
    hash.  Rows that agree in all of ``columns`` have one id: name enough of them.

    Examples
    --------
    ::

        flights = hf.read.files("data/flights", ..., name="flights") | hf.row_id()
        items = orders | hf.select("*", "posexplode(items) as (pos, item)") | hf.row_id("row_id", "pos", into="item_id")
    """
    with building("row_id", name) as built_at:
        for argument, value in (*((f"columns[{at}]", one) for at, one in enumerate(columns)), ("into", into)):
            if not isinstance(value, str) or not value:
                raise InvalidPipeline(
                    f"{argument}={value!r} is not a name of a column.",
                    do='write for instance hf.row_id("key", "window_start").',
                )
        twice = sorted({column for column in columns if columns.count(column) > 1})
        if twice:
            raise InvalidPipeline(f"column {twice[0]!r} is named twice.", do="name it once.")
        if timestamp is not None and timestamp is not False and (not isinstance(timestamp, str) or not timestamp):
            raise InvalidPipeline(
                f"timestamp={timestamp!r} is no column.",
                do='name one, timestamp="time_hour"; or write timestamp=False for ids without a time.',
            )
        return RowId(columns, into, timestamp, name, built_at)
