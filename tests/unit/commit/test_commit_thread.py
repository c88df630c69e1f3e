"""The commit thread's queue: in order, bounded, and dead after a failure."""

import threading

import pytest

from holdfast.commit.commit_thread import ThreadLane
from holdfast.errors import InternalError, Unavailable


@pytest.fixture
def lane():
    made = ThreadLane("test-lane", 2)
    yield made
    made.stop()


def noting(notes, name, gate=None):
    """A job of two steps; the first waits."""

    def first():
        if gate is not None:
            gate.wait()
        notes.append(name)

    return [first, lambda: notes.append(f"{name}!")]


def test_jobs_run_to_their_end_in_order(lane):
    notes = []
    for name in "abc":
        lane.submit(noting(notes, name))
    lane.wait()
    assert notes == ["a", "a!", "b", "b!", "c", "c!"]
    assert lane.length == 0


def test_a_full_queue_makes_the_next_one_wait(lane):
    gate, notes, submitted = threading.Event(), [], threading.Event()
    for name in "abc":
        lane.submit(noting(notes, name, gate))
    assert lane.length == 3

    def submit_one_more():
        lane.submit(noting(notes, "d"))
        submitted.set()

    other = threading.Thread(target=submit_one_more)
    other.start()
    assert not submitted.wait(0.05)
    gate.set()
    other.join()
    lane.wait()
    assert notes[-1] == "d!"


def test_after_a_failure_no_later_job_is_touched(lane):
    """A later epoch must never become visible before an earlier one."""
    gate, notes, error = threading.Event(), [], Unavailable("away")

    def first():
        gate.wait()
        raise error

    lane.submit([first, lambda: notes.append("second step")])
    lane.submit(noting(notes, "later"))
    gate.set()
    for call in (lane.wait, lane.check, lambda: lane.submit(noting(notes, "later still"))):
        with pytest.raises(Unavailable) as caught:
            call()
        assert caught.value is error
    lane.stop()
    assert notes == []


def test_a_job_worked_off_out_of_its_order_fails_the_lane_and_nobody_waits_for_ever(lane):
    notes = []
    lane.submit([lambda: lane._jobs.appendleft(noting(notes, "overtakes"))])
    with pytest.raises(InternalError, match="out of order"):
        lane.wait()
    assert notes == []


def test_a_failure_wakes_whoever_waits_for_room(lane):
    gate = threading.Event()

    def first():
        gate.wait()
        raise Unavailable("away")

    for _ in range(3):
        lane.submit([first])
    threading.Timer(0.01, gate.set).start()
    with pytest.raises(Unavailable):
        lane.submit([first])


def test_stopping_finishes_the_job_at_work_and_drops_the_others(lane):
    started, gate, notes = threading.Event(), threading.Event(), []

    def first():
        started.set()
        gate.wait()
        notes.append("first")

    lane.submit([first, lambda: notes.append("first!")])
    lane.submit(noting(notes, "second"))
    started.wait()
    threading.Timer(0.01, gate.set).start()
    lane.stop()
    lane.stop()
    assert notes == ["first", "first!"]


def test_stopping_before_the_first_job_is_fine():
    ThreadLane("idle", 1).stop()
