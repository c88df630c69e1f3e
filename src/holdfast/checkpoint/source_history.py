"""The position of each source when a Spark directory was begun: ``sources.json``.

A source that is removed from the graph continues there when it is put back.  Sinks hold the positions of the sources
that the graph has, and Spark's directories are replaced; so this is kept beside them.  Every directory that does not
start from the beginning adds a note; a rewind removes those of directories that were begun after its target.
"""

from __future__ import annotations

from holdfast.ports import Store
from holdfast.positions import Positions, SourcePositions
from holdfast.store import records, sealed

KEY = "sources.json"

History = dict[str, list[tuple[int, SourcePositions]]]
"""Source -> first epoch of a directory, and the source's position before it; ascending."""


def last_positions(store: Store) -> Positions:
    """Return the last position of each source, including those in the graph.

    Raises
    ------
    Corrupt
        If the record cannot be read.
    """
    return {name: notes[-1][1] for name, notes in _read(store).items()}


def positions_at(store: Store, epoch: int) -> Positions:
    """Return the position at an epoch of each source that the graph of that time did not have."""
    earlier = {name: [of for first, of in notes if first <= epoch] for name, notes in _read(store).items()}
    return {name: of[-1] for name, of in earlier.items() if of}


def last_positions_since(store: Store) -> dict[str, tuple[int, SourcePositions]]:
    """Return the last position of each source, and the first epoch of the directory that was begun after it."""
    return {name: notes[-1] for name, notes in _read(store).items()}


def note_positions(store: Store, epoch: int, positions: Positions, *, else_known: Positions) -> None:
    """Record the positions of sources before the first epoch of a directory; idempotent.

    Parameters
    ----------
    store : Store
        The checkpoint.
    epoch : int
        The first epoch.
    positions : Positions
        Of all sources that the graph before had.
    else_known : Positions
        Positions of sources that were removed before: used where nothing was recorded yet.
    """
    history = _read(store) or {name: [(0, of)] for name, of in else_known.items()}
    for name, of in positions.items():
        before = [note for note in history.get(name, []) if note[0] < epoch]
        if not before or dict(before[-1][1]) != dict(of):
            before.append((epoch, of))
        history[name] = before
    _write(store, history)


def forget_after(store: Store, epoch: int) -> None:
    """Remove what was recorded for directories that begin after an epoch."""
    if store.get(KEY) is None:
        return
    history = {name: [note for note in notes if note[0] <= epoch] for name, notes in _read(store).items()}
    _write(store, {name: notes for name, notes in history.items() if notes})


def _read(store: Store) -> History:
    data = store.get(KEY)
    if data is None:
        return {}
    says = "it has the positions at which sources continue that leave the graph and are put back"
    do = f"restore {KEY} from a copy; or remove it, if no source that was removed from the graph is to be put back."
    return records.load(History, data, key=KEY, says=says, do=do)


def _write(store: Store, history: History) -> None:
    store.put(KEY, sealed.dump(history))
