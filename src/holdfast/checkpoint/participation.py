"""Which sinks have taken part in an epoch: ``sinks/<sink>.json``.  One of them that holds nothing was emptied.

A record is written when the first epoch is decided in which the sink has a part.  A crash before it loses the record
but not the part: the next start finds that the sink holds something, and writes it.  So a record is never there without
a part, and an epoch that a sink was left out of, because others held it before its time, says nothing about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from holdfast.errors import Corrupt, Diverged, invariant
from holdfast.ports import Held, Store
from holdfast.store import records, sealed


@dataclass(frozen=True)
class _Noted:
    first_epoch: int | None = None  # an older version noted something else: as if it were not there


class Participation:
    """The notes of one pipeline's sinks.

    Parameters
    ----------
    pipeline : str
        Its name.
    store : Store
        The checkpoint.
    sinks : iterable of str
        Those that remember what they hold; the others are not noted.
    """

    def __init__(self, pipeline: str, store: Store, sinks: Iterable[str]) -> None:
        self._pipeline = pipeline
        self._store = store
        self._unnoted = set(sinks)

    def check(self, held: Mapping[str, Held]) -> None:
        """Refuse a sink that took part and holds nothing.  Changes nothing.

        Parameters
        ----------
        held : mapping of str to Held
            What sinks answered: with everything resolved; or before, those that have lost what is done in them.

        Raises
        ------
        Diverged
            If a sink took part and holds nothing.
        Corrupt
            If its note cannot be read, and it holds nothing.
        """
        for name in sorted(self._unnoted.intersection(held)):
            if held[name].is_empty:
                self._check_new(name)

    def begun_together(self, held: Mapping[str, Held]) -> dict[str, Held]:
        """Return what sinks hold where the checkpoint may be lost: without it nobody knows who has taken part.

        A sink that holds nothing is new, and begins where the others are.  But no sink gets a second epoch before every
        one has its first.  Where none is beyond the first epoch of all, and the checkpoint knows of none of them, the
        run may have died between two sinks: the one that holds nothing lacks that epoch, from the beginning.  That is
        so until it is noted, also when a start that was to give it the epoch has begun a directory and died.

        Parameters
        ----------
        held : mapping of str to Held
            What sinks answered.
        """
        known = {name: each for name, each in held.items() if name in self._unnoted}
        holders = [name for name, each in known.items() if not each.is_empty]
        if not holders or any(known[name].epoch > 1 or self._is_noted(name) for name in holders):
            return dict(held)
        stops = tuple(known[name].positions for name in holders if known[name].epoch)
        return {
            name: replace(each, stops=stops) if name in known and each.is_empty else each for name, each in held.items()
        }

    def note_holding(self, held: Mapping[str, Held]) -> None:
        """Record each sink that holds something: the run that published it may have died before it could.

        None while one of them has yet to get the first epoch of all: the start that gives it may die before, and the
        next one, too, must not take it for new.
        """
        if any(each.stops and not each.epoch for each in held.values()):
            return
        for name in sorted(self._unnoted.intersection(held)):
            if held[name].epoch and not self._is_noted(name):
                self.note([name], held[name].epoch)
            elif held[name].epoch:
                self._unnoted.remove(name)

    def note(self, sinks: Iterable[str], epoch: int) -> None:
        """Record that sinks take part in an epoch that is decided; the first one of each counts."""
        invariant(epoch > 0, f"sinks are to have taken part in epoch {epoch}.", pipeline=self._pipeline, epoch=epoch)
        for name in self._unnoted.intersection(sinks):
            self._store.put(_key(name), sealed.dump(records.plain(_Noted(epoch))))
            self._unnoted.remove(name)

    def _is_noted(self, name: str) -> bool:
        try:
            return _first_epoch(self._store, name) is not None
        except ValueError:
            return False  # it is written again

    def _check_new(self, name: str) -> None:
        key = _key(name)
        try:
            first = _first_epoch(self._store, name)
        except ValueError as error:
            raise Corrupt(
                f"{key} of the checkpoint cannot be read.",
                why=f"{error}; it says whether the sink has taken part, and the sink holds nothing.",
                do=f"restore {key} from a copy; or remove it, if the sink is to begin at the present.",
                participant=key,
            ) from error
        if first is not None:
            raise Diverged(
                f"sink {name!r} holds nothing, and has taken part since epoch {first}.",
                why="the target was removed, emptied together with its ledger, or replaced after it had published.",
                do=f"if it is the right target, fill it: holdfast reconcile TARGET --sink {name} --rebuild; or restore "
                "it: what a copy of it lacks is replayed; or start over with a new checkpoint and empty targets; or, "
                f"to let it begin at the present, remove {key} from the checkpoint.",
                pipeline=self._pipeline,
                participant=name,
            )


def has_taken_part(store: Store, sink: str) -> bool:
    """Return whether a sink has taken part in an epoch; also where its record cannot be read."""
    try:
        return _first_epoch(store, sink) is not None
    except ValueError:
        return True


def note_part(store: Store, sink: str) -> None:
    """Count a sink as one that has taken part, where it does not: if it is empty, a start is refused."""
    if not has_taken_part(store, sink):
        store.put(_key(sink), sealed.dump(records.plain(_Noted(1))))


def forget_part(store: Store, sink: str) -> None:
    """Count a sink as new from now on: if it is emptied, that is meant."""
    store.delete(_key(sink))


def have_taken_part(store: Store) -> list[str]:
    """Return the names of the sinks that have taken part, in whichever graph."""
    return [key.removeprefix("sinks/").removesuffix(".json") for key in store.keys("sinks/")]


def _first_epoch(store: Store, name: str) -> int | None:
    """Return the epoch in a note; None where there is none.  Raises ValueError where it cannot be read."""
    data = store.get(_key(name))
    if data is None:
        return None
    return records.read(_Noted, sealed.load(data)).first_epoch


def _key(name: str) -> str:
    return f"sinks/{name}.json"
