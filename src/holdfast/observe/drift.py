"""What the newest rows of sources have otherwise than ``schema=`` says, by a sample, for ``holdfast plan``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pydantic_core import from_json

from holdfast.connectors.files.source.sampling import newest_lines
from holdfast.connectors.files.source.spec import FilesSourceSpec
from holdfast.connectors.formats.access import Undecodable
from holdfast.connectors.formats.json_lines import JsonParser
from holdfast.connectors.formats.json_members import names_in, rest_of
from holdfast.connectors.formats.texts import Sieve
from holdfast.connectors.reading import row_batches
from holdfast.connectors.reading.wrapped import innermost_spec
from holdfast.errors import HoldfastError
from holdfast.graph.graph import Graph
from holdfast.ports import RESCUE_COLUMN
from holdfast.types.inferred import declaration_of

_ROWS_MAX = 1000
_WORDS = {"ignore": "left out", "fail": "a bad row each", "rescue": "rescued", "add": "the run adds it"}


@dataclass(frozen=True)
class SourceDrift:
    """What a sample of one source has otherwise than its schema.

    Parameters
    ----------
    source : str
        Its name.
    place : str
        Where the sample is from.
    rows : int
        Rows in it.
    on_new : str
        What becomes of members that are no column.
    rejects : bool
        Whether a bad row is rejected; else it stops the run.
    members : mapping of str to int
        Member that is no column -> how many rows have it; ``name.*`` of what is within a column.
    types : mapping of str to str
        Of these members, how each would be declared; not of those that a column has but for their case.
    absent : tuple of str
        Columns that no row has.
    bad : mapping of str to int
        Why rows are bad -> how many, values left out.
    problem : str
        Why there is no sample; empty where there is one.
    """

    source: str
    place: str = ""
    rows: int = 0
    on_new: str = "ignore"
    rejects: bool = False
    members: Mapping[str, int] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    bad: Mapping[str, int] = field(default_factory=dict)
    problem: str = ""

    @property
    def is_any(self) -> bool:
        """Whether there is something to say."""
        return bool(self.members or self.absent or self.bad or self.problem)


def drifts(pipeline: Graph) -> list[SourceDrift]:
    """Look at the newest file of each source of JSON files; return what differs.  Changes nothing."""
    found = []
    for node in pipeline.sources:
        spec = innermost_spec(node.source_spec)
        if isinstance(spec, FilesSourceSpec) and spec.layout.format == "json":
            found.append(_of_files(node.name, spec))
    return [each for each in found if each is not None and each.is_any]


def _of_files(name: str, spec: FilesSourceSpec) -> SourceDrift | None:
    try:
        sample = newest_lines(spec)
    except (HoldfastError, Undecodable, OSError) as error:
        return SourceDrift(name, problem=str(error).partition("\n")[0])
    if sample is None:
        return None
    beside = {*spec.partition_by, *([RESCUE_COLUMN] if spec.layout.on_new == "rescue" else [])}
    schema = pa.schema([column for column in spec.schema if column.name not in beside])
    parser = JsonParser(schema, spec.layout.encoding)
    records = parser.records(sample.data)
    places = list(zip(records.starts.tolist(), records.ends.tolist(), strict=True))[:_ROWS_MAX]
    lines = [sample.data[start:end] for start, end in places]
    problems = {at: why for at, why in records.problems.items() if at < len(lines)}
    return drift_of(
        SourceDrift(name, sample.name, len(lines), spec.layout.on_new, spec.rejects), lines, schema, problems
    )


def drift_of(
    sample: SourceDrift, lines: Sequence[bytes], schema: pa.Schema, problems: Mapping[int, str] | None = None
) -> SourceDrift:
    """Return what lines of JSON have otherwise than a schema.

    Examples
    --------
    >>> found = drift_of(SourceDrift("rides"), [b'{"id": 1, "tip": 2.5}'], pa.schema([("id", pa.int64())]))
    >>> found.members, found.types
    ({'tip': 1}, {'tip': 'tip DOUBLE'})
    """
    reasons = Sieve(JsonParser(schema)).sifted(lines, problems or {})[1] if lines else {}
    good = [line for at, line in enumerate(lines) if at not in reasons]
    rest = pa.array([text for line in good for text in _rest(line, schema)], pa.string())
    members = dict(names_in(rest.drop_null(), schema.names))
    objects = [_object(line) for line in lines]
    has = {name for each in objects for name in each}
    taken = {name.lower() for name in schema.names}
    new = [name for name in members if name.lower() not in taken and name in has]
    return SourceDrift(
        sample.source,
        sample.place,
        len(lines),
        sample.on_new,
        sample.rejects,
        members,
        {name: declaration_of(name, [each.get(name) for each in objects]) for name in new},
        tuple(name for name in schema.names if name not in has) if lines else (),
        row_batches.counted(pa.array(list(reasons.values()), pa.string())) if reasons else {},
    )


def _rest(line: bytes, schema: pa.Schema) -> list[str | None]:
    try:
        return rest_of([line], schema)
    except ValueError:
        return []


def _object(line: bytes) -> dict[str, Any]:
    try:
        found = from_json(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def drift_lines(found: Sequence[SourceDrift]) -> Iterator[str]:
    """Say it to people, with what to do.

    Examples
    --------
    >>> of = SourceDrift("rides", "7.json", 90, members={"tip": 12}, types={"tip": "tip BIGINT"}, absent=("km",))
    >>> for line in drift_lines([of]): print(line)
    ~ source rides: 12 of 90 rows of 7.json have the member 'tip', which is no column (left out); add: tip BIGINT
    ~ source rides: no row of 90 of 7.json has the column 'km'; correct its name, or leave it out of schema=
    """
    for each in found:
        source, of = f"source {each.source}", f"{each.rows:,} rows of {each.place}"
        if each.problem:
            yield f"  {source}: no sample of its rows: {each.problem}"
        for name, count in each.members.items():
            becomes = _WORDS[each.on_new]
            declared = f"add: {each.types[name]}" if name in each.types else "correct the name, or add it to its STRUCT"
            yield f"~ {source}: {count:,} of {of} have the member {name!r}, which is no column ({becomes}); {declared}"
        for name in each.absent:
            no = f"no row of {each.rows:,} of {each.place}"
            yield f"~ {source}: {no} has the column {name!r}; correct its name, or leave it out of schema="
        for why, count in each.bad.items():
            becomes = "would be rejected" if each.rejects else "would stop the run"
            yield f"! {source}: {count:,} of {of} {becomes}: {why}; correct schema=, or who writes them"
