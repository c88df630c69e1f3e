"""The metrics of some statuses, as the client library of Prometheus has them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from holdfast.errors import InvalidPipeline
from holdfast.masking import masked
from holdfast.metrics.kinds import Metric, labels_of
from holdfast.metrics.table import METRICS
from holdfast.shards.naming import shard_of
from holdfast.status import Status

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.exposition import generate_latest
    from prometheus_client.registry import Collector, CollectorRegistry
except ImportError as missing:
    raise InvalidPipeline(
        "metrics need the package prometheus-client, which is not installed.",
        why=f"{missing}.",
        do="pip install 'holdfast[metrics]', or start without --metrics and HOLDFAST_METRICS.",
    ) from missing


class StatusCollector(Collector):
    """Gives the metrics of statuses that are asked for then.

    Parameters
    ----------
    statuses : callable
        Returns them.
    """

    def __init__(self, statuses: Callable[[], Iterable[Status]]) -> None:
        self._statuses = statuses
        self._lock = threading.Lock()

    def collect(self) -> Iterator[Any]:
        """Yield all metrics; scrapes wait for each other."""
        with self._lock:
            yield from families(self._statuses())


def families(statuses: Iterable[Status]) -> list[Any]:
    """Return the metrics of some runs and shards, as the client library has them; none without a number."""
    known = [(shard_of(status.pipeline), status) for status in statuses]
    found = []
    for metric in METRICS:
        family = _family(metric)
        for (pipeline, shard), status in known:
            if metric.is_of_shards != bool(status.shards):
                continue
            common = (pipeline,) if metric.is_of_shards else (pipeline, str(shard))
            for labels, values in _without_secrets(metric.samples(status)).items():
                family.add_metric((*common, *labels), *values)
        if family.samples:
            found.append(family)
    return found


def exposition(statuses: Iterable[Status]) -> str:
    """Return the metrics of some runs and shards as text, as a scrape gets them."""
    registry, found = CollectorRegistry(auto_describe=False), list(statuses)
    registry.register(StatusCollector(lambda: found))
    return generate_latest(registry).decode()


def _without_secrets(samples: Iterable[Any]) -> dict[tuple[str, ...], list[Any]]:
    """Return samples by their labels, secrets masked; what is the same then is one, for a scrape may not have two."""
    found: dict[tuple[str, ...], list[Any]] = {}
    for labels, *values in samples:
        shown = tuple(masked(label) for label in labels)
        found[shown] = [found[shown][0] + values[0]] if shown in found else values
    return found


def _family(metric: Metric) -> Any:
    kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
    return kinds[metric.kind](metric.name, metric.help, labels=labels_of(metric))
