"""Bounded retry, and lost replies of the store."""

import random

import pytest

from holdfast.errors import Fenced, InDoubt, Unavailable
from holdfast.retry import UNLIMITED, RetriedStore, Retrier, RetryPolicy
from holdfast.testing import Failure, FaultyStore, Process, ScriptedFailures, SimulatedClock, SimulatedStore


def retrier(policy=None, clock=None, may_go_on=lambda: True):
    told = []
    made = Retrier(
        policy or RetryPolicy(seed=1),
        clock or SimulatedClock(),
        on_retry=lambda doing, attempt, error: told.append((doing, attempt, error.what)),
        may_go_on=may_go_on,
    )
    return made, told


def failing(times, error=None):
    left = [error or Unavailable("away")] * times

    def call():
        if left:
            raise left.pop()
        return "there"

    return call


def test_a_call_that_succeeds_waits_for_nothing():
    clock = SimulatedClock()
    assert retrier(clock=clock)[0].call(failing(0), "ask") == "there"
    assert clock.slept_s == 0


def test_what_is_waited_for_is_said_until_the_call_succeeds():
    made, _ = retrier()
    call, said = failing(2), []

    def noted():
        said.append(made.waits_for)
        return call()

    assert made.call(noted, "ask") == "there"
    assert ["away" in each for each in said] == [False, True, True]
    assert made.waits_for == ""


def test_another_call_that_succeeds_meanwhile_does_not_hide_what_is_waited_for():
    """Threads of a run share it: one publishes, one looks for requests each second."""
    made, _ = retrier()
    call, said = failing(2), []

    def noted():
        made.call(failing(0), "look for requests")
        said.append(made.waits_for)
        return call()

    made.call(noted, "publish")
    assert ["away" in each for each in said] == [False, True, True]
    assert made.waits_for == ""


def test_unavailable_is_tried_again_and_told():
    made, told = retrier()
    assert made.call(failing(3), "ask") == "there"
    assert told == [("ask", 1, "away"), ("ask", 2, "away"), ("ask", 3, "away")]


def test_ten_attempts_outlast_a_minute_and_then_the_last_error_is_raised():
    clock = SimulatedClock()
    made, told = retrier(clock=clock)
    with pytest.raises(Unavailable):
        made.call(failing(10), "ask")
    assert len(told) == 9
    assert 60 < clock.slept_s < 80


@pytest.mark.parametrize("error", [InDoubt("?"), Fenced("!"), ValueError()])
def test_nothing_else_is_tried_again(error):
    made, told = retrier()
    with pytest.raises(type(error)):
        made.call(failing(1, error), "ask")
    assert told == []


def test_waits_double_up_to_the_cap_with_little_jitter():
    policy, sure = RetryPolicy(first_s=1, cap_s=8), random.Random(5)
    for attempt, whole in enumerate([1, 2, 4, 8, 8, 8], start=1):
        assert 0.85 * whole <= policy.wait_s(attempt, sure) <= whole


def test_the_same_seed_waits_the_same():
    clocks = [SimulatedClock(), SimulatedClock()]
    for clock in clocks:
        retrier(RetryPolicy(seed=3), clock)[0].call(failing(5), "ask")
    assert clocks[0].slept_s == clocks[1].slept_s


def test_closing_ends_the_attempts():
    made, told = retrier(may_go_on=lambda: False)
    with pytest.raises(Unavailable):
        made.call(failing(1), "ask")
    assert told == []


def test_a_policy_alone_repeats_what_is_transient_as_often_as_it_says():
    policy = RetryPolicy(attempts=3, first_s=0)
    assert policy.call(failing(2, ValueError()), lambda error: isinstance(error, ValueError)) == "there"
    with pytest.raises(ValueError):  # noqa: PT011
        policy.call(failing(3, ValueError()), lambda error: isinstance(error, ValueError))
    with pytest.raises(KeyError):
        policy.call(failing(1, KeyError()), lambda error: isinstance(error, ValueError))


def test_no_attempt_is_made_after_the_time():
    policy = RetryPolicy(UNLIMITED, first_s=0)
    assert policy.call(failing(100), lambda error: True, timeout_s=600) == "there"
    with pytest.raises(Unavailable):
        policy.call(failing(1), lambda error: True, timeout_s=0)


@pytest.fixture
def faulty():
    inner, failures = SimulatedStore(), ScriptedFailures()
    made, _ = retrier()
    return inner, failures, RetriedStore(FaultyStore(inner, Process(), failures), made)


@pytest.mark.parametrize("failure", [Failure.UNAVAILABLE, Failure.BREAK_BEFORE, Failure.BREAK_AFTER])
def test_a_put_is_repeated_whatever_became_of_it(faulty, failure):
    inner, failures, store = faulty
    failures.add("store", "put", failure, times=2)
    store.put("a", b"1")
    assert inner.objects == {"a": b"1"}


@pytest.mark.parametrize("failure", [Failure.UNAVAILABLE, Failure.BREAK_BEFORE, Failure.BREAK_AFTER])
def test_a_put_if_absent_that_lost_its_reply_is_looked_up(faulty, failure):
    inner, failures, store = faulty
    failures.add("store", "put_if_absent", failure)
    assert store.put_if_absent("a", b"ours")
    assert inner.objects == {"a": b"ours"}


@pytest.mark.parametrize("failure", [Failure.UNAVAILABLE, Failure.BREAK_BEFORE, Failure.BREAK_AFTER])
def test_a_lost_reply_does_not_turn_anothers_object_into_ours(faulty, failure):
    inner, failures, store = faulty
    inner.put("a", b"theirs")
    failures.add("store", "put_if_absent", failure)
    assert not store.put_if_absent("a", b"ours")
    assert inner.objects == {"a": b"theirs"}


def test_an_object_of_the_same_bytes_is_not_ours_when_no_reply_was_lost(faulty):
    inner, _, store = faulty
    inner.put("a", b"same")
    assert not store.put_if_absent("a", b"same")
