"""Payloads that are JSON objects, as rows: joined as lines, and parsed by the decoder that files are read with.

One message is one row, so there are as many rows as messages, in their order; a payload that is none, and the null
payload of a tombstone, is a bad row.

Messages as Arrow: their columns in ``format="bytes"``, and what of a message stands beside those of a payload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import methodcaller

import pyarrow as pa

from holdfast.connectors.formats import json_new_columns
from holdfast.connectors.formats.blocks import Offsets, Parser, RowRules, Unreadable, cut_short
from holdfast.connectors.formats.texts import PARSED_TOGETHER, RAW_SHOWN, Sieve, mixed
from holdfast.connectors.kafka.fields import FIELDS, HEADERS, int64s
from holdfast.connectors.kafka.native.clients import MessagesRead
from holdfast.errors import BadRow
from holdfast.types.conversion import END_SECOND

PayloadReader = Callable[[Sequence["bytes | None"], RowRules, Callable[[int], str]], pa.RecordBatch]
"""Payloads, the result of rows, and index -> where the message is; returns a row for each payload."""

TOMBSTONE = "it has no value (a tombstone), and columns are wanted"
EMPTY = "it is empty"
_NO_OBJECT = "it is not a JSON object"
_SPACE = b" \t\r\n"


def json_rows(
    parser: Parser, payloads: Sequence[bytes | None], rows: RowRules, place: Callable[[int], str]
) -> pa.RecordBatch:
    """Return a row for each payload.

    Parameters
    ----------
    parser : Parser
        Reads objects, one a line.
    payloads : sequence of bytes or None
        Of messages that follow each other.
    rows : RowRules
        The result of rows.
    place : callable
        Index -> where the message is, for people.

    Raises
    ------
    BadRow
        If one cannot be read and is not to be rejected.
    """
    try:
        text = b"\n".join(payloads)  # type: ignore[arg-type]
        batches = parser.parse(text + b"\n") if text.count(b"\n") == len(payloads) - 1 else []
        if sum(batch.num_rows for batch in batches) == len(payloads):
            return one_batch(list(rows.good(batches)), rows)
    except (TypeError, Unreadable):
        pass  # a tombstone, or a bad one: which, the exact way tells
    return one_batch(list(_apart(payloads, parser, rows, place)), rows)


def _apart(
    payloads: Sequence[bytes | None], parser: Parser, rows: RowRules, place: Callable[[int], str]
) -> Iterator[pa.RecordBatch]:
    sieve = Sieve(parser)
    for begin in range(0, len(payloads), PARSED_TOGETHER):
        contents, problems = as_lines(payloads[begin : begin + PARSED_TOGETHER])
        batches, reasons = sieve.sifted(contents, problems)

        def places(some: Offsets, begin: int = begin) -> pa.Array:
            return pa.array([place(begin + at) for at in some.tolist()], pa.string())

        new = json_new_columns.columns_to_add(contents, reasons, rows)
        if not reasons:
            yield from rows.good(batches)
        elif new is not None or not rows.rejects:
            at = min(reasons) if new is None else new.record
            error = _bad_row(place(begin + at), reasons[at], contents[at])
            raise error if new is None else new.note_in(error)
        else:
            yield from mixed(contents, places, batches, reasons, rows)


def as_lines(payloads: Sequence[bytes | None]) -> tuple[list[bytes], dict[int, str]]:
    """Return payloads as one line each, and what is wrong with those that are no line of an object."""
    contents, problems = [], {}
    for at, payload in enumerate(payloads):
        # A newline between members is as good as a carriage return, and inside a text as forbidden.
        content = (payload or b"").strip(_SPACE).replace(b"\n", b"\r")
        if not content:
            problems[at] = TOMBSTONE if payload is None else EMPTY
        elif not (content.startswith(b"{") and content.endswith(b"}")):
            problems[at] = _NO_OBJECT
        contents.append(content)
    return contents, problems


def one_batch(batches: list[pa.RecordBatch], rows: RowRules) -> pa.RecordBatch:
    """Return rows as one batch."""
    if len(batches) == 1:
        return batches[0]
    (batch,) = pa.Table.from_batches(batches, rows.read_schema).combine_chunks().to_batches()
    return batch


def _bad_row(place: str, reason: str, content: bytes) -> BadRow:
    return BadRow(
        f"{place}, cannot be read: {reason}.",
        why=f"the value is {cut_short(content.decode('utf-8', errors='replace'), RAW_SHOWN)!r}.",
        do='correct schema=, or write on_bad_row="reject" where the source is built: the good rows go on, and the '
        "value itself can be produced again, corrected.",
        participant=place,
    )


def column(name: str, topic: str, number: int, messages: MessagesRead) -> pa.Array:
    """Return one of :data:`~holdfast.connectors.kafka.fields.FIELDS` of messages of a partition."""
    if name == "topic":
        return pa.repeat(pa.scalar(topic, pa.string()), len(messages))
    if name == "partition":
        return pa.repeat(pa.scalar(number, pa.int32()), len(messages))
    return _READERS[name](messages)


def _offsets(messages: MessagesRead) -> pa.Array:
    return int64s(messages.offsets())


def _timestamps(messages: MessagesRead) -> pa.Array:
    times = messages.timestamps()
    is_none = (times < 0) | (times >= END_SECOND * 1000)  # a producer writes any number
    return int64s(times, is_none).cast(pa.timestamp("ms", tz="UTC")).cast(FIELDS["timestamp"].type)


def _headers(messages: MessagesRead) -> pa.Array:
    given = messages.headers()
    rows = [None if each is None else [{"key": key, "value": value} for key, value in each] for each in given]
    return pa.array(rows, HEADERS)


_READERS: Mapping[str, Callable[[MessagesRead], pa.Array]] = {
    "key": methodcaller("keys"),
    "value": methodcaller("values"),
    "offset": _offsets,
    "timestamp": _timestamps,
    "headers": _headers,
}
