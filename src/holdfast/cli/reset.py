"""``holdfast reset``: sinks begin as if the pipeline had never run; what goes is said first (design/0042).

``holdfast rewind``: go back, and withdraw what was published since (design/0012).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.capabilities import offers
from holdfast.checkpoint.backfills import noted_backfills
from holdfast.checkpoint.participation import forget_part, note_part
from holdfast.cli import frame, words
from holdfast.cli.frame import AsJson, Checkpoint, Target
from holdfast.cli.target import load_target
from holdfast.commit.owner import Owner, noted_owner
from holdfast.config import Settings
from holdfast.controller.shard_targets import ShardTarget, backfills_of, chosen_of, targets_of
from holdfast.errors import InvalidPipeline
from holdfast.graph.graph import Graph
from holdfast.graph.nodes import SinkNode
from holdfast.json_values import as_json as inspected_json
from holdfast.observe.inspection import inspect_checkpoint
from holdfast.observe.ledgers import lease_report
from holdfast.ports import Reset, ResettableSpec
from holdfast.reconcile.stand_ins import can_be_rebuilt
from holdfast.starts.rewind_target import Rewound, check_finished
from holdfast.store.paths import open_store, viewed_directory
from holdfast.store.scratch import address_in

if TYPE_CHECKING:
    from holdfast.controller.rewinding import ShardsRewinding

SHARED = ("sqlite", "mysql", "postgres", "redis")
"""Kinds of sinks whose shards write one target: its rows go at once."""


def reset(
    target: Target,
    checkpoint: Checkpoint,
    sink: Annotated[
        list[str] | None,
        typer.Option(
            "--sink", metavar="NAME", help="Only this sink; may be repeated. Default: all, and the checkpoint."
        ),
    ] = None,
    keep_rows: Annotated[
        bool, typer.Option("--keep-rows", help="Remove only what sinks keep of the pipeline, and leave their rows.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Do it even if a run seems to be alive.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start over: empty the targets and remove what they keep of the pipeline.  Refused while a run is alive."""
    with frame.settings(as_json):
        pipeline = load_target(target)
        nodes = _choose(pipeline, sink)
        directory = viewed_directory(checkpoint)
        # Those that were given up have ledgers, too; a sink that is to be filled again gets nothing from them.
        targets = targets_of(pipeline, checkpoint, with_former=sink is None)
        if sink is None:
            targets += backfills_of(pipeline, checkpoint)
        else:
            _check_backfills(pipeline, directory, sink)
        owners = [_check(each, is_partial=sink is not None, force=force) for each in targets]
        planned = {node.name: _reset(targets, node, rows=not keep_rows, is_dry_run=True) for node in nodes}
        place = None if sink is not None else _set_aside(directory)
        answer = as_value(pipeline, planned, directory, place, is_dry_run=dry_run)
        said = [*lines(pipeline, checkpoint, planned, place, is_partial=sink is not None), *_who(owners)]
        if dry_run:
            frame.answer(answer, said, as_json)
            return
        if not yes:
            _ask(said, as_json)
        # 1. that they have taken part, also where the checkpoint is lost, or a rewind has left one out: from here on a
        # start with it is refused.
        stores = [open_store(str(viewed_directory(each.checkpoint))) for each in targets]
        for store, node in product(stores, nodes):
            if offers(node.spec, ResettableSpec):
                note_part(store, node.name)
        # 2. each sink.  A crash leaves some: a start says that they hold nothing, and this is repeated.
        for node in nodes:
            _reset(targets, node, rows=not keep_rows, is_dry_run=False)
        if sink is not None:
            for store, node in product(stores, nodes):
                if not can_be_rebuilt(node, pipeline.name):
                    forget_part(store, node.name)  # 3. else it is asked for what it held
        elif place is not None:
            os.rename(directory, place)  # 3. last: until then a start with this checkpoint is refused
        frame.answer(answer, said if yes else ["done"], as_json)


def _choose(pipeline: Graph, names: Sequence[str] | None) -> list[SinkNode]:
    unknown = sorted({*(names or ())} - {node.name for node in pipeline.sinks})
    if unknown:
        raise InvalidPipeline(
            f"pipeline {pipeline.name!r} has no sink {unknown[0]!r}.",
            why=f"its sinks are {', '.join(node.name for node in pipeline.sinks)}.",
            do="name one of these.",
            pipeline=pipeline.name,
        )
    return [node for node in pipeline.sinks if names is None or node.name in names]


def _check_backfills(pipeline: Graph, directory: Path, sinks: Sequence[str]) -> None:
    """Refuse to empty a sink alone that a backfill has written: what comes again is what the live run gives.

    Raises
    ------
    InvalidPipeline
        Naming the backfill.
    """
    for note in noted_backfills(open_store(str(directory))) if directory.is_dir() else ():
        for sink in sorted({*note.sinks} & {*sinks}):
            raise InvalidPipeline(
                f"sink {sink!r} cannot be reset alone: backfill {note.name} has written to it.",
                why=f"it wrote {note.shown}, is noted as it is, and would not write it again.",
                do="reset the whole pipeline: leave --sink out.",
                pipeline=pipeline.name,
                participant=sink,
            )


def _check(target: ShardTarget, *, is_partial: bool, force: bool) -> Owner:
    """Return who ran the pipeline last; refuse it while that one may be alive, or epochs are in doubt.

    Raises
    ------
    InvalidPipeline
        If so; or if the checkpoint is another pipeline's.
    """
    pipeline, directory = target.graph, viewed_directory(target.checkpoint)
    if not frame.has_run(directory):
        owner = Owner()
    else:
        store = open_store(str(directory))
        owner = noted_owner(store)
        inspection = inspect_checkpoint(str(directory), store, directory)
        frame.check_owner(inspection, pipeline)
        if is_partial:
            check_finished(store, directory, pipeline.name, "what the other sinks go back to")
        if is_partial and inspection.open_epochs:
            raise InvalidPipeline(
                f"epoch {inspection.open_epochs[0]} is decided and not in every sink.",
                why="the next start would publish it in a sink that was reset, without the epochs before it.",
                do="run holdfast resolve first, then reset.",
                pipeline=pipeline.name,
            )
    if not force:
        frame.check_nobody_runs(owner, "its sinks would be emptied under it.")
        report = lease_report(pipeline)
        left_us = None if report is None or report.problem else report.lease["left_us"]
        if report is not None and left_us is not None and left_us > 0:
            raise InvalidPipeline(
                f"pipeline {pipeline.name!r} runs: {report.holder} holds its lease.",
                why="its sinks would be emptied under it.",
                do="stop it first; if it is gone, wait until the lease has expired, or add --force.",
                pipeline=pipeline.name,
            )
    return owner


def _reset(targets: Sequence[ShardTarget], node: SinkNode, *, rows: bool, is_dry_run: bool) -> Reset | None:
    """Reset a sink, shard by shard; None where it keeps nothing of a pipeline.

    Rows of a target that shards share go with the first, and are said once.
    """
    if not offers(node.spec, ResettableSpec):
        return None
    removed, stays = list[str](), list[str]()
    for target in targets:
        goes_with_first = is_dry_run and not target.is_first and node.kind in SHARED
        its_rows = rows and not goes_with_first
        found = node.spec.reset(node.name, target.graph.name, rows=its_rows, is_dry_run=is_dry_run)
        removed += [f"{target.prefix}{what}" for what in found.removed]
        stays += [] if goes_with_first else [f"{target.prefix}{what}" for what in found.stays]
    return Reset(tuple(removed), tuple(stays))


def _set_aside(directory: Path) -> Path | None:
    """Return where the checkpoint goes: beside, under a name that is free; None for one in an object store."""
    if address_in(directory) is not None:
        return None
    names = (directory.with_name(f"{directory.name}.before-reset-{number}") for number in range(1, 10_000))
    return next(name for name in names if not name.exists())


def _ask(said: Sequence[str], as_json: bool) -> None:
    with suppress(typer.Abort):
        if not as_json:
            frame.print_lines(said)
            if typer.confirm("Remove this?"):
                return
    raise InvalidPipeline("nothing was removed.", why="nobody said yes.", do="answer y, or add --yes.")


def _who(owners: Sequence[Owner]) -> Iterator[str]:
    for pid, host in dict.fromkeys(
        (each.pid, each.host) for each in owners if each.generation and each.is_alive is None
    ):
        yield f"the last run was process {pid} on {host}: see that it has ended"


def lines(
    pipeline: Graph,
    checkpoint: str,
    planned: Mapping[str, Reset | None],
    place: Path | None,
    *,
    is_partial: bool,
) -> Iterator[str]:
    """Say what goes, sink by sink."""
    directory = viewed_directory(checkpoint)
    nodes = [node for node in pipeline.sinks if node.name in planned]
    for name, found in planned.items():
        if found is None:
            yield f"sink {name}  keeps nothing of a pipeline; its rows are not touched"
            continue
        for what in found.removed or ("nothing is there",):
            yield f"sink {name}  {what}"
        for what in found.stays:
            yield f"sink {name}  stays: {what}"
    if place is not None:
        yield f"checkpoint  {directory} becomes {place}"
    elif not is_partial and address_in(directory) is not None:
        yield f"checkpoint  {address_in(directory)} stays, and a start with it is refused: name another one"
    if is_partial:
        yield from (_next(pipeline, checkpoint, node) for node in nodes)


def _next(pipeline: Graph, checkpoint: str, node: SinkNode) -> str:
    """Say how a sink that was reset alone gets its rows again."""
    if can_be_rebuilt(node, pipeline.name):
        rebuild = f"holdfast reconcile TARGET --checkpoint {checkpoint} --sink {node.name} --rebuild"
        return f"sink {node.name}  then: {rebuild}   (gives it every row again; until then a start is refused)"
    return (
        f"sink {node.name}  then: it begins at the present; under another name=, with backfill=True, at the beginning"
    )


def as_value(
    pipeline: Graph, planned: Mapping[str, Reset | None], directory: Path, place: Path | None, *, is_dry_run: bool
) -> dict[str, Any]:
    """Return it as a JSON value."""
    sinks = {
        name: {"removed": list(found.removed), "stays": list(found.stays)} if found else None
        for name, found in planned.items()
    }
    moved = None if place is None else {"from": str(directory), "to": str(place)}
    return {"pipeline": pipeline.name, "dry_run": is_dry_run, "sinks": sinks, "checkpoint": moved}


def rewind_(
    target: Target,
    checkpoint: Checkpoint,
    to: Annotated[
        str, typer.Option("--to", metavar="EPOCH|TIME|NAME", help="An epoch, a time, or the name of a checkpoint.")
    ],
    left_out: Annotated[
        list[str] | None,
        typer.Option("--except", metavar="SINK", help="Leave this sink as it is; may be repeated."),
    ] = None,
    shard: Annotated[
        int | None, typer.Option(metavar="K", help="Only this shard, of a pipeline that runs in some.", min=0)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Take over even if a run seems to be alive.")] = False,
    as_json: AsJson = False,
) -> None:
    """Go back: withdraw from every sink what was published since, and let the next run start there."""
    with frame.settings(as_json) as settings:
        from holdfast.starts.rewind import Rewinding

        loaded = load_target(target)
        targets = targets_of(loaded, checkpoint)
        chosen = chosen_of(targets, shard)
        if targets[0].shard is not None:
            from holdfast.controller.layouts.rearranging import Rearranging

            Rearranging(loaded, viewed_directory(checkpoint), settings).check_moved()
        if len(chosen) > 1:
            said = f"rewind {target} --to {to}"
            _rewind_all(chosen, settings, said, to, left_out or (), dry_run=dry_run, force=force, as_json=as_json)
            return
        pipeline, checkpoint = chosen[0].graph, chosen[0].checkpoint
        frame.check_has_run(checkpoint, pipeline.name)
        inspection = frame.inspected(checkpoint, None)
        frame.check_owner(inspection, pipeline)
        frame.check_has_spark(directory := viewed_directory(checkpoint), "A rewind")
        rewinding = Rewinding(pipeline, open_store(str(directory)), directory, settings)
        if dry_run:
            planned = rewinding.plan(to, left_out or ())
            first = words.open_lines(inspection)
            answer = {"dry_run": True, "carried_through": None, **inspected_json(planned)}
            frame.answer(answer, [*first, *words.rewind_lines(pipeline.name, planned)], as_json)
            return
        if not force:
            frame.check_nobody_runs(inspection.owner, "rewinding takes the pipeline over, and would fence it.")
        with frame.log_file(directory, settings, as_json):
            frame.note_start(f"rewind {target} --to {to}")
            if len(targets) > 1:  # one of all shards that was interrupted comes first
                _rewinding(targets, settings, check_nobody_runs=not force).carry_through()
            before = rewinding.carry_through()
            done = rewinding.do(to, left_out or ())
        answer = {
            "dry_run": False,
            "carried_through": None if before is None else before.rewound_to,
            **inspected_json(done),
        }
        frame.answer(answer, words.rewind_lines(pipeline.name, done), as_json)


def _rewind_all(
    targets: Sequence[ShardTarget],
    settings: Settings,
    said: str,
    to: str,
    left_out: Sequence[str],
    *,
    dry_run: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Rewind all shards that have run."""
    rewinding = _rewinding(targets, settings, check_nobody_runs=not (force or dry_run))
    if dry_run:
        found = rewinding.plan(to, left_out)
    else:
        with frame.log_file(viewed_directory(targets[0].checkpoint), settings, as_json):
            frame.note_start(said)
            found = rewinding.do(to, left_out)
    shards = {str(shard): inspected_json(of) for shard, of in found.items()}
    frame.answer({"dry_run": dry_run, "shards": shards}, _lines_of_all(targets, found), as_json)


def rewind_preview(targets: Sequence[ShardTarget], settings: Settings, to: str) -> list[str]:
    """Say what a rewind of all shards would do, as its dry run does."""
    return _lines_of_all(targets, _rewinding(targets, settings, check_nobody_runs=False).plan(to))


def _lines_of_all(targets: Sequence[ShardTarget], found: Mapping[int, Rewound]) -> list[str]:
    begun = [(each, found[each.shard]) for each in targets if each.shard is not None and each.shard in found]
    return [f"{each.prefix}{line}" for each, of in begun for line in words.rewind_lines(each.graph.name, of)]


def _rewinding(targets: Sequence[ShardTarget], settings: Settings, *, check_nobody_runs: bool) -> ShardsRewinding:
    """Return what rewinds all shards that have run."""
    from holdfast.controller.rewinding import ShardsRewinding
    from holdfast.starts.rewind import Rewinding

    rewindings = {}
    for each in targets:
        place = viewed_directory(each.checkpoint)
        if not frame.has_run(place):
            continue
        inspection = frame.inspected(each.checkpoint, None)
        frame.check_owner(inspection, each.graph)
        frame.check_has_spark(place, "A rewind")
        if check_nobody_runs:
            frame.check_nobody_runs(inspection.owner, "rewinding takes the pipeline over, and would fence it.")
        rewindings[each.shard or 0] = Rewinding(each.graph, open_store(str(place)), place, settings)
    store = open_store(str(viewed_directory(targets[0].checkpoint)))
    return ShardsRewinding(targets[0].graph.name, store, rewindings)
