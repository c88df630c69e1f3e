"""What the positions of a sink on a file system mean: a sequence of small objects for each source.

They are durable before the log entry of the epoch that needs them first.  More than is needed does no harm: an
explanation was durable in the checkpoint before the epoch was planned.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from holdfast.ports import Explanation, Publication
from holdfast.sinks.explained import differing, lacking, needed
from holdfast.store import durable
from holdfast.store.increments import Increments, last_number

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

    def held(self) -> dict[str, int]:
        """Return source -> highest number."""
        return {source: last_number(os.path.join(self._directory, source)) for source in self._sources()}

    def take(self, publications: Sequence[Publication]) -> None:
        """Keep what these epochs explain and the sink lacks.

        Raises
        ------
        Diverged
            If another run has meanwhile kept something else under one of these numbers.
        """
        if not needed(publications):
            return
        texts = {(each.source, each.number): each.text for of in publications for each in of.record.explanations}
        for source in dict.fromkeys(source for source, _ in texts):
            self._read_on(self._sequence(source), source, texts)
        held = {source: sequence.next - 1 for source, sequence in self._sequences.items()}
        for each in lacking(publications, held, self._node):
            sequence = self._sequence(each.source)
            while sequence.next <= each.number and not sequence.put(each.text.encode()):
                self._read_on(sequence, each.source, texts)
            sequence.merge()

    def _read_on(self, sequence: Increments, source: str, texts: Mapping[tuple[str, int], str]) -> None:
        for number, line in sequence.read_on():
            ours = texts.get((source, number))
            if ours is not None and ours != line.decode():
                raise differing(source, number, (self._node, line.decode()), ("this run", ours))

    def all(self) -> list[Explanation]:
        """Return everything that is kept."""
        return [
            Explanation(source, number, line.decode())
            for source in self._sources()
            for number, line in Increments(os.path.join(self._directory, source), _WHAT, is_read_only=True).read_on()
        ]

    def _sources(self) -> list[str]:
        with durable.explained(f"reading {self._directory}"):
            return sorted(os.listdir(self._directory)) if os.path.isdir(self._directory) else []

    def _sequence(self, source: str) -> Increments:
        if source not in self._sequences:
            with durable.explained(f"creating {self._directory}"):
                durable.make_directory(self._directory)
            directory = os.path.join(self._directory, source)
            self._sequences[source] = Increments(directory, _WHAT, read_up_to=last_number(directory))
        return self._sequences[source]
