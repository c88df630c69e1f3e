"""Isolation of rows on Spark: before a run begins, the epoch that killed the last ones is evaluated in trials.

A system that does not answer, or an error of Spark itself, proves nothing about rows: it ends the start, and the
search continues at the next one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.directory_header import DirectoryHeader
from holdfast.commit.coordinator import Coordinator
from holdfast.connectors.reading.bounds import MarkedSource
from holdfast.errors import BadRow, HoldfastError, InvalidPipeline, Unavailable, present
from holdfast.graph import hooks
from holdfast.graph.graph import Graph
from holdfast.graph.nodes import Node
from holdfast.masking import masked
from holdfast.ports import Source, Store
from holdfast.quarantine.dead_letters import DeadLetters, Letter
from holdfast.quarantine.mask import Address, GivenRows, LetteredSource, Mask, Passing
from holdfast.quarantine.search import Bounds, Search, count_attempt, forgive_attempt, isolate, searched
from holdfast.spark.failure import is_jvm_gone, is_worker_lost, translate
from holdfast.spark.new_columns import add_columns
from holdfast.spark.quarantine.probe import Probe
from holdfast.spark.quarantine.probe_process import ProbePart
from holdfast.spark.quarantine.rows import EpochRows, LevelRows
from holdfast.spark.quarantine.trials import Planned, Trials, planned
from holdfast.store import durable

log = logging.getLogger("holdfast.poison")

SOURCES = 0
"""The part of a search that is of the rows of sources; other parts are the levels with state."""


@dataclass(frozen=True)
class Suspicion:
    """Which errors of a run may be caused by rows.

    Parameters
    ----------
    store : Store
        The checkpoint.
    spark, header : Path, DirectoryHeader
        Spark's directory, and how it began.
    attempts : int
        Starts after which rows are isolated.
    """

    store: Store
    spark: Path
    header: DirectoryHeader
    attempts: int

    def of(self, error: HoldfastError) -> HoldfastError:
        """Return the error, as a ``BadRow`` that names its epoch where an epoch was under way and code failed in it."""
        found = planned(self.spark, self.header)
        is_code = isinstance(error, InvalidPipeline | BadRow) and not durable.is_forbidden(error)
        is_row = isinstance(error, BadRow) and (error.is_decided or error.is_expected or error.is_mended_by_start)
        if is_row or error.is_of_timer:
            return error  # no row can be left out of that epoch, or none has to be
        if found is None or not is_code or error.participant in hooks.NAMES:
            return error
        suspected = BadRow(
            error.what,
            why=error.why,
            do=f"start again: when {self.attempts} runs in a row have failed in this epoch, the rows that cause it are "
            "isolated; or fix the function now.",
            pipeline=error.pipeline,
            participant=error.participant,
            epoch=found.epoch,
        )
        suspected.is_isolated_later = True
        suspected.__cause__ = error
        return suspected

    def forgive(self) -> None:
        """Leave this run out of the count: it has mended what it ended for."""
        if (found := planned(self.spark, self.header)) is not None:
            forgive_attempt(self.store, _name_of(found, self.spark, self.header))


@dataclass(frozen=True)
class Isolating:
    """What is needed to isolate the rows of the planned epoch.

    Parameters
    ----------
    pipeline, store : Graph, Store
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
    levels : mapping of int to sequence of str
        Level -> its operators with state.  Where there are any, rows affect each other: each trial includes all
        earlier rows.
    now_us : callable
        The clock.
    rows_max : int
        How many rows of one epoch are isolated at most.
    """

    pipeline: Graph
    store: Store
    opened: Callable[[Node], Source]
    spark: Path
    header: DirectoryHeader
    coordinator: Coordinator
    letters: DeadLetters
    trials: Trials
    levels: Mapping[int, Sequence[str]]
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
        name = None if found is None else _name_of(found, self.spark, self.header)
        count = count_attempt(self.store, name)
        if found is None or name is None or count < attempts:
            return []
        claim = self.coordinator.missing(found.epoch, found.end.positions, found.start.positions)
        if claim.sinks != {sink.name for sink in self.pipeline.sinks}:  # a run died between two sinks' publish
            log.warning("epoch %d is in some sinks already: no row of it can be left out", found.epoch)
            return []
        log.warning("%d runs in a row have died in epoch %d: it is evaluated in trials", count, found.epoch)
        began = time.monotonic()
        try:
            made = _Searching(self, found, name).made_letters()
        except BadRow as error:  # a row that cannot be read; perhaps it waits for a column
            self.coordinator.check_fenced()
            raise add_columns(error) from error.__cause__
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


def _name_of(epoch: Planned, spark: Path, header: DirectoryHeader) -> str:
    return f"{spark.name} from epoch {header.base}: {epoch.epoch}"


class _Searching:
    """One epoch that is searched: rows of sources first, then those that each level with state gives.

    While one part is searched nothing passes behind the next level, so what fails is between the two.
    """

    def __init__(self, isolating: Isolating, epoch: Planned, name: str) -> None:
        self._of = isolating
        self._epoch = epoch
        self._name = name
        self._step_epoch, _ = isolating.header.step_time(epoch.batch, epoch.end.batch_us)
        self._errors: list[HoldfastError] = []
        """Of what failed last."""
        self._made: list[Letter] = []
        self._given: Mapping[str, GivenRows] | None = None
        """What all levels give, where all rows of the parts that were searched pass."""

    def made_letters(self) -> list[Letter]:
        """Search all parts; return the letters that were made."""
        parts = [SOURCES, *self._of.levels]
        noted = searched(self._of.store)
        found = [number for number, part in enumerate(parts) if self._named(part) == noted]
        for part in parts[found[0] if found else 0 :]:
            search = Search(self._of.store, self._named(part), lambda: len(self._of.letters.letters))
            if part == SOURCES:
                self._search_sources(search)
            else:
                self._search_level(part, search)
        search.end()
        return self._made

    def _named(self, part: int) -> str:
        return self._name if part == SOURCES else f"{self._name}, behind level {part}"

    # --- rows of sources ------------------------------------------------------------------------------------------

    def _search_sources(self, search: Search) -> None:
        epoch, header = self._epoch, self._of.header
        rows = EpochRows(self._sources(), epoch.start.positions, epoch.end.positions, header.retired)

        def attempt(low: int, high: int) -> HoldfastError | None:
            masks, low = self._of.letters.masks(), 0 if self._of.levels else low
            for source in rows.sources:
                first, last = rows.window(source, low, high)
                masks[source] = replace(masks.get(source, Mask()), first=first, last=last)
            return self._tried(masks, replace(self._behind, level=SOURCES), is_of_many=high - low > 1)

        def letter(number: int, said: Mapping[str, str]) -> Letter:
            source, address = rows.at(number)
            return Letter(source, address, rows.row(number), epoch.epoch, said, self._of.now_us())

        if search.is_new and (error := attempt(0, 0)) is not None:
            raise _without_rows(error, epoch.epoch)
        for number, error in self._probed(rows, search):
            self._errors.append(error)
            self._condemn(number, letter)
        self._isolate(rows.count, search, attempt, letter)

    def _probed(self, rows: EpochRows, search: Search) -> list[tuple[int, HoldfastError]]:
        """Return the rows that a probe finds and that are no letters yet; the trials that follow find the rest."""
        epoch, header, probe = self._epoch, self._of.header, self._of.probe
        if probe is None or not rows.count or not search.begin_probe():
            return []
        start = {name: dict(epoch.start.positions.get(name) or header.retired.get(name) or {}) for name in rows.sources}
        # NB in the order of the rows' numbers, which is not that of Spark's log, and without the source of controls.
        end = {name: epoch.end.positions[name] for name in rows.sources if name in epoch.end.positions}
        borders = [rows.count * part // probe.parallelism for part in range(probe.parallelism + 1)]
        parts = []
        for low, high in pairwise(borders):
            masks = {}
            for name, source in rows.sources.items():
                first, last = rows.window(name, low, high)
                masks[name] = replace(source.mask, first=first, last=last)
            part = ProbePart(probe.program, probe.readers, masks, start, end, low)
            parts.append((part, high))
        try:
            found = probe.rows(parts, self._of.rows_max)
        except Exception as failure:
            if not is_jvm_gone(failure.__cause__ or failure):
                search.withdraw(Bounds())
            if not is_worker_lost(failure):
                raise translate(failure, self._of.pipeline.name, f"a probe of epoch {epoch.epoch}") from failure
            log.warning("a worker died in a probe of epoch %d: its rows are searched by trials", epoch.epoch)
            return []
        known = {(letter.source, letter.address) for letter in self._of.letters.letters}
        return [(number, error) for number, error in found if rows.at(number) not in known]

    def _sources(self) -> dict[str, LetteredSource]:
        """Open the sources with the rows that are sent again, and bound rows among their rows."""
        found: dict[str, LetteredSource] = {}
        masks = self._of.letters.masks()
        for node in self._of.pipeline.sources:
            source: Any = self._of.opened(node)
            unmarked = source.source if isinstance(source, MarkedSource) else source
            found[node.name] = LetteredSource(unmarked, Mask(again=masks.get(node.name, Mask()).again))
        return found

    # --- rows that operators with state give ----------------------------------------------------------------------

    def _search_level(self, level: int, search: Search) -> None:
        given, self._given = self._given, None
        if given is None:
            if (error := self._tried(self._of.letters.masks(), replace(self._behind, level=level))) is not None:
                raise error  # what was searched before fails now
            given, self._given = self._given or {}, None
        rows = LevelRows(level, self._of.levels[level], given)

        def attempt(low: int, high: int) -> HoldfastError | None:
            return self._tried(self._of.letters.masks(), rows.until(high, self._behind), is_of_many=high - low > 1)

        def letter(number: int, said: Mapping[str, str]) -> Letter:
            outlet, ordinal = rows.at(number)
            operator, _, segment = outlet.partition("/")
            address = Address(segment, self._step_epoch, ordinal)
            return Letter(operator, address, self._shown(rows, number), self._epoch.epoch, said, self._of.now_us())

        self._isolate(rows.count, search, attempt, letter)

    def _shown(self, rows: LevelRows, number: int) -> bytes:
        """Return a row: the trial of those before it, which pass, shows it."""
        outlet, ordinal = rows.at(number)
        error = self._tried(
            self._of.letters.masks(), replace(rows.until(number, self._behind), shown=(outlet, ordinal))
        )
        if error is not None:
            raise error
        found, self._given = self._given or {}, None
        row = found[outlet].row if outlet in found else None
        return present(row, f"row {ordinal} of {outlet} is not there when the epoch is evaluated again.")

    @property
    def _behind(self) -> Passing:
        return self._of.letters.passing(self._step_epoch)

    # --- any rows -------------------------------------------------------------------------------------------------

    def _isolate(
        self,
        count: int,
        search: Search,
        attempt: Callable[[int, int], HoldfastError | None],
        letter: Callable[[int, Mapping[str, str]], Letter],
    ) -> None:
        """Find the rows of a part that fail, and make them letters."""

        def fails(low: int, high: int, known: Bounds) -> bool:
            if not search.begin(low, high, known):
                self._errors.append(_killed(self._epoch.epoch))
                return True
            try:
                error = attempt(low, high)
            except Exception as failure:
                if not is_jvm_gone(failure.__cause__ or failure):  # which the rows may have killed
                    search.withdraw(known)
                raise
            if error is not None:
                self._errors.append(error)
            if error is not None or high < count:
                self._given = None
            return error is not None

        isolate(count, fails, lambda number: self._condemn(number, letter), search.known)

    def _condemn(self, number: int, letter: Callable[[int, Mapping[str, str]], Letter]) -> None:
        epoch, letters = self._epoch.epoch, self._of.letters
        error = self._errors[-1] if self._errors else _killed(epoch)
        if sum(one.epoch == epoch for one in letters.letters) >= self._of.rows_max:
            raise _too_many(self._of.pipeline.name, epoch, self._of.rows_max, error)
        said = {"kind": type(error).__name__, "what": masked(error.what), "why": masked(error.why)}
        made = letter(number, said)
        letters.add(made, self._of.coordinator.check_fenced)
        self._made.append(made)
        self._given = None
        log.warning("row %s is a dead letter: %s %s", made.name, error.what, error.why)

    def _tried(self, masks: Mapping[str, Mask], passing: Passing, *, is_of_many: bool = False) -> HoldfastError | None:
        """Make a trial; return what its rows raised.

        A worker may be killed from outside: where that would condemn a row, or end the search, it is made twice.
        """
        error: HoldfastError | None = None
        for _ in range(1 if is_of_many else 2):
            try:
                self._given = self._of.trials.make(self._epoch, masks, passing)
            except Exception as failure:
                error = translate(failure, self._of.pipeline.name, f"a trial of epoch {self._epoch.epoch}")
                if error.is_of_timer:
                    raise _without_rows(error, self._epoch.epoch) from failure
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
            do="fix what refuses it, then: holdfast dead-letters replay --checkpoint DIR"
            if not letter.is_behind_state
            else "fix what refuses it; holdfast dead-letters list --json has the row, which can come in by a source of "
            "its own, united with what the operator gives.",
            epoch=letter.epoch,
        )
        yield error, letter.table


def check_addresses(pipeline: Graph) -> None:
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


def _without_rows(error: HoldfastError, epoch: int) -> HoldfastError:
    """Return the error of an epoch that fails for no row of it: none can be left out."""
    said = type(error)(
        error.what,
        why=f"{error.why} No row of epoch {epoch} is the reason: it fails by what is kept in state, by the time, or "
        "without any row; so no row of it can be left out.",
        do="fix the function that is named, then start again: nothing of the epoch is visible.",
        pipeline=error.pipeline,
        participant=error.participant,
        epoch=epoch,
    )
    said.is_of_timer = error.is_of_timer
    return said


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
