"""Sinks that are behind what was published in them, and what they lack.  Changes nothing.

No crash of Holdfast leads here: a database failed over to a copy that lagged, a file was restored.  Spark continues
after its last finished batch, so what such a sink lacks before it would never be delivered again.  *Finished* is
published: recovery has published every decision that was open, and without a decision Spark's commit log follows the
sink's own commit.  An epoch that is planned and not finished proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.checkpoint.directory_header import FILE_NAME, DirectoryHeader, read_origin
from holdfast.checkpoint.source_history import last_positions_since
from holdfast.checkpoint.spark_log import CONTROLS, MARKS, OPAQUE_SEGMENT, last_logged, logged, plain, read_offsets
from holdfast.graph.nodes import Node
from holdfast.ports import Held, Store
from holdfast.positions import Position, Positions, lacking

Ranges = Mapping[str, Mapping[str, tuple[Position, Position]]]
"""Source -> segment -> start and end."""


@dataclass(frozen=True)
class Behind:
    """A sink that lacks what was published in it.

    Parameters
    ----------
    sink : str
        Its name.
    held : Held
        What it holds.
    published : int
        The last epoch that Spark's log calls finished.
    lost : Ranges
        The positions between them.
    """

    sink: str
    held: Held
    published: int
    lost: Ranges

    def __str__(self) -> str:
        return (
            f"sink {self.sink!r} holds everything up to epoch {self.held.epoch}, and epoch {self.published} was "
            f"published: it lacks {ranges_text(self.lost)}"
        )


def behind(spark: Path, held: Mapping[str, Held]) -> tuple[Behind, ...]:
    """Return the sinks that lack what a directory of Spark's will not deliver again.

    Parameters
    ----------
    spark : Path
        The directory.
    held : mapping of str to Held
        What each sink holds that remembers it, with everything resolved.  One that holds nothing is new
        (:mod:`holdfast.checkpoint.participation`).

    Raises
    ------
    Corrupt
        If the directory's record or an entry of its log cannot be read.
    """
    if not (spark / FILE_NAME).exists():
        return ()
    header = read_origin(spark / FILE_NAME)
    finished, start = _finished(spark, header)
    published = header.base + finished
    ends = _ends_to_come(spark, header, finished)
    found = []
    for name, each in sorted(held.items()):
        if not each.is_empty and (lost := _lost(each, start, ends, published)):
            found.append(Behind(name, each, published, lost))
    return tuple(found)


def published(spark: Path) -> tuple[int, Positions]:
    """Return the last epoch that a directory of Spark's calls finished, and where it ends; 0 for none.

    Raises
    ------
    Corrupt
        As :func:`behind`.
    """
    if not (spark / FILE_NAME).exists():
        return 0, {}
    header = read_origin(spark / FILE_NAME)
    finished, ends = _finished(spark, header)
    return header.base + finished, ends


def _finished(spark: Path, header: DirectoryHeader) -> tuple[int, Positions]:
    """Return the last finished batch, -1 for none, and its end; or where the directory begins."""
    planned = logged(spark, "offsets")
    finished = max((number for number in logged(spark, "commits") if number in planned), default=-1)
    return finished, read_offsets(spark, finished).positions if finished >= 0 else header.start


def _ends_to_come(spark: Path, header: DirectoryHeader, finished: int) -> list[Positions]:
    """Return where the next epochs end, as far as that is fixed: they are planned, or stops of the directory."""
    planned = last_logged(spark, "offsets")
    ends = [read_offsets(spark, planned).positions] if planned > finished else []
    return [*ends, *header.seek[max(planned, finished) + 2 :]]


def _lost(held: Held, start: Positions, ends: Iterable[Positions], published: int) -> Ranges:
    if lost := _lacking(held, start, published):
        return lost
    at = start
    for end in ends:
        lost = _lacking(held, end, published + 1)
        if lost:  # it stands where this epoch begins, or else in the middle of it
            return lost if lacking(at, held.positions) else {}
        at = end
    return {}


def _lacking(held: Held, wanted: Positions, epoch: int) -> Ranges:
    found = lacking(held.positions, wanted)
    if held.epoch < epoch:
        return found
    # Of an opaque position only a difference shows: which of the two lies before the other the epochs tell.  And a
    # ledger row of an older version has no marks.
    without = {OPAQUE_SEGMENT, *MARKS.values()}
    return {name: of for name, of in found.items() if name != CONTROLS and not of.keys() <= without}


def ranges_text(ranges: Ranges) -> str:
    """Return ranges as people read them.

    Examples
    --------
    >>> ranges_text({"a": {"log": (3, 9), "@ticks": (0, 1)}, "b": {"": ("", "{}")}})
    "source 'a' from log=3 to log=9; source 'b' from where it holds it on"
    """
    parts = []
    for name, segments in ranges.items():
        shown = {segment: of for segment, of in segments.items() if segment not in MARKS.values()}
        if name == CONTROLS or not shown:
            continue
        if OPAQUE_SEGMENT in shown:
            parts.append(f"source {name!r} from where it holds it on")
            continue
        ends = [", ".join(f"{segment}={of[i]}" for segment, of in shown.items()) for i in (0, 1)]
        parts.append(f"source {name!r} from {ends[0]} to {ends[1]}")
    return "; ".join(parts) or "epochs without rows"


def reached(found: Sequence[Behind]) -> Positions:
    """Return the end of what was published."""
    ends: dict[str, dict[str, Position]] = {}
    for each in found:
        for name, of in each.held.positions.items():
            ends.setdefault(name, dict(of))
        for name, segments in each.lost.items():
            ends.setdefault(name, {}).update({segment: of[1] for segment, of in segments.items()})
    return ends


def unreadable(
    found: Sequence[Behind], start: Positions, sources: Sequence[Node], workspace: Callable[[str], str], store: Store
) -> Iterator[str]:
    """Yield what cannot be read again, and why: nothing where a replay can bring all sinks up.

    Parameters
    ----------
    found : sequence of Behind
        The sinks.
    start : Positions
        From where everything has to be read.
    sources, workspace, store
        The pipeline's sources, where each keeps its past, and the checkpoint.
    """
    ends = reached(found)
    for node in sources:
        spec = node.source_spec
        lost = [each.lost[node.name] for each in found if node.name in each.lost]
        # NB where no sink lost any row of it too: state may begin further back than they stand.
        at, until = (plain(of.get(node.name, {}))[0] for of in (start, ends))
        why = spec.obstacle(node.name, workspace(node.name), at, until or None)
        if why:
            ranges = dict.fromkeys(ranges_text({node.name: segments}) for segments in lost)
            yield f"{' and '.join(ranges) or f'source {node.name!r}'} cannot be read again: {why}"
    here = {node.name for node in sources}
    for name, (epoch, positions) in last_positions_since(store).items():
        if name in here:
            continue
        for each in found:
            if name in each.held.positions or each.held.epoch < epoch:
                lost_of_it = lacking(each.held.positions, {name: positions})
                if lost_of_it:
                    yield f"{ranges_text(lost_of_it)} cannot be read again: the source has left the graph."
                    break
