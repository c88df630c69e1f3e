"""What positions mean, kept by sinks: which explanations one lacks, and when neighbours are merged (design/0018).

Invariant: for each source the numbers are dense from 1, and what a number says never changes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from holdfast.errors import Diverged, invariant
from holdfast.ports import EpochRecord, Explanation, Publication, PublishedEpoch
from holdfast.store.increments import MERGED_AT_A_TIME

EXPLANATIONS = "holdfast_positions"
"""Table of an SQL sink, beside the ledger: what the positions in it mean."""

RECENT_ENDS = ""
"""In that table, in the place of a source: the row with what the last epoch says of recent ends, which is replaced."""


ENDS = "@ends"
"""In that table, in the place of a source: the last epochs, a row each."""

ENDS_KEPT = 1000
"""How many: a row is replaced by that of so many epochs later."""


_OWN = (RECENT_ENDS, ENDS)


def end_row(record: EpochRecord, at_us: int) -> tuple[int, int, str]:
    """Return place, epoch and text of the row of a published epoch.

    Examples
    --------
    >>> end_row(EpochRecord("p", 1007, 2, {"a": {"log": 9}}), 1700)
    (7, 1007, '[2, {"a": {"log": 9}}, 1700]')
    """
    return record.epoch % ENDS_KEPT, record.epoch, json.dumps([record.generation, record.positions, at_us])


def ends_in(rows: Iterable[tuple[int, str]]) -> list[PublishedEpoch]:
    """Return what rows of (epoch, text) say, oldest first."""
    return [PublishedEpoch(epoch, *json.loads(text)) for epoch, text in sorted(rows)]


def lacking(publications: Iterable[Publication], held: Mapping[str, int], node: str) -> list[Explanation]:
    """Return the explanations of some epochs that a sink lacks, in order.

    Parameters
    ----------
    publications : iterable of Publication
        The epochs, ascending.
    held : mapping of str to int
        Source -> highest number that the sink keeps.
    node : str
        ``sink 'name'``, for errors.
    """
    reached, found = dict(held), []
    for publication in publications:
        record = publication.record
        for each in record.explanations:
            known = reached.get(each.source, 0)
            if each.number <= known:
                continue
            invariant(
                each.number == known + 1,
                f"{node} is to keep explanation {each.number} of source {each.source!r} after {known}.",
                why="a sink keeps all of them: a position may need any.",
                pipeline=record.pipeline,
                participant=node,
                epoch=record.epoch,
                generation=record.generation,
            )
            reached[each.source] = each.number
            found.append(each)
    return found


def explained_with(explained: Mapping[str, int], told: Iterable[Explanation]) -> dict[str, int]:
    """Return source -> how many explanations a sink keeps after it was told some.

    Examples
    --------
    >>> explained_with({"a": 2}, [Explanation("a", 3, "{}"), Explanation("b", 1, "{}")])
    {'a': 3, 'b': 1}
    """
    return {**explained, **{one.source: one.number for one in told}}


def merged_at(number: int) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of the neighbours that become one with a number, smaller ones first.

    Examples
    --------
    >>> list(merged_at(7)), list(merged_at(300)), list(merged_at(20_000))
    ([], [(201, 300)], [(19901, 20000), (10001, 20000)])
    """
    size = MERGED_AT_A_TIME
    while number % size == 0:
        yield number - size + 1, number
        size *= MERGED_AT_A_TIME


def joined(texts: Iterable[str]) -> str:
    """Return the text of several explanations."""
    return "\n".join(texts)


def parted(rows: Iterable[tuple[str, int, str]]) -> list[Explanation]:
    """Return the explanations of rows (source, first number, text); the sink's own rows are none."""
    return [
        Explanation(source, number, text)
        for source, first, several in rows
        if source not in _OWN
        for number, text in enumerate(several.split("\n"), first)
    ]


def numbers(rows: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return source -> highest number, of rows of both."""
    return {source: number for source, number in rows if source not in _OWN}


def needed(publications: Sequence[Publication]) -> bool:
    """Return whether any of these epochs explains anything."""
    return any(publication.record.explanations for publication in publications)


def differing(source: str, number: int, one: tuple[str, str], other: tuple[str, str]) -> Diverged:
    """Return the error of two that disagree on what a position means."""
    return Diverged(
        f"{one[0]} and {other[0]} disagree on explanation {number} of source {source!r}.",
        why=f"{one[0]} says {one[1]!r}; {other[0]} says {other[1]!r}.  Under the same positions they hold other rows: "
        "they were written with different checkpoints.",
        do="restore the sinks, and the checkpoint where it is there, to states that belong together.",
        participant=source,
    )
