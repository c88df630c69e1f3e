"""``read.spark`` is a declaration: it shows no secret and opens nothing."""

from __future__ import annotations

import pickle

import pytest

from holdfast import read
from holdfast.connectors.spark import SparkSpec
from holdfast.errors import InternalError, InvalidPipeline


def declared(**options: object) -> SparkSpec:
    spec = read.spark("kafka", options, name="clicks").node.spec
    assert isinstance(spec, SparkSpec)
    return spec


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kafka.sasl.jaas.config", "user hunter2"),
        ("password", "hunter2"),
        ("url", "jdbc:postgresql://ann:hunter2@host/db"),
        ("url", "jdbc:postgresql://host/db?user=ann&password=hunter2&ssl=true"),
        ("sfPassword", "hunter2"),
        ("fs.s3a.secret.key", "hunter2"),
    ],
)
def test_secrets_are_shown_nowhere(key: str, value: str) -> None:
    spec = declared(**{key: value})
    assert "hunter2" not in repr(spec) + repr(spec.arguments()) + repr(read.spark("kafka", {key: value}, name="clicks"))
    assert spec.options == {key: value}


def test_columns_are_unknown_unless_declared() -> None:
    assert read.spark("kafka", name="clicks").columns is None
    assert read.spark("json", schema="a INT, b STRING", name="clicks").columns == ("a", "b")


def test_options_are_written_as_spark_reads_them() -> None:
    assert declared(subscribe="clicks", failOnDataLoss=True, n=3).options == {
        "subscribe": "clicks",
        "failOnDataLoss": "true",
        "n": "3",
    }
    assert pickle.loads(pickle.dumps(declared(a=1))) == declared(a=1)


def test_it_is_not_opened_here() -> None:
    with pytest.raises(InternalError):
        declared().open("clicks", "w")
    with pytest.raises(InvalidPipeline):
        read.spark("", name="clicks")
