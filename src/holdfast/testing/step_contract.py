"""The contract of steps, as checks that any step passes: import them to hold a step of your own to it.

Give a :class:`StepCase` to each of :data:`CHECKS`::

    @pytest.mark.parametrize("check", step_contract.CHECKS, ids=lambda check: check.__name__)
    def test_my_step_keeps_the_contract(check):
        check(StepCase("mine", step_of(my_stream), my_events))
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from holdfast.capabilities import offers
from holdfast.errors import InvalidPipeline
from holdfast.graph.nodes import Stream
from holdfast.ports import StatefulSpec
from holdfast.state import joins, tables
from holdfast.state.call import call
from holdfast.state.step import ALL_KEYS, BOUND, PLACE, Arrivals, Change, Combining, Result, Step, StepTime, with_places
from holdfast.testing.given import Bound

Event = tuple[str, Mapping[str, Any] | Bound]
"""Input, and what arrives on it: a row as a dict, or a bound."""

_LARGE = 20_000
_SOME = 12_000
_FEW = 10


@dataclass(frozen=True)
class StepCase:
    """A step with events to try it on.

    Parameters
    ----------
    name : str
        For messages.
    step : Step
        The step under test.
    events : function of (random, count, keys), giving events
        Returns about ``count`` events over ``keys`` keys, in an order of arrival that its inputs may promise.
    depends_on_cut : bool
        Whether the rows that it gives depend, as documented, on where epochs are cut.
    """

    name: str
    step: Step
    events: Callable[[random.Random, int, int], Sequence[Event]] = field(repr=False)
    depends_on_cut: bool = False


def step_of(stream: Stream) -> Step:
    """Return the step of a stream's operator: with the function, key and state that it was given.

    Parameters
    ----------
    stream : Stream
        What an operator with state gives, of streams that are read as they are.

    Raises
    ------
    InvalidPipeline
        If the operator has no state, or takes anything but the rows of sources, whose schemas are known.
    """
    node = stream.node
    if not offers(node.spec, StatefulSpec) or not all(before.is_source for before in node.inputs):
        raise InvalidPipeline(
            f"{node.kind} {node.name!r} is no step over the rows of sources.",
            why="a step needs state, and the schemas of its inputs.",
            do="give it the stream of an operator with state that takes its rows from sources: hf.read.rows([], ...).",
        )
    schemas = [before.source_spec.schema for before in node.inputs]
    return node.spec.step(dict(zip(node.spec.input_names, schemas, strict=True)))


def arrivals_of(step: Step, events: Sequence[Event]) -> dict[str, Arrivals]:
    """Return one epoch's events as a step is given them, their places in this order."""
    arrivals = {}
    bounds_schema = tables.bounds_schema(step.key).append(pa.field(PLACE, pa.int64()))
    for name, schema in step.inputs.items():
        rows: list[Mapping[str, Any]] = []
        bounds: list[Mapping[str, Any]] = []
        for place, (source, item) in enumerate(events):
            if source != name:
                continue
            if isinstance(item, Bound):
                key = item.key or {}
                bounds.append({**key, ALL_KEYS: item.key is None, BOUND: item.ticks, PLACE: place})
            else:
                rows.append({**item, PLACE: place})
        arrivals[name] = Arrivals(
            pa.Table.from_pylist(rows, schema=schema.append(pa.field(PLACE, pa.int64()))),
            pa.Table.from_pylist(bounds, schema=bounds_schema),
        )
    return arrivals


@dataclass
class _Life:
    """A bucket's state over epochs, and all rows that came of it."""

    case: StepCase
    through_bytes: bool = True
    epoch: int = 0
    state: dict[str, pa.Table] = field(default_factory=dict)
    rows: dict[str, list[pa.Table]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state = tables.empty_state(self.case.step)
        self.rows = {name: [] for name in self.case.step.outputs}

    def run(self, events: Sequence[Event], arrivals: Mapping[str, Arrivals] | None = None) -> Result:
        """Run one epoch; with arrivals, if any, in place of those of the events."""
        step = self.case.step
        arrivals = arrivals_of(step, events) if arrivals is None else arrivals
        # The same batch time in all epochs: what follows from it must not depend on where epochs are cut.
        result = call(step, self.state, arrivals, StepTime(self.epoch, 0), operator=self.case.name)
        self.epoch += 1
        for name, rows in result.outputs.items():
            self.rows[name].append(rows)
        changes: Mapping[str, Change] = result.changes
        if self.through_bytes:
            changes = tables.decode_changes(tables.encode_changes(changes))
        self.state = tables.apply_changes(self.state, step.tables, changes)
        if self.through_bytes:
            self.state = tables.decode(tables.encode(self.state))
        return result

    def all_rows(self) -> dict[str, pa.Table]:
        """Return the rows of each output over all epochs."""
        return {
            name: pa.concat_tables([tables.empty(self.case.step.outputs[name]), *parts])
            for name, parts in self.rows.items()
        }


def check_replay(case: StepCase) -> None:
    """The same epoch gives the same bytes: again, in another process, and with the state's rows in another order."""
    for seed in range(3):
        events = case.events(random.Random(seed), 60, 4)
        life, rng = _Life(case), random.Random(seed)
        for part in _cut(events, rng, 3):
            state, at = life.state, StepTime(life.epoch, 0)
            first = life.run(part)
            copy: Step = pickle.loads(pickle.dumps(case.step))
            again = call(copy, state, arrivals_of(copy, part), at, operator=case.name)
            _same(_bytes(first), _bytes(again), case, "a replay gives other bytes")
            mixed = {name: table.take(_shuffled(table.num_rows, rng)) for name, table in state.items()}
            other = call(case.step, mixed, arrivals_of(case.step, part), at, operator=case.name)
            for name, rows in first.outputs.items():
                _same(
                    rows.to_pylist(),
                    other.outputs[name].to_pylist(),
                    case,
                    f"output {name!r} depends on the order of the state's rows",
                )


def check_cuts(case: StepCase) -> None:
    """However the rows are cut into epochs, the total output is the same, and so is its order within each key."""
    if case.depends_on_cut:
        return
    for seed in range(6):
        rng = random.Random(seed)
        events = case.events(rng, 40, 1 + seed)
        whole = _run(case, [events])
        if seed == 1:  # of two keys; forty epochs, ten times as many as the others
            _alike(case, whole, _run(case, [[event] for event in events]), "one event an epoch gives other rows")
        _alike(case, whole, _run(case, list(_cut(events, rng, 4))), "other epochs give other rows")


def check_serialisation(case: StepCase) -> None:
    """State that went through bytes does the same as state that did not, and no table holds a key twice."""
    for seed in range(3):
        rng = random.Random(seed)
        parts = list(_cut(case.events(rng, 60, 5), rng, 4))
        kept, stored = _Life(case, through_bytes=False), _Life(case)
        for part in parts:
            _same(_bytes(kept.run(part)), _bytes(stored.run(part)), case, "state does not survive its bytes")
            for name, declared in case.step.tables.items():
                table = stored.state[name]
                once = joins.distinct_keys(table, declared.key).num_rows if declared.key else min(1, table.num_rows)
                _same(once, table.num_rows, case, f"state table {name!r} holds a key twice")


def check_empty_epochs(case: StepCase) -> None:
    """An epoch without arrivals gives nothing on an empty state, and changes nothing of what comes later."""
    life = _Life(case)
    result = life.run([])
    _same(dict.fromkeys(result.outputs, 0), _counts(result), case, "an empty epoch gives rows")
    _same([], [name for name, table in life.state.items() if table.num_rows], case, "an empty epoch writes state")
    for seed in range(3):
        rng = random.Random(seed)
        parts = list(_cut(case.events(rng, 40, 3), rng, 3))
        between = [epoch for part in parts for epoch in ([], part)]
        _alike(case, _run(case, parts), _run(case, [*between, []]), "empty epochs change the rows")


def check_partial_rows(case: StepCase) -> None:
    """Where a step takes partial rows for its rows, it makes the same of both: output, state and fates."""
    step = case.step
    if not offers(step, Combining) or step.partial_schema is None:
        return
    for seed in range(3):
        rng = random.Random(seed)
        plain, combining = _Life(case), _Life(case)
        rows = [event for event in case.events(rng, _SOME, 4) if not isinstance(event[1], Bound)]  # they part chunks
        for part in _cut(rows, rng, 3):
            given = {
                name: replace(arrivals, **_sent_by_tasks(step, arrivals.rows, rng))
                for name, arrivals in arrivals_of(step, part).items()
            }
            one, other = plain.run(part), combining.run(part, given)
            _same(one.fates, other.fates, case, "partial rows have other fates than their rows")
            mine, theirs = ({"rows": result.outputs["rows"]} for result in (one, other))  # of late rows times stay
            _alike(case, mine, theirs, "partial rows give other rows than their rows")
            _same(_counts(one), _counts(other), case, "partial rows give more or fewer rows than their rows")
            _same(one.counts, other.counts, case, "partial rows are counted otherwise than their rows")
            for name, table in plain.state.items():
                before, after = (sorted(map(repr, of.to_pylist())) for of in (table, combining.state[name]))
                _same(before, after, case, f"partial rows leave other state in {name!r}")


def _sent_by_tasks(step: Combining, rows: pa.Table, rng: random.Random) -> dict[str, pa.Table | None]:
    """Return the rows of an epoch as three tasks send them, one of which combines none of its own."""
    borders = sorted(rng.randrange(rows.num_rows + 1) for _ in range(2))
    tasks = [rows.slice(at, end - at) for at, end in zip([0, *borders], [*borders, rows.num_rows], strict=True)]
    made = [None if at == 1 else step.combine(task.drop_columns([PLACE])) for at, task in enumerate(tasks)]
    sent = [
        with_places(table, task.column(PLACE).take)
        for table, task in zip(made, tasks, strict=True)
        if table is not None
    ]
    as_rows = [task for task, table in zip(tasks, made, strict=True) if table is None]
    return {
        "rows": pa.concat_tables(as_rows) if as_rows else rows.slice(0, 0),
        "partials": tables.decode(tables.encode({"sent": pa.concat_tables(sent)}))["sent"] if sent else None,
    }


def check_one_huge_key(case: StepCase) -> None:
    """One key with very many rows gives what it gives in two parts."""
    rng = random.Random(1)
    events = case.events(rng, _LARGE, 1)
    whole, parts = _run(case, [events]), _run(case, [events[: _LARGE // 3], events[_LARGE // 3 :]])
    if not case.depends_on_cut:
        _alike(case, whole, parts, "one huge key gives other rows in two epochs")


def check_many_keys(case: StepCase) -> None:
    """With very many keys of state, an epoch that touches few of them changes little."""
    rng = random.Random(2)
    life = _Life(case)
    life.run([event for event in case.events(rng, _LARGE, _LARGE) if not isinstance(event[1], Bound)])
    few = [event for event in case.events(rng, _FEW, _FEW) if not isinstance(event[1], Bound)]
    result = life.run(few)
    written = sum(change.upserts.num_rows + change.deletes.num_rows for change in result.changes.values())
    allowed = 20 * (len(few) + 1)
    assert written <= allowed, f"{case.name}: {len(few)} events wrote {written} rows of state; {allowed} would be many"


CHECKS: tuple[Callable[[StepCase], None], ...] = (
    check_replay,
    check_cuts,
    check_serialisation,
    check_empty_epochs,
    check_partial_rows,
    check_one_huge_key,
    check_many_keys,
)
"""Every check of the contract."""


def _run(case: StepCase, epochs: Sequence[Sequence[Event]]) -> dict[str, pa.Table]:
    life = _Life(case)
    for events in epochs:
        life.run(events)
    return life.all_rows()


def _cut(events: Sequence[Event], rng: random.Random, parts: int) -> Iterator[Sequence[Event]]:
    borders = sorted(rng.randrange(len(events) + 1) for _ in range(parts - 1))
    for start, end in zip([0, *borders], [*borders, len(events)], strict=True):
        yield events[start:end]


def _shuffled(count: int, rng: random.Random) -> pa.Array:
    order = list(range(count))
    rng.shuffle(order)
    return pa.array(order, pa.int64())


def _bytes(result: Result) -> tuple[bytes, bytes, bytes]:
    bounds = {} if result.bounds is None else {"bounds": result.bounds}
    return tables.encode(result.outputs), tables.encode_changes(result.changes), tables.encode(bounds)


def _counts(result: Result) -> dict[str, int]:
    return {name: rows.num_rows for name, rows in result.outputs.items()}


def _alike(case: StepCase, one: Mapping[str, pa.Table], other: Mapping[str, pa.Table], what: str) -> None:
    for name, rows in one.items():
        key = [column for column in case.step.key.names if column in rows.schema.names]
        _same(_by_key(rows, key), _by_key(other[name], key), case, f"{what} (output {name!r})")


def _by_key(rows: pa.Table, key: Sequence[str]) -> dict[str, list[str]]:
    """Return the rows of each key in their order; where the output has no key, all rows without order."""
    found: dict[str, list[str]] = {}
    for row in rows.to_pylist():
        found.setdefault(repr([row[name] for name in key]), []).append(repr(row))
    return found if key else {name: sorted(texts) for name, texts in found.items()}


def _same(expected: Any, found: Any, case: StepCase, what: str) -> None:
    if expected == found:
        return
    if isinstance(expected, dict) and isinstance(found, dict):
        odd = next(key for key in [*expected, *found] if expected.get(key) != found.get(key))
        expected, found = {odd: expected.get(odd)}, {odd: found.get(odd)}
    raise AssertionError(f"{case.name}: {what}\n  expected {_short(expected)}\n  found    {_short(found)}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 1500 else text[:1500] + "…"
