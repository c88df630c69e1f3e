"""What is said where a rule of the clock alone can release rows (design/0032)."""

import logging

import pytest

import holdfast as hf
from holdfast.graph.explain import waits_to_mind, warnings

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
def test_without_an_idle_rule_it_is_noted_that_a_key_that_comes_once_waits_for_the_end(build, caplog):
    with caplog.at_level(logging.DEBUG, "holdfast.graph"):
        stream = build(source("orders"), source("payments"))
    (record,) = caplog.records
    assert "waits for the end" in record.getMessage()
    assert waits_to_mind(pipeline(stream)) == []


def test_a_sync_by_arrival_holds_nothing_for_a_bound(caplog):
    with caplog.at_level(logging.INFO, "holdfast.graph"):
        hf.sync({"left": source("orders"), "paid": source("payments")}, by="id", policy=hf.policy.immediate())
    assert caplog.records == []


def test_an_aggregate_that_emits_each_change_holds_nothing(caplog):
    with caplog.at_level(logging.INFO, "holdfast.graph"):
        hourly(source("orders"), source("payments"), emit="changes")
    assert caplog.records == []
