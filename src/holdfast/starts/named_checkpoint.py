"""A named checkpoint of a pipeline that does not run: of the last epoch that its Spark directory finished.

The snapshot of a clean stop is of that epoch: then nothing is read.  Else its state is read through a view, as for a
changed graph.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.checkpoint import named
from holdfast.checkpoint.directory_header import FILE_NAME, DirectoryHeader, newest_directory, read_origin
from holdfast.checkpoint.graph_record import read_graph
from holdfast.checkpoint.manifest import EpochEnd, Manifest, OperatorState
from holdfast.checkpoint.snapshot import good_snapshots, verify
from holdfast.checkpoint.spark_log import check_logs, last_logged, read_offsets
from holdfast.config import Settings
from holdfast.errors import Corrupt, InvalidPipeline, Unavailable
from holdfast.plan.levels.seed import seed_of
from holdfast.ports import Clock, Store
from holdfast.spark.failure import translate
from holdfast.spark.launch.jvm_options import RowsInJvm
from holdfast.spark.launch.session import run_session, session_of
from holdfast.spark.state.reader import stored_state


def create(
    store: Store, directory: Path, name: str, *, pipeline: str, generation: int, settings: Settings, clock: Clock
) -> Manifest:
    """Make a named checkpoint of a pipeline that does not run, and return it.

    Parameters
    ----------
    store, directory : Store, Path
        Its checkpoint, and where that lies.
    name : str
        The name.
    pipeline : str
        Its name.
    generation : int
        Of the last run.
    settings : Settings
        For a session, where state has to be read.
    clock : Clock
        For the time.

    Raises
    ------
    InvalidPipeline
        If the name is taken or is none, or no epoch has been finished.
    Corrupt
        If Spark's directory cannot be read.
    Unavailable
        If the snapshot was pruned meanwhile.
    """
    named.new_name(name)
    number = newest_directory(store)
    below = f"spark/{number}"
    if number == 0:
        raise _nothing_finished(pipeline)
    header = read_origin(directory / below / FILE_NAME)
    check_logs(directory / below)
    batch_id = last_logged(directory / below, "commits")
    if batch_id < 0 or batch_id + 1 < len(header.seek) - 1:
        raise _nothing_finished(pipeline)
    found = read_offsets(directory / below, batch_id)
    step_epoch, batch_us = header.step_time(batch_id, found.batch_us)
    ended = EpochEnd(header.base + batch_id, step_epoch, found.positions, batch_us)
    made = _there_already(store, header, ended)
    if made is None:
        graph = read_graph(store, below)
        operators: dict[str, OperatorState] = {}
        if graph.state_schemas:
            try:
                seed = seed_of(directory, below)
                operators = stored_state(
                    lambda: run_session(session_of(settings, rows=RowsInJvm.NONE), 1),
                    store,
                    directory,
                    below,
                    batch_id,
                    graph,
                    seed,
                )
            except Exception as error:
                raise translate(error, pipeline, f"the checkpoint {name!r}") from error
        made = Manifest(pipeline, generation, clock.now_us(), header.graph or "", ended, graph.buckets, operators)
    named.put_named(store, name, made)
    try:
        verify(store, made)  # written, then looked: a run that was started meanwhile may have pruned its files
    except Corrupt as error:
        named.delete_named(store, name)
        raise Unavailable(
            f"no checkpoint {name!r} was made.",
            why=f"{error.what} A run was started meanwhile, and has pruned it.",
            do="in the program that runs it: run.checkpoint_now(name=...); or stop it, and try again.",
            pipeline=pipeline,
        ) from error
    return made


def _there_already(store: Store, header: DirectoryHeader, ended: EpochEnd) -> Manifest | None:
    """Return the snapshot of exactly this end, if a clean stop left one."""
    for manifest in good_snapshots(store, lambda key, why: None):
        if (manifest.ended.positions, manifest.graph) == (ended.positions, header.graph):
            return manifest
    return None


def _nothing_finished(pipeline: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"pipeline {pipeline!r} has no finished epoch to make a checkpoint of.",
        why="it has not run on this checkpoint yet, or was stopped before it had caught up with its sinks.",
        do="run it first.",
        pipeline=pipeline,
    )
