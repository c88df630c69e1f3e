"""What is open in a sink's system, in words: transactions, and the readers that wait for them."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.observe.inspection import SinkReport

SHOWN = 5
"""Of each kind; ``--json`` has all of them."""

_BECOMES = {
    "decided": "decided: the next start commits it",
    "at work": "at work",
    "orphan": "an orphan: the next run aborts it",
    "left behind": "of a run that is gone: the next start ends it",
}


def transaction_lines(sink: SinkReport) -> Iterator[str]:
    """Say what is open in a sink's system, the oldest first, and who waits for it."""
    oldest = sorted(sink.transactions, key=lambda each: -each.transaction.age_s)
    for report in oldest[:SHOWN]:
        of = report.transaction
        whose = f"transaction {of.task}" if of.task else "transaction of the driver"
        lasts = f"open for {of.age_s:,.0f} s, at most {of.timeout_s:,.0f} s"
        yield f"{whose}: {of.state}, {lasts}; {_BECOMES[report.standing]}"
    if len(oldest) > SHOWN:
        yield f"and {len(oldest) - SHOWN:,} more transactions are open"
    for part in sink.waiting_readers[:SHOWN]:
        yield f"readers of {part.place} wait at {part.readable:,}, {part.end - part.readable:,} before its end"
    if len(sink.waiting_readers) > SHOWN:
        yield f"and so do those of {len(sink.waiting_readers) - SHOWN:,} more"
