"""Epochs as spans of OpenTelemetry: one for each epoch, with one below it for each stage (design/0049, section 4).

They are sent by the provider that the process has set; where it has none, by OTLP, as the variables of OpenTelemetry
say (``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_SERVICE_NAME``, ``OTEL_TRACES_SAMPLER``).
"""

from __future__ import annotations

from functools import cache

from holdfast import __version__
from holdfast.errors import InvalidPipeline
from holdfast.metrics.outbox import Outbox
from holdfast.shards.naming import shard_of
from holdfast.time_use import EpochTrace

try:
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
except ImportError as missing:
    raise InvalidPipeline(
        "tracing needs OpenTelemetry, which is not installed.",
        why=f"{missing}.",
        do="pip install 'holdfast[otel]', or start without HOLDFAST_TRACING.",
    ) from missing

WHAT = "spans"
_NS = 1_000_000_000


def tracing_of(name: str, generation: int) -> Outbox[EpochTrace]:
    """Return what takes the epochs of a run.

    Parameters
    ----------
    name : str
        Of the pipeline, or of one of its shards.
    generation : int
        Of the run.
    """
    pipeline, shard = shard_of(name)
    of: dict[str, str | int] = {
        "holdfast.pipeline": pipeline,
        "holdfast.shard": shard,
        "holdfast.generation": generation,
    }
    return Outbox(WHAT, lambda told: send_spans(_provider(), told, of))


def send_spans(provider: trace.TracerProvider, told: EpochTrace, of: dict[str, str | int]) -> None:
    """Make the spans of an epoch.

    Parameters
    ----------
    provider : TracerProvider
        Sends them.
    told : EpochTrace
        The epoch.
    of : dict of str to str or int
        Attributes of every span.
    """
    tracer = provider.get_tracer("holdfast", __version__)
    of = of | {"holdfast.epoch": told.epoch}
    at_ns = told.ended_us * 1_000 - round(sum(seconds for _, seconds in told.stages) * _NS)
    whole = tracer.start_span("epoch", start_time=at_ns, attributes=of | {"holdfast.rows": told.rows})
    below = trace.set_span_in_context(whole)
    for stage, seconds in told.stages:
        nodes = {f"holdfast.node.{node}.seconds": spent for node, spent in told.nodes.get(stage, {}).items()}
        span = tracer.start_span(stage, context=below, start_time=at_ns, attributes={**of, **nodes})
        at_ns += round(seconds * _NS)
        span.end(end_time=at_ns)
    whole.end(end_time=at_ns)


@cache
def _own_provider() -> TracerProvider:
    provider = TracerProvider(resource=Resource.create({"service.name": "holdfast"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def _provider() -> trace.TracerProvider:
    there = trace.get_tracer_provider()
    return _own_provider() if isinstance(there, trace.ProxyTracerProvider) else there
