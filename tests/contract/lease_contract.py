"""What a place that keeps the lease of a pipeline must do (design/0028)."""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast.ports import LeasePlace
from holdfast.replica.tenure import Holder, Tenure, Watch, ask, take

TTL_US = 60_000_000
Opened = Callable[[], LeasePlace]


def taken(place: LeasePlace, name: str = "main", ttl_us: int = TTL_US) -> Tenure:
    watch = Watch(place)
    assert watch.is_free()
    tenure = take(place, watch.seen, Holder(name), ttl_us)
    assert tenure is not None
    return tenure


class LeaseContract:
    """The promises."""

    def test_reading_finds_nothing_and_makes_nothing(self, opened: Opened) -> None:
        assert opened().read() is None
        assert opened().read() is None

    def test_who_holds_it_is_seen_by_others_and_it_is_not_free(self, opened: Opened) -> None:
        tenure = taken(opened())
        watch = Watch(opened())
        assert not watch.is_free()
        assert watch.seen is not None
        assert watch.seen.lease == tenure.lease

    def test_of_those_that_race_for_it_one_gets_it(self, opened: Opened) -> None:
        first = taken(opened())
        for _ in range(5):
            assert first.give_back()
            watches = [Watch(place) for place in (opened(), opened(), opened())]
            assert all(watch.is_free() for watch in watches)
            barrier, won = threading.Barrier(3), []

            def race(watch: Watch, barrier: threading.Barrier = barrier, won: list[Tenure] = won) -> None:
                place = opened()
                barrier.wait()
                tenure = take(place, watch.seen, Holder("racer"), TTL_US)
                if tenure is not None:
                    won.append(tenure)

            threads = [threading.Thread(target=race, args=(watch,)) for watch in watches]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            (first,) = won

    def test_a_renewal_keeps_it_and_says_the_generation(self, opened: Opened) -> None:
        tenure = taken(opened())
        for _ in range(7):
            assert tenure.renew(generation=4)
        seen = opened().read()
        assert seen is not None
        assert (seen.lease.term, seen.lease.generation) == (1, 4)

    def test_who_was_replaced_can_neither_renew_nor_give_back(self, opened: Opened) -> None:
        place = opened()
        old = taken(place)
        assert ask(opened())
        new = taken(opened(), "replica")
        assert new.lease.term == 2
        assert not old.renew()
        assert not old.give_back()
        assert new.renew()

    def test_a_request_for_promotion_outlasts_renewals_and_ends_with_the_term(self, opened: Opened) -> None:
        tenure = taken(opened())
        assert ask(opened())
        assert tenure.renew()
        assert Watch(opened()).is_free()
        taken(opened(), "replica")
        assert not Watch(opened()).is_free()

    def test_a_comparison_stays_asked_for_until_a_run_of_another_holder_has_begun(self, opened: Opened) -> None:
        main = taken(opened())
        assert main.renew(generation=4)
        assert ask(opened(), compares=True)
        assert main.renew(generation=4), "a beat of who is to go"
        dies = taken(opened(), "replica", ttl_us=0)
        assert dies.lease.compares
        assert dies.renew(), "a beat before its run begins"
        second = taken(opened(), "another")
        assert second.lease.compares, "what died before its run began has not compared"
        assert second.renew(generation=5)
        assert not second.lease.compares
        assert second.give_back()
        assert not taken(opened(), "third").lease.compares

    def test_a_comparison_asked_for_while_the_main_still_starts_is_left_to_who_takes_over(self, opened: Opened) -> None:
        main = taken(opened())
        assert ask(opened(), compares=True)
        assert main.renew(generation=4), "its run began without a comparison"
        replica = taken(opened(), "replica")
        assert replica.lease.compares
        assert replica.renew(generation=5)
        assert not replica.lease.compares

    def test_a_later_promotion_says_anew_whether_sinks_are_compared(self, opened: Opened) -> None:
        taken(opened())
        assert ask(opened(), compares=True)
        refused = taken(opened(), "replica")
        assert refused.give_back(), "its start was refused: it has not compared"
        assert ask(opened())
        assert not taken(opened(), "another").lease.compares

    def test_without_a_lease_nobody_can_be_asked(self, opened: Opened) -> None:
        assert not ask(opened())

    def test_it_expires_when_no_beat_comes(self, opened: Opened) -> None:
        tenure = taken(opened(), ttl_us=0)
        assert Watch(opened()).is_free()
        assert tenure.renew()  # nobody took it: still ours
