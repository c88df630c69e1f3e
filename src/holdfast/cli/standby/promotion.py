"""``holdfast promote``: whoever watches the lease takes it, before it expires."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from holdfast.cli import frame
from holdfast.cli.frame import AsJson, Target
from holdfast.cli.target import load_target
from holdfast.errors import InvalidPipeline, Unavailable
from holdfast.ports import SeenLease
from holdfast.reconcile.stand_ins import check_some_comparable
from holdfast.replica.keeper import as_json as lease_json
from holdfast.replica.keeper import held_by
from holdfast.replica.places import lease_of
from holdfast.replica.tenure import ask
from holdfast.types.units import duration_us

_LOOK_S = 0.1


def promote(
    target: Target,
    wait: Annotated[
        str, typer.Option(metavar="DURATION", help="How long to wait for the replica (0s: do not wait).")
    ] = "30s",
    compare: Annotated[
        bool,
        typer.Option("--compare", help="Let the replica compare the sinks, and mend what differs, before it goes on."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say who holds the lease, and change nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Let the replica take over now: the main is fenced, and becomes the replica.  Needs no Java."""
    with frame.settings(as_json):
        patience_s = duration_us(wait, argument="--wait") / 1e6
        pipeline = load_target(target)
        place = lease_of(pipeline)
        before = place.read()
        if before is None:
            raise InvalidPipeline(
                f"pipeline {pipeline.name!r} has no lease.",
                why="its main runs without one, or it has never run.",
                do="run the main with --lease 1s, and a replica with --replica.",
                pipeline=pipeline.name,
            )
        obstacles = check_some_comparable(pipeline) if compare else {}
        left_out = [f"{name} is not compared: {why}" for name, why in obstacles.items()]
        if dry_run:
            frame.answer(_json(before, None, obstacles), [held_by(before), *left_out], as_json)
            return
        ask(place, compares=compare)
        end = time.monotonic() + patience_s
        after = place.read()
        while patience_s and not _is_taken(before, after):
            if time.monotonic() > end:
                is_followed = after is not None and after.lease.term > before.lease.term
                waits_for = "its run has not begun" if is_followed else "no replica watches"
                raise Unavailable(
                    f"nobody has taken over pipeline {pipeline.name!r} in {patience_s:g} s.",
                    why=f"{held_by(after or before)}, and {waits_for}; it stays asked for, until the next term.",
                    do="start a replica (holdfast run TARGET --checkpoint DIR --replica): it takes over at once.",
                    pipeline=pipeline.name,
                )
            time.sleep(_LOOK_S)
            after = place.read()
        place.close()
        taken = _is_taken(before, after)
        lines = [f"before: {held_by(before)}"] + ([f"now: {held_by(after)}"] if taken and after else ["asked"])
        frame.answer(_json(before, after if taken else None, obstacles), [*lines, *left_out], as_json)


def _is_taken(before: SeenLease, after: SeenLease | None) -> bool:
    """Whether another holder's run has begun."""
    return after is not None and after.lease.term > before.lease.term and after.lease.generation > 0


def _json(before: SeenLease, after: SeenLease | None, obstacles: Mapping[str, str]) -> dict[str, Any]:
    after_json = None if after is None else lease_json(after)
    return {"before": lease_json(before), "after": after_json, "not_compared": dict(obstacles)}
