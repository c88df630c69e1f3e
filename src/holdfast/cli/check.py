"""``holdfast check``: everything that can be known of a pipeline without running it (design/0031)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli import frame
from holdfast.cli.frame import AsJson, Target
from holdfast.cli.target import load_target
from holdfast.cli.words import warning_lines
from holdfast.config import Settings
from holdfast.errors import HoldfastError, InvalidPipeline
from holdfast.expressions.statement import mistake_in
from holdfast.observe.ledgers import ask_ledgers
from holdfast.observe.reading import Targets, examined
from holdfast.pipeline import Pipeline
from holdfast.plan.warnings import waits_to_mind
from holdfast.store.paths import viewed_directory

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


def findings(pipeline: Pipeline, directory: Path | None) -> Iterator[HoldfastError]:
    """Yield what a start would be refused for, or would fail at."""
    mistakes = list(_expressions(pipeline)) or list(_graph(pipeline))
    yield from mistakes
    yield from _paths(pipeline)
    yield from _sinks(pipeline, are_rows_known=not mistakes)
    try:
        from holdfast.spark.launch.java import require_java

        require_java()
    except HoldfastError as error:
        yield error
    if directory is not None:
        yield from _disk(directory)


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
