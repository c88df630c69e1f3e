"""What a sink must do that can be compared with what it should hold: one list of promises, run against each
(design/0024).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import faults
from holdfast.capabilities import offers
from holdfast.errors import Fenced
from holdfast.ports import (
    HASH_COLUMN,
    PLACE_COLUMN,
    Carried,
    Comparable,
    EpochRecord,
    Held,
    Publication,
    Repair,
    Rewindable,
    RunIdentity,
    Sink,
)
from holdfast.types import canonical
from holdfast.types.canonical import Digests

PIPELINE = "compared"

KINDS: dict[str, pa.DataType] = {
    "flag": pa.bool_(),
    "tiny": pa.int8(),
    "number": pa.int64(),
    "natural": pa.uint32(),
    "short": pa.float32(),
    "value": pa.float64(),
    "price": pa.decimal128(12, 2),
    "word": pa.string(),
    "raw": pa.binary(),
    "day": pa.date32(),
    "at": pa.timestamp("us", "UTC"),
    "local": pa.timestamp("us"),
    "time": pa.time64("us"),
    "nested": pa.struct([("a", pa.list_(pa.int64())), ("b", pa.string())]),
}
SCHEMA = pa.schema([("id", pa.int64()), *KINDS.items()])

_DAYS = st.dates(dt.date(1, 1, 2), dt.date(9998, 12, 30))
_MOMENTS = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9998, 12, 30))
_TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "flag": st.booleans(),
    "tiny": st.integers(-128, 127),
    "number": st.integers(-(2**63), 2**63 - 1),
    "natural": st.integers(0, 2**32 - 1),
    "short": st.floats(width=32),
    "value": st.floats(),
    "price": st.decimals(Decimal(-(10**9)), Decimal(10**9), places=2),
    "word": _TEXTS,
    "raw": st.binary(max_size=30),
    "day": _DAYS,
    "at": _MOMENTS.map(lambda moment: moment.replace(tzinfo=dt.UTC)),
    "local": _MOMENTS,
    "time": st.times(),
    "nested": st.fixed_dictionaries({"a": st.none() | st.lists(st.none() | st.integers(-(2**53), 2**53), max_size=3),
                                     "b": st.none() | _TEXTS}),
}  # fmt: skip
_SIMPLE = {
    "flag": True, "tiny": 1, "number": 1, "natural": 1, "short": 1.5, "value": 1.5, "price": Decimal("1.50"),
    "word": "word", "raw": b"raw", "day": dt.date(2026, 1, 2), "at": dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
    "local": dt.datetime(2026, 1, 2), "time": dt.time(1, 2), "nested": {"a": [1], "b": "x"},
}  # fmt: skip

Values = dict[str, Any]


class ComparableTarget(Protocol):
    """One system under test."""

    def fresh(self, schema: pa.Schema) -> Sink:
        """Return a sink connected to a new table or directory that rows are added to."""

    def again(self) -> Sink:
        """Return another sink connected to the last one."""


class ComparableTables(ComparableTarget, Protocol):
    """One database under test."""

    def fresh(
        self, schema: pa.Schema, key: tuple[str, ...] = (), delete: str | None = None, rewindable: bool = False
    ) -> Sink:
        """Return a sink connected to a new table, append or upsert."""


@dataclass
class Targets:
    """New ones, each time; their sinks are closed in the end."""

    sinks: list[Sink] = field(default_factory=list, init=False, repr=False)
    connect: Callable[[], Sink] | None = field(default=None, init=False, repr=False)

    def connected(self, connect: Callable[[], Sink]) -> Sink:
        """Return the first sink of a new target."""
        self.connect = connect
        return self.again()

    def again(self) -> Sink:
        assert self.connect is not None
        self.sinks.append(self.connect())
        return self.sinks[-1]

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()


class Opened:
    """A sink that a run has opened, and its epochs."""

    def __init__(self, sink: Sink, generation: int = 1) -> None:
        self.sink = sink
        self.expected = sink.open(RunIdentity(PIPELINE, generation))
        self.generation = generation
        self.epoch = self.expected.epoch

    def publish(self, rows: pa.Table) -> None:
        self.epoch += 1
        record = EpochRecord(PIPELINE, self.epoch, self.generation, {"source": {"": self.epoch}})
        self.sink.publish([Publication(record, (Carried(rows),))], self.expected)
        self.expected = Held(self.epoch, self.generation, record.positions)

    def content(self) -> Any:
        assert offers(self.sink, Comparable)
        return self.sink.content()

    def close(self) -> None:
        self.sink.close()


def table_of(rows: Sequence[Values], schema: pa.Schema = SCHEMA) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema)


def digests_of(rows: pa.Table, bits: int, content: Any, by: Sequence[str] = ()) -> Digests:
    """Return the digests that rows have, without what the content does not keep."""
    found = Digests.empty(bits)
    for batch in rows.to_batches():
        hashes, divided = canonical.hashes(batch, content.schema.names, by, content.losses)
        found.add(canonical.buckets(divided, bits), hashes)
    return found


def simple(number: int, **changed: Any) -> Values:
    return {"id": number, **_SIMPLE, **changed}


class ComparableContract:
    """The promises."""

    @pytest.mark.slow
    @settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(rows=st.lists(st.fixed_dictionaries({name: st.none() | each for name, each in VALUES.items()}), max_size=8))
    def test_digests_are_those_of_the_rows_that_were_written(
        self, comparable: ComparableTarget, rows: list[Values]
    ) -> None:
        """Whatever the system makes of a value."""
        written = table_of([{"id": number, **row} for number, row in enumerate(rows)])
        opened = Opened(comparable.fresh(SCHEMA))
        opened.publish(written)
        with opened.content() as content:
            assert content.schema.equals(SCHEMA)
            assert content.held.epoch == 1
            for bits in (0, 3):
                assert not len(content.digests(bits).differing(digests_of(written, bits, content)))
            fetched = list(content.rows(3, range(8)))
            losses = content.losses
        opened.close()
        for batch in fetched:
            assert list(canonical.row_hashes(batch, SCHEMA.names, losses)) == batch.column(HASH_COLUMN).to_pylist()
        count = sum(batch.num_rows for batch in fetched)
        assert (
            count == len({place for batch in fetched for place in batch.column(PLACE_COLUMN).to_pylist()}) == len(rows)
        )

    def test_an_empty_sink_has_digests_of_nothing(self, comparable: ComparableTarget) -> None:
        opened = Opened(comparable.fresh(SCHEMA))
        with opened.content() as content:
            assert not content.digests(4).counts.any()
            assert list(content.rows(4, range(16))) == []
        opened.close()

    @pytest.mark.parametrize("by", [(), ("word", "value"), ("id",)])
    def test_only_rows_of_the_buckets_are_fetched(self, comparable: ComparableTarget, by: tuple[str, ...]) -> None:
        rows = table_of([simple(number, word=str(number % 50)) for number in range(200)])
        opened = Opened(comparable.fresh(SCHEMA))
        opened.publish(rows)
        with opened.content() as content:
            assert content.row_count() in (0, 200), "an estimate: of a table that nobody has analysed there is none"
            found = content.digests(4, by=by)
            assert not len(found.differing(digests_of(rows, 4, content, by)))
            fetched = [batch for batch in content.rows(4, [3, 9], by=by) if batch.num_rows]
            assert sum(batch.num_rows for batch in fetched) == found.counts[3] + found.counts[9] > 0
            for batch in fetched:
                hashes, divided = canonical.hashes(batch, content.schema.names, by, content.losses)
                assert set(canonical.buckets(divided, 4)) <= {3, 9}
                assert batch.column(HASH_COLUMN).to_pylist() == list(hashes)
        opened.close()

    def test_a_view_is_of_one_moment(self, comparable: ComparableTarget) -> None:
        opened = Opened(comparable.fresh(SCHEMA))
        opened.publish(table_of([simple(1)]))
        with opened.content() as content:
            opened.publish(table_of([simple(2)]))
            assert (content.held.epoch, int(content.digests(0).counts[0])) == (1, 1)
            assert [batch.column("id").to_pylist() for batch in content.rows(0, [0])] == [[1]]
        with opened.content() as content:
            assert (content.held.epoch, int(content.digests(0).counts[0])) == (2, 2)
        opened.close()

    def test_what_is_repaired_is_as_it_should_be(self, comparable: ComparableTarget) -> None:
        """Rows lacking, rows too many, equal rows of which one is too many."""
        opened = Opened(comparable.fresh(SCHEMA))
        expected = table_of([simple(number % 50) for number in range(60)])
        opened.publish(pa.concat_tables([expected.slice(3), table_of([simple(7), simple(7), simple(99, word=None)])]))
        assert repaired(opened, expected) == 6
        with opened.content() as content:
            assert not len(content.digests(4).differing(digests_of(expected, 4, content)))
            assert content.held.epoch == 1
        assert repaired(opened, expected) == 0
        opened.publish(table_of([simple(100)]))
        with opened.content() as content:
            after = pa.concat_tables([expected, table_of([simple(100)])])
            assert not len(content.digests(4).differing(digests_of(after, 4, content)))
        opened.close()

    def test_nothing_is_repaired_where_something_was_published_meanwhile(self, comparable: ComparableTarget) -> None:
        opened = Opened(comparable.fresh(SCHEMA))
        opened.publish(table_of([simple(1)]))
        repair = repair_of(opened, table_of([simple(3)]))
        opened.publish(table_of([simple(2)]))
        assert opened.sink.repair(repair) is None  # type: ignore[attr-defined]
        with opened.content() as content:
            both = table_of([simple(1), simple(2)])
            assert not len(content.digests(4).differing(digests_of(both, 4, content)))
        opened.close()

    def test_nothing_is_repaired_twice(self, comparable: ComparableTarget) -> None:
        """A place may hold another row by then, or none."""
        opened = Opened(comparable.fresh(SCHEMA))
        opened.publish(table_of([simple(1), simple(2)]))
        expected = table_of([simple(1), simple(3)])
        repair = repair_of(opened, expected)
        assert opened.sink.repair(repair) == 2  # type: ignore[attr-defined]
        assert opened.sink.repair(repair) is None  # type: ignore[attr-defined]
        with opened.content() as content:
            assert not len(content.digests(4).differing(digests_of(expected, 4, content)))
        opened.close()

    def test_a_run_that_was_replaced_repairs_nothing(self, comparable: ComparableTarget) -> None:
        """Whoever replaced it has repaired the sink: that moves no epoch, and both found the same row to be missing."""
        opened = Opened(comparable.fresh(SCHEMA))
        opened.publish(table_of([simple(1)]))
        expected = table_of([simple(1), simple(2)])
        other = Opened(comparable.again(), generation=2)
        repair = repair_of(opened, expected)  # as its view says: the ledger is of the other one already
        assert repaired(other, expected) == 1
        with pytest.raises(Fenced):
            opened.sink.repair(repair)  # type: ignore[attr-defined]
        assert digested(other, expected)
        other.close()
        opened.close()

    @pytest.mark.slow
    def test_a_repair_that_dies_is_whole_or_nothing(self, comparable: ComparableTarget) -> None:
        """At each of its points: what is left can be looked at, repaired and written to."""
        reached: list[str] = []
        rows, expected = table_of([simple(1), simple(2), simple(2)]), table_of([simple(2), simple(3)])
        dies_at = 0
        while dies_at <= len(reached):
            opened = Opened(comparable.fresh(SCHEMA))
            opened.publish(rows)
            reached = []
            dies_at += 1
            with dying(reached, dies_at):
                assert opened.sink.repair(repair_of(opened, expected)) == 3  # type: ignore[attr-defined]
            opened.close()
            opened = Opened(comparable.again(), generation=2)
            assert opened.epoch == 1
            assert digested(opened, rows) or digested(opened, expected)
            assert repaired(opened, expected) in (0, 3)
            assert digested(opened, expected)
            opened.publish(table_of([simple(4)]))
            assert digested(opened, pa.concat_tables([expected, table_of([simple(4)])]))
            opened.close()
        assert len(reached) == dies_at - 1 > 0


class ComparableTablesContract:
    """The promises of what also has upserts."""

    def test_digests_of_an_upsert_go_by_its_key(self, comparable: ComparableTables) -> None:
        opened = Opened(comparable.fresh(SCHEMA, ("id", "word")))
        opened.publish(table_of([simple(number, word=str(number % 3)) for number in range(100)]))
        opened.publish(table_of([simple(7, word="1", tiny=2)]))
        expected = table_of([simple(n, word=str(n % 3), tiny=2 if n == 7 else 1) for n in range(100)])
        with opened.content() as content:
            assert content.key == ("id", "word")
            found = content.digests(6, by=content.key)
            assert not len(found.differing(digests_of(expected, 6, content, content.key)))
            changed = digests_of(table_of([simple(n, word=str(n % 3)) for n in range(100)]), 6, content, content.key)
            assert len(found.differing(changed)) == 1
            assert list(found.counts) == list(changed.counts)
        opened.close()

    def test_an_upsert_is_repaired_by_its_key(self, comparable: ComparableTables) -> None:
        opened = Opened(comparable.fresh(SCHEMA, ("id",)))
        opened.publish(table_of([simple(number, tiny=number % 2) for number in range(1, 51)]))
        expected = table_of([simple(number) for number in range(50)])
        assert repaired(opened, expected) == 25 + 25
        with opened.content() as content:
            assert not len(content.digests(4).differing(digests_of(expected, 4, content)))
        opened.close()

    def test_an_upsert_whose_rows_may_be_deleted_is_repaired(self, comparable: ComparableTables) -> None:
        schema = pa.schema([*SCHEMA, ("gone", pa.bool_())])
        opened = Opened(comparable.fresh(schema, ("id",), delete="gone"))
        flags = [False, False, True, None]
        opened.publish(table_of([simple(n, gone=gone) for n, gone in enumerate(flags)], schema))
        with opened.content() as content:
            assert content.schema.equals(SCHEMA)
        assert digested(opened, table_of([simple(0), simple(1), simple(3)]))
        expected = table_of([simple(1), simple(2), simple(3, word=None)])
        assert repaired(opened, expected) == 4
        assert digested(opened, expected)
        opened.close()

    def test_no_rewind_goes_to_before_a_repair(self, comparable: ComparableTables) -> None:
        """Which epoch a row that was written belongs to is not known."""
        opened = Opened(comparable.fresh(SCHEMA, rewindable=True))
        opened.publish(table_of([simple(1)]))
        opened.publish(table_of([simple(2)]))
        assert repaired(opened, table_of([simple(1), simple(3)])) == 2
        assert offers(opened.sink, Rewindable)
        assert opened.sink.withdrawal({"source": {"": 1}}).obstacle
        opened.publish(table_of([simple(4)]))
        back = EpochRecord(PIPELINE, 4, 1, {"source": {"": 2}}, rewound_to=2)
        opened.sink.publish([Publication(back, ())], opened.expected)
        assert digested(opened, table_of([simple(1), simple(3)]))
        opened.close()


class Died(BaseException):
    """What ends a repair at a point."""


@contextmanager
def dying(reached: list[str], at: int) -> Iterator[None]:
    """Note the points that are reached, and die at one of them."""

    def hook(point: str, epoch: int) -> None:
        reached.append(point)
        if len(reached) == at:
            raise Died

    faults.install(hook)
    try:
        yield
    except Died:
        pass
    finally:
        faults.install(None)


def digested(opened: Opened, expected: pa.Table) -> bool:
    """Return whether the digests of a sink are those of rows."""
    with opened.content() as content:
        return not len(content.digests(4).differing(digests_of(expected, 4, content)))


def repaired(opened: Opened, expected: pa.Table) -> int | None:
    """Compare a sink with rows and apply the differences."""
    return opened.sink.repair(repair_of(opened, expected))  # type: ignore[attr-defined]


def repair_of(opened: Opened, expected: pa.Table) -> Repair:
    """Return the rows that a sink lacks, and those that it has too many: a comparison of few rows, one by one."""
    with opened.content() as content:
        lacking: dict[int, list[int]] = {}
        wanted = expected.combine_chunks().to_batches()[0]
        for number, each in enumerate(canonical.row_hashes(wanted, content.schema.names, content.losses).tolist()):
            lacking.setdefault(each, []).append(number)
        places = [pa.field(PLACE_COLUMN, pa.binary()), pa.field(HASH_COLUMN, pa.uint64())]
        found = pa.Table.from_batches(content.rows(0, [0]), pa.schema([*content.schema, *places]))
        extra = []
        for number, each in enumerate(found.column(HASH_COLUMN).to_pylist()):
            if lacking.get(each):
                lacking[each].pop()
            else:
                extra.append(number)
        missing = sorted(number for numbers in lacking.values() for number in numbers)
        return Repair(content.held, found.take(np.array(extra, np.int64)), expected.take(np.array(missing, np.int64)))
