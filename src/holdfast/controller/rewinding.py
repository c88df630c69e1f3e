"""A rewind of all shards: what each goes back to is recorded first, so that a crash leaves nothing to be guessed.

Durable writes: 1. ``shards/rewinds/<n>.json``, put if absent: the decision.  2. the rewind of each shard (design/0012),
and 3. that it is done, beside the record.  Dead after 1: whoever starts, or rewinds, carries it through, from the first
shard that is not known to be done.  Dead between 2 and 3: the shard goes back to the same end again, and withdraws
nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.controller.named import ShardNames
from holdfast.errors import Corrupt, InvalidPipeline, Unavailable
from holdfast.ports import Store
from holdfast.starts.rewind import Rewinding
from holdfast.starts.rewind_target import Rewound, is_name
from holdfast.store import sealed
from holdfast.store.paths import numbered

log = logging.getLogger("holdfast.rewind")

REWINDS = "shards/rewinds/"
"""Where they are recorded, in the checkpoint of the pipeline."""


@dataclass(frozen=True)
class ShardsRewinding:
    """The shards of a pipeline, each with what it is rewound by.

    Parameters
    ----------
    pipeline : str
        The user's name.
    store : Store
        The checkpoint of the pipeline.
    shards : mapping of int to Rewinding
        Those that have run, by their numbers.
    """

    pipeline: str
    store: Store
    shards: Mapping[int, Rewinding]

    def plan(self, to: str, left_out: Collection[str] = ()) -> dict[int, Rewound]:
        """Return what a rewind of all shards would do; takes nothing over, changes nothing.

        Parameters
        ----------
        to : str
            A time, or the name of a checkpoint that each shard has: the number of an epoch is each shard's own.
        left_out : collection of str
            As for :meth:`~holdfast.starts.rewind.Rewinding.plan`.

        Raises
        ------
        InvalidPipeline
            If ``to`` is the number of an epoch, the name is not of all shards, or one shard cannot go back.
        Corrupt
            If the checkpoint of that name is not whole.
        """
        if to.isdigit():
            raise InvalidPipeline(
                f"pipeline {self.pipeline!r} cannot go back to epoch {to}: its shards are {_list(self.shards)}.",
                why="each of them counts its own epochs.",
                do=f"name one: --shard K --to {to}; or a time, or a checkpoint that all of them have.",
                pipeline=self.pipeline,
            )
        if is_name(to):
            self._check_parts(to)
        return {shard: each.plan(to, left_out) for shard, each in self.shards.items()}

    def do(self, to: str, left_out: Collection[str] = ()) -> dict[int, Rewound]:
        """Go back, all of them; an interrupted rewind of before is carried through first.

        Parameters
        ----------
        to, left_out
            As for :meth:`plan`.

        Raises
        ------
        InvalidPipeline
            As :meth:`plan`; nothing was changed.
        Unavailable
            If another process rewinds, too.
        HoldfastError
            Whatever the rewind of a shard raises: the next start carries it through.
        """
        self.carry_through()
        targets = {str(shard): planned.to for shard, planned in self.plan(to, left_out).items()}
        number = max(numbered(self.store, REWINDS), default=0) + 1
        record = sealed.dump({"targets": targets, "left_out": sorted(left_out), "name": to if is_name(to) else ""})
        if not self.store.put_if_absent(f"{REWINDS}{number:08d}.json", record):
            raise Unavailable(
                f"another process rewinds pipeline {self.pipeline!r}.",
                why="it has recorded a rewind meanwhile.",
                do="do it again: that one is carried through first.",
                pipeline=self.pipeline,
            )
        return self._carried_through(number)

    def carry_through(self) -> dict[int, Rewound]:
        """Finish a rewind that was recorded and interrupted: before any shard starts.

        Returns
        -------
        dict
            What was done now, by shards; empty where nothing was left to do.
        """
        number = max(numbered(self.store, REWINDS), default=0)
        return self._carried_through(number) if number else {}

    @property
    def is_unfinished(self) -> bool:
        """Whether a rewind was recorded and interrupted."""
        number = max(numbered(self.store, REWINDS), default=0)
        return bool(number and self._missing(number, self._record(number)["targets"]))

    def check_finished(self) -> None:
        """Refuse to run one shard alone while all go back.

        Raises
        ------
        InvalidPipeline
            If a rewind of all shards was interrupted.
        """
        if self.is_unfinished:
            raise InvalidPipeline(
                f"a rewind of all shards of pipeline {self.pipeline!r} was interrupted.",
                why="some have gone back and some have not, and none may run before all have.",
                do="start all shards once, without --only-shard: that comes first then.",
                pipeline=self.pipeline,
            )

    @property
    def needed_name(self) -> str:
        """The named checkpoint to which an interrupted rewind goes back; empty where there is none."""
        number = max(numbered(self.store, REWINDS), default=0)
        return self._record(number)["name"] if number and self.is_unfinished else ""

    # --- inside -----------------------------------------------------------------------------------------------------

    def _carried_through(self, number: int) -> dict[int, Rewound]:
        record, found = self._record(number), dict[int, Rewound]()
        for shard in self._missing(number, record["targets"]):
            rewinding, target = self.shards[shard], record["targets"][str(shard)]
            log.info("shard %d goes back to epoch %d, by rewind %d of all shards", shard, target, number)
            rewinding.carry_through()
            # The snapshot of a name is found by that alone.
            found[shard] = rewinding.do(record["name"] or str(target), record["left_out"])
            self.store.put(_mark(number, shard), b"{}")
        return found

    def _check_parts(self, name: str) -> None:
        """Refuse a name that is not of all shards that have run."""
        parts = ShardNames(self.pipeline, [each.store for _, each in sorted(self.shards.items())]).read(name).parts
        lacking = [shard for shard in self.shards if not parts.get(shard)]
        if lacking:
            raise InvalidPipeline(
                f"shard {lacking[0]} of pipeline {self.pipeline!r} cannot go back to {name!r}.",
                why="it had not finished an epoch when that was made, or the pipeline had fewer shards.",
                do="choose a later checkpoint, or a time; or rewind the others one by one: --shard K.",
                pipeline=self.pipeline,
            )

    def _missing(self, number: int, targets: Mapping[str, int]) -> list[int]:
        done = {*self.store.keys(REWINDS)}
        return sorted(int(shard) for shard in targets if _mark(number, int(shard)) not in done)

    def _record(self, number: int) -> dict[str, Any]:
        key = f"{REWINDS}{number:08d}.json"
        try:
            found: dict[str, Any] = sealed.load(self.store.get(key) or b"")
            name = str(found.get("name", ""))  # older versions went back to epochs alone
            return {"targets": dict(found["targets"]), "left_out": list(found["left_out"]), "name": name}
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(
                f"{key!r} in the checkpoint cannot be read.",
                why=f"{error}; it says to where shards go back.",
                do="restore the file from a copy of the checkpoint.",
                participant=key,
            ) from error


def _mark(number: int, shard: int) -> str:
    return f"{REWINDS}{number:08d}-{shard}.done"


def _list(shards: Mapping[int, object]) -> str:
    return ", ".join(map(str, shards))
