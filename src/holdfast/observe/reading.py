"""How far the sources of a pipeline are: what each sink holds of a segment, what was read, and where it ends.

Of sources that can tell (``ports.MeasuredSpec``): of each partition of a topic.

The targets of sinks, looked at before anything runs: do the rows that a start would bring fit (design/0031).

The settings of a process for ``inspect --config``: each variable, its value, and where the value came from.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from holdfast.capabilities import offers
from holdfast.checkpoint.spark_log import newest_positions
from holdfast.config import OTHER_VARIABLES, SECRET_VARIABLES, Settings, mistaken_variables, variable
from holdfast.connectors.reading.partitioned import beneath
from holdfast.errors import HoldfastError
from holdfast.graph.graph import Graph
from holdfast.graph.nodes import Node
from holdfast.masking import COVER, masked
from holdfast.observe.inspection import Inspection, SegmentReport, SourceReport
from holdfast.observe.ledgers import first_line
from holdfast.plan.derived_part import sink_schemas
from holdfast.ports import Clock, ExaminedSpec, MeasuredSpec
from holdfast.positions import SourcePositions

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
        if offers(spec := beneath(node.source_spec), MeasuredSpec)
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


@dataclass(frozen=True)
class Targets:
    """What a look at the targets found.

    Parameters
    ----------
    misfits : tuple of HoldfastError
        What a start would raise: types, keys, privileges, columns that it may not add.
    new_columns : mapping of str to tuple of str
        Sink -> the columns that a start adds to its target (design/0035).
    """

    misfits: tuple[HoldfastError, ...]
    new_columns: Mapping[str, tuple[str, ...]]


def examined(pipeline: Graph) -> Targets:
    """Look at the targets of the sinks that can be asked so, and whose rows are known without Spark.

    Creates and changes nothing.
    """
    schemas = sink_schemas(pipeline)
    misfits: list[HoldfastError] = []
    new_columns: dict[str, tuple[str, ...]] = {}
    for node in pipeline.sinks:
        if node.name in schemas and offers(node.spec, ExaminedSpec):
            try:
                added = node.spec.examine(node.name, pipeline.name, schemas[node.name])
            except HoldfastError as error:
                error.pipeline, error.participant = pipeline.name, node.name
                misfits.append(error)
            else:
                new_columns.update({node.name: tuple(added)} if added else {})
    return Targets(tuple(misfits), new_columns)


Whence = Literal["default", "environment", "argument"]


@dataclass(frozen=True)
class SettingShown:
    """One variable.

    Parameters
    ----------
    variable : str
        Its name.
    value : str
        What counts, secrets covered; empty for a variable that is not set and has no default.
    whence : str
        ``"default"``, ``"environment"``, or ``"argument"``: of ``start``, of ``Settings``, or of the command line.
    is_setting : bool
        False for what only tests, demo and benchmark read.
    """

    variable: str
    value: str
    whence: Whence
    is_setting: bool = True

    @property
    def is_given(self) -> bool:
        """Whether the value was chosen by the user."""
        return self.whence != "default"


@dataclass(frozen=True)
class Configuration:
    """All variables, and what is wrong with the others that are set."""

    settings: Sequence[SettingShown]
    warnings: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON value."""
        return {"settings": [asdict(one) for one in self.settings], "warnings": list(self.warnings)}


def configuration(settings: Settings, environ: Mapping[str, str] | None = None) -> Configuration:
    """Return the configuration of this process.

    Parameters
    ----------
    settings : Settings
        Checked.
    environ : mapping of str to str, optional
        Default: the environment.

    Examples
    --------
    >>> shown = configuration(Settings(commit_queue=7), {}).settings
    >>> [(one.variable, one.value) for one in shown if one.whence == "argument"]
    [('HOLDFAST_COMMIT_QUEUE', '7')]
    """
    given = {name.upper(): value for name, value in (os.environ if environ is None else environ).items()}
    shown = [_show(settings, name, given.get(variable(name), "")) for name in Settings.model_fields]
    others = [
        SettingShown(name, COVER if name in SECRET_VARIABLES else masked(given[name]), "environment", is_setting=False)
        for name in OTHER_VARIABLES
        if given.get(name)
    ]
    return Configuration([*shown, *others], mistaken_variables(given))


def _show(settings: Settings, name: str, in_environment: str) -> SettingShown:
    value = getattr(settings, name)
    whence: Whence = "argument"
    if in_environment and getattr(settings, name) == getattr(Settings.model_validate({name: in_environment}), name):
        whence = "environment"
    elif value == Settings.model_fields[name].default:
        whence = "default"
    return SettingShown(variable(name), masked(_text(value)), whence)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
