"""What maps positions to data, on its way into the sinks and back out of them (design/0018).

An epoch's record carries what is durable of the meaning of its positions and what a sink that takes part may lack.  If
the checkpoint is lost, the sinks give it back before anything else is decided: sources then know their past as if only
the engine's own part were gone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import cast

from holdfast.capabilities import offers
from holdfast.connectors.kit.explained import differing
from holdfast.graph.nodes import Node
from holdfast.ports import ExplainedSpec, Explaining, Explanation, Held, Sink, SinkLedger

log = logging.getLogger("holdfast.checkpoint")


class Explanations:
    """What the records of one run explain.

    Parameters
    ----------
    sources : mapping of str to callable
        Source -> what is durable of the meaning of its positions, above a number.
    kept : mapping of str to mapping of str to int
        Sink -> source -> number of explanations that it keeps; without the sinks that keep none.
    """

    def __init__(
        self, sources: Mapping[str, Callable[[int], Sequence[Explanation]]], kept: Mapping[str, Mapping[str, int]]
    ) -> None:
        self._sources = sources
        self._kept = {name: dict(of) for name, of in kept.items()}

    @classmethod
    def of(cls, sources: Sequence[Node], checkpoint: Path, kept: Mapping[str, Mapping[str, int]]) -> Explanations:
        """Return those of a pipeline's sources, whose logs are below a checkpoint."""
        durable = {
            node.name: partial(node.spec.explanations, node.name, workspace(checkpoint, node.name))
            for node in sources
            if offers(node.spec, ExplainedSpec)
        }
        return cls(durable, kept)

    def take(self, sinks: Iterable[str]) -> tuple[Explanation, ...]:
        """Return what is durable by now and one of some sinks lacks; these count as having it.

        Parameters
        ----------
        sinks : iterable of str
            Those that get the epoch.
        """
        kept = [self._kept[name] for name in sinks if name in self._kept]
        found: list[Explanation] = []
        for name, durable_above in self._sources.items() if kept else ():
            new = durable_above(min(each.get(name, 0) for each in kept))
            if new:
                found += new
                for each in kept:
                    each[name] = max(each.get(name, 0), new[-1].number)
        return tuple(found)


def lost_pasts(sources: Sequence[Node], checkpoint: Path, held: Iterable[Held], *, has_begun: bool) -> list[Node]:
    """Return the sources whose past the sinks know and the checkpoint does not.

    Parameters
    ----------
    sources : sequence of Node
        The pipeline's.
    checkpoint : Path
        Its directory.
    held : iterable of Held
        What the sinks hold.
    has_begun : bool
        Whether the engine has a directory in this checkpoint.  Then a past that is shorter than that of a sink is one
        of an older copy of the checkpoint, and what to do about it is decided elsewhere.
    """
    known: dict[str, int] = {}
    for each in held:
        for source, number in (each.explained or {}).items():
            known[source] = max(number, known.get(source, 0))
    lost = []
    for node in sources:
        if offers(node.spec, ExplainedSpec) and node.name in known:
            place = workspace(checkpoint, node.name)
            if node.spec.explanations(node.name, place, known[node.name] - 1):
                continue  # it has what the sinks know last: no more of a long past is read
            own = node.spec.explanations(node.name, place, 0)
            # One may be there already: a start that was refused has noted what the log is of.
            if len(own) < known[node.name] and (len(own) <= 1 or not has_begun):
                lost.append(node)
    return lost


def told_by(sinks: Mapping[str, Sink]) -> dict[str, list[Explanation]]:
    """Return source -> its explanations, from all sinks that keep any; raises as :func:`agreed`."""
    return agreed({name: sink.explanations() for name, sink in sinks.items() if offers(sink, Explaining)})


def agreed(told: Mapping[str, Iterable[Explanation]]) -> dict[str, list[Explanation]]:
    """Return source -> its explanations, of what each sink tells.

    Raises
    ------
    Diverged
        If two disagree: names the source, the number, and what each says.
    """
    found: dict[str, dict[int, tuple[str, Explanation]]] = {}
    for name, several in told.items():
        for each in several:
            first, known = found.setdefault(each.source, {}).setdefault(each.number, (name, each))
            if known.text != each.text:
                one, other = (f"sink {first!r}", known.text), (f"sink {name!r}", each.text)
                raise differing(each.source, each.number, one, other)
    return {source: [each for _, (_, each) in sorted(of.items())] for source, of in found.items()}


def rehearsed(
    sources: Sequence[Node], checkpoint: Path, ledgers: Mapping[str, SinkLedger], scratch: Path, *, has_begun: bool
) -> dict[str, str]:
    """Restore pasts as a start would, elsewhere: return source -> the directory with its past.

    Parameters
    ----------
    sources, checkpoint, has_begun
        As for :func:`lost_pasts`.
    ledgers : mapping of str to SinkLedger
        What the sinks say, by name.
    scratch : Path
        Directory to restore into.

    Raises
    ------
    Diverged
        If two sinks disagree.
    """
    told = {name: each.explanations for name, each in ledgers.items()}
    highest = [Held(explained=_highest(each)) for each in told.values()]
    lost = lost_pasts(sources, checkpoint, highest, has_begun=has_begun)
    known = agreed(told) if lost else {}
    places = {node.name: workspace(scratch, node.name) for node in lost if node.name in known}
    for node in lost:
        if node.name in places:
            cast("ExplainedSpec", node.spec).restore(node.name, places[node.name], known[node.name])
    return places


def _highest(explanations: Iterable[Explanation]) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in explanations:
        found[each.source] = max(each.number, found.get(each.source, 0))
    return found


def restore(
    sources: Sequence[Node], checkpoint: Path, sinks: Mapping[str, Sink], held: Mapping[str, Held], *, has_begun: bool
) -> None:
    """Give sources their past back out of the sinks, where the checkpoint has lost it.

    Parameters
    ----------
    sources : sequence of Node
        The pipeline's.
    checkpoint : Path
        Its directory.
    sinks : mapping of str to Sink
        Opened: this run owns them.
    held, has_begun
        As for :func:`lost_pasts`.

    Raises
    ------
    Diverged
        If two sinks disagree.
    """
    lost = lost_pasts(sources, checkpoint, held.values(), has_begun=has_begun)
    told = told_by(sinks) if lost else {}
    for node in lost:
        if several := told.get(node.name):
            cast("ExplainedSpec", node.spec).restore(node.name, workspace(checkpoint, node.name), several)
            log.warning(
                "the checkpoint knows nothing of source %r: what its positions mean is restored from the sinks (%d "
                "entries)",
                node.name,
                len(several),
            )


def workspace(checkpoint: Path, source: str) -> str:
    """Return the directory of a source below the checkpoint."""
    return str(checkpoint / "sources" / source)
