"""A side output is a stream like any other: read by every operator, written, and whole
under crashes (design/0009, "Side outputs")."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest

from holdfast.graph.nodes import Stream
from holdfast.testing import CrashAt, Load, Setting, SimulatedCrash, World, simulated_sink
from holdfast.testing.drive import Drive, drive
from holdfast.testing.given import Bound, bound, close
from holdfast.testing.simulation.levels import Event, StatefulWorkload
from tests.sim.side_graphs import CASES, OPERATORS, READINGS, Reading, events, side_of

Table = Mapping[str, Sequence[Sequence[Any]]]


def given(row: Mapping[str, Any] | None) -> Mapping[str, Any] | Bound:
    if row is None:
        return close()
    if row["is_bound"]:
        return bound(row["t"], {"k": row["k"]})
    return {name: value for name, value in row.items() if name != "is_bound"}


def epochs_of(stream: Stream, line: Sequence[Event], borders: Sequence[int] = ()) -> dict[str, list[list[Any]]]:
    cuts = list(pairwise([0, *sorted(borders), len(line)]))
    names, waiting = set(), [stream.node]
    while waiting:
        node = waiting.pop()
        waiting += node.inputs
        names |= {node.name} if node.is_source else set()
    return {name: [[given(row) for of, row in line[a:b] if of == name] for a, b in cuts] for name in names}


def shown(rows: Sequence[Any]) -> Counter[str]:
    """Return rows in a form that does not know in which order rows of one set came."""
    return Counter(
        repr([plain(value) for value in (row.values() if isinstance(row, Mapping) else row)]) for row in rows
    )


def plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return tuple(plain(each) for each in value.values())
    return sorted(map(repr, map(plain, value))) if isinstance(value, list) else value


def driven(stream: Stream, line: Sequence[Event], borders: Sequence[int] = (), buckets: int = 1) -> Counter[str]:
    found = drive(stream, epochs_of(stream, line, borders), buckets=buckets)
    return shown([row for epoch in found for row in epoch])


@pytest.mark.slow
@pytest.mark.parametrize(("operator", "side"), CASES)
def test_a_side_output_gives_rows(operator: str, side: str) -> None:
    """First of all: the tests below are about something."""
    found = sum(sum(driven(side_of(OPERATORS[operator](), side), events(seed)).values()) for seed in range(4))
    assert found > 0


EVERYDAY = ("sync", "accumulate")
"""Read by the time of rows, and by their order."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=[pytest.mark.nightly] * (way not in EVERYDAY)) for way in READINGS]
)
@pytest.mark.parametrize(("operator", "side"), CASES)
def test_what_is_read_of_a_side_output_does_not_depend_on_epochs_nor_on_buckets(
    operator: str, side: str, way: str
) -> None:
    if not Reading(operator, side).is_possible(way):
        return
    chance = random.Random(f"{operator} {side} {way}")

    def stream() -> Stream:
        main = OPERATORS[operator]()
        return READINGS[way](main, side_of(main, side))

    line = events(chance.randint(0, 99))
    whole = driven(stream(), line)
    for _ in range(2):
        borders = [chance.randint(0, len(line)) for _ in range(4)]
        assert driven(stream(), line, borders, chance.randint(1, 3)) == whole


@pytest.mark.slow
@pytest.mark.parametrize(("operator", "side"), CASES)
def test_rows_of_a_side_output_are_counted_with_their_reasons(operator: str, side: str) -> None:
    line = events(3)
    main = OPERATORS[operator]()
    read = side_of(main, side)
    ran = Drive(read, epochs_of(read, line))
    rows = [row for table in ran.tables() for row in table.to_pylist()]
    # In ``late`` of ``sync`` are the rows that its policy dropped, too.
    counted = [side, "dropped"] if (side, operator[:4]) == ("late", "sync") else [side]
    assert sum(ran.counts["op", what] for what in counted) == len(rows)
    assert sum(count for what in counted for count in ran.reasons.get(("op", what), {}).values()) == len(rows)


def lived(reading: Reading, seed: int, *, crashes: Sequence[CrashAt]) -> tuple[int, list[str]]:
    """Run through crashes to the end of the sources; return how many deaths there were, and what is wrong."""
    chance = random.Random(f"{seed} lives")
    line = events(seed)
    plain = reading.pipeline("plain")
    wanted = {sink.name: driven(sink.stream, line) for sink in plain.sinks if sink.stream is not None}

    def judge(visible: Table) -> list[str]:
        return [
            f"{name} lacks {of - shown(visible[name])} and has {shown(visible[name]) - of}"
            for name, of in wanted.items()
            if shown(visible[name]) != of
        ]

    pipeline = reading.pipeline("simulated")
    sinks = [simulated_sink(sink.name, way=chance.choice(("transaction", "prepared"))) for sink in pipeline.sinks]
    workload = StatefulWorkload(pipeline, line, judge, buckets=2, partitions=chance.randint(1, 2), failure_rate=0.05)
    load = Load(row_count=len(line), epoch_rows_min=2, epoch_rows_max=12, carried_share=0.5, task_failure_rate=0.05)
    world = World(sinks, seed=seed, setting=Setting(load, commit_thread=chance.random() < 0.5), workload=workload)
    left, deaths = list(crashes), 0
    while True:
        try:
            with world.life(left.pop(0) if left else None) as life:
                life.run()
        except SimulatedCrash:
            deaths += 1
            world.lose_power()
        else:
            break
    world.finish()
    return deaths, world.audit()


def randomly(seed: int, count: int = 3) -> list[CrashAt]:
    chance = random.Random(f"{seed} crashes")
    return [CrashAt(chance.randint(1, 60), chance.choice(("before", "after"))) for _ in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operator", "side"), [*CASES[::2], *(pytest.param(*one, marks=pytest.mark.nightly) for one in CASES[1::2])]
)
def test_side_outputs_are_whole_in_every_sink_downstream_of_every_operator_after_crashes(
    operator: str, side: str
) -> None:
    deaths, problems = lived(Reading(operator, side), seed := len(operator + side), crashes=randomly(seed))
    assert not problems
    assert deaths > 0


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize(("operator", "side"), CASES)
def test_side_outputs_are_whole_whatever_durable_write_is_the_last(operator: str, side: str) -> None:
    """Each case dies at every fifth write, begun at another one: all cases together at every write."""
    for write in range(1 + CASES.index((operator, side)) % 5, 1000, 5):
        for when in ("before", "after"):
            deaths, problems = lived(Reading(operator, side), 5, crashes=[CrashAt(write, when)])
            assert not problems, f"{when} write {write}"
        if not deaths:
            assert write > 100, "hardly any place to die"
            return


@pytest.mark.slow
@pytest.mark.parametrize(("operator", "side"), CASES)
def test_a_graph_that_begins_to_read_a_side_output_later_gets_what_leaves_from_then_on(
    operator: str, side: str
) -> None:
    """State is the same whether a side output is read or not, so a changed graph goes on from it."""
    line, half = events(7), [20]
    main = OPERATORS[operator]()
    read = side_of(OPERATORS[operator](), side)
    first = epochs_of(main, line, half)
    before = Drive(main, {name: [epochs[0]] for name, epochs in first.items()})
    before.tables()
    after = Drive(read, {name: [[], epochs[1]] for name, epochs in first.items()})
    after._engine._stored.update(before._engine._stored)  # type: ignore[attr-defined]
    always = Drive(read, first)
    assert after.tables()[1].to_pylist() == always.tables()[1].to_pylist()
