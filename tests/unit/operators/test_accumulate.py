"""accumulate as a step: running values do not depend on how the rows are cut into epochs."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import BadRow, InvalidPipeline
from holdfast.operators.aggregate import aggregates
from holdfast.operators.aggregate.accumulate import accumulate
from holdfast.state import tables
from holdfast.state.call import call
from holdfast.state.step import ALL_KEYS, BOUND, PLACE, Arrivals, StepTime
from tests.everyday import examples

ROWS = pa.schema([("k", pa.string()), ("n", pa.int64())])
COMPUTED: dict[str, Any] = {
    "rows": aggregates.count(),
    "total": aggregates.sum("n"),
    "least": aggregates.min("n"),
    "most": aggregates.max("n"),
}
TOLD = pa.schema([("k", pa.string()), (ALL_KEYS, pa.bool_()), (BOUND, pa.int64()), (PLACE, pa.int64())])


def run(*epochs):
    step = accumulate(by="k", **COMPUTED).spec.step({"rows": ROWS})
    state, out = tables.empty_state(step), []
    for number, items in enumerate(epochs):
        rows = pa.Table.from_pylist(
            [{"k": k, "n": n, PLACE: place} for place, (k, n) in enumerate(items)],
            schema=ROWS.append(pa.field(PLACE, pa.int64())),
        )
        arrivals = {"rows": Arrivals(rows, TOLD.empty_table())}
        result = call(step, state, arrivals, StepTime(number, number), operator="o")
        for name, change in result.changes.items():
            state[name] = tables.apply_change(state[name], step.tables[name], change)
        out += result.outputs["rows"].to_pylist()
    return out


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(items=st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([None, 1, -7, 2**40])), max_size=30),
       cut=st.integers(0, 30))  # fmt: skip
def test_running_values_are_those_of_the_rows_so_far_however_they_are_cut(items, cut):
    wanted = []
    for place, (key, n) in enumerate(items):
        rows = [value for other, value in items[: place + 1] if other == key]
        so_far = [value for value in rows if value is not None]
        edge = {"least": min(so_far, default=None), "most": max(so_far, default=None)}
        wanted.append({"k": key, "n": n, "rows": len(rows), "total": sum(so_far) if so_far else None, **edge})
    assert run(items) == wanted
    assert run(items[:cut], [], items[cut:]) == wanted


def test_a_running_sum_that_does_not_fit_is_an_error():
    with pytest.raises(BadRow, match="does not fit in BIGINT"):
        run([("a", 2**63 - 1)], [("a", 1)])


def test_an_aggregate_without_a_running_form_is_refused():
    with pytest.raises(InvalidPipeline, match=r"was given hf\.mean"):
        accumulate(by="k", x=aggregates.mean("n"))
