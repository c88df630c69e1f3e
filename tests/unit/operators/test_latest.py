"""``latest`` and ``combine``: one row per key, by event time."""

import random

import pytest

import holdfast as hf
from holdfast.testing import drive


def positions(schema="id STRING, t BIGINT, x BIGINT", name="positions"):
    return hf.read.rows([], schema=schema, timestamp="t", name=name)


def row(key, t, x):
    return {"id": key, "t": t, "x": x}


def test_latest_emits_the_last_row_of_each_key_that_changed():
    epochs = [[row("a", 5, 1), row("b", 3, 9), row("a", 7, 2)], [row("a", 6, 3), row("b", 8, None)]]
    first, second = drive(hf.latest(positions(), by="id", name="now"), {"positions": epochs})
    assert first == [row("a", 7, 2), row("b", 3, 9)]
    assert row("b", 8, None) in second  # a null is a value
    assert all(each["x"] == 2 for each in second if each["id"] == "a")  # a row of the past changes nothing


def test_combine_keeps_the_last_value_of_each_column():
    names = positions("id STRING, t BIGINT, name STRING", "names")
    scores = positions("id STRING, score BIGINT, t BIGINT", "scores")
    stream = hf.combine(names, scores, by="id", name="both")
    assert stream.columns == ("id", "t", "name", "score")
    epochs = {
        "names": [[{"id": "a", "t": 1, "name": "Ann"}], [{"id": "a", "t": 9, "name": None}]],
        "scores": [[], [{"id": "a", "t": 5, "score": 7}, {"id": "b", "t": 2, "score": 3}]],
    }
    first, second = drive(stream, epochs)
    assert first == [{"id": "a", "t": 1, "name": "Ann", "score": None}]
    assert second == [{"id": "a", "t": 9, "name": "Ann", "score": 7}, {"id": "b", "t": 2, "name": None, "score": 3}]


@pytest.mark.parametrize("seed", range(4))
def test_what_is_upserted_at_last_is_the_same_however_rows_arrive(seed):
    chance = random.Random(seed)
    rows = [row(chance.choice("abc"), t, t) for t in range(30)]
    wanted = {each["id"]: each for each in rows}
    chance.shuffle(rows)
    cut = chance.randrange(30)
    stream = hf.latest(positions(), by="id", name="now")
    found = drive(stream, {"positions": [rows[:cut], rows[cut:]]}, buckets=chance.choice([1, 3]))
    assert {each["id"]: each for epoch in found for each in epoch} == wanted


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: hf.latest(positions(), by="nobody"), "nobody"),
        (lambda: hf.latest("positions", by="id"), "stands for the stream"),
        (lambda: hf.latest(positions() | hf.map(lambda frame: frame), by="id"), "are not known"),
        (lambda: hf.latest(hf.read.rows([], schema="id STRING, x BIGINT", name="s"), by="id"), "timestamp"),
        (lambda: hf.latest(positions() | hf.select("id"), by="id"), "no column besides"),
        (lambda: hf.combine(positions(), by="id"), "unites 1 stream"),
        (
            lambda: hf.combine(
                positions(), hf.read.rows([], schema="id STRING, u BIGINT", timestamp="u", name="s"), by="id"
            ),
            "different timestamps",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_its_cure(make, says):
    with pytest.raises(hf.InvalidPipeline, match=says) as raised:
        make()
    assert raised.value.do


def test_a_union_fills_columns_that_a_stream_lacks_with_nulls():
    one = hf.read.rows([], schema="id STRING, a BIGINT NOT NULL", name="one")
    other = hf.read.rows([], schema="b STRING, id STRING", name="other")
    with pytest.raises(hf.InvalidPipeline, match="same columns") as raised:
        hf.union(one, other)
    assert 'missing="null"' in raised.value.do
    stream = hf.union(one, other, missing="null")
    assert stream.columns == ("id", "a", "b")
    (rows,) = drive(stream, {"one": [[{"id": "x", "a": 1}]], "other": [[{"id": "y", "b": "z"}]]})
    assert rows == [{"id": "x", "a": 1, "b": None}, {"id": "y", "a": None, "b": "z"}]
    with pytest.raises(hf.InvalidPipeline, match="is not known"):
        hf.union(one, other, missing="zero")
