"""``holdfast rewind``: go back, and withdraw what was published since (design/0012)."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli import frame, words
from holdfast.cli.frame import AsJson, Checkpoint, Target
from holdfast.cli.target import load_target
from holdfast.status import as_json as inspected_json
from holdfast.store.paths import open_store, viewed_directory


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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Take over even if a run seems to be alive.")] = False,
    as_json: AsJson = False,
) -> None:
    """Go back: withdraw from every sink what was published since, and let the next run start there."""
    with frame.settings(as_json) as settings:
        from holdfast.spark.resume.rewind import Rewinding

        pipeline = load_target(target)
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
            before = rewinding.carry_through()
            done = rewinding.do(to, left_out or ())
        answer = {
            "dry_run": False,
            "carried_through": None if before is None else before.rewound_to,
            **inspected_json(done),
        }
        frame.answer(answer, words.rewind_lines(pipeline.name, done), as_json)
