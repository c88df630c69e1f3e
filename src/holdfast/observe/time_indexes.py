"""What the time index of files let nobody read, and what files still owe to a later run (design/0021)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.connectors.files.source.log import FileLog
from holdfast.errors import HoldfastError


@dataclass(frozen=True)
class TimeIndexReport:
    """The files of one source, by their times.

    Parameters
    ----------
    source : str
        Its name.
    files : int
        Files that it knows.
    passed_over : int
        Files that are skipped: every row of them is before the time at which the pipeline began.
    blocks_passed_over : int
        Blocks that are skipped for the same reason, those of skipped files included.
    owing : int
        Files with rows at or above the time at which a run ended: a later run reads them.
    """

    source: str
    files: int
    passed_over: int = 0
    blocks_passed_over: int = 0
    owing: int = 0


def time_indexes(checkpoint: Path) -> Iterator[TimeIndexReport]:
    """Yield the sources of a checkpoint whose log says anything about times.  Changes nothing."""
    for directory in sorted((checkpoint / "sources").glob("*/log")):
        try:
            log = FileLog(str(directory), is_read_only=True)
        except HoldfastError:
            continue  # for reading only; the next start says what is damaged
        owing = len({name for name, _, _ in log.owed})
        if log.passed_over.blocks or owing:
            skips = log.passed_over
            yield TimeIndexReport(directory.parent.name, len(log.names), skips.files, skips.blocks, owing)


def time_index_lines(reports: tuple[TimeIndexReport, ...]) -> Iterator[str]:
    """Say it to people.

    Examples
    --------
    >>> list(time_index_lines((TimeIndexReport("trips", 40, 12, 15, 3),)))
    ['time index  trips: 12 of 40 files passed over (blocks: 15); 3 have rows for a later run']
    """
    for each in reports:
        parts = []
        if each.blocks_passed_over:
            parts.append(f"{each.passed_over} of {each.files} files passed over (blocks: {each.blocks_passed_over})")
        if each.owing:
            parts.append(f"{each.owing} have rows for a later run")
        yield f"time index  {each.source}: {'; '.join(parts)}"
