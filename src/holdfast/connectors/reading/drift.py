"""What lines of JSON have otherwise than a schema: found by what reads rows in a run, for a look before a start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pydantic_core import from_json

from holdfast.connectors.formats.json_lines import JsonParser
from holdfast.connectors.formats.json_members import names_in, rest_of
from holdfast.connectors.formats.texts import Sieve
from holdfast.connectors.reading import row_batches
from holdfast.errors import HoldfastError
from holdfast.ports import RESCUE_COLUMN, SourceDrift
from holdfast.types.inferred import declaration_of


def declared_columns(rows: pa.Schema, on_new: str) -> pa.Schema:
    """Return the columns of rows without the one that members are rescued in."""
    return pa.schema([column for column in rows if on_new != "rescue" or column.name != RESCUE_COLUMN])


def problem_of(error: HoldfastError, name: str) -> str:
    """Return in one line why a source has no sample: what the error says, and why."""
    text = " ".join(each for each in (error.what, error.why) if each)
    return " ".join(text.removeprefix(f"source {name!r}: ").split())


def drift_of(
    sample: SourceDrift, lines: Sequence[bytes], schema: pa.Schema, problems: Mapping[int, str] | None = None
) -> SourceDrift:
    """Return what lines of JSON have otherwise than a schema.

    Parameters
    ----------
    sample : SourceDrift
        Where they are from, and what the source does with bad rows and with members that are no column.
    lines : sequence of bytes
        Each an object, or a bad row.
    schema : pyarrow.Schema
        The columns.
    problems : mapping of int to str, optional
        Why some are bad rows, as far as that is known.

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
    objects = [found for line in lines if (found := _object(line)) is not None]
    has = {name for each in objects for name in each}
    taken = {name.lower() for name in schema.names}
    new = [name for name in members if name.lower() not in taken and name in has]
    return replace(
        sample,
        rows=len(lines),
        members=members,
        types={name: declaration_of(name, [each.get(name) for each in objects]) for name in new},
        absent=tuple(name for name in schema.names if name not in has) if objects else (),
        bad=row_batches.counted(pa.array(list(reasons.values()), pa.string())) if reasons else {},
    )


def _rest(line: bytes, schema: pa.Schema) -> list[str | None]:
    try:
        return rest_of([line], schema)
    except ValueError:
        return []


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        found = from_json(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
