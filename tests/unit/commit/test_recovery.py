"""The table of verdicts (design/0002, "Verdicts")."""

from itertools import product

import pytest

from holdfast.commit.recovery import CASES, VERDICTS, Decision, Verdict
from holdfast.ports import Outcome


def test_every_combination_of_decision_and_outcome_has_exactly_one_row():
    pairs = [(case.decision, case.outcome) for case in CASES]
    assert len(pairs) == len(set(pairs))
    assert set(pairs) == set(product(Decision, Outcome)) == set(VERDICTS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.decision.name}-{case.outcome.name}")
def test_every_row_says_what_led_there(case):
    assert case.why.endswith(".")
    assert len(case.why) > 20


@pytest.mark.parametrize("decision", Decision)
def test_what_a_sink_holds_is_never_published_again(decision):
    assert VERDICTS[decision, Outcome.PUBLISHED] is Verdict.SKIP


@pytest.mark.parametrize("decision", Decision)
def test_unknown_is_never_taken_for_failed(decision):
    assert VERDICTS[decision, Outcome.UNKNOWN] is Verdict.ASK


@pytest.mark.parametrize("outcome", [Outcome.ABSENT, Outcome.STAGED])
def test_a_decision_is_carried_out(outcome):
    assert VERDICTS[Decision.COMMIT, outcome] is Verdict.PUBLISH


def test_without_a_decision_and_without_rows_an_epoch_is_aborted():
    assert VERDICTS[Decision.NONE, Outcome.ABSENT] is Verdict.ABORT


def test_a_sink_that_lacks_what_the_ledger_calls_done_is_given_it_again():
    assert VERDICTS[Decision.DONE, Outcome.ABSENT] is Verdict.REPLAY
    assert VERDICTS[Decision.DONE, Outcome.STAGED] is Verdict.DIVERGED
