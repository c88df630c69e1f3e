"""Who runs a pipeline that keeps a lease, as the system of its sink says: asked, and never changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import HoldfastError, InvalidPipeline
from holdfast.graph.graph import Graph
from holdfast.replica.keeper import as_json, held_by
from holdfast.replica.places import lease_of


@dataclass(frozen=True)
class LeaseReport:
    """A lease as it was found.

    Parameters
    ----------
    lease : mapping of str to Any
        As :func:`holdfast.replica.keeper.as_json` returns it; without the holder's token.
    holder : str
        Who holds it, in words.
    problem : str
        Why it could not be read.
    """

    lease: Mapping[str, Any] = field(default_factory=dict)
    holder: str = ""
    problem: str = ""


def lease_report(pipeline: Graph) -> LeaseReport | None:
    """Return what is known of a pipeline's lease; None where it has none, or no sink could keep one."""
    try:
        place = lease_of(pipeline)
    except InvalidPipeline:
        return None
    try:
        seen = place.read()
        return None if seen is None else LeaseReport(as_json(seen), held_by(seen))
    except HoldfastError as error:
        return LeaseReport(problem=error.what)
    finally:
        place.close()


def lease_lines(report: LeaseReport | None) -> Iterator[str]:
    """Say who holds the lease, how long it is still good for, and whether a promotion is asked for."""
    if report is None:
        return
    if report.problem:
        yield f"lease       no answer: {report.problem}"
        return
    left_us, asked = report.lease["left_us"], report.lease["asked_term"] == report.lease["term"]
    left = "" if left_us is None else f", {left_us / 1e6:.1f} s left" if left_us > 0 else ", expired"
    yield f"lease       {report.holder}, for {report.lease['ttl_us'] / 1e6:g} s at a time{left}"
    if asked:
        yield "              a promotion is asked for: a replica takes over as soon as it looks"
