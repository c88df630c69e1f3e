"""What people hold against a run: expectations, what calls cost, and whether something is wrong: values of a status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ExpectationStatus:
    """One expectation at one moment: ``hf.expect``.

    Parameters
    ----------
    name : str
        The node's name.
    within, on_fail, max_fraction
        As it was declared.
    rows, failed : int
        Rows that reached it in this run, and those of them that did not meet it.
    rows_total, failed_total : int
        The same in all epochs of the checkpoint, each once, as the ledger has it.
    last_rows, last_failed : int
        The same in the last epoch that had rows for it.
    is_broken : bool
        Whether more rows of that epoch failed than may.
    """

    name: str
    within: str = ""
    on_fail: str = ""
    max_fraction: float = 0.0
    rows: int = 0
    failed: int = 0
    rows_total: int = 0
    failed_total: int = 0
    last_rows: int = 0
    last_failed: int = 0
    is_broken: bool = False


@dataclass(frozen=True)
class CallStatus:
    """What one call has cost, in all runs that have recorded answers of it in its file: ``hf.call``.

    Parameters
    ----------
    name : str
        The node's name.
    calls : int
        Attempts that have ended: those that were answered, and those that failed.
    retries : int
        Those of them that followed another one.
    failed : int
        Keys that had no answer after all attempts.
    reused : int
        Keys that were looked up again and had a recorded answer, once for each batch of rows.
    seconds : float
        How long keys waited for their answers, with pauses, added up over calls that were in flight together.
    cost : mapping of str to float
        What the function reports of its answers.
    """

    name: str
    calls: int = 0
    retries: int = 0
    failed: int = 0
    reused: int = 0
    seconds: float = 0.0
    cost: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Health:
    """Whether something is wrong that a person should know of (:mod:`holdfast.display.health`).

    Parameters
    ----------
    reasons : tuple of str
        What is wrong, a line each; empty where nothing is.
    """

    reasons: tuple[str, ...] = ()

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is wrong."""
        return not self.reasons


HEALTHY = Health()
