"""Which statements are nothing but items and a condition, as ``select`` and ``filter`` take them; no JVM."""

from __future__ import annotations

import pytest

from holdfast.expressions.statement import Statement, statement_of


@pytest.mark.parametrize(
    ("query", "items", "condition"),
    [
        ("select * from input", ["*"], None),
        ("SELECT k FROM INPUT", ["k"], None),
        ("select k, v * 2 + total % 1000 as v from input", ["k", "v * 2 + total % 1000 as v"], None),
        ("select * except (v), coalesce(v, 0) as v from input", ["* except (v)", "coalesce(v, 0) as v"], None),
        ("select `from`, 'a, b' as `x, y` from input", ["`from`", "'a, b' as `x, y`"], None),
        ("select if(a > 1, b, c) as d from input where a > 1 and b", ["if(a > 1, b, c) as d"], "a > 1 and b"),
        ("select\n  k\n, 10L as n\nfrom\tinput\nwhere v\n", ["k", "10L as n"], "v"),
        ("select x as a from input where x = 'from input'", ["x as a"], "x = 'from input'"),
        ("select (a, b) as c, d[1, 2] as e from input", ["(a, b) as c", "d[1, 2] as e"], None),
        ("select st.a as a from input", ["st.a as a"], None),
        ("select input from input", ["input"], None),
        ("select k from input where (v > 1) and ((w))", ["k"], "(v > 1) and ((w))"),
    ],
)
def test_a_statement_is_parted_where_its_text_says_so(query: str, items: list[str], condition: str | None) -> None:
    assert statement_of(query, "input") == Statement(tuple(items), condition)


@pytest.mark.parametrize(
    "query",
    [
        # other clauses, and what is before them
        "select all k from input",
        "select /*+ repartition(1) */ k from input",
        "with w as (select k from input) select k from w",
        "from input select k",
        "from input |> select k",
        "select k from input group by k",
        "select k from input where v > 1 group by k",
        "select k from input lateral view explode(array(1)) as x",
        "select k from input union all select k from input",
        "(select k from input)",
        "select k",
        "select k from",
        "select from input",
        "select k, from input",
        "select k from input where",
        # tables
        "select k from other",
        "select k from a.input",
        "select k from `input`",
        "select k from input i",
        "select k from input as i",
        "select k from input, input",
        "select k from (select k from input)",
        "select k from input tablesample (1 percent)",
        "select k from input version as of 1",
        "select input.k from input",
        "select INPUT.k as x from input",
        "select `input`.`k` from input",
        "select k from input where input.v > 1",
        "select k from input where (v)",  # to Spark the table is called where, and its column v
        "select k from input where\n( `v` )",
        "select k from input where (true) and v",
        "select input.* from input",
        # what two parsers do not read alike
        "select k -- , v\nfrom input",
        "select k from input /* where v */",
        "select 'it\\'s' as k from input",
        "select ${k} from input",
        "select k from input where !v",
        "select k::bigint as k from input",
        "select k\u00a0from input",
        "select 'k from input",
        "select k) from (input",
        "select (k from input",
        "select a[1, b from input",
        "select k is distinct from input",
        "",
    ],
)
def test_every_other_one_is_left_to_spark(query: str) -> None:
    assert statement_of(query, "input") is None
