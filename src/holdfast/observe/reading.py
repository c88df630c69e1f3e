"""How far the sources of a pipeline are: what each sink holds of a segment, what was read, and where it ends.

Of sources that can tell (``ports.MeasuredSpec``): of each partition of a topic.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from holdfast.connectors.reading.partitioned import beneath
from holdfast.graph.graph import Graph
from holdfast.graph.nodes import Node
from holdfast.observe.inspection import Inspection, SegmentReport, SourceReport
from holdfast.observe.ledgers import first_line
from holdfast.ports import Clock, MeasuredSpec
from holdfast.positions import SourcePositions
from holdfast.resume.spark_log import newest_positions

SHOWN = 20
"""Segments of each source; ``--json`` has all of them."""


def inspect_sources(
    pipeline: Graph, inspection: Inspection, checkpoint: Path, clock: Clock
) -> tuple[SourceReport, ...]:
    """Ask the sources that can tell how far they are.  Changes nothing.

    Parameters
    ----------
    pipeline : Graph
        The graph.
    inspection : Inspection
        With the sinks' answers.
    checkpoint : Path
        Its location, for what was planned.
    clock : Clock
        What ages are counted to.
    """
    planned = newest_positions(checkpoint / inspection.spark[-1].directory) if inspection.spark else {}
    return tuple(
        _report(node, spec, inspection, planned.get(node.name, {}), clock.now_us())
        for node in pipeline.sources
        if isinstance(spec := beneath(node.source_spec), MeasuredSpec)
    )


def _report(node: Node, spec: MeasuredSpec, inspection: Inspection, read: SourcePositions, now_us: int) -> SourceReport:
    holds = {each.name: each.held.positions for each in inspection.sinks if each.held is not None}
    held = {sink: of[node.name] for sink, of in holds.items() if node.name in of}
    segments = {segment for of in (*held.values(), read) for segment in of}
    known = {segment: [int(of[segment]) for of in held.values() if segment in of] for segment in segments}
    lowest = {segment: min(at) if at else read[segment] for segment, at in known.items()}
    try:
        found = spec.lags(node.name, lowest)
    except Exception as error:  # whatever it is, the other answers are worth having
        return SourceReport(node.name, problem=first_line(error))
    return SourceReport(
        node.name,
        tuple(
            SegmentReport(
                each.place,
                {sink: int(of[each.segment]) for sink, of in held.items() if each.segment in of},
                int(read[each.segment]) if each.segment in read else None,
                each.end,
                max(0, each.end - each.position),
                _age_s(each.oldest_us, now_us) if each.end > each.position else 0.0,
            )
            for each in found
        ),
    )


def _age_s(at_us: int | None, now_us: int) -> float | None:
    return None if at_us is None else max(0.0, (now_us - at_us) / 1e6)


def source_lines(reports: tuple[SourceReport, ...]) -> Iterator[str]:
    """Say it to people.

    Examples
    --------
    >>> of = SegmentReport("flights/3", {"trips": 7, "log": 5}, 9, 12, 7, 3.25)
    >>> for line in source_lines((SourceReport("flights", (of,)),)): print(line)
    source flights
      flights/3: held trips=7 log=5, read 9, end 12, lag 7 rows, 3.2 s
    """
    for report in reports:
        yield f"source {report.name}" + (f"  does not answer: {report.problem}" if report.problem else "")
        behind = sorted(report.segments, key=lambda each: -each.lag)[:SHOWN]
        for each in (each for each in report.segments if each in behind):
            held = " ".join(f"{sink}={at:,}" for sink, at in each.held.items()) or "nothing known"
            read = "nothing known" if each.read is None else f"{each.read:,}"
            age = "of unknown age" if each.lag_s is None else f"{each.lag_s:,.1f} s"
            yield f"  {each.place}: held {held}, read {read}, end {each.end:,}, lag {each.lag:,} rows, {age}"
        if len(report.segments) > SHOWN:
            yield f"  and {len(report.segments) - SHOWN:,} more, which are less behind"
