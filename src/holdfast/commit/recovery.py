"""What to do with an epoch of which the ledger says one thing and a sink another: one table.

The ledger's answer is a *decision*, the sink's answer an *outcome*; together they determine a *verdict*.  The sink is
the authority on what is visible, the ledger on what should be.  Each case says which crash (or which accident) leads
there. The table in ``docs/how-recovery-works.md`` is generated from :data:`CASES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from holdfast.ports import Outcome


class Decision(Enum):
    """What is known of an epoch apart from the sinks.  The value is the definition."""

    NONE = "no valid decision in the ledger, and the driver that held the rows is dead"
    LIVE = "none needed (one sink), and the driver that holds the rows is asking"
    COMMIT = "the decision is in the ledger, with every handle and every carried row"
    DONE = "the ledger says that every sink of the epoch has published it"


class Verdict(Enum):
    """What to do about one sink and one epoch.  The value is the definition."""

    ABORT = "nothing of it is visible and nothing will be: orphans are swept, the epoch is produced again"
    SKIP = "the sink holds it, or will by its own record: write nothing"
    PUBLISH = "publish it, with the same parts"
    REPLAY = "the sink is behind: what it lacks is replayed, if the sources still can; else stop"
    REVOKE = (
        "the decision no longer counts for this sink: the epoch is replayed to it, if the sources still can; else stop"
    )
    ASK = "ask again, a bounded number of times, then stop; delete nothing"
    DIVERGED = "stop: sink and ledger contradict each other, a person decides"


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    decision: Decision
    outcome: Outcome
    verdict: Verdict
    why: str


CASES: tuple[Case, ...] = (
    Case(
        Decision.NONE,
        Outcome.ABSENT,
        Verdict.ABORT,
        "The driver died before the decision (with one sink: before the sink's own commit). Presumed abort.",
    ),
    Case(
        Decision.NONE,
        Outcome.STAGED,
        Verdict.SKIP,
        "One sink, and the driver died after the sink's own record of intent: that record is the decision, "
        "the sink completes it.",
    ),
    Case(
        Decision.NONE,
        Outcome.PUBLISHED,
        Verdict.SKIP,
        "One sink: its own commit was the decision, and the driver died before Spark's commit log. "
        "Or the checkpoint's ledger was lost, or another sink is new: the sink still knows.",
    ),
    Case(Decision.NONE, Outcome.UNKNOWN, Verdict.ASK, "The sink does not answer at the start."),
    Case(
        Decision.NONE,
        Outcome.EXPIRED,
        Verdict.ABORT,
        "Nothing was decided: rows that were staged and are gone are orphans that need no sweeping.",
    ),
    Case(
        Decision.LIVE,
        Outcome.ABSENT,
        Verdict.PUBLISH,
        "The connection broke before the COMMIT reached the sink; the driver still holds the parts.",
    ),
    Case(
        Decision.LIVE,
        Outcome.STAGED,
        Verdict.PUBLISH,
        "The connection broke after the sink's own record of intent; publishing again completes it.",
    ),
    Case(
        Decision.LIVE,
        Outcome.PUBLISHED,
        Verdict.SKIP,
        "The connection broke after the COMMIT and before its reply.",
    ),
    Case(
        Decision.LIVE,
        Outcome.UNKNOWN,
        Verdict.ASK,
        "The connection broke during COMMIT, and the sink is still unavailable.",
    ),
    Case(
        Decision.LIVE,
        Outcome.EXPIRED,
        Verdict.ABORT,
        "Somebody removed staged rows between stage and publish: the run stops, the next one produces the epoch again.",
    ),
    Case(
        Decision.COMMIT,
        Outcome.ABSENT,
        Verdict.PUBLISH,
        "The driver died between the decision and this sink's publish, for which the epoch may have waited "
        "(commit_every); or its connection broke before the COMMIT.",
    ),
    Case(
        Decision.COMMIT,
        Outcome.STAGED,
        Verdict.PUBLISH,
        "The driver died, or its connection broke, after the sink's own record of intent; publishing again "
        "completes it.",
    ),
    Case(
        Decision.COMMIT,
        Outcome.PUBLISHED,
        Verdict.SKIP,
        "The driver died after this sink's publish and before the next one's, or before the decision was forgotten.",
    ),
    Case(
        Decision.COMMIT,
        Outcome.UNKNOWN,
        Verdict.ASK,
        "The sink does not answer; the decision and its parts stay where they are.",
    ),
    Case(
        Decision.COMMIT,
        Outcome.EXPIRED,
        Verdict.REVOKE,
        "Staged rows of a decided epoch are gone: a prepared transaction was rolled back, a staging table dropped, a "
        "staged file removed. The sink has published nothing of it.",
    ),
    Case(
        Decision.DONE,
        Outcome.ABSENT,
        Verdict.REPLAY,
        "No crash of Holdfast leads here: the sink failed over to a lagging replica, or was restored from a backup.",
    ),
    Case(
        Decision.DONE,
        Outcome.STAGED,
        Verdict.DIVERGED,
        "No crash leads here: 'done' is written after the sink's answer that it is visible. The sink was restored to "
        "the middle of it.",
    ),
    Case(
        Decision.DONE,
        Outcome.PUBLISHED,
        Verdict.SKIP,
        "The driver died after forgetting and before Spark's commit log: Spark replays what every sink holds.",
    ),
    Case(Decision.DONE, Outcome.UNKNOWN, Verdict.ASK, "The sink does not answer at the start."),
    Case(
        Decision.DONE,
        Outcome.EXPIRED,
        Verdict.REPLAY,
        "A decision was revoked for this sink, and the start that did so died before it had replayed the epoch.",
    ),
)
"""The table, in the order in which people read it."""

VERDICTS: Mapping[tuple[Decision, Outcome], Verdict] = {(case.decision, case.outcome): case.verdict for case in CASES}
"""(decision, outcome) -> verdict; every combination has exactly one row."""
