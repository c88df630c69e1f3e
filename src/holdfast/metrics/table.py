"""The list of metrics: names, labels, what they say, where the board shows them, and what to be alarmed by.

It is the only one, with that of rows (``table_of_rows.py``) in it: ``docs/metrics.md``, ``ops/grafana/holdfast.json``
and ``ops/prometheus/alerts.yml`` are written from it (``python -m tools.metrics``).  Names follow the conventions of
Prometheus: base units, ``_total`` for what only grows within a run.  Every metric also has the labels
:data:`~holdfast.metrics.kinds.COMMON`.
"""

from __future__ import annotations

from holdfast.metrics import samples
from holdfast.metrics.kinds import Alert, Metric, Panel
from holdfast.metrics.table_of_rows import OF_ROWS

METRICS: tuple[Metric, ...] = (
    Metric(
        "holdfast_run_state",
        "gauge",
        ("state",),
        "1 for the state of the run (starting, running, stopping, stopped, failed), 0 for the others.",
        samples.states,
        alerts=(
            Alert(
                "HoldfastGone",
                'max_over_time(holdfast_run_state{state="running"}[1h]) == 1 unless holdfast_run_state',
                "5m",
                "page",
                "it ran within the last hour, and no process serves its metrics any more",
                "start it again; the exit code and the log of the process say why it ended",
            ),
        ),
    ),
    Metric("holdfast_generation", "gauge", (), "Generation of the run: it rises with each start.", samples.generation),
    Metric("holdfast_start_time_seconds", "gauge", (), "When the run began, seconds of Unix time.", samples.start_time),
    Metric(
        "holdfast_epoch",
        "gauge",
        (),
        "Last epoch that every sink has published; 0 before the first.",
        samples.epoch,
        Panel("Progress", "Epochs per second"),
        (
            Alert(
                "HoldfastStands",
                "changes(holdfast_epoch[10m]) == 0 and on (pipeline, shard) sum by (pipeline, shard) "
                "(holdfast_lag_rows) > 0",
                "5m",
                "page",
                "no epoch was published for ten minutes, and rows wait",
                "look at what the status is doing, and at holdfast_waits_for_system",
            ),
        ),
    ),
    Metric(
        "holdfast_rows_total",
        "counter",
        ("node", "direction"),
        "Rows of a node in this run: in, what a source read, or what reached a filter; out, what left a filter, or was "
        "published by a sink.",
        samples.rows,
        Panel("Progress", "Rows per second", by=("node", "direction")),
    ),
    Metric(
        "holdfast_lag_seconds",
        "gauge",
        ("source",),
        "For how long a source has had something that is not published, as far as this run has seen.",
        samples.lag_seconds,
        Panel("Progress", "Behind", "s", ("source",)),
        (
            Alert(
                "HoldfastBehind",
                "holdfast_lag_seconds > 300",
                "5m",
                "ticket",
                "source {{ $labels.source }} is more than five minutes behind",
                "limited by: in the status says what takes the time",
            ),
        ),
    ),
    Metric(
        "holdfast_lag_rows",
        "gauge",
        ("source", "segment"),
        "Positions between what is published and what the source knows: rows of Kafka and of rate, files of files. "
        f"More than {samples.SEGMENTS_MAX} segments: the rest as one, {samples.OTHERS}.",
        samples.lag_rows,
        Panel("Progress", "Positions behind", by=("source",)),
    ),
    Metric(
        "holdfast_bound_seconds",
        "gauge",
        ("source",),
        "The time below which a source promises no more rows, seconds of Unix time; only where its timestamps are "
        "TIMESTAMPs.",
        samples.bound_seconds,
    ),
    Metric(
        "holdfast_source_paused",
        "gauge",
        ("source",),
        "1 where a source delivers nothing because the run was told so: holdfast pause.",
        samples.is_paused,
    ),
    Metric(
        "holdfast_source_limit_rows_per_second",
        "gauge",
        ("source",),
        "How many rows a second a source may deliver; only where that is limited: holdfast limit.",
        samples.limit_rows_per_s,
    ),
    Metric(
        "holdfast_epoch_seconds",
        "histogram",
        ("stage",),
        "How long epochs took: epoch, all of it; plan, evaluate, decide and publish, its stages.",
        samples.epoch_seconds,
        Panel("Time", "Epochs, 99th percentile", "s", ("stage",)),
    ),
    Metric(
        "holdfast_node_seconds_total",
        "counter",
        ("node", "stage"),
        "How long each node was at work in this run. evaluate: its part of the evaluation; publish: how long a sink "
        "was asked and published, also while other epochs were evaluated. (other): what is no node's.",
        samples.node_seconds,
        Panel("Time", "Seconds of each node per second", "s", ("node", "stage")),
    ),
    Metric(
        "holdfast_queue_epochs", "gauge", (), "Epochs that are decided and wait for the commit thread.", samples.queue
    ),
    Metric(
        "holdfast_in_doubt_epochs",
        "gauge",
        (),
        "Epochs that are decided and not yet in every sink: what the next start would resolve, if the run died now.",
        samples.in_doubt,
        Panel("Sinks", "Epochs in doubt"),
        (
            Alert(
                "HoldfastInDoubt",
                "min_over_time(holdfast_in_doubt_epochs[10m]) > 0 and changes(holdfast_epoch[10m]) == 0",
                "1m",
                "page",
                "what is decided has not reached every sink for ten minutes",
                "holdfast inspect TARGET names the sink; the epoch is published as soon as it answers",
            ),
        ),
    ),
    Metric(
        "holdfast_waits_for_system",
        "gauge",
        (),
        "1 while a system does not answer and is tried again.",
        samples.is_waiting,
        alerts=(
            Alert(
                "HoldfastWaitsForSystem",
                "holdfast_waits_for_system == 1",
                "2m",
                "page",
                "a system does not answer, and is tried again",
                "waits_for in the status, and the log, name it",
            ),
        ),
    ),
    Metric(
        "holdfast_retries_total",
        "counter",
        (),
        "Failures of systems that this run has retried.",
        samples.retries,
        Panel("Sinks", "Retries per second"),
    ),
    Metric(
        "holdfast_audit_difference_rows_total",
        "counter",
        (),
        "Rows by which epochs of this run did not add up: anything but 0 is a defect.",
        samples.audit_difference,
        alerts=(
            Alert(
                "HoldfastAudit",
                "holdfast_audit_difference_rows_total > 0",
                "0m",
                "page",
                "the rows of an epoch did not add up",
                "holdfast inspect --audit names operator and epoch; report it",
            ),
        ),
    ),
    Metric("holdfast_sink_epoch", "gauge", ("sink",), "Highest epoch that the sink has published.", samples.sink_epoch),
    Metric(
        "holdfast_sink_staleness_seconds",
        "gauge",
        ("sink",),
        "Age of the oldest row that was there and that the sink lacks, as far as this run has seen.",
        samples.sink_staleness,
        Panel("Sinks", "Staleness", "s", ("sink",)),
        (
            Alert(
                "HoldfastSinkStale",
                "holdfast_sink_staleness_seconds > 900",
                "5m",
                "ticket",
                "sink {{ $labels.sink }} lacks rows that are older than fifteen minutes",
                "compare holdfast_lag_seconds (the run is behind) with the pace of the sink",
            ),
        ),
    ),
    Metric(
        "holdfast_sink_freshness_seconds",
        "gauge",
        ("sink",),
        "How old the oldest row may be that the sink lacks: freshness=; only where that is declared.",
        samples.sink_freshness,
        alerts=(
            Alert(
                "HoldfastNotFresh",
                "holdfast_sink_staleness_seconds > on (pipeline, shard, sink) holdfast_sink_freshness_seconds",
                "1m",
                "page",
                "sink {{ $labels.sink }} lacks rows that are older than it may",
                "holdfast status --check says since when; limited by: in the status says what takes the time",
            ),
        ),
    ),
    Metric(
        "holdfast_sink_waiting_rows",
        "gauge",
        ("sink",),
        "Rows that are decided and wait for a sink with a pace of its own.",
        samples.sink_waiting_rows,
    ),
    *OF_ROWS,
    Metric(
        "holdfast_wait_seconds",
        "gauge",
        ("operator", "input"),
        "For how long the key has waited that waits longest, by the input that it waits for.",
        samples.wait_seconds,
        Panel("State", "Longest wait", "s", ("operator", "input")),
        (
            Alert(
                "HoldfastKeyWaits",
                "holdfast_wait_seconds > 3600",
                "5m",
                "ticket",
                "a key of {{ $labels.operator }} has waited for input {{ $labels.input }} for more than an hour",
                "operators[].waits of the status names the keys; that input is silent",
            ),
        ),
    ),
    Metric(
        "holdfast_state_rows",
        "gauge",
        ("operator",),
        "Rows of the state of an operator, of all its buckets that have reported.",
        samples.state_rows,
        Panel("State", "Rows of state", by=("operator",)),
    ),
    Metric(
        "holdfast_state_bytes",
        "gauge",
        ("operator",),
        "The stored size of that state.",
        samples.state_bytes,
        Panel("State", "Bytes of state", "bytes", ("operator",)),
    ),
    Metric(
        "holdfast_snapshots_total",
        "counter",
        ("result",),
        "Snapshots of state: made; dropped, due while another was being made; failed.",
        samples.snapshots,
    ),
    Metric(
        "holdfast_snapshot_age_seconds",
        "gauge",
        (),
        "Age of the last snapshot of state; before the first, since when the run has had none.",
        samples.snapshot_age,
        Panel("State", "Age of the snapshot", "s"),
        (
            Alert(
                "HoldfastNoSnapshot",
                "holdfast_snapshot_age_seconds > 900",
                "5m",
                "ticket",
                "no snapshot of state for fifteen minutes",
                "checkpoints.last_error of the status says why; a recovery without Spark's directory takes longer",
            ),
        ),
    ),
    Metric(
        "holdfast_snapshot_bytes", "gauge", (), "Size of the last snapshot, with all its files.", samples.snapshot_bytes
    ),
    Metric(
        "holdfast_telemetry_dropped_total",
        "counter",
        ("what",),
        "What this process could not tell, because nobody took it in time: spans, of epochs; lineage, events.",
        samples.telemetry_drops,
    ),
    Metric(
        "holdfast_spare_ready",
        "gauge",
        (),
        "1 while a spare waits beside the run, 0 while none does; only of run --supervise --spare.",
        samples.is_spare_ready,
        alerts=(
            Alert(
                "HoldfastSpareAway",
                "holdfast_spare_ready == 0",
                "10m",
                "ticket",
                "no spare waits beside the run: if it dies, the next start takes as long as without one",
                "the log of the supervisor says why spares end: memory, mostly",
            ),
        ),
    ),
    Metric(
        "holdfast_replica_waits",
        "gauge",
        (),
        "1 of a process that waits to take over: run --replica --metrics.  No other has it.",
        samples.replica_waits,
        alerts=(
            Alert(
                "HoldfastReplicaAway",
                "max by (pipeline) (max_over_time(holdfast_replica_waits[1d])) == 1 unless on (pipeline) "
                "holdfast_replica_waits == 1",
                "5m",
                "ticket",
                "a replica waited within the last day, and none does any more: it has taken over, or is away",
                "start one: holdfast run --replica",
            ),
        ),
    ),
    Metric(
        "holdfast_shard_state",
        "gauge",
        ("shard", "state"),
        "1 for the state of a shard (as of a run; waiting: it failed, and is started again), 0 for the others.",
        samples.shard_states,
        Panel("Shards", "Shards by state", by=("state",)),
        (
            Alert(
                "HoldfastShardDown",
                'holdfast_shard_state{state=~"waiting|failed"} == 1',
                "5m",
                "page",
                "shard {{ $labels.shard }} does not run",
                "shards[].error of the status says why; the others go on",
            ),
        ),
        is_of_shards=True,
    ),
    Metric(
        "holdfast_shard_restarts_total",
        "counter",
        ("shard",),
        "How often the controller has started a shard again.",
        samples.shard_restarts,
        Panel("Shards", "Restarts", by=("shard",)),
        is_of_shards=True,
    ),
)
"""All metrics, in the order of the docs."""
