"""Names of columns are the user's: what an operator adds collides with none, in side outputs and in its state."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, combinations
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.graph.nodes import Stream
from holdfast.plan.cutting import build_stages
from holdfast.plan.stages import Stages
from holdfast.quarantine.added import rows_in
from holdfast.state import keyed
from holdfast.testing.drive import drive
from holdfast.testing.given import close
from holdfast.testing.simulation.levels import Event, StatefulWorkload
from holdfast.testing.simulation.process import Process
from holdfast.testing.stand_in import StandInPlan

K, T, X = "k", "t", "x"


class Names:
    """What the columns ``k``, ``t`` and ``x`` are called."""

    def __init__(self, **called: str) -> None:
        self.k, self.t, self.x = (called.get(name, name) for name in (K, T, X))


def source(names: Names, name: str = "s") -> Stream:
    schema = f"`{names.k}` STRING, `{names.t}` BIGINT, `{names.x}` BIGINT"
    return hf.read.rows([], schema=schema, timestamp=names.t, bounded=True, name=name)


def summed(key: Any, rows: Sequence[Any], state: Any) -> Iterator[Any]:
    state.set(total=state.get("total", 0) + len(rows))
    yield {"key": key if isinstance(key, str) else key[0], "total": state.get("total")}


def synchronised(policy: Any) -> Callable[[Names], Stream]:
    def build(names: Names) -> Stream:
        strict = {} if policy.kind in ("settled", "within") else {"timestamps": "strict"}
        stamps: dict[str, Any] = strict or {"timestamps": "ascending", "disorder": 6}
        return hf.sync(
            {"one": source(names), "two": source(names, "r")}, by=names.k, policy=policy, name="op", **stamps
        )

    return build


OPERATORS: dict[str, Callable[[Names], Stream]] = {
    "reduce": lambda names: source(names) | hf.reduce(by=names.k, total=hf.sum(names.x), name="op"),
    "aggregate": lambda names: source(names) | hf.aggregate(
        by=names.k, window=hf.tumbling(8), disorder=6, total=hf.sum(names.x), every=hf.collect(names.x), name="op"),
    "count_window": lambda names: source(names) | hf.aggregate(
        by=names.k, window=hf.count_window(3), total=hf.sum(names.x), name="op"),
    "session": lambda names: source(names) | hf.aggregate(
        by=names.k, window=hf.session(3), disorder=6, forget_after="1 h", total=hf.sum(names.x), name="op"),
    "accumulate": lambda names: source(names) | hf.accumulate(by=names.k, total=hf.sum(names.x), name="op"),
    "over": lambda names: source(names) | hf.over(
        rows=3, by=names.k, order=f"`{names.x}`", disorder=6, total=hf.sum(names.x), name="op"),
    "distinct": lambda names: source(names) | hf.distinct(by=[names.k, names.x], horizon=9, disorder=6, name="op"),
    "limit_in_flight": lambda names: source(names) | hf.limit_in_flight(1, by=names.k, timeout=5, name="op"),
    "merge": lambda names: hf.merge(source(names), {"slow": source(names, "r")}, by=names.k, disorder=6, name="op"),
    "join": lambda names: hf.join(
        source(names), source(names, "r"), on=names.k, within=(-3, 3), how="full", disorder=6, name="op"),
    "join_changes": lambda names: hf.join(
        source(names), source(names, "r"), on=names.k, how="full", delete="gone", name="op"),
    "lookup": lambda names: hf.lookup(
        source(names), hf.table(source(names, "r"), key=names.k, disorder=6), on=names.k, columns={"seen": names.x},
        disorder=6, name="op"),
    "apply": lambda names: source(names) | hf.apply(
        summed, names.k, state="total BIGINT", schema="key STRING, total BIGINT", name="op"),
    **{f"sync {policy.kind}": synchronised(policy) for policy in (
        hf.policy.settled(), hf.policy.within(5, base="one"), hf.policy.barrier(), hf.policy.fixed_size(),
        hf.policy.timestamp_align("one"), hf.policy.early_close(),
    )},
}  # fmt: skip


USERS = {"total", "every", "seen", "slow", "one", "two", "key", "gone"}
"""Names that these graphs give themselves: where a column has one of them, the graph is refused when it is built."""


def pipeline_of(build: Callable[[Names], Stream], names: Names) -> hf.Pipeline:
    stream = build(names)
    outputs = {"all": stream, **{name: getattr(stream, name) for name in stream.node.stateful_spec.side_outputs}}
    return hf.Pipeline("p", *(each | hf.write.memory(name) for name, each in outputs.items()))


def shown(pipeline: hf.Pipeline, names: Names) -> dict[str, list[Any]]:
    """Return the rows of each output: their values, whatever their columns are called."""
    chance, sources = random.Random("rows"), sorted(node.name for node in pipeline.sources)
    events: list[Event] = []
    for at in range(24):
        row = {names.k: chance.choice("ab"), names.t: at - chance.choice((0, 0, 12)), names.x: at % 3}
        events.append((chance.choice(sources), row))
    work = StatefulWorkload(pipeline, [*events, *((name, None) for name in sources)], lambda shown: [], 1, 1)
    evaluation = work.evaluation(Process(), random.Random(0), 0)
    found: dict[str, list[Any]] = {}
    for epoch, start in enumerate(range(0, len(work.events), 12), start=1):
        rows = evaluation.carry(epoch, start, start + 12, frozenset(sink.name for sink in pipeline.sinks))
        for sink, table in rows.items():
            found.setdefault(sink, []).extend(values(row) for row in table.to_pylist())
    return found


def values(value: Any) -> Any:
    if isinstance(value, dict):
        return [values(of) for of in value.values()]
    return [values(of) for of in value] if isinstance(value, list) else value


def stages_of(pipeline: hf.Pipeline) -> Stages:
    return build_stages(pipeline, lambda schema: schema, "t", buckets=1, partitions=1, prefix=StandInPlan({}).schemas)


def names_within(pipeline: hf.Pipeline) -> set[str]:
    """Return every name that an operator gives to a column, of an output or of its state."""
    (step,) = (one.step for stage in stages_of(pipeline).stages for one in stage.hosted.values())
    schemas = [*step.outputs.values(), *(table.schema for table in step.tables.values())]
    return {name for schema in schemas for name in schema.names if not name.startswith("__")} - {K, T, X}


@pytest.mark.slow
@pytest.mark.parametrize("kind", OPERATORS)
def test_a_column_may_have_any_name(kind: str) -> None:
    build = OPERATORS[kind]
    plain = pipeline_of(build, Names())
    expected = shown(plain, Names())
    beside = {"timestamp", "input", "Reason", "side_reason"}
    every = [(K, name) for name in (names_within(plain) | beside) - USERS] + [(X, "reason"), (T, "timestamp")]
    wrong = []
    for column, name in sorted(every):
        names = Names(**{column: name})
        try:
            pipeline = pipeline_of(build, names)
            stages_of(pipeline)
        except hf.InvalidPipeline as error:  # before an epoch, and what state holds is no name of a side output's
            is_of_sets = kind.startswith("sync") and (column, name) == (K, "timestamp")  # they have one of their own
            wrong += [f"{column} as {name} is refused: {error}"] if name in beside and not is_of_sets else []
            continue
        try:
            wrong += [f"{column} as {name}: other rows"] if shown(pipeline, names) != expected else []
        except Exception as error:
            wrong.append(f"{column} as {name}: {error!r}")
    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("inputs", [("camera", "side_camera"), ("side_camera", "camera")])
@pytest.mark.parametrize("columns", [("x", "x"), ("x", "y")], ids=["of one schema", "of two"])
def test_a_late_row_is_in_the_column_of_its_input_whatever_inputs_are_called(
    inputs: tuple[str, str], columns: tuple[str, str]
) -> None:
    streams: dict[str, Any] = {}
    given: dict[str, Any] = {}
    for name, column in zip(inputs, columns, strict=True):
        streams[name] = hf.read.rows([], schema=f"k STRING, t BIGINT, {column} BIGINT", timestamp="t", name=name)
        given[name] = [[{"k": "a", "t": at, column: 1} for at in (9, 3)], [close()]]
    synced = hf.sync(streams, by="k", policy=hf.policy.settled(), timestamps="ascending", disorder=0, name="op")
    found = [row for epoch in drive(synced.late, given) for row in epoch]
    assert sorted(row["input"] for row in found) == sorted(inputs)
    for row in found:
        assert [name for name in inputs if row[name] is not None] == [row["input"]]


@pytest.mark.slow
def test_a_row_beside_others_is_found_whatever_keys_and_inputs_are_called() -> None:
    row = pa.table({"t": [3], "x": [1]})
    for names in ("camera", "reason"):
        alike = [names, f"Side_{names}", f"side_side_{names}"]
        subsets = list(chain.from_iterable(combinations(alike, count) for count in range(4)))
        for key in subsets:
            for inputs in subsets[1:]:
                schema = keyed.late_schema(
                    pa.schema([(name, pa.string()) for name in key]), pa.int64(), dict.fromkeys(inputs, row.schema)
                )
                assert len({name.lower() for name in schema.names}) == len(schema)
                for place, name in enumerate(inputs):
                    keys = [pa.array(["a"])] * len(key)
                    came = pa.Table.from_arrays([*keys, *row.columns], names=[*key, *row.schema.names])
                    (beside,) = keyed.side_rows(schema, name, came, "t", pa.array(["late"])).to_pylist()
                    wholes = list(beside.values())[-len(inputs) :]
                    assert [each is not None for each in wholes] == [at == place for at in range(len(inputs))]
                    table = pa.Table.from_pylist([beside])
                    assert [(each.to_pylist(), why) for each, why in rows_in(table)] == [(row.to_pylist(), "late")]
