"""Rows are held to their segments where they are read: as plain Python says, whoever reads (design/0048, section 7)."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import read
from holdfast.connectors.files.source.division import FileDivision
from holdfast.connectors.reading.bounds import MarkedSource, MarkedSpec
from holdfast.connectors.reading.keyed import ELSEWHERE, KeyedSpec, hold_to_key
from holdfast.connectors.reading.parts import part_of
from holdfast.errors import BadRow
from holdfast.ports import REJECT_COLUMN, Source, Span
from holdfast.positions import SegmentSet, SourcePositions
from holdfast.shards.keys import ShardKey

COLUMNS = "device STRING, v BIGINT"
Row = tuple[str, str | None, int]
"""Group, device, number."""


def files(root: Path, *, rejects: bool = True, columns: str = COLUMNS) -> Any:
    spec: Any = read.files(
        f"{root}/in/**/*.json", schema=columns, name="rows", on_bad_row="reject" if rejects else "fail"
    ).node.spec
    return replace(spec, division=FileDivision())


def key_of(root: Path, by: str = "device") -> ShardKey:
    key = ShardKey(by, str(root / "keys"))
    key.begin()
    return key


class Files:
    """A source of files by directory, of which each is a segment."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.count = 0

    def arrive(self, rows: Sequence[Row]) -> None:
        """One file for each run of rows of a group, in their order."""
        for row in rows:
            below = self.root / "in" / row[0]
            below.mkdir(parents=True, exist_ok=True)
            aside = below / f"_{self.count}"
            aside.write_text(json.dumps({"device": row[1], "v": row[2]}) + "\n")
            os.utime(aside, (self.count, self.count))
            os.rename(aside, below / f"{self.count:06}.json")
            self.count += 1


@dataclass
class Reader:
    """A reader of a part, in a process of its own as far as claims go."""

    spec: Any
    root: Path

    def __post_init__(self) -> None:
        self.source: Source = self.spec.open("rows", str(self.root / "sources" / "rows"))
        self.at: SourcePositions = self.source.initial()

    def epoch(self, parallelism: int = 1) -> tuple[list[tuple[Any, Any]], list[str]]:
        """Read what is there; return the good rows by value, and the reasons of the others."""
        end = self.source.latest(self.at, bounded=False)
        found = rows_of(self.source, self.at, end, parallelism)
        self.at = end
        return found


def rows_of(
    source: Source, start: SourcePositions, end: SourcePositions, parallelism: int = 1
) -> tuple[list[tuple[Any, Any]], list[str]]:
    good: list[tuple[Any, Any]] = []
    reasons: list[str] = []
    for span in source.spans(start, end, parallelism=parallelism):
        for batch in source.read(span):
            for row in batch.to_pylist():
                reject = row.get(REJECT_COLUMN)
                if reject is None:
                    good.append((row["device"], row["v"]))
                else:
                    reasons.append(reject["reason"])
    return good, reasons


GROUPS = ("a", "b", "c", "d")
ROWS = st.lists(st.tuples(st.sampled_from(GROUPS), st.sampled_from([None, *"xyz"])), max_size=12)


class Oracle:
    """Plain Python: a key is of the group that came first to be read."""

    def __init__(self) -> None:
        self.of: dict[str | None, str] = {}

    def epoch(self, rows: Sequence[Row]) -> tuple[Counter[Any], Counter[Any]]:
        good: Counter[Any] = Counter()
        bad: Counter[Any] = Counter()
        for group, device, number in sorted(rows, key=lambda row: row[0]):  # segments are read one after the other
            if self.of.setdefault(device, group) == group:
                good[device, number] += 1
            else:
                bad[f"{ELSEWHERE}: {device!r} of 'device' is of segment {self.of[device]!r}, and came in segment "
                    f"{group!r}"] += 1  # fmt: skip
        return good, bad


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(epochs=st.lists(st.tuples(st.integers(0, 1), ROWS), max_size=5))
def test_readers_of_parts_give_what_plain_python_says_and_give_it_again(
    epochs: list[tuple[int, list[tuple[str, str | None]]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("rows")
    key, oracle, there = key_of(root), Oracle(), Files(root)
    (root / "in").mkdir()
    sets = [SegmentSet(frozenset("ab")), SegmentSet(frozenset("ab"), is_rest=True)]
    readers = [Reader(hold_to_key(part_of(files(root), each), key), root) for each in sets]
    waiting: list[list[Row]] = [[], []]
    spans = []
    numbers: Iterator[int] = iter(range(1000))
    for who, rows in epochs:
        made = [(group, device, next(numbers)) for group, device in rows]
        there.arrive(made)
        for row in made:
            waiting[row[0] in "cd"].append(row)
        start = readers[who].at
        good, bad = readers[who].epoch()
        assert (Counter(good), Counter(bad)) == oracle.epoch(waiting[who])
        waiting[who] = []
        spans.append((who, start, readers[who].at, good, bad))
    for who, start, end, good, bad in spans:  # a replay, by another process
        again = Reader(readers[who].spec, root)
        assert rows_of(again.source, start, end) == (good, bad)


def opened(root: Path, rows: Sequence[Row], **options: Any) -> tuple[KeyedSpec, Source, SourcePositions]:
    Files(root).arrive(rows)
    spec = hold_to_key(files(root, **options), key_of(root))
    assert isinstance(spec, KeyedSpec)
    source = spec.open("rows", str(root / "sources"))
    return spec, source, source.latest(source.initial(), bounded=False)


def test_a_rejected_row_names_both_segments_and_leaves_nothing_else(tmp_path: Path) -> None:
    _, source, end = opened(tmp_path, [("left", "x", 1), ("right", "x", 2), ("right", "y", 3)])
    batches = [batch for span in source.spans({}, end, parallelism=1) for batch in source.read(span)]
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [row for row in rows if row[REJECT_COLUMN] is not None] == [
        {
            "device": None,
            "v": None,
            REJECT_COLUMN: {
                "reason": f"{ELSEWHERE}: 'x' of 'device' is of segment 'left', and came in segment 'right'",
                "raw": '{"device": "x", "v": 2}',
                "position": "rows:right",
            },
        }
    ]
    assert all(batch.schema == batches[0].schema for batch in batches)


def test_a_row_of_another_segment_ends_the_run_where_nobody_reads_rejects(tmp_path: Path) -> None:
    _, source, end = opened(tmp_path, [("left", "x", 1), ("right", "x", 2)], rejects=False)
    with pytest.raises(BadRow, match="'x' of 'device' is of segment 'left', and came in segment 'right'") as caught:
        rows_of(source, {}, end)
    assert "on_bad_row" in caught.value.do


def test_rows_that_could_not_be_read_claim_nothing(tmp_path: Path) -> None:
    spec, source, _ = opened(tmp_path, [("left", "x", 1)])
    (tmp_path / "in" / "left" / "9.json").write_text('{"device": "y", "v": "no"}\n')
    end = source.latest({}, bounded=False)
    good, bad = rows_of(source, {}, end)
    assert good == [("x", 1)]
    assert len(bad) == 1
    assert spec.key.open().count == 1, "neither 'y', nor the null in its place"


@pytest.mark.parametrize("parallelism", [1, 2, 3, 8])
def test_spans_are_as_many_as_asked_for_and_each_segment_is_in_order(tmp_path: Path, parallelism: int) -> None:
    rows: list[Row] = [(f"g{number % 5}", f"d{number % 5}", number) for number in range(50)]
    _, source, end = opened(tmp_path, rows)
    spans = source.spans({}, end, parallelism=parallelism)
    assert len(spans) <= max(parallelism, 5)
    good, bad = rows_of(source, {}, end, parallelism)
    assert bad == []
    for group in range(5):
        assert [v for device, v in good if device == f"d{group}"] == list(range(group, 50, 5))
    assert len(source.spans({}, end, parallelism=2)) == 2


@dataclass
class MarkedRows:
    """A source of one segment with bound rows, and a bound of its own in its positions."""

    def initial(self) -> SourcePositions:
        return {"s": 0}

    def spans(self, start: SourcePositions, end: SourcePositions, *, parallelism: int) -> Sequence[Span]:
        rows = list(range(int(start.get("s", 0)), int(end["s"])))
        said = [Span("bound", 1, 8)] if end.get("@bound") != start.get("@bound") else []
        return ([Span(rows, len(rows), 8 * len(rows))] if rows else []) + said

    def read(self, span: Span) -> Iterator[pa.RecordBatch]:
        is_bound = span.value == "bound"
        numbers = [7] if is_bound else span.value
        yield pa.record_batch(
            {
                "device": pa.array([None if is_bound else f"d{number}" for number in numbers], pa.string()),
                "t": numbers,
                "is_bound": [is_bound] * len(numbers),
            }
        )


@dataclass(frozen=True)
class MarkedRowsSpec:
    kind: str = "marked"
    timestamp: str = "t"
    rejects: bool = False

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([("device", pa.string()), ("t", pa.int64()), ("is_bound", pa.bool_())])

    def arguments(self) -> Mapping[str, Any]:
        return {}

    def open(self, name: str, workspace: str) -> Any:
        return MarkedRows()


def test_bound_rows_have_no_key_and_pass_with_the_mark(tmp_path: Path) -> None:
    key = key_of(tmp_path)
    spec: Any = hold_to_key(MarkedSpec(MarkedRowsSpec(), "is_bound"), key)  # type: ignore[arg-type]
    assert isinstance(spec, MarkedSpec)
    source = spec.open("rows", "")
    assert isinstance(source, MarkedSource)
    spans = source.spans({"s": 0}, {"s": 2, "@bound": 7}, parallelism=1)
    rows = [row for span in spans for batch in source.read_marked(span) for row in batch.to_pylist()]
    assert rows == [
        {"device": "d0", "t": 0, "is_bound": False},
        {"device": "d1", "t": 1, "is_bound": False},
        {"device": None, "t": 7, "is_bound": True},
    ]
    assert key.open().count == 2
    assert key.open().units == ["rows"], "what cannot be divided is one unit, under the name of the source"


def test_a_source_that_is_not_divided_yet_claims_nothing(tmp_path: Path) -> None:
    spec = replace(files(tmp_path), division=None)
    assert hold_to_key(spec, key_of(tmp_path)) is spec
    assert hold_to_key(files(tmp_path), None) == files(tmp_path)


def test_a_narrowed_source_still_reads_the_key(tmp_path: Path) -> None:
    Files(tmp_path).arrive([("left", "x", 1), ("right", "x", 2)])
    spec = hold_to_key(files(tmp_path), key_of(tmp_path))
    assert isinstance(spec, KeyedSpec)
    source = spec.narrowed({"v"}).open("rows", str(tmp_path / "sources"))
    end = source.latest({}, bounded=False)
    rows = [row for span in source.spans({}, end, parallelism=1) for b in source.read(span) for row in b.to_pylist()]
    assert [row["v"] for row in rows if row[REJECT_COLUMN] is None] == [1]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("BIGINT", [1, 2, None]),
        ("DOUBLE", [0.5, float("nan"), None]),
        ("TIMESTAMP", ["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", None]),
        ("DECIMAL(9, 2)", ["1.50", "2.00", None]),
        ("BOOLEAN", [True, False, None]),
        ("DATE", ["2026-01-01", "2026-01-02", None]),
    ],
)
def test_keys_of_any_type_are_told_apart_and_rejected(tmp_path: Path, kind: str, values: list[Any]) -> None:
    for group in ("left", "right"):
        (tmp_path / "in" / group).mkdir(parents=True)
        lines = [json.dumps({"device": value, "v": at}) for at, value in enumerate(values)]
        (tmp_path / "in" / group / "0.json").write_text("\n".join(lines) + "\n")
    spec = hold_to_key(files(tmp_path, columns=f"device {kind}, v BIGINT"), key_of(tmp_path))
    source = spec.open("rows", str(tmp_path / "sources"))
    end = source.latest({}, bounded=False)
    good, bad = rows_of(source, {}, end)
    assert [v for _, v in good] == [0, 1, 2]
    assert len(bad) == 3
    assert all("is of segment 'left', and came in segment 'right'" in reason for reason in bad)
