"""Which of Spark's directories a run uses: one for each shape of state, and a new one for each that was damaged.

Directories are numbered, ``spark/1/``, ``spark/2/``, ...; the highest that has its record (``origin.json``) counts.  An
older one is kept until a snapshot of the newer one is there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.checkpoint.directory_header import FILE_NAME, LEFT, newest_directory, read_origin
from holdfast.checkpoint.graph_record import GRAPH, GraphRecord, Role, read_graph, state_fingerprint
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.snapshot import snapshot_keys
from holdfast.checkpoint.spark_log import BY_NAME, BY_PLACE, check_logs, form_of, places_in
from holdfast.errors import STATE, Corrupt, HoldfastError
from holdfast.graph.graph import Graph
from holdfast.graph.nodes import SinkNode
from holdfast.masking import masked
from holdfast.plan.cutting import has_state
from holdfast.plan.levels.seed import seed_of
from holdfast.ports import Store
from holdfast.spark.spark_versions import running
from holdfast.spark.state.shape import Division, noted_shape
from holdfast.starts.table import Spark

log = logging.getLogger("holdfast.checkpoint")

DAMAGED = "damaged.json"


@dataclass(frozen=True)
class Directory:
    """The directory that a run uses.

    Parameters
    ----------
    below : str
        Where it is, below the checkpoint.
    spark : Spark
        What is left of the newest one, in the word of the table of starts.
    previous : str
        The one that was used before, where this one is new; empty when there is none.
    reasons : tuple of str
        Why the previous one cannot be used, apart from the graph.
    filling : tuple of str
        Sinks that were not in the graph before, and get everything from the beginning.
    """

    below: str
    spark: Spark
    previous: str = ""
    reasons: tuple[str, ...] = ()
    filling: tuple[str, ...] = ()

    @property
    def is_changed(self) -> bool:
        """Whether it is new because the graph has another state, and not because the one before is damaged."""
        return self.spark.is_changed


def directory_of(pipeline: Graph, store: Store, checkpoint: Path, asked: Division, misplaced: str = "") -> Directory:
    """Return the directory that a run of a pipeline uses, with what a changed graph is to do in it.

    Parameters
    ----------
    pipeline : Graph
        The graph.
    store, checkpoint : Store, Path
        The checkpoint, and where it lies.
    asked : Division
        How state is to be divided.
    misplaced : str
        A directory in which the sources of this graph had other places (:func:`check_places`); empty: there is none.

    Raises
    ------
    Corrupt, InvalidPipeline
        If the graph has changed, and the record of the one before cannot be read, or was never made.
    """

    def reasons(below: str) -> Iterator[str]:
        yield from _other_form(checkpoint / below)
        if below == misplaced:
            yield f"sources have other places in Spark's plan than in the log of {below}, which does not name them"
        yield from outgrown(pipeline, store, asked, below)

    found = find_directory(store, checkpoint, state_fingerprint(pipeline), reasons)
    if not found.is_changed:
        return found
    filling = backfilled(pipeline.sinks, read_graph(store, found.previous))
    return replace(found, spark=Spark.FILLING, filling=filling) if filling else found


class SourcesMisplaced(Exception):
    """Spark would read positions of its log as those of other sources: the start begins anew."""

    def __init__(self, below: str) -> None:
        super().__init__(below)
        self.below = below


def check_places(spark: Path, below: str, streams: Sequence[str]) -> None:
    """Refuse to go on in a directory whose log has positions by place, where other sources would have the places.

    Parameters
    ----------
    spark, below : Path, str
        Spark's directory, and where it is below the checkpoint.
    streams : sequence of str
        The sources in the order of their places.

    Raises
    ------
    SourcesMisplaced
        If they are not those of the log, in its order.
    """
    if (logged := places_in(spark)) and logged != list(streams):
        raise SourcesMisplaced(below)


def _other_form(spark: Path) -> Iterator[str]:
    """Yield why this version of Spark cannot go on with a directory: another one wrote its log in another form."""
    form, wanted = form_of(spark), BY_NAME if running().names_sources else BY_PLACE
    if form in (BY_NAME, BY_PLACE) and form != wanted:
        yield f"another version of Spark wrote {spark.name}: its log of positions has the form {form}, not {wanted}"


def find_directory(
    store: Store, checkpoint: Path, graph: str, outgrown: Callable[[str], Iterable[str]] = lambda below: ()
) -> Directory:
    """Return the directory that a run uses.

    Parameters
    ----------
    store, checkpoint : Store, Path
        The checkpoint, and where it lies.
    graph : str
        Fingerprint of the graph's state (:func:`~holdfast.checkpoint.graph_record.state_fingerprint`); empty without
        state.  Without it a damaged directory is a person's to remove, as it always was.
    outgrown : callable
        Returns why a directory does not serve any more although the state is the same: it is divided otherwise, for
        instance.

    Notes
    -----
    A changed graph is ``OTHER`` here; :func:`directory_of` decides whether a sink is filled.
    """
    number = newest_directory(store)
    if number == 0:
        return Directory("spark/1", Spark.NONE)
    below, following = f"spark/{number}", f"spark/{number + 1}"
    why = _damage(store, checkpoint / below) if graph and snapshot_keys(store) else ""
    try:
        before = graph_of(store, checkpoint, below, graph)
    except Corrupt as error:
        before, why = graph, why or error.what
    reasons = tuple(outgrown(below))
    if before != graph or reasons:
        return Directory(following, Spark.OTHER, below, reasons)
    if store.get(f"{below}/{LEFT}") is not None:
        return Directory(following, Spark.LEFT, below)
    if why and graph and snapshot_keys(store):
        return Directory(following, Spark.DAMAGED, below, (f"{below} is not used again: {why}",))
    return Directory(below, Spark.GOOD)


def log_change(chosen: Directory) -> None:
    """Log, at a start, that a run leaves the directory before and why; whoever only looks has words of its own."""
    if chosen.is_changed:
        log.info("the pipeline has changed: it continues in %s, after the epochs in %s", chosen.below, chosen.previous)
    for reason in chosen.reasons:
        log.log(logging.WARNING if chosen.spark is Spark.DAMAGED else logging.INFO, "%s", reason)


def outgrown(pipeline: Graph, store: Store, asked: Division, below: str) -> Iterator[str]:
    """Yield why a directory cannot be used for a pipeline any more, although its state is the same."""
    shape = noted_shape(store, below)
    if shape is not None and has_state(pipeline):
        yield from asked.outgrown(shape)
    if store.get(f"{below}/{GRAPH}") is None:
        return  # an older version has made it: its sinks are unknown
    before = read_graph(store, below)
    for name in backfilled(pipeline.sinks, before):
        yield f"sink {name!r} is new and gets everything from the beginning (backfill=True)"
    if not has_state(pipeline) and all(node.kind != "spark" for node in pipeline.sources):
        yield from _other_sources(before, [node.name for node in pipeline.sources])


def backfilled(sinks: Sequence[SinkNode], before: GraphRecord) -> tuple[str, ...]:
    """Return the sinks that are to get everything, and were not in the graph before."""
    return tuple(sink.name for sink in sinks if sink.backfill and sink.name not in before.nodes)


def _other_sources(before: GraphRecord, sources: Sequence[str]) -> Iterator[str]:
    """Yield the sources that were added or removed: Spark's log loses the position of one that it does not read."""
    known = [name for name, node in before.nodes.items() if node.role is Role.SOURCE]
    yield from (f"source {name!r} has come" for name in sources if name not in known)
    yield from (f"source {name!r} has gone" for name in known if name not in sources)


def graph_of(store: Store, checkpoint: Path, below: str, graph: str) -> str:
    """Return the fingerprint of the state in a directory; that of the present graph where none is recorded.

    Raises
    ------
    Corrupt
        If the record of the directory cannot be read.
    """
    noted = read_origin(checkpoint / below / FILE_NAME).graph
    if noted is not None:
        return noted
    has_state = store.get(f"{below}/state.json") is not None
    return graph if has_state == bool(graph) else "" if graph else "unknown"


def give_up(store: Store, below: str, seed: Manifest | None, error: HoldfastError) -> bool:
    """Note that the state of a directory could not be read, so that the next start takes it from a snapshot.

    Parameters
    ----------
    store : Store
        The checkpoint.
    below : str
        The directory.
    seed : Manifest, optional
        The snapshot that it began with: buckets that were not called since have their state there.
    error : HoldfastError
        What ended the run; it is made to say where the state is, and what to do.

    Returns
    -------
    bool
        Whether it was because of the state, and there is a snapshot; else nothing is noted.
    """
    is_of_seed = seed is not None and any(file.key == error.participant for file in seed.files)
    if not (error.participant == STATE or is_of_seed) or not snapshot_keys(store):
        return False
    store.put(f"{below}/{DAMAGED}", masked(error.what).encode())
    if error.participant == STATE:
        error.why = f"what it keeps in {below} cannot be read: {error.why}"
    error.participant = STATE  # by which a supervisor knows that a start mends it
    error.do = "start again: the state is then restored from the newest good snapshot."
    return True


def _damage(store: Store, spark: Path) -> str:
    noted = store.get(f"spark/{spark.name}/{DAMAGED}")
    if noted is not None:
        return noted.decode(errors="replace")
    try:
        read_origin(spark / FILE_NAME)
        check_logs(spark)
        seed_of(spark.parent.parent, f"spark/{spark.name}")
    except Corrupt as error:
        return error.what
    return ""
