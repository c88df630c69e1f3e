"""What every source must do: one list of promises, run against each of them.

A test file supplies one fixture and names the class::

    from tests.contract.source_contract import SourceContract

    TestSourceContract = SourceContract

    @pytest.fixture
    def origin(tmp_path) -> Origin: ...

The promises are those of ``holdfast.ports.Source`` (design/0001, section 6; design/0004).
"""

from __future__ import annotations

import pickle
import threading
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import pytest

from holdfast.capabilities import offers
from holdfast.connectors.reading.identified import (
    IdentifiedSource,
    IdentifiedSpec,
    NumberedSpec,
    TraceableSpec,
    position_key,
)
from holdfast.limits import ReadLimit
from holdfast.ports import Source, SourceSpec
from holdfast.positions import SourcePositions, covers
from holdfast.types.row_ids import ReadId


class Origin(Protocol):
    """Something outside that rows come from."""

    spec: SourceSpec

    def open(self) -> Source:
        """Return the source as a new process sees it: same declaration, same workspace."""

    def grow(self) -> None:
        """Let some more rows arrive."""


@dataclass
class Hands:
    """A clock that stands until it is moved."""

    now: int = 5_000_000

    def now_us(self) -> int:
        return self.now

    def sleep_s(self, seconds: float) -> None:
        raise AssertionError("a source does not wait")


def rows_between(source: Source, start: SourcePositions, end: SourcePositions, parallelism: int = 2) -> list[Any]:
    """Return the rows between two positions, as the executors read them."""
    spans = source.spans(start, end, parallelism=parallelism)
    reader: Source = pickle.loads(pickle.dumps(source))
    return [
        row for span in pickle.loads(pickle.dumps(spans)) for batch in reader.read(span) for row in batch.to_pylist()
    ]


def drain(
    source: Source, start: SourcePositions, *, bounded: bool = False, limit: ReadLimit | None = None
) -> list[SourcePositions]:
    """Return the positions of one epoch after the other until there is nothing new, ``start`` first."""
    positions = [start]
    while (end := source.latest(positions[-1], bounded=bounded, limit=limit)) != positions[-1]:
        positions.append(end)
    return positions


class SourceContract:
    """The promises.  Each test gets a fresh ``origin``, in which some rows have arrived."""

    def test_the_same_positions_give_the_same_rows_again(self, origin: Origin) -> None:
        source = origin.open()
        start = source.initial()
        end = source.latest(start, bounded=False)
        rows = rows_between(source, start, end)
        assert rows
        assert rows_between(source, start, end) == rows
        origin.grow()
        source.latest(end, bounded=False)
        assert rows_between(source, start, end) == rows

    def test_a_new_process_reads_the_same_rows(self, origin: Origin) -> None:
        first = origin.open()
        positions = drain(first, first.initial())
        rows = [rows_between(first, *pair) for pair in pairwise(positions)]
        second = origin.open()
        assert second.initial() == positions[0]
        assert [rows_between(second, *pair) for pair in pairwise(positions)] == rows

    def test_positions_ascend_and_nothing_new_is_an_empty_epoch(self, origin: Origin) -> None:
        source = origin.open()
        positions = drain(source, source.initial())
        for before, after in pairwise(positions):
            assert all(after[segment] > before.get(segment, 0) for segment in after)
        end = positions[-1]
        assert source.latest(end, bounded=False) == end
        assert rows_between(source, end, end) == []

    def test_what_arrives_later_is_read_later_and_nothing_twice(self, origin: Origin) -> None:
        source = origin.open()
        middle = drain(source, source.initial())[-1]
        before = rows_between(source, source.initial(), middle)
        origin.grow()
        end = drain(source, middle)[-1]
        after = rows_between(source, middle, end)
        assert after
        assert rows_between(source, source.initial(), end) == before + after
        assert len({repr(row) for row in before + after}) == len(before + after)

    @pytest.mark.parametrize("bounded", [False, True])
    def test_a_limit_of_the_run_makes_epochs_small_and_changes_no_row(self, origin: Origin, bounded: bool) -> None:
        """design/0014, section 5."""
        source, limit = origin.open(), ReadLimit(1, 1)
        origin.grow()
        if bounded:
            source.freeze()
        positions = drain(source, source.initial(), bounded=bounded, limit=limit)
        epochs = [rows_between(source, *pair) for pair in pairwise(positions)]
        assert sum(map(bool, epochs)) > 1
        whole = origin.open()
        end = drain(whole, whole.initial())[-1]
        if not any("/" in segment for segment in end):  # of several segments each epoch has a part
            assert [row for rows in epochs for row in rows] == rows_between(whole, whole.initial(), end)
        assert positions[-1] == end
        begin = positions[1]
        assert origin.open().latest(begin, bounded=False, limit=limit) == positions[2], "another process cuts the same"

    @pytest.mark.parametrize("parallelism", [1, 2, 7])
    def test_spans_partition_the_interval(self, origin: Origin, parallelism: int) -> None:
        source = origin.open()
        origin.grow()
        start = source.initial()
        end = drain(source, start)[-1]
        rows = rows_between(source, start, end, 1)
        assert rows_between(source, start, end, parallelism) == rows
        spans = source.spans(start, end, parallelism=parallelism)
        assert len(spans) <= 4 * parallelism or len(rows) < 1000
        counts = [span.row_count for span in spans]
        if None not in counts:
            assert sum(count or 0 for count in counts) == len(rows) == source.rows_between(start, end)

    def test_a_row_has_one_id_wherever_epochs_and_tasks_end(self, origin: Origin) -> None:
        """Where the declaration says that rows have numbers (design/0022)."""
        spec = IdentifiedSpec(origin.spec, "row_id", origin.spec.timestamp)
        assert offers(spec.given, NumberedSpec)
        source: Any = IdentifiedSource(origin.open(), spec, "numbered")
        origin.grow()
        positions = drain(source, source.initial())
        expected = rows_between(source, positions[0], positions[-1], 1)
        assert len({row["row_id"] for row in expected}) == len(expected)
        for parallelism, step in ((1, 1), (3, 1), (7, 2)):
            some = [*positions[:-1:step], positions[-1]]
            again: Any = IdentifiedSource(origin.open(), spec, "numbered")
            assert [row for pair in pairwise(some) for row in rows_between(again, *pair, parallelism)] == expected
        for batch in source.read(source.spans(positions[0], positions[-1], parallelism=1)[0]):
            assert batch.schema.equals(spec.schema)
        other: Any = IdentifiedSource(origin.open(), spec, "of another name")
        ids = {row["row_id"] for row in rows_between(other, positions[0], positions[-1])}
        assert not ids & {row["row_id"] for row in expected}

    def test_an_id_leads_back_to_the_position_of_its_row(self, origin: Origin) -> None:
        spec = IdentifiedSpec(origin.spec, "row_id", origin.spec.timestamp)
        source: Any = IdentifiedSource(origin.open(), spec, "numbered")
        positions = drain(source, source.initial())
        assert offers(spec.given, TraceableSpec)
        places = list(spec.given.places(source.source.name, source.source.workspace, positions[-1]))
        for start, end in pairwise(positions):
            for row in rows_between(source, start, end):
                read = ReadId.of(row["row_id"])
                numbers = [(place, read.number(position_key("numbered", place.place))) for place in places]
                ((place, number),) = [(at, n) for at, n in numbers if n is not None and at.begin <= n < at.end]
                position = number if place.position is None else place.position
                assert start.get(place.segment, 0) <= position < end[place.segment]

    def test_a_frozen_source_ends_where_it_was_frozen(self, origin: Origin) -> None:
        source = origin.open()
        source.freeze()
        origin.grow()
        end = drain(source, source.initial(), bounded=True)[-1]
        frozen = rows_between(source, source.initial(), end)
        assert source.latest(end, bounded=True) == end
        later = origin.open()
        everything = rows_between(later, later.initial(), drain(later, later.initial())[-1])
        assert everything[: len(frozen)] == frozen
        assert len(everything) > len(frozen)

    def test_batches_have_the_declared_schema(self, origin: Origin) -> None:
        source = origin.open()
        start = source.initial()
        for span in source.spans(start, source.latest(start, bounded=False), parallelism=2):
            for batch in source.read(span):
                assert batch.schema.equals(origin.spec.schema), (batch.schema, origin.spec.schema)

    def test_sizes_are_known_or_none_and_add_up(self, origin: Origin) -> None:
        source = origin.open()
        start = source.initial()
        end = source.latest(start, bounded=False)
        assert source.size_between(start, start) == 0
        size = source.size_between(start, end)
        assert size is None or size > 0
        newest = source.newest()
        assert newest is None or covers(newest, end)

    def test_committed_rows_leave_the_rest_as_it_was(self, origin: Origin) -> None:
        source = origin.open()
        middle = drain(source, source.initial())[-1]
        origin.grow()
        end = drain(source, middle)[-1]
        rows = rows_between(source, middle, end)
        source.committed(middle)
        assert rows_between(source, middle, end) == rows
        assert rows_between(origin.open(), middle, end) == rows
        source.committed(end)
        origin.grow()
        assert rows_between(source, end, drain(source, end)[-1])

    def test_two_planners_that_race_agree(self, origin: Origin) -> None:
        """An old process that does not know it is dead, and the new one."""
        planners = [origin.open(), origin.open()]
        barrier = threading.Barrier(2)
        found: list[list[SourcePositions]] = [[], []]

        def plan(index: int) -> None:
            barrier.wait()
            for _ in range(5):
                found[index] = drain(planners[index], planners[index].initial())
                if index == 0:
                    origin.grow()

        threads = [threading.Thread(target=plan, args=(index,)) for index in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        start = planners[0].initial()
        ends = [positions[-1] for positions in found]
        shorter = min(ends, key=lambda end: list(end.values()))
        rows = rows_between(planners[0], start, shorter)
        assert rows_between(planners[1], start, shorter) == rows
        assert rows_between(origin.open(), start, shorter) == rows
        assert len({repr(row) for row in rows}) == len(rows)
