"""The policies as values: what they hold, what they refuse."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from holdfast.errors import InvalidPipeline
from holdfast.graph import naming
from holdfast.operators.sync import policy as policies

EVERY = [
    policies.settled(),
    policies.sync_sets([["a"], ["b", "c"]]),
    policies.immediate(),
    policies.barrier(),
    policies.early_close(),
    policies.fixed_size(3, 2, True),
    policies.mux("c", "choice"),
    policies.timestamp_align("a"),
    policies.within("20 ms", base="b"),
    policies.custom(len, delay="6 s"),
]


@pytest.mark.parametrize("policy", EVERY, ids=lambda policy: policy.kind)
def test_a_policy_is_a_value_that_travels_and_has_a_fingerprint(policy: policies.Policy) -> None:
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert naming.canonical_json(policy.arguments())
    assert hash(policy) == hash(pickle.loads(pickle.dumps(policy)))


@pytest.mark.parametrize(
    ("build", "arguments", "says"),
    [
        (policies.sync_sets, ([["a"], ["a"]],), "'a' twice"),
        (policies.sync_sets, ([["a"], []],), "empty group"),
        (policies.sync_sets, (["a", "b"],), "list of lists"),
        (policies.fixed_size, (1, 2), "1 <= target <= trigger"),
        (policies.fixed_size, ("2",), "1 <= target <= trigger"),
        (policies.mux, (3,), "names no input"),
        (policies.timestamp_align, (None,), "names no input"),
        (policies.within, (-1,), "negative"),
        (policies.within, ("soon",), "not a number with a unit"),
        (policies.within, (1.5,), "not a distance in time"),
    ],
)
def test_an_argument_that_cannot_be_is_refused_with_its_cure(build: Any, arguments: tuple[Any, ...], says: str) -> None:
    with pytest.raises(InvalidPipeline, match=says) as raised:
        build(*arguments)
    assert raised.value.do


def test_inputs_in_no_group_form_the_last_one() -> None:
    assert policies.groups_of(policies.sync_sets([["c"], ["a"]]), ["a", "b", "c", "d"]) == ((2,), (0,), (1, 3))
    assert policies.groups_of(policies.sync_sets([]), ["a", "b"]) == ((0, 1),)
