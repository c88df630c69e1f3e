"""The audit names the operator and the epoch in which rows are lost or repeated (design/0026)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

import holdfast as hf
from holdfast.errors import InternalError
from holdfast.operators.stateful.distinct import DistinctStep
from holdfast.plan.audit import Audit, Imbalance
from holdfast.plan.operation import Batches, Made
from holdfast.plan.program import Compute, Keep
from holdfast.testing.drive import drive

ROWS = [[{"k": "a", "t": 1}, {"k": "b", "t": 2}], [{"k": "c", "t": 3}, {"k": "d", "t": 4}]]


def _read() -> Any:
    return hf.read.rows([], schema="k STRING, t BIGINT", name="rows", timestamp="t")


def _without_first(given: Made) -> Made:
    return Made([batch.slice(1) for batch in given.batches], given.due)


def _first_twice(given: Made) -> Made:
    return Made([*given.batches, given.batches[0].slice(0, 1)], given.due)


@pytest.mark.parametrize(("kind", "name"), [(Keep, "kept"), (Compute, "chosen")])
@pytest.mark.parametrize(("defect", "said"), [(_without_first, "missing"), (_first_twice, "too many")])
def test_an_operator_that_loses_or_repeats_a_row_is_named(
    monkeypatch: pytest.MonkeyPatch, kind: type, name: str, defect: Callable[[Made], Made], said: str
) -> None:
    sound = kind.apply  # type: ignore[attr-defined]

    def apply(self: Any, inputs: Sequence[Batches]) -> Made:
        return defect(sound(self, inputs))

    stream = _read() | hf.filter("t > 0", name="kept") | hf.select("k", "t", name="chosen")
    assert [len(rows) for rows in drive(stream, {"rows": ROWS})] == [2, 2]
    monkeypatch.setattr(kind, "apply", apply)
    with pytest.raises(InternalError, match=rf"epoch 1 .* at '{name}': 1 rows are {said}") as error:
        drive(stream, {"rows": ROWS})
    assert (error.value.participant, error.value.epoch) == (name, 1)


def test_an_operator_with_state_that_loses_a_row_is_named_with_its_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = DistinctStep.apply

    def apply(self: Any, state: Any, arrivals: Any, at: Any) -> Any:
        result = sound(self, state, arrivals, at)
        if at.epoch < 2:
            return result
        return replace(result, outputs={**result.outputs, "rows": result.outputs["rows"].slice(1)})

    stream = _read() | hf.distinct(by="k", horizon=5, timestamp="t", disorder=9, name="once")
    monkeypatch.setattr(DistinctStep, "apply", apply)
    with pytest.raises(InternalError, match=r"epoch 2 .* at 'once': 1 rows are missing"):
        drive(stream, {"rows": ROWS})


def test_rows_that_arrive_in_no_input_or_part_are_found_on_their_way() -> None:
    tally = {"one": {"in": 5, "due": 5, "out": 5}, "two": {"in.rows": 4}}
    audit = Audit((), {"table": ("one", "out")})
    assert list(audit.imbalances(tally, {"table": 5})) == []
    assert list(audit.imbalances(tally, {})) == []
    assert list(audit.imbalances(tally, {"table": 6})) == [
        Imbalance("table", "what left one is carried or staged", 5, 6)
    ]
