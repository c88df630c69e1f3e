"""Rows written in the program: one epoch a list."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from holdfast import read
from holdfast.errors import InvalidPipeline
from holdfast.ports import Source


def opened(rows: Any, schema: str = "id INT, word STRING") -> Source:
    source: Source = pickle.loads(pickle.dumps(read.rows(rows, schema=schema, name="given").node.spec)).open(
        "given", ""
    )
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
def test_a_list_is_an_epoch(rows: Any, epochs: list[list[Any]]) -> None:
    assert epochs_of(opened(rows)) == epochs
    assert epochs_of(opened(rows)) == epochs


def test_a_large_epoch_is_cut_for_several_tasks() -> None:
    source = opened([{"id": number} for number in range(120_000)])
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
