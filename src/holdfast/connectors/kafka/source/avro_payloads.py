"""Payloads that are Avro values with the id of their schema before them, as rows.

Messages of one schema are decoded together, however the schemas of a chunk alternate; the rows have the order of the
messages.  A payload that is no such value, and the null payload of a tombstone, is a bad row.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from holdfast.connectors.formats.blocks import Offsets, RowRules
from holdfast.connectors.formats.convert import forbidden_null, lacking
from holdfast.connectors.formats.texts import mixed
from holdfast.connectors.kafka.avro_reading import AvroDecoder, NotForColumns
from holdfast.connectors.kafka.avro_registry import MAGIC, PREFIX_BYTES, Schemas
from holdfast.connectors.kafka.source.payloads import EMPTY, TOMBSTONE, one_batch
from holdfast.errors import BadRow

MISFIT = " does not fit the columns: "
"""Of the reasons of bad rows those with this name fields and types, and no values."""

_NO_ID = "it does not begin with the id of a schema"
_SHOWN_BYTES = 40


class AvroReader:
    """Reads Avro values into columns.

    Parameters
    ----------
    schemas : Schemas
        Of the registry.
    wanted : pyarrow.Schema
        The columns.
    """

    def __init__(self, schemas: Schemas, wanted: pa.Schema) -> None:
        self._schemas = schemas
        self._wanted = wanted
        self._decoders: dict[int, AvroDecoder | str] = {}

    def rows(self, payloads: Sequence[bytes | None], rows: RowRules, place: Callable[[int], str]) -> pa.RecordBatch:
        """Return a row for each payload; parameters and errors as of ``payloads.json_rows``.

        Raises
        ------
        Unavailable
            If the registry does not answer.
        """
        in_order, reasons = self._sifted(payloads)
        if not reasons:
            return one_batch(list(rows.good(in_order)), rows)
        if not rows.rejects:
            at = min(reasons)
            raise _bad_row(place(at), reasons[at], payloads[at])

        def places(some: Offsets) -> pa.Array:
            return pa.array([place(at) for at in some.tolist()], pa.string())

        contents = [base64.b64encode(payload or b"") for payload in payloads]
        return one_batch(list(mixed(contents, places, in_order, reasons, rows)), rows)

    def reasons(self, payloads: Sequence[bytes | None]) -> dict[int, str]:
        """Return why some payloads are bad rows, by index; errors as of :meth:`rows`."""
        return self._sifted(payloads)[1]

    def fields(self, payload: bytes | None) -> Mapping[str, pa.DataType | None]:
        """Return what the schema of a good payload has: name -> type, None where Arrow has none."""
        number = _number(payload)
        decoder = "" if number is None else self._decoder(number)
        return {} if isinstance(decoder, str) else decoder.fields

    def _sifted(self, payloads: Sequence[bytes | None]) -> tuple[list[pa.RecordBatch], dict[int, str]]:
        """Return the rows of the good ones, in order, and why the others are bad, by index."""
        reasons, groups = _group(payloads)
        good: list[int] = []
        batches: list[pa.RecordBatch] = []
        for number, members in groups.items():
            columns, problems = self._columns(number, [payloads[at] or b"" for at in members])
            reasons.update((members[at], reason) for at, reason in problems.items())
            if len(problems) < len(members):
                good += [at for at in members if at not in reasons] if problems else members
                batches.append(pa.RecordBatch.from_arrays(columns, schema=_nullable(self._wanted)))
        return _order(batches, good), reasons

    def _columns(self, number: int, payloads: Sequence[bytes]) -> tuple[list[pa.Array], dict[int, str]]:
        """Return the columns of the good ones of some payloads of one schema, and why the others are bad."""
        decoder = self._decoder(number)
        if isinstance(decoder, str):
            return [], dict.fromkeys(range(len(payloads)), decoder)
        values = [payload[PREFIX_BYTES:] for payload in payloads]
        columns = decoder.columns(values)
        problems: dict[int, str] = {}
        if columns is None:
            columns, problems = decoder.columns_apart(values)
        return _without_nulls(columns, self._wanted, problems, len(payloads))

    def _decoder(self, number: int) -> AvroDecoder | str:
        """Return what reads a schema, or why nothing does."""
        if number not in self._decoders:
            schema = self._schemas.schema(number)
            if schema is None:
                return f"its schema {number} is not in the registry"
            try:
                self._decoders[number] = AvroDecoder(schema, self._wanted)
            except NotForColumns as error:
                self._decoders[number] = f"its schema {number}{MISFIT}{error}"
        return self._decoders[number]


def _group(payloads: Sequence[bytes | None]) -> tuple[dict[int, str], dict[int, list[int]]]:
    """Return what is known to be bad, by index, and of the others schema -> indices."""
    heads = {None if payload is None else payload[:PREFIX_BYTES] for payload in payloads}
    if len(heads) == 1 and (number := _number(next(iter(heads)))) is not None:
        return {}, {number: list(range(len(payloads)))}
    reasons: dict[int, str] = {}
    groups: dict[int, list[int]] = {}
    for at, payload in enumerate(payloads):
        number = _number(payload)
        if number is None:
            reasons[at] = TOMBSTONE if payload is None else _NO_ID if payload else EMPTY
        else:
            groups.setdefault(number, []).append(at)
    return reasons, groups


def _number(payload: bytes | None) -> int | None:
    if payload is None or len(payload) < PREFIX_BYTES or not payload.startswith(MAGIC):
        return None
    return int.from_bytes(payload[1:PREFIX_BYTES], "big")


def _without_nulls(
    columns: list[pa.Array], wanted: pa.Schema, problems: dict[int, str], count: int
) -> tuple[list[pa.Array], dict[int, str]]:
    """Take out rows with a null where the column is declared NOT NULL."""
    rows = [at for at in range(count) if at not in problems] if problems else range(count)
    refused: dict[int, str] = {}
    if _null_in(columns, wanted) is not None:
        for row, at in enumerate(rows):
            path = _null_in([column.slice(row, 1) for column in columns], wanted)
            if path is not None:
                refused[row] = problems[at] = f"{path!r} is declared NOT NULL and is null or missing"
    if refused:
        kept = pa.array([row for row in range(len(rows)) if row not in refused], pa.int64())
        columns = [column.take(kept) for column in columns]
    return columns, problems


def _null_in(columns: Sequence[pa.Array], wanted: pa.Schema) -> str | None:
    """Return a column, or a member of one, that has a null where none may be; or None."""
    paths = (forbidden_null(column, field) for field, column in zip(wanted, columns, strict=True))
    return next((path for path in paths if path is not None), None) or lacking(columns, wanted)


def _order(batches: list[pa.RecordBatch], places: list[int]) -> list[pa.RecordBatch]:
    """Return the rows of several schemas in the order of their messages."""
    if len(batches) < 2:
        return batches
    table = pa.Table.from_batches(batches).combine_chunks()
    return list(table.take(pa.array(np.argsort(np.array(places), kind="stable"))).combine_chunks().to_batches())


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True).remove_metadata() for field in schema])


def _bad_row(place: str, reason: str, content: bytes | None) -> BadRow:
    return BadRow(
        f"{place}, cannot be read: {reason}.",
        why=f"the value is {(content or b'')[:_SHOWN_BYTES]!r}{'...' if len(content or b'') > _SHOWN_BYTES else ''}.",
        do='correct schema= or registry=, or write on_bad_row="reject" where the source is built: the good rows go '
        "on, and the value itself can be produced again, corrected.",
        participant=place,
    )
