"""``read.spark``: anything that Spark itself can read as a stream.  Declaration only; the engine compiles it.

Positions are opaque: two of them can be compared for equality only, and which is the earlier one only the epochs tell.
Each sink keeps them as Spark spells them; of some formats that is enough to go on without Spark's own checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.connectors import spark_options
from holdfast.errors import REPORT, InternalError, InvalidPipeline
from holdfast.ports import Source
from holdfast.positions import SourcePositions

if TYPE_CHECKING:
    from holdfast.graph.nodes import Stream


SELF_CONTAINED = frozenset({"kafka", "rate-micro-batch"})
"""Formats whose offsets, as Spark spells them, name the same rows without anything that lies in Spark's checkpoint."""


@dataclass(frozen=True)
class SparkSpec:
    """Declaration of ``read.spark``.

    Parameters
    ----------
    format : str
        Spark's name of the source.
    pairs : tuple of (str, str)
        Its options; kept out of ``repr``, for they may hold secrets.
    schema : pyarrow.Schema, optional
        Columns passed to Spark's reader; None when the format defines its own.
    """

    format: str
    pairs: tuple[tuple[str, str], ...] = field(repr=False)
    schema: pa.Schema | None
    timestamp: str | None = None
    kind: str = field(default="spark", init=False)
    rejects: bool = field(default=False, init=False)

    @property
    def options(self) -> dict[str, str]:
        """Spark's options, secrets included."""
        return dict(self.pairs)

    @property
    def sends_secret(self) -> bool:
        """Whether options that may be secrets travel to the executors, as part of Spark's plan."""
        return spark_options.shown(self.options) != self.options

    def arguments(self) -> Mapping[str, Any]:
        """Arguments for display and fingerprint, secrets left out."""
        columns = [f"{column.name}: {column.type}" for column in self.schema or ()]
        return {
            "format": self.format,
            "options": spark_options.shown(self.options),
            "timestamp": self.timestamp,
            "columns": columns,
        }

    def open(self, name: str, workspace: str) -> Source:
        """Raise: the engine reads such a source itself."""
        raise InternalError(
            f"source {name!r} is read by Spark and was opened by Holdfast.",
            why="a source of kind 'spark' is compiled, not opened.",
            do=REPORT,
            participant=name,
        )

    def obstacle(
        self, name: str, workspace: str, positions: SourcePositions, until: SourcePositions | None = None
    ) -> str:
        """Return that Spark alone can read its positions."""
        return "positions of read.spark mean something to Spark's own checkpoint only."

    def seek_obstacle(self) -> str:
        """Return why Spark cannot go on at an offset with a checkpoint that is new; empty where it can.

        The offsets of other formats need more than themselves: the files that Spark has listed, the time of a start.
        """
        if self.format.lower() in SELF_CONTAINED:
            return ""
        known = " and ".join(map(repr, sorted(SELF_CONTAINED)))
        return (
            f"positions of read.spark of format {self.format!r} mean something to Spark's own checkpoint only; those "
            f"of {known} are known to say everything by themselves."
        )

    def reached(self, name: str, workspace: str) -> SourcePositions:
        """Return nothing: Spark alone can read its positions."""
        return {}


def spark(
    format: str,
    options: Mapping[str, Any] | None = None,
    *,
    schema: Any = None,
    timestamp: str | None = None,
    name: str | None = None,
) -> Stream:
    """Read a stream through one of Spark's own sources.

    Parameters
    ----------
    format : str
        As in ``spark.readStream.format(...)``: ``"kafka"``, ``"delta"``, ...
    options : mapping, optional
        Its options.  Those that are known to hold no secret are shown; of all others only that they are set.
    schema : str, StructType or pyarrow.Schema, optional
        Passed to Spark's reader; omit it where the format defines its own columns.
    timestamp : str, optional
        Column that holds event time.
    name : str, optional
        The source's name.

    Notes
    -----
    Exactly-once holds as far as the source can be replayed from Spark's checkpoint.

    Examples
    --------
    ::

        options = {"kafka.bootstrap.servers": "broker:9092", "subscribe": "clicks"}
        clicks = hf.read.spark("kafka", options, name="clicks")
    """
    from holdfast.graph.building import building
    from holdfast.graph.nodes import stream_from
    from holdfast.types.schema import to_arrow

    with building("source", name):
        if not isinstance(format, str) or not format:
            raise InvalidPipeline(f"format={format!r} is not a format.", do='write for instance format="kafka".')
        columns = None if schema is None else to_arrow(schema)
        pairs = tuple((str(key), _option(value)) for key, value in (options or {}).items())
        spec = SparkSpec(format, pairs, columns, timestamp)
    return stream_from(spec, name=name)


def _option(value: Any) -> str:
    """Return an option as Spark's reader takes it: true and false in small letters."""
    return str(value).lower() if isinstance(value, bool) else str(value)
