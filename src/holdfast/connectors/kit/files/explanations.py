"""What the positions of a sink on a file system mean: a sequence of small objects for each source.

They are copies of what log entries say, which one writer creates and no run that was replaced: so whoever copies, the
same number says the same.  How many explanations there are says the last entry, and never a listing: what lies beyond
is no sink's word.

Entries of earlier versions say nothing of it, of any source.  Where such an entry is the last one that tells of a
source, the copies beside the log count, as they did then.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from holdfast.connectors.kit.explained import differing
from holdfast.errors import Corrupt, Unavailable
from holdfast.ports import Explanation, Held
from holdfast.store import durable
from holdfast.store.increments import Increments

log = logging.getLogger("holdfast.connectors")

_WHAT = "what positions mean,"


class FileExplanations:
    """The sequences of one sink.

    Parameters
    ----------
    directory : str
        Holds one directory for each source; created when it is first needed.
    node : str
        ``sink 'name'``, for errors.
    """

    def __init__(self, directory: str, node: str) -> None:
        self._directory = directory
        self._node = node
        self._sequences: dict[str, Increments] = {}
        self._untold: dict[str, int] | None = None

    def keep(self, explanations: Sequence[Explanation], *, is_new: bool = False) -> None:
        """Copy what a log entry says; again is safe.

        Parameters
        ----------
        explanations : sequence of Explanation
            Of the last entry.
        is_new : bool
            Whether the entry has just been appended: what it says counts, and can be copied before the next one.

        Raises
        ------
        Unavailable
            If the file system does not take them, and the entry is not new.
        Diverged
            If another text is there under one of these numbers.
        """
        try:
            self._keep(explanations)
        except Unavailable as error:
            if not is_new:
                raise
            log.info("%s: what positions mean is copied later: %s", self._node, error.what)

    def _keep(self, explanations: Sequence[Explanation]) -> None:
        for each in explanations:
            sequence = self._sequence(each)
            while sequence.next <= each.number:
                if not sequence.put(each.text.encode()):
                    self._read_on(sequence, each)
            sequence.merge()

    def _read_on(self, sequence: Increments, ours: Explanation) -> None:
        for number, line in sequence.read_on():
            if number == ours.number and ours.text != line.decode():
                raise differing(ours.source, number, (self._node, line.decode()), ("its log", ours.text))

    def counted(self, held: Held) -> Mapping[str, int]:
        """Return source -> how many are kept: as the log says, or as are here of a source that it does not name.

        Parameters
        ----------
        held : Held
            What the last log entry says.  Where that holds no epoch, nothing is explained.
        """
        told = held.explained or {}
        if self._untold is None:  # once: from then on our own entries name what they explain
            with durable.explained(f"reading {self._directory}"):
                there = os.listdir(self._directory) if os.path.isdir(self._directory) else []
                self._untold = {source: sum(1 for _ in self._copies(source)) for source in there if source not in told}
        return self._untold | dict(told) if held.epoch else told

    def all(self, explained: Mapping[str, int], newest: Sequence[Explanation]) -> list[Explanation]:
        """Return everything that is kept.

        Parameters
        ----------
        explained : mapping of str to int
            Source -> how many, as :meth:`counted` says.
        newest : sequence of Explanation
            What that entry says, which may not be copied yet.

        Raises
        ------
        Corrupt
            If one is gone.
        """
        found: list[Explanation] = []
        for source, count in sorted(explained.items()):
            directory = os.path.join(self._directory, source)
            with durable.explained(f"reading {directory}"):
                texts = {number: line.decode() for number, line in islice(self._copies(source), count)}
            texts |= {one.number: one.text for one in newest if one.source == source}
            if gone := [number for number in range(1, count + 1) if number not in texts]:
                raise Corrupt(
                    f"{self._node}: explanation {gone[0]} of {count} of source {source!r} is missing in {directory}.",
                    why="the sink's log says that it was there: it was removed, or the disk lost it.",
                    do="restore the directory from a copy; without it, what the sink's positions mean is known to the "
                    "checkpoint alone.",
                    participant=self._node,
                )
            found += [Explanation(source, number, texts[number]) for number in range(1, count + 1)]
        return found

    def _copies(self, source: str) -> Iterator[tuple[int, bytes]]:
        return Increments(os.path.join(self._directory, source), _WHAT, is_read_only=True).read_on()

    def _sequence(self, first: Explanation) -> Increments:
        if first.source not in self._sequences:
            with durable.explained(f"creating {self._directory}"):
                durable.make_directory(self._directory)
            directory = os.path.join(self._directory, first.source)
            self._sequences[first.source] = Increments(directory, _WHAT, read_up_to=first.number - 1)
        return self._sequences[first.source]
