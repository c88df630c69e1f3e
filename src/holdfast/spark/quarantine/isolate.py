"""Isolation of rows on Spark: before a run begins, the epoch that killed the last ones is evaluated in trials.

A system that does not answer, or an error of Spark itself, proves nothing about rows: it ends the start, and the
search continues at the next one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.commit.coordinator import Coordinator
from holdfast.errors import BadRow, HoldfastError, InvalidPipeline, Unavailable
from holdfast.graph import hooks
from holdfast.graph.nodes import Node
from holdfast.graph.pipeline import Pipeline
from holdfast.masking import masked
from holdfast.ports import Source, Store
from holdfast.quarantine.dead_letters import DeadLetters, Letter
from holdfast.quarantine.mask import LetteredSource, Mask
from holdfast.quarantine.search import Bounds, Search, count_attempt, isolate
from holdfast.resume.directory_header import DirectoryHeader
from holdfast.sources.bounds import MarkedSource
from holdfast.spark.failure import is_jvm_gone, is_worker_lost, translate
from holdfast.spark.quarantine.probe import Probe
from holdfast.spark.quarantine.probe_process import ProbePart
from holdfast.spark.quarantine.rows import EpochRows
from holdfast.spark.quarantine.trials import Planned, Trials, planned
from holdfast.store import durable

log = logging.getLogger("holdfast.poison")


@dataclass(frozen=True)
class Suspicion:
    """Which errors of a run may be caused by rows.

    Parameters
    ----------
    spark, header : Path, DirectoryHeader
        Spark's directory, and how it began.
    attempts : int
        Starts after which rows are isolated.
    """

    spark: Path
    header: DirectoryHeader
    attempts: int

    def of(self, error: HoldfastError) -> HoldfastError:
        """Return the error, as a ``BadRow`` that names its epoch where an epoch was under way and code failed in it."""
        found = planned(self.spark, self.header)
        is_code = isinstance(error, InvalidPipeline | BadRow) and not durable.is_forbidden(error)
        if isinstance(error, BadRow) and error.is_decided:
            return error  # no row can be left out of that epoch
        if found is None or not is_code or error.participant in hooks.NAMES:
            return error
        suspected = BadRow(
            error.what,
            why=error.why,
            do=f"start again: when {self.attempts} runs in a row have failed in this epoch, the rows that cause it are "
            "isolated; or fix the input or the function now.",
            pipeline=error.pipeline,
            participant=error.participant,
            epoch=found.epoch,
        )
        suspected.is_isolated_later = True
        suspected.__cause__ = error
        return suspected


@dataclass(frozen=True)
class Isolating:
    """What is needed to isolate the rows of the planned epoch.

    Parameters
    ----------
    pipeline, store : Pipeline, Store
        What runs, and the checkpoint.
    opened : callable
        Opens a source of it.
    spark, header : Path, DirectoryHeader
        Spark's directory, and how it began.
    coordinator : Coordinator
        Opened: what was decided is published.
    letters : DeadLetters
        Of this run.
    trials : Trials
        Evaluates parts of the epoch.
    probe : Probe, optional
        Finds most rows before trials do; None where Spark's plan evaluates rows.
    has_state : bool
        Whether rows affect each other: then each trial includes all earlier rows.
    now_us : callable
        The clock.
    rows_max : int
        How many rows of one epoch are isolated at most.
    """

    pipeline: Pipeline
    store: Store
    opened: Callable[[Node], Source]
    spark: Path
    header: DirectoryHeader
    coordinator: Coordinator
    letters: DeadLetters
    trials: Trials
    has_state: bool
    now_us: Callable[[], int]
    rows_max: int
    probe: Probe | None = None

    def settle(self, attempts: int) -> list[Letter]:
        """Isolate rows if enough attempts have failed; return the letters that were made.

        Parameters
        ----------
        attempts : int
            Starts in a row that must have found the same epoch unfinished.
        """
        found = planned(self.spark, self.header)
        name = None if found is None else f"{self.spark.name} from epoch {self.header.base}: {found.epoch}"
        count = count_attempt(self.store, name)
        if found is None or name is None or count < attempts:
            return []
        claim = self.coordinator.missing(found.epoch, found.end.positions, found.start.positions)
        if claim.sinks != {sink.name for sink in self.pipeline.sinks}:  # a run died between two sinks' publish
            log.warning("epoch %d is in some sinks already: no row of it can be left out", found.epoch)
            return []
        log.warning("%d runs in a row have died in epoch %d: it is evaluated in trials", count, found.epoch)
        began = time.monotonic()
        made = self._isolate(found, Search(self.store, name, lambda: len(self.letters.letters)))
        took = time.monotonic() - began
        if made:
            log.warning("epoch %d: %d rows are dead letters, found in %.1f s", found.epoch, len(made), took)
        else:
            log.warning(
                "epoch %d passes when it is evaluated alone (%.1f s): nothing is isolated; if it dies again, check the "
                "sinks and the memory of this machine",
                found.epoch,
                took,
            )
        return made

    def _isolate(self, epoch: Planned, search: Search) -> list[Letter]:
        rows = EpochRows(self._sources(), epoch.start.positions, epoch.end.positions, self.header.retired)
        errors: list[HoldfastError] = []  # of what failed last
        made: list[Letter] = []

        def fails(low: int, high: int, known: Bounds) -> bool:
            if not search.begin(low, high, known):
                errors.append(_killed(epoch.epoch))
                return True
            try:
                tries = 2 if high - low == 1 else 1  # a worker may have been killed from outside
                error = self._tried(epoch, rows, 0 if self.has_state else low, high, tries)
            except Exception as failure:
                if not is_jvm_gone(failure.__cause__ or failure):  # which the rows may have killed
                    search.withdraw(known)
                raise
            errors.extend([] if error is None else [error])
            return error is not None

        def condemn(number: int) -> None:
            error = errors[-1] if errors else _killed(epoch.epoch)
            if sum(letter.epoch == epoch.epoch for letter in self.letters.letters) >= self.rows_max:
                raise _too_many(self.pipeline.name, epoch.epoch, self.rows_max, error)
            source, address = rows.at(number)
            said = {"kind": type(error).__name__, "what": masked(error.what), "why": masked(error.why)}
            letter = Letter(source, address, rows.row(number), epoch.epoch, said, self.now_us())
            self.letters.add(letter, self.coordinator.check_fenced)
            made.append(letter)
            log.warning("row %s is a dead letter: %s %s", letter.name, error.what, error.why)

        if search.is_new and (error := self._tried(epoch, rows, 0, 0)) is not None:
            raise error  # it fails without any row
        for number, error in self._probed(epoch, rows, search):
            errors.append(error)
            condemn(number)
        isolate(rows.count, fails, condemn, search.known)
        search.end()
        return made

    def _probed(self, epoch: Planned, rows: EpochRows, search: Search) -> list[tuple[int, HoldfastError]]:
        """Return the rows that a probe finds and that are no letters yet; the trials that follow find the rest."""
        if self.probe is None or not rows.count or not search.begin_probe():
            return []
        start = {
            name: dict(epoch.start.positions.get(name) or self.header.retired.get(name) or {}) for name in rows.sources
        }
        # NB in the order of the rows' numbers, which is not that of Spark's log, and without the source of controls.
        end = {name: epoch.end.positions[name] for name in rows.sources if name in epoch.end.positions}
        borders = [rows.count * part // self.probe.parallelism for part in range(self.probe.parallelism + 1)]
        parts = []
        for low, high in pairwise(borders):
            masks = {}
            for name, source in rows.sources.items():
                first, last = rows.window(name, low, high)
                masks[name] = replace(source.mask, first=first, last=last)
            part = ProbePart(self.probe.program, self.probe.readers, masks, start, end, low)
            parts.append((part, high))
        try:
            found = self.probe.rows(parts, self.rows_max)
        except Exception as failure:
            if not is_jvm_gone(failure.__cause__ or failure):
                search.withdraw(Bounds())
            if not is_worker_lost(failure):
                raise translate(failure, self.pipeline.name, f"a probe of epoch {epoch.epoch}") from failure
            log.warning("a worker died in a probe of epoch %d: its rows are searched by trials", epoch.epoch)
            return []
        known = {(letter.source, letter.address) for letter in self.letters.letters}
        return [(number, error) for number, error in found if rows.at(number) not in known]

    def _sources(self) -> dict[str, LetteredSource]:
        """Open the sources with the rows that are sent again, and bound rows among their rows."""
        found: dict[str, LetteredSource] = {}
        masks = self.letters.masks()
        for node in self.pipeline.sources:
            source: Any = self.opened(node)
            unmarked = source.source if isinstance(source, MarkedSource) else source
            found[node.name] = LetteredSource(unmarked, Mask(again=masks.get(node.name, Mask()).again))
        return found

    def _tried(self, epoch: Planned, rows: EpochRows, low: int, high: int, tries: int = 2) -> HoldfastError | None:
        masks = self.letters.masks()
        for source in rows.sources:
            first, last = rows.window(source, low, high)
            masks[source] = replace(masks.get(source, Mask()), first=first, last=last)
        error: HoldfastError | None = None
        for _ in range(tries):
            try:
                self.trials.make(epoch, masks)
            except Exception as failure:
                error = translate(failure, self.pipeline.name, f"a trial of epoch {epoch.epoch}")
                if isinstance(error, BadRow | InvalidPipeline) and not durable.is_forbidden(error):
                    return error
                if not is_worker_lost(failure):
                    raise error from failure
            else:
                return None
        return error  # a worker died of these rows


def errors_of(letters: Sequence[Letter]) -> Iterator[tuple[HoldfastError, pa.Table]]:
    """Yield, for each row that was isolated, the error and the row: the arguments of ``on_error``."""
    for letter in letters:
        error = BadRow(
            f"row {letter.name} is a dead letter: {letter.error['what']}",
            why=letter.error["why"],
            do="fix what refuses it, then: holdfast dead-letters replay --checkpoint DIR",
            epoch=letter.epoch,
        )
        yield error, letter.table


def check_addresses(pipeline: Pipeline) -> None:
    """Refuse isolation where rows have no addresses."""
    for node in pipeline.sources:
        if node.kind == "spark":
            raise InvalidPipeline(
                f'on_poison="isolate" is not possible with source {node.name!r}.',
                why="only Spark understands its positions: a row has none that could be left out.",
                do='read it with a source of Holdfast, or leave on_poison="stop".',
                pipeline=pipeline.name,
                participant=node.name,
            )


def _killed(epoch: int) -> HoldfastError:
    return Unavailable(
        f"the process was killed when a part of epoch {epoch} was evaluated alone.",
        why="twice, with the same rows.",
        do="check the system's log for the out-of-memory killer.",
        epoch=epoch,
    )


def _too_many(pipeline: str, epoch: int, rows_max: int, error: HoldfastError) -> InvalidPipeline:
    return InvalidPipeline(
        f"more than {rows_max} rows of epoch {epoch} fail, each by itself.",
        why=f"that many suggest a fault in the code, not in the input; the last one: {error.what} {error.why}",
        do="fix the pipeline; or raise HOLDFAST_POISON_ROWS, and start again.",
        pipeline=pipeline,
        epoch=epoch,
    )
