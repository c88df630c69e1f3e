"""What is posted: rows as JSON, cut into requests, each with a key that is made of the ids of its rows."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.kit import json_lines
from holdfast.errors import BadRow
from holdfast.types.units import check_destinations

Format = Literal["json", "lines"]
FORMATS: tuple[Format, ...] = ("json", "lines")

_IN_HEADER = re.compile(r"[\x21-\x24\x26-\x7e](?:[\x20-\x24\x26-\x7e]*[\x21-\x24\x26-\x7e])?")
"""What stands in a header as it is; anything else is percent-encoded, and so is a percent sign: keys are distinct."""

KEY_BYTES_MAX = 4_000
"""Servers take headers of 8 KB in all, many of them."""
_TYPES = {"json": "application/json", "lines": "application/x-ndjson"}


@dataclass(frozen=True)
class Request:
    """One request: its key, its body, and how many rows that has."""

    key: str
    body: bytes
    row_count: int


@dataclass(frozen=True)
class Bodies:
    """How rows become requests.

    Parameters
    ----------
    id : str
        The column that identifies a row.
    batch_rows : int
        Rows of a request.
    format : {"json", "lines"}
        An object (of one row) or an array of objects; or an object in each line.
    """

    id: str
    batch_rows: int = 1
    format: Format = "json"

    @property
    def content_type(self) -> str:
        """What the server is told of the body."""
        return _TYPES[self.format]

    def check(self, node: str, rows: pa.Table) -> None:
        """Raise :class:`BadRow` if a row cannot be sent."""
        if nulls := rows.column(self.id).null_count:
            raise BadRow(
                f"{node}: {nulls} rows have a null in the id column {self.id!r}.",
                why="the server recognises a row that is sent again by its id.",
                do=f'filter such rows out before the sink: hf.filter("{self.id} is not null").',
            )
        for batch in rows.to_batches():
            json_lines.check(batch)
            if self.batch_rows == 1:
                ids = batch.column(self.id).cast(pa.string())
                do = "filter such rows out before the sink, or give rows another id: hf.row_id()."
                check_destinations(f"{node}, column {self.id!r}", "key", ids, _refusal, do)

    def requests(self, rows: pa.Table) -> Iterator[Request]:
        """Yield the requests of an epoch.

        Several rows of a request are neighbours in the order of ids: so it is the same request whenever the epoch is
        sent, in whatever order its rows come.
        """
        if self.batch_rows > 1:
            rows = rows.take(pc.sort_indices(rows.column(self.id).cast(pa.string())))
        for batch in rows.to_batches(max_chunksize=max(1, 8_192 // self.batch_rows) * self.batch_rows):
            ids = batch.column(self.id).cast(pa.string()).to_pylist()
            lines = json_lines.encode(batch).split(b"\n")[:-1]
            for low in range(0, len(ids), self.batch_rows):
                several = slice(low, low + self.batch_rows)
                yield Request(key_of(ids[several]), self._body(lines[several]), len(ids[several]))

    def _body(self, lines: list[bytes]) -> bytes:
        if self.format == "lines":
            return b"\n".join(lines) + b"\n"
        return lines[0] if self.batch_rows == 1 else b"[" + b",".join(lines) + b"]"


def key_of(ids: list[str]) -> str:
    """Return the key of a request: the id of its row, or a UUID of several.

    Examples
    --------
    >>> key_of(["018cc251-f47b-7c14-8ea7-9285b7565008"]), key_of(["a", "b"]), key_of(["caf\u00e9"])
    ('018cc251-f47b-7c14-8ea7-9285b7565008', '35364c85-8d7b-8928-97d5-2325e224f9a6', 'caf%C3%A9')
    """
    if len(ids) == 1:
        return ids[0] if _IN_HEADER.fullmatch(ids[0]) else quote(ids[0], safe="")
    digest = hashlib.blake2b(digest_size=16)
    for each in ids:
        text = each.encode()
        digest.update(len(text).to_bytes(4, "little") + text)
    bits = bytearray(digest.digest())
    bits[6], bits[8] = bits[6] & 0x0F | 0x80, bits[8] & 0x3F | 0x80  # RFC 9562, version 8
    return str(uuid.UUID(bytes=bytes(bits)))


def _refusal(id: str) -> str | None:
    if 0 < len(key_of([id])) <= KEY_BYTES_MAX:
        return None
    return f"it is the key of the row's request, a header: 1 to {KEY_BYTES_MAX} bytes, percent-encoded"
