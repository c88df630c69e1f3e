"""Which epoch a rewind goes back to, where the ends of some are not known."""

from __future__ import annotations

import pytest

from holdfast.checkpoint.progress import Step
from holdfast.checkpoint.rewind import target
from holdfast.errors import InvalidPipeline
from holdfast.testing.store import SimulatedStore
from tests.unit.checkpoint.snapshots import ended

KNOWN = [Step(ended(epoch - 1).positions, ended(epoch)) for epoch in (1, 2, 4, 5)]
"""Epoch n was planned n milliseconds after the beginning of 1970."""


def epoch_at(to: str) -> int:
    return target(SimulatedStore(), "counts", to, KNOWN, has_state=False).ended.epoch


@pytest.mark.parametrize(("to", "epoch"), [("1", 1), ("4", 4), (".001", 1), (".0045", 4), (".005", 5), (".9", 5)])
def test_what_is_known_is_found_by_number_and_by_time(to: str, epoch: int) -> None:
    assert epoch_at(f"1970-01-01T00:00:00{to}Z" if to.startswith(".") else to) == epoch


@pytest.mark.parametrize("to", ["3", "0", "6", "1970-01-01T00:00:00.002Z", "1970-01-01T00:00:00.0035Z", "1969-12-31"])
def test_what_is_not_known_is_refused_with_what_is(to: str) -> None:
    """Of the time behind epoch 2 nobody knows whether epoch 3 was planned by then."""
    with pytest.raises(InvalidPipeline, match="cannot go back") as refused:
        epoch_at(to)
    assert "it can go back to epoch 1 to 2, 4 to 5:" in refused.value.why


def test_a_source_that_came_or_went_between_two_epochs_leaves_no_gap() -> None:
    before, after = ended(1), ended(2)
    steps = [
        Step({}, before),
        Step({**before.positions, "new": {"log": 0}}, after),
        Step({"other": {"log": 0}}, ended(3)),
    ]
    for to, epoch in ((".001", 1), (".002", 2)):
        found = target(SimulatedStore(), "counts", f"1970-01-01T00:00:00{to}Z", steps, has_state=False)
        assert found.ended.epoch == epoch
