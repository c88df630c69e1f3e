"""Where the time of epochs goes, and what limits a run: by clocks that the tests drive (design/0049, section 3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.commit.busy import LEDGER, Busy, BusyTimes
from holdfast.plan.epoch_times import EpochTimes, Graphed, Period, Role, commit_parts, time_use
from holdfast.plan.laps import HERE, OTHER, STATE, Laps, Spent, from_json, parts_of, side_by_side, to_json
from holdfast.time_use import RECENT_EPOCHS, RECENT_S, TimeUse

pytestmark = pytest.mark.slow

ROLES: dict[str, Role] = {"rows": "source", "parse": "operator", "sums": "operator", "hourly": "sink", "daily": "sink"}
GRAPH = Graphed(ROLES)
MS = 1_000_000


def here(**nodes: int) -> dict[str, Spent]:
    """Return the time of an evaluation in one process, in milliseconds."""
    spent = {OTHER if name == "other" else name: ms * MS for name, ms in nodes.items()}
    return {HERE: Spent(spent, sum(spent.values()))}


def period(**given: Any) -> Period:
    return Period(**{"batch_id": 0, "began_us": 0, "ended_s": 1.0, **given})


def used(*periods: Period, of: Graphed = GRAPH, **given: Any) -> TimeUse:
    found = time_use(of, periods, **given)
    assert found is not None
    return found


# --- what limits a run, in a sentence --------------------------------------------------------------------------------


def test_a_slow_sink_is_named() -> None:
    use = used(
        period(
            plan_s=0.1,
            evaluate_s=0.2,
            commit_s=0.7,
            waves=here(rows=150, parse=50),
            busy=Busy({"hourly": 0.61, "daily": 0.04, LEDGER: 0.05}),
        )
    )
    assert use.limited_by == "publish to hourly, 61 % of the epoch"
    assert [(node.name, round(node.share or 0, 2)) for node in use.busiest()] == [
        ("hourly", 0.61),
        ("rows", 0.15),
        ("parse", 0.05),
    ]


def test_a_slow_operator_is_named_whether_it_keeps_state_or_not() -> None:
    for slow in ("parse", "sums"):
        waves = here(**({"rows": 10, "parse": 10, "sums": 10} | {slow: 680}))
        use = used(period(plan_s=0.3, evaluate_s=0.7, waves=waves))
        assert use.limited_by == f"operator {slow}, 68 % of the epoch"
        assert use.busiest(1)[0].name == slow


def test_a_slow_source_and_slow_writers_are_named() -> None:
    assert used(period(evaluate_s=1.0, waves=here(rows=900, sums=100))).limited_by == "source rows, 90 % of the epoch"
    writing = used(period(evaluate_s=1.0, waves=here(rows=100, daily=900))).limited_by
    assert writing == "writing rows for daily, 90 % of the epoch"


def test_an_evaluation_that_no_node_dominates_is_not_blamed_on_a_smaller_stage() -> None:
    waves = here(rows=200, parse=250, sums=300)
    use = used(period(evaluate_s=0.75, commit_s=0.25, waves=waves, busy=Busy({"hourly": 0.25})))
    assert use.limited_by == "the evaluation, 75 % of the epoch, most of it operator sums, 30 %"


def test_a_run_that_waits_for_rows_is_limited_by_the_source_and_not_by_what_it_does() -> None:
    one = period(began_us=5_000_000, gap_s=9.0, evaluate_s=1.0, waves=here(sums=1000))
    assert used(one).limited_by == "waiting for the source, 90 % of the time"
    more = Graphed({"lidar": "source", **ROLES})
    assert used(one, of=more).limited_by == "waiting for the sources, 90 % of the time"


def test_a_wait_until_the_next_time_of_the_trigger_is_the_triggers_and_after_it_the_sources() -> None:
    of = Graphed(ROLES, interval_us=10_000_000)
    in_time = used(period(began_us=32_000_000, gap_s=8.0, evaluate_s=1.0, waves=here(sums=1000)), of=of)
    assert in_time.limited_by == "the trigger's interval of 10 s, 89 % of the time"
    later = used(period(began_us=32_000_000, gap_s=28.0, evaluate_s=1.0, waves=here(sums=1000)), of=of)
    assert (later.stages_ms["wait_trigger"], later.stages_ms["wait_source"]) == (8000.0, 20000.0)
    assert later.limited_by == "waiting for the source, 69 % of the time"


def test_a_run_without_rows_now_is_limited_by_the_source_whatever_its_last_epoch_did() -> None:
    one = period(evaluate_s=1.0, waves=here(sums=1000))
    assert used(one, idle=(0.0, 0)).limited_by == "operator sums, 100 % of the epoch"
    assert used(one, idle=(99.0, 7)).limited_by == "waiting for the source, 99 % of the time"


def test_a_wait_for_held_sources_is_back_pressure() -> None:
    one = period(began_us=5_000_000, gap_s=9.0, evaluate_s=1.0)
    held = used(one, of=Graphed(ROLES, held={"rows"}))
    assert held.limited_by == "back-pressure, which holds rows, 90 % of the time"


def test_a_run_that_ends_with_its_input_waits_for_nothing() -> None:
    use = used(period(gap_s=5.0, evaluate_s=1.0), of=Graphed(ROLES, interval_us=None))
    assert (use.stages_ms["wait_source"], use.stages_ms["plan"]) == (0.0, 5000.0)
    assert use.limited_by == "planning, 83 % of the epoch"


@pytest.mark.parametrize(
    ("stage", "said"), [("look", "asking the sources for new rows"), ("log", "Spark's logs of offsets and commits")]
)
def test_what_spark_does_around_an_epoch_is_no_wait(stage: str, said: str) -> None:
    spark_s = {"look": 0.1, "plan": 0.1, "log": 0.1} | {stage: 2.0}
    use = used(period(gap_s=2.2, evaluate_s=0.8), spark_s=spark_s)
    assert use.limited_by == f"{said}, 67 % of the epoch"
    assert use.stages_ms["wait_source"] == 0.0


def test_writing_state_and_decisions_is_said_by_its_name() -> None:
    state = {HERE: Spent({"sums": 100 * MS}, 100 * MS), STATE: Spent({STATE: 800 * MS}, 800 * MS)}
    assert used(period(evaluate_s=1.0, waves=state)).limited_by == "writing state to the checkpoint, 80 % of the epoch"
    ledger = used(period(evaluate_s=0.2, commit_s=0.8, busy=Busy({LEDGER: 0.7, "hourly": 0.1})))
    assert ledger.limited_by == "writing decisions to the checkpoint, 70 % of the epoch"


def test_what_sparks_plan_evaluates_is_unknown_node_by_node_and_named_as_a_whole() -> None:
    of = Graphed(ROLES, in_spark={"rows", "parse"})
    use = used(period(evaluate_s=1.0, waves=here(hourly=100)), of=of)
    known = {node.name: node.evaluate_ms for node in use.nodes}
    assert known == {"rows": None, "parse": None, "sums": 0.0, "hourly": 100.0, "daily": 0.0}
    assert (use.other_ms, use.limited_by) == (900.0, "Spark's plan (rows, parse), 90 % of the epoch")


def test_a_job_that_costs_more_than_its_tasks_do_is_no_nodes_fault() -> None:
    use = used(period(evaluate_s=1.0, waves=here(sums=100)))
    assert use.limited_by == "rows between processes, and Spark's jobs, 90 % of the epoch"


def test_a_system_that_does_not_answer_comes_first() -> None:
    use = used(period(evaluate_s=1.0, waves=here(sums=1000)), waits_for="publish epoch 7 in sink 'hourly'")
    assert use.limited_by == "a system that does not answer: publish epoch 7 in sink 'hourly'"


def test_before_the_first_epoch_nothing_is_known() -> None:
    assert time_use(GRAPH, []) is None


# --- sums ------------------------------------------------------------------------------------------------------------

seconds = st.floats(0, 100)
names = st.sampled_from([*ROLES, OTHER, STATE])
spent_of_tasks = st.lists(st.dictionaries(names, st.integers(0, 10**10)), min_size=1, max_size=4).map(
    lambda tasks: side_by_side({HERE: Spent(one, sum(one.values()))} for one in tasks)[HERE]
)
waves_of = st.dictionaries(st.sampled_from(["read", "1", "2", "stage"]), spent_of_tasks)
times_of = st.dictionaries(st.sampled_from(["hourly", "daily", LEDGER]), seconds)
periods_of = st.builds(
    Period,
    batch_id=st.just(0),
    began_us=st.integers(0, 10**9),
    ended_s=st.just(1.0),
    gap_s=seconds,
    plan_s=seconds,
    evaluate_s=seconds,
    commit_s=seconds,
    rest_s=seconds,
    waves=waves_of,
    busy=st.builds(Busy, here=times_of, beside=times_of),
)


@given(st.lists(periods_of, min_size=1, max_size=3), times_of.map(lambda _: {"look": 0.5, "plan": 0.2, "log": 0.1}))
def test_stages_add_up_to_the_period_and_nodes_to_the_evaluation(
    periods: list[Period], spark_s: Mapping[str, float]
) -> None:
    use = used(*periods, spark_s=spark_s)
    measured = sum(one.gap_s + one.call_s for one in periods) / len(periods) * 1e3
    assert sum(use.stages_ms.values()) == pytest.approx(use.period_ms, abs=1e-6) == pytest.approx(measured, abs=1e-6)
    evaluated = sum(one.evaluate_s for one in periods) / len(periods) * 1e3
    assert sum(node.evaluate_ms or 0 for node in use.nodes) + use.other_ms == pytest.approx(evaluated, abs=1e-6)
    assert use.other_ms >= -1e-6
    of_sinks = sum((node.share or 0) * use.epoch_ms - (node.evaluate_ms or 0) for node in use.nodes)
    assert of_sinks == pytest.approx(use.stages_ms["publish"], abs=1e-5)


@given(waves_of, seconds)
def test_parts_of_an_evaluation_add_up_to_it_whatever_its_tasks_measured(
    waves: Mapping[str, Spent], whole: float
) -> None:
    parts = parts_of(waves, whole * 1e9)
    assert sum(parts.values()) == pytest.approx(whole * 1e9, abs=10)
    assert min(parts.values()) >= -10


@given(seconds, times_of, times_of)
def test_parts_of_a_commit_add_up_to_it(
    whole: float, of_engine: dict[str, float], of_threads: dict[str, float]
) -> None:
    parts = commit_parts(whole, Busy(of_engine, of_threads))
    assert sum(parts.values()) == pytest.approx(whole, abs=1e-6)
    assert min(parts.values()) >= -1e-6


@given(waves_of)
def test_times_travel_as_json(waves: Mapping[str, Spent]) -> None:
    assert from_json(to_json(waves)) == waves


# --- clocks ----------------------------------------------------------------------------------------------------------


class Hand:
    """A clock that is moved by hand, in seconds."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def ns(self) -> int:
        return round(self.now * 1e9)


def epoch(times: EpochTimes, clock: Hand, stages: tuple[float, float, float, float], busy: Busy | None = None) -> None:
    """Run an epoch that takes so long in each stage."""
    times.begin(7, Busy())
    for number, seconds_ in enumerate(stages):
        clock.now += seconds_
        if number < 3:
            times.mark()
    times.note({}, busy or Busy())
    times.end()


def test_a_period_goes_from_the_end_of_an_epoch_to_the_end_of_the_next() -> None:
    clock = Hand()
    times = EpochTimes(clock, lambda: round(clock.now * 1e6))
    epoch(times, clock, (0.25, 0.5, 1.0, 0.125))
    clock.now += 5
    epoch(times, clock, (0.25, 0.5, 1.0, 0.125))
    (first, second), idle_s, _ = times.recent()
    assert (first.gap_s, first.began_us, first.call_s) == (0.0, 0, 1.875)
    assert (second.gap_s, second.began_us, second.call_s, idle_s) == (5.0, 101_875_000, 1.875, 0.0)
    clock.now += 3
    assert times.recent()[1:] == (3.0, 108_750_000)
    times.begin(8, Busy())
    assert times.recent()[1] == 0.0, "an epoch is at work"


def test_an_epoch_that_fails_is_none_and_its_time_is_before_the_next() -> None:
    clock = Hand()
    times = EpochTimes(clock, lambda: 0)
    times.begin(7, Busy())
    clock.now += 4
    times.end()
    epoch(times, clock, (0, 1, 0, 0))
    (only,), _, _ = times.recent()
    assert only.evaluate_s == 1.0


def test_what_a_start_has_published_is_no_epochs() -> None:
    clock = Hand()
    times = EpochTimes(clock, lambda: 0)
    of_the_start = Busy({"hourly": 50.0})
    times.begin(7, of_the_start)
    for _ in range(3):
        times.mark()
    times.note({}, Busy({"hourly": 51.5}))
    assert times.recent()[0][0].busy == Busy({"hourly": 1.5})


def test_only_the_last_epochs_are_looked_at_and_the_last_one_however_old() -> None:
    clock = Hand()
    times = EpochTimes(clock, lambda: 0)
    for _ in range(RECENT_EPOCHS + 5):
        epoch(times, clock, (0, 0, 0, 0))
    assert len(times.recent()[0]) == RECENT_EPOCHS
    epoch(times, clock, (0, 2 * RECENT_S, 0, 0))
    clock.now += 1000
    assert len(times.recent()[0]) == 1


def test_an_epoch_that_takes_longer_than_the_last_ones_counts_before_it_has_ended() -> None:
    clock = Hand()
    times = EpochTimes(clock, lambda: 0)
    epoch(times, clock, (0, 1, 1, 0))
    times.begin(8, Busy())
    clock.now += 2
    assert times.at_work(Busy()) is None, "it takes no longer than usual"
    times.mark()
    clock.now += 5
    stuck = times.at_work(Busy())
    assert stuck is not None
    said = used(*times.recent()[0], stuck).limited_by
    assert said == "an epoch that is still evaluated, 56 % of the epoch"
    times.mark()
    clock.now += 95
    stuck = times.at_work(Busy({"hourly": 90.0, LEDGER: 5.0}))
    assert stuck is not None
    use = used(*times.recent()[0], stuck)
    assert use.limited_by == "publish to hourly, 87 % of the epoch"
    assert sum(use.stages_ms.values()) * 2 == pytest.approx(104_000)
    times.end()
    assert times.at_work(Busy()) is None


def test_busy_is_what_is_at_work_too() -> None:
    clock = Hand()
    busy = BusyTimes(clock)
    with busy.at("hourly"):
        clock.now += 2
        with busy.at("hourly"):
            clock.now += 1
        assert busy.seconds().here == {"hourly": 3.0}
    clock.now += 9
    assert busy.seconds() == Busy({"hourly": 3.0})


def test_a_lap_that_counts_for_nothing_is_left_out_and_the_others_add_up_to_the_rest() -> None:
    clock = Hand()
    laps = Laps(clock.ns)

    def arriving() -> Any:
        for number in range(3):
            clock.now += 4
            yield number

    for _ in laps.during(None, arriving()):
        laps.to("sums")
        clock.now += 1
        laps.to("hourly")
        clock.now += 2
    spent = laps.take()
    assert {name: ns / 1e9 for name, ns in spent.nodes.items() if ns} == {"sums": 3.0, "hourly": 6.0}
    assert spent.longest == 9 * 10**9
    assert laps.take() == Spent()
