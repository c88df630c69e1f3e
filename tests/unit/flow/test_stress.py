"""Flowgraphs under real threads and random delays: what they make is what one thread makes.

Delays only shake the order of calls; no result waits for one.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import pytest

from holdfast import flow
from tests.everyday import FIRST_SEED
from tests.unit.flow.random_graphs import RandomGraph, outputs


def _executors(chance: random.Random) -> dict[str, flow.Executor]:
    return {
        "": flow.Threads(chance.randint(1, 6)),
        "a": flow.Threads(chance.randint(1, 2)),
        "b": chance.choice([flow.Application(), flow.Sequential(), flow.Threads(1)]),
    }


def _pause(run: flow.Run, chance: random.Random) -> None:
    """Do what others may do meanwhile."""
    match chance.randrange(4):
        case 0:
            run.wait_until_idle()
        case 1:
            run.times()
            run.waits()
            run.queue_lengths()
        case 2:
            time.sleep(chance.random() / 1000)


def _shake(seed: int) -> int:
    """Compare one graph; return how many packets it made."""
    chance = random.Random(f"stress {seed}")
    graph = RandomGraph(seed, size=chance.randint(5, 25))
    packets = graph.packets(40)
    wanted = outputs(graph.graph(), packets, 0, executor=flow.Application())
    executors = _executors(chance)
    size = chance.choice((1, 2, 5, 100, -1))
    shaken = graph.graph(size, executors=tuple(executors), delay_s=chance.choice((0.0, 0.0005, 0.002)))
    default = executors.pop("")
    got = outputs(
        shaken,
        packets,
        seed,
        executor=default,
        executors=executors,
        now_and_then=lambda run: _pause(run, chance),
    )
    assert got == wanted, f"seed {seed}, queues of {size}, {default}, {executors}"
    return sum(map(len, got.values()))


def _shake_for(seconds: float, seeds: Iterator[int]) -> int:
    end = time.monotonic() + seconds
    made = 0
    while time.monotonic() < end:
        made += _shake(next(seeds))
    return made


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_threads_and_delays_do_not_change_what_graphs_make() -> None:
    assert _shake_for(1.0, iter(range(FIRST_SEED, FIRST_SEED + 1_000_000))) > 100


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_threads_and_delays_do_not_change_what_graphs_make_in_a_minute() -> None:
    """Two at a time, which also shake each other."""
    failures: list[BaseException] = []

    def shake(first: int) -> None:
        try:
            _shake_for(60.0, iter(range(first, first + 1_000_000)))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=shake, args=(FIRST_SEED + n * 10_000,), daemon=True) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert not failures, failures[0]
    assert not any(thread.is_alive() for thread in threads), "a run does not end"
    assert not [each for each in threading.enumerate() if each.name.startswith("holdfast-flow")]
