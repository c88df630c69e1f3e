"""Schemas, however they are written, as Arrow schemas of Spark's types."""

import pyarrow as pa
import pytest
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from holdfast.errors import InvalidPipeline
from holdfast.types.schema import to_arrow

SPARK = T.StructType(
    [
        T.StructField("a", T.IntegerType()),
        T.StructField("b", T.StringType(), nullable=False),
        T.StructField("t", T.TimestampType()),
        T.StructField("n", T.TimestampNTZType()),
        T.StructField(
            "s", T.StructType([T.StructField("x", T.IntegerType()), T.StructField("y", T.ByteType(), False)])
        ),
        T.StructField("l", T.ArrayType(T.DoubleType())),
        T.StructField("m", T.MapType(T.StringType(), T.IntegerType())),
        T.StructField("d", T.DecimalType(10, 2)),
        T.StructField("o", T.BooleanType()),
        T.StructField("i", T.DayTimeIntervalType()),
        T.StructField("g h", T.LongType()),
        T.StructField("y", T.DateType()),
        T.StructField("z", T.BinaryType()),
        T.StructField("f", T.FloatType()),
        T.StructField("w", T.ShortType()),
    ]
)
DDL = (
    "a INT, b STRING NOT NULL, t TIMESTAMP, n TIMESTAMP_NTZ, s STRUCT<x: INT, y: TINYINT NOT NULL>, l ARRAY<DOUBLE>, "
    "m MAP<STRING, INT>, d DECIMAL(10,2), o BOOLEAN, i INTERVAL DAY TO SECOND, `g h` BIGINT, y DATE, z BINARY, "
    "f FLOAT, w SMALLINT"
)


def test_a_ddl_text_and_a_spark_struct_give_what_pyspark_itself_converts_to():
    expected = to_arrow_schema(SPARK, timezone="UTC")
    assert to_arrow(SPARK).equals(expected)
    assert to_arrow(DDL).equals(expected)


def test_an_arrow_schema_of_sparks_types_is_kept():
    schema = to_arrow(DDL)
    assert to_arrow(schema).equals(schema)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (pa.uint8(), pa.int16()),
        (pa.uint32(), pa.int64()),
        (pa.uint64(), pa.decimal128(20, 0)),
        (pa.float16(), pa.float32()),
        (pa.large_string(), pa.string()),
        (pa.dictionary(pa.int32(), pa.string()), pa.string()),
        (pa.timestamp("ns"), pa.timestamp("us")),
        (pa.timestamp("s", tz="Europe/Berlin"), pa.timestamp("us", tz="UTC")),
        (pa.list_(pa.field("item", pa.uint16())), pa.list_(pa.field("element", pa.int32()))),
        (pa.struct([("x", pa.large_binary())]), pa.struct([("x", pa.binary())])),
        (pa.map_(pa.string(), pa.uint8()), pa.map_(pa.string(), pa.int16())),
    ],
)
def test_an_arrow_type_that_spark_lacks_becomes_one_that_holds_its_values(ours, theirs):
    assert to_arrow(pa.schema([("a", ours)])).field("a").type == theirs


@pytest.mark.parametrize(
    "colons", ["a: int, b: struct<x:string>", "a int, b struct<x string>", "A INT,B STRUCT<X:STRING>"]
)
def test_colons_case_and_spaces_do_not_matter(colons):
    schema = to_arrow(colons)
    assert schema.field(0).type == pa.int32()
    assert schema.field(1).type.field(0).type == pa.string()


def test_words_of_sql_may_be_columns():
    assert to_arrow("select INT, from STRING, comment STRING COMMENT 'x, y', `a``b` INT").names == [
        "select",
        "from",
        "comment",
        "a`b",
    ]


@pytest.mark.parametrize(
    ("schema", "column", "why"),
    [
        ("a INT b STRING", "'a'", "comma"),
        ("a INT, b", "'b'", "a type is expected"),
        ("a INT, s STRUCT<x: INT, y: FOO>", "'s.y'", "'foo'"),
        ("a TEXT", "'a'", "STRING"),
        ("a ARRAY<INT", "'a'", "'>'"),
        ("a INT,", "'the end'", "column name"),
        ("", "'the end'", "column name"),
        ("a DECIMAL(x)", "'a'", "number"),
        ("a INTERVAL YEAR TO MONTH", "'a'", "days to seconds"),
        ("a INT; b INT", "'a'", "';'"),
        ("a INT COMMENT b", "'a'", "quoted text"),
    ],
)
def test_a_ddl_text_that_cannot_be_read_to_its_end_is_refused_with_the_column(schema, column, why):
    with pytest.raises(InvalidPipeline) as caught:
        to_arrow(schema)
    assert column in caught.value.what
    assert why in caught.value.why
    assert "name TYPE" in caught.value.do


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("a INT, A STRING", "twice"),
        ("__holdfast_x INT", "reserved"),
        (pa.schema([]), "no column"),
        (["a"], "is not a schema"),
        (None, "is not a schema"),
        (T.IntegerType(), "is not a schema"),
        (pa.schema([("t", pa.time64("us"))]), "time64"),
        (T.StructType([T.StructField("v", T.VariantType())]), "variant"),
    ],
)
def test_a_schema_that_no_pipeline_can_have_is_refused(schema, text):
    with pytest.raises(InvalidPipeline, match=text):
        to_arrow(schema)
