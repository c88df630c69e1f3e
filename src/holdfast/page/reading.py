"""Reads a pipeline for the page: the live run through its socket, the checkpoint and its sinks by looking.

What costs little is asked again after half a second, what asks sinks after five; several requests at once are answered
by one look.  Whatever fails is said in the view that asked.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from holdfast.capabilities import offers
from holdfast.checkpoint.explained import workspace
from holdfast.checkpoint.graph_record import Described, Role, read_graph
from holdfast.checkpoint.start_history import StartLine, noted_starts
from holdfast.config import Settings
from holdfast.connectors.reading.bounds import unmarked
from holdfast.connectors.reading.identified import IdentifiedSpec, TraceableSpec
from holdfast.display.drawing import Box, boxes_of
from holdfast.errors import HoldfastError, Unavailable
from holdfast.graph.graph import Graph
from holdfast.graph.nodes import Node
from holdfast.observe.audit_report import AuditReport, audit_report, summed_audit
from holdfast.observe.inspection import Inspection
from holdfast.observe.logs import FILE_NAME
from holdfast.observe.reading import Configuration, configuration
from holdfast.page.details import PLACES_MAX, EpochDetails, SourceSpan, StoryLine
from holdfast.ports import Store
from holdfast.positions import SourcePositions
from holdfast.shards.layout import newest_layout
from holdfast.shards.naming import shard_checkpoint, sources_place
from holdfast.starts.restore import all_steps
from holdfast.status import Status
from holdfast.steer.client import attach
from holdfast.store import records
from holdfast.store.paths import open_store, viewed_directory
from holdfast.time_use import EPOCHS_LISTED, EpochLine

T = TypeVar("T")

AT_ONCE = 16
"""How many shards are looked at, at the same time."""

LIVE_S, LOOK_S = 0.5, 5.0
"""For how long an answer of the run, and one of checkpoint and sinks, is shown again."""

RATE_S = 10.0
"""Over how long rows a second are taken."""

LOG_LINES, LOG_BYTES = 15, 16_384
"""Lines of the log that are shown, and how much of its end is read for them."""


@dataclass(frozen=True)
class CommandWords:
    """What the page says and does in the words of the command line, which gives it.

    Parameters
    ----------
    inspect : callable
        (checkpoint, graph or None) -> what checkpoint and sinks say.
    findings : callable
        Says what needs attention in that.
    letters : callable
        (checkpoint) -> the dead letters, of all shards.
    replay : callable
        (checkpoint, names, shard or None) -> which are replayed by the next start; refused while a run is alive.
    named : callable
        (checkpoint) -> the named checkpoints.
    rewind : callable
        (graph, checkpoint, to, settings) -> what a rewind would do, in the words of its dry run.
    """

    inspect: Callable[[str, Graph | None], Inspection]
    findings: Callable[[Inspection], Iterator[str]]
    letters: Callable[[str], Sequence[Mapping[str, Any]]]
    replay: Callable[[str, Sequence[str], int | None], Sequence[str]]
    named: Callable[[str], Sequence[Mapping[str, Any]]]
    rewind: Callable[[Graph, str, str, Settings], Iterator[str]]


class Remembered:
    """Answers that are given again for a while.  Any thread may ask; of several that ask at once, one looks.

    Parameters
    ----------
    now_s : callable, optional
        Time that only grows, seconds.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._turns: dict[object, threading.Lock] = {}
        self._answers: dict[object, tuple[float, Any]] = {}

    def get(self, key: object, age_s: float, look: Callable[[], T]) -> T:
        """Return the answer under a key, or look."""
        with self._lock:
            turn = self._turns.setdefault(key, threading.Lock())
        with turn:
            at, answer = self._answers.get(key, (0.0, None))
            if key not in self._answers or self._now_s() - at > age_s:
                answer = look()
                self._answers[key] = self._now_s(), answer
            found: T = answer
            return found

    def forget(self) -> None:
        """Look again, whoever asks next."""
        with self._lock:
            self._answers.clear()


@dataclass
class CheckpointReader:
    """Reads one pipeline.

    Parameters
    ----------
    checkpoint : str
        Its directory or address, as the user wrote it.
    words : CommandWords
        What the command line says.
    settings : Settings
        Of this process.
    graph : Graph, optional
        The pipeline; None: its sinks and sources cannot be asked.
    """

    checkpoint: str
    words: CommandWords
    settings: Settings
    graph: Graph | None = None
    _answers: Remembered = field(default_factory=Remembered)
    _counts: dict[int | None, deque[tuple[float, dict[str, int]]]] = field(default_factory=dict)
    _epochs: dict[int | None, tuple[int, deque[EpochLine]]] = field(default_factory=dict)

    def forget(self) -> None:
        """Look again: something was told."""
        self._answers.forget()

    # --- the live run -----------------------------------------------------------------------------------------------

    def status(self, shard: int | None) -> Status | None:
        """Return the status of the live run, or of one of its shards; None where there is none, or it does not run."""
        return self._answers.get(("status", shard), LIVE_S, lambda: self._status(shard))

    def _status(self, shard: int | None) -> Status | None:
        try:
            found = records.read(Status, attach(self.checkpoint).status(shard))
        except (Unavailable, OSError):
            return None
        if shard is not None and found.shards:
            return None  # the answer is of the whole: this shard is between two runs
        counts = {source.name: source.rows for source in found.sources} | {sink.name: sink.rows for sink in found.sinks}
        self._counts.setdefault(shard, deque(maxlen=100)).append((time.monotonic(), counts))
        return found

    def rates(self, shard: int | None) -> Mapping[str, float]:
        """Return node -> rows a second over the last seconds; nothing before the second look."""
        looks = [*self._counts.get(shard, ())]
        if not looks:
            return {}
        last_s, last = looks[-1]
        first_s, first = next((each for each in looks if last_s - each[0] <= RATE_S), looks[-1])
        if last_s <= first_s:
            return {}
        return {name: max(0, rows - first.get(name, rows)) / (last_s - first_s) for name, rows in last.items()}

    def epochs(self, shard: int | None) -> Sequence[EpochLine]:
        """Return the last epochs of the live run, the newest last."""
        return self._answers.get(("epochs", shard), LIVE_S, lambda: self._lines(shard))

    def _lines(self, shard: int | None) -> Sequence[EpochLine]:
        """Ask for those that are new, of the same run."""
        status = self.status(shard)
        if status is None:
            return ()
        generation, known = self._epochs.get(shard, (0, deque[EpochLine](maxlen=EPOCHS_LISTED)))
        if generation != status.generation:
            generation, known = status.generation, deque(maxlen=EPOCHS_LISTED)
        try:
            said = attach(self.checkpoint).epochs(known[-1].epoch if known else 0, shard)
        except (HoldfastError, OSError):
            return [*known]
        known.extend(records.read(EpochLine, each) for each in said["epochs"])
        self._epochs[shard] = generation, known
        return [*known]

    # --- checkpoint and sinks ---------------------------------------------------------------------------------------

    def inspection(self, shard: int | None) -> Inspection:
        """Return what checkpoint and sinks say."""
        return self._answers.get(("inspection", shard), LOOK_S, lambda: self.words.inspect(*self._of(shard)))

    def findings(self, shards: Sequence[int | None]) -> Mapping[int | None, Sequence[str]]:
        """Return what needs attention in that, in lines, of each of some shards; None: of the pipeline."""
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="holdfast-look") as threads:
            said = threads.map(lambda shard: [*self.words.findings(self.inspection(shard))], shards)
            return dict(zip(shards, said, strict=True))

    def audit(self, shard: int | None) -> AuditReport:
        """Return the rows of each node, of one shard or of all."""
        return self._answers.get(
            ("audit", shard), LOOK_S, lambda: summed_audit([audit_report(each) for each in self._stores(shard)])
        )

    def starts(self, shard: int | None) -> Sequence[StartLine]:
        """Return the last starts, the newest first."""
        return noted_starts(open_store(str(self._directory(shard))))

    def checkpoint_names(self, shard: int | None) -> Sequence[Mapping[str, Any]]:
        """Return the named checkpoints."""
        return self.words.named(self._of(shard)[0])

    def rewind(self, to: str, shard: int | None) -> Sequence[str]:
        """Return what a rewind would do; raises why it cannot be done."""
        graph, checkpoint = self._of(shard)[1], self._of(shard)[0]
        if graph is None:
            raise Unavailable(
                "what a rewind would withdraw is not known here.",
                why="only the pipeline's sinks can tell, and this page was started without it.",
                do="holdfast dashboard TARGET --checkpoint DIR.",
            )
        return [*self.words.rewind(graph, checkpoint, to, self.settings)]

    def letters(self, shard: int | None) -> Sequence[Mapping[str, Any]]:
        """Return the dead letters: of one shard, or of all."""
        found = self._answers.get("letters", LOOK_S, lambda: self.words.letters(self.checkpoint))
        return [each for each in found if shard is None or each.get("shard") == shard]

    def boxes(self) -> Sequence[Box]:
        """Return the graph: of the target, else as the checkpoint has it."""
        if self.graph is not None:
            return boxes_of(self.graph.nodes, self.graph.sinks, {})
        return self._answers.get("boxes", 60.0, self._noted_boxes)

    def _noted_boxes(self) -> Sequence[Box]:
        spark = self.inspection(None).spark
        if not spark:
            return ()
        try:
            return boxes_noted(read_graph(open_store(str(self._directory(None))), spark[-1].directory).nodes)
        except HoldfastError:
            return ()

    def configuration(self) -> Configuration:
        """Return the settings."""
        return configuration(self.settings)

    def log_tail(self) -> Sequence[str]:
        """Return the last lines of the log that a run from the command line keeps."""
        try:
            with open(self._directory(None) / FILE_NAME, "rb") as file:
                file.seek(max(0, file.seek(0, 2) - LOG_BYTES))
                return file.read().decode(errors="replace").splitlines()[1:][-LOG_LINES:]
        except OSError:
            return ()

    # --- one epoch --------------------------------------------------------------------------------------------------

    def details(self, epoch: int, shard: int | None) -> EpochDetails:
        """Return what is known of an epoch."""
        return self._answers.get(("details", epoch, shard), LOOK_S, lambda: self._details(epoch, shard))

    def _details(self, epoch: int, shard: int | None) -> EpochDetails:
        directory = self._directory(shard)
        step = next((each for each in all_steps(directory) if each.ended.epoch == epoch), None)
        spans: tuple[SourceSpan, ...] = ()
        if step is not None:
            ends = step.ended.positions
            spans = tuple(self._span(name, step.start.get(name, {}), end, directory) for name, end in ends.items())
        return EpochDetails(self._story(epoch, shard), spans, None if step is None else step.ended.batch_us)

    def _story(self, epoch: int, shard: int | None) -> tuple[StoryLine, ...]:
        if self.status(shard) is None:
            return ()
        try:
            said = attach(self.checkpoint).story(epoch, shard)
        except (HoldfastError, OSError):
            return ()
        return tuple(records.read(StoryLine, each) for each in said["story"])

    def _span(self, name: str, start: SourcePositions, end: SourcePositions, directory: Path) -> SourceSpan:
        moved = {
            segment: f"{at}" for segment, at in end.items() if start.get(segment) != at and not segment.startswith("@")
        }
        places = [*self._places(name, start, end, directory)]
        before = {segment: f"{at}" for segment, at in start.items() if segment in moved}
        return SourceSpan(name, before, moved, tuple(places[:PLACES_MAX]), len(places))

    def _places(self, name: str, start: SourcePositions, end: SourcePositions, directory: Path) -> Iterator[str]:
        """Yield the files, or whatever they are, between two positions of a source that can tell."""
        node = None if self.graph is None else next((each for each in self.graph.sources if each.name == name), None)
        spec = None if node is None else _traceable(node)
        if spec is None or self.graph is None:
            return
        try:
            place = workspace(sources_place(directory, self.graph.name), name)
            for known in spec.places(name, place, end):
                at, begins = known.position, start.get(known.segment, 0)
                if at is not None and at >= int(begins) and at < int(end.get(known.segment, 0)):
                    yield known.shown
        except (HoldfastError, OSError, ValueError):
            return

    # --- inside -----------------------------------------------------------------------------------------------------

    def _of(self, shard: int | None) -> tuple[str, Graph | None]:
        if shard is None:
            return self.checkpoint, self.graph
        from holdfast.observe.shards import of_shard

        graph, checkpoint = of_shard(self.graph, self.checkpoint, shard)
        return checkpoint, graph

    def _stores(self, shard: int | None) -> list[Store]:
        """Return the checkpoint of a shard, or those of all that the pipeline has, or has had."""
        own = open_store(str(self._directory(shard)))
        layout = newest_layout(own) if shard is None else None
        if layout is None:
            return [own]
        return [open_store(str(self._directory(each))) for each in range(layout.highest_count)]

    def _directory(self, shard: int | None) -> Path:
        return viewed_directory(self.checkpoint if shard is None else shard_checkpoint(self.checkpoint, shard))


def _traceable(node: Node) -> TraceableSpec | None:
    spec = unmarked(node.source_spec)
    given = spec.given if isinstance(spec, IdentifiedSpec) else spec
    return given if offers(given, TraceableSpec) else None


def boxes_noted(nodes: Mapping[str, Described]) -> list[Box]:
    """Return a graph as a checkpoint remembers it, inputs before what they lead to."""
    ordered: list[str] = []
    left = dict(nodes)
    while left:
        ready = [
            name for name, node in left.items() if all(each in ordered or each not in nodes for each in node.inputs)
        ]
        if not ready:
            break
        ordered += ready
        for name in ready:
            del left[name]
    place = {name: at for at, name in enumerate(ordered)}
    boxes = []
    for name in ordered:
        node = nodes[name]
        inputs = tuple(place[each] for each in node.inputs if each in place)
        boxes.append(
            Box(
                name,
                node.kind,
                "source" if node.role is Role.SOURCE else "sink" if node.role is Role.SINK else "operator",
                inputs,
            )
        )
    return boxes
