"""One history of packets, bounds and ends gives the same input sets to a node of a flowgraph and to ``sync``.

Two definitions of the policies, one for a packet at a time and one for columns, are held to each other (design/0007,
section 4).  ``sync`` sees one epoch for each event where the node may run after each, and one epoch with all of them
where the node is fed first.  Where the two differ on purpose:

- A late packet, or a bound that goes back, ends a flowgraph's run, and is nothing but a late row to ``sync``: what the
  node makes of the history without those events is what ``sync`` makes of the whole.
- A call without packets is no input set to ``sync``; of ``immediate`` it keeps a node busy that is fed first.
- ``early_close``: a bound and the end of the same input in one epoch release nothing beyond the input's rows.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import pytest

from holdfast import flow
from holdfast.flow.queues import BrokenContract
from holdfast.operators.sync import policy as policies
from holdfast.state.step import CLOSED
from tests.everyday import FIRST_SEED
from tests.unit.operators.sync_driver import Event, run, step_of

Sets = list[tuple[int, int, dict[str, int]]]
"""After which event, time, and input -> value."""


def _sync_sets(names: list[str], chance: random.Random) -> policies.Policy:
    mixed = chance.sample(names, len(names))
    cut = chance.randrange(1, len(names))
    return policies.sync_sets([mixed[:cut], mixed[cut:]][: chance.randint(1, 2)])


def _fixed_size(names: list[str], chance: random.Random) -> policies.Policy:
    target = chance.randint(1, 3)
    return policies.fixed_size(target + chance.randint(0, 2), target, chance.random() < 0.4)


POLICIES: dict[str, Callable[[list[str], random.Random], policies.Policy]] = {
    "settled": lambda names, chance: policies.settled(),
    "sync_sets": _sync_sets,
    "immediate": lambda names, chance: policies.immediate(),
    "barrier": lambda names, chance: policies.barrier(),
    "early_close": lambda names, chance: policies.early_close(),
    "fixed_size": _fixed_size,
    "mux": lambda names, chance: policies.mux(chance.choice(names)),
    "timestamp_align": lambda names, chance: policies.timestamp_align(chance.choice(names)),
}


@dataclass(frozen=True)
class Node:
    """What several histories share: inputs, policy, and whether the node runs after each event or at the end."""

    policy: policies.Policy
    names: list[str]
    runs_after_each: bool

    def history(self, seed: int) -> list[Event]:
        """Return random events of one key; now and then a late one."""
        chance = random.Random(seed)
        data = len(self.names) - 1
        pace = {name: chance.choice((1, 1, 2, 5)) for name in self.names}
        ahead = dict.fromkeys(self.names, chance.randint(-3, 3))
        events: list[Event] = []
        for _ in range(chance.randint(1, 24)):
            name = chance.choice(self.names)
            lag = chance.randint(1, 4) if chance.random() < 0.06 else 0
            t = ahead[name] + chance.randint(0, pace[name]) - lag
            kind = chance.random()
            if kind < 0.78:
                events.append((name, "row", str(seed), t, chance.randrange(data)))
                ahead[name] = max(ahead[name], t + 1)
            elif kind < 0.93:
                events.append((name, "bound", str(seed), t))
                ahead[name] = max(ahead[name], t)
            elif chance.random() < 0.7:
                events.append((name, "bound", str(seed), CLOSED))
        if chance.random() < 0.5:
            events += [(name, "bound", str(seed), CLOSED) for name in chance.sample(self.names, len(self.names))]
        if self.runs_after_each:
            return events
        if self.policy.kind == "immediate":
            first = next((n for n, event in enumerate(events) if event[1] == "row"), 0)
            events = events[first:]
        if self.policy.kind == "early_close":
            ending = {event[0] for event in events if event[1:] == ("bound", str(seed), CLOSED)}
            events = [event for event in events if event[1] == "row" or event[3] == CLOSED or event[0] not in ending]
        return events

    def sets_of_flow(self, events: list[Event]) -> Sets:
        """Return what a node of a flowgraph is given; an event that ends the run is left out, and all runs again."""
        fed = list(enumerate(events))
        while True:
            found, broken = self._fed(fed)
            if broken is None:
                return found
            fed = [each for each in fed if each[0] != broken]

    def _fed(self, events: Iterable[tuple[int, Event]]) -> tuple[Sets, int | None]:
        found: Sets = []
        now = [0]

        class Recorder(flow.Calculator):
            contract = flow.Contract(inputs=self.names, policy=self.policy)

            def process(self, context: flow.Context) -> None:
                if context.payloads():
                    found.append((now[0], context.timestamp, context.payloads()))

        graph = flow.Graph(max_queue_size=-1)
        {name: graph.input(name) for name in self.names} | flow.node(Recorder)
        running = graph.start(executor=flow.Application())
        for number, (name, what, _, t, *value) in events:
            now[0] = number if self.runs_after_each else 0
            try:
                if what == "row":
                    running.add(name, value[0], t)
                elif t == CLOSED:
                    running.close(name)
                else:
                    running.raise_bound(name, t)
            except BrokenContract as error:
                if error.rule not in ("late_packet", "bound_moved_back"):
                    raise
                return found, number
            if self.runs_after_each:
                running.wait_until_idle()
        running.wait_until_idle()
        return found, None

    def sets_of_sync(self, histories: dict[int, list[Event]]) -> dict[int, Sets]:
        """Return what ``sync`` makes of all histories, each of which is a key: seed -> sets."""
        policy = self.policy
        if isinstance(policy, policies.Mux):
            policy = replace(policy, column="v")
        step = step_of(self.names, policy)
        if self.runs_after_each:
            longest = max(map(len, histories.values()))
            epochs = [[events[n] for events in histories.values() if n < len(events)] for n in range(longest)]
        else:
            epochs = [[event for events in histories.values() for event in events]]
        drive = run(step, [])
        found: dict[int, Sets] = defaultdict(list)
        for number, events in enumerate(epochs):
            for row in drive.epoch_of(events):
                values = {name: row[name]["v"] for name in self.names if row[name] is not None}
                found[int(row["k"])].append((number, row["timestamp"], values))
        return found


def nodes(kind: str, runs_after_each: bool, count: int, seed: int) -> Iterable[Node]:
    """Return random nodes of one policy."""
    chance = random.Random(f"{kind} {runs_after_each} {seed}")
    for number in range(count):
        names = ["d", "b", "a", "c"][: 2 + number % 3]
        yield Node(POLICIES[kind](names, chance), names, runs_after_each)


def compare(kind: str, runs_after_each: bool, first_seed: int, node_count: int, history_count: int) -> int:
    """Compare so many histories for each of so many nodes; return how many input sets there were."""
    seen = 0
    for number, node in enumerate(nodes(kind, runs_after_each, node_count, first_seed)):
        first = first_seed + number * history_count
        histories = {seed: node.history(seed) for seed in range(first, first + history_count)}
        of_sync = node.sets_of_sync({seed: events for seed, events in histories.items() if events})
        for seed, events in histories.items():
            of_flow = node.sets_of_flow(events)
            seen += len(of_flow)
            story = "\n".join(f"  {n}: {event}" for n, event in enumerate(events))
            assert of_flow == of_sync.get(seed, []), f"first seed {first_seed}, seed {seed}, {node}:\n{story}"
    return seen


EACH = pytest.mark.parametrize("runs_after_each", [True, False], ids=["after_each_event", "all_fed_first"])


@pytest.mark.slow
@EACH
@pytest.mark.parametrize("kind", POLICIES)
def test_the_node_and_sync_make_the_same_input_sets(kind: str, runs_after_each: bool) -> None:
    assert compare(kind, runs_after_each, FIRST_SEED, node_count=3, history_count=12) > 36


@pytest.mark.nightly
@EACH
@pytest.mark.parametrize("kind", POLICIES)
def test_the_node_and_sync_make_the_same_input_sets_of_ten_thousand_histories(kind: str, runs_after_each: bool) -> None:
    """Ten thousand and more, over all policies; another seed every night."""
    assert compare(kind, runs_after_each, FIRST_SEED + 1000, node_count=9, history_count=70) > 9 * 70
