"""``idle_after`` counts time in which a source has given all that it knows of, and says when it will have passed."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast as hf
from holdfast.state.tables import decode
from holdfast.testing import bound, drive
from holdfast.testing.drive import Drive

SECOND = 1_000_000
SCHEMA = "k STRING, t BIGINT, v INT"


def source(name: str) -> hf.Stream:
    return hf.read.rows([], schema=SCHEMA, timestamp="t", name=name)


def row(t: int, v: int = 0, k: str = "a") -> dict[str, Any]:
    return {"k": k, "t": t, "v": v}


def merged() -> hf.Stream:
    return hf.merge(source("main"), {"slow": source("slow")}, by="k", idle_after="10 s", name="seen")


def synced() -> hf.Stream:
    return hf.sync({"main": source("main"), "slow": source("slow")}, by="k", idle_after="10 s", name="both")


def summed() -> hf.Stream:
    return source("main") | hf.aggregate(by="k", window=hf.tumbling(10), n=hf.count(), idle_after="10 s", name="sums")


MAIN = [[row(5)], [], [], []]
EVERY_20_S = [n * 20 * SECOND for n in range(4)]


@pytest.mark.slow
@pytest.mark.parametrize("graph", [merged, synced], ids=["merge", "sync"])
def test_a_main_row_waits_for_a_partner_that_was_not_read_yet(graph):
    """Each epoch takes twice as long as silence may, and the partner comes with the third one."""
    given = {"main": MAIN, "slow": [[], [], [row(5, 7), row(6)], []]}
    found = drive(graph(), given, batch_times=EVERY_20_S, behind=[{"slow"}, {"slow"}, (), ()])
    assert found[:2] == [[], []]
    assert [rows["slow"] is not None and rows["slow"]["v"] for rows in found[2]] == [7]


@pytest.mark.slow
@pytest.mark.parametrize("graph", [merged, synced], ids=["merge", "sync"])
def test_silence_counts_from_the_epoch_in_which_a_source_has_given_all(graph):
    given: dict[str, Any] = {"main": [[row(5)], *[[]] * 5], "slow": [[]] * 6}
    times = [n * 4 * SECOND for n in range(6)]
    driven = Drive(graph(), given, batch_times=times, behind=[{"slow"}, {"slow"}, ()])
    found = [table.to_pylist() for table in driven.tables()]
    # The last backlog was in the epoch at 4 s; that of 8 s is the first of which nothing more is known.
    assert [len(rows) for rows in found] == [0, 0, 0, 0, 0, 1]
    # Merge looks at a key again once its rows have waited for so long by any count: an epoch too early at most.
    early = [10, 10, 10, 18, 18] if graph is merged else [10, 14, 18, 18, 18]
    assert driven.dues == [*(seconds * SECOND for seconds in early), None]


@pytest.mark.slow
@pytest.mark.parametrize("graph", [merged, synced], ids=["merge", "sync"])
def test_backlog_of_another_input_does_not_make_a_silent_one_wait_longer(graph):
    given: dict[str, Any] = {"main": MAIN, "slow": [[]] * 4}
    found = drive(graph(), given, batch_times=EVERY_20_S, behind=[{"main"}] * 4)
    assert [len(rows) for rows in found] == [0, 1, 0, 0]


def test_windows_of_a_key_whose_rows_are_not_read_yet_stay_open():
    given = {"main": [[row(5)], [row(100, k="b")], [row(6)], []]}
    found = drive(summed(), given, batch_times=EVERY_20_S, behind=[{"main"}, {"main"}, (), ()])
    assert [[(r["k"], r["n"]) for r in rows] for rows in found] == [[], [], [], [("a", 2), ("b", 1)]]


@pytest.mark.slow
@pytest.mark.parametrize("graph", [merged, synced, summed], ids=["merge", "sync", "aggregate"])
def test_nothing_is_due_where_nothing_waits(graph):
    sources = {"main": [[row(5)], [], []]} | ({} if graph is summed else {"slow": [[row(5)], [row(6)], []]})
    driven = Drive(graph(), sources, batch_times=[0, 20 * SECOND, 40 * SECOND])
    driven.tables()
    assert driven.dues[-1] is None


def test_a_silent_key_says_when_its_windows_are_final():
    driven = Drive(summed(), {"main": [[row(5)], [], []]}, batch_times=[0, 4 * SECOND, 10 * SECOND])
    assert [table.num_rows for table in driven.tables()] == [0, 0, 1]
    assert driven.dues == [10 * SECOND, 10 * SECOND, None]


def test_rows_that_wait_under_a_key_say_when_it_is_forgotten():
    both = hf.sync({"main": source("main"), "slow": source("slow")}, by="k", forget_after="10 s", name="both")
    main = [[row(5), row(5, k="b")], [row(6, k="b")], [], []]
    slow = [[row(5, k="c"), row(4, k="d")], [row(9, k="c")], [], []]
    driven = Drive(both, {"main": main, "slow": slow}, batch_times=[0, 4 * SECOND, 10 * SECOND, 14 * SECOND])
    driven.tables()
    assert driven.dues == [10 * SECOND, 10 * SECOND, 14 * SECOND, None]


def test_rows_without_a_key_say_when_they_are_forgotten():
    both = hf.sync({"main": source("main"), "slow": source("slow")}, by=(), forget_after="10 s", name="both")
    times = [SECOND, 4 * SECOND, 11 * SECOND]
    driven = Drive(both.late, {"main": [[row(5)], [], []], "slow": [[], [], []]}, batch_times=times)
    assert [table.num_rows for table in driven.tables()] == [0, 0, 1]
    assert driven.dues == [11 * SECOND, 11 * SECOND, None]


def test_a_row_that_is_in_a_set_already_is_not_waited_for_to_be_forgotten():
    streams = {"main": source("main"), "slow": source("slow")}
    both = hf.sync(streams, by="k", policy=hf.policy.within(2, base="main"), forget_after="10 s", name="both")
    driven = Drive(both, {"main": [[row(5), bound(10)]], "slow": [[row(5), bound(10)]]}, batch_times=[0])
    assert [table.num_rows for table in driven.tables()] == [1]
    assert decode(driven.states["both"][0])["waiting_slow"].num_rows == 1, "a later row may look at it"
    assert driven.dues == [None]


def test_a_silent_key_says_when_it_is_forgotten_and_its_windows_are_final():
    sums = source("main") | hf.aggregate(by="k", window=hf.tumbling(10), n=hf.count(), forget_after="10 s", name="sums")
    driven = Drive(sums, {"main": [[row(5)], [], []]}, batch_times=[0, 4 * SECOND, 10 * SECOND])
    assert [table.num_rows for table in driven.tables()] == [0, 0, 1]
    assert driven.dues == [10 * SECOND, 10 * SECOND, None]


def changing() -> hf.Stream:
    window = hf.tumbling(10)
    return source("main") | hf.aggregate(
        by="k", window=window, n=hf.count(), emit="changes", forget_after="10 s", name="sums"
    )


def forgetful() -> hf.Stream:
    return hf.merge(source("main"), {"slow": source("slow")}, by="k", forget_after="10 s", name="seen")


@pytest.mark.parametrize("graph", [changing, forgetful], ids=["aggregate", "merge"])
def test_nothing_is_due_where_forgetting_gives_nothing(graph):
    sources = {"main": [[row(5)], []]} | ({} if graph is changing else {"slow": [[row(7), row(3, k="b")], []]})
    driven = Drive(graph(), sources, batch_times=[0, 4 * SECOND])
    driven.tables()
    assert driven.dues == [None, None]


def test_a_timer_says_when_its_window_ends():
    ticking = source("main") | hf.aggregate(by="k", window=hf.timer("10 s"), n=hf.count(), name="ticking")
    driven = Drive(ticking, {"main": [[row(5)], [], []]}, batch_times=[SECOND, 4 * SECOND, 10 * SECOND])
    assert [table.num_rows for table in driven.tables()] == [0, 0, 1]
    assert driven.dues == [10 * SECOND, 10 * SECOND, None]
