"""A named checkpoint of a pipeline that does not run: of the last epoch that its Spark directory finished.

The snapshot of a clean stop is of that epoch: then nothing is read.  Else its state is read through a view, as for a
changed graph.
"""

from __future__ import annotations

from dataclasses import replace
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
    has_begun_behind = bool(header.seek) and header.base > 1
    if batch_id + 1 < header.replay_count or (batch_id < 0 and not has_begun_behind):
        raise _nothing_finished(pipeline)
    if batch_id < 0:
        made = _as_begun(store, directory, below, pipeline, generation, clock.now_us())
    else:
        try:
            made = _as_finished(store, directory, below, batch_id, pipeline, generation, settings, clock)
        except Exception as error:
            raise translate(error, pipeline, f"the checkpoint {name!r}") from error
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


def _as_finished(
    store: Store,
    directory: Path,
    below: str,
    batch_id: int,
    pipeline: str,
    generation: int,
    settings: Settings,
    clock: Clock,
) -> Manifest:
    """Return the end of the last batch that a directory has finished."""
    header, found = read_origin(directory / below / FILE_NAME), read_offsets(directory / below, batch_id)
    step_epoch, batch_us = header.step_time(batch_id, found.batch_us)
    ended = EpochEnd(header.base + batch_id, step_epoch, found.positions, batch_us)
    there = _there_already(store, header, ended)
    if there is not None:
        return there
    graph, operators = read_graph(store, below), dict[str, OperatorState]()
    if graph.state_schemas:
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
    return Manifest(pipeline, generation, clock.now_us(), header.graph or "", ended, graph.buckets, operators)


def _as_begun(store: Store, directory: Path, below: str, pipeline: str, generation: int, now_us: int) -> Manifest:
    """Return the end behind which a directory began that has finished none of its own: after a move, a rewind, a fork.

    Its state is that of the snapshot that the directory began with.
    """
    header, seed = read_origin(directory / below / FILE_NAME), seed_of(directory, below)
    before = header.base - 1
    ended = EpochEnd(before, before, header.seek[-1], now_us)
    if seed is None:
        buckets = read_graph(store, below).buckets
        return Manifest(pipeline, generation, now_us, header.graph or "", ended, buckets)
    ended = replace(seed.ended, epoch=before, positions=header.seek[-1])
    return replace(seed, generation=generation, at_us=now_us, graph=header.graph or "", ended=ended)


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
