"""The command ``holdfast resolve``: of a pipeline, or of each of its shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from holdfast.cli import frame, words
from holdfast.cli.frame import AsJson, Checkpoint, Target
from holdfast.cli.reject_rows import Rejected, rejected_json, rejected_lines
from holdfast.cli.target import load_target
from holdfast.config import Settings
from holdfast.controller.shard_targets import ShardTarget, chosen_of, targets_of
from holdfast.errors import HoldfastError
from holdfast.graph.event_time import common_unit
from holdfast.json_values import as_json as inspected_json
from holdfast.observe.inspection import Inspection
from holdfast.store.paths import open_store, viewed_directory

Answer = tuple[dict[str, Any], list[str], HoldfastError | None]
"""As JSON, for people, and why the next start is refused."""


def resolve_(
    target: Target,
    checkpoint: Checkpoint,
    epoch: Annotated[int | None, typer.Option(metavar="N", help="Report on this epoch only.")] = None,
    shard: Annotated[
        int | None, typer.Option(metavar="K", help="Only this shard, of a pipeline that runs in some.", min=0)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")] = False,
    reject_rows: Annotated[
        bool, typer.Option("--reject-rows", help="Make dead letters of rows of decided epochs that a sink refuses.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Take over even if a run seems to be alive.")] = False,
    as_json: AsJson = False,
) -> None:
    """Publish or drop what is in doubt, as the next start would.  Needs no Java; fences a run that is alive."""
    with frame.settings(as_json) as settings:
        pipeline = load_target(target)
        targets = chosen_of(targets_of(pipeline, checkpoint), shard, is_one=epoch is not None)
        if len(targets) == 1:
            frame.check_has_run(targets[0].checkpoint, targets[0].graph.name)
        begun = [each for each in targets if frame.has_run(viewed_directory(each.checkpoint))]
        inspected = {each: frame.inspected(each.checkpoint, each.graph if dry_run else None) for each in begun}
        for each, inspection in inspected.items():
            _check(each, inspection, epoch, force=force or dry_run)
        asked = (target, epoch, reject_rows, as_json)
        answers = {
            each: _would_resolve(each, inspection, epoch, settings, reject_rows=reject_rows)
            if dry_run
            else _resolve(each, settings, *asked)
            for each, inspection in inspected.items()
        }
        frame.answer(_value(answers), _lines(answers), as_json)
        if refusal := next((refusal for *_, refusal in answers.values() if refusal is not None), None):
            raise refusal


def _check(target: ShardTarget, inspection: Inspection, epoch: int | None, *, force: bool) -> None:
    from holdfast.cli.resolve import check_epoch_is_open

    frame.check_owner(inspection, target.graph)
    if epoch is not None:
        check_epoch_is_open(inspection, epoch)
    if not force:
        why = "resolving takes the pipeline over, and would fence it; a run resolves its own epochs in doubt."
        frame.check_nobody_runs(inspection.owner, why)


def _would_resolve(
    target: ShardTarget, inspection: Inspection, epoch: int | None, settings: Settings, *, reject_rows: bool
) -> Answer:
    from holdfast.cli.resolve import resolving_would_reject

    store = open_store(str(viewed_directory(target.checkpoint)))
    found = resolving_would_reject(target.graph, store, settings) if reject_rows else None
    answer = {"dry_run": True, **inspected_json(inspection), **rejected_json(found)}
    return answer, [*words.verdict_lines(inspection, epoch), *rejected_lines(found, dry_run=True)], None


def _resolve(
    target: ShardTarget, settings: Settings, said: str, epoch: int | None, reject_rows: bool, as_json: bool
) -> Answer:
    from holdfast.cli.resolve import Resolving

    graph, directory = target.graph, viewed_directory(target.checkpoint)
    rejected = Rejected() if reject_rows else None
    with frame.log_file(directory, settings, as_json):
        frame.note_start(f"resolve {said}")
        resolved = Resolving(graph, open_store(str(directory)), directory, settings).do(rejected)
    unit, is_at_pts = common_unit(graph.sources), graph.commit_at is not None
    answer = {"dry_run": False, **inspected_json(resolved.resumption), **rejected_json(rejected)}
    lines = [
        *rejected_lines(rejected, dry_run=False),
        *words.resolved_lines(graph.name, resolved, epoch, unit, is_at_pts=is_at_pts),
    ]
    return {**answer, **words.start_json(resolved.case, resolved.refusal)}, lines, resolved.refusal


def _value(answers: Mapping[ShardTarget, Answer]) -> dict[str, Any]:
    """Return the answer as JSON: of shards each under its number."""
    shards = {str(target.shard): value for target, (value, *_) in answers.items() if target.shard is not None}
    return {"shards": shards} if shards else next((value for value, *_ in answers.values()), {})


def _lines(answers: Mapping[ShardTarget, Answer]) -> Iterator[str]:
    for target, (_, lines, _) in answers.items():
        yield from (f"{target.prefix}{line}" for line in lines)
