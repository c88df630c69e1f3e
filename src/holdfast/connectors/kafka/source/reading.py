"""What ``read.kafka`` is asked to read: the data that planning and reading go by."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from holdfast.connectors.formats.json_new_columns import OnNewColumn
from holdfast.connectors.kafka.avro_registry import Registry
from holdfast.connectors.kafka.brokers import Brokers
from holdfast.connectors.kafka.fields import FIELDS
from holdfast.connectors.kafka.topics import Selection
from holdfast.connectors.reading.bounds import OWN, PartitionTimes
from holdfast.positions import ALL_SEGMENTS, SegmentSet


@dataclass(frozen=True)
class KafkaReading:
    """What a source of messages reads; :func:`holdfast.connectors.kafka.source.spec.kafka` explains the arguments.

    Parameters
    ----------
    address : Brokers
        The cluster, with variables that are not filled in.
    selection : Selection
        Its topics.
    format : str
        ``"bytes"``, ``"json"`` or ``"avro"``.
    payload : pyarrow.Schema
        Columns of the payload; empty for bytes.
    metadata : tuple of (str, str)
        Columns beside them: name, and which of a message's fields.
    start : str or int
        ``"earliest"``, ``"latest"``, or microseconds of Unix time.
    times : PartitionTimes, optional
        What the times in its partitions promise, where it gives bounds by itself.
    unread : frozenset of str
        Columns beside the payload's that nothing reads: they are null.
    on_new : str
        What becomes of members of JSON that are no column: ``"ignore"``, ``"fail"``, ``"rescue"`` or ``"add"``.
    schema_file : str
        The file that gets columns for them; empty where none does.
    reads : SegmentSet
        The partitions that are read; no argument of users.
    since, before : int, optional
        No row before the one time is wanted, nor yet one at or above the other; microseconds or ticks, no arguments of
        users.
    """

    address: Brokers
    selection: Selection
    format: str
    payload: pa.Schema
    metadata: tuple[tuple[str, str], ...]
    timestamp: str | None = None
    start: str | int = "earliest"
    isolation: str = "read_committed"
    max_rows_per_epoch: int | None = None
    rejects: bool = False
    group: str | None = None
    times: PartitionTimes | None = None
    registry: Registry | None = None
    unread: frozenset[str] = frozenset()
    on_new: OnNewColumn = "ignore"
    schema_file: str = ""
    reads: SegmentSet = ALL_SEGMENTS
    since: int | None = None
    before: int | None = None

    @property
    def has_message_time(self) -> bool:
        """Whether the timestamp is the time that a message has in Kafka, by which a cluster finds offsets."""
        return dict(self.metadata).get(self.timestamp or "") == "timestamp"

    @property
    def schema(self) -> pa.Schema:
        """Columns of the payload, those beside them, and what marks bound rows where it gives any."""
        beside = [FIELDS[of].with_name(name) for name, of in self.metadata]
        if self.times is None:
            return pa.schema([*self.payload, *beside])
        nullable = [column.with_nullable(True) for column in (*self.payload, *beside)]
        return pa.schema([*nullable, pa.field(OWN, pa.bool_())])
