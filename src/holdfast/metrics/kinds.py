"""What is said of a metric: its name and labels, where a board shows it, and what to be alarmed by."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from holdfast.metrics.samples import HistogramSample, Sample
from holdfast.status import Status

COMMON = ("pipeline", "shard")
"""Labels of every metric; ``shard`` is 0 where a pipeline runs as one."""


@dataclass(frozen=True)
class Alert:
    """What to be alarmed by.

    Parameters
    ----------
    name : str
        Of the alert.
    expr : str
        In PromQL.
    wait : str
        For how long it must hold (``for:``).
    severity : str
        ``page``: a person is needed now; ``ticket``: within days.
    summary : str
        What is wrong.
    do : str
        What to do.
    """

    name: str
    expr: str
    wait: str
    severity: Literal["page", "ticket"]
    summary: str
    do: str


@dataclass(frozen=True)
class Panel:
    """Where the board shows a metric.

    Parameters
    ----------
    row : str
        Its heading there.
    title : str
        Of the panel.
    unit : str
        As Grafana names it.
    by : tuple of str
        The labels that its lines are for, besides :data:`COMMON`.
    """

    row: str
    title: str
    unit: str = "short"
    by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Metric:
    """One metric.

    Parameters
    ----------
    name : str
        In the exposition.
    kind : str
        ``counter``, ``gauge`` or ``histogram``.
    labels : tuple of str
        Besides :data:`COMMON`.
    help : str
        What it says.
    samples : callable
        Yields what a status has of it.
    panel : Panel, optional
        On the board.
    alerts : tuple of Alert
        About it.
    is_of_shards : bool
        Whether it is about the shards of a run: then it is taken from the status of the whole, and has no other label
        ``shard``.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str
    samples: Callable[[Status], Iterable[Sample] | Iterable[HistogramSample]]
    panel: Panel | None = None
    alerts: tuple[Alert, ...] = ()
    is_of_shards: bool = False


def labels_of(metric: Metric) -> tuple[str, ...]:
    """Return the labels of a metric, the common ones first.

    Examples
    --------
    >>> labels_of(Metric("holdfast_queue_epochs", "gauge", ("node",), "Epochs.", lambda status: ()))
    ('pipeline', 'shard', 'node')
    """
    return (COMMON[0], *metric.labels) if metric.is_of_shards else (*COMMON, *metric.labels)
