"""What a live run tells for a support bundle: where its threads are, status, metrics, the stories of its last epochs.

As it is, for the user of the run alone; what may leave the machine of it is decided by :mod:`holdfast.observe.bundle`.
A run that hangs tells what it can: each part has a thread and ten seconds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.controller.controller import ShardedRun
from holdfast.spark import private
from holdfast.spark.launch import stacks
from holdfast.steer.protocol import Progress

if TYPE_CHECKING:
    from holdfast.spark.run import Run

_PATIENCE_S = 10.0
_STORIES = 20
"""So many epochs, the last ones."""


def tell_evidence(run: Run | ShardedRun, runs: Mapping[str, Run | None], tell: Progress) -> dict[str, Any]:
    """Tell each part as soon as it is there.

    Parameters
    ----------
    run : Run or ShardedRun
        The run.
    runs : mapping of str to Run
        Those of its shards, by name, or the one.
    tell : callable
        Told one part at a time, by its name.
    """
    parts: dict[str, Callable[[], Any]] = {
        "stacks": _stacks,
        "jvm": lambda: {"jvm": private.stacks_of_jvm()},
        "status": lambda: run.status().as_json(),
        "metrics": lambda: _metrics(run),
        "stories": lambda: {name: [*_stories(each)] for name, each in runs.items() if each is not None},
    }
    for name, make in parts.items():
        tell({name: _within_patience(make)})
    return {}


def _within_patience(make: Callable[[], Any]) -> Any:
    found: list[Any] = []

    def fill() -> None:
        try:
            found.append(make())
        except Exception as error:  # of any kind: the other parts are worth having
            found.append(f"not known: {type(error).__name__}: {error}")

    thread = threading.Thread(target=fill, name="holdfast-support", daemon=True)
    thread.start()
    thread.join(_PATIENCE_S)
    return found[0] if found else f"not known: no answer in {_PATIENCE_S:g} s"


def _stacks() -> dict[str, str]:
    place = stacks.directory()
    workers = {f"worker {process}": text for process, text in stacks.stacks_of_workers(place).items()}
    return {"driver": stacks.own_stacks(place), **workers}


def _metrics(run: Run | ShardedRun) -> str:
    from holdfast.metrics.families import exposition  # its library may be missing

    return exposition(run.pictures())


def _stories(run: Run) -> Iterator[dict[str, Any]]:
    last = run.status().epoch + 2  # those that are at work
    for epoch in range(max(1, last - _STORIES + 1), last + 1):
        for step in run.steering.story(epoch):
            yield {
                "at_us": step.at_us,
                "epoch": step.epoch,
                "generation": step.generation,
                "before": step.before.name,
                "event": step.event.name,
                "after": step.after.name,
                "sink": step.participant,
                "detail": step.detail,
            }
