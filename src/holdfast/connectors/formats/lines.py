"""What the formats of lines (JSON, CSV) have in common: records, what parses them, and what happens to the rows.

Lines are read in two ways (:mod:`holdfast.connectors.formats.texts`).  The fast way parses many blocks at once with
Arrow
and counts: there must be as many rows as records.  Where it fails, the exact way separates the records and
finds the ones that are wrong.  Both ways give a good row the same values, so it does not matter which rows are next to
it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa

from holdfast.connectors.formats.access import FilePart
from holdfast.connectors.formats.blocks import Offsets
from holdfast.ports import REJECT_COLUMN, REJECT_TYPE

SHOWN = 80
"""Characters of a value that a reason shows: the row itself is kept completely."""

_SAID = 200
_ROW = re.compile(r"in row (\d+)|Row #(\d+)")


class Unreadable(ValueError):
    """A text holds at least one record that cannot be read; the message says why."""

    @property
    def row(self) -> int | None:
        """Index of the record that Arrow complains of, where it names one."""
        named = _ROW.search(str(self))
        if named is None:
            return None
        return int(named[1]) if named[1] else max(0, int(named[2]) - 1)


class Records(NamedTuple):
    """The records of a text.

    Parameters
    ----------
    starts, ends : numpy.ndarray
        Place of each record's content: no line end belongs to it.
    problems : dict
        Index of a record -> what is wrong with it, if known without parsing it.
    """

    starts: Offsets
    ends: Offsets
    problems: dict[int, str]


class Parser(Protocol):
    """Reads the records of one format (and, for CSV, of one header) with one schema."""

    def parse(self, data: bytes) -> list[pa.RecordBatch]:
        """Return the rows, one for each record.

        Raises
        ------
        Unreadable
            If some record cannot be read.
        """

    def joins(self, data: bytes) -> bool:
        """Whether the text may be parsed together with others of its kind."""

    def head(self, data: bytes, size: int) -> bytes:
        """Return the records that surely end within the first bytes of a text."""

    def records(self, data: bytes) -> Records:
        """Take the text apart into records; empty lines are none."""

    def judge(self, contents: Sequence[bytes], error: Unreadable | None = None) -> Mapping[int, str]:
        """Return why records surely cannot be read, by index; of the others nothing is said.

        Parameters
        ----------
        contents : sequence of bytes
            Records without a known problem.
        error : Unreadable, optional
            What Arrow said of them, or of the ones before: for what only a closer check can show.

        Notes
        -----
        A few microseconds a record at most.  Never wrong: a record that is judged is one that :meth:`parse` refuses
        alone.
        """

    def reason(self, record: bytes, error: Unreadable) -> str:
        """Say for people why one record cannot be read."""


@dataclass(frozen=True)
class Text:
    """Some records of a file, and what reads them.

    Parameters
    ----------
    part : FilePart
        Their origin.
    offset : int
        Offset of the first byte of ``data`` in the file, decompressed.
    line : int, optional
        Line of the first byte in the part, from 1, where it was counted.
    """

    part: FilePart
    offset: int
    data: bytes
    parser: Parser
    line: int | None = None


@dataclass(frozen=True)
class RefusedRecord:
    """A record, or a whole file, that is known to be bad before it is parsed.

    Parameters
    ----------
    line : int, optional
        In the part, from 1; 0 means the whole file.
    offset : int
        Where the record begins, when ``line`` is None.
    raw : bytes
        As much of it as is shown.
    """

    part: FilePart
    offset: int
    line: int | None
    reason: str
    raw: bytes


@dataclass(frozen=True)
class RowRules:
    """The result of rows: the schema that the source yields, and whether bad rows are rejected or fatal."""

    schema: pa.Schema
    rejects: bool

    @property
    def read_schema(self) -> pa.Schema:
        """The schema of the batches that are yielded."""
        fields = [field.remove_metadata() for field in self.schema]  # it says to parsers what may be null
        if not self.rejects:
            return pa.schema(fields)
        return pa.schema([*(field.with_nullable(True) for field in fields), pa.field(REJECT_COLUMN, REJECT_TYPE)])

    def good(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield good rows with the schema that is expected."""
        for batch in batches:
            columns = batch.columns
            if self.rejects:
                columns = [*columns, pa.nulls(batch.num_rows, REJECT_TYPE)]
            yield pa.RecordBatch.from_arrays(columns, schema=self.read_schema)

    def bad(self, reason: str, raw: str, position: str) -> pa.RecordBatch:
        """Return one rejected row."""
        return self.rejected(*(pa.array([text], pa.string()) for text in (reason, raw, position)))

    def rejected(self, reasons: pa.Array, raws: pa.Array, positions: pa.Array) -> pa.RecordBatch:
        """Return rejected rows."""
        reject = pa.StructArray.from_arrays([reasons, raws, positions], fields=list(REJECT_TYPE))
        columns = [*(pa.nulls(len(reasons), field.type) for field in self.schema), reject]
        return pa.RecordBatch.from_arrays(columns, schema=self.read_schema)


def cut_short(text: str, size: int = _SAID) -> str:
    """Return a foreign text, shortened for a reason or a message."""
    return text if len(text) <= size else text[: size - 3] + "..."


def too_long(longest: int) -> str:
    """Say why a record of more than ``longest`` bytes is refused."""
    return f"it is longer than max_record_size ({longest:,} bytes)"


def not_encoded(encoding: str) -> str:
    """Say why a record is refused whose bytes are not of its file's encoding."""
    return f"it is not {encoding}"


def is_utf8(data: bytes) -> bool:
    """Whether a text is UTF-8."""
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
