"""The metrics of rows: what is expected of them, what calls cost, those that are not used, and those that wait."""

from __future__ import annotations

from holdfast.metrics import samples
from holdfast.metrics.kinds import Alert, Metric, Panel

OF_ROWS: tuple[Metric, ...] = (
    Metric(
        "holdfast_healthy",
        "gauge",
        (),
        "1 where nothing is wrong that a person should know of, else 0: holdfast status --check has the reasons.",
        samples.is_healthy,
        Panel("Rows that are not used", "Healthy"),
    ),
    Metric(
        "holdfast_expectation_rows_total",
        "counter",
        ("expectation", "result"),
        "Rows that met an expectation, and that failed it, in all epochs of the checkpoint, each once.",
        samples.expected_rows,
        Panel("Rows that are not used", "Failed expectations per second", by=("expectation", "result")),
    ),
    Metric(
        "holdfast_expectation_broken",
        "gauge",
        ("expectation",),
        "1 while more rows of the last epoch that had any fail an expectation than may.",
        samples.is_broken,
        alerts=(
            Alert(
                "HoldfastExpectationBroken",
                "max_over_time(holdfast_expectation_broken[5m]) == 1",
                "0m",
                "ticket",
                "rows do not meet expectation {{ $labels.expectation }}",
                "expectations[] of the status has the counts; look at what the source gives",
            ),
        ),
    ),
    Metric(
        "holdfast_call_attempts_total",
        "counter",
        ("call", "result"),
        "Attempts of each call: answered, retried (it failed, and another followed), failed (it was the last one).",
        samples.call_attempts,
    ),
    Metric(
        "holdfast_call_reused_total",
        "counter",
        ("call",),
        "Keys of each call whose answer was recorded before: nobody was asked.",
        samples.call_reuses,
    ),
    Metric(
        "holdfast_call_seconds_total",
        "counter",
        ("call",),
        "How long keys of each call waited for their answers, retries and pauses included, in all.",
        samples.call_seconds,
    ),
    Metric(
        "holdfast_call_cost_total",
        "counter",
        ("call", "cost"),
        "What the function of each call reports that answers have cost, by its own names: tokens, for instance.",
        samples.call_costs,
    ),
    Metric(
        "holdfast_rejected_total",
        "counter",
        ("source", "reason"),
        "Malformed rows that went to the side output of a source, by reason, without values.",
        samples.rejected_rows,
        Panel("Rows that are not used", "Rejected per second", by=("source",)),
    ),
    Metric("holdfast_rescued_total", "counter", ("source",), "Rows with members of no column.", samples.rescued_rows),
    Metric(
        "holdfast_dead_letters",
        "gauge",
        ("node",),
        "Rows that were isolated and neither sent again nor published, by the source, operator or sink that they are "
        "of, as the last start has found them.",
        samples.dead_letters,
        Panel("Rows that are not used", "Dead letters", by=("node",)),
        (
            Alert(
                "HoldfastDeadLetters",
                "holdfast_dead_letters > 0",
                "0m",
                "ticket",
                "rows of {{ $labels.node }} are left out: they made the run fail, or its sink refused them",
                "holdfast dead-letters list says why; when that is mended: holdfast dead-letters replay",
            ),
        ),
    ),
    Metric(
        "holdfast_late_total",
        "counter",
        ("operator", "reason"),
        "Rows that came too late for an operator.",
        samples.late_rows,
        Panel("Rows that are not used", "Late per second", by=("operator",)),
    ),
    Metric(
        "holdfast_shed_total",
        "counter",
        ("operator", "reason"),
        "Rows that an operator dropped at its entry.",
        samples.shed_rows,
    ),
    Metric(
        "holdfast_operator_counts_total",
        "counter",
        ("operator", "what"),
        "What else the steps of an operator count: dropped, forgotten, and what a function of yours counts.",
        samples.operator_counts,
    ),
    Metric(
        "holdfast_waiting_rows",
        "gauge",
        ("operator",),
        "Rows that wait for other inputs of an operator.",
        samples.waiting_rows,
        Panel("State", "Waiting rows", by=("operator",)),
    ),
    Metric(
        "holdfast_waiting_keys",
        "gauge",
        ("operator",),
        "Keys under which rows wait for other inputs of an operator, as its buckets have counted them last.",
        samples.waiting_keys,
        Panel("State", "Waiting keys", by=("operator",)),
        (
            Alert(
                "HoldfastWaitingKeys",
                "min_over_time(holdfast_waiting_keys[30m]) > 1000 and delta(holdfast_waiting_keys[30m]) > 0",
                "30m",
                "ticket",
                "more and more keys of {{ $labels.operator }} wait for an input",
                "operators[].waits of the status names the inputs; state grows until they speak, or a limit holds "
                "the others (max_waiting_rows)",
            ),
        ),
    ),
)
