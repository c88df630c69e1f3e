"""Bad input of stateful operators through the public interface, without a JVM: each a clear error that names its place.

=================================================  ====================================================================
null key or timestamp                              :func:`test_a_null_key_...`, :func:`test_a_null_timestamp_...`
a timestamp type that is not a time                   :func:`test_a_timestamp_that_is_no_time_...`
two inputs of one name                             :func:`test_two_inputs_of_one_name_...`
a policy that names an unknown input               :func:`test_a_policy_that_names_an_unknown_input_...`
a step that returns the wrong schema               :func:`test_a_step_that_returns_another_schema_...`
a step that raises                                 :func:`test_a_step_that_raises_...`
=================================================  ====================================================================

The same errors from a run on Spark: ``tests/spark/test_columnar_state_errors.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import BadRow, HoldfastError, InvalidPipeline, Unavailable
from holdfast.testing import drive

pytestmark = pytest.mark.slow

SCHEMA = "k STRING, t BIGINT, v BIGINT"


def given(name: str, schema: str = SCHEMA) -> hf.Stream:
    return hf.read.rows([], schema=schema, timestamp="t", name=name)


def nothing(key: Any, rows: Any, state: Any) -> list[dict[str, Any]]:
    return []


def keep(tables: Any, rows: pa.Table, at: Any) -> Any:
    return None, rows.select(["k", "v"])


BUILD: dict[str, Callable[[hf.Stream, hf.Stream], hf.Stream]] = {
    "sync": lambda a, b: hf.sync({"a": a, "b": b}, by="k", name="op"),
    "sync without a key": lambda a, b: hf.sync({"a": a, "b": b}, name="op"),
    "merge": lambda a, b: hf.merge(a, {"b": b}, by="k", name="op"),
    "aggregate": lambda a, b: (
        hf.union(a, b, name="both") | hf.aggregate(by="k", window=hf.tumbling(10), n=hf.count(), name="op")
    ),
    "reduce": lambda a, b: hf.union(a, b, name="both") | hf.reduce(by="k", n=hf.count(), name="op"),
    "accumulate": lambda a, b: hf.union(a, b, name="both") | hf.accumulate(by="k", n=hf.count(), name="op"),
    "over": lambda a, b: hf.union(a, b, name="both") | hf.over(rows=2, by="k", n=hf.count(), name="op"),
    "distinct": lambda a, b: hf.union(a, b, name="both") | hf.distinct("k", 10, name="op"),
    "limit_in_flight": lambda a, b: hf.union(a, b, name="both") | hf.limit_in_flight(5, "k", timeout=10, name="op"),
    "apply": lambda a, b: hf.union(a, b, name="both") | hf.apply(nothing, "k", schema=SCHEMA, name="op"),
    "stateful": lambda a, b: (
        hf.union(a, b, name="both")
        | hf.stateful(keep, "k", schema="k STRING, v BIGINT", state={"seen": "k STRING"}, name="op")
    ),
}
"""Operator -> a stream behind it, of two sources."""

KEYED = [name for name in BUILD if name != "sync without a key"]
NARROW = ["aggregate", "reduce"]
"""Those that are given the columns alone that they use (design/0062): their errors can show no others."""
TIMED = ["sync", "sync without a key", "merge", "aggregate", "accumulate", "over", "distinct", "limit_in_flight"]


def refused(build: Callable[[], Any], kind: type[HoldfastError] = InvalidPipeline) -> HoldfastError:
    """Return the error of something that must be refused, which says what, why and what to do."""
    with pytest.raises(kind) as caught:
        build()
    assert caught.value.what
    assert caught.value.why
    assert caught.value.do
    return caught.value


def check_says(error: HoldfastError, *words: str) -> None:
    for word in words:
        assert word in error.message, f"{word!r} is not in:\n{error.message}"


# --- rows -----------------------------------------------------------------------------------------------------------


def of_bad_row(operator: str, bad: Mapping[str, Any], buckets: int = 1) -> HoldfastError:
    """Return the error of a bad row in the second epoch, between good ones."""
    good = [{"k": "x", "t": 1, "v": 100}]
    stream = BUILD[operator](given("first"), given("second"))
    later = [{"k": "x", "t": 2, "v": 101}, bad, {"k": "y", "t": 4, "v": 103}]
    return refused(lambda: drive(stream, {"first": [good, later], "second": [good]}, buckets=buckets), BadRow)


@pytest.mark.parametrize("operator", KEYED)
def test_a_null_key_names_operator_input_epoch_and_the_row(operator: str) -> None:
    error = of_bad_row(operator, {"k": None, "t": 3, "v": 102})
    check_says(error, "'op'", "bucket 0", "epoch 2", "k=None", "have no value in")
    assert ("v=102" in error.message) == (operator not in NARROW)
    assert error.participant == "op"
    assert error.epoch == 2
    assert "v=101" not in error.message, "a good row is shown as a bad one"
    if operator in ("sync", "merge"):
        check_says(error, "'a'" if operator == "sync" else "'main'")


@pytest.mark.parametrize("operator", TIMED)
def test_a_null_timestamp_names_operator_input_epoch_and_the_row(operator: str) -> None:
    error = of_bad_row(operator, {"k": "z", "t": None, "v": 102})
    check_says(error, "'op'", "bucket 0", "epoch 2", "t=None", "have no value in")
    assert ("v=102" in error.message) == (operator not in NARROW)
    assert "v=101" not in error.message, "a good row is shown as a bad one"


def test_many_bad_rows_are_counted_and_a_few_are_shown() -> None:
    stream = BUILD["sync"](given("first"), given("second"))
    rows = [{"k": None, "t": number, "v": 1000 + number} for number in range(500)]
    error = refused(lambda: drive(stream, {"first": [rows], "second": []}), BadRow)
    check_says(error, "500", "v=1000")
    assert len(error.message) < 2000


# --- declarations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["STRING", "DOUBLE", "DATE", "INT", "BOOLEAN"])
@pytest.mark.parametrize("operator", TIMED)
def test_a_timestamp_that_is_no_time_names_column_and_type(operator: str, kind: str) -> None:
    def build() -> None:
        schema = f"k STRING, t {kind}, v BIGINT"
        drive(BUILD[operator](given("first", schema), given("second", schema)), {"first": [], "second": [[]]})

    check_says(
        refused(build), "'t'", {"STRING": "string", "DATE": "date", "INT": "int", "BOOLEAN": "bool"}.get(kind, "double")
    )


@pytest.mark.parametrize("operator", ["sync", "merge"])
def test_inputs_whose_timestamps_differ_in_type_are_named_with_both_types(operator: str) -> None:
    def build() -> None:
        stream = BUILD[operator](given("first"), given("second", "k STRING, t TIMESTAMP, v BIGINT"))
        drive(stream, {"first": [], "second": [[]]})

    check_says(refused(build), "int64", "timestamp[us")


@pytest.mark.parametrize("operator", ["sync", "merge"])
def test_inputs_whose_keys_differ_in_type_are_named_with_both_types(operator: str) -> None:
    def build() -> None:
        stream = BUILD[operator](given("first"), given("second", "k BIGINT, t BIGINT, v BIGINT"))
        drive(stream, {"first": [], "second": [[]]})

    check_says(refused(build), "'b'", "int64", "string")


@pytest.mark.parametrize(
    "build",
    [
        lambda a, b: hf.sync({"a": a, "A": b}, by="k"),
        lambda a, b: hf.merge(a, {"b": b, "B": b}, by="k"),
    ],
    ids=["sync", "merge"],
)
def test_two_inputs_of_one_name_are_refused_where_they_are_written(
    build: Callable[[hf.Stream, hf.Stream], hf.Stream],
) -> None:
    error = refused(lambda: build(given("first"), given("second")))
    assert re.search(r"'[aAbB]' and '[aAbB]'", error.message), error.message
    check_says(error, "test_state_bad_input.py:")


def test_two_stateful_operators_of_one_name_are_refused() -> None:
    first = given("first") | hf.reduce(by="k", n=hf.count(), name="sums")
    second = given("second") | hf.reduce(by="k", n=hf.count(), name="sums")
    error = refused(lambda: hf.Pipeline("p", first | hf.write.console(name="x"), second | hf.write.console(name="y")))
    check_says(error, "'sums'")


@pytest.mark.parametrize(
    "policy",
    [hf.policy.mux(select="c"), hf.policy.timestamp_align(base="c"), hf.policy.sync_sets([["a"], ["c"]])],
    ids=lambda policy: policy.kind,
)
def test_a_policy_that_names_an_unknown_input_says_which_there_are(policy: Any) -> None:
    error = refused(lambda: hf.sync({"a": given("first"), "b": given("second")}, by="k", policy=policy))
    check_says(error, policy.kind, "'c'", "a, b", "test_state_bad_input.py:")


@pytest.mark.parametrize("argument", ["timestamps", "disorder"])
def test_a_promise_of_an_unknown_input_says_which_there_are(argument: str) -> None:
    promise: dict[str, Any] = {argument: {"c": "strict" if argument == "timestamps" else 5}}
    error = refused(lambda: hf.sync({"a": given("first"), "b": given("second")}, by="k", **promise))
    check_says(error, argument, "'c'", "a, b")


# --- steps -----------------------------------------------------------------------------------------------------------


def run_step(step: Callable[..., Any], buckets: int = 1) -> list[list[dict[str, Any]]]:
    stream = given("first") | hf.stateful(
        step, "k", schema="k STRING, n BIGINT", state={"counts": "k STRING, n BIGINT"}, name="mine"
    )
    rows = [[{"k": "x", "t": 1, "v": 100}], [{"k": "y", "t": 2, "v": 101}]]
    return drive(stream, {"first": rows}, buckets=buckets)


def test_a_step_that_returns_another_schema_is_named_with_both_schemas() -> None:
    def step(tables: Any, rows: pa.Table, at: Any) -> Any:
        return None, pa.table({"k": rows["k"], "m": pa.array([0.5] * rows.num_rows)})

    check_says(refused(lambda: run_step(step)), "'mine'", "n int64", "m double", "k string")


def test_a_step_that_returns_another_state_is_named_with_the_table_and_both_schemas() -> None:
    def step(tables: Any, rows: pa.Table, at: Any) -> Any:
        return {"counts": pa.table({"k": rows["k"], "n": rows["k"]})}, None

    check_says(refused(lambda: run_step(step)), "'mine'", "'counts'", "n int64", "n string")


def test_a_step_that_returns_a_table_it_did_not_declare_is_told_which_there_are() -> None:
    def step(tables: Any, rows: pa.Table, at: Any) -> Any:
        return {"count": pa.table({"k": rows["k"], "n": rows["v"]})}, None

    check_says(refused(lambda: run_step(step)), "'mine'", "'count'", "counts")


def test_a_step_that_raises_is_named_with_bucket_epoch_reason_line_and_first_rows() -> None:
    def step(tables: Any, rows: pa.Table, at: Any) -> Any:
        if at.epoch == 2:
            raise ZeroDivisionError("no mean of nothing")
        return None, None

    error = refused(lambda: run_step(step, buckets=3))
    check_says(error, "'mine'", "bucket ", "epoch 2", "ZeroDivisionError", "no mean of nothing")
    check_says(error, "test_state_bad_input.py:", "k='y'", "v=101")
    assert isinstance(error.__cause__, ZeroDivisionError)


def test_a_function_per_key_that_raises_is_named_with_its_key() -> None:
    def fn(key: Any, rows: Any, state: Any) -> list[dict[str, Any]]:
        if key == "y":
            raise KeyError("gone")
        return []

    stream = given("first") | hf.apply(fn, "k", schema="k STRING", name="mine")
    rows = [{"k": "x", "t": 1, "v": 100}, {"k": "y", "t": 2, "v": 101}]
    error = refused(lambda: drive(stream, {"first": [rows]}))
    check_says(error, "'mine'", "'y'", "bucket 0", "epoch 1", "KeyError", "gone", "v=101")
    assert "v=100" not in error.message, "a row of another key is shown"


def test_a_step_that_meets_a_system_that_does_not_answer_may_be_tried_again() -> None:
    def step(tables: Any, rows: pa.Table, at: Any) -> Any:
        raise ConnectionError("no route")

    error = refused(lambda: run_step(step), Unavailable)
    check_says(error, "'mine'", "no route")
