"""What is held against a run: expectations of its rows, and whether something is wrong: frozen values of a status."""

from __future__ import annotations

from dataclasses import dataclass


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
