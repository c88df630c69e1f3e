"""How state is divided into buckets and tasks: as it is asked for, as a directory has it noted (``state.json``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from holdfast.checkpoint.directory_header import FILE_NAME
from holdfast.checkpoint.graph_record import unreadable
from holdfast.ports import Store
from holdfast.store import sealed

JOURNAL = "journal"
"""How ``state.json`` says where state is kept (:mod:`holdfast.plan.levels.journal`)."""


@dataclass(frozen=True)
class StateShape:
    """How state is divided: fixed when a Spark checkpoint directory is new.

    Parameters
    ----------
    buckets : int
        Of each operator.
    partitions : int
        Tasks of a level.
    is_in_journal : bool
        Whether it is kept in the journal; False for directories of older versions, whose state is in Spark's store.
    """

    buckets: int
    partitions: int
    is_in_journal: bool = True

    def of_buckets(self, buckets: int) -> StateShape:
        """Return it for state that is divided into so many."""
        return replace(self, buckets=buckets, partitions=min(self.partitions, buckets))


@dataclass(frozen=True)
class Division:
    """How the settings ask for state to be divided; 0 leaves it as it is, or to the number of cores.

    Parameters
    ----------
    buckets, partitions : int
        As in :class:`StateShape`.
    """

    buckets: int = 0
    partitions: int = 0

    def shape(self, parallelism: int, previous: int = 0) -> StateShape:
        """Return the shape of a new directory; ``previous`` is the bucket count of the state that it takes over, or 0.

        Examples
        --------
        >>> Division().shape(4), Division(partitions=5).shape(2, previous=2), Division(8).shape(2, previous=4)
        (StateShape(buckets=4, partitions=4), StateShape(buckets=5, partitions=5), StateShape(buckets=8, partitions=2))
        """
        count = self.buckets or max(previous or parallelism, self.partitions)
        return StateShape(count, min(self.partitions or parallelism, count))

    def outgrown(self, shape: StateShape) -> Iterator[str]:
        """Yield how the shape asked for differs from the existing one.

        Examples
        --------
        >>> list(Division(8, 2).outgrown(StateShape(4, 2))), list(Division().outgrown(StateShape(4, 2)))
        (['state is divided into 8 buckets, and no longer into 4'], [])
        """
        if not shape.is_in_journal:
            yield "state is kept in a journal, and no longer in Spark's store"
        wanted = self.shape(shape.partitions, shape.buckets)
        if wanted.buckets != shape.buckets:
            yield f"state is divided into {wanted.buckets} buckets, and no longer into {shape.buckets}"
        if wanted.partitions != shape.partitions:
            yield f"{wanted.partitions} tasks work on it at a time, and no longer {shape.partitions}"


def settle_shape(store: Store, directory: str, parallelism: int, asked: Division, *, previous: int = 0) -> StateShape:
    """Return how state is divided, decided now if the directory is new.

    Parameters
    ----------
    store : Store
        The checkpoint.
    directory : str
        Spark's directory below it.
    parallelism : int
        Tasks that can run at a time.
    asked : Division
        What the settings ask for.
    previous : int
        Buckets of the state that a new directory begins with; 0 when it begins with none.

    Raises
    ------
    Corrupt
        If the record is damaged.
    """
    noted = noted_shape(store, directory)
    # A directory without an origin does not count: a start that died may have asked for another shape.
    if noted is None or store.get(f"{directory}/{FILE_NAME}") is None:
        noted = asked.shape(parallelism, previous)
        note_shape(store, directory, noted)
    return noted


def note_shape(store: Store, directory: str, shape: StateShape) -> None:
    """Note how state is divided in a directory."""
    record = {"buckets": shape.buckets, "partitions": shape.partitions, "kept": JOURNAL}
    store.put(f"{directory}/state.json", sealed.dump(record))


def noted_shape(store: Store, directory: str) -> StateShape | None:
    """Return how state is divided in a directory; None where nothing is recorded.

    Raises
    ------
    Corrupt
        If the record is damaged.
    """
    key = f"{directory}/state.json"
    noted = store.get(key)
    if noted is None:
        return None
    try:
        value = sealed.load(noted)
        return StateShape(int(value["buckets"]), int(value["partitions"]), value.get("kept") == JOURNAL)
    except (ValueError, KeyError, TypeError) as error:
        raise unreadable(key, error, "it says into how many buckets state is divided") from error
