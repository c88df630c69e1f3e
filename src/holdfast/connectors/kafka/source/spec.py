"""``read.kafka``: the messages of Kafka topics, each exactly once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pyarrow as pa

from holdfast.connectors.formats import json_lines, json_new_columns
from holdfast.connectors.formats.json_new_columns import OnNewColumn
from holdfast.connectors.kafka.avro_registry import Registry
from holdfast.connectors.kafka.brokers import Brokers, libraries_for
from holdfast.connectors.kafka.fields import FIELDS
from holdfast.connectors.kafka.source.reading import KafkaReading
from holdfast.connectors.kafka.topics import PartitionOf, Selection
from holdfast.connectors.reading import deferred_log as owing
from holdfast.connectors.reading.bounds import OWN, PartitionTimes, with_bounds
from holdfast.connectors.reading.identified import KnownPlace
from holdfast.connectors.reading.partitioned import of_partitions
from holdfast.connectors.reading.rounds import SourceInRounds
from holdfast.connectors.reading.rounds_log import RoundsLog, own_positions
from holdfast.connectors.reading.rounds_log import obstacle as rounds_obstacle
from holdfast.errors import InvalidPipeline
from holdfast.ports import Explanation, Source, SourceDrift
from holdfast.positions import SegmentSet, SourcePositions
from holdfast.state.keyed import duration_ticks
from holdfast.types import units
from holdfast.values import SegmentLag

if TYPE_CHECKING:
    from datetime import datetime

    from holdfast.connectors.kafka.source.group import GroupFollower
    from holdfast.graph.nodes import Stream

MESSAGE_TIME = "message"
"""What ``timestamp=`` says for the time that a message itself has."""


@dataclass(frozen=True)
class KafkaSourceSpec(KafkaReading):
    """Declaration of ``read.kafka``; see :func:`kafka` for the arguments."""

    kind: str = field(default="kafka", init=False)
    numbering: ClassVar[str] = "its topic, partition and offset"
    partitions: ClassVar[str] = "partitions"
    parts: ClassVar[int] = 0

    @property
    def sends_secret(self) -> bool:
        """Whether a password travels to the executors, which read by themselves."""
        return self.address.has_secret or (self.registry is not None and self.registry.has_secret)

    def narrowed(self, columns: Collection[str]) -> KafkaSourceSpec:
        """Return it with nulls where nothing reads them: in columns that are not free, and may be null."""
        wanted = {*columns, self.timestamp}
        unread = (name for name, of in self.metadata if name not in wanted and FIELDS[of].nullable)
        return replace(self, unread=frozenset(unread))

    def in_parts(self, parts: int) -> KafkaSourceSpec:
        """Return it: partitions have positions of their own."""
        return self

    def segments(self, name: str, workspace: str) -> Collection[str]:
        """Return the partitions; the cluster is asked."""
        with libraries_for(f"source {name!r}"):
            from holdfast.connectors.kafka.source.cluster import Cluster
        found = Cluster(self.address.expanded(), f"source {name!r}").partitions(self.selection)
        return [segment for segment in found if segment in self.reads]

    def of_segments(self, segments: SegmentSet) -> KafkaSourceSpec:
        """Return the source of some partitions."""
        return replace(self, reads=segments)

    def group_of(self, segment: str) -> str:
        """Return the partition's number: topics with as many partitions have the rows of a key under the same one."""
        return str(PartitionOf.of(segment).number)

    def arguments(self) -> Mapping[str, Any]:
        """Arguments for display and fingerprint: of ``security`` only the protocol."""
        shown = {
            "bootstrap": self.address.bootstrap,
            "topic": list(self.selection.topics) or None,
            "pattern": self.selection.pattern,
            "format": self.format,
            "timestamp": self.timestamp,
            "start": self.start,
            "isolation": self.isolation,
            "max_rows_per_epoch": self.max_rows_per_epoch,
            "on_bad_row": "reject" if self.rejects else None,
            "on_new_column": None if self.on_new == "ignore" else self.on_new,
            "group": self.group,
            "registry": None if self.registry is None else str(self.registry),
            "protocol": None if self.address.protocol == "PLAINTEXT" else self.address.protocol,
            "columns": [f"{column.name}: {column.type}" for column in self.schema if column.name != OWN],
            "disorder": None if self.times is None else self.times.disorder,
            "idle_after_us": None if self.times is None else self.times.idle_after_us,
            "metadata": dict(self.metadata) if self.format != "bytes" and self.metadata else None,
        }
        return {name: value for name, value in shown.items() if value is not None}

    def prepare(self) -> None:
        """Begin what the first consumer would wait for."""
        with libraries_for("read.kafka"):
            from holdfast.connectors.kafka.native.clients import prepare
        prepare(self.address)

    def from_beginning(self) -> KafkaSourceSpec:
        """Return the source from the first messages on that are there."""
        return replace(self, start="earliest")

    def from_time(self, at_us: int) -> KafkaSourceSpec:
        """Return the source from the first message at or after a time on, where the cluster knows which one that is."""
        return replace(self, since=at_us)

    def up_to(self, before: int, marker: str | None) -> KafkaSourceSpec:
        """Return the source without the rows at or above a time, which it then owes."""
        return replace(self, before=before)

    def open(self, name: str, workspace: str) -> Source:
        """Return the source; the cluster is asked when it is first needed."""
        with libraries_for(f"source {name!r}", "avro" if self.format == "avro" else "kafka"):
            from holdfast.connectors.kafka.source.source import KafkaSource
        source = KafkaSource(self, name, workspace)
        return source if self.timestamp is None else SourceInRounds(source, self, name, workspace)

    def places(self, name: str, workspace: str, until: SourcePositions) -> Iterator[KnownPlace]:
        """Yield the partitions."""
        log = RoundsLog(workspace)
        for segment, end in of_partitions(until).items():
            part = PartitionOf.of(segment)
            shown = f"topic {part.topic}, partition {part.number}"
            for read in log.between(segment, 0, end):
                shift = read.position - read.first
                yield KnownPlace(segment, read.first, read.last, segment, None, shown, read.since, read.before, shift)

    def obstacle(
        self, name: str, workspace: str, positions: SourcePositions, until: SourcePositions | None = None
    ) -> str:
        """Return which messages are not in the topics any more; nothing of it is in the checkpoint."""
        with libraries_for(f"source {name!r}"):
            from holdfast.connectors.kafka.source import cluster
            from holdfast.connectors.kafka.source.cluster import Cluster, gone
            from holdfast.connectors.reading.identified import Recorded
        log, asked = RoundsLog(workspace), of_partitions({**positions, **(until or {})})
        if lost := rounds_obstacle(log, asked):
            return lost
        ends = {segment: log.entry_at(segment, at) for segment, at in asked.items()}
        begun = dict(Recorded(workspace, name).start)
        for segment, at in of_partitions(positions).items():
            owed = [one.first for one in log.owed_ranges(segment, at)]
            begun[segment] = min([log.entry_at(segment, at), *owed])

        def first(segment: str, end: int) -> int:
            if segment in begun:
                return int(begun[segment])
            found = cluster.begin(workspace, name, segment)
            is_known = begun or self.start == "earliest"
            return found if found is not None else 0 if is_known else end  # else nothing is claimed

        wanted = {segment: (first(segment, end), end) for segment, end in ends.items()}
        if not wanted:
            return ""
        return gone(Cluster(self.address.expanded(), f"source {name!r}"), wanted, committed=False)

    def recorded_start(self, name: str, workspace: str) -> SourcePositions | None:
        """Return where it began; with ``start="earliest"``, the first messages that there ever were."""
        from holdfast.connectors.reading.identified import Recorded

        recorded = Recorded(workspace, name)
        if not recorded.has_start:
            return {} if self.start == "earliest" else None
        return {segment: at for segment, at in recorded.start.items() if segment in self.reads}

    def lags(self, name: str, positions: SourcePositions) -> Sequence[SegmentLag]:
        """Return how far each partition is; the cluster is asked."""
        with libraries_for(f"source {name!r}"):
            from holdfast.connectors.kafka.source.group import lags
        is_committed = self.isolation == "read_committed"
        found = lags(
            self.address.expanded(),
            self.selection,
            f"source {name!r}",
            own_positions(positions),
            committed=is_committed,
        )
        return tuple(each for each in found if each.segment in self.reads)

    def drift(self, name: str) -> SourceDrift | None:
        """Return what the newest messages have otherwise than the schema; the cluster is asked."""
        with libraries_for(f"source {name!r}"):
            from holdfast.connectors.kafka.source.sampling import drift_of_topics
        return drift_of_topics(self, name)

    def follower(self, name: str) -> GroupFollower | None:
        """Return who tells the group, if one is named."""
        if self.group is None:
            return None
        from holdfast.connectors.kafka.source.group import GroupFollower

        return GroupFollower(self.address.expanded(), self.group, f"source {name!r}")

    def reached(self, name: str, workspace: str) -> SourcePositions:
        """Return nothing: an offset is the same message whatever the checkpoint says."""
        return {}

    def explanations(self, name: str, workspace: str, after: int) -> list[Explanation]:
        """Return what its positions mean where it was read up to a time."""
        return owing.explanations(workspace, name, after)

    def restore(self, name: str, workspace: str, explanations: Sequence[Explanation]) -> None:
        """Note it again."""
        owing.restore(workspace, name, explanations)


def kafka(
    bootstrap: str,
    topic: str | Sequence[str] | None = None,
    *,
    pattern: str | None = None,
    format: Literal["json", "avro", "bytes"] = "json",
    schema: Any = None,
    registry: str | Mapping[str, str] | None = None,
    metadata: Sequence[str] | Mapping[str, str] = (),
    timestamp: str | None = None,
    start: str | datetime = "earliest",
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
    max_rows_per_epoch: int | None = None,
    on_bad_row: Literal["fail", "reject"] = "fail",
    on_new_column: OnNewColumn = "ignore",
    security: Mapping[str, str] | None = None,
    group: str | None = None,
    bounds: str | None = None,
    disorder: str | int | None = None,
    idle_after: str | None = None,
    name: str | None = None,
) -> Stream:
    """Read the messages of Kafka topics, each exactly once.

    Parameters
    ----------
    bootstrap : str
        ``host:port``, several with commas between; ``${NAME}`` is an environment variable.
    topic : str or sequence of str
        What is read; or ``pattern``.
    pattern : str, optional
        A regular expression: all topics whose whole name matches, also those that are created later.
    format : str
        ``"json"``: a message's value is an object, read into the columns of ``schema``.  ``"avro"``: it is an Avro
        record behind the id of its schema in a registry, and its fields are read into these columns by their names.
        ``"bytes"``: the columns are ``key``, ``value``, ``topic``, ``partition``, ``offset``, ``timestamp`` and
        ``headers``.
    schema : str, path, StructType or pyarrow.Schema
        Columns of the value, for ``"json"`` and ``"avro"``: a DDL string, or a file of Avro, JSON Schema or DDL.
    registry : str or mapping of str to str, optional
        For ``"avro"``: the address of the schema registry, or a mapping with ``url``, ``username``, ``password``,
        ``ca``, ``certificate``, ``key`` and ``key_password``; ``${NAME}`` is an environment variable.
    metadata : sequence of str, or mapping of str to str
        Which of ``key``, ``topic``, ``partition``, ``offset``, ``timestamp`` and ``headers`` are columns beside those
        of ``schema``; a mapping says the columns' names: ``{"at": "timestamp"}``.
    timestamp : str, optional
        Column that holds event time.  ``"message"``: the time that the message has in Kafka, which then is the column
        ``timestamp``.
    start : str or datetime
        Where the first start begins: ``"earliest"``, ``"latest"``, or with the first message at or after a time (ISO
        8601, UTC without a zone).  Recorded, and of no meaning later.  Partitions that are added are read from their
        beginning.
    isolation : str
        ``"read_committed"`` leaves out what transactions have not committed, ``"read_uncommitted"`` does not.
    max_rows_per_epoch : int, optional
        Limit of one epoch: of each partition the same share, and what one does not need the others get.
    on_bad_row : str
        ``"fail"`` stops with the offset and the reason; ``"reject"`` sends the row to ``stream.rejects``.
    on_new_column : str
        For ``"json"``, of members that are no column: ``"ignore"``; with ``"fail"`` the value is a bad row;
        ``"rescue"``: they are the text of the column ``_rescued``; ``"add"``: the run stops, and has added columns to
        the file ``schema``.
    security : mapping of str to str, optional
        ``protocol``, ``mechanism``, ``username``, ``password``, ``ca``, ``certificate``, ``key``, ``key_password``.
    group : str, optional
        A consumer group whose offsets are set to what every sink holds: for monitoring, nothing reads them here.
    bounds : str, optional
        BOOLEAN column of the schema: a row in which it is true is a bound and no data.
    disorder : str or int, optional
        How far a message may be below the highest before it in its partition: with it, and with ``idle_after``, the
        source gives bounds by itself, the lowest of its partitions', and operators by time go by these alone: no row
        within that is late, however partitions are read.  Left out, only times that the broker sets count.
    idle_after : str, optional
        After so long without a message a partition holds the bound of the source back no more; left out: never.
    name : str, optional
        The source's name: the identity of its positions.

    Raises
    ------
    InvalidPipeline
        If the arguments contradict each other.

    Notes
    -----
    Needs ``pip install 'holdfast[kafka]'``, also on executors; for Avro ``'holdfast[avro]'``.

    Examples
    --------
    ::

        flights = hf.read.kafka("localhost:9092", "flights", schema="origin STRING, dep_delay INT",
                                metadata=["key"], timestamp="message", name="flights")
    """
    from holdfast.graph.building import building, check_choice
    from holdfast.graph.nodes import stream_from
    from holdfast.types.schema import to_arrow

    with building("source", name):
        address = Brokers(bootstrap, dict(sorted((security or {}).items())), "read.kafka")
        address.check()
        check_choice("format", format, ("json", "avro", "bytes"))
        check_choice("isolation", isolation, ("read_committed", "read_uncommitted"))
        check_choice("on_bad_row", on_bad_row, ("fail", "reject"))
        if max_rows_per_epoch is not None and (not isinstance(max_rows_per_epoch, int) or max_rows_per_epoch < 1):
            raise InvalidPipeline(
                f"max_rows_per_epoch={max_rows_per_epoch!r} is not a positive number.",
                do="write max_rows_per_epoch=100_000, or leave it out.",
            )
        if (format == "bytes") != (schema is None):
            raise InvalidPipeline(
                f'read.kafka: format="{format}" {"with" if format == "bytes" else "without"} schema=.',
                why='the columns of format="bytes" are those of a message; those of a value are not known.',
                do='write format="json" and the columns of the value: schema="id BIGINT, word STRING".',
            )
        if (format == "avro") != (registry is not None):
            raise InvalidPipeline(
                f'read.kafka: format="{format}" {"without" if format == "avro" else "with"} registry=.',
                why="a value in Avro names its schema by the id that it has in a schema registry; others name none.",
                do='write format="avro" and registry="http://localhost:8081".',
            )
        payload = pa.schema([]) if schema is None else to_arrow(schema)
        if format == "json":
            json_lines.check_types(payload)
        on_new = json_new_columns.choice_of(on_new_column, format)
        schema_file = json_new_columns.file_to_add_to(schema, on_new)
        payload = json_new_columns.with_rescue(payload, on_new)
        wanted = {each: each for each in FIELDS} if format == "bytes" else _metadata(metadata)
        time, beside = _time(timestamp, payload, wanted)
        _check_names(payload, beside)
        spec = KafkaSourceSpec(
            address,
            _selection(topic, pattern),
            format,
            payload,
            tuple(beside.items()),
            time,
            _start(start),
            isolation,
            max_rows_per_epoch,
            on_bad_row == "reject" and format != "bytes",
            group,
            registry=None if registry is None else Registry.of(registry, "read.kafka"),
            on_new=on_new,
            schema_file=schema_file,
        )
        times = _partition_times(spec, bounds, disorder, idle_after)
        read = with_bounds(replace(spec, times=times), bounds if times is None else OWN)
    return stream_from(read, name=name)


def _selection(topic: str | Sequence[str] | None, pattern: str | None) -> Selection:
    if bool(topic) == (pattern is not None):
        raise InvalidPipeline(
            "read.kafka: one of topic and pattern= says what is read.",
            do='write read.kafka("localhost:9092", "flights"), or pattern="flights-.*".',
        )
    return Selection.of("read.kafka", topic, pattern)


def _metadata(wanted: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    if isinstance(wanted, str):
        wanted = (wanted,)
    found = dict(wanted) if isinstance(wanted, Mapping) else {each: each for each in wanted}
    unknown = [of for of in found.values() if of not in FIELDS or of == "value"]
    if unknown:
        raise InvalidPipeline(
            f"read.kafka: metadata= with {unknown[0]!r} is not known.",
            why=f"a message has {', '.join(name for name in FIELDS if name != 'value')}.",
            do='write for instance metadata=["key", "offset"], or metadata={"sent_at": "timestamp"}.',
        )
    return found


def _time(timestamp: str | None, payload: pa.Schema, beside: Mapping[str, str]) -> tuple[str | None, dict[str, str]]:
    """Return the column of event time, and the columns beside the payload's, with it."""
    if timestamp != MESSAGE_TIME or MESSAGE_TIME in payload.names:
        return timestamp, dict(beside)
    for column, of in beside.items():
        if of == "timestamp":
            return column, dict(beside)
    return "timestamp", {**beside, "timestamp": "timestamp"}


def _partition_times(
    spec: KafkaSourceSpec, bounds: str | None, disorder: str | int | None, idle_after: str | None
) -> PartitionTimes | None:
    """Return what the times in partitions promise; None where nothing is said about them."""
    said = "disorder" if disorder is not None else "idle_after"
    if disorder is None and idle_after is None:
        return None
    if bounds is not None or spec.timestamp is None:
        raise InvalidPipeline(
            f"read.kafka: {said}= {'without timestamp=' if bounds is None else f'with bounds={bounds!r}'}.",
            why="with it the source gives bounds by itself, from the times of its messages; rows of the topic that are "
            "bounds are another way.",
            do='write timestamp="message", or a column, and leave bounds= out.',
        )
    is_message_time = dict(spec.metadata).get(spec.timestamp) == "timestamp"
    if disorder is None and not is_message_time:
        raise InvalidPipeline(
            f"read.kafka: idle_after= with timestamp={spec.timestamp!r}, and without disorder=.",
            why="whoever writes the column decides about its order, and nothing is known of it.",
            do='say how far a message may be below the highest before it in its partition: disorder="5 s", or '
            '"0 s" where times ascend.',
        )
    time = spec.schema.field(spec.timestamp)
    ticks = None if disorder is None else duration_ticks(disorder, time, "disorder")
    return PartitionTimes(ticks, None if idle_after is None else units.duration_us(idle_after, argument="idle_after"))


def _check_names(payload: pa.Schema, beside: Mapping[str, str]) -> None:
    twice = sorted(set(payload.names) & set(beside))
    if twice:
        raise InvalidPipeline(
            f"read.kafka: column {twice[0]!r} is in schema=, and is one of the message itself.",
            why="two columns would have one name.",
            do=f'give the latter another one: metadata={{"message_{twice[0]}": "{beside[twice[0]]}"}}.',
        )


def _start(start: Any) -> str | int:
    if start in ("earliest", "latest"):
        return str(start)
    try:
        return units.time_us(start, argument="start")
    except (InvalidPipeline, AttributeError) as error:
        raise InvalidPipeline(
            f"read.kafka: start={start!r} is neither a place nor a time.",
            do='write start="earliest", "latest" or "2024-01-01T00:00:00Z".',
        ) from error
