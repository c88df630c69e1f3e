"""``map_batches``: a function of Arrow batches, run by Python workers; models are loaded once per worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from holdfast.errors import InvalidPipeline
from holdfast.graph.building import building
from holdfast.graph.naming import callable_text
from holdfast.graph.nodes import Operator
from holdfast.graph.shape import Shape
from holdfast.operators.arguments import check_callable, check_offset, offset_ticks
from holdfast.types.schema import to_arrow


@dataclass(frozen=True)
class MapBatches:
    """Apply ``fn`` to each Arrow batch; with ``setup``, its result is the second argument."""

    fn: Callable[..., pa.RecordBatch | pa.Table]
    schema: pa.Schema
    setup: Callable[[], Any] | None = None
    timestamp_offset: str | int | None = None
    timestamp: str | None = None
    kind: ClassVar[str] = "map_batches"

    def arguments(self) -> Mapping[str, Any]:
        """Return the functions' names and hashes, and the schema."""
        schema = [f"{field.name}: {field.type}{'' if field.nullable else ' not null'}" for field in self.schema]
        setup = {} if self.setup is None else {"setup": callable_text(self.setup)}
        offset = {} if self.timestamp_offset is None else {"timestamp_offset": self.timestamp_offset}
        timestamp = {} if self.timestamp is None else {"timestamp": self.timestamp}
        return {"fn": callable_text(self.fn), "schema": schema, **setup, **offset, **timestamp}

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Return the columns of the schema; the timestamp stays where a column of its name and of event time does."""
        timestamp = self.timestamp or inputs[0].timestamp
        index = -1 if timestamp is None else self.schema.get_field_index(timestamp)
        kind = self.schema.field(index).type if index >= 0 else pa.null()
        stays = pa.types.is_timestamp(kind) or kind == pa.int64()
        if self.timestamp is not None and not stays:
            raise InvalidPipeline(
                f"timestamp={self.timestamp!r} is no event time.",
                why="it must be a column of schema=, TIMESTAMP or BIGINT.",
                do="name one of these columns, or leave timestamp= out.",
            )
        if self.timestamp_offset is not None and (not stays or inputs[0].timestamp is None):
            raise InvalidPipeline(
                f"timestamp_offset={self.timestamp_offset!r} has no timestamp to be about.",
                why="the stream has none." if timestamp is None else f"schema= has no time in {timestamp!r}.",
                do='write timestamp="..." where the source is built, and keep the column in schema=; '
                "or leave timestamp_offset= out.",
            )
        self.offset(timestamp)
        return Shape(tuple(self.schema.names), timestamp if stays else None)

    def output(self, before: pa.Schema) -> pa.Schema:
        """Return the schema of the rows that leave."""
        return self.schema

    def offset(self, timestamp: str | None) -> int | None:
        """Return by how many ticks a row's timestamp may differ from its batch's lowest; None: by any number."""
        if self.timestamp_offset is None or timestamp is None:
            return None
        return offset_ticks(self.timestamp_offset, self.schema.field(timestamp).type)

    def bounds_end(self, inputs: Sequence[Shape]) -> str | None:
        """Return why no bound holds downstream of it."""
        if self.timestamp_offset is not None:
            return None
        return "fn may do anything to the timestamp; timestamp_offset=0 says that it keeps it"


def map_batches(
    fn: Callable[..., pa.RecordBatch | pa.Table],
    schema: str | pa.Schema | Any,
    *,
    setup: Callable[[], Any] | None = None,
    timestamp_offset: str | int | None = None,
    timestamp: str | None = None,
    name: str | None = None,
) -> Operator:
    """Transform the stream batch by batch, as Arrow.

    Parameters
    ----------
    fn : function of a RecordBatch, giving a RecordBatch or Table
        With ``setup`` it takes a second argument: what ``setup`` returned.  It may return more or fewer rows than it
        takes.  Batches have arbitrary boundaries, so the result must not depend on them.
    schema : str, StructType or pyarrow.Schema
        Of what ``fn`` returns; columns are matched by name.
    setup : function of nothing, optional
        Runs once per Python worker, before its first batch: the place to load a model.
    timestamp_offset : str or int, optional
        A promise: no row has a timestamp below the lowest of its input batch, shifted by this.  ``0`` where ``fn``
        keeps timestamps; ``"-1 s"``, or ticks where they are BIGINT, where it may go back as far.  Bounds for all keys
        then hold downstream of it, shifted so; without it downstream operators receive only the end.
    timestamp : str, optional
        The column of ``schema`` that holds event time, TIMESTAMP or BIGINT: for a stream that has none, such as the
        rejected rows of a source, or has it in another column.
    name : str, optional
        The node's name.

    Raises
    ------
    InvalidPipeline
        If the functions do not take these arguments, or the schema cannot be read; in a run, if a row breaks the
        promise of ``timestamp_offset``.

    Notes
    -----
    Runs on executors, in Python workers: both functions are pickled by value.

    Examples
    --------
    ::

        def classify(batch, model):
            return batch.append_column("label", model.predict(batch["pixels"]))

        frames | hf.map_batches(classify, "camera STRING, pixels BINARY, label STRING", setup=load_model)
    """
    with building(MapBatches.kind, name) as built_at:
        if setup is None:
            check_callable(fn, "fn", ["batch"], right="def fn(batch): ... and hf.map_batches(fn, schema)")
        else:
            right = "def fn(batch, loaded): ... and hf.map_batches(fn, schema, setup=load)"
            check_callable(fn, "fn", ["batch", "loaded"], right=right)
            check_callable(setup, "setup", [], right="setup=lambda: load_model()")
        check_offset(timestamp_offset)
        return Operator(MapBatches(fn, to_arrow(schema), setup, timestamp_offset, timestamp), name, built_at)
