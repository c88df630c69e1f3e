"""``holdfast check`` and ``plan``: what can be known of a pipeline, and of its next start, without running it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli import frame, words
from holdfast.cli.frame import (
    AsJson,
    BeginAt,
    BeginState,
    Checkpoint,
    DropState,
    FromCheckpoint,
    RebuildState,
    Shards,
    Target,
)
from holdfast.cli.target import load_target
from holdfast.cli.words import warning_lines
from holdfast.config import Settings
from holdfast.errors import HoldfastError, InvalidPipeline
from holdfast.explain import derived_names
from holdfast.expressions.statement import mistake_in
from holdfast.json_values import as_json as inspected_json
from holdfast.observe.changes import exit_code, new_column_lines
from holdfast.observe.drift import drift_lines, drifts
from holdfast.observe.foreseen import foreseen
from holdfast.observe.ledgers import ask_ledgers
from holdfast.observe.reading import Targets, examined
from holdfast.observe.time_indexes import time_index_lines
from holdfast.pipeline import Pipeline
from holdfast.plan.warnings import waits_to_mind
from holdfast.starts.refusals import check_change
from holdfast.steer.controls import Controls
from holdfast.steer.entries import controls_for
from holdfast.store.paths import viewed_directory
from holdfast.types.units import time_us

FREE_LEAST = 1 << 30
"""Free bytes below which a checkpoint's disk is worth a word."""


def check_(
    target: Target,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", metavar="DIR", help="Its disk is looked at, too.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what a start would fail at: expressions, paths, sinks, Java, disk.  Changes nothing; code 2 if anything."""
    with frame.settings(as_json) as settings:
        pipeline = load_target(target)
        directory = None if checkpoint is None else viewed_directory(checkpoint)
        errors = [*findings(pipeline, directory), *_memory(settings)]
        unchecked = unchecked_by(pipeline) if not errors else []
        minded = [] if errors else waits_to_mind(pipeline)
        found = [{"what": each.what, "why": each.why, "do": each.do, "node": each.participant} for each in errors]
        answer = {"findings": found, "not_checked": unchecked, "warnings": minded}
        frame.answer(answer, _lines(pipeline, errors, unchecked, minded), as_json)
        if errors:
            raise typer.Exit(2)


def plan_(
    target: Target,
    checkpoint: Checkpoint,
    force: Annotated[bool, typer.Option("--force", help="Say what run --force would do.")] = False,
    drop_state: DropState = None,
    rebuild_state: RebuildState = False,
    from_checkpoint: FromCheckpoint = None,
    at: BeginAt = None,
    state: BeginState = None,
    shards: Shards = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show what is kept, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say what a start of this graph would change; it changes nothing.  Code 0: nothing, 10: something, 2: refused."""
    with frame.settings(as_json) as settings:
        from holdfast.starts.start_at import StartAt

        given = beginning(from_checkpoint, at, state)
        pipeline = load_target(target)
        begins, directory = StartAt.of(pipeline, **given), viewed_directory(checkpoint)
        if shards is not None and frame.has_run(directory):
            frame.plan_shards(pipeline, directory, settings, shards, as_json)
            return
        minded = [*derived_names(pipeline), *waits_to_mind(pipeline)]
        inspection = frame.inspected(checkpoint, pipeline) if frame.has_run(directory) else None
        asked: dict[str, Any] = {"drop_state": frozenset(drop_state or ()), "rebuild_state": rebuild_state}
        found = foreseen(pipeline, checkpoint, directory, settings, inspection, begins=begins, **asked)
        targets, planned = examined(pipeline), found.plan
        told = controls_for(directory, pipeline.name) if frame.has_run(directory) else Controls()
        told_lines = [] if told.is_empty else [f"told: {line}" for line in told.lines()]
        drift = drifts(pipeline)
        said = [*words.warning_lines(minded), *new_column_lines(targets), *drift_lines(drift), *told_lines]
        more = {"warnings": minded, "new_columns": targets.new_columns, "controls": told.as_json()}
        more["drift"] = inspected_json(tuple(drift))
        if planned is None:
            answer = {"directory": None, "change": None, **more, **words.unasked_json(found)}
            frame.answer(answer, [*words.first_lines(checkpoint, pipeline.name, found), *said], as_json)
            check_targets(targets)
            return
        if as_json:
            behind = inspected_json(found.inspection.behind)
            indexes = inspected_json(found.inspection.time_indexes)
            more |= {"behind": behind, "time_indexes": indexes}
            frame.print_json({**words.foreseen_json(found), **more})
        else:
            if found.is_lost and inspection is None:
                frame.print_lines(words.lost_lines(checkpoint, pipeline.name, found, shows_refusal=False))
            else:
                refused = bool(targets.misfits)
                lines = words.plan_lines(pipeline.name, planned, shows_kept=verbose, is_refused=refused)
                indexes = time_index_lines(found.inspection.time_indexes)
                frame.print_lines([*lines, *indexes, *words.behind_lines(found.inspection)])
            frame.print_lines(said)
        if planned.change is not None:
            is_forced = force or settings.force_graph_change
            check_change(planned.change, pipeline.name, is_forced=is_forced, drop_state=drop_state or settings.dropped)
        if planned.refusal is not None:
            raise planned.refusal
        check_targets(targets)
        if code := exit_code(planned, targets):
            raise typer.Exit(code)


def beginning(from_checkpoint: str | None, at: str | None, state: Sequence[str] | None) -> dict[str, Any]:
    """Return how a pipeline is to begin, as arguments of a start; here, for errors to name what was typed."""
    if at is not None and not at.isdigit():
        time_us(at, argument="--at")
    given = {"from_checkpoint": from_checkpoint, "at": at, "state": _initial_state(state or ()) or None}
    return {name: value for name, value in given.items() if value is not None}


def ending(until: str | None) -> dict[str, Any]:
    """Return where a run is to end, as an argument of a start."""
    if until is not None and not until.isdigit():
        time_us(until, argument="--until")
    return {} if until is None else {"until": until}


def _initial_state(given: Sequence[str]) -> dict[str, str]:
    found = {}
    for each in given:
        name, equals, path = each.partition("=")
        if not (name and equals and path):
            raise typer.BadParameter(f"--state {each}: write NAME=PATH, an operator and a Parquet file.")
        if name in found:
            raise typer.BadParameter(f"--state names {name} twice.")
        found[name] = path
    return found


def findings(pipeline: Pipeline, directory: Path | None) -> Iterator[HoldfastError]:
    """Yield what a start would be refused for, or would fail at."""
    mistakes = list(_expressions(pipeline)) or list(_graph(pipeline))
    yield from mistakes
    yield from _paths(pipeline)
    yield from _sinks(pipeline, are_rows_known=not mistakes)
    yield from _spark(pipeline)
    if directory is not None:
        yield from _disk(directory)


def _spark(pipeline: Pipeline) -> Iterator[HoldfastError]:
    from holdfast.spark.launch.java import require_java
    from holdfast.spark.spark_versions import require_spark

    for require in (partial(require_spark, None, pipeline.sources), require_java):
        try:
            require()
        except HoldfastError as error:
            yield error


def unchecked_by(pipeline: Pipeline) -> list[str]:
    """Return the operators that only Spark can check, where their expressions do not tell."""
    from holdfast.plan.cutting import left_to_spark

    return [node.name for node in left_to_spark(pipeline) if node.kind in ("map", "sql")]


def check_targets(targets: Targets) -> None:
    """Refuse tables into which the rows of a pipeline do not fit, as a start does; those out of reach are left out.

    Raises
    ------
    InvalidPipeline
        Of the first sink, with a note for each of the others.
    """
    refused = [error for error in targets.misfits if isinstance(error, InvalidPipeline)]
    for other in refused[1:]:
        refused[0].add_note(f"Also: {other.what}")
    if refused:
        raise refused[0]


def _graph(pipeline: Pipeline) -> Iterator[HoldfastError]:
    try:
        pipeline.explain()
    except HoldfastError as error:
        yield error


def _expressions(pipeline: Pipeline) -> Iterator[HoldfastError]:
    for node in pipeline.nodes:
        spec: Any = node.spec
        if node.kind not in ("select", "filter"):
            continue
        texts = spec.items if node.kind == "select" else [spec.condition]
        texts_of_columns = _strings(pipeline, node)
        for text in filter(lambda each: isinstance(each, str), texts):
            mistake = mistake_in(text, texts_of_columns)
            if mistake is not None:
                why, do = mistake
                what = f"{node.kind} {node.name!r}, built at {node.origin}, has the expression {text!r}."
                yield InvalidPipeline(
                    what, why=why, do=f"mend the expression: {do}", pipeline=pipeline.name, participant=node.name
                )


def _strings(pipeline: Pipeline, node: Any) -> frozenset[str]:
    """Return the columns of an operator's input that are texts, where it reads a source."""
    (before, *_) = node.inputs
    if not before.is_source:
        return frozenset()
    return frozenset(field.name.lower() for field in before.source_spec.schema if str(field.type) == "string")


def _paths(pipeline: Pipeline) -> Iterator[HoldfastError]:
    for node in pipeline.sources:
        path = dict(node.arguments()).get("path")
        if not isinstance(path, str) or "://" in path or any(mark in path for mark in "*?["):
            continue
        if not Path(path).expanduser().exists():
            yield InvalidPipeline(
                f"source {node.name!r}, built at {node.origin}, reads {path!r}, which is not there.",
                why="a run would wait for files there, and read none.",
                do="correct the path, or make the directory.",
                pipeline=pipeline.name,
                participant=node.name,
            )


def _sinks(pipeline: Pipeline, *, are_rows_known: bool) -> Iterator[HoldfastError]:
    from holdfast.checkpoint.schemas import OUT_OF_REACH

    refused = {}
    if are_rows_known:
        for error in examined(pipeline).misfits:
            refused[error.participant] = error
            yield error
    for name, why in ask_ledgers(pipeline).unknown.items():
        if name in refused or why in OUT_OF_REACH.values():
            continue
        yield InvalidPipeline(
            f"sink {name!r} does not answer.",
            why=why,
            do="start its system, or correct the address and the password in the declaration.",
            pipeline=pipeline.name,
            participant=name,
        )


def _memory(settings: Settings) -> Iterator[HoldfastError]:
    has = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    if settings.driver_memory_mib > has:
        yield InvalidPipeline(
            f"HOLDFAST_DRIVER_MEMORY is {settings.driver_memory}, and this machine has {has} MiB.",
            why="the driver's JVM may use so much, and the system would end it.",
            do="choose less: HOLDFAST_DRIVER_MEMORY=1g is enough where rows are not evaluated by Spark.",
        )


def _disk(directory: Path) -> Iterator[HoldfastError]:
    there = next(each for each in (directory, *directory.parents) if each.exists())
    free = shutil.disk_usage(there).free
    if free < FREE_LEAST:
        yield InvalidPipeline(
            f"the disk of checkpoint {directory} has {free >> 20} MiB free.",
            why="a run that cannot write its checkpoint stops.",
            do="free space there, or choose another directory.",
        )


def _lines(pipeline: Pipeline, errors: list[HoldfastError], unchecked: list[str], minded: list[str]) -> Iterator[str]:
    for error in errors:
        yield f"! {error.what}"
        yield f"  Why: {error.why}"
        yield f"  Do:  {error.do}"
    yield from warning_lines(minded)
    if unchecked:
        yield f"not checked without Spark: {', '.join(unchecked)}; holdfast explain --spark does"
    yield f"pipeline {pipeline.name!r}: " + (f"{len(errors)} to mend" if errors else "nothing to mend was found")
