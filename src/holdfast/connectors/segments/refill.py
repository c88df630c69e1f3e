"""Rows of a lost journal that come again: what sealed files have of them is not taken."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from holdfast.connectors.kit.expected import went_back
from holdfast.connectors.segments.entries import JournalFile
from holdfast.connectors.segments.holdings import Holdings
from holdfast.connectors.segments.journal import JournalName
from holdfast.connectors.segments.places import PartitionRows
from holdfast.ports import Publication
from holdfast.positions import covers_all

log = logging.getLogger("holdfast.connectors.segments")


def is_journal_lost(sink: str, holdings: Holdings, there: Iterable[JournalName]) -> bool:
    """Return whether files of the journal are gone: then none of it counts."""
    lost = holdings.missing({each.name for each in there})
    if lost:
        log.error(
            "sink %s: %d files of its journal are gone, %s first: what grew in %d segments is read again",
            sink,
            len(lost),
            lost[0],
            len(holdings.growing),
        )
    return bool(lost)


def skips(
    sink: str,
    pipeline: str,
    holdings: Holdings,
    new: Sequence[Publication],
    files: list[JournalFile],
    partitions: list[PartitionRows],
) -> dict[str, int]:
    """Return the partitions whose rows sealed files have from before the journal was lost; take them off files.

    Parameters
    ----------
    sink, pipeline : str
        Identity, for errors.
    holdings : Holdings
        What is held before the epochs.
    new : sequence of Publication
        The epochs.
    files, partitions : list
        Their files, and the rows of each partition in these; changed.

    Raises
    ------
    Diverged
        If sealed files hold a part of an epoch.
    """
    refill = holdings.refill
    found: dict[str, int] = {}
    if refill is None:
        return found
    ends = {each.record.epoch: each.record.positions for each in new}
    starts = dict(zip(ends, [holdings.last.positions, *ends.values()], strict=False))
    for place in reversed(range(len(files))):
        start, end = starts[files[place].epoch], ends[files[place].epoch]
        held: list[str] = []
        for partition in partitions[place].partitions.to_pylist():
            until = refill.segments.get(partition, refill.positions)
            if covers_all(until, end):
                held.append(partition)
                found[partition] = max(files[place].epoch, found.get(partition, 0))
            elif not covers_all(start, until):
                raise went_back(
                    f"sink {sink!r} holds a part of epoch {files[place].epoch} in sealed files, of "
                    f"{partition or 'its directory'}: its journal was lost, and the epoch does not end where "
                    "these do.",
                    pipeline=pipeline,
                    participant=sink,
                    epoch=files[place].epoch,
                )
        partitions[place] = partitions[place].without(held)
        if not partitions[place]:
            del files[place], partitions[place]  # swept by name
    return found
