"""Which input sets of a calculator that is replayed are its state."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast as hf
from holdfast.flow import Calculator, Context, Contract, saving
from holdfast.flow.replay import ReplayedSets
from holdfast.testing import flow_contract


def sets_of(marks: int, keys: str) -> ReplayedSets:
    """Return what is kept of sets 0, 1, ... of which those of a ``k`` are marked."""
    sets = ReplayedSets("is_key", marks)
    sets.encode = lambda each: str(each[0]).encode()
    for t, key in enumerate(keys):
        sets.note(t, [(t, {"is_key": key == "k"})], {})
    return sets


@pytest.mark.parametrize(
    ("marks", "keys", "first"),
    [
        (1, "--", 0),
        (1, "--k-", 2),
        (1, "k--k-", 3),
        (2, "--k-", 0),
        (2, "k--k-", 0),
        (2, "--k--k-", 2),
        (3, "kkkkk", 2),
    ],
)
def test_the_sets_since_the_last_marked_ones_are_kept(marks: int, keys: str, first: int) -> None:
    assert [int(each) for each in sets_of(marks, keys).take()[1]] == list(range(first, len(keys)))


def test_what_is_kept_under_other_numbers_is_saved_again() -> None:
    sets = sets_of(2, "k--k-")
    assert sets.take()[0] == 0
    sets.note(5, [(5, {"is_key": False})], {})
    assert sets.take() == (5, [b"5"])
    sets.note(6, [(6, {"is_key": True})], {})
    assert sets.take() == (0, [b"3", b"4", b"5", b"6"])


class Since(Calculator):
    """Gives the packets since the last mark but one."""

    contract = Contract(inputs="packet", outputs="seen", timestamp_offset=0, replay_from="is_key", replay_marks=2)

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.groups: list[list[int]] = []

    def process(self, context: Context) -> None:
        if context["packet"]["is_key"]:
            self.groups = [*self.groups[-1:], []]
        if self.groups:
            self.groups[-1].append(context.timestamp)
        context.emit("seen", [list(group) for group in self.groups])


@pytest.mark.slow
def test_a_calculator_that_needs_two_groups_is_restored_by_two() -> None:
    flow_contract(Since, [(t, {"is_key": t % 5 == 2}) for t in range(24)])


def test_the_number_of_marks_is_a_number() -> None:
    with pytest.raises(hf.InvalidPipeline, match="replay_marks=0"):
        Contract(inputs="packet", replay_from="is_key", replay_marks=0)


class Silent(Since):
    """Hears of times without packets, too."""

    contract = Contract(
        inputs="packet", outputs="seen", process_timestamp_bounds=True, replay_from="is_key", replay_marks=2
    )

    def process(self, context: Context) -> None:
        if "packet" in context:
            super().process(context)


def test_calls_without_packets_are_no_state() -> None:
    """Else a key that is silent would gather one in every epoch, until it is refused."""
    graph = hf.flow.Graph("silent")
    graph.output("seen", graph.input("packet") | hf.flow.node(Silent, name="since"))
    with graph.start(executor=hf.flow.Sequential()) as run:
        run.add("packet", {"is_key": True}, at=0)
        for t in range(10, 50):
            run.raise_bound("packet", t)
        state = saving.save(run, "the test")["since"]
        assert (state.first, state.count) == (0, 1)
