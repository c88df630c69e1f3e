"""``holdfast trace`` and ``support-bundle``: where rows came from; what somebody else needs to help."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from holdfast.cli import frame, words
from holdfast.cli.frame import AsJson, Checkpoint, Target
from holdfast.cli.target import load_target
from holdfast.config import Settings
from holdfast.errors import HoldfastError, InvalidPipeline, Unavailable
from holdfast.json_values import as_json as as_json_value
from holdfast.observe.bundle import Evidence, bundle_files, write_bundle
from holdfast.observe.foreseen import foreseen
from holdfast.observe.inspection import Inspection
from holdfast.pipeline import Pipeline
from holdfast.shards.layout import newest_layout
from holdfast.shards.naming import shard_checkpoint
from holdfast.steer.client import attach


def trace_(
    target: Target,
    row_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="The id of the row, as hf.row_id made it.")
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(metavar="CONDITION", help="A condition that selects rows of the sink, in the SQL of its system."),
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", help="With --where: show at most this many rows.", min=1)] = 10,
    sink: Annotated[
        str | None, typer.Option(metavar="NAME", help="The sink that has the row. Default: all sinks.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="DIR", help="Also show the epoch. Not needed where a sink keeps a ledger.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say where a row of a sink came from: file and row, operators, epoch.  Asks the sinks; changes nothing."""
    with frame.settings(as_json):
        from holdfast.observe.trace import ids_where, lines, trace
        from holdfast.observe.traced_runs import traced_shards

        if (row_id is None) == (where is None):
            raise typer.BadParameter("give --id or --where.")

        pipeline = load_target(target)
        directory = None if checkpoint is None else frame.existing_directory(checkpoint)
        ids = [row_id] if row_id is not None else ids_where(pipeline, where or "", sink, limit=limit)
        whole, shards = traced_shards(pipeline, directory)
        found = [trace(whole, each, sink=sink, checkpoint=directory, shards=shards) for each in ids]
        values = [as_json_value(each) for each in found]
        said = [line for each in found for line in ("", f"id         {each.id}", *lines(each))][1 if ids else 0 :]
        frame.answer(values[0] if where is None else values, said if where is not None else lines(found[0]), as_json)


def support_bundle(
    checkpoint: Checkpoint,
    target: Annotated[
        str | None, typer.Argument(metavar="[TARGET]", help="Its pipeline: then its graph is in it, too.")
    ] = None,
    out: Annotated[
        str | None, typer.Option(metavar="FILE", help="Where it is written. Default: a new file in this directory.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List its files, and write nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Pack what somebody else needs to help: versions, settings, plan, log, stacks, metrics; no row of data."""
    with frame.settings(as_json) as settings:
        frame.check_has_run(checkpoint)
        files = bundle_files(_evidence(checkpoint, target, settings))
        path = Path(out or time.strftime("holdfast-support-%Y%m%dT%H%M%SZ.zip", time.gmtime()))
        sizes = {name: len(data) for name, data in files.items()}
        if not as_json:
            frame.print_lines(f"{size:>9,}  {name}" for name, size in sizes.items())
        if not dry_run:
            try:
                write_bundle(path, files)
            except OSError as error:
                raise InvalidPipeline(
                    f"the support bundle cannot be written to {str(path)!r}.",
                    why=f"{error.strerror or error}.",
                    do="name another file: --out FILE.",
                ) from error
        written = None if dry_run else str(path)
        said = "nothing was written" if dry_run else f"written to {path}; look into it before you give it away"
        frame.answer({"files": sizes, "written": written}, [said], as_json)


_T = TypeVar("_T")


def _evidence(checkpoint: str, target: str | None, settings: Settings) -> Evidence:
    """Gather what can be had: what cannot is a line of the bundle."""
    problems: list[str] = []

    def had(what: str, get: Callable[[], _T], otherwise: _T) -> _T:
        try:
            return get()
        except Exception as error:  # of any kind, users' code included: the rest is worth having
            text = error.message if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
            problems.append(f"{what}: {text}")
            return otherwise

    directory = frame.existing_directory(checkpoint)
    pipeline = None if target is None else had("pipeline", lambda: load_target(target), None)
    inspections: dict[str, Inspection] = {}
    for shard, place in _places(checkpoint).items():
        of = pipeline if not shard else None
        found = had("checkpoint", lambda place=place, of=of: frame.inspected(place, of), None)  # type: ignore[misc]
        if found is None and of is not None:
            found = had("checkpoint", lambda place=place: frame.inspected(place, None), None)  # type: ignore[misc]
        if found is not None:
            inspections[shard] = found
    return Evidence(
        directory,
        inspections,
        settings,
        pipeline,
        had("explain", pipeline.explain, "") if pipeline is not None else "",
        had("plan", lambda: _plan_of(checkpoint, pipeline, settings, inspections.get("")), ""),
        had("run", lambda: _live(directory), {}),
        tuple(problems),
    )


def _places(checkpoint: str) -> dict[str, str]:
    """Return the checkpoints of a pipeline by the number of their shards; the whole has none."""
    layout = newest_layout(frame.existing_store(checkpoint))
    shards = range(layout.highest_count if layout is not None else 0)
    return {"": checkpoint, **{str(shard): shard_checkpoint(checkpoint, shard) for shard in shards}}


def _plan_of(checkpoint: str, pipeline: Pipeline | None, settings: Settings, inspection: Inspection | None) -> str:
    if pipeline is None or inspection is None:
        return ""
    found = foreseen(pipeline, checkpoint, frame.existing_directory(checkpoint), settings, inspection)
    lines = [] if found.plan is None else words.plan_lines(pipeline.name, found.plan, shows_kept=True, is_refused=False)
    return "\n".join([*lines, *words.behind_lines(found.inspection)])


def _live(directory: Path) -> Mapping[str, Any]:
    found: Mapping[str, Any] = {}
    with suppress(Unavailable):  # none is alive here: the bundle is of what it has left
        found = attach(directory).support()
    return found
