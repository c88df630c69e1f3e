"""The shards of a pipeline, as its checkpoint tells: which segments each has, and what the controller recorded last."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.commit.ledger import Standing, survey
from holdfast.commit.owner import noted_owner
from holdfast.controller.checks import check_shard
from holdfast.controller.layouts.graph import ShardGraphs
from holdfast.display.lines import utc
from holdfast.graph.graph import Graph
from holdfast.ports import Store
from holdfast.shards.layout import newest_layout
from holdfast.shards.naming import shard_checkpoint
from holdfast.shards.progress import read_progress
from holdfast.store.paths import checkpoint_directory, open_store


@dataclass(frozen=True)
class ShardReport:
    """One shard.

    Parameters
    ----------
    shard : int
        Its number.
    segments : int
        How many segments (or units of them) it was given.
    has_rest : bool
        Whether it reads what appears.
    generation : int
        Of its last run; 0 when it has had none.
    is_alive : bool, optional
        Whether that run's process lives; None where nobody here knows.
    state : str
        As the controller recorded it last; empty where it has not.
    epoch, rows_total, restarts : int
        The same.
    error : str
        The same: why it failed last; empty where it has not.
    at_us : int
        When that was recorded, microseconds of Unix time; 0 where it was not.
    in_doubt : int
        Epochs that are decided and not known to be published everywhere; 0 while its process lives, which does that.
    """

    shard: int
    segments: int
    has_rest: bool = False
    generation: int = 0
    is_alive: bool | None = None
    state: str = ""
    epoch: int = 0
    rows_total: int = 0
    restarts: int = 0
    error: str = ""
    at_us: int = 0
    in_doubt: int = 0


def shard_reports(store: Store, checkpoint: str) -> tuple[ShardReport, ...]:
    """Return what is known of each shard; nothing where the pipeline has none.

    Parameters
    ----------
    store, checkpoint : Store, str
        The checkpoint of the pipeline, and where it is.
    """
    layout = newest_layout(store)
    if layout is None:
        return ()
    record = read_progress(store)
    said = {} if record is None else {each["shard"]: each for each in record.shards}
    reports = []
    for shard, count in enumerate(layout.assignment.counts()):
        own = open_store(shard_checkpoint(checkpoint, shard))
        owner = noted_owner(own)
        known = said.get(shard, {})
        reports.append(
            ShardReport(
                shard,
                count,
                shard == layout.assignment.rest,
                owner.generation,
                owner.is_alive if owner.generation else False,
                known.get("state", ""),
                known.get("epoch", 0),
                known.get("rows_total", 0),
                known.get("restarts", 0),
                known.get("error") or "",
                0 if record is None or not known else record.at_us,
                0 if owner.is_alive else sum(each.standing is Standing.OPEN for each in survey(own)),
            )
        )
    return tuple(reports)


def of_shard(pipeline: Graph | None, checkpoint: str, shard: int) -> tuple[Graph | None, str]:
    """Return the graph of a shard, where that of the pipeline is known, and where the shard's checkpoint is.

    Raises
    ------
    InvalidPipeline
        If the checkpoint does not have it.
    """
    directory = checkpoint_directory(checkpoint)
    layout = newest_layout(open_store(str(directory)))
    layout = check_shard("" if pipeline is None else pipeline.name, layout, shard)
    graph = None if pipeline is None else ShardGraphs(pipeline, directory).of(layout, shard)
    return graph, shard_checkpoint(checkpoint, shard)


def shard_lines(reports: tuple[ShardReport, ...]) -> Iterator[str]:
    """Say it to people.

    Examples
    --------
    >>> list(shard_lines((ShardReport(0, 30, generation=2, state="running", epoch=41, rows_total=1200), )))[1]
    '  shard 0     30 segments, generation 2, running, epoch 41, 1,200 rows'
    """
    if not reports:
        return
    at_us = max(each.at_us for each in reports)
    yield f"shards      {len(reports)}" + (f", as recorded {utc(at_us)}" if at_us else "")
    for each in reports:
        parts = [f"{each.segments:,} segments{' and what appears' if each.has_rest else ''}"]
        parts.append(f"generation {each.generation or '-'}")
        if each.state:
            parts += [each.state, f"epoch {each.epoch or '-'}", f"{each.rows_total:,} rows"]
        if each.in_doubt:
            parts.append(f"{each.in_doubt} epochs in doubt")
        if each.restarts:
            parts.append(f"{each.restarts} restarts")
        yield f"  shard {each.shard:<5} {', '.join(parts)}"
        if each.error:
            yield f"              {each.error.splitlines()[0]}"
