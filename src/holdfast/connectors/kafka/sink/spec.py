"""``write.kafka``: rows in Kafka topics, written exactly once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pyarrow as pa

from holdfast.connectors.control.columns import check_no_control
from holdfast.connectors.kafka.avro_registry import Registry
from holdfast.connectors.kafka.brokers import Brokers, libraries_for
from holdfast.connectors.kafka.sink.avro_form import AvroSchema, schema_text
from holdfast.connectors.kafka.sink.form import FORMATS, MODES, Format, MessageForm, Mode, check_names
from holdfast.connectors.kafka.topics import NO_TOPICS, Selection, is_internal
from holdfast.errors import InvalidPipeline
from holdfast.graph import nodes
from holdfast.graph.building import building, names_of
from holdfast.ports import Guarantee, Reset, Sink, SinkLedger
from holdfast.types import units

Stage = Literal["auto", "transactions", "driver"]
STAGES: tuple[Stage, ...] = ("auto", "transactions", "driver")
Compression = Literal["lz4", "zstd", "snappy", "gzip", "none"]
COMPRESSIONS: tuple[Compression, ...] = ("lz4", "zstd", "snappy", "gzip", "none")


def kafka(
    bootstrap: str,
    topic: str | None = None,
    *,
    key: str | Sequence[str] | None = None,
    value: str | Sequence[str] | None = None,
    headers: str | None = None,
    timestamp: str | None = None,
    partition: str | None = None,
    topic_by: str | None = None,
    topics: str | Sequence[str] | None = None,
    pattern: str | None = None,
    format: Format = "json",
    registry: str | Mapping[str, str] | None = None,
    subject: str | None = None,
    value_schema: str | Mapping[str, Any] | None = None,
    register: bool = True,
    mode: Mode = "append",
    delete: str | None = None,
    security: Mapping[str, str] | None = None,
    stage: Stage = "auto",
    compression: Compression = "lz4",
    transaction_timeout: str = "15 minutes",
    progress: str = "holdfast-progress",
    control: None = None,
    name: str | None = None,
    freshness: str | None = None,
    backfill: bool = False,
) -> nodes.SinkNode:
    """Write rows to Kafka topics, exactly once for readers with ``isolation.level=read_committed``.

    Parameters
    ----------
    bootstrap : str
        ``host:port``, several with commas between; ``${NAME}`` is an environment variable.
    topic : str, optional
        The topic, which must be there.  With ``topic_by`` it is that of rows whose column is null.
    key : str or sequence of str, optional
        Column of the record's key: text and bytes as they are, anything else as JSON; several become one JSON object.
    value : str or sequence of str, optional
        Columns of the value.  JSON: by default all but those of headers, partition, ``topic_by`` and ``delete``.
        Bytes: the one column that holds the value.
    headers : str, optional
        Column of headers: a map, name -> bytes or text; or what ``read.kafka`` gives, a list of structs of ``key`` and
        ``value``, in which a name may come twice.
    timestamp : str, optional
        Column of the record's time; without one it is the time of writing.
    partition : str, optional
        Column of the partition's number; null, and no column: by the key, as Java's own producers do.
    topic_by : str, optional
        Column that names the topic of each row, one of those that ``topics`` and ``pattern`` declare.  A row that
        names another one is a bad row, before its epoch is decided.
    topics : str or sequence of str, optional
        With ``topic_by``: topics to which rows may go, which must be there.
    pattern : str, optional
        With ``topic_by``: rows may go to the topics whose whole name matches this regular expression and that are there
        when the run starts; never to the cluster's own, or to a ledger.
    format : {"json", "avro", "bytes"}
        What the value is.  ``"avro"``: a record behind the id of its schema in ``registry``.
    registry : str or mapping of str to str, optional
        For Avro: the address of the schema registry, or a mapping with ``url``, ``username``, ``password``, ``ca``,
        ``certificate``, ``key`` and ``key_password``; ``${NAME}`` is an environment variable.
    subject : str, optional
        For Avro: the schema's name in the registry; ``<topic>-value`` by default.
    value_schema : str or mapping, optional
        For Avro: the schema, as JSON.  By default it is made of the columns, those that may be null as a
        union with null.
    register : bool
        For Avro: whether the schema is registered at the start, if it is not there; else the newest one of the subject
        is used.
    mode : {"append", "upsert"}
        ``"upsert"``: for compacted topics; each record has a key, and ``delete`` makes tombstones.
    delete : str, optional
        Column that says which rows are written without a value: ``mode="upsert"`` only.
    security : mapping of str to str, optional
        ``protocol``, ``mechanism``, ``username``, ``password``, ``ca``, ``certificate``, ``key``, ``key_password``.
    stage : {"auto", "transactions", "driver"}
        Who writes the rows of a large epoch.  ``"transactions"``: its tasks, each in a transaction that it leaves open.
        ``"driver"``: the driver, in the order of the rows.  ``"auto"``: the driver where rows have a key, else tasks.
    compression : {"lz4", "zstd", "snappy", "gzip", "none"}
        How batches of records are compressed; a topic whose ``compression.type`` is another one compresses them anew.
    transaction_timeout : str
        How long a transaction of a task may stay open; at most the brokers' ``transaction.max.timeout.ms``.
    progress : str
        The compacted topic of one partition that has the ledger; created if absent.
    control : None
        Other sinks have it (``docs/control-rows.md``): this one cannot carry out commands, and says so.
    name : str, optional
        The sink's name: its ledger is kept under it.
    freshness : str, optional
        How old the oldest row may be that the sink lacks (``"5 min"``), before the health of the run says so:
        ``docs/expectations.md``.
    backfill : bool
        Whether the sink, added to a pipeline that has run, gets everything from the beginning: ``docs/state.md``.

    Returns
    -------
    SinkNode
        To be used to the right of ``stream |``.

    Raises
    ------
    InvalidPipeline
        If the arguments contradict each other.

    Notes
    -----
    Needs brokers of version 3.0 or newer and ``pip install 'holdfast[kafka]'``: ``docs/sinks/kafka.md``.
    """
    with building("sink", name):
        check_no_control("write.kafka", control)
        timeout_ms = units.duration_us(transaction_timeout, argument="transaction_timeout") // 1_000
        form = MessageForm(
            topic, format, mode, _several(key), _several(value), headers, timestamp, partition, topic_by, delete
        )
        avro = _avro(format, registry, subject or (topic and f"{topic}-value"), schema_text(value_schema), register)
        spec = KafkaSpec(
            bootstrap,
            form,
            dict(security or {}),
            stage,
            timeout_ms,
            progress,
            compression,
            avro=avro,
            topics=Selection.of("write.kafka", topics, pattern),
        )
    return nodes.sink(spec, name=name, backfill=backfill, freshness=freshness)


def _avro(
    format: str, registry: str | Mapping[str, str] | None, subject: str | None, schema: str | None, registers: bool
) -> AvroSchema | None:
    """Return what is said of the schema of Avro values; raise where it is said of others, or not at all."""
    is_avro = format == "avro"
    if is_avro != (registry is not None) or (not is_avro and (schema is not None or not registers)):
        raise InvalidPipeline(
            f'write.kafka: format="{format}" {"without registry=" if is_avro else "with arguments of Avro"}.',
            why="a value in Avro is written behind the id that its schema has in a schema registry.",
            do='write format="avro" and registry="http://localhost:8081", or leave what is said of the schema out.',
        )
    if registry is None:
        return None
    if subject is None:
        raise InvalidPipeline(
            "write.kafka: topic_by= without topic= and without subject=.",
            why="the schema is registered under the name of the topic, and there are several.",
            do='name it: subject="orders-value".',
        )
    if schema is not None and not registers:
        raise InvalidPipeline(
            "write.kafka: value_schema= with register=False.",
            why="register=False uses the newest schema of the subject, whatever it is.",
            do="leave one of them out.",
        )
    return AvroSchema(Registry.of(registry, "write.kafka"), subject, schema, registers)


def _several(names: str | Sequence[str] | None) -> tuple[str, ...]:
    return () if names is None else names_of(names)


@dataclass(frozen=True)
class KafkaSpec:
    """Declaration of Kafka topics as a sink; parameters as in :func:`kafka`."""

    bootstrap: str
    form: MessageForm
    security: Mapping[str, str] = field(default_factory=dict, repr=False)
    stage: Stage = "auto"
    timeout_ms: int = 900_000
    progress: str = "holdfast-progress"
    compression: Compression = "lz4"
    avro: AvroSchema | None = None
    topics: Selection = NO_TOPICS

    @property
    def kind(self) -> str:
        """Kind of the sink."""
        return "kafka"

    @property
    def guarantee(self) -> Guarantee:
        """What it promises for each row."""
        return Guarantee.EXACTLY_ONCE

    def __post_init__(self) -> None:
        self._declared.check()
        form = self.form
        if form.topic is None and form.topic_by is None:
            raise InvalidPipeline(
                "write.kafka: no topic is named.",
                why="a row needs one: topic=, or topic_by= with a column that names it.",
                do='write for instance write.kafka("localhost:9092", "departures").',
            )
        for argument, said, known in (
            ("format", form.format, FORMATS),
            ("mode", form.mode, MODES),
            ("stage", self.stage, STAGES),
            ("compression", self.compression, COMPRESSIONS),
        ):
            if said not in known:
                raise InvalidPipeline(
                    f"write.kafka: {argument}={said!r} is not known.",
                    why=f"it is one of {', '.join(known)}.",
                    do=f'write for instance {argument}="{known[0]}".',
                )
        if form.format == "bytes" and len(form.value) != 1:
            raise InvalidPipeline(
                'write.kafka: format="bytes" without the one column of the value.',
                why="the value is what that column holds.",
                do='name it: value="payload"; or write format="json".',
            )
        if (form.mode == "upsert") != bool(form.key) and form.mode == "upsert":
            raise InvalidPipeline(
                'write.kafka: mode="upsert" without key=.',
                why="a compacted topic keeps the last record of each key.",
                do='name the column of the key: key="order_id".',
            )
        if form.delete is not None and form.mode != "upsert":
            raise InvalidPipeline(
                f'write.kafka: delete={form.delete!r} with mode="append".',
                why="a record without a value deletes its key, in a compacted topic only.",
                do='write mode="upsert" and key=, or leave delete= out.',
            )
        named = {form.topic, *self.topics.topics} - {None}
        if self.progress in {*named, ""}:
            raise InvalidPipeline(
                f"write.kafka: progress={self.progress!r} cannot be the topic of the ledger.",
                why="it has one partition and keeps the last record of each key; rows go elsewhere.",
                do="leave progress= out, or name another topic.",
            )
        if internal := sorted(topic for topic in named if topic and is_internal(topic)):
            raise InvalidPipeline(
                f"write.kafka: rows cannot go to the topic {internal[0]!r}.",
                why="names that begin with two underscores are those of the cluster's own topics.",
                do="name another topic.",
            )
        if (form.topic_by is None) != (self.topics == NO_TOPICS):
            raise InvalidPipeline(
                f"write.kafka: {'topics= or pattern=' if form.topic_by is None else 'topic_by='} "
                f"without {'topic_by=' if form.topic_by is None else 'topics= or pattern='}.",
                why="a row may name its topic, among those that the sink declares: nothing else keeps it from "
                "the topics of others.",
                do='write for instance topic_by="kind", topics=["orders", "refunds"], or pattern="orders-.*".',
            )

    @property
    def _declared(self) -> Brokers:
        return Brokers(self.bootstrap, self.security, "write.kafka")

    @property
    def brokers(self) -> Brokers:
        """Where they are, with the variables filled in."""
        return self._declared.expanded()

    @property
    def sends_secret(self) -> bool:
        """Whether a password travels to the executors, which stage rows by themselves."""
        return self.stages and self._declared.has_secret

    @property
    def stages(self) -> bool:
        """Whether tasks write the rows of large epochs."""
        return self.stage == "transactions" or (self.stage == "auto" and not self.form.key)

    def arguments(self) -> Mapping[str, Any]:
        """Arguments for display and fingerprint: of the security nothing but the protocol."""
        form = self.form
        said = {
            "bootstrap": self.bootstrap,
            "topic": form.topic,
            "topic_by": form.topic_by,
            "topics": list(self.topics.topics),
            "pattern": self.topics.pattern,
            "format": form.format,
            "mode": form.mode,
            "key": list(form.key),
            "value": list(form.value),
            "headers": form.headers,
            "timestamp": form.timestamp,
            "partition": form.partition,
            "delete": form.delete,
            "protocol": self.security.get("protocol"),
            "progress": self.progress,
            "compression": None if self.compression == "lz4" else self.compression,
            "registry": self.avro and str(self.avro.registry),
            "subject": self.avro and self.avro.subject,
            "value_schema": self.avro and self.avro.schema,
            "register": self.avro and str(self.avro.registers).lower(),
        }
        return {name: each for name, each in said.items() if each}

    def check_columns(self, columns: Collection[str] | None) -> None:
        """Raise if a column that is named is not there."""
        check_names(self.form, columns)

    def prepare(self) -> None:
        """Begin what the first producer would wait for."""
        with libraries_for("write.kafka"):
            from holdfast.connectors.kafka.native.clients import prepare
        prepare(self._declared)

    def connect(self, name: str, pipeline: str, schema: pa.Schema) -> Sink:
        """Connect, and check that the cluster can take the rows."""
        with libraries_for(f"sink {name!r}"):
            from holdfast.connectors.kafka.sink.ledger import KafkaNames
            from holdfast.connectors.kafka.sink.session import KafkaSession
            from holdfast.connectors.kafka.sink.sink import KafkaSink
        form = self.form
        if self.avro is not None:
            columns = pa.schema([schema.field(column) for column in form.value_columns(schema)])
            form = replace(form, avro=self.avro.encoder(f"sink {name!r}", columns))
        session = KafkaSession(self.brokers, f"sink {name!r}", f"holdfast-{pipeline}-{name}", self.compression)
        names = KafkaNames.of(pipeline, name, self.progress)
        sink = KafkaSink(
            names, session, form, schema, stages=self.stages, timeout_ms=self.timeout_ms, topics=self.topics
        )
        try:
            sink.prepare()
        except BaseException:
            sink.close()
            raise
        return sink

    def ledger(self, name: str, pipeline: str) -> SinkLedger | None:
        """Return what the ledger in the cluster says."""
        with libraries_for(f"sink {name!r}"):
            from holdfast.connectors.kafka.sink.ledger import KafkaNames, asked
            from holdfast.connectors.kafka.sink.session import KafkaSession
        session = KafkaSession(self.brokers, f"sink {name!r}", f"holdfast-{pipeline}-{name}")
        try:
            return asked(session, KafkaNames.of(pipeline, name, self.progress))
        finally:
            session.close()

    def reset(self, name: str, pipeline: str, *, rows: bool, is_dry_run: bool) -> Reset:
        """Remove what the cluster keeps of the sink; its records stay."""
        with libraries_for(f"sink {name!r}"):
            from holdfast.connectors.kafka.sink.ledger import KafkaNames
            from holdfast.connectors.kafka.sink.reset import reset
            from holdfast.connectors.kafka.sink.session import KafkaSession
        session = KafkaSession(self.brokers, f"sink {name!r}", f"holdfast-{pipeline}-{name}")
        topics = f"topic {self.form.topic}" if self.form.topic_by is None else "its topics"
        try:
            return reset(session, KafkaNames.of(pipeline, name, self.progress), topics, is_dry_run=is_dry_run)
        finally:
            session.close()
