"""Lifecycle hooks: functions of the user that are called at fixed moments of a run, on the driver.

The order, and what a hook that raises does::

    start      on_setup  ->  take over, resolve  ->  on_recover(value)  ->  on_start     raises: the start fails
    running    ... on_checkpoint() at the end of an epoch, when a checkpoint is due      raises: the run fails
    end well   last epoch is published  ->  on_checkpoint(), the last time               raises: the run fails
               last checkpoint is made  ->  on_finish                                    raises: logged
    any time   what is wrong with the run changes  ->  on_health(health)                 raises: logged
    failure    on_error(error, operator, rows)                                           raises: logged
    always     on_teardown, last                                                         raises: logged

No hook runs between the evaluation of an epoch and its commit: whatever one does, an epoch is published as a whole or
replayed, so no row is lost or duplicated by it.  A process that is killed calls nothing more.

Of a pipeline in shards the first and the last are called once, the others for each shard: one that has a parameter
``shard`` behind a ``*`` is told which.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from holdfast.errors import HoldfastError, InvalidPipeline

log = logging.getLogger("holdfast.run")

_ONCE = ("on_setup", "on_teardown")
"""Those that are called once for all shards."""


def _takes_shard(hook: object) -> bool:
    """Return whether a hook is told of its shard.

    Examples
    --------
    >>> _takes_shard(lambda value, *, shard: None), _takes_shard(lambda shard: None), _takes_shard({}.update)
    (True, False, False)
    """
    try:
        found = inspect.signature(hook).parameters.get("shard") if callable(hook) else None
    except ValueError:  # of a function that is not Python's
        return False
    return found is not None and found.kind is inspect.Parameter.KEYWORD_ONLY


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """What is called when, at the beginning, during and at the end of each run of a pipeline.

    A hook but ``on_setup`` and ``on_teardown`` may have the parameter ``shard`` behind a ``*``: it receives the number
    of the shard for which it is called, 0 of a pipeline without shards; ``on_error`` None, where all of them failed.

    Parameters
    ----------
    on_setup : callable, optional
        First of all, before Spark is started and the pipeline is taken over.
    on_start : callable, optional
        When recovery is done, before the first epoch.
    on_checkpoint : callable, optional
        Returns a value to be kept: JSON (None, bool, int, float, str, and lists and dicts of them), or bytes; at most
        1 MB.  Called at the end of an epoch, when a checkpoint is due, and at the end of a run that ends well.
    on_recover : callable, optional
        Receives that value, before ``on_start``: that of the snapshot from which state is restored, otherwise the
        latest. Not called where there is none.
    on_error : callable, optional
        Receives ``(error, operator, rows)``: when the run fails, with the name of the node concerned (or None) and
        None for the rows; and when rows are isolated, with these rows as a ``pyarrow.Table``.
    on_health : callable, optional
        Receives the :class:`~holdfast.status.Health` of the run whenever its reasons change, looked at every few
        seconds: an expectation or the freshness of a sink is broken, or kept again.  Called in a thread of the run's.
    on_finish : callable, optional
        When the run has ended well: everything is published, the last checkpoint is made.
    on_teardown : callable, optional
        Last, whenever ``on_setup`` had returned.

    Examples
    --------
    ::

        hooks = hf.Hooks(on_setup=model.load, on_error=lambda error, operator, rows: page(error.what))
        pipeline = hf.Pipeline("trips", trips_table, hooks=hooks)
        in_shards = hf.Hooks(on_checkpoint=lambda *, shard: seen[shard])
    """

    on_setup: Callable[[], object] | None = None
    on_start: Callable[..., object] | None = None
    on_checkpoint: Callable[..., Any] | None = None
    on_recover: Callable[..., object] | None = None
    on_error: Callable[..., object] | None = None
    on_health: Callable[..., object] | None = None
    on_finish: Callable[..., object] | None = None
    on_teardown: Callable[[], object] | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            hook = getattr(self, field.name)
            if hook is not None and not callable(hook):
                raise InvalidPipeline(
                    f"{field.name}={hook!r} is not a function.",
                    why="a hook is called; here the result of a call may have been given.",
                    do=f"write Hooks({field.name}=function), without parentheses after it.",
                )
            if field.name in _ONCE and _takes_shard(hook):
                raise InvalidPipeline(
                    f"{field.name} has a parameter 'shard'.",
                    why="it is called once for all shards of a pipeline.",
                    do="leave the parameter out; on_start is called for each shard.",
                )


NAMES = frozenset(field.name for field in fields(Hooks))
"""Of all hooks: an error that a hook raised has one of them as its participant."""

NONE = Hooks()
"""No hook at all."""


@dataclass
class Lifecycle:
    """One run's way through its hooks.

    Parameters
    ----------
    hooks : Hooks
        The user's.
    pipeline : str
        Name of the pipeline, for errors.
    shard : int, optional
        Whose run it is; None: of all shards.
    """

    hooks: Hooks
    pipeline: str
    shard: int | None = 0
    is_set_up: bool = False

    def set_up(self) -> None:
        """Call ``on_setup``; raises if it does."""
        self._demand("on_setup", self.hooks.on_setup)
        self.is_set_up = True

    def begin(self, recovered: Any, *, has_value: bool) -> None:
        """Call ``on_recover`` where there is a value, and ``on_start``; raises if one does."""
        if has_value and self.hooks.on_recover is not None:
            self._demand("on_recover", self.hooks.on_recover, recovered)
        self._demand("on_start", self.hooks.on_start)

    def ask(self) -> Any:
        """Return what ``on_checkpoint`` returns; raises if it does."""
        try:
            return self._demand("on_checkpoint", self.hooks.on_checkpoint)
        except SystemExit as error:  # it would end a thread of the run's, and neither the run nor the process
            raise raised("on_checkpoint", error, self.pipeline) from error

    def fail(self, error: HoldfastError, rows: Any = None) -> None:
        """Call ``on_error``."""
        self._tolerate("on_error", self.hooks.on_error, error, error.participant or None, rows)

    def tell_health(self, health: object) -> None:
        """Call ``on_health``."""
        self._tolerate("on_health", self.hooks.on_health, health)

    def finish(self) -> None:
        """Call ``on_finish``."""
        self._tolerate("on_finish", self.hooks.on_finish)

    def tear_down(self) -> None:
        """Call ``on_teardown``, once, if ``on_setup`` had returned."""
        if self.is_set_up:
            self.is_set_up = False
            self._tolerate("on_teardown", self.hooks.on_teardown)

    def _demand(self, name: str, hook: Callable[..., Any] | None, *arguments: Any) -> Any:
        if hook is None:
            return None
        try:
            return self._call(hook, arguments)
        except Exception as error:
            raise raised(name, error, self.pipeline) from error

    def _tolerate(self, name: str, hook: Callable[..., Any] | None, *arguments: Any) -> None:
        if hook is None:
            return
        try:
            self._call(hook, arguments)
        except (Exception, SystemExit):  # the run is ending: what it ends of must not be hidden, nor its end prevented
            log.exception("%s of pipeline %r raised; the run goes on, or ends, as it would have", name, self.pipeline)

    def _call(self, hook: Callable[..., Any], arguments: tuple[object, ...]) -> Any:
        return hook(*arguments, shard=self.shard) if _takes_shard(hook) else hook(*arguments)


def raised(name: str, error: BaseException, pipeline: str) -> InvalidPipeline:
    """Return the error for a hook that raised."""
    return InvalidPipeline(
        f"{name} of pipeline {pipeline!r} raised {type(error).__name__}.",
        why=f"{' '.join(str(error).split()) or 'it has no message'}.",
        do="fix the hook, then start again: epochs are published as a whole or replayed, so no row is lost or "
        "duplicated by it.",
        pipeline=pipeline,
        participant=name,
    )
