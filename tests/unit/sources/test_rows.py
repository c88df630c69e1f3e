"""Rows written in the program: one epoch a list."""

from __future__ import annotations

import pickle
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast import read
from holdfast.errors import InvalidPipeline
from holdfast.ports import Source


def opened(rows: Any, workspace: Path, schema: Any = "id INT, word STRING") -> Source:
    spec = read.rows(rows, schema=schema, name="given").node.spec
    source: Source = pickle.loads(pickle.dumps(spec)).open("given", str(workspace))
    return source


def epochs_of(source: Source) -> list[list[Any]]:
    start, epochs = source.initial(), []
    while (end := source.latest(start, bounded=False)) != start:
        spans = source.spans(start, end, parallelism=2)
        epochs.append([row for span in spans for batch in source.read(span) for row in batch.to_pylist()])
        assert source.rows_between(start, end) == len(epochs[-1])
        start = end
    return epochs


@pytest.mark.parametrize(
    ("rows", "epochs"),
    [
        ([], []),
        ([{"id": 1}], [[{"id": 1, "word": None}]]),
        ([[{"id": 1}], [], [{"id": 2, "word": "x"}]], [[{"id": 1, "word": None}], [], [{"id": 2, "word": "x"}]]),
        ([[]], [[]]),
    ],
)
def test_a_list_is_an_epoch(rows: Any, epochs: list[list[Any]], tmp_path: Path) -> None:
    assert epochs_of(opened(rows, tmp_path)) == epochs
    assert epochs_of(opened(rows, tmp_path)) == epochs


@pytest.mark.slow
def test_a_large_epoch_is_cut_for_several_tasks(tmp_path: Path) -> None:
    source = opened([{"id": number} for number in range(120_000)], tmp_path)
    spans = source.spans({"rows": 0}, {"rows": 1}, parallelism=2)
    assert len(spans) == 2
    assert [row["id"] for span in spans for b in source.read(span) for row in b.to_pylist()] == list(range(120_000))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"id": "x"}], "column 'id'"),
        ([{"nonsense": 1}], "'nonsense', which is no column"),
        ([{"word": "x"}], "lacks column 'id'"),
        ([[1]], "row 0 is a int"),
    ],
)
def test_rows_that_do_not_fit_are_refused_while_building(rows: Any, said: str) -> None:
    with pytest.raises(InvalidPipeline, match=said):
        read.rows(rows, schema="id INT NOT NULL, word STRING", name="given")


def test_the_fingerprint_tells_other_rows() -> None:
    one, two = (read.rows([{"id": number}], schema="id INT", name="given").node.arguments() for number in (1, 2))
    assert one != two


def lists(*ids: int) -> list[list[dict[str, int]]]:
    return [[{"id": number}] for number in ids]


def given(count: int, source: Source) -> None:
    """Give the first lists out, one epoch each."""
    for number in range(count):
        end = source.latest({"rows": number}, bounded=False)
        source.spans({"rows": number}, end, parallelism=1)


@pytest.mark.parametrize("rows", [lists(1, 20, 3), lists(1), [[{"id": 1}, {"id": 2}], [], [{"id": 3}]]])
def test_rows_that_were_given_and_changed_are_noticed(rows: Any, tmp_path: Path) -> None:
    given(2, opened(lists(1, 2, 3), tmp_path))
    edited = opened(rows, tmp_path)
    with pytest.raises(InvalidPipeline, match="of the rows of source 'given' has changed since it was given"):
        edited.latest({"rows": 2}, bounded=False)
    with pytest.raises(InvalidPipeline, match="put new ones after them"):
        opened(rows, tmp_path).spans({"rows": 0}, {"rows": 2}, parallelism=1)


def test_rows_behind_those_that_were_given_may_change(tmp_path: Path) -> None:
    given(1, opened(lists(1, 2), tmp_path))
    edited = opened(lists(1, 20, 3), tmp_path)
    planner = opened(lists(1, 20, 3), tmp_path)
    edited.spans({"rows": 0}, {"rows": 1}, parallelism=1)  # the replay, before the planner puts anything new down
    given(3, planner)
    edited.spans({"rows": 1}, {"rows": 3}, parallelism=1)
    with pytest.raises(InvalidPipeline, match="list 1 of"):
        opened(lists(1, 2), tmp_path).latest({"rows": 2}, bounded=False)


def test_the_digests_are_written_once_for_a_program(tmp_path: Path) -> None:
    given(3, opened(lists(1, 2, 3), tmp_path))
    given(3, opened(lists(1, 2, 3), tmp_path))
    assert [path.name for path in tmp_path.glob("*.rows")] == ["000000.rows"]


def test_a_checkpoint_without_digests_is_believed(tmp_path: Path) -> None:
    given_before = opened(lists(1, 2, 3), tmp_path / "new")
    assert given_before.latest({"rows": 2}, bounded=False) == {"rows": 3}


def test_a_process_that_only_reads_needs_no_workspace(tmp_path: Path) -> None:
    source = opened(lists(1, 2), tmp_path)
    (span,) = source.spans({"rows": 1}, {"rows": 2}, parallelism=1)
    reader: Source = pickle.loads(pickle.dumps(opened(lists(1, 2), tmp_path / "elsewhere")))
    assert [row["id"] for batch in reader.read(span) for row in batch.to_pylist()] == [2]
    assert not (tmp_path / "elsewhere").exists()


def test_text_is_a_time_in_timestamp_columns(tmp_path: Path) -> None:
    texts = ["2026-01-01T06:00:00Z", "2026-01-01 07:00:00+01:00", "2026-01-01T06:00", None]
    for schema in ("at TIMESTAMP", pa.schema([("at", pa.timestamp("us", "UTC"))])):
        source = opened([{"at": text} for text in texts], tmp_path, schema)
        found = [row["at"] and row["at"].replace(tzinfo=None) for row in epochs_of(source)[0]]
        assert found == [datetime(2026, 1, 1, 6), datetime(2026, 1, 1, 6), datetime(2026, 1, 1, 6), None]
    with pytest.raises(InvalidPipeline, match="at='noon' is not a time") as refused:
        read.rows([{"at": "noon"}], schema="at TIMESTAMP")
    assert 'at="2026-01-01T06:00Z"' in refused.value.do
