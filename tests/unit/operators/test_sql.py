"""sql as a declaration."""

import pytest

import holdfast as hf
from holdfast.operators.sql import Sql
from tests.graphs import source


def test_sql_holds_the_query():
    assert (source() | hf.sql(" select * from input; ")).node.spec == Sql("select * from input")


@pytest.mark.parametrize(
    ("query", "columns", "timestamp"),
    [
        ("select * from input", ("origin", "dest", "dep_delay", "arr_delay", "time_hour"), "time_hour"),
        ("select input.origin, i.time_hour as at from input i", None, None),
        ("select origin, dep_delay / 60 as hours from input where dep_delay > 15", ("origin", "hours"), None),
        ("select origin, x from input lateral view explode(array(1)) as x", None, None),
        ("with late as (select * from input) select origin from late", None, None),
    ],
)
def test_what_is_known_of_the_rows_of_a_query(query, columns, timestamp):
    if "input.origin" in query:
        with pytest.raises(hf.InvalidPipeline, match="'input'"):
            source(timestamp="time_hour") | hf.sql(query)
        return
    stream = source(timestamp="time_hour") | hf.sql(query)
    assert (stream.columns, stream.timestamp) == (columns, timestamp)


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("select 1", "read nowhere"),
        ("select * from flights", "it reads flights"),
        ("select a.origin from input a union all select b.dest from input b", "more than once"),
        ("select origin, count(*) from input group by origin", "several rows together"),
        ("select origin from input order by origin", "ORDER BY"),
        ("select origin from input limit 5", "LIMIT"),
        ("insert into x select * from input", "alone and once"),
        ("", "is not a statement"),
        (None, "is not a statement"),
        ("select nowhere from input", "'nowhere'"),
        ("select origin from input where nowhere > 1", "'nowhere'"),
    ],
)
def test_a_query_that_cannot_work_is_refused(query, text):
    with pytest.raises(hf.InvalidPipeline, match=text):
        source() | hf.sql(query)


def test_a_query_that_cannot_be_read_here_is_left_to_spark():
    assert (source() | hf.sql("select from where")).columns is None
