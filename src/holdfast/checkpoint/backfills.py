"""The backfills of a pipeline: what each was asked for, and whether it has come to its end (design/0056).

An object for each below :data:`PREFIX`, in the checkpoint of the pipeline.  It is put before the backfill writes
anything, so a sink that one has written is always named; again where a later start adds to what it says; and once more
when every sink holds its range.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from holdfast.errors import InvalidPipeline, invariant
from holdfast.ports import Store
from holdfast.store import records, sealed

PREFIX = "backfills/notes/"


@dataclass(frozen=True)
class BackfillNote:
    """One backfill.

    Parameters
    ----------
    name : str
        Hexadecimal digits that stand for what follows, up to the sinks: its checkpoint and its ledgers have them.
    at, until : int
        Its range, the second one exclusive: microseconds of Unix time, or ticks.
    sources, sinks : tuple of str
        What it reads, and what it writes.
    adds : tuple of str
        Sinks that hold rows by it among those of the pipeline's own run, which does not give them.
    shown : str
        Its range, for people.
    begun_us : int
        When it was asked for first, microseconds of Unix time.
    ended_us : int, optional
        When every sink held its range; None before that.
    again : bool
        Whether its sinks may get rows that they hold already.
    empty_state : bool
        Whether its operators may begin without state.
    accepted : bool
        Whether it was let write, after a look at what else had been asked for; without that it has written nothing.
    """

    name: str
    at: int
    until: int
    sources: tuple[str, ...]
    sinks: tuple[str, ...]
    adds: tuple[str, ...]
    shown: str
    begun_us: int
    ended_us: int | None = None
    again: bool = False
    empty_state: bool = False
    accepted: bool = False

    def with_those_of(self, earlier: BackfillNote) -> BackfillNote:
        """Return the note of a start after another one: what was consented to stays so, and what was added is there.

        Examples
        --------
        >>> first = BackfillNote("1", 10, 20, ("rides",), ("a", "b"), ("a",), "", 0, again=True)
        >>> again = replace(first, adds=("b",), begun_us=5, again=False).with_those_of(first)
        >>> again.adds, again.begun_us, again.again
        (('a', 'b'), 0, True)
        """
        return replace(
            self,
            adds=tuple(sorted({*self.adds, *earlier.adds})),
            begun_us=earlier.begun_us,
            ended_us=earlier.ended_us,
            again=self.again or earlier.again,
            empty_state=self.empty_state or earlier.empty_state,
            accepted=self.accepted or earlier.accepted,
        )

    def overlaps(self, other: BackfillNote, sink: str) -> bool:
        """Return whether both write rows of one time of one source to a sink.

        Examples
        --------
        >>> one = BackfillNote("1", 10, 20, ("rides",), ("table",), (), "", 0)
        >>> one.overlaps(replace(one, at=19, until=30), "table"), one.overlaps(replace(one, at=20, until=30), "table")
        (True, False)
        """
        is_shared = sink in self.sinks and sink in other.sinks and bool({*self.sources} & {*other.sources})
        return is_shared and self.at < other.until and other.at < self.until


def note_backfill(store: Store, note: BackfillNote) -> None:
    """Note a backfill before it writes anything; one durable write, or none where all of it is noted."""
    invariant(note.at < note.until, f"backfill {note.name} is to read {note.shown}, which is empty.")
    if store.put_if_absent(_key(note.name), sealed.dump(records.plain(note))):
        return
    for there in noted_backfills(store):
        if there.name == note.name and (merged := note.with_those_of(there)) != there:
            store.put(_key(note.name), sealed.dump(records.plain(merged)))


def note_end(store: Store, note: BackfillNote, at_us: int) -> None:
    """Note that every sink holds the range of a backfill; one durable write."""
    invariant(note.ended_us is None, f"backfill {note.name} was done already.")
    store.put(_key(note.name), sealed.dump(records.plain(replace(note, ended_us=at_us))))


def noted_backfills(store: Store) -> Sequence[BackfillNote]:
    """Return the backfills of a pipeline, in the order in which they were asked for first.

    Raises
    ------
    Corrupt
        If one cannot be read.
    """
    found = []
    for key in store.keys(PREFIX):
        data = store.get(key)
        if data is not None:
            says = "it says which rows a backfill has given to which sinks"
            do = f"restore {key!r} from a copy of the checkpoint."
            found.append(records.load(BackfillNote, data, key=key, says=says, do=do))
    return sorted(found, key=lambda note: (note.begun_us, note.name))


def check_none_adds(store: Store, pipeline: str, sinks: Collection[str], doing: str) -> None:
    """Refuse what compares or recomputes a sink by its pipeline's sources alone, where a backfill has added to it.

    Parameters
    ----------
    store : Store
        The checkpoint of the pipeline.
    pipeline : str
        Its name.
    sinks : collection of str
        The sinks that are concerned.
    doing : str
        What is refused: ``"compared"``.

    Raises
    ------
    InvalidPipeline
        Naming the sink and the backfill.
    """
    for note in noted_backfills(store):
        for sink in sorted({*note.adds} & {*sinks}):
            raise InvalidPipeline(
                f"sink {sink!r} of pipeline {pipeline!r} cannot be {doing}: a backfill has added rows to it.",
                why=f"backfill {note.name} wrote {note.shown}: what the pipeline's own run gives the sink is without "
                "them, and they would be taken for surplus.",
                do="leave this sink out; or start the pipeline over with an empty sink, from before that time on.",
                pipeline=pipeline,
                participant=sink,
            )


def _key(name: str) -> str:
    return f"{PREFIX}{name}.json"
