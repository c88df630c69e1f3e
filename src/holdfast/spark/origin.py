"""Where a Spark checkpoint directory began: the epoch of its first batch, and the positions it has to pass.

Usually epoch 1 and none.  When Spark's directory was lost and sinks hold epochs already, the sources *seek*: reading
starts at the earliest positions that a sink holds, and the first epochs end exactly at those of the other sinks.  So
every sink holds either the whole of such an epoch or nothing of it, and it is left out where it is held.  The record is
written once, before the first batch, and read again by every start and by every source's planning process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from holdfast.errors import Corrupt, Diverged
from holdfast.graph import Node
from holdfast.ports import Held, SourceSpec, Store
from holdfast.positions import Positions, ascending
from holdfast.spark.offsets import check_logs

FILE_NAME = "origin.json"


@dataclass(frozen=True)
class Origin:
    """The beginning of one Spark checkpoint directory.

    Parameters
    ----------
    base : int
        The epoch that Spark's batch 0 is.
    seek : tuple of Positions
        Positions that sinks held, earliest first; empty when none held anything.
    """

    base: int
    seek: tuple[Positions, ...] = ()

    @property
    def start(self) -> Positions:
        """Where reading starts; empty for the beginning of every source."""
        return self.seek[0] if self.seek else {}


def read_origin(path: Path) -> Origin:
    """Return the record in a file.

    Raises
    ------
    Corrupt
        If it is missing or damaged.
    """
    try:
        record: dict[str, Any] = json.loads(path.read_bytes())
        return Origin(int(record["base"]), tuple(record["seek"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Corrupt(
            f"{path} cannot be read.",
            why=f"{error}; it says which epoch Spark's first batch is.",
            do="restore it from a copy; or remove the directory it is in: the run then continues where the sinks are.",
            participant=str(path),
        ) from error


def settle_origin(
    store: Store,
    directory: Path,
    below: str,
    held: Mapping[str, Held],
    last_epoch: int,
    sources: Sequence[Node],
    stateful: Sequence[str] = (),
) -> Origin:
    """Return the record of a Spark checkpoint directory, made now if the directory is new.

    Parameters
    ----------
    store, directory : Store, Path
        The checkpoint, and where it lies.
    below : str
        Spark's directory below it.
    held : mapping of str to Held
        What each sink holds.
    last_epoch : int
        Highest epoch that any sink or the ledger knows.
    sources : sequence of Node
        The pipeline's sources.
    stateful : sequence of str
        The pipeline's operators whose state is in the directory.

    Raises
    ------
    Corrupt
        If Spark's files are there and the record is not, or one of them is damaged.
    Diverged
        If sinks hold epochs, and state is gone; or a source cannot seek to their positions because what it needs for
        that is gone too.
    """
    path = directory / below / FILE_NAME
    has_batches = any((directory / below / "offsets").glob("[0-9]*"))
    if path.exists() or has_batches:
        check_logs(directory / below)
        return read_origin(path)
    holders = {name: each for name, each in held.items() if each.epoch > 0}
    stops = ascending([each.positions for each in holders.values()])
    if stops is None:
        raise Diverged(
            "the sinks hold positions that cannot be put in an order.",
            why="they were written with different checkpoints.",
            do="restore the sinks to states that belong together.",
        )
    if stops:
        newest = max(holders.items(), key=lambda item: item[1].epoch)
        if stateful:
            raise _state_is_gone(directory, stateful, newest)
        _check_can_seek(directory, sources, stops, newest)
    origin = Origin(last_epoch + 1, tuple(stops))
    store.put(f"{below}/{FILE_NAME}", json.dumps({"base": origin.base, "seek": stops}).encode())
    return origin


def _state_is_gone(directory: Path, stateful: Sequence[str], newest: tuple[str, Held]) -> Diverged:
    sink, held = newest
    return Diverged(
        f"Spark's part of the checkpoint {directory} is new, and sink {sink!r} holds epoch {held.epoch}.",
        why=f"the state of {', '.join(stateful)} was in it: without it, what comes next would be wrong.",
        do="restore the checkpoint; or empty the targets and their holdfast_ledger rows (files: the _holdfast "
        "directory), and start over.",
        participant=sink,
        epoch=held.epoch,
    )


def _check_can_seek(
    directory: Path, sources: Sequence[Node], stops: Sequence[Positions], newest: tuple[str, Held]
) -> None:
    sink, held = newest
    for node in sources:
        spec = cast("SourceSpec", node.spec)
        for positions in [stop[node.name] for stop in stops if node.name in stop]:  # none: nothing of it was read
            why = spec.obstacle(node.name, str(directory / "sources" / node.name), positions)
            if not why:
                continue
            raise Diverged(
                f"Spark's part of the checkpoint {directory} is new, and sink {sink!r} holds epoch {held.epoch} of the "
                "pipeline.",
                why=f"source {node.name!r} cannot be taken to the positions that the sinks hold: {why}",
                do="start with the checkpoint that the sink was written with; if it is lost, empty the targets and "
                "their holdfast_ledger rows (files: the _holdfast directory) and start over, or give the pipeline "
                "another name.",
                participant=sink,
                epoch=held.epoch,
            )
