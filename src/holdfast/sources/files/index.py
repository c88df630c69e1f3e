"""What the time index decides of a file when it is logged: which of its blocks are read.

Decided once, and durable with the log: a replay, and a planner of another process, read the same blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.sources.files import times
from holdfast.sources.files.access import FilePart
from holdfast.sources.files.identity import FileIdentity
from holdfast.sources.files.log import LoggedFile
from holdfast.sources.files.times import TimeRange

if TYPE_CHECKING:
    from holdfast.sources.files.spec import FilesSourceSpec


class TimeIndex:
    """The time index of one source, in the process that plans.

    Parameters
    ----------
    spec : FilesSourceSpec
        The declaration, with the time from which rows are wanted.

    Notes
    -----
    Opens a file, to read its footer, only where a time is set and the format has footers.
    """

    def __init__(self, spec: FilesSourceSpec) -> None:
        self._spec = spec

    def divided(self, cut: LoggedFile, path: str, identity: FileIdentity) -> LoggedFile:
        """Return a file without the blocks of which every row is before the time from which rows are wanted.

        Parameters
        ----------
        cut : LoggedFile
            The file, cut.
        path : str
            Where it lies.
        identity : FileIdentity
            What it is compared with when it is opened.

        Raises
        ------
        Corrupt
            If it is another file by now.
        """
        since = self._spec.since
        if since is None or self._spec.timestamp is None:
            return cut
        ranges = self._ranges(cut, FilePart(path, cut.size, 0, -1, identity))
        known = zip(cut.blocks, ranges, strict=True)
        blocks = tuple(block._replace(times=of) for block, of in known if of is None or of.high >= since)
        return cut._replace(blocks=blocks, passed_over=len(cut.blocks) - len(blocks))

    def _ranges(self, cut: LoggedFile, whole: FilePart) -> list[TimeRange | None]:
        if self._spec.layout.format != "parquet" or not cut.blocks:
            return [None] * len(cut.blocks)
        column = self._spec.schema.field(str(self._spec.timestamp))
        return times.of_blocks(whole, column, [(block.start, block.end) for block in cut.blocks])
