"""What is said where the clock alone or the end releases rows, and where rows would be late (design/0032, 0029)."""

import logging

import pytest

import holdfast as hf
from holdfast.graph.explain import start_warnings, waits_to_mind, warnings

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
        stream = build(source("orders"), source("payments"), idle_after="10 s")
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
        stream = build(source("orders"), source("payments"))
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
    assert waits_to_mind(pipeline(build(*ending))) == []


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
