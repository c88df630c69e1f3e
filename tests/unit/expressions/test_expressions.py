"""What an expression reads and gives, from its text."""

import pytest

from holdfast.expressions.text import across_rows, columns_of, item_of, query_of, quoted, varying


@pytest.mark.parametrize(
    ("expression", "columns"),
    [
        ("dep_delay > 15 and lower(origin) = 'JFK'", {"dep_delay", "origin"}),
        ("position.x + position.y", {"position"}),
        ("`a b` is null", {"a b"}),
        ("tags[0].name", {"tags"}),
        ("transform(xs, x -> x + y)", {"xs", "y"}),
        ("aggregate(xs, 0, (acc, x) -> acc + x)", {"xs"}),
        ("timestampadd(HOUR, 1, t) > current_timestamp", {"t"}),
        ("extract(year from t) = 2013", {"t"}),
        ("user = current_user", set()),
        ("`user` = 'x'", {"user"}),
        ("cast(a as struct<x: int>).x", {"a"}),
        ("*", set()),
        ("a > 1 -- a comment about b", {"a"}),
        ("comment = 'x'", {"comment"}),
        ("_metadata.file_name = a", {"a"}),
    ],
)
def test_the_columns_that_an_expression_reads(expression, columns):
    assert columns_of(expression) == columns


@pytest.mark.parametrize("expression", ["a >", "a, b", "a; b", "(select 1)", "a from b", "a where b", ""])
def test_what_cannot_be_read_as_one_expression_is_unknown(expression):
    assert columns_of(expression) is None
    assert item_of(expression).names is None


@pytest.mark.parametrize(
    ("item", "names", "source"),
    [
        ("a", ("a",), "a"),
        ("a as b", ("b",), "a"),
        ("a + 1 as b", ("b",), None),
        ("s.x", ("x",), None),
        ("a + 1", None, None),
        ("explode(m) as (k, v)", ("k", "v"), None),
        ("s.*", None, None),
    ],
)
def test_the_columns_that_an_item_gives(item, names, source):
    assert (item_of(item).names, item_of(item).source) == (names, source)


def test_a_star_leaves_out_what_it_excepts():
    item = item_of("* except (A, b)")
    assert (item.is_star, item.excluded, item.reads) == (True, {"a", "b"}, {"A", "b"})


@pytest.mark.parametrize(
    "text",
    [
        "count(*)",
        "sum(a) over (partition by b)",
        "row_number() over (order by a)",
        "max(a) + 1",
        "collect_list(a)",
        "try_sum(a)",
        "lag(a) over (order by b)",
        "percentile_approx(a, 0.5)",
        "sum(a) filter (where b)",
    ],
)
def test_aggregates_and_windows_look_across_rows(text):
    assert across_rows(text) is not None


@pytest.mark.parametrize(
    "text",
    ["a + 1", "array_max(xs)", "aggregate(xs, 0, (acc, x) -> acc + x)", "explode(xs)", "greatest(a, b)", "xs[0]", "a >",
     "exists(xs, x -> x > 1)", "array_sort(xs)", "array_distinct(xs)", "filter(xs, x -> x > 1)", "rand()"],
)  # fmt: skip
def test_functions_of_one_row_do_not_look_across_rows(text):
    assert across_rows(text) is None


@pytest.mark.parametrize(
    ("query", "part"),
    [
        ("select count(*) from input", "COUNT(*)"),
        ("select a from input group by a", "GROUP BY"),
        ("select distinct a from input", "DISTINCT"),
        ("select a from input order by a", "ORDER BY"),
        ("select a from input limit 3", "LIMIT"),
        ("select a from input join other on a = b", "JOIN"),
        ("select a from input, other", "JOIN"),
        ("select a from input union select b from input", "UNION"),
        ("select a from input where a > 1", None),
        ("select * from input lateral view explode(xs) as x", None),
        ("with t as (select * from input) select a from t", None),
        ("select array_sort(xs) as xs from input", None),
    ],
)
def test_the_part_of_a_query_that_looks_across_rows(query, part):
    assert across_rows(query, is_query=True) == part


def test_a_plain_query_is_known_by_its_items_and_its_condition():
    query = query_of("select input.a, b as c, * except (d) from INPUT where e > 1")
    assert query.tables == ("input",)
    assert [item.names for item in query.items] == [("a",), ("c",), ()]
    assert query.reads == {"e"}


@pytest.mark.parametrize(
    "query",
    ["select * from input lateral view explode(xs) as x", "with t as (select * from input) select x from t",
     "select a from (select * from input)", "select a from input where a in (select b from other)"],
)  # fmt: skip
def test_of_another_query_only_the_tables_are_known(query):
    known = query_of(query)
    assert known.items is None
    assert "input" in known.tables
    assert "t" not in known.tables


@pytest.mark.parametrize(
    ("expression", "function"),
    [("rand() > 0.5", "rand"), ("uuid()", "uuid"), ("monotonically_increasing_id()", "monotonically_increasing_id"),
     ("randn(3)", "randn"), ("a > 1", None), ("current_timestamp() > t", None)],
)  # fmt: skip
def test_functions_that_vary_are_found(expression, function):
    assert varying(expression) == function


def test_a_column_is_quoted_whatever_its_name():
    assert quoted("a`b c") == "`a``b c`"
    assert columns_of(quoted("a`b c")) == {"a`b c"}
