"""What a live run does of what it is told: pause, resume, limit, drain, flush, checkpoint and others (design/0049, 5).

Invariants: what is to outlive the process is an entry in the checkpoint before it takes effect; a command that comes
again under its id is carried out once.  Who puts an entry looks for a newer run before and behind it: where one has
taken over in between, it may have read the entry or not, and the caller is told so.

| crash | then |
|---|---|
| before the entry | nothing was told |
| after it | the next start holds its sources before it plans |
| of a drain, before everything is held | the next run reads to the same positions, and ends |
| before its end is noted | the next run finds everything held, and ends |
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from holdfast.checkpoint.named import names, new_name, read_named, taken_name
from holdfast.clock import SystemClock
from holdfast.controller.controller import ShardedRun
from holdfast.controller.evidence import tell_evidence
from holdfast.controller.flushing import flush_sinks
from holdfast.controller.sampling import sample
from holdfast.errors import Fenced, HoldfastError, InDoubt, InvalidPipeline, Unavailable
from holdfast.json_values import as_json
from holdfast.ports import Store
from holdfast.positions import Position, Positions, covers_all, lag_between
from holdfast.shards.named import read_record
from holdfast.shards.naming import shard_checkpoint, shard_of
from holdfast.spark.launch import stop_directory
from holdfast.steer.controls import Controls, checked_rate
from holdfast.steer.entries import ControlEntry, ControlLog, in_force, made_id
from holdfast.steer.place import write_place
from holdfast.steer.protocol import Command, Progress, SteerRequest, wrong_request
from holdfast.steer.server import SteerServer
from holdfast.store.paths import open_store

if TYPE_CHECKING:
    from holdfast.spark.run import Run

log = logging.getLogger("holdfast.run")

_LOOK_S = 0.05
"""How often it is looked whether sinks hold what is waited for."""
_TELL_S = 1.0
"""How often a caller is told how far that is."""
_SHORT = 60
"""Characters of a directory in which a socket has a path that systems take."""

Token = Mapping[str, Positions]
"""Shard, by its name -> where its sources ended."""


@dataclass
class Steering:
    """Carries out what a live run is told.

    Parameters
    ----------
    run : Run or ShardedRun
        The run.
    directory : Path
        The checkpoint of the pipeline.
    """

    run: Run | ShardedRun
    directory: Path
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _is_draining: bool = False

    @property
    def commands(self) -> Mapping[str, Command]:
        """What can be told."""
        return {
            "status": lambda request, tell: self._status(request),
            "epochs": lambda request, tell: self._epochs(request),
            "story": lambda request, tell: self._story(request),
            "pause": lambda request, tell: self._pause(request),
            "resume": lambda request, tell: self._resume(request),
            "limit": lambda request, tell: self._limit(request),
            "drain": self._drain,
            "wait": self._wait,
            "flush": lambda request, tell: self._flush(request),
            "checkpoint": lambda request, tell: self._checkpoint(request),
            "log": lambda request, tell: self._log(request),
            "sample": self._sample,
            "support": lambda request, tell: tell_evidence(self.run, self._runs(), tell),
        }

    def go_on(self) -> None:
        """Go on with a drain that an earlier run was told."""
        ends = in_force(self._store).ends
        if ends is not None:
            log.info("pipeline %r is being drained: it ends when its sinks hold what they are to", self._name)
            self._begin_drain(ends)

    def _begin_drain(self, ends: Positions) -> None:
        """Let a thread end the run once everything is held, whether its caller goes on to listen or not."""
        if not self._is_draining:
            self._is_draining = True
            threading.Thread(target=self._drain_on, args=(ends,), name="holdfast-drain", daemon=True).start()

    def _drain_on(self, ends: Positions) -> None:
        while self.run.is_active:
            try:
                self._until_held(self._within(ends), lambda said: None)
                self._end()
                return
            except Exception as error:  # of any kind: a source that is away, a shard that does not run yet
                log.warning("pipeline %r is not drained yet: %s", self._name, error)
                time.sleep(_TELL_S)

    # --- questions --------------------------------------------------------------------------------------------------

    def _status(self, request: SteerRequest) -> dict[str, Any]:
        run = self._asked_run(request)
        return self.run.status().as_json() if run is None else run.status().as_json()

    def _epochs(self, request: SteerRequest) -> dict[str, Any]:
        run = self._asked_run(request) or self._runs().get(self._name)
        return {"epochs": [] if run is None else as_json(run.steering.epochs(request.number("after")))}

    def _story(self, request: SteerRequest) -> dict[str, Any]:
        run = self._asked_run(request) or self._runs().get(self._name)
        return {"story": [] if run is None else as_json(run.steering.story(request.number("epoch")))}

    def _sample(self, request: SteerRequest, tell: Progress) -> Mapping[str, Any]:
        return sample(self.run.pipeline, self._runs, lambda: self.run.is_active, request, tell)

    def _asked_run(self, request: SteerRequest) -> Run | None:
        """Return the run of the shard that is asked for; None where none is, or where it does not run."""
        if "shard" not in request.arguments:
            return None
        shard = request.number("shard")
        return next((run for name, run in self._runs().items() if shard_of(name)[1] == shard), None)

    # --- commands ---------------------------------------------------------------------------------------------------

    def _pause(self, request: SteerRequest) -> dict[str, Any]:
        sources = self._check_known(request.texts("sources"))
        if in_force(self._store).ends is not None:
            raise InvalidPipeline(
                f"pipeline {self._name!r} is being drained, and a source is to be paused.",
                why="what is in a paused source would never reach a sink, and the run would never end.",
                do="wait for its end; or stop the run.",
            )
        return self._carry_out(request, lambda controls: controls.pause(sources))

    def _resume(self, request: SteerRequest) -> dict[str, Any]:
        sources = self._check_known(request.texts("sources"))
        return self._carry_out(request, lambda controls: controls.resume(sources))

    def _limit(self, request: SteerRequest) -> dict[str, Any]:
        source, rate = request.text("source"), request.arguments.get("rows_per_s")
        self._check_known([source])
        wanted = None if rate is None else checked_rate(source, rate)
        return self._carry_out(request, lambda controls: controls.limit(source, wanted))

    def _drain(self, request: SteerRequest, tell: Progress) -> dict[str, Any]:
        with self._turn:
            told = in_force(self._store)
            if told.ends is None:
                if told.paused:
                    raise InvalidPipeline(
                        f"pipeline {self._name!r} cannot be drained: {', '.join(told.paused)} is paused.",
                        why="what is in a paused source would never reach a sink.",
                        do="resume it first; or stop the run.",
                    )
                token = self._token()
                ends: Positions = _as_one(token)
            else:
                token, ends = self._within(told.ends), told.ends
            self._put(request, lambda controls: controls.end_at(ends))
        self._begin_drain(ends)
        tell({"token": token})
        self._until_held(token, tell)
        self.run.wait()
        return {"token": token}

    def _wait(self, request: SteerRequest, tell: Progress) -> dict[str, Any]:
        token = self._token_of(request.arguments["token"]) if request.arguments.get("token") else self._token()
        tell({"token": token})
        self._until_held(token, tell)
        return {"token": token}

    def _flush(self, request: SteerRequest) -> dict[str, Any]:
        sinks, asked = request.texts("sinks"), []
        for name in self._runs():
            store = open_store(shard_checkpoint(str(self.directory), shard_of(name)[1]))
            asked += flush_sinks(self.run.pipeline.with_sources(name, {}), sinks, None, store)
        return {"flushed": sorted(set(asked))}

    def _checkpoint(self, request: SteerRequest) -> dict[str, Any]:
        """Make a snapshot; a named one is known by its entries as what this command has made, whichever run it was.

        Durable writes: 1. that it is to be made, while the name is free.  2. the checkpoint.  A crash right after: the
        command finds it when it comes again, in the next run, and notes it.  3. that it is made.
        """
        name = request.text("name")
        with self._turn:
            if not name:
                return {"epoch": self.run.checkpoint_now()}
            entries = ControlLog(self._store)
            if (made := entries.find(made_id(request.id))) is not None:
                return dict(made.arguments)
            is_ours = entries.find(request.id) is not None
            found = epoch_of(name, self._store, self.directory)
            if not is_ours:
                if found is not None:
                    raise taken_name(name)
                new_name(name)
                self._put(request, lambda controls: controls)
            said = {"epoch": self.run.checkpoint_now(name) if found is None else found}
            self._put(SteerRequest(made_id(request.id), "checkpoint", said), lambda controls: controls)
            return said

    def _log(self, request: SteerRequest) -> dict[str, Any]:
        level = request.text("level").upper()
        levels = logging.getLevelNamesMapping()
        if level not in levels:
            raise wrong_request(f"{level!r} is no level: {', '.join(levels)}")
        root = logging.getLogger()
        before = logging.getLevelName(root.level)
        root.setLevel(level)
        for handler in root.handlers:
            handler.setLevel(level)
        return {"before": before}

    # --- inside -----------------------------------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return self.run.pipeline.name

    @property
    def _store(self) -> Store:
        return open_store(str(self.directory))

    def _runs(self) -> dict[str, Run | None]:
        """Return the runs of all shards, or the one that there is, by their names; None for one that does not run."""
        if not isinstance(self.run, ShardedRun):
            return {self._name: self.run}
        return {shard.name: cast("Run | None", shard.run) for shard in self.run.shards}

    def _check_known(self, sources: Collection[str]) -> Collection[str]:
        there = [node.name for node in self.run.pipeline.sources]
        if unknown := sorted(set(sources).difference(there)):
            raise InvalidPipeline(
                f"pipeline {self._name!r} has no source {unknown[0]!r}.",
                why=f"its sources are {', '.join(there)}.",
                do="name some of these; or none, for all of them.",
            )
        return sources

    def _carry_out(self, request: SteerRequest, change: Callable[[Controls], Controls]) -> dict[str, Any]:
        with self._turn:
            return self._put(request, change).as_json()

    def _put(self, request: SteerRequest, change: Callable[[Controls], Controls]) -> Controls:
        """Put an entry unless that is done, and let it take effect.  One durable write."""
        entries = ControlLog(self._store)
        if entries.find(request.id) is None:
            self._check_fenced()
            generation, at_us = self.run.status().generation, SystemClock().now_us()
            arguments = dict(request.arguments)
            entries.put(ControlEntry(request.id, request.command, arguments, generation, at_us, Controls()), change)
            try:
                self._check_fenced()
            except Fenced as error:
                raise InDoubt(
                    f"it is not known whether {request.command} holds for the run that has taken over.",
                    why=error.what,
                    do="look at what is in force: holdfast status; and tell it again, if need be.",
                ) from error
        controls = in_force(self._store)
        self.run.hold(controls)
        return controls

    def _check_fenced(self) -> None:
        for run in self._runs().values():
            if run is not None:
                run.steering.check_fenced()

    def _token(self) -> dict[str, Positions]:
        """Return where all sources end now."""
        found = {}
        for name, run in self._runs().items():
            if run is None:
                raise Unavailable(
                    f"shard {name!r} does not run.",
                    why="only a run that is alive can say what is in its sources now.",
                    do="wait until it is started again: holdfast status; then ask again.",
                )
            found[name] = run.steering.newest()
        return found

    def _within(self, ends: Positions) -> dict[str, Positions]:
        """Return where all sources end now, as far as that is not behind given ends."""
        return {
            name: {source: _cut(of, ends.get(source, {})) for source, of in positions.items()}
            for name, positions in self._token().items()
        }

    def _token_of(self, token: object) -> Token:
        runs = self._runs()
        if not isinstance(token, Mapping) or not all(isinstance(of, Mapping) for of in token.values()):
            raise wrong_request("token is not what an earlier call has told")
        if unknown := sorted(set(token).difference(runs)):
            raise wrong_request(f"token names {unknown[0]!r}, which is no shard of this run")
        return token

    def _until_held(self, token: Token, tell: Progress) -> None:
        """Wait until all sinks hold everything before some positions; those with a pace are asked to commit.

        Raises
        ------
        Unavailable
            If the run ends before.
        """
        paced, told_s = [sink.name for sink in self.run.pipeline.sinks if sink.pace is not None], time.monotonic()
        while True:
            is_active = self.run.is_active  # before it is looked: what it has published last counts
            runs = self._runs()
            left = {name: of for name, of in token.items() if not covers_all(_held_by(runs.get(name)), of)}
            if not left:
                return
            if not is_active:
                raise Unavailable(
                    f"the run of pipeline {self._name!r} has ended before its sinks held what is waited for.",
                    why="it was stopped, or has failed.",
                    do="start it again, and wait again with the same token: holdfast wait --token.",
                )
            if time.monotonic() - told_s >= _TELL_S:
                told_s = time.monotonic()
                if paced:
                    self._flush(SteerRequest("", "flush", {"sinks": paced}))
                tell({"left": sum(_count_left(_held_by(runs.get(name)), of) for name, of in left.items())})
            time.sleep(_LOOK_S)

    def _end(self) -> None:
        """Let the run end, and note that it was drained, before who waits for its end is told."""
        call_at_end(self.run, self._note_drained)
        self.run.stop()

    def _note_drained(self, error: HoldfastError | None) -> None:
        if error is not None:
            return
        generation, now_us = self.run.status().generation, SystemClock().now_us()
        drained = ControlEntry(uuid.uuid4().hex, "drained", {}, generation, now_us, Controls())
        ControlLog(self._store).put(drained, lambda controls: controls.end_at(None))


def epoch_of(name: str, store: Store, directory: Path) -> int | None:
    """Return the epoch of a named checkpoint, the highest of its parts where there are shards; None: there is none."""
    if (record := read_record(store, name)) is not None:
        parts = [
            open_store(shard_checkpoint(str(directory), shard)) for shard, digest in record.parts.items() if digest
        ]
        return max((read_named(part, name).ended.epoch for part in parts), default=0)
    return read_named(store, name).ended.epoch if name in names(store) else None


def _held_by(run: Run | None) -> Positions:
    return {} if run is None else run.steering.held


def _count_left(held: Positions, wanted: Positions) -> int:
    return sum(lag_between(held.get(source, {}), of) or 0 for source, of in wanted.items())


def _cut(positions: Mapping[str, Position], ends: Mapping[str, Position]) -> dict[str, Position]:
    return {
        segment: min(at, ends[segment]) if isinstance(at, int) and isinstance(ends[segment], int) else ends[segment]
        for segment, at in positions.items()
        if segment in ends
    }


def _as_one(token: Token) -> dict[str, dict[str, Position]]:
    found: dict[str, dict[str, Position]] = {}
    for positions in token.values():
        for source, of in positions.items():
            found.setdefault(source, {}).update(of)
    return found


def listen(run: Run | ShardedRun, directory: Path) -> None:
    """Let a run that has begun be told what to do, until it ends; if that cannot be, log why.

    Parameters
    ----------
    run : Run or ShardedRun
        The run.
    directory : Path
        The checkpoint of the pipeline, or its scratch.
    """
    steering = Steering(run, directory)
    try:
        place = stop_directory.create(None if len(tempfile.gettempdir()) <= _SHORT else "/tmp")
        server = SteerServer(str(place / "steer.sock"), steering.commands)
        write_place(open_store(str(directory)), directory, server.path, run.status().generation)
        call_at_end(run, lambda error: server.hide())
        steering.go_on()
    except Exception as error:  # whatever it is: the run goes on
        log.warning("the run cannot be told anything, and goes on: %s", error)
        return
    threading.Thread(target=_until_end, args=(run, server, place), name="holdfast-steer", daemon=True).start()


def call_at_end(run: Run | ShardedRun, step: Callable[[HoldfastError | None], object]) -> None:
    """Have something called with why a run has failed, or None, before who waits for its end is told."""
    (run if isinstance(run, ShardedRun) else run.steering).call_at_end(step)


def _until_end(run: Run | ShardedRun, server: SteerServer, place: Path) -> None:
    with suppress(HoldfastError):
        run.wait()
    server.close()
    shutil.rmtree(place, ignore_errors=True)
