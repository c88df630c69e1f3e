"""What is said where the clock alone or the end releases rows, and where rows would be late (design/0032, 0029)."""

import logging

import pytest

import holdfast as hf
from holdfast.explain import warnings
from holdfast.plan.warnings import start_warnings, waits_to_mind

SCHEMA = "id BIGINT, t TIMESTAMP, is_bound BOOLEAN"


def source(name, *, bounds=None):
    schema = SCHEMA if bounds else "id BIGINT, t TIMESTAMP"
    return hf.read.files(f"in/{name}", format="json", schema=schema, timestamp="t", bounds=bounds, name=name)


def merged(left, right, **given):
    return hf.merge(left, {"paid": right}, by="id", name="both", **given)


def synced(left, right, **given):
    return hf.sync({"left": left, "paid": right}, by="id", name="both", policy=hf.policy.settled(), **given)


def hourly(left, right, **given):
    given = {"emit": "settled", **given}
    return hf.union(left, right) | hf.aggregate(
        by="id", window=hf.tumbling("1 hour"), n=hf.count(), name="both", **given
    )


def pipeline(stream):
    return hf.Pipeline("shop", stream | hf.write.memory("kept"))


KINDS = pytest.mark.parametrize("build", [merged, synced, hourly])


@KINDS
def test_idle_after_alone_is_warned_of_at_build_time_and_in_plan(build, caplog):
    with caplog.at_level(logging.INFO, "holdfast.graph"):
        stream = build(source("orders"), source("payments"), idle_after="10 s", disorder=0)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    (said,) = waits_to_mind(pipeline(stream))
    assert record.getMessage() == said
    assert "'both'" in said
    assert "'orders', 'payments'" in said
    assert 'bounds="is_bound"' in said
    assert ("hf.join(left, right, on=..., within=...)" in said) == (build is not hourly)
    assert said in warnings(pipeline(stream))


@KINDS
def test_bounds_for_all_keys_release_rows_and_nothing_is_said(build, caplog):
    with caplog.at_level(logging.INFO, "holdfast.graph"):
        inputs = [source(name, bounds="is_bound") for name in ("orders", "payments")]
        stream = build(*inputs, idle_after="10 s")
        build(*inputs)
    assert caplog.records == []
    assert waits_to_mind(pipeline(stream)) == []


@KINDS
def test_a_key_that_comes_once_and_waits_for_the_end_is_warned_of_where_the_pipeline_is_looked_at(build, caplog):
    with caplog.at_level(logging.INFO, "holdfast.graph"):
        stream = build(source("orders"), source("payments"), disorder=0)
    assert caplog.records == []  # a command that has nothing to do with it prints nothing
    (said,) = start_warnings(pipeline(stream))
    assert "waits for the end" in said
    assert 'bounds="is_bound"' in said
    assert waits_to_mind(pipeline(stream)) == [said]
    assert said in warnings(pipeline(stream))


@KINDS
def test_where_the_inputs_end_a_key_that_comes_once_does_not_wait_for_ever(build):
    ending = [
        hf.read.rows([], schema="id BIGINT, t TIMESTAMP", timestamp="t", name=name, bounded=True)
        for name in ("orders", "payments")
    ]
    assert waits_to_mind(pipeline(build(*ending, disorder=0))) == []


def partitioned(name, **given):
    return hf.read.kafka("h:9092", name, schema="id BIGINT, t TIMESTAMP", timestamp="t", name=name, **given)


def limited(left, right, **given):
    return hf.union(left, right) | hf.limit_in_flight(2, by="id", timeout="1 h", name="both")


def once(left, right, **given):
    return hf.union(left, right) | hf.distinct(by="id", horizon="1 h", name="both", **given)


def timed(left, right, **given):
    fn = {"schema": "id BIGINT", "timers": "event", **given}
    return hf.union(left, right) | hf.apply(lambda key, rows, state: [], by="id", name="both", **fn)


def looked_up(left, right, **given):
    return hf.lookup(left, hf.table(right, key="id", **given), on="id", name="both", **given)


def between(left, right, **given):
    return hf.join(left, right, on="id", within="1 h", name="both", **given)


def lost(stream):
    return [said for said in start_warnings(pipeline(stream)) if "waits for the end" not in said]


@pytest.mark.parametrize("build", [merged, synced, hourly, looked_up, between])
def test_where_nothing_is_said_of_the_order_every_operator_by_time_says_that_rows_can_be_late(build):
    (said,) = lost(build(source("orders"), source("payments")))
    assert "'both'" in said
    assert "is late, and" in said
    assert "disorder=" in said
    assert lost(build(source("orders"), source("payments"), disorder=0)) == []


@pytest.mark.parametrize("build", [merged, synced, hourly, looked_up, between, once, limited, timed])
def test_partitions_that_are_read_one_after_the_other_are_warned_of_in_every_operator_by_time(build):
    """Whatever disorder the operator allows: it cannot know how far partitions are apart."""
    warned = lost(build(partitioned("orders"), partitioned("payments"), disorder="25 s"))
    assert warned
    assert all("reads its partitions one after the other" in said for said in warned)
    assert all("hf.read.kafka(..., disorder=...)" in said for said in warned)
    bounded = [partitioned(name, disorder="25 s") for name in ("orders", "payments")]
    assert lost(build(*bounded)) == []
    assert lost(build(*bounded, disorder="5 s")) == []


def test_what_stands_behind_an_operator_by_arrival_is_warned_of_too():
    counted = partitioned("orders") | hf.accumulate(by="id", n=hf.count(), name="counted")
    (said,) = lost(counted | hf.aggregate(by="id", window=hf.tumbling("1 h"), n=hf.count(), name="both"))
    assert "'orders' reads its partitions" in said


def test_a_promise_that_times_never_repeat_is_a_word_about_the_order():
    assert lost(merged(source("orders"), source("payments"), timestamps="strict")) == []


def joined(**given):
    given = {"within": ("-1 h", "2 h"), "name": "paid", **given}
    return hf.join(source("orders"), source("payments"), on="id", **given)


def test_a_join_whose_inputs_nobody_calls_ordered_is_warned_of():
    (said,) = start_warnings(pipeline(joined()))
    assert "left or right" in said
    assert 'disorder="5 min"' in said
    (said,) = start_warnings(pipeline(joined(disorder={"left": "5 s"})))
    assert "of right that" in said
    for ordered in (0, "5 min", {"left": 0, "right": "1 h"}):
        assert start_warnings(pipeline(joined(disorder=ordered))) == []


@pytest.mark.parametrize("how", ["left", "right", "full", "semi"])
def test_an_operator_by_time_behind_a_join_of_that_order_needs_disorder(how):
    before = joined(how=how, disorder=0) | hf.select("*")
    (said,) = start_warnings(pipeline(before | hf.distinct(by="id", horizon="1 h", disorder="1 h", name="next")))
    assert "distinct 'next'" in said
    assert "join 'paid'" in said
    assert "within=('-1 h', '2 h')" in said
    wide = before | hf.distinct(by="id", horizon="1 h", disorder="2 h", name="next")
    assert start_warnings(pipeline(wide)) == []


def test_pairs_ascend_by_time_and_nothing_is_said():
    stream = joined(disorder=0) | hf.distinct(by="id", horizon="1 h", disorder=0, name="next")
    assert start_warnings(pipeline(stream)) == []


def test_a_sync_by_arrival_holds_nothing_for_a_bound(caplog):
    with caplog.at_level(logging.INFO, "holdfast.graph"):
        hf.sync({"left": source("orders"), "paid": source("payments")}, by="id", policy=hf.policy.immediate())
    assert caplog.records == []


def test_an_aggregate_that_emits_each_change_holds_nothing(caplog):
    with caplog.at_level(logging.INFO, "holdfast.graph"):
        hourly(source("orders"), source("payments"), emit="changes")
    assert caplog.records == []
