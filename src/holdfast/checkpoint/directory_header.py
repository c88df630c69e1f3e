"""Where a Spark checkpoint directory began: the epoch of its first batch, and the positions it has to pass.

Usually epoch 1 and none; how else stands in :mod:`holdfast.starts.act`.  The record is written once, before
the first batch, and read again by every start and by every source's planning process, whose start it must not slow
down.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import Corrupt, invariant
from holdfast.ports import Store
from holdfast.positions import Positions, is_not_before
from holdfast.store import sealed

if TYPE_CHECKING:
    from holdfast.checkpoint.manifest import Manifest

FILE_NAME = "origin.json"
LEFT = "left.json"
"""In a directory that is used no more: sinks have lost what it published (:mod:`holdfast.starts.facts`)."""
BEGINNING = "beginning.json"
"""Where the pipeline begins; absent where that is the beginning of its sources."""

_WHERE_SET = ("seed", "replayed", "retired", "backfilled", "graph_since", "layout", "moved", "stood")
"""What is recorded only where it is something."""


@dataclass(frozen=True)
class DirectoryHeader:
    """The beginning of one Spark checkpoint directory.

    Parameters
    ----------
    base : int
        The epoch that Spark's batch 0 is.
    seek : tuple of Positions
        Positions that sinks held, earliest first; empty when none held anything.  With a seed, its positions come
        first.
    seed : str
        Key of the snapshot from which operators take the state that the directory does not have; empty: from none.
    replayed : tuple of (int, int)
        Of the first batches, which replay older epochs: number and batch time as the steps see them.
    kept : tuple of str, optional
        The operators that take their state from the seed; None: all that it has.
    retired : Positions
        The positions of sources that left the graph: they continue there if they are put back.
    graph : str, optional
        Fingerprint of the graph's state; None where it was not recorded.
    graph_since : int
        The first epoch that this graph has evaluated, here or in directories before.
    from_us : int, optional
        No row whose timestamp lies before is read, microseconds; of the pipeline's beginning only.
    backfilled : tuple of str
        Sinks that get everything while the positions to pass are passed; empty where there are none, and in records of
        older versions.
    layout : int
        Of a shard: number of the layout under which it, or a directory before it, began; 0: of none.
    moved : int
        Of a shard: the epoch of its last hand-over; 0: there was none.
    stood : Positions
        Of a shard whose segments changed without a hand-over: where its sinks stood.
    """

    base: int
    seek: tuple[Positions, ...] = ()
    seed: str = ""
    replayed: tuple[tuple[int, int], ...] = ()
    kept: tuple[str, ...] | None = None
    retired: Positions = field(default_factory=dict)
    graph: str | None = None
    graph_since: int = 0
    from_us: int | None = None
    backfilled: tuple[str, ...] = ()
    layout: int = 0
    moved: int = 0
    stood: Positions = field(default_factory=dict)

    @property
    def replay_count(self) -> int:
        """How many of the first batches are before the last of the positions to pass: sinks hold them."""
        return max(0, len(self.seek) - 1)

    @property
    def start(self) -> Positions:
        """Where reading starts; empty for the beginning of every source."""
        return self.seek[0] if self.seek else {}

    def step_time(self, batch_id: int, batch_us: int) -> tuple[int, int]:
        """Return the number and the batch time of a batch's epoch as steps see them.

        Examples
        --------
        >>> header = DirectoryHeader(101, replayed=((91, 7), (92, 8)))
        >>> header.step_time(1, 500), header.step_time(2, 500)
        ((92, 8), (103, 500))
        """
        if batch_id < len(self.replayed):
            return self.replayed[batch_id]
        return self.base + batch_id, batch_us

    def to_json(self) -> bytes:
        """Return the record as it is stored."""
        self._check()
        value = {name: getattr(self, name) for name in _WHERE_SET}
        more = {name: of for name in ("kept", "graph", "from_us") if (of := getattr(self, name)) is not None}
        return sealed.dump({"base": self.base, "seek": self.seek, **{n: v for n, v in value.items() if v}, **more})

    def _check(self) -> None:
        in_order = all(is_not_before(later, earlier) for earlier, later in pairwise(self.seek))
        steps = [number for number, _ in self.replayed]
        for condition, what in (
            (self.base > 0, f"begins at epoch {self.base}"),
            (in_order, f"is to end its first epochs at {self.seek}, which do not ascend"),
            (
                len(steps) <= self.replay_count,
                f"replays {len(steps)} epochs, and has ends for {self.replay_count}",
            ),
            (steps == sorted(set(steps)), f"replays the epochs {steps}, which do not ascend"),
            (self.moved < self.base, f"begins at epoch {self.base}, and segments moved as epoch {self.moved}"),
            (not steps or steps[-1] < self.base, f"replays epoch {steps and steps[-1]}, and begins at {self.base}"),
        ):
            invariant(condition, f"a directory of Spark's {what}.", why="the header is written once.", epoch=self.base)

    def seeding(self, manifest: Manifest) -> Manifest:
        """Return a snapshot with only those operators that take their state from it."""
        if self.kept is None:
            return manifest
        return replace(manifest, operators={n: of for n, of in manifest.operators.items() if n in self.kept})


def newest_directory(store: Store) -> int:
    """Return the number of the directory that counts; 0 when there is none."""
    found = (key.split("/") for key in store.keys("spark/"))
    return max((int(parts[1]) for parts in found if parts[2:] == [FILE_NAME] and parts[1].isdigit()), default=0)


def read_origin(path: Path) -> DirectoryHeader:
    """Return the record in a file.

    Raises
    ------
    Corrupt
        If it is missing or damaged.
    """
    try:
        return _parse(sealed.load(path.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Corrupt(
            f"{path} cannot be read.",
            why=f"{error}; it says which epoch Spark's first batch is.",
            do=f"restore it from a copy; or move the directory '{'/'.join(path.parts[-3:-1])}' out of the checkpoint: "
            "the run then continues where the sinks are.",
            participant=str(path),
        ) from error


def _parse(record: dict[str, Any]) -> DirectoryHeader:
    replayed = tuple((int(epoch), int(batch_us)) for epoch, batch_us in record.get("replayed", ()))
    return DirectoryHeader(
        int(record["base"]),
        tuple(record["seek"]),
        str(record.get("seed", "")),
        replayed,
        tuple(record["kept"]) if "kept" in record else None,
        record.get("retired", {}),
        record.get("graph"),
        int(record.get("graph_since", 0)),
        record.get("from_us"),
        tuple(record.get("backfilled", ())),
        int(record.get("layout", 0)),
        int(record.get("moved", 0)),
        record.get("stood", {}),
    )


def note_beginning(store: Store, given: str, header: DirectoryHeader) -> None:
    """Note where a pipeline begins that does not begin at the beginning, and the option that said so."""
    store.put(BEGINNING, sealed.dump({"given": given, "origin": sealed.load(header.to_json())}))


def noted_beginning(store: Store) -> tuple[str, DirectoryHeader] | None:
    """Return what :func:`note_beginning` wrote; None where the pipeline begins at the beginning.

    Raises
    ------
    Corrupt
        If it is damaged.
    """
    data = store.get(BEGINNING)
    if data is None:
        return None
    try:
        found = sealed.load(data)
        return str(found["given"]), _parse(found["origin"])
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(
            f"{BEGINNING} in the checkpoint cannot be read.",
            why=f"{error}; it says where the pipeline begins.",
            do="restore it from a copy of the checkpoint.",
            participant=BEGINNING,
        ) from error


def remove_older(checkpoint: Path, below: str) -> None:
    """Remove the directories before one of which there is a snapshot: nothing is taken from them any more."""
    spark = checkpoint / "spark"
    number = int(below.rpartition("/")[2])
    for path in spark.iterdir():
        if path.name.isdigit() and int(path.name) < number:
            shutil.rmtree(path, ignore_errors=True)
