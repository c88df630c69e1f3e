"""What every command runs in: settings, messages, errors as exit codes, the log, the checkpoint, the answer."""

from __future__ import annotations

import json
import logging
import os
import platform
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast import __version__
from holdfast.checkpoint.directory_header import newest_directory
from holdfast.cli.failures import reported
from holdfast.clock import SystemClock
from holdfast.commit.owner import Owner
from holdfast.config import Settings, mistaken_variables
from holdfast.errors import InvalidPipeline
from holdfast.graph.graph import Graph
from holdfast.masking import masked, masked_json
from holdfast.observe.inspection import Inspection, inspect_checkpoint
from holdfast.observe.ledgers import lease_report
from holdfast.observe.logs import FILE_NAME, FILE_ONLY, logging_to
from holdfast.observe.reading import configuration, inspect_sources
from holdfast.observe.shards import shard_reports
from holdfast.observe.sink_answers import inspect_sinks, sinks_behind
from holdfast.ports import Store
from holdfast.shards.layout import newest_layout
from holdfast.shards.naming import shard_checkpoint
from holdfast.store.paths import open_store, viewed_directory
from holdfast.store.scratch import address_in

_log = logging.getLogger(__name__)

Target = Annotated[str, typer.Argument(metavar="TARGET", help="The pipeline: file.py:name or module:name.")]
SparkCheckpoint = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="Checkpoint in an object store: where Spark's part of it lies. Default: HOLDFAST_SPARK_CHECKPOINT.",
    ),
]
Checkpoint = Annotated[
    str,
    typer.Option(
        "--checkpoint", metavar="DIR", help="The pipeline's own directory, or its address in an object store."
    ),
]
DropState = Annotated[
    list[str] | None,
    typer.Option("--drop-state", metavar="NAME", help="A removed operator whose state may be dropped."),
]
FromCheckpoint = Annotated[
    str | None, typer.Option(metavar="WHERE", help="First start only: begin at a named checkpoint (NAME or DIR/NAME).")
]
BeginAt = Annotated[
    str | None, typer.Option(metavar="TIME", help="First start only: begin at a time (ISO 8601, or ticks).")
]
Shards = Annotated[
    int | None,
    typer.Option(metavar="N", help="Run it in N shards. Default: HOLDFAST_SHARDS, else as many as before.", min=1),
]
OnlyShard = Annotated[
    int | None, typer.Option(metavar="K", help="Run this shard alone, of those that the checkpoint has.", min=0)
]
ShownShard = Annotated[
    int | None, typer.Option("--shard", metavar="K", help="Show this shard, of a pipeline that runs in some.", min=0)
]
EndAt = Annotated[str | None, typer.Option(metavar="TIME", help="End the run at a time: rows before it take effect.")]
BeginState = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=PATH",
        help="First start only: the state of an operator, as Parquet (see inspect).",
    ),
]
RebuildState = Annotated[
    bool,
    typer.Option("--rebuild-state", help="Compute state that is lost again from the sources: see holdfast plan."),
]
CompareOnStart = Annotated[
    bool,
    typer.Option(
        "--compare-on-start", help="Compare the sinks with their sources, and mend what differs, before going on."
    ),
]
CompareSink = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="As --compare-on-start, for one sink; refused if it cannot be compared."),
]
DigestsOnly = Annotated[
    bool,
    typer.Option(
        "--digests-only", help="Keep digests of what sinks should hold instead of its rows: they take little disk."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Answer on stdout as JSON.")]


@contextmanager
def settings(as_json: bool) -> Iterator[Settings]:
    """Settings, messages on stderr, and errors as exit codes."""
    with logging_to(None), reported(as_json=as_json):
        read = Settings()
        with logging_to(None, level=read.log_level, as_json=read.log_json):
            for warning in mistaken_variables():
                _log.warning("%s", warning)
            # Inside too, for the traceback of an unforeseen error to be shown at level DEBUG.
            with reported(as_json=as_json):
                yield read


@contextmanager
def log_file(directory: Path, settings: Settings, as_json: bool, *, another_rotates: bool = False) -> Iterator[None]:
    """Besides, the log in the checkpoint; it gets the traceback of whatever ends the command."""
    file = directory / FILE_NAME
    with (
        logging_to(file, level=settings.log_level, as_json=settings.log_json, another_rotates=another_rotates),
        reported(as_json=as_json, log_file=file),
    ):
        yield


def note_start(command: str) -> None:
    """Begin each command's part of the log with what its reader needs first."""
    where = f"Python {platform.python_version()} on {platform.platform()}, process {os.getpid()}"
    _log.info("holdfast %s: %s; %s", __version__, command, where, extra={FILE_ONLY: True})


def note_settings(settings: Settings) -> None:
    """Record what is set, and by what; values of secrets are covered."""
    given = [f"{one.variable}={one.value} ({one.whence})" for one in configuration(settings).settings if one.is_given]
    _log.info("settings: %s", ", ".join(given) or "all at their defaults", extra={FILE_ONLY: True})


def inspected(checkpoint: str, pipeline: Graph | None) -> Inspection:
    """Look into a checkpoint; with its pipeline, ask sinks and sources too."""
    store = existing_store(checkpoint)
    inspection = inspect_checkpoint(checkpoint, store, viewed_directory(checkpoint))
    inspection = replace(inspection, shards=shard_reports(store, str(viewed_directory(checkpoint))))
    if pipeline is None:
        return inspection
    check_owner(inspection, pipeline)
    sinks = inspect_sinks(pipeline, store, inspection)
    asked, directory = replace(inspection, sinks=sinks, lease=lease_report(pipeline)), viewed_directory(checkpoint)
    return replace(
        asked,
        behind=sinks_behind(pipeline, store, directory, asked),
        sources=inspect_sources(pipeline, asked, directory, SystemClock()),
    )


def existing_store(checkpoint: str) -> Store:
    """Return the store of a checkpoint that is there; InvalidPipeline otherwise."""
    return open_store(str(existing_directory(checkpoint)))


def shard_stores(checkpoint: str) -> list[Store]:
    """Return the stores of all shards of a checkpoint that is there, by their numbers, also of those that were given
    up; without shards, its own.
    """
    store = existing_store(checkpoint)
    layout = newest_layout(store)
    if layout is None:
        return [store]
    places = [viewed_directory(shard_checkpoint(checkpoint, shard)) for shard in range(layout.highest_count)]
    return [open_store(str(place)) for place in places]


def existing_directory(checkpoint: str) -> Path:
    """Return the directory of a checkpoint that is there; InvalidPipeline otherwise."""
    directory = viewed_directory(checkpoint)
    address = address_in(directory)
    if not directory.is_dir() or (address is not None and not has_run(directory)):
        raise InvalidPipeline(
            f"there is no checkpoint {checkpoint!r}.",
            why=f"{directory} is not a directory." if address is None else "there are no objects of one.",
            do="name an existing one.",
        )
    return directory


def has_run(directory: Path) -> bool:
    """Return whether a pipeline has run on a checkpoint, without creating anything there."""
    if address_in(directory) is not None:
        return open_store(str(directory)).get("identity.json") is not None
    return any((directory / what).exists() for what in ("identity.json", "generations", "ledger", "spark"))


def check_has_run(checkpoint: str, pipeline: str = "") -> None:
    """Refuse a directory on which nothing has run, and leave it as it is: InvalidPipeline."""
    directory = existing_directory(checkpoint)
    if not has_run(directory):
        who = f"pipeline {pipeline!r}" if pipeline else "no pipeline"
        raise InvalidPipeline(
            f"{who} has {'not ' if pipeline else ''}run on this checkpoint.",
            why=f"{directory} contains nothing of a run.",
            do="name the checkpoint that it runs with." if pipeline else "name the checkpoint of a pipeline.",
            pipeline=pipeline,
        )


def check_has_spark(directory: Path, doing: str) -> None:
    """Refuse what needs Spark's directory where that is on another machine: InvalidPipeline."""
    address = address_in(directory)
    if address is not None and not newest_directory(open_store(str(directory))):
        raise InvalidPipeline(
            f"{doing} needs Spark's part of the checkpoint {address}, which is not here.",
            why="it is on the machine where the pipeline ran last, or lost.",
            do="do it there; or run the pipeline here once (holdfast run TARGET --available-now): that makes it again.",
        )


def check_owner(inspection: Inspection, pipeline: Graph) -> None:
    """Refuse a pipeline that the checkpoint does not belong to: InvalidPipeline."""
    if inspection.pipeline not in ("", pipeline.name):
        raise InvalidPipeline(
            f"the checkpoint belongs to pipeline {inspection.pipeline!r}, not to {pipeline.name!r}.",
            why="positions and decisions of one pipeline mean nothing to another.",
            do="name the checkpoint of this pipeline, or the TARGET that the checkpoint belongs to.",
            pipeline=pipeline.name,
        )


def check_nobody_runs(owner: Owner, why: str) -> None:
    """Refuse what must not be done while a process is alive on this host.

    Parameters
    ----------
    owner : Owner
        Who took the pipeline over last.
    why : str
        What it would do to that one.

    Raises
    ------
    InvalidPipeline
        If it is alive.
    """
    if owner.is_alive:
        raise InvalidPipeline(
            f"generation {owner.generation} seems to run: process {owner.pid} on this host is alive.",
            why=why,
            do="stop it first (Ctrl-C, or kill -TERM); if that process is another program by now, add --force.",
            generation=owner.generation,
        )


def print_lines(lines: Iterable[str]) -> None:
    """Print an answer for people."""
    for line in lines:
        sys.stdout.write(masked(line) + "\n")
    sys.stdout.flush()


def answer(value: Any, lines: Iterable[str], as_json: bool) -> None:
    """Print an answer as a JSON value or as lines."""
    if as_json:
        print_json(value)
    else:
        print_lines(lines)


def plan_shards(pipeline: Graph, directory: Path, settings: Settings, shards: int, as_json: bool) -> None:
    """Say what another number of shards would do; exit with code 10 where it does anything, raise why it cannot be."""
    from holdfast.controller.layouts.rearranging import Rearranging

    planned = Rearranging(pipeline, directory, settings).plan(shards)
    answer(planned.as_json(), planned.lines(), as_json)
    if planned.before != planned.after and planned.refusal is not None:
        raise planned.refusal
    if planned.before != planned.after or planned.is_unfinished:
        raise typer.Exit(10)


def print_json(value: Any) -> None:
    """Print an answer as one line of JSON."""
    # Masked before, and not as a text: there, a key `token` would have its value covered, quotes and brackets too.
    sys.stdout.write(json.dumps(masked_json(value), ensure_ascii=False) + "\n")
    sys.stdout.flush()
