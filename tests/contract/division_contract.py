"""What every source must do that can be read in parts: one list of promises, run against each of them.

The promises are those of ``holdfast.ports.Divisible`` (design/0048).  A test file supplies one fixture::

    TestDivisionContract = DivisionContract

    @pytest.fixture
    def field(tmp_path) -> Field: ...
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pytest

from holdfast.capabilities import offers
from holdfast.connectors.reading.keyed import hold_to_key
from holdfast.limits import ReadLimit
from holdfast.ports import Divisible, Source
from holdfast.positions import SegmentSet, SourcePositions
from holdfast.shards.keys import ShardKey
from tests.contract.division import positions_of_part
from tests.contract.source_contract import drain, rows_between


class Field(Protocol):
    """Something outside that rows come from, in segments; a few rows of several of them have arrived."""

    spec: Any
    """The declaration, as a user writes it."""
    name: str
    workspace: str
    is_fixed: bool
    """Whether what is there when it is first looked at is all that is ever read."""

    def grow(self) -> None:
        """Let some more rows arrive, in more than one of the segments."""

    def add_segment(self) -> bool:
        """Let rows arrive in a new segment; False where there can be none."""


PARTS = 5
"""Segments of a source by hash."""


class Parts:
    """A source divided among three readers: the last one has the rest."""

    def __init__(self, field: Field, cut: int = 0) -> None:
        self.field = field
        self.whole = field.spec.in_parts(PARTS)
        self.known = sorted(self.whole.segments(field.name, field.workspace))
        assert len(self.known) > 3
        named = [frozenset(self.known[cut::3]), frozenset(self.known[cut + 1 :: 3])]
        rest = SegmentSet(named[0] | named[1], is_rest=True)
        self.sets = [*map(SegmentSet, named), rest]

    def source(self, of: SegmentSet | None = None) -> Source:
        spec = self.whole if of is None else self.whole.of_segments(of)
        opened: Source = spec.open(self.field.name, self.field.workspace)
        return opened

    def sources(self) -> list[Source]:
        return [self.source(of) for of in self.sets]


def ends_of(sources: Sequence[Source], starts: Sequence[SourcePositions] | None = None) -> list[SourcePositions]:
    begun = [source.initial() for source in sources] if starts is None else starts
    return [drain(source, start)[-1] for source, start in zip(sources, begun, strict=True)]


def all_rows(sources: Sequence[Source], starts: Sequence[SourcePositions], ends: Sequence[SourcePositions]) -> Any:
    """Return how often each row comes."""
    pairs = zip(sources, starts, ends, strict=True)
    return Counter(repr(row) for source, start, end in pairs for row in rows_between(source, start, end))


def of_whole(whole: Source, start: SourcePositions, end: SourcePositions) -> Any:
    return Counter(map(repr, rows_between(whole, start, end)))


class DivisionContract:
    """The promises.  Each test gets a fresh ``field``."""

    def test_it_says_that_it_can_be_divided(self, field: Field) -> None:
        assert offers(field.spec, Divisible)

    def test_the_union_of_the_parts_is_the_whole_and_no_row_is_in_two(self, field: Field) -> None:
        parts = Parts(field)
        sources = parts.sources()
        starts = [source.initial() for source in sources]
        ends = ends_of(sources)
        found = all_rows(sources, starts, ends)
        assert sum(bool(rows_between(*each)) for each in zip(sources, starts, ends, strict=True)) > 1
        whole = parts.source()
        assert found == of_whole(whole, whole.initial(), drain(whole, whole.initial())[-1])
        assert set(found.values()) == {1}

    def test_positions_of_a_part_are_those_of_the_whole_for_its_segments(self, field: Field) -> None:
        parts = Parts(field)
        whole, sources = parts.source(), parts.sources()
        begun = whole.initial()
        assert [dict(each.initial()) for each in sources] == [
            {segment: at for segment, at in begun.items() if segment in of} for of in parts.sets
        ]
        end = drain(whole, begun)[-1]
        ends = ends_of(sources)
        assert ends == [{segment: at for segment, at in end.items() if segment in of} for of in parts.sets]
        merged = {segment: at for each in ends for segment, at in each.items()}
        assert merged == end
        assert end.keys() <= set(parts.known)

    def test_who_takes_segments_over_reads_on_where_others_were(self, field: Field) -> None:
        """Regrouped: the same positions, whoever reads; nothing is read twice, and nothing is left out."""
        before = Parts(field)
        sources = before.sources()
        limit = ReadLimit(1, 1)
        starts = [source.initial() for source in sources]
        middles = [
            source.latest(start, bounded=False, limit=limit) for source, start in zip(sources, starts, strict=True)
        ]
        first = all_rows(sources, starts, middles)
        if not field.is_fixed:
            field.grow()
        after = Parts(field, cut=1)
        assert {*after.sets} != {*before.sets}
        again = after.sources()
        begun = [positions_of_part(middles, after.known, of) for of in after.sets]
        ends = ends_of(again, begun)
        second = all_rows(again, begun, ends)
        whole = after.source()
        assert first + second == of_whole(whole, whole.initial(), drain(whole, whole.initial())[-1])
        assert second
        assert all_rows(before.sources(), starts, middles) == first, "a replay gives the same rows"

    def test_a_whole_that_was_read_goes_on_in_parts(self, field: Field) -> None:
        """A pipeline that ran as one: where it was is where its parts begin."""
        spec = field.spec
        if getattr(spec, "division", None) is not None:  # a rule for groups of files that came later
            spec = replace(spec, division=None)
        whole: Source = spec.open(field.name, field.workspace)
        start = whole.initial()
        middle = whole.latest(start, bounded=False, limit=ReadLimit(1, 1))
        first = Counter(map(repr, rows_between(whole, start, middle)))
        assert first
        parts = Parts(field)
        if not field.is_fixed:
            field.grow()
        begun = [positions_of_part([middle], parts.known, of) for of in parts.sets]
        sources = parts.sources()
        second = all_rows(sources, begun, ends_of(sources, begun))
        everything: Source = spec.open(field.name, field.workspace)
        assert first + second == of_whole(everything, start, drain(everything, start)[-1])

    def test_a_new_segment_is_in_the_part_that_has_the_rest_alone(self, field: Field) -> None:
        parts = Parts(field)
        sources = parts.sources()
        starts = ends_of(sources)
        if not field.add_segment():
            pytest.skip("its segments never grow")
        ends = ends_of(sources, starts)
        new = {*parts.whole.segments(field.name, field.workspace)} - {*parts.known}
        assert new
        assert [new & end.keys() for end in ends] == [set(), set(), new]
        assert [bool(rows_between(*each)) for each in zip(sources, starts, ends, strict=True)] == [False, False, True]
        again = Parts(field)
        assert {*again.known} == {*parts.known} | new

    def test_parts_that_are_read_at_once_do_not_disturb_each_other(self, field: Field) -> None:
        parts = Parts(field)
        sources = parts.sources()
        starts = [source.initial() for source in sources]
        found: list[SourcePositions] = [dict(start) for start in starts]
        barrier = threading.Barrier(len(sources))

        def plan(index: int) -> None:
            barrier.wait()
            for _ in range(3):
                found[index] = drain(sources[index], found[index])[-1]
                if index == 0 and not field.is_fixed:
                    field.grow()

        threads = [threading.Thread(target=plan, args=(index,)) for index in range(len(sources))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ends = ends_of(sources, found)
        whole = parts.source()
        rows = of_whole(whole, whole.initial(), drain(whole, whole.initial())[-1])
        assert all_rows(sources, starts, ends) == rows
        assert set(rows.values()) == {1}

    def test_a_part_lets_go_of_nothing_that_another_one_reads(self, field: Field) -> None:
        parts = Parts(field)
        first, *others = parts.sources()
        starts = [source.initial() for source in (first, *others)]
        rows = [
            rows_between(source, start, drain(source, start)[-1])
            for source, start in zip(others, starts[1:], strict=True)
        ]
        first.committed(drain(first, starts[0])[-1])
        again = parts.sources()[1:]
        assert [
            rows_between(each, start, drain(each, start)[-1]) for each, start in zip(again, starts[1:], strict=True)
        ] == rows

    def test_a_part_has_the_fingerprint_of_the_whole(self, field: Field) -> None:
        parts = Parts(field)
        for of in parts.sets:
            assert parts.whole.of_segments(of).arguments() == parts.whole.arguments()

    def test_segments_of_the_system_keep_their_names_and_those_by_hash_are_as_many_as_was_said(
        self, field: Field
    ) -> None:
        parts = Parts(field)
        if parts.whole.parts:
            assert len(parts.known) == parts.whole.parts == PARTS
        groups = [parts.whole.group_of(segment) for segment in parts.known]
        assert all(groups)
        for of in parts.sets:
            own = parts.whole.of_segments(of).segments(field.name, field.workspace)
            assert {*own} == {segment for segment in parts.known if segment in of}

    def test_rows_that_are_held_to_their_segments_are_those_of_the_source(self, field: Field, tmp_path: Path) -> None:
        """Cut by groups of segments: nothing is lost, nothing is twice, and each span knows its group (section 7)."""
        parts = Parts(field)
        key = ShardKey(_by(field), str(tmp_path / "keys"))
        key.begin()
        spec = hold_to_key(parts.whole, key)
        assert spec is not parts.whole
        source, whole = spec.open(field.name, field.workspace), parts.source()
        start = source.initial()
        middle = source.latest(start, bounded=False, limit=ReadLimit(1, 1))
        end = drain(source, middle)[-1]
        for begin, until in ((start, middle), (middle, end), (start, end)):
            for parallelism in (1, 3):
                spans = source.spans(begin, until, parallelism=parallelism)
                units = [{unit for unit, _ in span.value.several} for span in spans]
                assert {unit for each in units for unit in each} <= {*map(parts.whole.group_of, parts.known)}
                rows = [row for span in spans for batch in source.read(span) for row in batch.to_pylist()]
                assert Counter(map(repr, rows)) == of_whole(whole, begin, until)


def _by(field: Field) -> str:
    """Return a column that is another one in each row."""
    schema = field.spec.schema
    return next(name for name in ("id", "value", "data", "offset") if name in schema.names)
