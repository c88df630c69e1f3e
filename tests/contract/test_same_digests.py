"""Rows that are written to every kind of sink have the same digests in each, but for what one of them does not keep
(design/0024).
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterator
from contextlib import ExitStack
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.capabilities import offers
from holdfast.connectors.files.sink.spec import FilesSinkSpec
from holdfast.connectors.segments.spec import SegmentsSinkSpec
from holdfast.ports import Comparable, Sink
from holdfast.types import canonical
from holdfast.types.canonical import Digests
from holdfast.values import Losses
from tests.contract.comparable_contract import KINDS, PIPELINE, VALUES, Opened, table_of
from tests.contract.test_segments_contract import Sealer, always
from tests.specs import mysql_spec, postgres_spec, sqlite_spec

pytestmark = pytest.mark.postgres

_FURTHER: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "small": (pa.uint8(), st.integers(0, 255)),
    "large": (pa.uint64(), st.integers(0, 2**63 - 1)),
    "wide": (pa.decimal128(38, 10), st.decimals(-(10**20), 10**20, places=10)),
    "thin": (pa.decimal128(7, 7), st.decimals(Decimal("-0.9"), Decimal("0.9"), places=7)),
    "text": (pa.large_string(), VALUES["word"]),
    "code": (pa.binary(3), st.binary(min_size=3, max_size=3)),
    "midnight": (pa.date64(), VALUES["day"]),
    "second": (pa.timestamp("s"), st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2200, 1, 1))),
    "precise": (pa.timestamp("ns", "UTC"), st.integers(-(2**62), 2**62)),
    "clock": (pa.time32("ms"), st.times().map(lambda time: time.replace(microsecond=time.microsecond // 1000 * 1000))),
    "lasting": (pa.duration("us"), st.timedeltas(dt.timedelta(-10_000), dt.timedelta(10_000))),
    "chosen": (pa.dictionary(pa.int32(), pa.string()), VALUES["word"]),
    "items": (pa.list_(pa.float64()), st.lists(st.none() | st.floats(), max_size=3)),
    "counts": (
        pa.map_(pa.string(), pa.int64()),
        st.dictionaries(VALUES["word"], st.integers(0, 99), max_size=3).map(lambda counts: list(counts.items())),
    ),
}
_SCHEMA = pa.schema([("id", pa.int64()), *KINDS.items(), *((name, kind) for name, (kind, _) in _FURTHER.items())])
_ROWS = st.lists(
    st.fixed_dictionaries({
        **{name: st.none() | each for name, each in VALUES.items()},
        **{name: st.none() | each for name, (_, each) in _FURTHER.items()},
    }),
    max_size=8,
)  # fmt: skip
_SETTINGS = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


class Everywhere:
    """A sink of each kind, new for each example."""

    def __init__(self, dsn: str, above: Path) -> None:
        self._dsn = dsn
        self._above = above
        self._numbers = count()

    def sinks(self) -> Iterator[Sink]:
        name = f"same_{next(self._numbers)}"
        above = os.fspath(self._above / name)
        yield postgres_spec(self._dsn, name).connect(name, PIPELINE, _SCHEMA)
        yield sqlite_spec(f"{above}.db", name).connect(name, PIPELINE, _SCHEMA)
        yield FilesSinkSpec(f"{above}-files").connect(name, PIPELINE, _SCHEMA)
        yield FilesSinkSpec(f"{above}-parts", partition_by=("flag", "text", "day")).connect(name, PIPELINE, _SCHEMA)
        for place, partition_by in (("growing", ("flag", "small")), ("sealed", ())):
            spec = SegmentsSinkSpec(f"{above}-{place}", partition_by=partition_by, seal=(always,))
            sink = spec.connected(name, PIPELINE, _SCHEMA, is_tended=False)
            if place == "sealed":
                sink.__class__ = Sealer
            yield sink


@pytest.fixture
def everywhere(postgres_plain: str, tmp_path: Path) -> Everywhere:
    return Everywhere(postgres_plain, tmp_path)


class InMysql(Everywhere):
    """A table of MySQL for each example: not every machine has a server."""

    def sinks(self) -> Iterator[Sink]:
        name = f"same_{next(self._numbers)}"
        yield mysql_spec(self._dsn, name).connect(name, PIPELINE, _SCHEMA)


@pytest.fixture
def in_mysql(mysql_url: str, tmp_path: Path) -> InMysql:
    return InMysql(mysql_url, tmp_path)


@pytest.mark.slow
@settings(_SETTINGS, max_examples=5)
@given(rows=_ROWS)
def test_digests_are_the_same_in_every_sink(everywhere: Everywhere, rows: list[dict[str, Any]]) -> None:
    compare(everywhere, rows)


@pytest.mark.slow
@settings(_SETTINGS, max_examples=10)
@given(rows=_ROWS)
def test_digests_are_the_same_in_mysql(in_mysql: InMysql, rows: list[dict[str, Any]]) -> None:
    compare(in_mysql, rows)


@pytest.mark.nightly
@settings(_SETTINGS, max_examples=100)
@given(rows=_ROWS)
def test_digests_of_many_rows_are_the_same_in_every_sink(everywhere: Everywhere, rows: list[dict[str, Any]]) -> None:
    compare(everywhere, rows)


def compare(everywhere: Everywhere, rows: list[dict[str, Any]]) -> None:
    written = table_of([{"id": number, **row} for number, row in enumerate(rows)], _SCHEMA)
    with ExitStack() as stack:
        contents = []
        for sink in everywhere.sinks():
            stack.callback(sink.close)
            Opened(sink).publish(written)
            assert offers(sink, Comparable)
            contents.append(stack.enter_context(sink.content()))
        losses: Losses = frozenset().union(*(content.losses for content in contents))
        expected = Digests.empty(2)
        for batch in written.to_batches():
            hashes = canonical.row_hashes(batch, _SCHEMA.names, losses)
            expected.add(canonical.buckets(hashes, 2), hashes)
        for content in contents:
            assert not len(content.digests(2, losses).differing(expected)), content
