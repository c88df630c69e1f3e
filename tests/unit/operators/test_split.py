"""split: the conditions of its parts are exclusive and never null, whatever the predicates."""

import itertools

import duckdb
import pytest

import holdfast as hf
from tests.graphs import source

DELAY = {"late": "dep_delay > 15", "early": "dep_delay < 0 or origin = 'JFK'"}


@pytest.mark.slow
def test_every_row_is_in_exactly_one_part():
    """Run on another engine, over every combination of values and nulls."""
    parts = source() | hf.split(**DELAY, otherwise="rest")
    delays, origins = [None, -5, 0, 15, 16], [None, "JFK", "LGA"]
    rows = list(itertools.product(delays, origins))
    values = ", ".join(
        f"({'NULL' if d is None else d}::INT, {'NULL' if o is None else repr(o)}::VARCHAR)" for d, o in rows
    )
    conditions = [parts[part].node.spec.condition for part in parts]
    query = f"SELECT dep_delay, origin, {', '.join(conditions)} FROM (VALUES {values}) AS t(dep_delay, origin)"
    for delay, origin, late, early, rest in duckdb.sql(query).fetchall():
        is_late = delay is not None and delay > 15
        is_early = (delay is not None and delay < 0) or origin == "JFK"
        assert (late, early, rest) == (is_late, is_early and not is_late, not is_early and not is_late)


def test_parts_are_streams_by_attribute_and_by_name():
    flights = source(timestamp="time_hour")
    parts = flights | hf.split(**DELAY, otherwise="rest", name="delay")
    assert list(parts) == ["late", "early", "rest"]
    assert parts.late.name == "delay_late"
    assert parts.late == parts["late"]
    assert parts.rest.shape == flights.shape
    assert parts.late.node.is_named


def test_a_part_that_is_in_use_is_one_node():
    parts = source() | hf.split(**DELAY)
    late = parts.late
    assert parts.late.node is late.node


def test_without_a_name_the_parts_have_derived_ones():
    parts = source() | hf.split(**DELAY)
    assert parts.late.name.startswith("split_")
    assert parts.late.name.endswith("_late")
    assert not parts.late.node.is_named
    assert parts.late.name != (source("other") | hf.split(**DELAY)).late.name


def test_a_comment_in_a_predicate_swallows_nothing():
    parts = source() | hf.split(late="dep_delay > 15 -- of course", otherwise="rest")
    assert parts.rest.node.spec.condition == "NOT coalesce((dep_delay > 15 -- of course\n), false)"


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: hf.split(), "has no part|no part"),
        (lambda: hf.split("dep_delay > 15"), "has no name"),
        (lambda: hf.split(late="dep_delay > 15", otherwise="late"), "name of a part too"),
        (lambda: hf.split(late="dep_delay > 15", otherwise="a b"), "not a name for a part"),
        (lambda: hf.split(stream="dep_delay > 15"), "not a name for a part"),
        (lambda: hf.split(late=lambda df: df.dep_delay > 15), "is not a text"),
        (lambda: hf.split(late="rand() > 0.5"), "uses rand"),
        (lambda: hf.split(late="count(*) > 1"), "several rows together"),
        (lambda: hf.split(late="dep_dealy > 15"), "did you mean 'dep_delay'"),
        (lambda: hf.split(late="dep_delay > 15", name="a b"), "not allowed"),
    ],
)
def test_what_cannot_be_split_is_refused(build, text):
    with pytest.raises(hf.InvalidPipeline, match=text):
        source() | build()


def test_a_part_that_was_not_named_is_refused():
    parts = source() | hf.split(**DELAY)
    with pytest.raises(hf.InvalidPipeline, match="no part 'rest'") as caught:
        _ = parts.rest
    assert "late, early" in caught.value.why
