"""Scenarios: a test as a list of actions that reads like the specification.

::

    play(
        sinks("table", "files"),
        Rows(3), Crash(after="decide"),
        Restart(),
        Expect(table=[0, 1, 2], files=[0, 2], resumes_at=1),
    )

When an action fails the whole list is printed with ``=>`` at the failing one, then positions, ledger, sinks and trace.
The list of actions is Spark's idea (``StreamTest.scala``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from holdfast.commit.ledger import survey
from holdfast.errors import HoldfastError
from holdfast.graph.trigger import SinkPace
from holdfast.testing.failures import Failure, ScriptedFailures
from holdfast.testing.simulation.engine import SOURCE, Load
from holdfast.testing.simulation.process import SimulatedCrash
from holdfast.testing.simulation.world import Life, Setting, SinkUnderTest, World, simulated_sink
from holdfast.testing.store import SimulatedStore

_POINTS = {
    "positions": "before-stage",
    "stage": "after-stage",
    "decide": "after-decide",
    "publish": "after-publish",
    "forget": "after-forget",
    "recovery": "recovery-resolved",
}
"""The words of a scenario for crash points; any name in ``faults.POINTS`` may be used as well."""


@dataclass
class Scene:
    """What the actions act on: a world, the driver that lives in it, and where it is to die."""

    world: World
    failures: ScriptedFailures
    life: Life | None = None
    error: HoldfastError | None = None
    crash_point: str = ""
    held_open: ExitStack = field(default_factory=ExitStack)

    def start(self) -> Life:
        """Return the living driver; start one if there is none."""
        if self.life is None:
            self.life = self.held_open.enter_context(self.world.life(on_point=self._reach))
        return self.life

    def stop(self, *, in_order: bool) -> None:
        """End the living driver."""
        if not in_order and self.life is not None:
            self.life.process.is_alive = False
        self.life = None
        self.crash_point = ""
        with suppress(SimulatedCrash):
            self.held_open.close()

    def attempt(self, epochs_max: int | None = None, *, opens_only: bool = False) -> None:
        """Let the driver work; note the error that stops it, and its death."""
        life = self.start()
        try:
            if opens_only:
                life.open()
            else:
                life.run(epochs_max)
        except SimulatedCrash:
            self.stop(in_order=False)
        except HoldfastError as error:
            self.error = error
            self.stop(in_order=False)

    def _reach(self, point: str, epoch: int) -> None:
        if point == self.crash_point and self.life is not None:
            self.life.process.die(f"at {point} of epoch {epoch}")


class Action(Protocol):
    """One line of a scenario."""

    def act(self, stage: Scene) -> None:
        """Do it; raise ``AssertionError`` where it expects something else."""


@dataclass(frozen=True)
class Rows:
    """New rows arrive, and the driver runs one epoch with them."""

    count: int

    def act(self, stage: Scene) -> None:
        """Extend the source and run one epoch."""
        _add_rows(stage, self.count)
        stage.attempt(1)


@dataclass(frozen=True)
class Crash:
    """The driver dies at a crash point while it runs one epoch with new rows."""

    after: str = ""
    at: str = ""
    rows: int = 3

    def act(self, stage: Scene) -> None:
        """Run one epoch that does not survive."""
        _add_rows(stage, self.rows)
        stage.start()
        stage.crash_point = _POINTS.get(self.after, self.after) or self.at
        stage.attempt(1)
        assert stage.life is None, f"the driver did not reach {self.after or self.at!r}"


@dataclass(frozen=True)
class Restart:
    """A new driver takes over; with ``crash_after`` it dies too, at a crash point of its recovery."""

    crash_after: str = ""

    def act(self, stage: Scene) -> None:
        """Open; nothing is run."""
        if stage.life is not None:
            stage.stop(in_order=False)
        stage.error = None
        stage.start()
        stage.crash_point = _POINTS.get(self.crash_after, self.crash_after)
        stage.attempt(opens_only=True)
        assert not self.crash_after or stage.life is None, f"recovery did not reach {self.crash_after!r}"


@dataclass(frozen=True)
class Drain:
    """The driver runs until the source is drained, starting if need be."""

    def act(self, stage: Scene) -> None:
        """Run to the end."""
        stage.error = None
        stage.attempt()


@dataclass(frozen=True)
class Stop:
    """The driver flushes and ends in good order."""

    def act(self, stage: Scene) -> None:
        """Flush and close."""
        if stage.life is not None:
            stage.life.coordinator.flush()
        stage.stop(in_order=True)


@dataclass(frozen=True)
class Fails:
    """The next calls of a sink (or of ``store``) fail."""

    participant: str
    call: str
    failure: Failure
    times: int = 1

    def act(self, stage: Scene) -> None:
        """Write it into the script."""
        stage.failures.add(self.participant, self.call, self.failure, self.times)


@dataclass(frozen=True)
class GoesBack:
    """A sink goes back to what it held at the end of an epoch, under the living driver, which does not notice."""

    sink: str
    to: int

    def act(self, stage: Scene) -> None:
        """Put the sink's target back."""
        (target,) = (sink.target for sink in stage.world.sinks if sink.name == self.sink)
        assert target is not None, "only a simulated sink can go back"
        target.go_back_to_epoch(self.sink, self.to)


@dataclass(frozen=True)
class Damage:
    """An object of the checkpoint whose key starts so is damaged: truncated to ``keep`` bytes, or gone."""

    prefix: str
    keep: int | None = None
    gone: bool = False

    def act(self, stage: Scene) -> None:
        """Damage the newest such object, or remove all."""
        store = stage.world.store
        assert isinstance(store, SimulatedStore), "only a simulated store can be damaged"
        keys = store.keys(self.prefix)
        assert keys, f"no object starts with {self.prefix!r}"
        if self.gone:
            for key in keys:
                del store.objects[key]
        else:
            store.damage(keys[-1], keep=self.keep if self.keep is not None else len(store.objects[keys[-1]]) // 2)


class Expect:
    """What is to be seen from outside.

    Parameters
    ----------
    ledger : mapping of int to str, optional
        Epoch -> ``open``, ``done``, ``void`` or ``damaged``: all of it.
    resumes_at : int, optional
        Epoch with which the engine would go on.
    error : str, optional
        Kind of the error that stopped the driver; its text has to contain ``says``.
    says : str
        See ``error``.
    staged : bool, optional
        Whether anything staged is left anywhere.
    audit : bool
        Whether the auditor is to find everything in order (start, drain and sweep first).
    **rows : sequence of int
        Sink -> ids of the rows that are visible, in their order.
    """

    def __init__(
        self,
        *,
        ledger: dict[int, str] | None = None,
        resumes_at: int | None = None,
        error: str | None = None,
        says: str = "",
        staged: bool | None = None,
        audit: bool = False,
        **rows: Sequence[int],
    ) -> None:
        self._wanted = {
            name: value
            for name, value in (
                ("ledger", ledger),
                ("resumes_at", resumes_at),
                ("error", error),
                ("staged", staged),
                *rows.items(),
            )
            if value is not None
        }
        self._says = says
        self._audit = audit

    def __repr__(self) -> str:
        wanted = self._wanted | ({"says": self._says} if self._says else {}) | ({"audit": True} if self._audit else {})
        return f"Expect({', '.join(f'{name}={value!r}' for name, value in wanted.items())})"

    def act(self, stage: Scene) -> None:
        """Compare."""
        for name, wanted in self._wanted.items():
            seen = _seen(stage, name)
            assert seen == wanted, f"{name} is {seen!r}, not {wanted!r}"
        if self._says:
            text = str(stage.error)
            assert self._says in text, f"the error does not say {self._says!r}: {text}"
        if self._audit:
            stage.stop(in_order=False)
            stage.world.finish()
            problems = stage.world.audit()
            assert not problems, "; ".join(problems)
        elif stage.error is not None:
            assert "error" in self._wanted, f"the driver stopped: {stage.error}"


def _seen(stage: Scene, name: str) -> Any:
    world = stage.world
    if name == "ledger":
        return {entry.key.epoch: entry.standing.name.lower() for entry in survey(world.store)}
    if name == "resumes_at":
        return stage.start().engine.resumes_at()
    if name == "error":
        return type(stage.error).__name__ if stage.error else None
    if name == "staged":
        return any(sink.leftovers() for sink in world.sinks)
    return [row[0] for sink in world.sinks if sink.name == name for row in sink.rows()]


def _add_rows(stage: Scene, count: int) -> None:
    load = stage.world.setting.load
    grown = replace(load, row_count=load.row_count + count, epoch_rows_min=count, epoch_rows_max=count)
    stage.world.setting = replace(stage.world.setting, load=grown)
    if stage.life is not None:
        stage.life.engine.load = grown


def sinks(*names: str, prepared: Sequence[str] = ()) -> list[SinkUnderTest]:
    """Return simulated sinks with these names; those in ``prepared`` publish in two steps of their own."""
    return [
        simulated_sink(name, way="prepared" if name in prepared else "transaction", can_go_back=True) for name in names
    ]


def play(
    on: Sequence[SinkUnderTest],
    *actions: Action,
    carried: bool = True,
    commit_thread: bool = False,
    commit_every_ticks: int | None = None,
    paces: Mapping[str, SinkPace] | None = None,
    seed: int = 0,
    expects: bool = False,
) -> World:
    """Play a scenario; returns the world as it leaves it.

    Raises
    ------
    AssertionError
        At the first action that fails: shows the list with ``=>`` at it, positions, ledger, sinks and trace.
    """
    failures = ScriptedFailures()
    setting = Setting(
        Load(row_count=0, carried_share=1.0 if carried else 0.0, expects=expects),
        commit_thread=commit_thread,
        commit_every_ticks=commit_every_ticks,
        paces=paces or {},
    )
    world = World(on, seed=seed, setting=setting, failures=failures)
    stage = Scene(world, failures)
    try:
        for number, action in enumerate(actions):
            try:
                action.act(stage)
            except (AssertionError, HoldfastError) as failure:
                raise AssertionError(_picture(stage, actions, number, failure, seed)) from failure
    finally:
        stage.stop(in_order=False)
    return world


def _picture(stage: Scene, actions: Sequence[Action], failing: int, failure: BaseException, seed: int) -> str:
    lines = [str(failure), ""]
    lines += [f"{'=>' if number == failing else '  '} {action!r}" for number, action in enumerate(actions)]
    lines += ["", f"seed      {seed}", f"source    {SOURCE}: {stage.world.setting.load.row_count} rows"]
    offsets = {key: data.decode() for key, data in sorted(stage.world.engine_store.objects.items())}
    lines.append(f"positions {offsets}")
    for entry in survey(stage.world.store):
        lines.append(f"ledger    {entry.key.path}: {entry.standing.name.lower()}")
    for sink in stage.world.sinks:
        lines.append(f"sink      {sink.name}: {[row[0] for row in sink.rows()]} left behind: {list(sink.leftovers())}")
    return "\n".join([*lines, "trace", *(f"  {line}" for line in stage.world.trace)])
