"""``holdfast reconcile``: compare a sink with what it should hold, and make it hold that."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli import frame
from holdfast.cli.frame import AsJson, Checkpoint, DigestsOnly, Target
from holdfast.cli.target import load_target
from holdfast.commit.owner import noted_owner
from holdfast.errors import InvalidPipeline
from holdfast.graph.graph import Graph
from holdfast.graph.nodes import SinkNode
from holdfast.reconcile.report import Reconciled
from holdfast.reconcile.stand_ins import followed, in_place
from holdfast.shards.layout import ShardLayout
from holdfast.shards.naming import shard_checkpoint
from holdfast.store.paths import open_store, viewed_directory

_log = logging.getLogger(__name__)

DIFFERENT = 1
"""Exit code where rows differ and are not repaired."""


def reconcile(
    target: Target,
    checkpoint: Checkpoint,
    sink: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The sink to compare. May be omitted if the pipeline has only one."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Compare, and change nothing (the default).")] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Write the missing rows, and remove the surplus ones.")
    ] = False,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Fill a sink that was emptied, or restored from an old copy.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Repair even if a run seems to be alive.")] = False,
    shadow: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="Directory in which the expected content is kept, to continue from it the next time."
        ),
    ] = None,
    digests_only: DigestsOnly = False,
    examples: Annotated[int, typer.Option(metavar="N", help="How many rows of each kind are shown.", min=0)] = 3,
    as_json: AsJson = False,
) -> None:
    """Compare the rows of a sink with those that it should hold, computed again from the sources.

    Exit code 0 where they are equal or repaired, 1 where they differ.
    """
    if dry_run + repair + rebuild > 1:
        raise typer.BadParameter("--dry-run, --repair and --rebuild exclude each other.")
    if rebuild and digests_only:
        raise typer.BadParameter("--rebuild writes all rows of a sink, and --digests-only keeps none.")
    with frame.settings(as_json) as settings:
        from holdfast.controller.layouts.found_shards import known_layout
        from holdfast.controller.layouts.graph import ShardGraphs
        from holdfast.controller.reconciling import ShardsReconciling
        from holdfast.spark.launch import jvm
        from holdfast.spark.launch.early import begin
        from holdfast.starts.shadows.rebuilding import Rebuilding
        from holdfast.starts.shadows.reconciling import Reconciling, replica_shadow, shadow_directory
        from holdfast.starts.shadows.shadow import Shadow

        pipeline = load_target(target)
        directory = viewed_directory(checkpoint)
        layout = known_layout(pipeline, directory)
        places = [directory] if layout is None else shard_places(checkpoint, layout)
        for place in places if (repair or rebuild) and not force else ():
            if frame.has_run(place):
                owner = noted_owner(open_store(str(place)))
                frame.check_nobody_runs(owner, "it takes the pipeline over, and would fence it.")
        kept = None if shadow is None else Path(shadow).absolute()
        node = the_sink(pipeline, sink)
        of_replica = replica_shadow(directory)
        stand_in = in_place(digests_only=digests_only)
        its_shadow = Shadow(pipeline, followed(pipeline), of_replica, settings, stand_in=stand_in)
        if kept is None and its_shadow.is_what_was_kept:
            kept = of_replica
        where = kept or shadow_directory(directory, node.name)
        if not where.exists():  # where something is kept, there may be nothing to compute
            begin(pipeline, {"settings": settings})
        asked = Reconciling(
            pipeline,
            node,
            directory,
            where,
            settings,
            _tell,
            examples,
            # With digests the sources may have to be read once more, and of shards each computes for itself.
            rest=jvm.end if layout is None and not digests_only else lambda: None,
            digests_only=digests_only,
        )
        shards = None if layout is None else ShardsReconciling(ShardGraphs(pipeline, directory), layout, asked, places)
        whole = shards or asked
        try:
            if rebuild:
                found = Rebuilding(asked).do() if shards is None else shards.rebuild()
            else:
                found = whole.repair() if repair else whole.look()
        finally:
            if kept is None:
                whole.forget()
        frame.answer(as_value(found), lines(found), as_json)
    if not found.is_equal and found.repaired_count is None:
        raise typer.Exit(DIFFERENT)


def shard_places(checkpoint: str, layout: ShardLayout) -> list[Path]:
    """Return the checkpoints of the shards of a pipeline, by their numbers."""
    return [viewed_directory(shard_checkpoint(checkpoint, shard)) for shard in range(layout.shard_count)]


def the_sink(pipeline: Graph, name: str | None) -> SinkNode:
    """Return the sink of a name; without one, the only sink.

    Raises
    ------
    InvalidPipeline
        If there is none, or there are several.
    """
    found = [node for node in pipeline.sinks if name in (None, node.name)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(node.name for node in pipeline.sinks)
    raise InvalidPipeline(
        f"pipeline {pipeline.name!r} has {f'no sink {name!r}' if name else 'several sinks'}.",
        why=f"its sinks: {names}.",
        do="name one of them: --sink NAME.",
        pipeline=pipeline.name,
    )


def as_value(found: Reconciled) -> dict[str, Any]:
    """Return a report as a JSON value."""
    examples = [
        {"kind": kind, "expected": _plain(expected), "actual": _plain(actual)}
        for kind, expected, actual in found.examples
    ]
    left_out = [{"column": column, "what": what} for column, what in found.left_out]
    return {**asdict(found), "examples": examples, "left_out": left_out, "is_equal": found.is_equal}


def lines(found: Reconciled) -> Iterator[str]:
    """Say what was found, for people."""
    upto = f"epoch {found.epoch}" if found.shard_count == 1 else f"{found.shard_count} shards"
    yield f"{found.sink}  {upto}: {found.actual_count:,} rows, {found.expected_count:,} are expected"
    yield f"expected from  {found.expected_from}"
    for column, what in found.left_out:
        yield f"column {column}: {what} there, and is taken for that on both sides"
    if found.refused_count:
        yield f"{found.refused_count:,} rows are not there because the sink refused them: dead letters"
    if found.is_equal:
        yield f"equal; {found.duration_s:.1f} s"
        return
    counted = {"missing": found.missing_count, "extra": found.extra_count, "changed": found.changed_count}
    yield "different  " + ", ".join(f"{count:,} {what}" for what, count in counted.items())
    for kind, expected, actual in found.examples:
        if kind == "changed":
            yield f"  changed  {_show({n: v for n, v in actual.items() if v != expected[n] or n in _first(actual)})}"
            yield f"  should be  {_show({n: v for n, v in expected.items() if v != actual[n] or n in _first(actual)})}"
        else:
            yield f"  {kind}  {_show(expected or actual)}"
    yield f"{found.fetched_count:,} rows of the sink were read to find that; {found.duration_s:.1f} s"
    if found.repaired_count is None:
        yield "Nothing was changed.  With --repair these rows, and no others, are written and removed."
    else:
        yield f"Repaired: {found.repaired_count:,} rows were written and removed, in one transaction."


def _first(row: Mapping[str, Any]) -> list[str]:
    return list(row)[:1]


def _show(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in _plain(row).items())


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: v if v is None or isinstance(v, (bool, int, float, str)) else str(v) for name, v in row.items()}


def _tell(text: str) -> None:
    _log.info("reconcile: %s", text)
