"""Functions of texts and times, and decimals, that Arrow evaluates: against Spark itself, on hostile values."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from holdfast.errors import BadRow
from holdfast.expressions.compile import columnar
from holdfast.expressions.derive import derived
from holdfast.spark.private import arrow_schema

pytestmark = pytest.mark.spark

_TEXTS = """
a|A|ab|ba|aab|abc|b|c|,|,,|a,b|,a,|a,,b|a.b|a+b|a(b|a b|a_b|a%b|1|007|12:30|-1|channel_id=3|a&channel_id=77
&channel_id=
x&channel_id=5&channel_id=6|channel_id|https://www.nexmark.com/ab_c/dxx/e_f/item.htm?query=1&channel_id=168820812
https://www.nexmark.com/a/b|Apple|APPLE|apple|aPPLe|GOOGLE|Bai\u212au|\u212a|BOO\u212a|book|ß|STRASSE|straße|ﬁ|FI|ﬅ|ST
İ|i\u0307|\u0131|I|i|Σ|ΑΣ|ας|é|e\u0301|É|日本|日,本|/日/本/|😀|a😀b|😀😀|😀,b|\U00010400|\uffff|\ufffe|ǆ|ﬃ|\u0345
""".strip().replace("\n", "|")
_ODD = ["", " ", "  a  ", "\ta\t", "\u00a0a\u00a0", " \u3000a ", "a\nb", "a\n", "\na", "a\r\nb", "a\u2028b", "a\u0085b"]
_ODD += [
    "a|b",
    "a\\b",
    "\\",
    "\x00",
    "a\x00b",
    "aaaa",
    "abababab",
    "'",
    '"',
    "a\u2029",
    "\r",
    "{a}",
    "[a]",
    "^a$",
    "a" * 300,
]

_TIMES = [
    dt.datetime(1, 1, 1, 0, 0, 0, 1),
    dt.datetime(999, 12, 31, 23, 59, 59, 999999),
    dt.datetime(1582, 10, 10, 1, 2, 3),
    dt.datetime(1969, 12, 31, 23, 59, 59, 999999),
    dt.datetime(1970, 1, 1),
    dt.datetime(2024, 2, 29, 8, 5, 9, 7000),
    dt.datetime(2038, 1, 19, 3, 14, 8, 999),
    dt.datetime(9999, 12, 31, 23, 59, 59, 999999),
]

_SCHEMA = pa.schema(
    [
        ("x", pa.string()),
        pa.field("y", pa.string(), nullable=False),
        ("at", pa.timestamp("us", tz="UTC")),
    ]
)
_DDL = "x STRING, y STRING NOT NULL, at TIMESTAMP"


def _batch() -> pa.RecordBatch:
    chance = random.Random(43)
    texts = [*_TEXTS.split("|"), *_ODD]
    columns: list[list[Any]] = [[*texts, None, None], [*texts[::-1], "a", "b"]]
    count = len(columns[0])
    times = [*_TIMES, None, *(chance.choice(_TIMES) for _ in range(count))][:count]
    return pa.record_batch([*columns, times], schema=_SCHEMA)


_PATTERNS = """
a#b#ab#a+#a*#a?b#a+?b#a*?b#^a#^#b*#(a)#(a)(b)#(a+)(b*)#(a|b)#(ab|a)(b?)#(a|ab)(c|bcd)#(&|^)channel_id=([^&]*)
([^,]*),([^,]*)
,(.*)#(.*),(.*)#(.+?),#(.)(.)#.#.+#..b#[a-c]+#[^a-c]+#[^a]b#[^a]*#[0-9]+#([0-9]+):([0-9]+)#[A-Za-z]+#[.]#[a-]
[&]#[ab&]#[,/]
https://www.nexmark.com/([^/]*)/([^/]*)/([^/]*)/#//([^/]+)/#(?:a|b)c#(?:ab)?a#(?:a)?b#(a|)b#(|a)b#a||b#()a#(a)()
((a)b)#((a|b)(c|d))
a|b|c#apple|google#=([0-9]*)#[?]query=(.)#[+]#[(]#[|]#[_%]#a_b#a b#(a)|(b)#(a)|b|(c)#^(a|b)#(?:^|,)a#[^&]#[^,]+,
.*#(.*)b(.*)#([a-z]+)[A-Z]*
""".strip().replace("\n", "#")
_LEFT_PATTERNS = (
    "a$ a++ (a)* (a)+ (?:ab)* (a*)* (?i)a (?=a) [[a]] [a&&b] [z-a] [a ( ) a** *a [a-Z] é [é] (a (b?)+ (?<n>a) [] [^]"
)


def _texts() -> list[str]:
    written = """
    split_part(x, ',', 1)|split_part(x, ',', 2)|split_part(x, ',', 9)|split_part(x, ',', -1)
    split_part(x, ',', -3)|split_part(y, '/', 4)
    split_part(x, ',,', 1)|split_part(x, '😀', 2)|split_part(x, 'aa', 2)|split_part(x, '.', 2)|split_part(y, ' ', 3)
    split(x, ',')[0]|split(y, '/')[0]|split(y, ', ')[0]
    x LIKE 'a%'|x LIKE '%b'|x LIKE '%a%'|x LIKE 'a'|x LIKE ''|x LIKE '%'|x LIKE '_'|x LIKE '__'|x LIKE 'a_b'
    x LIKE '%a%b%'|x LIKE 'a%b'
    x NOT LIKE 'a%'|NOT x LIKE '_%'|y LIKE '%(%'|y LIKE '%+%'|x LIKE '%.%'|x LIKE '%日_'|x LIKE '%%'|x LIKE '%_'
    y LIKE '[%'|x LIKE '^a%'
    y LIKE '%channel_id%'|x LIKE '😀%'|x LIKE 'A%'
    substring(x, 1, 2)|substring(x, 0, 2)|substring(x, 2)|substring(y, -2)|substring(x, -3, 2)
    substring(x, -3, 5)|substring(x, -2147483648)
    substring(x, 2, 0)|substring(x, 2, -1)|substring(x, 100, 2)|substr(x, 2, 1)|substr(y, -1, 1)
    substring(x, 2, 2147483647)|substring(x, -5, 3)
    substring(x, 0)|substring(x, -1, 2147483647)|substring(x, 2147483647, 2147483647)
    substring(x, -2147483648, -2147483648)
    substring(x, -2, 2147483647)|substring(x, 0, -1)|substring(x, 1, 1)
    instr(x, 'a')|instr(x, 'b')|instr(y, 'channel')|instr(x, '😀')|instr(x, 'aa')|locate('b', x)|locate('日', y)
    instr(x, ',b')
    trim(x)|ltrim(x)|rtrim(x)|trim(y)|replace(x, 'a', 'bb')|replace(x, 'aa', '')|replace(y, ',', '😀')
    replace(x, 'a', 'a')
    length(x) - length(replace(x, 'c', ''))|startswith(x, 'a')|endswith(x, 'b')|contains(x, 'a')|contains(y, '')
    startswith(x, '')|endswith(x, '')
    contains(x, '😀')|startswith(y, '日')|endswith(y, 'e\u0301')
    lower(x) = 'apple'|lower(x) <> 'book'|lower(y) = 'baiku'|lower(x) <=> 'k'|lower(x) IN ('i', 'k', 'apple')
    'apple' = lower(x)
    upper(x) = 'STRASSE'|upper(x) IN ('FI', 'SS', 'ST', 'I', 'S', NULL)|upper(y) = 'FFI'|(lower(x)) = ('i')
    lower(x) NOT IN ('a', 'b')
    CASE WHEN lower(x) = 'apple' THEN '0' WHEN lower(x) = 'google' THEN '1' ELSE split_part(y, '=', 2) END
    concat(split_part(x, 'a', 1), '/', substring(y, 1, 1))|coalesce(split_part(x, ',', 2), 'none')
    trim(substring(x, 2, 3)) = 'a'
    date_format(at, 'yyyy-MM-dd')|date_format(at, 'HH:mm')|date_format(at, 'yyyy-MM-dd HH:mm:ss')
    date_format(at, 'yyyyMMddHHmmss')
    date_format(at, 'yyyy')|date_format(at, 'MM/dd/yyyy')|date_format(at, 'HH:mm:ss.SSS')|date_format(at, 'mm')
    date_format(at, 'SSS')
    CASE WHEN hour(at) >= 8 AND hour(at) <= 18 THEN 'dayTime' WHEN hour(at) > 20 THEN 'night' ELSE 'other' END
    CASE WHEN hour(at) BETWEEN 8 AND 18 THEN 'day' ELSE 'night' END
    """
    texts = [text.strip() for line in written.strip().splitlines() for text in line.split("|")]
    for pattern in _PATTERNS.split("#"):
        texts.append(f"x RLIKE '{pattern}'")
        groups = pattern.count("(") - pattern.count("(?:") - pattern.count("[(")
        texts += [f"regexp_extract({'xy'[group % 2]}, '{pattern}', {group})" for group in range(groups + 1)]
    return [*texts, "regexp_extract(x, '(a)b')"]


_LEFT = """
lower(x)|upper(x)|lower(x) LIKE 'a'|lower(x) = 'é'|lower(x) = y|lower(x) < 'a'|lower(x) IN ('é')
concat(lower(x), 'a') = 'a'
split_part(x, ',', 0)|split_part(x, '', 1)|split_part(x, y, 1)|split_part('a', ',', 1)|split(x, '.')[0]
split(x, ',')|split(x, ',', 2)[0]
split(x, ',')[-1]|split(x, '日')[0]|split(x, '')[0]|split(x, 'a+')[0]|split(x, y)[0]|substring(x, length(x))
substring(x FROM 2)|substring('abc', 1)|instr(x, '')
instr(x, y)|locate('a', x, 2)|locate(x, 'a')|position('a' IN x)|trim(BOTH 'a' FROM x)|trim('a', x)
replace(x, 'a')|replace(x, '', 'a')
x LIKE y|x LIKE 'a' ESCAPE '/'|x ILIKE 'a'|x LIKE ANY ('a', 'b')|x LIKE 'a' = TRUE|TRUE = x LIKE 'a'
regexp_extract(x, 'a', 1)
regexp_extract(x, 'a')|regexp_extract(x, '(a)', 2)|regexp_extract(x, '(a)', -1)|regexp_extract(x, y, 0)
regexp_like(x, 'a')|length(at)
date_format(at, 'yy')|date_format(at, 'YYYY')|date_format(at, 'M')|date_format(at, 'hh')|date_format(at, 'EEE')
date_format(at, '')
date_format(at, x)|date_format(x, 'yyyy')|date_format(at, 'yyyyy')|date_format(at, 'SSSSSS')|like(x, 'a')|left(x, 1)
split(x, ',')[1] = 'a' AND y = 'b'|coalesce(split(x, ',')[1], 'a')|split(x, ',')[1] IS NULL
substring(split(x, ',')[1], 1)
"""


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.execution.arrow.pyspark.enabled", "true")
    spark.sparkContext.setLogLevel("OFF")
    yield session
    spark.sparkContext.setLogLevel("ERROR")


def _differences(session: SparkSession, batch: pa.RecordBatch, ddl: str, texts: Sequence[str]) -> list[Any]:
    """Return what differs: values, types, nullability, and the types that are derived without rows."""
    frame = session.createDataFrame(pa.Table.from_batches([batch]), schema=ddl)
    chosen = frame.select(*[F.expr(text).alias(f"c{index}") for index, text in enumerate(texts)])
    theirs = arrow_schema(chosen.schema)
    wrong: list[Any] = []
    for text, field, column in zip(texts, theirs, chosen.toArrow().columns, strict=True):
        known = columnar(text, batch.schema)
        if known is None:
            wrong.append((text, "is left to Spark"))
            continue
        ours = known.evaluate(batch)
        if (ours.type, known.type, known.nullable) != (field.type, field.type, field.nullable):
            wrong.append((text, ours.type, known.type, known.nullable, field))
        sliced = known.evaluate(batch.slice(3, 20)).to_pylist()
        if sliced != ours.to_pylist()[3:23]:
            wrong.append((text, "of a slice", sliced))
        rows = zip(batch.to_pylist(), ours.to_pylist(), column.to_pylist(), strict=True)
        wrong += [(text, one, other, row) for row, one, other in rows if one != other][:2]
        before = derived(text, batch.schema)
        if before is not None and (before.type != field.type or before.nullable not in (None, field.nullable)):
            wrong.append((text, before, field))
    return wrong


def test_texts_and_times_are_those_of_spark(session: SparkSession) -> None:
    assert "\n".join(map(str, _differences(session, _batch(), _DDL, _texts()))) == ""


@pytest.mark.parametrize("pattern", _LEFT_PATTERNS.split(" "))
def test_patterns_that_java_and_re2_may_read_otherwise_are_left_to_spark(pattern: str) -> None:
    assert columnar(f"x RLIKE '{pattern}'", _SCHEMA) is None


@pytest.mark.parametrize("text", [text for line in _LEFT.strip().splitlines() for text in line.split("|")])
def test_what_may_differ_is_left_to_spark(text: str) -> None:
    assert columnar(text, _SCHEMA) is None


def test_only_these_letters_become_ascii_alone(session: SparkSession) -> None:
    """Of all code points: what ``lower`` and ``upper`` rely on where they are compared with ASCII."""
    letters = [chr(code) for code in range(0x80, 0x110000) if not 0xD800 <= code < 0xE000]
    frame = session.createDataFrame(pa.table({"c": letters}))
    for function, kept in (("lower", {"\u212a": "k"}), ("upper", None)):
        found = frame.selectExpr("c", f"{function}(c) AS d").where("NOT d RLIKE '[^\\\\x00-\\\\x7f]'").toArrow()
        theirs = dict(zip(found["c"].to_pylist(), found["d"].to_pylist(), strict=True))
        assert kept is None or theirs == kept
        for text in set(theirs.values()):
            known = columnar(f"{function}(c) = '{text}'", pa.schema([("c", pa.string())]))
            assert known is not None
            ours = known.evaluate(pa.record_batch({"c": pa.array(letters)})).to_pylist()
            assert [one for one, same in zip(letters, ours, strict=True) if same] == [
                one for one, became in theirs.items() if became == text
            ]


@pytest.mark.parametrize("text", ["split(x, ',')[1]", "split(y, '/')[3] = 'a'"])
def test_an_array_without_the_item_is_an_error_as_in_spark(session: SparkSession, text: str) -> None:
    schema, ddl = pa.schema([("x", pa.string()), ("y", pa.string())]), "x STRING, y STRING"
    rows = [("a,b", "1/2/3/a"), ("a", "a/b/c"), ("", ""), (None, None), (",", "///")]
    known = columnar(text, schema)
    assert known is not None
    for row in rows:
        batch = pa.record_batch([[one] for one in row], schema=schema)
        frame = session.createDataFrame([row], ddl)
        try:
            theirs: Any = frame.selectExpr(f"{text} AS c").collect()[0].c
        except PySparkException as error:
            theirs = error.getCondition()
        try:
            ours: Any = known.evaluate(batch).to_pylist()[0]
        except BadRow as error:
            ours = error.what.rpartition(": ")[2].rstrip(".")
        assert ours == theirs, row
