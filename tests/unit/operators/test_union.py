"""union as a declaration."""

import pytest

import holdfast as hf
from tests.graphs import source


def test_columns_are_matched_by_name_in_the_order_of_the_first():
    left, right = source("left", schema="a INT, b INT"), source("right", schema="B INT, a INT")
    both = hf.union(left, right)
    assert both.columns == ("a", "b")
    assert both.node.inputs == (left.node, right.node)


def test_the_timestamp_stays_when_all_inputs_agree():
    left, right = source("left", timestamp="time_hour"), source("right", timestamp="time_hour")
    assert hf.union(left, right).timestamp == "time_hour"
    assert hf.union(left, source("bare")).timestamp is None


def test_unknown_columns_are_left_to_spark():
    unknown = source("left") | hf.map(lambda df: df)
    assert hf.union(unknown, source("right", schema="a INT")).columns is None


def test_different_columns_are_refused_with_the_differences():
    with pytest.raises(hf.InvalidPipeline) as caught:
        hf.union(source("left", schema="a INT, b INT"), source("right", schema="a INT, c INT, d INT"), name="both")
    assert "union 'both', built at" in caught.value.what
    assert caught.value.why == "only the first has b; only another has c, d."


@pytest.mark.parametrize(
    ("streams", "text"),
    [
        (lambda s: [s], "it unites 1 stream"),
        (lambda s: [], "it unites 0 streams"),
        (lambda s: [s, s], "given twice"),
        (lambda s: [[s, source("other")]], "a list is not a stream"),
        (lambda s: [s, hf.filter("a > 1")], "an Operator is not a stream"),
    ],
)
def test_what_cannot_be_united_is_refused(streams, text):
    with pytest.raises(hf.InvalidPipeline, match=text):
        hf.union(*streams(source()))
