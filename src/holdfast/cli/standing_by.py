"""A run that keeps a lease: it waits as a replica while another process holds it, and becomes one when it is fenced.

Order, once the lease is free: 1. the lease is taken; 2. a checkpoint that another one has overtaken is set aside, and
with state a shadow becomes the checkpoint; 3. the term is noted in the checkpoint; 4. an ordinary start, which compares
the sinks with the shadow where that is asked for.  A crash after each: the lease expires, and whoever watches begins
with 1.  A process that is fenced is replaced by a new one of the same command, which watches.

``holdfast promote``: whoever watches the lease takes it, before it expires.

How a process is begun again, as one that watches the lease.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import frame
from holdfast.cli.child import StopSignals, is_supervised
from holdfast.cli.foreground import Runnable, seen_waiting
from holdfast.cli.frame import AsJson, Target
from holdfast.cli.rehearsal import rehearse
from holdfast.cli.shadowing import NAME, Shadowing
from holdfast.cli.supervision import RECORD
from holdfast.cli.target import load_target
from holdfast.commit.ledger import Ledger
from holdfast.commit.owner import noted_owner
from holdfast.controller.leases import LeaseScope
from holdfast.errors import Fenced, HoldfastError, InvalidPipeline, Unavailable
from holdfast.observe.logs import FILE_NAME
from holdfast.pipeline import Pipeline
from holdfast.plan.cutting import has_state
from holdfast.ports import Lease, LeasePlace, SeenLease
from holdfast.reconcile.stand_ins import check_some_comparable
from holdfast.replica.keeper import Keeper, held_by, lease_of
from holdfast.replica.keeper import as_json as lease_json
from holdfast.replica.tenure import Holder, Tenure, Watch, ask, note_term, noted_term, set_aside, take
from holdfast.status import Status
from holdfast.store.paths import open_store
from holdfast.store.scratch import address_in
from holdfast.types.units import duration_us

if TYPE_CHECKING:
    from holdfast.config import Settings


log = logging.getLogger("holdfast.replica")

LOOKS = 20
"""Looks at the lease in its time: what a takeover waits for beyond it is a twentieth."""
_LOOK_MIN_S, _LOOK_MAX_S = 0.02, 1.0
SOON_S = 2.0
"""How long a main waits at most for a lease before it gets ready as a replica."""
_BEGINNINGS = {"at", "from_checkpoint", "state"}
"""What says where a pipeline begins: who says it is no replica."""
_STOP_S = 10.0
"""How long a run that has lost its lease may take for its last epoch, which the sinks refuse anyway."""


class Standby:
    """The lease of one command.  A context for its run: a fenced one becomes a replica.

    Parameters
    ----------
    pipeline : Pipeline
        What is run.
    directory : Path
        Its checkpoint.
    settings : Settings
        For the duration of the lease (0: as the holder before has it), and the interval of progress lines.
    invocation : Invocation
        How this process is begun again.
    is_replica : bool
        Whether it waits until there has been a holder.
    as_json : bool
        How it says whom it waits for.
    only_shard : int, optional
        The one shard that is run; None: all.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        directory: Path,
        settings: Settings,
        invocation: Invocation,
        *,
        is_replica: bool,
        as_json: bool,
        only_shard: int | None = None,
    ) -> None:
        self._scope = LeaseScope(pipeline, directory, only_shard)
        self._rivals: Sequence[Watch] = ()
        self._checked: Lease | None = None
        self._pipeline = pipeline
        self._directory = directory
        self._settings = settings
        self._invocation = invocation
        self._ttl_us = settings.lease_us
        self._is_replica = is_replica
        self._begins_elsewhere = False
        self._as_json = as_json
        self._holder = Holder("replica" if is_replica else "main")
        self._keeper: Keeper | None = None
        self._shadowing: Shadowing | None = None
        self._has_given_shadow_up = False
        self._options: dict[str, Any] = {}

    # --- before the run ---------------------------------------------------------------------------------------------

    def take(self, options: dict[str, Any]) -> None:
        """Take the lease; while another process holds it, make everything ready, and wait.

        Parameters
        ----------
        options : dict of str to Any
            The arguments of the start.  A comparison that was asked for with a promotion is noted in them.

        Raises
        ------
        InvalidPipeline
            If no sink keeps a lease; or state is kept, not in this checkpoint, and cannot be computed here; or sinks
            are to be compared, and cannot be.
        typer.Exit
            If a signal asked for the end.
        """
        self._begins_elsewhere = not _BEGINNINGS.isdisjoint(options)
        self._options = options
        if wanted := options.get("compare_on_start"):
            check_some_comparable(self._pipeline, () if wanted is True else wanted)
        place = self._scope.place()
        watch, self._rivals = Watch(place), self._scope.rivals()
        if tenure := self._taken_soon(place, watch):
            self._prepare(tenure, watch.seen)
            return
        if self._begins_elsewhere:
            raise _begins_elsewhere(self._pipeline.name)
        with StopSignals(is_supervised=is_supervised()) as signals, seen_waiting(self._pipeline.name, options):
            from holdfast.starts import warm_up

            self._check_checkpoint(watch.seen)
            warm_up.warm_up(self._pipeline, options)
            self._shadow(watch.seen)
            if self._shadowing is None:
                rehearse(self._pipeline, options)
            signals.install()
            log.info("replica of pipeline %r: ready", self._pipeline.name)
            said_at, is_silent = 0.0, False
            while signals.asked_by is None:
                try:
                    tenure = self._taken(place, watch.seen) if self._is_free(watch) else None
                    is_silent = False
                except Unavailable as error:
                    log.log(logging.DEBUG if is_silent else logging.WARNING, "the lease is not seen: %s", error.what)
                    is_silent = True
                if tenure is not None:
                    self._prepare(tenure, watch.seen)
                    return
                if time.monotonic() - said_at >= self._settings.progress_interval_s:
                    said_at = time.monotonic()
                    self._check_checkpoint(watch.seen)
                    self._shadow(watch.seen)
                    self._say(watch)
                    if not warm_up.is_warm():
                        log.warning("the replica's JVM has ended: the process is begun again")
                        self._invocation.begin_again_as_replica()
                time.sleep(_look_s(watch.seen))
            if self._shadowing is not None:
                self._shadowing.stop()
            raise typer.Exit(0)

    def _taken_soon(self, place: LeasePlace, watch: Watch) -> Tenure | None:
        """Take the lease if it is free, or a main's whose last run has just died: that is no reason to be a replica."""
        end: float | None = None
        while True:
            if self._is_free(watch) and (tenure := self._taken(place, watch.seen)):
                return tenure
            if end is None:
                patience_s = min(SOON_S, 1.5 * LOOKS * _look_s(watch.seen))
                end = time.monotonic() + (0 if self._is_replica else patience_s)
            if time.monotonic() >= end:
                return None
            time.sleep(_look_s(watch.seen))

    def _is_free(self, watch: Watch) -> bool:
        # A replica leaves a run alone that keeps no lease.
        is_free = watch.is_free() and not (self._is_replica and watch.seen is None)
        return is_free and not self._is_run_otherwise()

    def _is_run_otherwise(self) -> bool:
        """Return whether what this one runs is run under another lease: all shards, or one of them."""
        held = [rival.is_held() for rival in self._rivals]  # each: a beat is measured from the first look on
        return any(held)

    def _duration_us(self, seen: SeenLease | None) -> int:
        return self._ttl_us or (1_000_000 if seen is None else seen.lease.ttl_us)

    def _taken(self, place: LeasePlace, seen: SeenLease | None) -> Tenure | None:
        tenure = take(place, seen, self._holder, self._duration_us(seen))
        if tenure is not None and self._is_run_otherwise():
            tenure.give_back()
            return None
        if tenure is not None:
            if seen is not None:
                log.warning("takes over: %s", held_by(seen))
            self._keeper = Keeper(place, tenure)
            self._keeper.start()
        return tenure

    def _prepare(self, tenure: Tenure, seen: SeenLease | None) -> None:
        """Make a beginning of what the checkpoint has where another one has led since, and note the term."""
        try:
            if tenure.lease.compares and not self._compares:
                self._compare_as_asked()
            self._make_beginning(seen)
            note_term(open_store(str(self._directory)), tenure.lease.term, self._scope.note)
        except BaseException:
            if self._keeper is not None:
                self._keeper.end(gives_back=True)
            raise

    def _compare_as_asked(self) -> None:
        """Compare the sinks, as was asked for with the promotion; go on where this graph has none that can be."""
        asked = "a comparison of the sinks was asked for with the promotion"
        try:
            check_some_comparable(self._pipeline)
        except InvalidPipeline as error:
            log.warning("%s: %s %s", asked, error.what, error.why)
            return
        log.info("%s", asked)
        self._options["compare_on_start"] = True

    def _make_beginning(self, seen: SeenLease | None) -> None:
        self._check_checkpoint(seen)
        if self._scope.runs_shards(None):
            return
        keeps_state = has_state(self._pipeline)
        if keeps_state:
            self._shadow(seen)
        if self._shadowing is not None:
            try:
                self._shadowing.reach(lambda: self._keeper is None or self._keeper.is_lost)
            except HoldfastError as error:
                self._give_shadow_up(error)
        if self._shadowing is not None:
            self._shadowing.stop()
            if keeps_state:
                self._shadowing.become_checkpoint(self._set_aside, is_compared=self._compares)
            self._shadowing = None
        if not keeps_state and self._is_old(seen) and self._set_aside():
            log.warning("another checkpoint has led: what was in this one is set aside, and the sinks are asked")

    @property
    def _compares(self) -> bool:
        return bool(self._options.get("compare_on_start"))

    def _set_aside(self) -> bool:
        if (address := address_in(self._directory)) is not None:
            raise InvalidPipeline(
                f"{address} is not the checkpoint that the main of pipeline {self._pipeline.name!r} ran with.",
                why="a replica sets a checkpoint of its own aside when it takes over, which objects cannot be.",
                do="give the replica the address of the main's checkpoint (--checkpoint), or a directory of its own.",
                pipeline=self._pipeline.name,
            )
        self._check_directory()
        return set_aside(self._directory, (FILE_NAME, RECORD, NAME))

    def _check_directory(self) -> None:
        """Refuse a checkpoint of another pipeline, or of a run that is alive: it is not ours to set aside."""
        store = open_store(str(self._directory))
        Ledger(store, self._pipeline.name).identify()
        owner = noted_owner(store)
        if owner.pid != os.getpid():
            frame.check_nobody_runs(owner, "it has no lease, and what it runs on would be set aside.")

    def _shadow(self, seen: SeenLease | None) -> None:
        """Begin to compute the state, and what the sinks should hold, beside a holder with another checkpoint."""
        is_wanted = has_state(self._pipeline) or (self._compares and not self._has_given_shadow_up)
        try:
            if self._shadowing is not None:
                self._shadowing.check()
            # A holder without a generation may not have noted its term yet.
            elif seen is not None and seen.lease.generation and is_wanted and self._is_old(seen):
                self._shadowing = Shadowing(self._pipeline, self._directory, self._options)
        except HoldfastError as error:
            self._give_shadow_up(error)

    def _give_shadow_up(self, error: HoldfastError) -> None:
        """Go on without a shadow that has failed; raise why where it is needed: for state, or a sink that was named."""
        is_needed = has_state(self._pipeline) or self._options.get("compare_on_start") is not True
        if is_needed or isinstance(error, Unavailable):
            raise error
        log.warning("what the sinks should hold is not computed beside the main: %s", error)
        if self._shadowing is not None:
            self._shadowing.stop()
        self._shadowing, self._has_given_shadow_up = None, True

    def _is_old(self, seen: SeenLease | None) -> bool:
        return seen is not None and noted_term(open_store(str(self._directory)), self._scope.note) != seen.lease.term

    def _check_checkpoint(self, seen: SeenLease | None) -> None:
        """Refuse another checkpoint than the main's where there are shards."""
        if seen is None or seen.lease == self._checked or not self._is_old(seen):
            return
        # A holder without a generation may not have noted its term yet.
        is_refused = seen.lease.generation > 0 and self._scope.runs_shards(self._options.get("shards"))
        if is_refused or (not self._scope.shard_count and self._scope.has_shards_in_sinks()):
            raise self._scope.other_checkpoint()
        self._checked = seen.lease

    def _say(self, watch: Watch) -> None:
        seen, name = watch.seen, self._pipeline.name
        if seen is None or not seen.lease.token:  # then it waits for who runs the same shards under another lease
            seen = next((each.seen for each in self._rivals if each.seen and each.seen.lease.token), seen)
        left_us = None if seen is None else seen.left_us
        if self._as_json:
            lease = None if seen is None else lease_json(seen)
            lag = None if self._shadowing is None else self._shadowing.lag
            frame.print_json({"pipeline": name, "state": "replica", "lease": lease, "shadow": lag})
            return
        what = "there is no lease yet: the main runs without one, or has not begun" if seen is None else held_by(seen)
        left = "" if left_us is None else f", {left_us / 1e6:.1f} s left"
        shadow = "" if self._shadowing is None else f"; shadow {self._shadowing.lag_text}"
        frame.print_lines([f"{name} replica: {what}{left}{shadow}"])

    # --- the run ----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Standby:
        return self

    def kept(self, start: Callable[[], Runnable]) -> Runnable:
        """Start a run that ends when the lease is lost."""
        assert self._keeper is not None
        self._keeper.check()
        return _KeptRun(start(), self._keeper)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give the lease back; a process that is fenced begins again as a replica."""
        if self._keeper is None:
            return
        is_fenced = isinstance(error, Fenced)
        self._keeper.end(gives_back=not is_fenced)
        if is_fenced and not self._begins_elsewhere:
            log.warning("fenced: %s; this process becomes the replica", str(error).splitlines()[0])
            self._invocation.begin_again_as_replica()


class _KeptRun:
    """A run that ends when its lease is lost."""

    def __init__(self, run: Runnable, keeper: Keeper) -> None:
        self._run = run
        self._keeper = keeper
        keeper.note_generation(run.status().generation)

    def status(self) -> Status:
        return self._run.status()

    def wait(self, timeout_s: float | None = None) -> bool:
        if self._keeper.is_lost:
            with suppress(HoldfastError):
                self._run.stop(_STOP_S)
            self._keeper.check()
        return self._run.wait(timeout_s)

    def stop(self, timeout_s: float | None = None) -> Any:
        return self._run.stop(timeout_s)


def _look_s(seen: SeenLease | None) -> float:
    """Return how long to wait for the next look at a lease."""
    ttl_s = 1.0 if seen is None else seen.lease.ttl_us / 1e6
    return min(max(ttl_s / LOOKS, _LOOK_MIN_S), _LOOK_MAX_S)


def _begins_elsewhere(pipeline: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"another process runs pipeline {pipeline!r}.",
        why="it holds the lease, and this command says where the pipeline begins: a replica continues where it is.",
        do="leave --at, --from-checkpoint and --state out.",
        pipeline=pipeline,
    )


_LOOK_S = 0.1


def promote(
    target: Target,
    wait: Annotated[
        str, typer.Option(metavar="DURATION", help="How long to wait for the replica (0s: do not wait).")
    ] = "30s",
    compare: Annotated[
        bool,
        typer.Option("--compare", help="Let the replica compare the sinks, and mend what differs, before it goes on."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say who holds the lease, and change nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Let the replica take over now: the main is fenced, and becomes the replica.  Needs no Java."""
    with frame.settings(as_json):
        patience_s = duration_us(wait, argument="--wait") / 1e6
        pipeline = load_target(target)
        place = lease_of(pipeline)
        before = place.read()
        if before is None:
            raise InvalidPipeline(
                f"pipeline {pipeline.name!r} has no lease.",
                why="its main runs without one, or it has never run.",
                do="run the main with --lease 1s, and a replica with --replica.",
                pipeline=pipeline.name,
            )
        obstacles = check_some_comparable(pipeline) if compare else {}
        left_out = [f"{name} is not compared: {why}" for name, why in obstacles.items()]
        if dry_run:
            frame.answer(_json(before, None, obstacles), [held_by(before), *left_out], as_json)
            return
        ask(place, compares=compare)
        end = time.monotonic() + patience_s
        after = place.read()
        while patience_s and not _is_taken(before, after):
            if time.monotonic() > end:
                is_followed = after is not None and after.lease.term > before.lease.term
                waits_for = "its run has not begun" if is_followed else "no replica watches"
                raise Unavailable(
                    f"nobody has taken over pipeline {pipeline.name!r} in {patience_s:g} s.",
                    why=f"{held_by(after or before)}, and {waits_for}; it stays asked for, until the next term.",
                    do="start a replica (holdfast run TARGET --checkpoint DIR --replica): it takes over at once.",
                    pipeline=pipeline.name,
                )
            time.sleep(_LOOK_S)
            after = place.read()
        place.close()
        taken = _is_taken(before, after)
        lines = [f"before: {held_by(before)}"] + ([f"now: {held_by(after)}"] if taken and after else ["asked"])
        frame.answer(_json(before, after if taken else None, obstacles), [*lines, *left_out], as_json)


def _is_taken(before: SeenLease, after: SeenLease | None) -> bool:
    """Whether another holder's run has begun."""
    return after is not None and after.lease.term > before.lease.term and after.lease.generation > 0


def _json(before: SeenLease, after: SeenLease | None, obstacles: Mapping[str, str]) -> dict[str, Any]:
    after_json = None if after is None else lease_json(after)
    return {"before": lease_json(before), "after": after_json, "not_compared": dict(obstacles)}


REPLICA = "--replica"


class Invocation:
    """How this process is begun again, as it was before the pipeline's modules changed something.  Made early."""

    def __init__(self) -> None:
        self._environment = dict(os.environ)
        self._directory = os.getcwd()

    def begin_again_as_replica(self) -> None:
        """Replace this process by one of the same command that watches.  Its JVM ends with its standard input."""
        sys.stdout.flush()
        sys.stderr.flush()
        arguments = sys.orig_argv[1:]
        more = [] if REPLICA in arguments else [REPLICA]
        os.chdir(self._directory)
        os.execve(sys.executable, [sys.executable, *arguments, *more], self._environment)
