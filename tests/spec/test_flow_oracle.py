"""Flowgraphs against cases recorded from a running framework: every one of them (docs/operators/flow.md)."""

from __future__ import annotations

import pytest

from tests.spec.flow_cases import CASES, Case, differences

pytestmark = pytest.mark.slow


def test_all_cases_are_asked() -> None:
    assert len(CASES) == 242


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_graph_does_what_was_recorded(case: Case) -> None:
    assert list(differences(case)) == []
