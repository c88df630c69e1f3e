"""The sinks' own ledgers, asked by declaration alone: what is known of a pipeline whose checkpoint is lost.

Only Spark's analysis knows the schemas of sinks, and only a checkpoint has recorded them; a ledger is read without.

Who runs a pipeline that keeps a lease, as the system of its sink says: asked, and never changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.capabilities import offers
from holdfast.checkpoint.schemas import OUT_OF_REACH
from holdfast.errors import HoldfastError, InvalidPipeline
from holdfast.graph.graph import Graph
from holdfast.graph.nodes import SinkNode
from holdfast.ports import Guarantee, Held, LedgerSpec, SinkLedger
from holdfast.replica.keeper import as_json, held_by, lease_of


@dataclass(frozen=True)
class AskedLedgers:
    """What the sinks of a pipeline answered.

    Parameters
    ----------
    said : mapping of str to SinkLedger
        Those that have a ledger of this pipeline.
    unknown : mapping of str to str
        Sinks that only a start can ask, and those that did not answer: why.  Of at-least-once sinks nothing is said.
    """

    said: Mapping[str, SinkLedger]
    unknown: Mapping[str, str]

    @property
    def has_epochs(self) -> bool:
        """Whether a sink holds anything of the pipeline."""
        return any(not each.held.is_empty for each in self.said.values())

    def held(self, pipeline: Graph) -> dict[str, Held] | None:
        """Return what each sink holds that remembers it; None where one did not answer."""
        found = {}
        for node in pipeline.sinks:
            if node.guarantee is Guarantee.EXACTLY_ONCE and node.kind not in OUT_OF_REACH:
                if node.name in self.unknown:
                    return None
                found[node.name] = self.said[node.name].held if node.name in self.said else Held()
        return found


def ask_ledgers(pipeline: Graph) -> AskedLedgers:
    """Ask each sink that can be asked so.  Changes nothing, fences no run."""
    said, unknown = {}, {}
    for node in pipeline.sinks:
        if node.kind in OUT_OF_REACH:
            unknown[node.name] = OUT_OF_REACH[node.kind]
        elif node.guarantee is Guarantee.EXACTLY_ONCE:
            try:
                found = ledger_of(node, pipeline.name)
            except Exception as error:  # whatever a driver raises: the other sinks are asked nevertheless
                unknown[node.name] = first_line(error)
            else:
                if found is not None:
                    said[node.name] = found
    return AskedLedgers(said, unknown)


def ledger_of(node: SinkNode, pipeline: str) -> SinkLedger | None:
    """Return what a sink's ledger says; None where there is none, or it cannot be asked so."""
    spec = node.spec
    return spec.ledger(node.name, pipeline) if offers(spec, LedgerSpec) else None


def first_line(error: Exception) -> str:
    """Return an error as a report names it."""
    return f"{type(error).__name__}: {(str(error).splitlines() or ['no message'])[0]}"


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
