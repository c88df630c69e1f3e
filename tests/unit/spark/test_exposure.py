"""A secret that would travel to another host in clear is warned about; nothing else is."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.connectors.kit.sql import TableMode
from holdfast.connectors.postgres.dsn import Dsn
from holdfast.connectors.postgres.staging import PostgresWriterFactory
from holdfast.connectors.postgres.table import PostgresTable
from holdfast.spark.launch.session import exposed

SECRET = "postgresql://ann:hunter2@db/trips"
CLUSTER = "spark://host:7077"


def pipeline(dsn: str = SECRET, **options: str) -> hf.Pipeline:
    clicks = hf.read.spark("kafka", {"subscribe": "clicks", **options}, name="clicks")
    return hf.Pipeline("p", clicks | hf.write.postgres(dsn, table="trips", name="trips"))


def test_executors_get_the_dsn_with_its_password() -> None:
    """So there is something to warn about: they stage rows by themselves."""
    table = PostgresTable("sink 'trips'", "public", "trips", (), pa.schema([]), TableMode())
    assert b"hunter2" in pickle.dumps(PostgresWriterFactory(Dsn(SECRET), table, "trips", True))


@pytest.mark.parametrize("dsn", [SECRET, "host=db password=hunter2", "postgresql://db/trips?password=hunter2"])
def test_a_password_on_its_way_to_another_host_is_warned_about_and_not_shown(dsn: str) -> None:
    said = exposed(pipeline(dsn), CLUSTER, lambda _: False)
    assert said.startswith("secrets of trips travel to the executors of spark://host:7077 in clear")
    assert "hunter2" not in said


def test_so_is_a_password_from_the_environment_and_an_option_of_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIPS_DSN", SECRET)
    said = exposed(pipeline("${TRIPS_DSN}", auth="hunter2"), "yarn", lambda _: False)
    assert said.startswith("secrets of clicks, trips travel")


@pytest.mark.parametrize(
    ("dsn", "master", "on"),
    [
        ("postgresql://ann@db/trips?passfile=/etc/x", CLUSTER, set()),
        (SECRET, "local[2]", set()),
        (SECRET, "local-cluster[2,1,1024]", set()),
        (SECRET, CLUSTER, {"spark.authenticate", "spark.network.crypto.enabled"}),
        (SECRET, "k8s://host:443", {"spark.ssl.rpc.enabled"}),
    ],
)
def test_what_is_encrypted_or_stays_on_the_machine_or_holds_no_password_is_not(
    dsn: str, master: str, on: set[str]
) -> None:
    assert exposed(pipeline(dsn), master, lambda name: name in on) == ""
