"""Exactly once, whatever dies and whenever: the coordinator's promises as scenarios (design/0001, 3; design/0002)."""

import pytest

from holdfast.testing import Crash, Damage, Drain, Expect, Fails, Failure, GoesBack, Restart, Rows, Stop, play, sinks

ONE = ("table",)
TWO = ("table", "files")
CARRIED_OR_STAGED = pytest.mark.parametrize("carried", [True, False], ids=["carried", "staged"])


@CARRIED_OR_STAGED
def test_an_epoch_without_a_decision_is_aborted_and_run_again(carried):
    """Presumed abort (design/0001, 3)."""
    play(
        sinks(*TWO),
        Crash(after="stage"),
        Restart(),
        Expect(table=[], files=[], ledger={}, staged=False, resumes_at=1),
        Drain(),
        Expect(table=[0, 1, 2], files=[0, 2], ledger={1: "done"}, audit=True),
        carried=carried,
    )


@CARRIED_OR_STAGED
def test_an_epoch_with_a_decision_becomes_visible_without_being_run_again(carried):
    play(
        sinks(*TWO),
        Rows(2),
        Crash(after="decide"),
        Expect(table=[0, 1], files=[0], ledger={1: "done", 2: "open"}),
        Restart(),
        Expect(table=[0, 1, 2, 3, 4], files=[0, 2, 4], ledger={1: "done", 2: "done"}, resumes_at=2),
        Drain(),
        Expect(table=[0, 1, 2, 3, 4], files=[0, 2, 4], audit=True),
        carried=carried,
    )


@CARRIED_OR_STAGED
def test_a_sink_that_holds_the_epoch_is_skipped_and_the_other_one_gets_it(carried):
    play(
        sinks(*TWO),
        Crash(after="publish"),
        Expect(table=[0, 1, 2], files=[], ledger={1: "open"}),
        Restart(),
        Expect(table=[0, 1, 2], files=[0, 2], ledger={1: "done"}, audit=True),
        carried=carried,
    )


@pytest.mark.parametrize("names", [ONE, TWO])
def test_an_epoch_that_spark_does_not_know_to_be_done_is_not_doubled(names):
    play(
        sinks(*names),
        Crash(after="publish" if names == ONE else "forget"),
        Restart(),
        Expect(table=[0, 1, 2], resumes_at=1),
        Drain(),
        Expect(table=[0, 1, 2], audit=True),
    )


@CARRIED_OR_STAGED
@pytest.mark.parametrize("again_after", ["before-publish", "publish", "before-forget", "forget", "recovery"])
def test_recovery_may_be_killed_too(carried, again_after):
    play(
        sinks(*TWO),
        Crash(after="decide"),
        Restart(crash_after=again_after),
        Restart(),
        Drain(),
        Expect(table=[0, 1, 2], files=[0, 2], ledger={1: "done"}, audit=True),
        carried=carried,
    )


def test_a_sinks_own_decision_is_completed_by_the_sink():
    """One sink that publishes in two steps: its ledger row names the parts first (design/0001, 5)."""
    play(
        sinks("table", prepared=["table"]),
        Crash(at="publish-begun"),
        Expect(table=[]),
        Restart(),
        Expect(table=[0, 1, 2], staged=False),
        Drain(),
        Expect(table=[0, 1, 2], audit=True),
        carried=False,
    )


@pytest.mark.parametrize("names", [ONE, TWO])
@pytest.mark.parametrize("failure", [Failure.BREAK_BEFORE, Failure.BREAK_AFTER])
def test_a_connection_that_breaks_during_commit_neither_loses_nor_doubles(names, failure):
    """In doubt means: ask (reference "bidirectional", scenario 1)."""
    play(
        sinks(*names),
        Fails("table", "publish", failure, times=3),
        Rows(3),
        Expect(table=[0, 1, 2]),
        Drain(),
        Expect(table=[0, 1, 2], audit=True),
    )


@pytest.mark.parametrize("names", [ONE, TWO])
@pytest.mark.parametrize("failure", [Failure.BREAK_BEFORE, Failure.BREAK_AFTER])
def test_a_sink_that_cannot_say_stops_the_run_and_is_asked_by_the_next_one(names, failure):
    play(
        sinks(*names),
        Fails("table", "publish", failure),
        Fails("table", "outcome", Failure.UNKNOWN, times=10),
        Rows(3),
        Expect(error="InDoubt", says="may or may not be visible in sink 'table'"),
        Restart(),
        Drain(),
        Expect(table=[0, 1, 2], audit=True),
    )


def test_a_database_that_is_away_stops_the_run_in_the_end_and_nothing_is_lost():
    play(
        sinks(*TWO),
        Fails("files", "publish", Failure.UNAVAILABLE, times=10),
        Rows(3),
        Expect(error="Unavailable", says="10 attempts failed", table=[0, 1, 2], files=[]),
        Restart(),
        Expect(table=[0, 1, 2], files=[0, 2], audit=True),
    )


def test_grouped_epochs_are_visible_together_and_survive_a_crash():
    """Commit grouping by pts; a row has 1 ms, a group ends after 10 (design/0001, 3)."""
    play(
        sinks(*TWO),
        Rows(2),
        Rows(4),
        Rows(3),
        Expect(table=[0, 1], ledger={1: "done", 2: "open", 3: "open"}),
        Restart(),
        Expect(table=list(range(9)), ledger={1: "done", 2: "done", 3: "done"}),
        Rows(4),
        Expect(table=list(range(9))),
        Rows(6),
        Expect(table=list(range(19))),
        Rows(1),
        Stop(),
        Expect(table=list(range(20)), audit=True),
        commit_every_ticks=10_000,
    )


def test_the_commit_thread_publishes_in_order_and_a_crash_loses_nothing_that_waits():
    play(
        sinks(*TWO),
        Rows(2),
        Rows(2),
        Rows(2),
        Crash(after="decide", rows=2),
        Restart(),
        Drain(),
        Expect(table=list(range(8)), audit=True),
        carried=False,
        commit_thread=True,
    )


def test_a_lost_checkpoint_ledger_writes_no_sink_twice():
    play(
        sinks(*TWO),
        Rows(3),
        Crash(after="publish", rows=2),
        Damage("", gone=True),
        Restart(),
        Expect(table=[0, 1, 2, 3, 4], files=[0, 2], resumes_at=2),
        Drain(),
        Expect(table=[0, 1, 2, 3, 4], files=[0, 2, 4]),
    )


def test_a_damaged_open_decision_stops_the_run_and_drops_nothing():
    play(
        sinks(*TWO),
        Crash(after="decide"),
        Damage("ledger/"),
        Restart(),
        Expect(error="Corrupt", says="ledger/000000000001-00000001", staged=True, ledger={1: "damaged"}),
        carried=False,
    )


def test_a_damaged_finished_decision_stops_nothing():
    play(
        sinks(*TWO),
        Rows(3),
        Damage("ledger/"),
        Restart(),
        Rows(1),
        Expect(table=[0, 1, 2, 3], ledger={1: "damaged", 2: "done"}),
    )


# --- a sink that goes back under the run ------------------------------------------------------------------------------


@pytest.mark.parametrize("prepared", [(), ("table",)], ids=["transaction", "prepared"])
@CARRIED_OR_STAGED
@pytest.mark.parametrize("names", [ONE, TWO], ids=["one sink", "two sinks"])
def test_a_sink_that_went_back_under_the_run_is_never_published_over(names, carried, prepared):
    """A failover to a standby that lags: the table must never end as epochs 1, 3, 4 (design/0002, what is expected)."""
    play(
        sinks(*names, prepared=prepared),
        Rows(1),
        Rows(1),
        GoesBack("table", to=1),
        Rows(1),
        Expect(table=[0], error="Diverged", says="sink 'table' holds epoch 1, and this run had published epoch 2"),
        carried=carried,
    )


def test_a_sink_that_went_back_to_nothing_is_never_published_over():
    play(sinks("table"), Rows(1), GoesBack("table", to=0), Rows(1), Expect(table=[], error="Diverged"))


@pytest.mark.parametrize("failure", [Failure.BREAK_BEFORE, Failure.BREAK_AFTER])
def test_a_commit_in_doubt_is_asked_about_and_then_not_published_over_a_gap(failure):
    """The connection breaks during COMMIT because the server dies; what answers is its standby, which lags."""
    play(
        sinks("table"),
        Rows(1),
        Rows(1),
        GoesBack("table", to=1),
        Fails("table", "publish", failure),
        Rows(1),
        Expect(table=[0], error="Diverged"),
    )


def test_a_commit_whose_reply_was_lost_is_skipped_where_the_sink_kept_it():
    play(
        sinks("table"),
        Rows(1),
        Fails("table", "publish", Failure.BREAK_AFTER),
        Rows(1),
        Rows(1),
        Expect(table=[0, 1, 2], audit=True),
    )


def test_a_group_of_epochs_is_not_published_over_a_gap():
    """Grouping: epochs 2 and 3 wait while the sink goes back behind epoch 1."""
    play(
        sinks("table"),
        Rows(1),
        GoesBack("table", to=0),
        Rows(1),
        Rows(50),
        Stop(),
        Expect(table=[], error="Diverged"),
        commit_every_ticks=20_000,
    )


def test_the_commit_thread_does_not_publish_over_a_gap():
    play(
        sinks(*TWO),
        Rows(1),
        Rows(1),
        Stop(),
        Rows(1),
        Rows(1),
        GoesBack("table", to=1),
        Drain(),
        Rows(1),
        Rows(1),
        Expect(table=[0], error="Diverged"),
        carried=False,
        commit_thread=True,
    )
