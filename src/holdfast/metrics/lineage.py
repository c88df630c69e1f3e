"""A run as events of OpenLineage: it begins, ends or fails, with its data sets and their columns (design/0049, 4).

Sent by the official client, as its variables and its configuration file say (``OPENLINEAGE_URL``,
``OPENLINEAGE_CONFIG``, ``OPENLINEAGE_NAMESPACE``).
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any, Protocol

from holdfast import __version__
from holdfast.errors import HoldfastError, InvalidPipeline
from holdfast.masking import masked
from holdfast.metrics.outbox import Outbox

try:
    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
    from openlineage.client.facet_v2 import column_lineage_dataset, error_message_run, job_type_job, schema_dataset
except ImportError as missing:
    raise InvalidPipeline(
        "lineage needs the client of OpenLineage, which is not installed.",
        why=f"{missing}.",
        do="pip install 'holdfast[lineage]', or start without HOLDFAST_LINEAGE.",
    ) from missing

WHAT = "lineage"
NAMESPACE = "holdfast"
"""Of jobs, and of data sets whose system has no names in OpenLineage; ``OPENLINEAGE_NAMESPACE`` replaces it."""

PRODUCER = f"https://github.com/holdfast/holdfast/tree/{__version__}"


class Derivation(IntEnum):
    """How a column comes of another, as OpenLineage names it; of several steps the last one here says it."""

    IDENTITY = 0
    TRANSFORMATION = 1
    AGGREGATION = 2


@dataclass(frozen=True)
class LineageColumn:
    """Where a column of an output comes from.

    Parameters
    ----------
    dataset : int
        The input, by its number.
    column : str
        Its column.
    how : Derivation
        Whether it is passed on as it is.
    """

    dataset: int
    column: str
    how: Derivation = Derivation.IDENTITY


@dataclass(frozen=True)
class LineageDataset:
    """What a source reads, or a sink writes.

    Parameters
    ----------
    namespace, name : str
        As OpenLineage names it; an empty namespace is that of the jobs.
    schema : tuple of (str, str)
        Column and type; empty where that is not known without Spark.
    columns : mapping of str to tuple of LineageColumn
        Of a sink: where its columns come from; those of which that is not known are left out.
    """

    namespace: str
    name: str
    schema: tuple[tuple[str, str], ...] = ()
    columns: Mapping[str, tuple[LineageColumn, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class LineageGraph:
    """The data sets of a pipeline, each once.

    Parameters
    ----------
    pipeline : str
        Its name.
    inputs, outputs : tuple of LineageDataset
        Of its sources and of its sinks.
    """

    pipeline: str
    inputs: tuple[LineageDataset, ...]
    outputs: tuple[LineageDataset, ...]


class Emitting(Protocol):
    """What is needed of the client."""

    def emit(self, event: Any) -> None:
        """Send an event."""


class LineageRun:
    """Tells of one run.  Its events are sent in a thread of their own, and are dropped where that cannot be.

    Parameters
    ----------
    graph : LineageGraph
        What it reads and writes.
    client : Emitting, optional
        Sends the events; the official one, by its configuration, where it is omitted.
    """

    def __init__(self, graph: LineageGraph, client: Emitting | None = None) -> None:
        self._graph = graph
        self._id = str(uuid.uuid4())
        self._client = client
        self._is_ending = threading.Lock()
        self._outbox: Outbox[RunEvent] = Outbox(WHAT, self._emit)

    def begin(self) -> None:
        """Say that it begins."""
        self._outbox.put(self._event(RunState.START))

    def end(self, error: HoldfastError | None) -> None:
        """Say that it has ended, or why it has failed; wait some seconds until that is sent."""
        if not self._is_ending.acquire(blocking=False):
            return  # that was said
        state = RunState.COMPLETE if error is None else RunState.FAIL
        self._outbox.put(self._event(state, error))
        self._outbox.end()

    def _emit(self, event: RunEvent) -> None:
        if self._client is None:
            self._client = OpenLineageClient()
        self._client.emit(event)

    def _event(self, state: RunState, error: HoldfastError | None = None) -> RunEvent:
        namespace = os.environ.get("OPENLINEAGE_NAMESPACE") or NAMESPACE
        facets: dict[str, Any] = {}
        if error is not None:  # its kind alone: a message may quote a row
            message = f"{type(error).__name__} in {error.participant or self._graph.pipeline}"
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(
                masked(message), "python", producer=PRODUCER
            )
        kind = job_type_job.JobTypeJobFacet("STREAMING", "HOLDFAST", "JOB", producer=PRODUCER)
        inputs = [InputDataset(*_name_of(each, namespace), facets=_schema(each)) for each in self._graph.inputs]
        outputs = [
            OutputDataset(*_name_of(each, namespace), facets={**_schema(each), **self._columns(each, namespace)})
            for each in self._graph.outputs
        ]
        return RunEvent(
            eventTime=datetime.now(UTC).isoformat(),
            eventType=state,
            run=Run(self._id, facets),
            job=Job(namespace, self._graph.pipeline, {"jobType": kind}),
            inputs=inputs,
            outputs=outputs,
            producer=PRODUCER,
        )

    def _columns(self, of: LineageDataset, namespace: str) -> dict[str, Any]:
        if not of.columns:
            return {}
        fields = {
            name: column_lineage_dataset.Fields([self._input_field(each, namespace) for each in columns])
            for name, columns in of.columns.items()
        }
        return {"columnLineage": column_lineage_dataset.ColumnLineageDatasetFacet(fields, producer=PRODUCER)}

    def _input_field(self, of: LineageColumn, namespace: str) -> column_lineage_dataset.InputField:
        how = column_lineage_dataset.Transformation("DIRECT", of.how.name)
        return column_lineage_dataset.InputField(*_name_of(self._graph.inputs[of.dataset], namespace), of.column, [how])


def _name_of(of: LineageDataset, namespace: str) -> tuple[str, str]:
    return masked(of.namespace or namespace), masked(of.name)


def _schema(of: LineageDataset) -> dict[str, Any]:
    if not of.schema:
        return {}
    fields = [schema_dataset.SchemaDatasetFacetFields(name, kind) for name, kind in of.schema]
    return {"schema": schema_dataset.SchemaDatasetFacet(fields, producer=PRODUCER)}
