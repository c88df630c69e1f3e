"""The rows of a segments sink at one entry of its manifest: in sealed files, in the journal, in files of others."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from holdfast.connectors.kit.compared_columns import FoundRows
from holdfast.connectors.kit.files.content import FileFormat, FilesContent
from holdfast.connectors.kit.files.own_files import visible_paths
from holdfast.connectors.kit.files.views import ATTEMPTS, changing, linked, other_tags, tag_in, view_directory
from holdfast.connectors.segments.dataset import growing_rows, place_of
from holdfast.connectors.segments.holdings import Holdings
from holdfast.connectors.segments.journal import PiecesReader
from holdfast.connectors.segments.manifest import SegmentsManifest
from holdfast.connectors.segments.places import Places
from holdfast.errors import Unavailable
from holdfast.ports import Held
from holdfast.store import durable

JOURNAL = ".rows"
"""How the names of journal files end."""


@dataclass(frozen=True)
class SegmentsView:
    """The files of one moment.

    Parameters
    ----------
    held : Held
        What the manifest says.
    paths : mapping of str to str
        Path of each file, relative to the sink's directory, and where it is read.
    sealed : mapping of str to frozenset of str
        By path of a journal file: partitions whose rows in it are in sealed files.
    """

    held: Held
    paths: Mapping[str, str]
    sealed: Mapping[str, frozenset[str]]


@contextmanager
def opened(places: Places, format: FileFormat) -> Iterator[FilesContent]:
    """Open a view of the rows.

    Raises
    ------
    Unavailable
        If rows of a lost journal are still to come, or files are gone before they can be linked.
    """
    with view_directory(places.own) as place:
        for _ in range(ATTEMPTS):
            view = _viewed(places, place)
            if view is not None:
                yield FilesContent(format, view.paths, view.held, _Reading(format, view.sealed))
                return
        raise changing(places.directory)


@dataclass(frozen=True)
class _Reading:
    """Reads a file of a view."""

    format: FileFormat
    sealed: Mapping[str, frozenset[str]]

    def __call__(self, path: str, place: str) -> Iterator[FoundRows]:
        if path not in self.sealed:
            yield from self.format.read(path, place)
            return
        schema = self.format.schema
        known: dict[str, dict[str, Any]] = {}
        for batch in growing_rows(PiecesReader(place), self.sealed[path], schema, known):
            yield FoundRows.of(batch, schema, {})


def _viewed(places: Places, place: str) -> SegmentsView | None:
    manifest = SegmentsManifest(places.manifest)
    with durable.explained(f"reading {places.directory}"):
        others = other_tags(places.directory, places.own)
        # Before the manifest: whatever a run makes visible, an entry has named before.
        seen = [path for path in visible_paths(places.directory) if path.endswith(".parquet")]
        try:
            holdings = manifest.holdings()
            segments = list(manifest.sealed(holdings))
        except FileNotFoundError:
            return None
        paths: dict[str, str] = {}
        sealed: dict[str, frozenset[str]] = {}
        for segment in segments:
            try:
                paths[segment.path] = linked(place_of(places.directory, segment), place)
            except FileNotFoundError:
                if manifest.last().number != holdings.last.number:
                    return None  # joined with others since; else somebody has removed it
        above = os.path.relpath(places.journal, places.directory)
        for name, gone in growing_files(holdings):
            path = os.path.join(above, name)
            try:
                paths[path] = linked(places.path(path), place)
            except FileNotFoundError as error:
                if manifest.last().number != holdings.last.number:
                    return None
                raise lost(places, error.filename) from error
            sealed[path] = gone
        if holdings.refill is not None:
            raise lost(places, "a part of it")
        known = {segment.path for segment in segments} | {*holdings.last.removed}
        for path in seen:
            if path not in known and tag_in(path) not in others:
                try:
                    paths[path] = linked(places.path(path), place)
                except FileNotFoundError:
                    continue
    return SegmentsView(holdings.held(), paths, sealed)


def growing_files(holdings: Holdings) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield the journal's files, each with the partitions whose rows in it are in sealed files."""
    for file in holdings.files.values():
        gone = (partition for partition, epoch in holdings.sealed_through.items() if epoch >= file.epoch)
        yield file.name, frozenset(gone)


def lost(places: Places, what: object) -> Unavailable:
    """Return the error of a journal that is not whole: positions do not say which rows are there."""
    return Unavailable(
        f"The journal in {places.journal} is not whole: {what} is gone, and its rows come again in the next run.",
        why="until they have come, some partitions hold more than others.",
        do="start the pipeline, and compare when it has caught up.",
        participant=places.directory,
    )
