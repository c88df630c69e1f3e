"""The rows of blocks with their numbers: of Parquet in the file, of texts in the block (design/0022).

Small texts are parsed together, as they are without numbers: then each has as many rows as it has records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa

from holdfast.connectors.files.source.discovery import Place
from holdfast.connectors.files.source.layout import Layout
from holdfast.connectors.files.source.log import Block
from holdfast.connectors.formats import parquet
from holdfast.connectors.formats.access import FilePart
from holdfast.connectors.formats.blocks import RowRules, Text
from holdfast.connectors.formats.texts import read_texts
from holdfast.connectors.reading.identified import ROWS_MAX, KnownPlace, Numbered, PlaceRun, numbered

_SMALL = 1 << 18
_TOGETHER = 1 << 23
"""Bytes of a text that is parsed with others, and of all of these."""


def read_numbered(parts: Sequence[FilePart], where: Place, layout: Layout, rows: RowRules) -> Iterator[Numbered]:
    """Yield the rows of some blocks, in order, with their numbers.

    Parameters
    ----------
    parts : sequence of FilePart
        The blocks.
    where : Place
        Where the files are: their names are relative to it.
    layout : Layout
        Their format.
    rows : RowRules
        What becomes of their records.
    """
    if layout.format == "parquet":
        for part in parts:
            batches = parquet.read(part, rows, longest=layout.max_record_size)
            yield from _following(where.name(part.path), part.start, batches)
        return
    for group in _groups(parts):
        made = _together(group, where, layout, rows) if len(group) > 1 else None
        if made is not None:
            yield made
            continue
        for part in group:
            yield from _following(_place(part, where), 0, read_texts(layout.texts((part,), rows), rows))


def one_row(part: FilePart, where: Place, layout: Layout, batch: pa.RecordBatch) -> Numbered:
    """Return the only row that is made of a part, with its number."""
    is_parquet = layout.format == "parquet"
    return numbered(where.name(part.path), part.start, batch) if is_parquet else numbered(_place(part, where), 0, batch)


def places_of(
    blocks: Sequence[Block], ordinals: Iterable[int], layout: Layout, segment_of: Callable[[str], str]
) -> Iterator[KnownPlace]:
    """Yield the places of some blocks of the log, by their ordinals."""
    for position in ordinals:
        block = blocks[position]
        segment = segment_of(block.name)
        if layout.format == "parquet":
            end = block.end if block.end >= 0 else ROWS_MAX
            yield KnownPlace(block.name, block.start, end, segment, position, block.name, block.since, block.before)
        else:
            shown = f"{block.name}, the block that begins at byte {block.start}"
            place = f"{block.name}@{block.start}"
            yield KnownPlace(place, 0, ROWS_MAX, segment, position, shown, block.since, block.before)


def _groups(parts: Sequence[FilePart]) -> Iterator[list[FilePart]]:
    """Yield neighbouring parts that are read together; one that is not small, or may grow when read, is alone."""
    group: list[FilePart] = []
    size = 0
    for part in parts:
        is_small = part.size <= _SMALL and not part.is_compressed
        if group and (not is_small or size + part.size > _TOGETHER):
            yield group
            group, size = [], 0
        group.append(part)
        size += part.size if is_small else _TOGETHER
    if group:
        yield group


def _together(parts: Sequence[FilePart], where: Place, layout: Layout, rows: RowRules) -> Numbered | None:
    """Return the rows of small texts; None where they must be read one by one to know which row is whose."""
    texts = list(layout.texts(parts, rows))
    plain = [text for text in texts if isinstance(text, Text)]
    if len(plain) < len(texts) or len({text.part for text in plain}) < len(plain):
        return None
    counts = [len(text.parser.records(text.data)[0]) if text.data else 0 for text in plain]
    table = pa.Table.from_batches(read_texts(plain, rows), rows.read_schema)
    if not table.num_rows or table.num_rows != sum(counts):
        return None
    runs = [PlaceRun.of(_place(text.part, where), 0, count) for text, count in zip(plain, counts, strict=True) if count]
    (batch,) = table.combine_chunks().to_batches()
    return Numbered(tuple(runs), batch)


def _following(place: str, first: int, batches: Iterator[pa.RecordBatch]) -> Iterator[Numbered]:
    for batch in batches:
        yield numbered(place, first, batch)
        first += batch.num_rows


def _place(part: FilePart, where: Place) -> str:
    return f"{where.name(part.path)}@{part.start}"
